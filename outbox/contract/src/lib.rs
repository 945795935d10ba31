#![doc = include_str!("../README.md")]
#![cfg_attr(docsrs, feature(doc_cfg))]

pub mod admin;
pub mod backend;
pub mod backlog;
pub mod bucket;
pub mod clock;
pub mod cloudevents;
pub mod codec;
mod edit;
pub mod error;
pub mod event;
pub mod failure;
pub mod fetch;
pub mod finished;
pub mod headers;
pub mod id;
pub mod key;
pub mod lease;
pub mod maintain;
pub mod message;
pub mod metric;
pub mod name;
pub mod outcome;
pub mod raw;
mod raw_record;
mod requeue;
pub mod retry;
pub mod store;
pub mod stripe;
pub mod subscription;
pub mod trace;
pub mod transactional;
pub mod transition;
pub mod transport;
pub mod unserved;
pub mod wakeup;
pub mod writer;

pub use admin::Admin;
pub use async_trait::async_trait;
pub use backlog::Backlog;
pub use bucket::{BUCKETS, Bucket, BucketSet};
pub use bytes::Bytes;
pub use clock::{Clock, SystemClock, Timestamp};
pub use codec::{Codec, CodecError, Json};
pub use error::{AppendError, StoreError, StoreErrorKind, TransportError, TransportErrorKind};
pub use event::{DomainEvent, EventType};
pub use failure::{Failure, Rejection};
pub use fetch::{FetchRequest, Fetched, FetchedRow, Stored};
pub use headers::Headers;
pub use id::{Epoch, MessageId, Position, RelayId};
pub use key::EventKey;
pub use lease::{Lease, LeaseRequest, Leased, LowWater};
pub use message::{Message, MessageError, Outgoing};
pub use name::{Consumer, Key, KeyId, NameError, Route, Topic};
pub use outcome::{Outcome, Outcomes};
pub use retry::{Exhausted, RetryPolicy};
pub use store::Store;
pub use stripe::{STRIPES, Stripe, StripeId, StripeMark};
pub use subscription::{Deliveries, Delivery, Problem, Subscription};
pub use transactional::Transactional;
pub use transition::{KeyTransition, Transitioned};
pub use transport::{PublishBatch, Transport};
pub use unserved::Unserved;
pub use wakeup::WakeupSignal;
pub use writer::Outbox;

/// Names used by the output of `#[derive(DomainEvent)]` only: they may change in any release.
#[doc(hidden)]
pub mod __private {
    pub use crate::event::{DomainEvent, EventType};
    pub use crate::key::EventKey;
}
