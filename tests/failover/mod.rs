//! Failovers of PostgreSQL to a standby that lacks the last commits. Messages of these commits were
//! published, and their positions come back for other messages: none of those may be passed over,
//! or sent before an earlier one of its key. So do the epochs of leases.

#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::sync::Arc;
use std::time::Duration;

use outbox_contract::{Message, MessageId, Outgoing, Store, Topic, Transactional};
use outbox_servers::{OrSkip, Postgres, PostgresServer, Proxy, Redis};
use outbox_store_postgres::PostgresStore;
use outbox_testkit::{RecordingTransport, eventually};
use outbox_tests::fresh::fresh_topic;
use outbox_tests::pair::Pair;
use outbox_tests::record::PATIENCE;

/// Messages of each step. A standby has the sequence of positions up to 32 ahead.
const MESSAGES: usize = 100;

/// The time until a relay would notice by itself that another server answers.
const LONG: Duration = Duration::from_secs(600);

/// Nothing is asked of the database while it fails over, as by an idle relay: the first question
/// meets the new primary.
#[tokio::test(flavor = "multi_thread")]
async fn an_idle_relay_reads_anew_after_a_failover_that_lost_commits() {
    let Some(primary) = Postgres::newest().start().or_skip() else { return };
    let writer = PostgresStore::connect(&primary.url()).await.unwrap();
    writer.migrate().await.unwrap();
    let Some(standby) = primary.standby().or_skip() else { return };
    let proxy = Proxy::to(&primary.url());
    let store = PostgresStore::connect(&proxy.url(&primary.url())).await.unwrap();
    let broker = Arc::new(RecordingTransport::new());
    let relay = Pair::relay(Arc::new(store), Arc::<RecordingTransport>::clone(&broker));
    let relay = relay.lease(LONG * 3).heartbeat(LONG).idle_poll(LONG).maintain_every(LONG);
    let relay = relay.observe_every(LONG).start().await.unwrap();

    let topic = fresh_topic();
    let kept = append(&writer, &topic, "kept").await;
    published(&broker, &kept).await;
    let is_removed = || async { primary.query(&primary.url(), "select count(*) from outbox_message") == "0" };
    assert!(eventually(PATIENCE, is_removed).await, "{:?}", relay.health());
    cut_off(&standby, &primary).await;
    let lost = append(&writer, &topic, "lost").await;
    published(&broker, &lost).await;
    assert_eq!(standby.query(&standby.url(), "select count(*) from outbox_message"), "0");

    standby.promote();
    proxy.lead_to(&standby.url());
    primary.kill();
    let writer = PostgresStore::connect(&standby.url()).await.unwrap();
    let new = append(&writer, &topic, "new").await;
    published(&broker, &new).await;
    let mut first = Vec::new();
    for id in broker.published().into_iter().filter(|it| it.key.key.as_str() == "new").map(|it| it.id) {
        if !first.contains(&id) {
            first.push(id);
        }
    }
    assert!(
        first == new,
        "out of order: {} of {MESSAGES}",
        first.iter().zip(&new).filter(|(a, b)| a != b).count()
    );
    relay.stop(Duration::from_secs(60)).await;
}

/// Leases that were taken right before a failover are lost with it: Redis knows newer owners than the
/// database then, and refuses those that the database names.
#[tokio::test(flavor = "multi_thread")]
async fn a_relay_whose_leases_went_back_publishes_to_redis_again() {
    let Some(postgres) = Postgres::newest().shared().or_skip() else { return };
    let Some(redis) = Redis::newest().shared().or_skip() else { return };
    let pair = Pair::new(postgres.fresh_database(), redis.url(), fresh_topic());
    let store = Arc::new(PostgresStore::connect(&pair.database).await.unwrap());
    store.migrate().await.unwrap();
    let ask = |sql: &str| postgres.query(&pair.database, sql);
    let start = async || {
        let relay = Pair::relay(Arc::<PostgresStore>::clone(&store), pair.transport().unwrap());
        relay.start().await.unwrap()
    };
    let published = async || {
        let is_empty = || async { ask("select count(*) from outbox_message") == "0" };
        eventually(PATIENCE, is_empty).await
    };
    let relay = start().await;
    append(&store, &pair.topic, "a").await;
    assert!(published().await, "{:?}", relay.health());
    assert!(relay.stop(Duration::from_secs(60)).await);
    // Each bucket under its second epoch.
    let relay = start().await;
    append(&store, &pair.topic, "a").await;
    assert!(published().await, "{:?}", relay.health());

    ask("update outbox_lease set epoch = epoch - 1");
    ask(
        "select pg_terminate_backend(pid) from pg_stat_activity where datname = current_database() and pid <> pg_backend_pid()",
    );
    append(&store, &pair.topic, "a").await;
    assert!(published().await, "{:?}", relay.health());
    assert!(relay.stop(Duration::from_secs(60)).await);
}

/// Appends messages of one key, each in a transaction of its own.
async fn append(store: &PostgresStore, topic: &Topic, key: &str) -> Vec<MessageId> {
    let mut ids = Vec::new();
    for _ in 0..MESSAGES {
        let message = Message::new(topic.clone(), "order.placed").unwrap().with_key(key).unwrap();
        ids.push(message.id);
        let mut tx = store.begin().await.unwrap();
        store.append(&mut tx, &[Outgoing::from(message)]).await.unwrap();
        store.commit(tx).await.into_result().unwrap();
    }
    ids
}

/// Waits until all of these messages were published.
async fn published(broker: &RecordingTransport, ids: &[MessageId]) {
    let all = || async {
        let published: std::collections::HashSet<_> = broker.published().iter().map(|it| it.id).collect();
        ids.iter().all(|id| published.contains(id))
    };
    assert!(eventually(PATIENCE, all).await, "{} were published", broker.len());
}

/// Ends the replication to a standby, when it has everything so far.
async fn cut_off(standby: &PostgresServer, primary: &PostgresServer) {
    let ask = |sql: &str| standby.query(&standby.url(), sql);
    let written = primary.query(&primary.url(), "select pg_current_wal_insert_lsn()");
    let has_all = || async { ask(&format!("select pg_last_wal_replay_lsn() >= '{written}'")) == "t" };
    assert!(eventually(PATIENCE, has_all).await, "the standby does not follow");
    ask("alter system set primary_conninfo = ''");
    ask("select pg_reload_conf()");
    let is_alone = || async { ask("select count(*) from pg_stat_wal_receiver") == "0" };
    assert!(eventually(PATIENCE, is_alone).await, "the standby still follows");
}
