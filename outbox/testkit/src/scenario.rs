//! A scenario: act, expect these events, let time pass, make the broker redeliver. For the tests of
//! services.

mod expectation;

use std::collections::HashSet;
use std::fmt;
use std::future::Future;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use outbox_contract::backend::{
    Deliveries, Outcome, Outcomes, Position, PublishBatch, Received, RelayId, Stored, Subscription,
};
use outbox_contract::{Message, MessageId, Route, Timestamp, Topic, Transport};
use tokio::sync::watch;
use tokio::task::JoinHandle;

pub use expectation::Expect;
use expectation::{Expected, compare};

/// Timeout of an expectation, on tokio's clock: in paused time that is nothing, and in real time
/// only a failing test waits for it.
const PATIENCE: Duration = Duration::from_secs(120);

/// Source of events that came without one.
const NO_SOURCE: &str = "";

/// Watches the messages of a transport while a service acts, and compares them with the expected
/// ones.
///
/// Made for the backends in memory and paused time (`#[tokio::test(start_paused = true)]`), where
/// an hour passes at once and nothing depends on the speed of a machine. It also works on other
/// stores and in real time; only [`after`](Self::after) and
/// [`expect_nothing_else`](Self::expect_nothing_else) then take as long as they say.
///
/// It is a consumer of its own, and acknowledges all that it sees. Events are compared as JSON, key
/// by key: events of different keys are unordered. A redelivered event is the same event; only its
/// first delivery counts.
///
/// ```
/// # extern crate outbox_contract as outbox;
/// # use outbox_derive::DomainEvent;
/// use std::time::Duration;
/// use outbox_contract::{Outbox, Transactional};
/// use outbox_engine::Relay;
/// use outbox_store_memory::MemoryStore;
/// use outbox_testkit::Scenario;
/// use outbox_transport_memory::MemoryTransport;
///
/// #[derive(serde::Serialize, DomainEvent)]
/// #[event(topic = "orders", type = "order.placed")]
/// struct OrderPlaced { #[event(key)] order_id: u64 }
///
/// # tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap().block_on(async {
/// let (store, transport) = (MemoryStore::new(), MemoryTransport::new());
/// let mut scenario = Scenario::new(transport.clone(), ["orders"]).await;
/// let relay = Relay::builder(store.clone(), transport).start().await.unwrap();
///
/// scenario.when("an order is placed", async {
///     let mut tx = store.begin().await.unwrap();
///     Outbox::new(store.clone()).append(&mut tx, &OrderPlaced { order_id: 7 }).await.unwrap();
///     store.commit(tx).await.into_result().unwrap();
/// }).await;
/// scenario.expect(&[&OrderPlaced { order_id: 7 }]).await;
///
/// scenario.repeat_all().await; // the broker, or a relay that was killed
/// scenario.after(Duration::from_secs(3_600)).await;
/// scenario.expect_nothing_else().await;
/// # relay.stop(Duration::from_secs(20)).await;
/// # });
/// ```
///
/// # Panics
///
/// A failed expectation panics with the expected and the actual events, and so does a transport
/// that fails.
pub struct Scenario {
    transport: Arc<dyn Transport>,
    seen: Arc<Seen>,
    /// Number of first deliveries that earlier expectations have covered.
    met: usize,
    step: String,
    watching: JoinHandle<()>,
}

#[derive(Default)]
struct Seen {
    // A plain mutex: locked for a look, never across an await. Written by the task that watches,
    // read by the test.
    deliveries: Mutex<Vec<Delivered>>,
    /// Number of deliveries: expectations wait for it.
    count: watch::Sender<usize>,
}

struct Delivered {
    message: Message,
    /// Source of its event: a delivery is a repeat only under the same source.
    source: Arc<str>,
    position: Position,
    first: bool,
}

impl Scenario {
    /// Begins to watch these topics, as a consumer called `scenario`. Call it before anything
    /// happens.
    ///
    /// # Panics
    ///
    /// If a topic name is invalid, or the subscription fails.
    pub async fn new<T>(transport: T, topics: impl IntoIterator<Item = impl AsRef<str>>) -> Self
    where
        T: Transport,
    {
        let topics: Result<Vec<Topic>, _> = topics.into_iter().map(Topic::new).collect();
        let subscription = topics.and_then(|topics| Subscription::new("scenario", topics));
        let subscription = subscription.unwrap_or_else(|error| panic!("{error}"));
        let deliveries = match transport.subscribe(subscription).await {
            Ok(deliveries) => deliveries,
            Err(error) => panic!("the scenario can't subscribe: {error}"),
        };
        let seen = Arc::new(Seen::default());
        let watching = tokio::spawn(watch_all(deliveries, Arc::clone(&seen)));
        Self { transport: Arc::new(transport), seen, met: 0, step: "the beginning".to_owned(), watching }
    }

    /// Runs a precondition of the test: waits until all events that follow from it have been seen,
    /// and expects none of them.
    pub async fn given<T>(&mut self, what: &str, doing: impl Future<Output = T>) -> T {
        let done = self.when(what, doing).await;
        self.settle().await;
        self.met = self.firsts().len();
        done
    }

    /// Runs an action. `what` names it in the messages of failed expectations.
    pub async fn when<T>(&mut self, what: &str, doing: impl Future<Output = T>) -> T {
        what.clone_into(&mut self.step);
        doing.await
    }

    /// Lets time pass.
    pub async fn after(&mut self, time: Duration) {
        self.step = format!("{}, and {time:?} later", self.step);
        tokio::time::sleep(time).await;
    }

    /// Expects exactly these events since the last expectation: of each topic and key these, in
    /// this order. Waits until as many have arrived.
    ///
    /// # Panics
    ///
    /// If others arrived, or fewer within two minutes.
    pub async fn expect(&mut self, events: &[&dyn Expect]) {
        let expected: Vec<Expected> = events.iter().map(|event| event.expected()).collect();
        let until = self.met + expected.len();
        let enough = async {
            let mut count = self.seen.count.subscribe();
            // The sender lives as long as self, so waiting can't fail.
            while self.firsts().len() < until && count.changed().await.is_ok() {}
        };
        let _late = tokio::time::timeout(PATIENCE, enough).await;
        let seen = self.firsts().split_off(self.met);
        self.met += seen.len();
        if let Some(difference) = compare(&expected, &seen) {
            panic!("after {}:\n{difference}", self.step);
        }
    }

    /// Expects that no unexpected event arrives for a minute.
    ///
    /// # Panics
    ///
    /// If one does.
    pub async fn expect_nothing_else(&mut self) {
        self.settle().await;
        let seen = self.firsts().split_off(self.met);
        if let Some(difference) = compare(&[], &seen) {
            panic!("after {}:\n{difference}", self.step);
        }
    }

    /// Redelivers the last event to every consumer, as a broker does when an acknowledgement was
    /// lost. Returns when it was delivered.
    ///
    /// # Panics
    ///
    /// If the transport does not deliver it.
    pub async fn repeat_last(&mut self) {
        let last = self.seen.lock().last().map(Delivered::sent);
        self.repeat(last.into_iter().collect()).await;
    }

    /// Redelivers everything to every consumer, from the first: stale repeats, older events behind
    /// newer ones, as after a takeover. Returns when they were delivered.
    ///
    /// # Panics
    ///
    /// If the transport does not deliver them.
    pub async fn repeat_all(&mut self) {
        let all = self.seen.lock().iter().filter(|delivered| delivered.first).map(Delivered::sent).collect();
        self.repeat(all).await;
    }

    /// Returns the number of deliveries that repeated an earlier one.
    #[must_use]
    pub fn repeats(&self) -> usize {
        self.seen.lock().iter().filter(|delivered| !delivered.first).count()
    }

    async fn repeat(&mut self, sent: Vec<(Arc<str>, Arc<Stored>)>) {
        self.step = format!("{}, and {} repeats", self.step, sent.len());
        for of_one_source in sent.chunk_by(|one, next| one.0 == next.0) {
            let messages = of_one_source.iter().map(|(_, stored)| Arc::clone(stored)).collect();
            self.publish(Arc::clone(&of_one_source[0].0), messages).await;
        }
    }

    async fn publish(&self, source: Arc<str>, messages: Vec<Arc<Stored>>) {
        let outcomes = Outcomes::new(messages.len());
        let relay = RelayId::from_uuid(uuid::Uuid::nil());
        let batch = PublishBatch::new(Route::default(), relay, source, messages, PATIENCE);
        let _late = tokio::time::timeout(PATIENCE, self.transport.publish(batch, &outcomes)).await;
        let outcomes = outcomes.take();
        let undelivered = outcomes.iter().find(|outcome| **outcome != Some(Outcome::Delivered));
        assert!(undelivered.is_none(), "after {}: not delivered: {undelivered:?}", self.step);
    }

    /// Waits long enough for all results of a step: longer than any pause of a relay that meets no
    /// errors.
    async fn settle(&self) {
        tokio::time::sleep(Duration::from_secs(60)).await;
    }

    fn firsts(&self) -> Vec<Message> {
        let deliveries = self.seen.lock();
        deliveries
            .iter()
            .filter(|delivered| delivered.first)
            .map(|delivered| delivered.message.clone())
            .collect()
    }
}

impl Drop for Scenario {
    fn drop(&mut self) {
        self.watching.abort();
    }
}

impl fmt::Debug for Scenario {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Scenario")
            .field("step", &self.step)
            .field("seen", &self.seen.lock().len())
            .field("met", &self.met)
            .finish_non_exhaustive()
    }
}

impl Seen {
    fn lock(&self) -> MutexGuard<'_, Vec<Delivered>> {
        self.deliveries.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Delivered {
    fn sent(&self) -> (Arc<str>, Arc<Stored>) {
        let stored = Stored::new(self.position, Timestamp::default(), self.message.clone());
        (Arc::clone(&self.source), Arc::new(stored))
    }
}

/// Records and acknowledges everything. A transport that confirms after its consumers acknowledge
/// must not wait for a test to look.
async fn watch_all(deliveries: Box<dyn Deliveries>, seen: Arc<Seen>) {
    let mut known: HashSet<MessageId> = HashSet::new();
    loop {
        match deliveries.next().await {
            Ok(Received::Deliveries(received)) => {
                let mut tags = Vec::with_capacity(received.len());
                for delivery in received {
                    tags.push(delivery.tag);
                    let (source, position) = delivery.origin.map_or_else(
                        || (Arc::from(NO_SOURCE), Position::START),
                        |origin| (origin.source, Position(origin.sequence)),
                    );
                    // An undecodable record is another program's, and no expectation is about it.
                    let Ok(message) = delivery.message else { continue };
                    let first = known.insert(message.id);
                    seen.lock().push(Delivered { message, source, position, first });
                }
                let count = seen.lock().len();
                seen.count.send_replace(count);
                // A lost delivery arrives again, as a repeat.
                let _lost = deliveries.acknowledge(&tags).await;
            }
            Ok(Received::Ended) => return,
            Ok(_) => {}
            Err(error) if error.is_retryable() => tokio::time::sleep(Duration::from_millis(100)).await,
            Err(_) => return,
        }
    }
}
