#![doc = include_str!("../README.md")]

mod mediator;
mod relay;
mod unit_of_work;

pub use mediator::{EventHandler, EventHandlerFn, HandlerError, Mediator};
pub use relay::{Health, Relay, RelayBuilder, RelayConfig, RelayHandle, RelayStats, StartError, Status};
pub use unit_of_work::{Aggregate, EventLog, UnitOfWork, VersionMismatch, WorkError};
