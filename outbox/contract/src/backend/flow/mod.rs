//! Flow of messages through a transport: the rules that all transports share. Pure: no I/O, no
//! clock, no locks.
//!
//! - [`Window`]: deliveries between the broker and one member of a consumer.
//! - [`CutKeys`] and [`KeyChain`]: messages of a publish batch that may be under way, and what a
//!   failure blocks.

mod key_chain;
mod load;
mod owned_unit;
mod window;

pub use key_chain::{CutKeys, KeyChain, Reports};
pub use load::{Load, bytes_of};
pub use owned_unit::OwnedUnit;
pub use window::{Finished, Window};
