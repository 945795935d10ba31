//! A relay behind Pgpool-II that sends reads to a standby whose replay is paused. What was appended
//! since is not there: a relay that reads there would pass messages over, and report that all is
//! well.

#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::sync::Arc;
use std::time::Duration;

use outbox_contract::{Message, Outgoing, Store, Transactional};
use outbox_engine::Status;
use outbox_servers::{OrSkip, Pgpool, Postgres};
use outbox_store_postgres::PostgresStore;
use outbox_testkit::{RecordingTransport, eventually};
use outbox_tests::pair::Pair;
use outbox_tests::record::PATIENCE;

/// Sizes of messages: content of the large ones is read by a statement of its own.
const SIZES: [usize; 4] = [1_024, 100_000, 1_024, 100_000];

#[tokio::test(flavor = "multi_thread")]
async fn a_relay_behind_pgpool_delivers_what_the_standby_does_not_have() {
    let Some(primary) = Postgres::newest().start().or_skip() else { return };
    let Some(standby) = primary.standby().or_skip() else { return };
    let Some(pooler) = Pgpool::new(&primary, &standby).start().or_skip() else { return };
    let store = Arc::new(PostgresStore::connect(&pooler.url(&primary.url())).await.unwrap());
    store.migrate().await.unwrap();
    standby.query(&standby.url(), "select pg_wal_replay_pause()");
    let paused =
        || async { standby.query(&standby.url(), "select pg_get_wal_replay_pause_state()") == "paused" };
    assert!(eventually(PATIENCE, paused).await, "the standby still replays");

    append(&store, "before").await;
    let broker = Arc::new(RecordingTransport::new());
    let relay = Pair::relay(Arc::<PostgresStore>::clone(&store), Arc::<RecordingTransport>::clone(&broker));
    let relay = relay.start().await.unwrap();
    let delivered = |count: usize| {
        let (store, broker) = (&store, &broker);
        move || async move {
            let pending = store.backlog(&Default::default()).await.map_or(1, |backlog| backlog.pending);
            broker.len() >= count && pending == 0
        }
    };
    assert!(eventually(PATIENCE, delivered(SIZES.len())).await, "{:?}", relay.health());
    append(&store, "while it runs").await;
    assert!(eventually(PATIENCE, delivered(2 * SIZES.len())).await, "{:?}", relay.health());

    assert_eq!(broker.len(), 2 * SIZES.len(), "each once");
    assert_eq!(relay.health().status, Status::Healthy, "{:?}", relay.health());
    assert_eq!(relay.stats().resets, 0);
    store.check().await.unwrap();
    assert!(relay.stop(Duration::from_secs(60)).await);
}

async fn append(store: &PostgresStore, key: &str) {
    let message = |size| {
        let message = Message::new("orders", "order.placed").unwrap().with_key(key).unwrap();
        Outgoing::from(message.with_payload(vec![b'x'; size]))
    };
    let mut tx = store.begin().await.unwrap();
    store.append(&mut tx, &SIZES.map(message)).await.unwrap();
    store.commit(tx).await.into_result().unwrap();
}
