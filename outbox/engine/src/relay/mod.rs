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

mod breaker;
mod builder;
mod config;
mod context;
mod credit;
mod diverter;
mod effects;
mod handle;
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
mod restart;
mod settler;
mod stats;
mod supervisor;
mod tenure;
mod topics;
mod waker;

pub use builder::{Relay, RelayBuilder, StartError};
pub use config::RelayConfig;
pub use handle::{Health, RelayHandle, Status};
pub use stats::RelayStats;
