//! Contract of backends: traits and types that only authors of stores and transports meet.
//!
//! A store implements [`Store`], [`Admin`](crate::Admin) and [`Transactional`]; a transport
//! implements [`Transport`] and [`Deliveries`]. The suites of the crate `outbox-testkit` test every
//! promise of these traits. The book's page "Writing a backend" shows a small one of each.

mod audit;
mod backlog;
mod bucket;
pub mod cloudevents;
mod fetch;
mod finished;
pub mod flow;
mod frontier;
mod lag;
mod layer;
mod lease;
mod maintain;
mod operate;
mod outcome;
mod raw;
mod raw_record;
mod requeue;
pub mod rules;
mod store;
mod stripe;
mod subscription;
mod tally;
pub mod trace;
mod transactional;
mod transition;
mod transport;
mod transport_layer;
mod unserved;
mod wakeup;

pub use crate::attributes::EVENT_ID;
pub use crate::clock::{Clock, SystemClock};
pub use crate::id::{Epoch, Position, RelayId};
pub(crate) use audit::clean;
pub use audit::{AuditColumns, AuditNote};
pub use backlog::Backlog;
pub use bucket::{BUCKETS, Bucket, BucketSet, key_hash};
pub use fetch::{
    Due, DueKey, DueRequest, FetchRequest, Fetched, FetchedRow, Ordering, RowId, Scope, Stored, Waiting,
    Writers,
};
pub use finished::{Finished, Rest};
pub use frontier::{Frontier, OpenWriters, StripeMarks};
pub use lag::{Lag, Loss, LossCause, OffsetReset};
pub use layer::{StoreCall, StoreLayer, TransactionalLayer};
pub use lease::{Lease, LeaseRequest, Leased, LowWater, Paused};
pub use maintain::Maintained;
pub use operate::{Archive, Death, KeyOperation, Listed, Steered, View};
pub use outcome::{Outcome, Outcomes, Unavailable};
pub use raw::RawMessage;
pub use raw_record::{ADAPTED, RawRecord};
pub use requeue::{Requeue, requeued};
pub use store::Store;
pub use stripe::{STRIPES, Stripe, StripeId, StripeMark};
pub use subscription::{
    Deliveries, Delivery, Origin, Problem, Received, Subscription, Tag, Undecodable, Unit,
};
pub use tally::{Figure, RouteTally, TopicTally};
pub use transactional::{Blame, Committed, Dedup, Transactional, inbox_route};
pub use transition::{KeyTransition, Step, Then, Transitioned};
pub use transport::{PublishBatch, Transport};
pub use transport_layer::TransportLayer;
pub use unserved::Unserved;
pub use wakeup::{Wakeup, WakeupListener, WakeupSignal, Wakeups};
