//! The inbox: messages from a broker into handlers, whose effects happen once (promise P4).
//!
//! ```text
//! InboxHandle ─┬─ InboxSupervisor   subscribes, and starts again what fails
//!              │    ├─ Receiver     takes deliveries; in stored mode writes them to the store
//!              │    ├─ Acknowledger tells the broker what is finished
//!              │    └─ Mailboxes    keep the order of keys, as Dispatcher decides ── Worker × 2 concurrency ┐
//!              └─ a relay of the consumer's route ── Drain, its transport ────────────────────────────────┴─ Processor ── TransactionPool
//! ```
//!
//! The processor is the only way into a handler: begin, fence what comes from the store, deduplicate, handle, append, commit. Every transaction comes from the pool.

mod absence;
mod acknowledger;
mod builder;
mod config;
mod conflicts;
mod context;
mod credit;
mod dispatcher;
mod drain;
mod handle;
mod handler;
mod handlers;
mod identity;
mod mailboxes;
mod overtaking;
mod pace;
mod pausing;
mod permits;
mod problems;
mod process;
mod processor;
mod receiver;
mod recent;
mod source;
mod stand_in;
mod stats;
mod steps;
mod storing;
mod supervisor;
mod transaction_pool;
mod undecodables;
mod upcast;
mod verdict;
mod worker;

pub use builder::{Inbox, InboxBuilder};
pub use config::{HandlerOptions, InboxConfig, Mode, UnknownType};
pub use handle::InboxHandle;
pub use handler::{HandlerContext, HandlerFailure, MessageHandler, handler_fn};
pub use stats::InboxStats;
#[cfg(feature = "test-util")]
pub use steps::Step;
