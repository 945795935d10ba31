//! What the suites of this crate share. The suites themselves are the folders beside `src`:
//!
//! | suite | what it proves |
//! |---|---|
//! | `pairs` | PostgreSQL and RabbitMQ together keep the promises, whatever happens to them |
//! | `unit_of_work` | your rows and the events commit together, on SQLite and on PostgreSQL |
//! | `workspace` | the house is as it should be: who may depend on whom, what every crate and file must have |

pub mod life;
pub mod pair;

use std::path::{Path, PathBuf};

/// The folder of the repository.
#[must_use]
pub fn root() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.parent().unwrap_or(here).to_owned()
}
