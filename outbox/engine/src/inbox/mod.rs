//! The inbox: messages from a broker into handlers, whose effects happen once (promise P4).
//!
//! ```text
//! InboxHandle ─┬─ InboxSupervisor    subscribes, and starts again what fails
//!              │    ├─ Receiver      takes deliveries
//!              │    └─ Dispatcher    around the Core, which decides all that is in memory
//!              │         ├─ Worker × 2 concurrency ──────────────────────────┐
//!              │         └─ Acknowledger   tells the broker what is finished  │
//!              └─ a relay of the consumer's route ── Drain, its transport ───┴─ Processor ── TransactionPool
//! ```
//!
//! The processor is the only way into a handler: begin, fence what comes from the store,
//! deduplicate, handle, append, commit. Every transaction comes from the pool.

mod acknowledger;
mod builder;
mod config;
mod consumed;
mod context;
mod core;
mod credit;
mod dispatcher;
mod drain;
mod foreign;
mod handle;
mod handler;
mod handler_context;
mod handlers;
mod identity;
mod lags;
mod losses;
mod observer;
mod outage;
mod pool_share;
mod problems;
mod process;
mod processor;
mod receiver;
mod source;
mod stats;
mod steps;
mod supervisor;
mod transaction_pool;
mod undecodable;
mod upcast;
mod upkeep;
mod verdict;
mod worker;

#[cfg(test)]
mod kill_tests;

pub use builder::{Inbox, InboxBuilder};
pub use config::{HandlerOptions, InboxConfig, Mode, UnknownType};
pub use foreign::ForeignRecord;
pub use handle::InboxHandle;
pub use handler::{HandlerFailure, MessageHandler};
pub use handler_context::HandlerContext;
pub use observer::InboxObserver;
pub(crate) use pool_share::share;
pub use stats::InboxStats;
#[cfg(feature = "test-util")]
pub use steps::Step;
