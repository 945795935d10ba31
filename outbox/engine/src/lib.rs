#![doc = include_str!("../README.md")]

mod mediator;
mod observe;
mod relay;
mod unit_of_work;

pub use mediator::{EventHandler, EventHandlerFn, HandlerError, Mediator};
pub use observe::consume_span;
pub use relay::{Health, Relay, RelayBuilder, RelayConfig, RelayHandle, RelayStats, StartError, Status};
pub use unit_of_work::{Aggregate, EventLog, UnitOfWork, VersionMismatch, WorkError};
