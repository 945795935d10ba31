//! Messages that are put back, and counters of stripes that go back, as a restore or an import of
//! one table leaves them: in MySQL, MariaDB and MongoDB, which order by stripes. A relay's cursor
//! and the counters are what somebody remembers, and the messages are the truth: they are
//! delivered, within a minute of the relay's clock, and in the order of their keys.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod tables;

use std::sync::Arc;
use std::time::Duration;

use outbox_contract::backend::{Clock, Position};
use outbox_contract::{KeyId, Message, Outgoing, Store};
use outbox_engine::{RelayHandle, Status};
use outbox_testkit::{RecordingTransport, TestClock, eventually};
use outbox_tests::fresh::Fresh;
use outbox_tests::kind::{StoreKind, TransportKind};
use outbox_tests::ledger::{self, Ledger, Written};
use outbox_tests::pair::Pair;
use outbox_tests::record::PATIENCE;

use tables::Tables;

const KEYS: usize = 7;

macro_rules! on_every_store_with_stripes {
    ($($story:ident: $mysql:ident, $mariadb:ident, $mongodb:ident;)*) => {$(
        #[tokio::test(flavor = "multi_thread")]
        async fn $mysql() {
            $story(StoreKind::MySql).await;
        }

        #[tokio::test(flavor = "multi_thread")]
        async fn $mariadb() {
            $story(StoreKind::MariaDb).await;
        }

        #[tokio::test(flavor = "multi_thread")]
        async fn $mongodb() {
            $story(StoreKind::MongoDb).await;
        }
    )*};
}

on_every_store_with_stripes! {
    a_new_relay: a_new_relay_on_mysql, a_new_relay_on_mariadb, a_new_relay_on_mongodb;
    a_running_relay: a_running_relay_on_mysql, a_running_relay_on_mariadb, a_running_relay_on_mongodb;
    messages_alone: messages_alone_on_mysql, messages_alone_on_mariadb, messages_alone_on_mongodb;
}

/// A database, and what was published from it.
struct World {
    ledger: Arc<dyn Ledger>,
    tables: Tables,
    broker: Arc<RecordingTransport>,
    clock: Arc<TestClock>,
    _fresh: Fresh,
}

/// The counters are lost after messages were relayed, some of which come back; then comes a new
/// relay.
async fn a_new_relay(kind: StoreKind) {
    let Some(world) = World::new(kind).await else { return };
    world.write(100).await;
    world.tables.copy().await;
    let relay = world.relay().await;
    world.published(100).await;
    assert!(relay.stop(PATIENCE).await);

    world.tables.put_back_without_counters().await;
    world.write(10).await;
    assert_eq!(world.ledger.store().backlog(&Default::default()).await.unwrap().pending, 110);
    let relay = world.relay().await;
    world.published(210).await;
    world.assert_in_order_since(100);
    world.assert_told(&relay, "outbox_stripe was restored").await;
}

/// The same under a relay that runs.
async fn a_running_relay(kind: StoreKind) {
    let Some(world) = World::new(kind).await else { return };
    world.write(100).await;
    world.tables.copy().await;
    let relay = world.relay().await;
    world.published(100).await;

    world.tables.put_back_without_counters().await;
    world.write(10).await;
    world.published(210).await;
    world.assert_in_order_since(100);
    world.assert_told(&relay, "messages stood below").await;
    assert_eq!(relay.stats().resets, 0);
}

/// Messages are put back under a relay that runs, and no counter says anything of it.
async fn messages_alone(kind: StoreKind) {
    let Some(world) = World::new(kind).await else { return };
    world.write(100).await;
    world.tables.copy().await;
    let relay = world.relay().await;
    world.published(100).await;

    world.tables.put_back().await;
    world.published(200).await;
    world.assert_in_order_since(100);
    world.assert_told(&relay, "rows with old positions were inserted into outbox_message").await;
    assert_eq!(relay.stats().resets, 0);
}

impl World {
    async fn new(kind: StoreKind) -> Option<Self> {
        let fresh = Fresh::new(kind, TransportKind::Memory).await?;
        let ledger = ledger::open(&fresh.pair.database).await.unwrap();
        ledger.prepare().await.unwrap();
        let tables = Tables::open(&fresh.pair.database).await;
        let (broker, clock) = (Arc::new(RecordingTransport::new()), Arc::new(TestClock::new(1)));
        Some(Self { ledger, tables, broker, clock, _fresh: fresh })
    }

    async fn relay(&self) -> RelayHandle {
        let clock: Arc<dyn Clock> = Arc::<TestClock>::clone(&self.clock);
        let broker = Arc::<RecordingTransport>::clone(&self.broker);
        Pair::relay(self.ledger.store(), broker).clock(clock).start().await.unwrap()
    }

    /// Commits so many messages of a few keys, one by one: each is the last append of its stripe.
    async fn write(&self, count: usize) {
        for number in 0..count {
            let written = self.ledger.write(&[Outgoing::from(message(number % KEYS))], &|| {}).await;
            assert!(matches!(written, Written::Yes), "{written:?}");
        }
    }

    /// Waits until so many were published, and removed. The relay's clock goes on by leaps: what it
    /// does twice a minute, it does at once.
    async fn published(&self, count: usize) {
        let store = self.ledger.store();
        let all = || async {
            let pending = store.backlog(&Default::default()).await.map_or(1, |backlog| backlog.pending);
            self.broker.len() >= count && pending == 0
        };
        let deadline = tokio::time::Instant::now() + PATIENCE;
        while !eventually(Duration::from_secs(2), &all).await {
            assert!(
                tokio::time::Instant::now() < deadline,
                "{} of {count} were published",
                self.broker.len()
            );
            self.clock.suspend(Duration::from_secs(30));
        }
        assert_eq!(self.broker.len(), count, "each once");
    }

    /// Asserts that all but the first so many messages were published in the order of their keys.
    fn assert_in_order_since(&self, first: usize) {
        let published = self.broker.published().split_off(first);
        for key in 0..KEYS {
            let key: KeyId = message(key).key_id();
            let positions: Vec<Position> =
                published.iter().filter(|it| it.key == key).map(|it| it.position).collect();
            assert!(!positions.is_empty() && positions.is_sorted(), "{key}: {positions:?}");
        }
    }

    async fn assert_told(&self, relay: &RelayHandle, words: &str) {
        let told = || async {
            let health = relay.health();
            health.status >= Status::Degraded
                && health.reasons.iter().any(|reason| reason.text.contains(words))
        };
        assert!(eventually(PATIENCE, told).await, "{:?}", relay.health());
    }
}

fn message(key: usize) -> Message {
    Message::new("orders", "order.placed").unwrap().with_key(format!("key-{key}")).unwrap()
}
