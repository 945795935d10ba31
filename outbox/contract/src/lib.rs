#![doc = include_str!("../README.md")]
#![cfg_attr(docsrs, feature(doc_cfg))]

pub mod admin;
mod append_sql;
mod attributes;
pub mod backend;
mod clock;
mod codec;
pub mod duration;
mod edit;
mod error;
mod event;
mod failure;
mod handled;
mod headers;
mod id;
mod key;
mod message;
pub mod metric;
mod name;
mod options;
pub mod retry;
mod writer;

pub use admin::{Admin, AdminExt};
pub use append_sql::AppendSql;
pub use async_trait::async_trait;
pub use backend::{Store, Transactional, Transport, inbox_route};
pub use bytes::Bytes;
pub use clock::Timestamp;
pub use codec::{Codec, CodecError, Json};
pub use error::{AppendError, StoreError, StoreErrorKind, TransportError, TransportErrorKind};
pub use event::{DomainEvent, EventType};
pub use failure::{Failure, Rejection};
pub use headers::Headers;
pub use id::MessageId;
pub use key::EventKey;
pub use message::{DueTime, Message, MessageError, Outgoing};
pub use name::{Consumer, Key, KeyId, NameError, Route, Topic};
pub use options::AppendOptions;
pub use retry::{Exhausted, RetryPolicy, RetryRule};
pub use writer::Outbox;

/// Names used by the output of `#[derive(DomainEvent)]` only: they may change in any release.
#[doc(hidden)]
pub mod __private {
    pub use crate::event::{DomainEvent, EventType};
    pub use crate::key::EventKey;
}
