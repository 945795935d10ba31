#![doc = include_str!("../README.md")]
#![cfg_attr(docsrs, feature(doc_cfg))]

mod answer;
mod error_text;
mod giving_way;
mod health;
mod inbox;
mod limits;
mod mailbox;
mod mediator;
mod pausing;
mod recent;
mod relay;
mod restart;
mod service;
mod settings;
mod start;
mod telemetry;
mod transport_check;
mod unit_of_work;

pub use health::{Health, Reason, ReasonKind, Status};
#[cfg(feature = "test-util")]
pub use inbox::Step;
pub use inbox::{
    ForeignRecord, HandlerContext, HandlerFailure, HandlerOptions, Inbox, InboxBuilder, InboxConfig,
    InboxHandle, InboxObserver, InboxStats, MessageHandler, Mode, UnknownType,
};
pub use mediator::{EventHandler, EventHandlerFn, HandlerError, Mediator};
#[doc(hidden)]
#[cfg(any(test, feature = "_simulation"))]
pub use relay::simulation;
pub use relay::{Relay, RelayBuilder, RelayConfig, RelayHandle, RelayObserver, RelayStats};
pub use service::{Service, ServiceBuilder, ServiceHandle, ShutdownError};
pub use start::StartError;
pub use telemetry::consume_span;
pub use unit_of_work::{Aggregate, EventLog, UnitOfWork, VersionMismatch, WorkError};
