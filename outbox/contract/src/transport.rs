//! The transport: a broker, as the relay and the inbox see it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

use crate::bucket::Bucket;
use crate::error::TransportError;
use crate::failure::Rejection;
use crate::fetch::Stored;
use crate::id::{Epoch, RelayId};
use crate::message::Message;
use crate::name::Route;
use crate::outcome::Outcomes;
use crate::subscription::{Deliveries, Subscription};

/// Messages to be published together.
///
/// A key is in at most one unconfirmed chunk of a relay; a chunk may hold several messages of a key, in order.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Chunk {
    /// The route by which they go out.
    pub route: Route,
    /// The relay that sends them, for transports that can fence at the broker.
    pub relay: RelayId,
    /// Under which epochs the relay owns the buckets of these messages, for transports that can fence at the broker: there, an epoch below one
    /// that was seen belongs to a relay that lost the bucket. A bucket that is missing here can't be fenced.
    pub epochs: BTreeMap<Bucket, Epoch>,
    /// The `source` attribute of CloudEvents: a URI reference that names the service. With the position as `sequence`
    /// it lets a consumer without an inbox drop repeats of a key. After a restore of the outbox it should be another one.
    pub source: Arc<str>,
    /// The messages, in the order in which they must appear, key by key.
    pub messages: Vec<Arc<Stored>>,
    /// After this long the relay stops waiting and takes everything unreported as unknown, unless what is reported shows that the broker is at it. Shorter
    /// than the lease, and never longer than the lease lasts.
    pub deadline: Duration,
    /// How often the first message was tried before, as stored with its key. One that was, goes alone; 0 for all others.
    pub tried: u32,
}

impl Chunk {
    /// A chunk of these messages, whose epochs are not known.
    #[must_use]
    pub fn new(
        route: Route,
        relay: RelayId,
        source: Arc<str>,
        messages: Vec<Arc<Stored>>,
        deadline: Duration,
    ) -> Self {
        Self { route, relay, epochs: BTreeMap::new(), source, messages, deadline, tried: 0 }
    }

    /// Says under which epochs the relay owns the buckets of these messages.
    #[must_use]
    pub fn with_epochs(mut self, epochs: BTreeMap<Bucket, Epoch>) -> Self {
        self.epochs = epochs;
        self
    }

    /// Says how often the first message was tried before.
    #[must_use]
    pub const fn with_tried(mut self, tried: u32) -> Self {
        self.tried = tried;
        self
    }
}

/// A broker. Object-safe: the relay holds an `Arc<dyn Transport>`.
///
/// # The key-prefix property
///
/// What every implementation must keep, whatever fails: **if a message of a chunk is not delivered, no later message of
/// its key in that chunk is delivered either**. On it rests the order of keys (promise P3). A transport that can't pipeline
/// several messages of a key under this rule sends them one after the other.
#[async_trait]
pub trait Transport: Send + Sync + 'static {
    /// What this transport is called in logs and metrics, such as `kafka`.
    fn name(&self) -> &'static str;

    /// Looks at the broker: can it be reached, are the credentials good, is what it needs there?
    ///
    /// - *Effect*: none that can be seen; connects.
    /// - *Ordering*, *Units and limits*: none.
    /// - *Errors*: what `publish` would meet, in the same kinds, with the remedy.
    /// - *Cancellation*: safe. *Concurrency*: any. *Repeat*: the same again.
    async fn check(&self) -> Result<(), TransportError>;

    /// Says early what can never succeed: a payload that is too large for this broker, a topic name that it forbids.
    ///
    /// Pure and quick: called for each message before it is published, and at append where the writer knows the
    /// transport.
    ///
    /// # Errors
    ///
    /// Why this message can't go out by this transport, ever.
    fn validate(&self, message: &Message) -> Result<(), Rejection>;

    /// Publishes the messages of a chunk and reports an outcome for each, as soon as it is known.
    ///
    /// - *Effect*: each message is on the broker when [`Delivered`](crate::Outcome::Delivered) is reported for it, safely as far as
    ///   this broker keeps what it confirmed. A message that reached no queue was not delivered.
    /// - *Ordering*: messages of one key appear in the order of the chunk, under the key-prefix property. Across keys: none.
    /// - *Units and limits*: one chunk holds up to the relay's `chunk` messages.
    /// - *Errors*: none as such: everything is an outcome. Returning with slots empty means *unknown* for them.
    /// - *Cancellation*: the relay drops the future when it gives up the chunk. What was reported stands; the rest is unknown and may
    ///   arrive later. The transport must not go on to *start* messages of this chunk after that.
    /// - *Concurrency*: several chunks at once, never two with the same key.
    /// - *Repeat*: the messages appear again.
    async fn publish(&self, chunk: Chunk, outcomes: &Outcomes);

    /// Begins to receive.
    ///
    /// - *Effect*: joins the subscription's group; from now on the deliveries come.
    /// - *Ordering*: at any time one live consumer per ordering unit (partition, queue). A new owner starts at or before the first
    ///   unacknowledged delivery, in order.
    /// - *Units and limits*: at most `prefetch` deliveries unacknowledged.
    /// - *Errors*: where no topic of the subscription can be received from: [`Missing`](crate::TransportErrorKind::Missing) for one that is not there,
    ///   where topics are not made by naming them, and what `check` meets. Where others can, it is one of their
    ///   [`problems`](Deliveries::problems), until it is there.
    /// - *Cancellation*: safe; nothing was joined, or it leaves again.
    /// - *Concurrency*: any; each call is a member of its own.
    /// - *Repeat*: another member of the group.
    async fn subscribe(&self, subscription: Subscription) -> Result<Box<dyn Deliveries>, TransportError>;

    /// Lets go of connections after sending what was confirmed to be sent. Later calls fail with
    /// [`Closed`](crate::TransportErrorKind::Closed). Safe to repeat.
    async fn close(&self);
}
