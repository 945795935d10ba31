//! Rules of a retry policy on real databases: each action, and the key and the audit behind it.

#![allow(clippy::unwrap_used, reason = "a panic in a test is a failed test")]

use std::sync::Arc;
use std::time::Duration;

use outbox_contract::admin::Filter;
use outbox_contract::{
    AdminExt, Exhausted, Message, MessageId, Outgoing, RetryPolicy, RetryRule, Route, Store as _, Topic,
    Transactional,
};
use outbox_engine::Relay;
use outbox_servers::{OrSkip as _, Postgres};
use outbox_store_postgres::PostgresStore;
use outbox_store_sqlite::SqliteStore;
use outbox_testkit::{ChaosTransport, Fault, RecordingTransport};
use outbox_tests::record::{PATIENCE, until};

/// The actions, each with the class of failure that it follows, which is also its topic.
const ACTIONS: [(&str, Exhausted); 4] = [
    ("bury", Exhausted::DeadLetter),
    ("discard", Exhausted::Discard),
    ("hold", Exhausted::Hold),
    ("pause", Exhausted::PauseTopic),
];

#[tokio::test]
async fn each_action_is_done_in_postgresql() {
    let Some(server) = Postgres::newest().shared().or_skip() else { return };
    let store = PostgresStore::connect(&server.fresh_database()).await.unwrap();
    store.migrate().await.unwrap();
    each_action_is_done(store).await;
}

#[tokio::test]
async fn each_action_is_done_in_sqlite() {
    let folder = tempfile::tempdir().unwrap();
    let store = SqliteStore::open(folder.path().join("test.db")).await.unwrap();
    store.migrate().await.unwrap();
    each_action_is_done(store).await;
}

async fn each_action_is_done(store: impl Transactional + Clone) {
    let broker = Arc::new(RecordingTransport::new());
    let transport = Arc::new(ChaosTransport::new(Arc::<RecordingTransport>::clone(&broker), 1));
    let mut ids: Vec<[MessageId; 2]> = Vec::new();
    for (class, _) in ACTIONS {
        let messages = [(); 2].map(|()| Message::new(topic(class), "tested").unwrap().with_key("k").unwrap());
        ids.push([messages[0].id, messages[1].id]);
        transport.inject(messages[0].id, Fault::FailedAs(class));
        append(&store, messages).await;
    }
    let rule = |(class, exhausted): (&str, Exhausted)| RetryRule {
        class: Some(class.to_owned()),
        max_attempts: Some(2),
        exhausted: Some(exhausted),
        ..RetryRule::default()
    };
    let retry = RetryPolicy {
        first_delay: Duration::from_millis(10),
        rules: ACTIONS.map(rule).into(),
        ..RetryPolicy::default()
    };
    let relay = Relay::builder(store.clone(), Arc::clone(&transport)).retry(retry).start().await.unwrap();
    let route = Route::default();
    let is_done = async || {
        let keys = store.failing_keys(&Filter::all_routes()).await.unwrap();
        let paused = store.ownership(&route).await.unwrap().paused.topics;
        let held = keys.iter().filter(|key| key.held).count();
        (broker.len(), keys.len(), held, paused) == (2, 2, 1, vec![topic("pause")])
    };
    until("each action done", is_done).await;

    let arrived = || broker.published().iter().map(|published| published.id).collect::<Vec<_>>();
    assert!(arrived().contains(&ids[0][1]) && arrived().contains(&ids[1][1]), "followers of what left");
    let dead = store.dead_letters(&Filter::all_routes()).await.unwrap();
    let dead: Vec<_> = dead.iter().map(|letter| (letter.stored.message.id, letter.attempts)).collect();
    assert_eq!(dead, [(ids[0][0], 2)]);
    let keys = store.failing_keys(&Filter::all_routes()).await.unwrap();
    let mut seen: Vec<_> =
        keys.iter().map(|key| (key.key.topic.to_string(), key.held, key.attempts, key.first)).collect();
    seen.sort();
    assert_eq!(
        seen,
        [("hold".to_owned(), true, 2, Some(ids[2][0])), ("pause".to_owned(), false, 2, Some(ids[3][0]))]
    );
    let mut audit = store.audit(&Filter::all_routes()).await.unwrap();
    audit.sort_by_key(|entry| entry.operation.clone());
    let noted: Vec<_> = audit.iter().map(|entry| (entry.operation.as_str(), &entry.ids[..])).collect();
    assert_eq!(noted, [("drop", &ids[1][..1]), ("pause", &[][..])]);
    assert!(audit[1].actor.as_str().contains("[pause]"), "{audit:?}");

    transport.calm();
    store.release(&route, &keys.iter().find(|key| key.held).unwrap().key).await.unwrap();
    store.resume(&route, Some(&topic("pause"))).await.unwrap();
    until("delivered", async || broker.len() == 6).await;
    for pair in &ids[2..] {
        let of_pair: Vec<_> = arrived().into_iter().filter(|id| pair.contains(id)).collect();
        assert_eq!(of_pair, pair, "in order, without a gap");
    }
    assert_eq!((relay.stats().discarded, relay.stats().dead_lettered), (1, 1));
    assert!(relay.stop(PATIENCE).await);
}

fn topic(name: &str) -> Topic {
    Topic::new(name).unwrap()
}

async fn append(store: &impl Transactional, messages: [Message; 2]) {
    let mut tx = store.begin().await.unwrap();
    store.append(&mut tx, &messages.map(Outgoing::from)).await.unwrap();
    store.commit(tx).await.into_result().unwrap();
}
