//! The inbox: messages from a broker into handlers, whose effects happen once (promise P4).
//!
//! ```text
//! InboxHandle ─┬─ InboxSupervisor   subscribes, and starts again what fails
//!              │    ├─ Receiver     takes deliveries; in stored mode writes them to the store
//!              │    ├─ Acknowledger tells the broker what is finished
//!              │    └─ Mailboxes    keep the order of keys, as Dispatcher decides ── Worker × 2 concurrency ┐
//!              └─ a relay of the consumer's route ── Drain, its transport ────────────────────────────────┴─ Processor
//! ```
//!
//! The processor is the only way into a handler: begin, admit, handle, append, commit.

mod absence;
mod acknowledger;
mod builder;
mod config;
mod conflicts;
mod context;
mod dispatcher;
mod drain;
mod handle;
mod handler;
mod handlers;
mod interruptions;
mod mailboxes;
mod overtaking;
mod pace;
mod pausing;
mod permits;
mod process;
mod processor;
mod receiver;
mod source;
mod spares;
mod stand_in;
mod stats;
mod steps;
mod storing;
mod supervisor;
mod transactions;
mod turns;
mod upcast;
mod verdict;
mod worker;

pub use builder::{Inbox, InboxBuilder};
pub use config::{HandlerOptions, InboxConfig, Mode, UnknownType};
pub use handle::InboxHandle;
pub use handler::{HandlerContext, HandlerFailure, MessageHandler, handler_fn};
pub use stats::InboxStats;
pub use steps::Step;
