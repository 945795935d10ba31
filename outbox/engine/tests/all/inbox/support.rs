//! A store, a broker that the test plays, a handler whose effects are kept, and what must hold of
//! them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard};

use futures_util::future::BoxFuture;
use outbox_contract::admin::{DeadLetter, Filter};
use outbox_contract::backend::Clock;
use outbox_contract::{AdminExt, Consumer, Message, MessageId, Route, Timestamp, Transport, inbox_route};
use outbox_engine::{HandlerContext, HandlerError, Inbox, InboxBuilder, MessageHandler};
use outbox_store_memory::{MemoryStore, MemoryTx};
use outbox_testkit::{ChaosStore, Feed, TestClock};

pub(crate) use crate::promises::support::{MS, S, within};

pub(crate) type Store = Arc<ChaosStore<MemoryStore>>;

/// Behavior of a handler beyond its effect.
pub(crate) type Whim =
    Arc<dyn Fn(&Message, u32) -> BoxFuture<'static, Result<(), HandlerError>> + Send + Sync>;

/// Observations of a test.
#[derive(Clone)]
pub(crate) struct World {
    pub(crate) tables: MemoryStore,
    pub(crate) store: Store,
    pub(crate) feed: Feed,
    pub(crate) ledger: Ledger,
}

/// Effects, in the order of their commits: written at the very instant of each commit.
#[derive(Clone, Default)]
pub(crate) struct Ledger(Arc<Mutex<Vec<(String, MessageId)>>>);

impl Ledger {
    fn effects(&self) -> MutexGuard<'_, Vec<(String, MessageId)>> {
        self.0.lock().unwrap()
    }

    pub(crate) fn len(&self) -> usize {
        self.effects().len()
    }

    /// Every effect, in the order of the commits.
    pub(crate) fn all(&self) -> Vec<(String, MessageId)> {
        self.effects().clone()
    }

    pub(crate) fn has(&self, id: MessageId) -> bool {
        self.effects().iter().any(|(_, other)| *other == id)
    }

    /// The ids of a key, in the order in which their effects were committed.
    pub(crate) fn of(&self, key: &str) -> Vec<MessageId> {
        self.effects().iter().filter(|(other, _)| other == key).map(|(_, id)| *id).collect()
    }

    pub(crate) fn write(&self, tx: &mut MemoryTx, message: &Message) {
        let (effects, id) = (Arc::clone(&self.0), message.id);
        let key = message.order_key().as_str().to_owned();
        tx.on_commit(move || effects.lock().unwrap().push((key, id)));
    }

    /// Promise P4: each effect once, in the order of its key.
    #[track_caller]
    pub(crate) fn assert_once_and_in_order(&self, sent: &[Message]) {
        let mut expected: BTreeMap<String, Vec<MessageId>> = BTreeMap::new();
        for message in sent {
            expected.entry(message.order_key().as_str().to_owned()).or_default().push(message.id);
        }
        let mut found: BTreeMap<String, Vec<MessageId>> = BTreeMap::new();
        for (key, id) in self.effects().iter() {
            found.entry(key.clone()).or_default().push(*id);
        }
        let keys: BTreeSet<&String> = expected.keys().chain(found.keys()).collect();
        for key in keys {
            assert_eq!(found.get(key), expected.get(key), "effects of key {key}");
        }
    }
}

impl World {
    pub(crate) fn new() -> Self {
        Self::on(MemoryStore::new(), 1)
    }

    /// One writer at a time, and faults of this seed.
    pub(crate) fn single(seed: u64) -> Self {
        Self::on(MemoryStore::new(), seed)
    }

    /// Many writers at once, in stripes, and faults of this seed.
    pub(crate) fn stripes(seed: u64) -> Self {
        Self::on(MemoryStore::builder().stripes().build(), seed)
    }

    /// Many writers at once, and faults of this seed.
    pub(crate) fn concurrent(seed: u64) -> Self {
        Self::on(MemoryStore::builder().concurrent_writers().build(), seed)
    }

    /// A database whose clock shows this instant now.
    pub(crate) fn starting_at(now: Timestamp) -> Self {
        Self::on(MemoryStore::builder().starting_at(now).build(), 1)
    }

    fn on(tables: MemoryStore, seed: u64) -> Self {
        let store = Arc::new(ChaosStore::new(Arc::new(tables.clone()), seed));
        Self { tables, store, feed: Feed::new(), ledger: Ledger::default() }
    }

    /// Another process on the same tables: with a connection and a broker of its own.
    pub(crate) fn beside(&self) -> Self {
        let store = Arc::new(ChaosStore::new(Arc::new(self.tables.clone()), 1));
        Self { store, feed: Feed::new(), ..self.clone() }
    }

    /// An inbox whose handler has its effect.
    pub(crate) fn inbox(&self) -> InboxBuilder<Store> {
        self.inbox_that(|_, _| Box::pin(async { Ok(()) }))
    }

    /// An inbox whose handler writes its effect, then does this.
    pub(crate) fn inbox_that(
        &self,
        whim: impl Fn(&Message, u32) -> BoxFuture<'static, Result<(), HandlerError>> + Send + Sync + 'static,
    ) -> InboxBuilder<Store> {
        self.bare().on_any(self.handler(Arc::new(whim)))
    }

    /// An inbox without a handler.
    pub(crate) fn bare(&self) -> InboxBuilder<Store> {
        self.bare_on(self.feed.clone())
    }

    /// An inbox without a handler, which receives from this transport.
    pub(crate) fn bare_on(&self, transport: impl Transport) -> InboxBuilder<Store> {
        let clock: Arc<dyn Clock> = Arc::new(TestClock::starting_at(Timestamp::from_micros(0)));
        Inbox::builder(Arc::clone(&self.store), transport)
            .consumer("inventory")
            .topic("orders")
            .clock(clock)
            .seed(1)
    }

    pub(crate) fn handler(&self, whim: Whim) -> impl for<'a> MessageHandler<'a, Message, Store> {
        let ledger = self.ledger.clone();
        async move |message: Message, context: &mut HandlerContext<'_, Store>| {
            ledger.write(context.tx(), &message);
            whim(&message, context.attempt()).await
        }
    }

    /// Sends a number of messages of a key, in order.
    pub(crate) fn send(&self, key: &str, count: usize) -> Vec<Message> {
        let messages: Vec<Message> = (0..count).map(|_| message(key)).collect();
        messages.iter().for_each(|message| self.feed.send(message.clone()));
        messages
    }

    /// Returns the number of messages that wait in the store for the consumer.
    pub(crate) fn stored(&self) -> usize {
        let tables = self.tables.snapshot();
        tables.hot.len() + tables.parked.len()
    }

    pub(crate) async fn dead(&self) -> Vec<DeadLetter> {
        self.tables.dead_letters(&Filter::all_routes()).await.unwrap()
    }
}

pub(crate) fn consumer() -> Consumer {
    Consumer::new("inventory").unwrap()
}

pub(crate) fn route() -> Route {
    inbox_route(&consumer())
}

pub(crate) fn message(key: &str) -> Message {
    Message::new("orders", "order.placed").unwrap().with_key(key).unwrap()
}
