//! The relay: moves committed messages from a store to a transport.
//!
//! ```text
//! RouteSupervisor ─┬─ Keeper    heartbeats, and nothing else
//!                  ├─ Poller    reads for all buckets, as Reader decides
//!                  ├─ Lane × N  keep the order of keys, as Keys decides ── Publisher × depth
//!                  ├─ Diverter  takes steps of failing keys to the store
//!                  └─ Settler   removes what was delivered; outlives the others
//! Upkeep          ─┬─ Janitor   scheduled messages, retention
//!                  ├─ Meter     figures of the backlog
//!                  └─ Lookout   routes that no relay serves
//! ```

pub(crate) mod breaker;
pub(crate) mod builder;
pub(crate) mod config;
pub(crate) mod context;
pub(crate) mod credit;
mod diverter;
mod effects;
pub(crate) mod handle;
pub(crate) mod health;
mod janitor;
mod keeper;
mod key;
mod keys;
mod lane;
mod lookout;
mod meter;
#[cfg(test)]
mod model_cast;
mod observer;
mod pace;
mod patience;
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
mod unserved;
mod upkeep;
mod waker;
mod working;

pub use builder::{Relay, RelayBuilder, StartError};
pub use config::RelayConfig;
pub use handle::RelayHandle;
pub use health::{Health, Status};
pub use observer::RelayObserver;
pub use stats::RelayStats;
