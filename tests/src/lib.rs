//! Shared parts of the suites of this crate. The suites themselves are the folders beside `src`:
//!
//! | suite | property |
//! |---|---|
//! | `matrix` | every database with every broker keeps the promises, relay and inbox together |
//! | `any_language` | a consumer in Python drops repeats and nothing else, by the rules of the book |
//! | `below` | what a restore puts below a relay's cursor or above the counters is delivered |
//! | `galera` | relays on a cluster of MariaDB keep the promises while nodes are killed and isolated |
//! | `inbox` | inboxes that die behind any step have each effect once; a failing key delays no other |
//! | `pairs` | real pairs keep the promises under faults of servers, relays and inboxes |
//! | `unit_of_work` | your rows and the events commit together, on SQLite and on PostgreSQL |
//! | `settings` | the defaults in the book are those of the code |

#![allow(clippy::expect_used, reason = "it is for tests alone")]

pub mod bench;
pub mod fresh;
pub mod halt;
pub mod kind;
pub mod ledger;
pub mod life;
pub mod pair;
pub mod record;

use std::path::{Path, PathBuf};

/// Returns the folder of the repository.
#[must_use]
pub fn root() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.parent().unwrap_or(here).to_owned()
}
