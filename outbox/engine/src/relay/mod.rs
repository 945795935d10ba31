//! The relay: moves committed messages from a store to a transport.
//!
//! ```text
//! RouteSupervisor ─┬─ Keeper    heartbeats, and nothing else
//!                  ├─ Poller    reads for all buckets, as Reader decides
//!                  ├─ Lane × N  keep the order of keys, as Keys decides ── Publisher × depth
//!                  ├─ Diverter  takes steps of failing keys to the store
//!                  └─ Settler   removes what was delivered; outlives the others
//! Janitor             scheduled messages, retention, figures
//! ```

pub(crate) mod breaker;
pub(crate) mod builder;
pub(crate) mod config;
pub(crate) mod context;
pub(crate) mod credit;
mod diverter;
mod effects;
pub(crate) mod handle;
mod janitor;
mod keeper;
mod key;
mod keys;
mod lane;
#[cfg(test)]
mod model_cast;
mod pace;
mod policies;
mod poller;
mod publisher;
mod reader;
pub(crate) mod restart;
mod settler;
mod stats;
mod supervisor;
mod tenure;
mod topics;
mod waker;
mod working;

pub use builder::{Relay, RelayBuilder, StartError};
pub use config::RelayConfig;
pub use handle::{Health, RelayHandle, Status};
pub use stats::RelayStats;
