//! The relay: moves committed messages from a store to a transport.
//!
//! ```text
//! RouteSupervisor ─┬─ LeaseKeeper   sends heartbeats, and does nothing else
//!                  ├─ RouteCore     passes events to the Core, which decides everything
//!                  │   └─ Publisher × max_unconfirmed_batches, and a quarter more for silent keys
//!                  ├─ Poller        queries the store
//!                  ├─ Transitions   writes transitions of failing keys to the store
//!                  └─ Settler       removes delivered messages; outlives the others
//! Maintenance     ─── Rounds        one for each job: retention, figures, unserved routes, settings
//! ```

mod builder;
mod config;
mod context;
mod core;
mod fingerprint;
mod handle;
mod health;
mod lease_keeper;
mod maintenance;
mod observer;
mod poller;
mod publish_timeout;
mod publisher;
mod route;
mod sent;
mod settler;
mod stats;
mod supervisor;
mod tenure;
mod topic_ages;
mod transitions;
mod waker;

#[cfg(test)]
mod kill_tests;

#[doc(hidden)]
#[cfg(any(test, feature = "_simulation"))]
pub use self::core::model as simulation;
pub use builder::{Relay, RelayBuilder};
pub use config::RelayConfig;
pub use handle::RelayHandle;
pub use observer::RelayObserver;
pub use stats::RelayStats;
