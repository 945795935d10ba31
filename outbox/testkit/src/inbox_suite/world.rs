//! Shared parts of the suite's tests: a store, a scripted broker, a handler whose effects are kept,
//! and the checks of them.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{BoxFuture, join_all};
use outbox_contract::admin::{DeadLetter, FailingKey, Filter};
use outbox_contract::backend::{Backlog, Clock};
use outbox_contract::{
    Admin, AdminExt, Consumer, KeyId, Message, MessageId, RetryPolicy, Route, Store, Timestamp, inbox_route,
};
use outbox_engine::{
    HandlerContext, HandlerError, HandlerFailure, Inbox, InboxBuilder, InboxHandle, MessageHandler, Mode,
};

use super::harness::{Effect, Effects, Faulty, InboxHarness};
use crate::{ChaosStore, Feed, TestClock, eventually};

/// Time limit of every wait: much longer than needed, even on a slow machine.
pub(super) const PATIENCE: Duration = Duration::from_secs(180);

/// The topic of all messages.
const TOPIC: &str = "orders";

/// A mode in which an inbox can work. Each promise holds for every one.
#[derive(Clone, Copy, Debug)]
pub(super) struct Way {
    name: &'static str,
    pub(super) mode: Mode,
    pub(super) batch: usize,
}

impl Way {
    pub(super) const DIRECT: Self = Self { name: "direct", mode: Mode::Direct, batch: 1 };
    pub(super) const ALL: [Self; 4] = [
        Self::DIRECT,
        Self { name: "direct-batches", mode: Mode::Direct, batch: 10 },
        Self { name: "stored", mode: Mode::Stored, batch: 1 },
        Self { name: "stored-batches", mode: Mode::Stored, batch: 10 },
    ];
}

/// Result of a handler for a message after its effect.
pub(super) type Whim = BoxFuture<'static, Result<(), HandlerError>>;

/// The handler succeeds.
pub(super) fn well() -> Whim {
    Box::pin(async { Ok(()) })
}

/// The handler succeeds, or fails and may succeed another time.
pub(super) fn well_unless(fails: bool) -> Whim {
    Box::pin(
        async move { if fails { Err(HandlerFailure::failed("suite", "not yet").into()) } else { Ok(()) } },
    )
}

/// Subject of a test: one consumer, named after its mode, and a broker of its own.
pub(super) struct World<H: InboxHarness> {
    pub(super) store: Arc<H::Store>,
    /// The store of the inbox.
    pub(super) faulty: Faulty<H>,
    pub(super) feed: Feed,
    pub(super) way: Way,
    pub(super) consumer: Consumer,
    pub(super) effects: H::Effects,
}

/// Returns one world for each mode, all in the database of this harness.
pub(super) async fn worlds<H: InboxHarness>(harness: &H) -> Vec<World<H>> {
    let store = harness.store();
    store.migrate().await.expect("an empty database is migrated");
    let effects = harness.effects().await;
    Way::ALL.into_iter().map(|way| World::on(&store, way, way.name, effects.clone())).collect()
}

/// Runs a test in each mode, side by side: most of its time is waiting.
pub(super) async fn in_each_mode<H: InboxHarness>(harness: &H, test: impl AsyncFn(World<H>)) {
    join_all(worlds(harness).await.into_iter().map(|world| test(world))).await;
}

/// Returns the world of the direct mode, one message in each transaction.
pub(super) async fn direct_world<H: InboxHarness>(harness: &H) -> World<H> {
    worlds(harness).await.swap_remove(0)
}

impl<H: InboxHarness> World<H> {
    fn on(store: &Arc<H::Store>, way: Way, consumer: &str, effects: H::Effects) -> Self {
        Self {
            store: Arc::clone(store),
            faulty: Arc::new(ChaosStore::new(Arc::clone(store), 1)),
            feed: Feed::new(),
            way,
            consumer: Consumer::new(consumer).expect("a consumer of the suite is valid"),
            effects,
        }
    }

    /// Returns another consumer of the same messages, on a broker of its own.
    pub(super) fn another_consumer(&self) -> Self {
        let consumer = format!("another-{}", self.way.name);
        Self::on(&self.store, self.way, &consumer, self.effects.clone())
    }

    /// Builds an inbox whose handler has its effect.
    pub(super) fn inbox(&self) -> InboxBuilder<Faulty<H>> {
        self.inbox_that(|_, _| well())
    }

    /// Builds an inbox whose handler writes its effect, then does this.
    pub(super) fn inbox_that(
        &self,
        whim: impl Fn(&Message, u32) -> Whim + Send + Sync + 'static,
    ) -> InboxBuilder<Faulty<H>> {
        self.bare().on_any(self.handler(whim))
    }

    /// Builds an inbox without a handler, with short pauses and long timeouts.
    pub(super) fn bare(&self) -> InboxBuilder<Faulty<H>> {
        let clock: Arc<dyn Clock> = Arc::new(TestClock::starting_at(Timestamp::from_micros(0)));
        Inbox::builder(Arc::clone(&self.faulty), self.feed.clone())
            .consumer(self.consumer.as_str())
            .topic(TOPIC)
            .mode(self.way.mode)
            .batch(self.way.batch)
            .clock(clock)
            .seed(1)
            .tries(2)
            .first_delay(Duration::from_millis(5))
            .max_delay(Duration::from_millis(50))
            .store_timeout(Duration::from_secs(60))
            .due_poll(Duration::from_millis(100))
            .outage_first_delay(Duration::from_millis(20))
            .outage_max_delay(Duration::from_millis(500))
            .retry(self.retry(10_000))
    }

    /// Returns a retry policy with this many attempts and short delays.
    pub(super) fn retry(&self, max_attempts: u32) -> RetryPolicy {
        RetryPolicy {
            max_attempts,
            first_delay: Duration::from_millis(5),
            max_delay: Duration::from_millis(100),
            ..RetryPolicy::default()
        }
    }

    pub(super) fn handler(
        &self,
        whim: impl Fn(&Message, u32) -> Whim + Send + Sync + 'static,
    ) -> impl for<'a> MessageHandler<'a, Message, Faulty<H>> {
        let effects = self.effects.clone();
        let whim = Arc::new(whim);
        async move |message: Message, context: &mut HandlerContext<'_, Faulty<H>>| {
            let effect = Effect { key: message.order_key().as_str().to_owned(), message: message.id };
            effects.write(context.tx(), effect).await?;
            whim(&message, context.attempt()).await
        }
    }

    /// Returns a message of a key. Keys of different worlds are different.
    pub(super) fn message(&self, key: &str) -> Message {
        let message = Message::new(TOPIC, "order.placed").expect("a valid topic");
        message.with_key(format!("{}/{key}", self.consumer)).expect("a key of the suite is valid")
    }

    pub(super) fn key_id(&self, key: &str) -> KeyId {
        self.message(key).key_id()
    }

    /// Returns true if the message has this key.
    pub(super) fn is_of(message: &Message, key: &str) -> bool {
        message.order_key().as_str().split_once('/').is_some_and(|(_, of)| of == key)
    }

    /// Delivers a number of new messages of a key, in order.
    pub(super) fn send(&self, key: &str, count: usize) -> Vec<Message> {
        let messages: Vec<Message> = (0..count).map(|_| self.message(key)).collect();
        messages.iter().for_each(|message| self.feed.send(message.clone()));
        messages
    }

    /// Delivers this many new messages of each of these keys, in turn.
    pub(super) fn send_in_turn(&self, keys: &[&str], of_each: usize) -> Vec<Message> {
        (0..of_each).flat_map(|_| keys.iter().flat_map(|key| self.send(key, 1))).collect()
    }

    /// Returns the route under which messages wait for this consumer.
    pub(super) fn route(&self) -> Route {
        inbox_route(&self.consumer)
    }

    pub(super) async fn backlog(&self) -> Backlog {
        self.store.backlog(&self.route()).await.expect("the store answers")
    }

    /// Returns the number of messages that wait in the store for the consumer.
    pub(super) async fn waiting(&self) -> u64 {
        let backlog = self.backlog().await;
        backlog.pending + backlog.parked
    }

    pub(super) async fn failing_keys(&self) -> Vec<FailingKey> {
        let filter = Filter { route: Some(self.route()), ..Filter::all_routes() };
        self.store.failing_keys(&filter).await.expect("the store answers")
    }

    pub(super) async fn dead(&self) -> Vec<DeadLetter> {
        let filter = Filter { route: Some(self.route()), ..Filter::all_routes() };
        self.store.dead_letters(&filter).await.expect("the store answers")
    }

    /// Returns the ids of the dead letters, in the order in which they died.
    pub(super) async fn dead_ids(&self) -> Vec<MessageId> {
        self.dead().await.iter().map(|dead| dead.stored.message.id).collect()
    }

    /// Returns the effects of this world by key, in order.
    pub(super) async fn handled(&self) -> BTreeMap<String, Vec<MessageId>> {
        let mut handled: BTreeMap<String, Vec<MessageId>> = BTreeMap::new();
        let of_this_world = format!("{}/", self.consumer);
        for effect in self.effects.read().await.expect("effects can be read") {
            if effect.key.starts_with(&of_this_world) {
                handled.entry(effect.key).or_default().push(effect.message);
            }
        }
        handled
    }

    /// Returns true if a message has its effect.
    pub(super) async fn has_handled(&self, message: &Message) -> bool {
        self.handled().await.values().any(|ids| ids.contains(&message.id))
    }

    /// Waits until this holds.
    pub(super) async fn until<F: Future<Output = bool>>(&self, what: &str, holds: impl FnMut() -> F) {
        assert!(eventually(PATIENCE, holds).await, "{}: not {what} within {PATIENCE:?}", self.way.name);
    }

    /// Waits until the broker has nothing left for the consumer.
    pub(super) async fn acknowledged(&self) {
        self.until("all acknowledged", async || self.feed.unacknowledged() == 0).await;
    }

    /// Waits until everything is acknowledged and nothing waits in the store.
    pub(super) async fn done(&self) {
        self.acknowledged().await;
        self.until("everything done that waits in the store", async || self.waiting().await == 0).await;
    }

    /// Asserts promise P4: each of these messages, and no other, has one effect, in the order of
    /// its key.
    pub(super) async fn assert_once_and_in_order(&self, sent: &[Message]) {
        let mut expected: BTreeMap<String, Vec<MessageId>> = BTreeMap::new();
        for message in sent {
            expected.entry(message.order_key().as_str().to_owned()).or_default().push(message.id);
        }
        assert_eq!(self.handled().await, expected, "{}: the effects of each key", self.way.name);
    }

    /// Stops an inbox in order.
    pub(super) async fn stop(&self, inbox: InboxHandle) {
        assert!(inbox.stop(PATIENCE).await, "{}: the inbox did not stop in time", self.way.name);
    }
}

/// Starts an inbox of the suite.
pub(super) async fn start<S: outbox_contract::Transactional>(inbox: InboxBuilder<S>) -> InboxHandle {
    inbox.start().await.expect("the inbox starts")
}
