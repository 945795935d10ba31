#![doc = include_str!("../README.md")]
#![cfg_attr(docsrs, feature(doc_cfg))]

mod inbox;
mod mailbox;
mod mediator;
mod pausing;
mod relay;
mod service;
mod settings;
mod telemetry;
mod transport_check;
mod unit_of_work;

#[cfg(feature = "test-util")]
pub use inbox::Step;
pub use inbox::{
    ForeignRecord, HandlerContext, HandlerFailure, HandlerOptions, Inbox, InboxBuilder, InboxConfig,
    InboxHandle, InboxObserver, InboxStats, MessageHandler, Mode, UnknownType,
};
pub use mediator::{EventHandler, EventHandlerFn, HandlerError, Mediator};
#[doc(hidden)]
#[cfg(any(test, feature = "simulation"))]
pub use relay::simulation;
pub use relay::{
    Health, Reason, ReasonKind, Relay, RelayBuilder, RelayConfig, RelayHandle, RelayObserver, RelayStats,
    StartError, Status,
};
pub use service::{Service, ServiceBuilder, ServiceHandle, ShutdownError};
pub use telemetry::consume_span;
pub use unit_of_work::{Aggregate, EventLog, UnitOfWork, VersionMismatch, WorkError};
