//! Fixture: a store, a recording broker, and relays with test doubles in between.

use std::sync::Arc;
use std::time::Duration;

use outbox_contract::admin::Filter;
use outbox_contract::backend::{Clock, Position};
use outbox_contract::{
    AdminExt, KeyId, Message, MessageId, Outgoing, Route, Store, Timestamp, Topic, Transactional,
};
use outbox_engine::{Relay, RelayBuilder};
use outbox_store_memory::{MemoryStore, MemoryTx};
use outbox_testkit::{ChaosStore, ChaosTransport, Fault, History, RecordingTransport, StoreCall, TestClock};
use tokio::time::Instant;

use crate::promises::deaths::Deaths;
use crate::promises::line::{Gate, Late, Line, Luck};
use crate::promises::link::Link;
use crate::promises::tally::Tally;
use crate::promises::trace::Trace;

pub(crate) const MS: Duration = Duration::from_millis(1);
pub(crate) const S: Duration = Duration::from_secs(1);

/// Store and broker, shared by the relays of a test.
pub(crate) struct World {
    pub(crate) store: MemoryStore,
    pub(crate) broker: Arc<RecordingTransport>,
}

/// Test doubles between one relay and the world.
pub(crate) struct Rig {
    pub(crate) store: Arc<ChaosStore<Link>>,
    pub(crate) transport: Arc<ChaosTransport>,
    pub(crate) gate: Arc<Gate>,
    pub(crate) luck: Arc<Luck>,
    pub(crate) clock: Arc<TestClock>,
    pub(crate) trace: Arc<Trace>,
}

impl World {
    /// Creates a store with one writer at a time.
    pub(crate) fn new() -> Self {
        Self { store: MemoryStore::new(), broker: Arc::new(RecordingTransport::new()) }
    }

    /// Creates a store with concurrent writers.
    pub(crate) fn concurrent() -> Self {
        Self { store: MemoryStore::builder().concurrent_writers().build(), ..Self::new() }
    }

    /// Creates a store with concurrent writers, in sequence shards.
    pub(crate) fn stripes() -> Self {
        Self { store: MemoryStore::builder().stripes().build(), ..Self::new() }
    }

    pub(crate) fn rig(&self) -> Rig {
        self.rig_on(true)
    }

    pub(crate) fn rig_on(&self, migrated: bool) -> Rig {
        let (gate, luck) = (Gate::new(), Luck::new(1, Late::default()));
        let (trace, tally) = (Arc::new(Trace::new()), Arc::new(Tally::default()));
        let link = Link {
            store: self.store.clone(),
            relay: 0,
            gate: Arc::clone(&gate),
            luck: Arc::clone(&luck),
            trace: Arc::clone(&trace),
            deaths: Arc::new(Deaths::new(self.store.clone(), Arc::new(History::new()))),
            held: Arc::default(),
            tally: Arc::clone(&tally),
            migrated,
        };
        let broker = Arc::clone(&self.broker);
        let line = Line { broker, gate: Arc::clone(&gate), luck: Arc::clone(&luck), tally };
        Rig {
            store: Arc::new(ChaosStore::new(Arc::new(link), 2)),
            transport: Arc::new(ChaosTransport::new(Arc::new(line), 3)),
            gate,
            luck,
            trace,
            clock: Arc::new(TestClock::starting_at(Timestamp::from_micros(0))),
        }
    }

    /// Appends messages in one transaction, and commits it.
    pub(crate) async fn append(&self, messages: impl IntoIterator<Item = Message>) -> Vec<MessageId> {
        let mut tx = self.store.begin().await.unwrap();
        let ids = self.write(&mut tx, messages).await;
        self.store.commit(tx).await.into_result().unwrap();
        ids
    }

    /// Appends messages in an open transaction.
    pub(crate) async fn write(
        &self,
        tx: &mut MemoryTx,
        messages: impl IntoIterator<Item = Message>,
    ) -> Vec<MessageId> {
        let outgoing: Vec<Outgoing> = messages.into_iter().map(Outgoing::from).collect();
        self.store.append(tx, &outgoing).await.unwrap();
        outgoing.iter().map(|outgoing| outgoing.message.id).collect()
    }

    /// Returns the ids that reached the broker, in order, repeats included.
    pub(crate) fn arrived(&self) -> Vec<MessageId> {
        self.broker.published().iter().map(|published| published.id).collect()
    }

    /// Returns the number of messages waiting to be published, hot or parked.
    pub(crate) fn waiting(&self) -> usize {
        let tables = self.store.snapshot();
        tables.hot.len() + tables.parked.len()
    }

    /// Waits until no message is waiting to be published.
    pub(crate) async fn drained(&self, limit: Duration) -> Duration {
        within(limit, || self.waiting() == 0).await
    }

    pub(crate) async fn dead(&self) -> Vec<outbox_contract::admin::DeadLetter> {
        self.store.dead_letters(&Filter::all_routes()).await.unwrap()
    }

    /// Returns the positions of a key that reached the broker.
    pub(crate) fn positions(&self, key: &str) -> Vec<Position> {
        self.broker.positions_of(&key_id(key))
    }
}

impl Rig {
    /// Sets the latencies of the store: of reads and removals, and of transitions, which must be
    /// durable.
    pub(crate) fn takes(&self, read: Duration, step: Duration) {
        for call in [StoreCall::Fetch, StoreCall::Due, StoreCall::Settle] {
            self.store.set_latency_of(call, read);
        }
        self.store.set_latency_of(StoreCall::Transition, step);
    }

    /// Injects a fault into each attempt of these messages.
    pub(crate) fn inject(&self, ids: &[MessageId], fault: Fault) {
        ids.iter().for_each(|id| self.transport.inject(*id, fault));
    }

    /// Returns the builder of a relay with the default configuration.
    pub(crate) fn relay(&self) -> RelayBuilder {
        self.relay_on(Arc::clone(&self.store))
    }

    /// Returns the same on another handle of the store.
    pub(crate) fn relay_on(&self, store: impl Store) -> RelayBuilder {
        let clock: Arc<dyn Clock> = Arc::<TestClock>::clone(&self.clock);
        Relay::builder(store, Arc::clone(&self.transport)).clock(clock).seed(1)
    }
}

pub(crate) fn topic(name: &str) -> Topic {
    Topic::new(name).unwrap()
}

pub(crate) fn key_id(key: &str) -> KeyId {
    message(key).key_id()
}

pub(crate) fn route() -> Route {
    Route::default()
}

/// Returns a message of the topic `orders`.
pub(crate) fn message(key: &str) -> Message {
    of_topic("orders", key)
}

pub(crate) fn of_topic(name: &str, key: &str) -> Message {
    Message::new(topic(name), "tested").unwrap().with_key(key).unwrap()
}

/// Waits until the condition holds, checked every millisecond of virtual time in the first second,
/// then less and less often. Returns how long that took.
#[track_caller]
pub(crate) fn within(limit: Duration, mut holds: impl FnMut() -> bool) -> impl Future<Output = Duration> {
    let caller = std::panic::Location::caller();
    async move {
        let started = Instant::now();
        while !holds() {
            assert!(started.elapsed() <= limit, "not within {limit:?}, awaited at {caller}");
            // A wait of minutes in virtual time is not sixty thousand looks.
            tokio::time::sleep(MS.max(started.elapsed().saturating_sub(S) / 500)).await;
        }
        started.elapsed()
    }
}
