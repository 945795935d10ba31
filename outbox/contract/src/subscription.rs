//! The receiving side of a transport.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

use crate::error::TransportError;
use crate::message::Message;
use crate::name::{Consumer, Topic};

/// What a consumer wants to receive.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Subscription {
    /// The consumer: its members share the deliveries. The group on Kafka and Redis, the prefix of queues on RabbitMQ.
    pub consumer: Consumer,
    /// The topics.
    pub topics: Vec<Topic>,
    /// How many deliveries may be unacknowledged at once. Default 1,000.
    pub prefetch: usize,
    /// How many bytes of them. Default 16 MiB. A delivery larger than this comes alone.
    pub prefetch_bytes: usize,
}

impl Subscription {
    /// A subscription of a consumer to topics, with the default bounds.
    #[must_use]
    pub fn new(consumer: Consumer, topics: impl IntoIterator<Item = Topic>) -> Self {
        Self {
            consumer,
            topics: topics.into_iter().collect(),
            prefetch: 1_000,
            prefetch_bytes: 16 * 1024 * 1024,
        }
    }

    /// Sets how many deliveries may be unacknowledged at once.
    #[must_use]
    pub fn with_prefetch(mut self, prefetch: usize) -> Self {
        self.prefetch = prefetch;
        self
    }

    /// Sets how many bytes of them.
    #[must_use]
    pub fn with_prefetch_bytes(mut self, bytes: usize) -> Self {
        self.prefetch_bytes = bytes;
        self
    }
}

/// An ordering unit of a transport: a partition, a queue, a stream. One member of a consumer has it at a time.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Unit {
    /// The topic.
    pub topic: Topic,
    /// Which partition, queue or stream of it, from 0.
    pub number: u32,
}

impl fmt::Display for Unit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.topic, self.number)
    }
}

/// Names one delivery, for its acknowledgement.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Tag {
    /// Where it came from.
    pub unit: Unit,
    /// One ownership of the unit by this member: counts up each time that the unit is assigned again or its connection is made anew. An
    /// acknowledgement of an earlier one is ignored; the delivery comes again.
    pub incarnation: u64,
    /// Which delivery: grows along the unit.
    pub number: u64,
}

/// A message as it came from the broker.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Delivery {
    /// What to acknowledge.
    pub tag: Tag,
    /// The message; or why what came is none, with what could be read of it.
    pub message: Result<Message, Undecodable>,
    /// The `source` and `sequence` of CloudEvents, where they came along: a consumer without an inbox drops what is not
    /// above the last it handled of a key and source.
    pub origin: Option<Origin>,
}

impl Delivery {
    /// A delivery.
    #[must_use]
    pub fn new(tag: Tag, message: Result<Message, Undecodable>, origin: Option<Origin>) -> Self {
        Self { tag, message, origin }
    }
}

/// Where a message came from, and where it stood there.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Origin {
    /// The `source` of CloudEvents.
    pub source: Arc<str>,
    /// The `sequence`: the position in the outbox of that source.
    pub sequence: i64,
}

/// Something on the broker that is not one of our messages.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Undecodable {
    /// What is wrong with it.
    pub reason: String,
    /// Its payload, for the dead letter.
    pub payload: bytes::Bytes,
    /// Its headers. A name or value that is no text is [escaped](Self::text).
    pub headers: Vec<(String, String)>,
    /// Its key at the broker, if it has one.
    pub key: Option<bytes::Bytes>,
    /// The place of the record on the broker, which stays the same when it is delivered again: `kafka orders/3@1234`, say. With the content it is the
    /// identity of the record: one record is one dead letter. None: the broker has no such place, and the content alone has to do.
    pub place: Option<String>,
}

impl Undecodable {
    /// Something that is not a message, and why.
    #[must_use]
    pub fn new(reason: impl Into<String>, payload: bytes::Bytes, headers: Vec<(String, String)>) -> Self {
        Self { reason: reason.into(), payload, headers, key: None, place: None }
    }

    /// Keeps its key.
    #[must_use]
    pub fn with_key(mut self, key: impl Into<bytes::Bytes>) -> Self {
        self.key = Some(key.into());
        self
    }

    /// Says where it stands on the broker.
    #[must_use]
    pub fn at(mut self, place: impl Into<String>) -> Self {
        self.place = Some(place.into());
        self
    }

    /// Bytes as text: as they are, where they are UTF-8; else with `\xff` for each byte that is not printable ASCII.
    #[must_use]
    pub fn text(bytes: &[u8]) -> String {
        match std::str::from_utf8(bytes) {
            Ok(text) => text.to_owned(),
            Err(_) => bytes.escape_ascii().to_string(),
        }
    }
}

impl fmt::Display for Undecodable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "not a message of ours: {}", self.reason)
    }
}

impl std::error::Error for Undecodable {}

/// What a subscription has to say.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Received {
    /// Deliveries, in order within each unit. Never empty.
    Deliveries(Vec<Delivery>),
    /// These units belong to this member no more (or their connection was made anew): drop what waits of them, finish
    /// nothing more of them. Their unacknowledged deliveries go to the next owner, or come again.
    Revoked(Vec<Unit>),
    /// Nothing more comes: the subscription was drained or closed.
    Ended,
}

/// Deliveries of one member of a consumer. Object-safe.
///
/// # Lifecycle
///
/// `next` until done; then `drain` (no more is dispatched, `next` says `Ended`), acknowledge what is still being handled,
/// `close`. Dropping it instead is a crash: what was not acknowledged comes again, to this member or to another.
#[async_trait]
pub trait Deliveries: Send + Sync {
    /// Waits for the next deliveries, or for units to be taken away.
    ///
    /// - *Effect*: takes from the prefetch. *Ordering*: by unit, from the first unacknowledged.
    /// - *Units and limits*: no more than the subscription's prefetch is unacknowledged at any time.
    /// - *Errors*: [`Unavailable`](crate::TransportErrorKind::Unavailable) while the broker is away: call again, with a pause. Others are final.
    /// - *Cancellation*: safe: nothing is lost, the next call returns it.
    /// - *Concurrency*: one call at a time. `acknowledge`, `pause` and `resume` may run beside it.
    async fn next(&self) -> Result<Received, TransportError>;

    /// Says that these deliveries are finished and must not come again.
    ///
    /// - *Effect*: after it returns they are not delivered again, *unless* the broker, the connection or the unit's ownership is lost
    ///   meanwhile: it is a wish, and a handler's effect must be once without it.
    /// - *Ordering*: any order; where the broker has only an offset, it advances over what is finished without a gap.
    /// - *Errors*: `Unavailable`: unknown; they may come again. A stale incarnation is no error.
    /// - *Cancellation*: safe, unknown. *Concurrency*: any. *Repeat*: harmless.
    async fn acknowledge(&self, tags: &[Tag]) -> Result<(), TransportError>;

    /// How long acknowledgements may wait for others, so that one call names several: for brokers to which each call costs as much as one that names
    /// many. Default: not at all, but what is finished while a call is under way goes into the next. Pure.
    fn acknowledgement_delay(&self) -> Duration {
        Duration::ZERO
    }

    /// Stops dispatching from these units until [`resume`](Self::resume), without losing them. Repeat: harmless.
    async fn pause(&self, units: &[Unit]) -> Result<(), TransportError>;

    /// Dispatches from these units again.
    async fn resume(&self, units: &[Unit]) -> Result<(), TransportError>;

    /// Dispatches no more; `next` says [`Ended`](Received::Ended) from now on. Acknowledgements still work. Repeat: harmless.
    async fn drain(&self) -> Result<(), TransportError>;

    /// Leaves. What was not acknowledged goes to another member, from the first unacknowledged of each unit, in order.
    async fn close(self: Box<Self>) -> Result<(), TransportError>;
}
