//! Relay on the memory backends: basic cases.

#![allow(clippy::unwrap_used, reason = "a panic in a test is a failed test")]

use std::sync::Arc;
use std::time::Duration;

use outbox_contract::{Message, Outgoing, Store, Transactional};
use outbox_engine::{Relay, Status};
use outbox_store_memory::MemoryStore;
use outbox_testkit::{Feed, RecordingTransport};

fn message(key: &str, payload: usize) -> Message {
    Message::new("orders", "order.placed").unwrap().with_key(key).unwrap().with_payload(payload.to_string())
}

async fn append(store: &MemoryStore, messages: impl IntoIterator<Item = Message>) {
    let mut tx = store.begin().await.unwrap();
    let outgoing: Vec<Outgoing> = messages.into_iter().map(Outgoing::from).collect();
    store.append(&mut tx, &outgoing).await.unwrap();
    store.commit(tx).await.into_result().unwrap();
}

#[tokio::test(start_paused = true)]
async fn what_is_committed_is_delivered_in_order_and_removed() {
    let store = MemoryStore::new();
    let transport = Arc::new(RecordingTransport::new());
    let relay =
        Relay::builder(Arc::new(store.clone()), Arc::clone(&transport)).seed(1).start().await.unwrap();
    for n in 0..100 {
        append(&store, (0..50).map(|key| message(&format!("key-{key}"), n))).await;
    }
    tokio::time::timeout(Duration::from_secs(60), transport.wait_for(5_000)).await.expect("all arrive");
    for key in 0..50 {
        let key = message(&format!("key-{key}"), 0).key_id();
        assert!(transport.positions_of(&key).is_sorted());
    }
    assert!(relay.stop(Duration::from_secs(10)).await, "drained");
    let backlog = store.backlog(&outbox_contract::Route::default()).await.unwrap();
    assert_eq!(backlog.pending, 0);
}

/// A broker needs the epochs to refuse a relay that lost a bucket (P7).
#[tokio::test(start_paused = true)]
async fn a_publish_batch_carries_the_epochs_of_its_buckets() {
    let store = MemoryStore::new();
    let transport = Arc::new(RecordingTransport::new());
    for relays in 1..=2 {
        let relay =
            Relay::builder(Arc::new(store.clone()), Arc::clone(&transport)).seed(1).start().await.unwrap();
        append(&store, (0..50).map(|key| message(&format!("key-{key}"), relays))).await;
        let arrived = transport.wait_for(50 * relays);
        tokio::time::timeout(Duration::from_secs(60), arrived).await.expect("all arrive");
        assert!(relay.stop(Duration::from_secs(10)).await, "drained");
    }
    let published = transport.published();
    let (first, second) = published.split_at(50);
    assert!(first.iter().all(|it| it.epoch.is_some()), "the first owner says which it is");
    for (one, other) in first.iter().zip(second) {
        assert!(one.epoch < other.epoch, "the next owner of a bucket has a newer epoch");
    }
}

#[tokio::test(start_paused = true)]
async fn an_idle_relay_is_healthy_and_asks_little() {
    let store = MemoryStore::new();
    let transport = Arc::new(RecordingTransport::new());
    let relay = Relay::builder(Arc::new(store), transport).seed(1).start().await.unwrap();
    tokio::time::sleep(Duration::from_secs(60)).await;
    let before = relay.stats().fetches;
    tokio::time::sleep(Duration::from_secs(60)).await;
    let fetches = relay.stats().fetches - before;
    assert!(fetches <= 61, "{fetches} fetches in a minute");
    assert_eq!(relay.health().status, Status::Healthy, "{:?}", relay.health());
}

/// At the start it would have been refused.
#[tokio::test(start_paused = true)]
async fn a_broker_that_is_set_up_badly_under_a_running_relay_is_told_within_a_minute() {
    let feed = Feed::new();
    let relay = Relay::builder(Arc::new(MemoryStore::new()), feed.clone()).seed(1).start().await.unwrap();
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert_eq!(relay.health().status, Status::Healthy, "{:?}", relay.health());
    feed.misconfigure(Some("maxmemory-policy allkeys-lru"));
    tokio::time::sleep(Duration::from_secs(70)).await;
    let health = relay.health();
    assert_eq!(health.status, Status::Degraded);
    assert!(health.reasons.iter().any(|reason| reason.text.contains("allkeys-lru")), "{health:?}");
    feed.misconfigure(None);
    tokio::time::sleep(Duration::from_secs(70)).await;
    assert_eq!(relay.health().status, Status::Healthy, "{:?}", relay.health());
}
