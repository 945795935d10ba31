//! The transport: a broker, from the point of view of the relay and the inbox.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

use crate::admin::Diagnosis;
use crate::backend::{Bucket, Deliveries, Epoch, Outcomes, RelayId, Stored, Subscription};
use crate::clock::Timestamp;
use crate::error::TransportError;
use crate::failure::Rejection;
use crate::message::Message;
use crate::name::{Route, Topic};

/// Messages to be published together.
///
/// A key is in at most one unconfirmed batch of a relay; a batch may hold several messages of a
/// key, in order.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct PublishBatch {
    /// The route that delivers them.
    pub route: Route,
    /// The relay that sends them, for transports that can fence at the broker.
    pub relay: RelayId,
    /// Epochs under which the relay owns the buckets of these messages, for transports that can
    /// fence at the broker. There, an epoch below one already seen belongs to a relay that lost the
    /// bucket. A bucket that is missing here can't be fenced.
    pub epochs: BTreeMap<Bucket, Epoch>,
    /// The CloudEvents `source` attribute: a URI reference that names the outbox, by default of its
    /// identity. Together with the position as `sequence`, it lets a consumer without an inbox drop
    /// duplicates of a key.
    pub source: Arc<str>,
    /// The messages, in the order in which they must appear, key by key.
    pub messages: Vec<Arc<Stored>>,
    /// Time after which the relay stops waiting and treats everything unreported as unknown, unless
    /// the reports so far show that the broker is making progress. Shorter than the lease, and
    /// never beyond its end.
    pub deadline: Duration,
    /// Time of the batch, by the clock that [`Stored::appended_at`] is measured by: the database's.
    /// By default that of the last append.
    pub now: Timestamp,
    /// Number of earlier attempts for the first message, as stored with its key. A message that was
    /// tried before goes alone; 0 for all others.
    pub tried: u32,
}

impl PublishBatch {
    /// Creates a batch of these messages, with unknown epochs.
    #[must_use]
    pub fn new(
        route: Route,
        relay: RelayId,
        source: Arc<str>,
        messages: Vec<Arc<Stored>>,
        deadline: Duration,
    ) -> Self {
        let now = messages.iter().map(|stored| stored.appended_at).max().unwrap_or_default();
        Self { route, relay, epochs: BTreeMap::new(), source, messages, deadline, now, tried: 0 }
    }

    /// Sets the time of the batch, by the database's clock.
    #[must_use]
    pub const fn with_now(mut self, now: Timestamp) -> Self {
        self.now = now;
        self
    }

    /// Sets the epochs under which the relay owns the buckets of these messages.
    #[must_use]
    pub fn with_epochs(mut self, epochs: BTreeMap<Bucket, Epoch>) -> Self {
        self.epochs = epochs;
        self
    }

    /// Sets the number of earlier attempts for the first message.
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
/// Every implementation must keep this, whatever fails: **if a message of a batch is not delivered,
/// no later message of its key in that batch is delivered either**. The order of keys rests on it
/// (promise P3). A transport that can't pipeline several messages of a key under this rule sends
/// them one after the other.
#[async_trait]
pub trait Transport: Send + Sync + 'static {
    /// Returns the name of this transport in logs and metrics, such as `kafka`.
    fn name(&self) -> &'static str;

    /// Checks the broker: it is reachable, the credentials are valid, and what the transport needs
    /// exists.
    ///
    /// - *Effect*: none visible; connects.
    /// - *Ordering*, *Units and limits*: none.
    /// - *Errors*: those of `publish`, in the same kinds, with the remedy.
    /// - *Cancellation*: safe. *Concurrency*: any. *Repeat*: the same again.
    async fn check(&self) -> Result<(), TransportError>;

    /// Examines the broker for these topics: topics that do not exist, limits, and settings under
    /// which confirmed messages are lost. What [`check`](Self::check) refuses is left to it.
    ///
    /// The provided method finds nothing, for transports without a server.
    ///
    /// - *Effect*: none. It creates no topic, and publishes nothing that reaches a consumer.
    /// - *Ordering*: the same state gives the same findings in the same order.
    /// - *Units and limits*: one call examines up to 1,000 topics, in a few seconds. A finding of
    ///   many topics is one that counts them.
    /// - *Errors*: those of `check`. Something that the user may not see is a finding:
    ///   [`Unseen`](crate::admin::DiagnosisKind::Unseen), with the permission to grant.
    /// - *Cancellation*: safe. *Concurrency*: any. *Repeat*: the same again.
    async fn diagnose(&self, topics: &[Topic]) -> Result<Vec<Diagnosis>, TransportError> {
        let _ = topics;
        Ok(Vec::new())
    }

    /// Rejects early what can never succeed: a payload too large for this broker, a topic name that
    /// it forbids.
    ///
    /// Pure and quick: called for each message before it is published, and at append if the writer
    /// knows the transport.
    ///
    /// # Errors
    ///
    /// The reason why this transport can never deliver this message.
    fn validate(&self, message: &Message) -> Result<(), Rejection>;

    /// Publishes the messages of a batch and reports an outcome for each, as soon as it is known.
    ///
    /// - *Effect*: each message is on the broker when
    ///   [`Delivered`](crate::backend::Outcome::Delivered) is reported for it, as safely as this
    ///   broker keeps what it confirmed. A message that reached no queue was not delivered.
    /// - *Ordering*: messages of one key appear in the order of the batch, under the key-prefix
    ///   property. Across keys: none.
    /// - *Units and limits*: one batch holds up to the relay's `batch` messages.
    /// - *Errors*: none as such: everything is an outcome. Empty slots at return mean *unknown*. A
    ///   broker that says that it takes nothing for now is reported by
    ///   [`Outcomes::stopped`].
    /// - *Cancellation*: the relay drops the future when it gives up the batch. Reported outcomes
    ///   stay valid; the rest is unknown and may arrive later. After that, the transport must not
    ///   *start* further messages of this batch.
    /// - *Concurrency*: several batches at once, never two with the same key.
    /// - *Repeat*: the messages appear again.
    async fn publish(&self, batch: PublishBatch, outcomes: &Outcomes);

    /// Begins to receive.
    ///
    /// - *Effect*: joins the subscription's group; deliveries arrive from now on.
    /// - *Ordering*: at any time one live consumer per ordering unit (partition, queue). A new
    ///   owner starts at or before the first unacknowledged delivery, in order.
    /// - *Units and limits*: at most `prefetch` deliveries unacknowledged.
    /// - *Errors*: if no topic of the subscription can be received from:
    ///   [`Missing`](crate::TransportErrorKind::Missing) for a topic that does not exist, on
    ///   brokers that do not create topics on first use, and the errors of `check`. If other topics
    ///   can be received from, the missing one is among their [`problems`](Deliveries::problems),
    ///   until it exists. [`Invalid`](crate::TransportErrorKind::Invalid) for a subscription
    ///   without topics, or with a prefetch of 0.
    /// - *Cancellation*: safe; it has not joined, or it leaves again.
    /// - *Concurrency*: any; each call creates a member of its own.
    /// - *Repeat*: another member of the group.
    async fn subscribe(&self, subscription: Subscription) -> Result<Box<dyn Deliveries>, TransportError>;

    /// Returns true if a message is confirmed only when its consumers have acknowledged it, as
    /// within a process. A relay then finishes before these consumers stop.
    fn is_confirmed_by_consumers(&self) -> bool {
        false
    }

    /// Closes connections after sending what was confirmed to be sent. Later calls fail with
    /// [`Closed`](crate::TransportErrorKind::Closed), and a later publish reports the route as
    /// [`Unavailable`](crate::backend::Outcome::Unavailable). Safe to repeat.
    ///
    /// Close the members of consumers before: those that are left may fail, or continue.
    async fn close(&self);
}
