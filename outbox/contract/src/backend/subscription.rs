//! The receiving side of a transport.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

use crate::backend::{Lag, Loss, OffsetReset};
use crate::clock::Timestamp;
use crate::error::TransportError;
use crate::id::MessageId;
use crate::message::Message;
use crate::name::{self, Consumer, NameError, Topic};

/// Subscription of a consumer: topics and limits.
///
/// ```
/// # extern crate outbox_contract as outbox;
/// use outbox::backend::Subscription;
///
/// let subscription = Subscription::new("billing", ["orders", "payments"])?.with_prefetch(100);
/// # Ok::<(), outbox::NameError>(())
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Subscription {
    /// The consumer: its members share the deliveries. The group on Kafka and Redis, the prefix of
    /// queues on RabbitMQ.
    pub consumer: Consumer,
    /// The topics, at least one.
    pub topics: Vec<Topic>,
    /// Maximum number of unacknowledged deliveries, at least 1. Default 1,000.
    pub prefetch: usize,
    /// Maximum bytes of unacknowledged deliveries. Default 16 MiB. A larger delivery comes alone.
    pub prefetch_bytes: usize,
    /// Topics of which the consumer has handled messages, each with about the time of the last one.
    /// A position that the broker does not have of such a topic is a lost one; of another topic it
    /// is that of a new consumer. Default: none.
    pub handled: BTreeMap<Topic, Timestamp>,
    /// Position from which a unit is read whose position is lost. Default
    /// [`Earliest`](OffsetReset::Earliest).
    pub offset_reset: OffsetReset,
}

impl Subscription {
    /// Creates a subscription of a consumer to topics, with the default limits. Names are text, or
    /// a [`Consumer`] and [`Topic`]s.
    ///
    /// # Errors
    ///
    /// Describes the first invalid name.
    pub fn new(
        consumer: impl TryInto<Consumer, Error: Into<NameError>>,
        topics: impl IntoIterator<Item: TryInto<Topic, Error: Into<NameError>>>,
    ) -> Result<Self, NameError> {
        let topics = topics.into_iter().map(name::parse);
        Ok(Self {
            consumer: name::parse(consumer)?,
            topics: topics.collect::<Result<_, _>>()?,
            prefetch: 1_000,
            prefetch_bytes: 16 * 1024 * 1024,
            handled: BTreeMap::new(),
            offset_reset: OffsetReset::Earliest,
        })
    }

    /// Sets the maximum number of unacknowledged deliveries.
    #[must_use]
    pub fn with_prefetch(mut self, prefetch: usize) -> Self {
        self.prefetch = prefetch;
        self
    }

    /// Sets the maximum bytes of unacknowledged deliveries.
    #[must_use]
    pub fn with_prefetch_bytes(mut self, bytes: usize) -> Self {
        self.prefetch_bytes = bytes;
        self
    }

    /// Sets the topics of which the consumer has handled messages, and the position from which a
    /// unit of theirs is read if the broker has lost it.
    #[must_use]
    pub fn with_handled(mut self, handled: BTreeMap<Topic, Timestamp>, reset: OffsetReset) -> Self {
        self.handled = handled;
        self.offset_reset = reset;
        self
    }
}

/// An ordering unit of a transport: a partition, a queue, a stream. One member of a consumer owns
/// it at a time.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Unit {
    /// The topic.
    pub topic: Topic,
    /// Number of the partition, queue or stream within the topic, from 0.
    pub number: u32,
}

impl fmt::Display for Unit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.topic, self.number)
    }
}

/// Identifies one delivery, for its acknowledgment.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Tag {
    /// Unit from which it came.
    pub unit: Unit,
    /// One ownership of the unit by this member: increases each time the unit is reassigned or its
    /// connection is reopened. An acknowledgment for an earlier one is ignored; the delivery is
    /// redelivered.
    pub incarnation: u64,
    /// Number of the delivery: grows along the unit.
    pub number: u64,
}

/// A message as received from the broker.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Delivery {
    /// Tag to acknowledge.
    pub tag: Tag,
    /// The message, or the reason why it is undecodable, with its readable parts.
    pub message: Result<Message, Undecodable>,
    /// The CloudEvents `source` and `sequence`, if the message had them. A consumer without an
    /// inbox drops duplicates by them, per topic and key: the book explains this under "Repeats
    /// without an inbox".
    pub origin: Option<Origin>,
}

impl Delivery {
    /// Creates a delivery.
    #[must_use]
    pub fn new(tag: Tag, message: Result<Message, Undecodable>, origin: Option<Origin>) -> Self {
        Self { tag, message, origin }
    }
}

/// Source of a message, and its position there.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Origin {
    /// The CloudEvents `source`.
    pub source: Arc<str>,
    /// The CloudEvents `sequence`: the position in the outbox of that source.
    pub sequence: i64,
}

/// A record on the broker that is not a valid message.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Undecodable {
    /// Fault of the record.
    pub reason: String,
    /// Its payload, for the dead letter.
    pub payload: bytes::Bytes,
    /// True if the protocol says that there is no payload: a null value on Kafka.
    pub is_null: bool,
    /// Its headers. A name or value that is not text is [escaped](Self::text).
    pub headers: Vec<(String, String)>,
    /// Its key at the broker, if it has one.
    pub key: Option<Box<[u8]>>,
    /// Location of the record on the broker, stable across redelivery: `kafka orders/3@1234`, for
    /// example. Location and content together identify the record: one record is one dead letter.
    /// `None`: the broker has no such location, and the content alone identifies the record.
    pub place: Option<Box<str>>,
}

impl Undecodable {
    /// Creates an undecodable record with its reason.
    #[must_use]
    pub fn new(reason: impl Into<String>, payload: bytes::Bytes, headers: Vec<(String, String)>) -> Self {
        Self { reason: reason.into(), payload, is_null: false, headers, key: None, place: None }
    }

    /// Sets its key.
    #[must_use]
    pub fn with_key(mut self, key: impl AsRef<[u8]>) -> Self {
        self.key = Some(key.as_ref().into());
        self
    }

    /// Sets its location on the broker.
    #[must_use]
    pub fn at(mut self, place: impl Into<Box<str>>) -> Self {
        self.place = Some(place.into());
        self
    }

    /// Returns the record's id among those of its topic, computed from its location and content.
    /// The location alone is not enough: a topic that was deleted and recreated reuses its
    /// locations.
    #[must_use]
    pub fn identity(&self, topic: &Topic) -> MessageId {
        use sha2::{Digest, Sha256};
        let mut hash = Sha256::new();
        let mut add = |part: &[u8]| {
            hash.update((part.len() as u64).to_be_bytes());
            hash.update(part);
        };
        add(topic.as_str().as_bytes());
        add(self.place.as_deref().unwrap_or_default().as_bytes());
        add(self.key.as_deref().unwrap_or_default());
        for (name, value) in &self.headers {
            add(name.as_bytes());
            add(value.as_bytes());
        }
        add(&self.payload);
        let digest: [u8; 32] = hash.finalize().into();
        let mut bytes = [0; 16];
        bytes.copy_from_slice(&digest[..16]);
        MessageId::from_uuid(uuid::Builder::from_custom_bytes(bytes).into_uuid())
    }

    /// Converts bytes to text: unchanged if they are UTF-8; otherwise with `\xff` for each byte
    /// that is not printable ASCII.
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
        write!(f, "undecodable record: {}", self.reason)
    }
}

impl std::error::Error for Undecodable {}

/// An item received from a subscription.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Received {
    /// Deliveries, in order within each unit. Never empty.
    Deliveries(Vec<Delivery>),
    /// These units no longer belong to this member, or their connection was reopened. Drop their
    /// waiting deliveries, and finish no more of them. The broker redelivers unacknowledged
    /// deliveries to the next owner, or to this member.
    Revoked(Vec<Unit>),
    /// End of deliveries: the subscription was drained or closed.
    Ended,
}

/// A topic, or one unit of it, that currently delivers nothing to this member, while the rest of
/// the subscription works.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Problem {
    /// The topic.
    pub topic: Topic,
    /// The unit of the topic: partition, queue or stream. `None`: the whole topic.
    pub number: Option<u32>,
    /// The cause, with the remedy if there is one.
    pub error: String,
    /// Time at which the member first saw it, by this machine's clock.
    pub since: Timestamp,
}

impl Problem {
    /// Creates a problem of a topic, or of one unit of it, first seen now.
    #[must_use]
    pub fn new(topic: Topic, number: Option<u32>, error: impl Into<String>) -> Self {
        Self { topic, number, error: error.into(), since: Timestamp::now() }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.number {
            Some(number) => write!(f, "{}/{number}: {}", self.topic, self.error),
            None => write!(f, "{}: {}", self.topic, self.error),
        }
    }
}

/// Deliveries of one member of a consumer. Object-safe.
///
/// # Lifecycle
///
/// Call `next` until done, then `drain` (dispatching stops, `next` returns `Ended`). Acknowledge
/// what is still being handled, then `close`. Dropping it instead acts like a crash: the broker
/// redelivers everything unacknowledged, to this member or to another.
#[async_trait]
pub trait Deliveries: Send + Sync {
    /// Waits for the next deliveries, or for the revocation of units.
    ///
    /// - *Effect*: takes from the prefetch. *Ordering*: by unit, from the first unacknowledged. A
    ///   revocation comes before the deliveries of a later ownership, and before
    ///   [`Ended`](Received::Ended); behind that nothing comes.
    /// - *Units and limits*: never more unacknowledged deliveries than the subscription's prefetch.
    /// - *Errors*: only if the whole subscription can't receive:
    ///   [`Unavailable`](crate::TransportErrorKind::Unavailable) while the broker is unreachable:
    ///   call again, after a pause. Others are final. [`problems`](Self::problems) reports errors
    ///   of one topic or unit, and these delay no other.
    /// - *Cancellation*: safe: nothing is lost, the next call returns it.
    /// - *Concurrency*: one call at a time. Every other method but `close` may run beside it, and
    ///   does not wait for it. What they change wakes a call that waits: room from an
    ///   acknowledgment, a resumed unit, the end by a drain.
    async fn next(&self) -> Result<Received, TransportError>;

    /// Acknowledges finished deliveries, so that the broker does not redeliver them.
    ///
    /// - *Effect*: after it returns, the broker does not redeliver them, *unless* the broker, the
    ///   connection or the unit's ownership is lost meanwhile. It is a request only: a handler's
    ///   effect must happen once without it.
    /// - *Ordering*: any order; if the broker has only an offset, the offset advances over finished
    ///   deliveries without a gap.
    /// - *Errors*: `Unavailable`: unknown; they may be redelivered. A stale incarnation is not an
    ///   error.
    /// - *Cancellation*: safe, unknown. *Concurrency*: any. *Repeat*: harmless.
    async fn acknowledge(&self, tags: &[Tag]) -> Result<(), TransportError>;

    /// Returns how long an acknowledgment may wait for others, so that one call covers several: for
    /// brokers at which a call costs the same however many it names. Default: zero. Deliveries that
    /// finish while a call is running still share the next one. Pure.
    fn acknowledgement_delay(&self) -> Duration {
        Duration::ZERO
    }

    /// Returns topics and units of this member that currently deliver nothing, while others may: a
    /// missing topic, or one that it may not read. The member retries them by itself. Pure and
    /// quick. Default: none, for a broker whose units fail all together.
    fn problems(&self) -> Vec<Problem> {
        Vec::new()
    }

    /// Returns what waits at the broker for this consumer, in the units of this member, as last
    /// measured: at most every few seconds, and beside the deliveries. A unit that could not be
    /// measured is left out. Pure and quick. Default: none, for a broker that does not tell.
    fn lags(&self) -> Vec<Lag> {
        Vec::new()
    }

    /// Takes what this member found lost at the broker since the last call. Pure and quick.
    /// Default: none.
    fn losses(&self) -> Vec<Loss> {
        Vec::new()
    }

    /// Stops dispatching from these units until [`resume`](Self::resume), without losing them.
    /// Other units continue: what waits of a paused one takes no room of theirs. A revocation ends
    /// the pause of its units. Repeat: harmless.
    async fn pause(&self, units: &[Unit]) -> Result<(), TransportError>;

    /// Dispatches from these units again.
    async fn resume(&self, units: &[Unit]) -> Result<(), TransportError>;

    /// Stops dispatching; `next` returns [`Ended`](Received::Ended) from now on, after a revocation
    /// that it has not returned yet. Acknowledgments still work. Repeat: harmless.
    async fn drain(&self) -> Result<(), TransportError>;

    /// Leaves the consumer. Unacknowledged deliveries go to another member, from the first
    /// unacknowledged of each unit, in order.
    async fn close(self: Box<Self>) -> Result<(), TransportError>;
}
