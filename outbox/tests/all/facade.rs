//! The facade by itself is enough: what a service needs is under one name.

#![allow(clippy::unwrap_used, reason = "a panic in a test is a failed test")]

use std::time::Duration;

use outbox::backend::Received;
use outbox::message::EventType;
use outbox::prelude::*;
use outbox::{Codec, Json};
use serde::{Deserialize, Serialize};

#[derive(Debug, PartialEq, Serialize, Deserialize, DomainEvent)]
#[event(topic = "orders", key = "order_id")]
enum OrderEvent {
    #[serde(rename = "order.placed")]
    Placed { order_id: u64, cents: u64 },
    #[serde(rename = "order.cancelled")]
    #[event(version = 2)]
    Cancelled { order_id: u64 },
}

#[test]
fn the_derive_works_without_saying_where_the_crate_is() {
    let types: &[EventType] = OrderEvent::TYPES;
    assert_eq!(types.len(), 2);
    assert_eq!(OrderEvent::Cancelled { order_id: 7 }.event_type().version, 2);
    assert_eq!(OrderEvent::Cancelled { order_id: 7 }.key().as_deref(), Some("7"));
}

/// Each backend's main type is in the prelude, and what stands in a signature can be named.
#[test]
fn what_programs_name_is_there() {
    let mut names = vec![std::any::type_name::<(MemoryStore, MemoryTransport, outbox::Mode)>()];
    #[cfg(feature = "postgres")]
    names.push(std::any::type_name::<PostgresStore>());
    #[cfg(feature = "mysql")]
    names.push(std::any::type_name::<MySqlStore>());
    #[cfg(feature = "mongodb")]
    names.push(std::any::type_name::<MongoDbStore>());
    #[cfg(feature = "sqlite")]
    names.push(std::any::type_name::<SqliteStore>());
    #[cfg(feature = "kafka")]
    names.push(std::any::type_name::<KafkaTransport>());
    #[cfg(feature = "rabbitmq")]
    names.push(std::any::type_name::<RabbitMqTransport>());
    #[cfg(feature = "redis")]
    names.push(std::any::type_name::<RedisTransport>());
    assert!(names.iter().all(|name| name.contains("outbox")), "{names:?}");
}

async fn round_trip(store: impl Transactional + Clone) {
    let outbox = Outbox::new(store.clone());
    let transport = MemoryTransport::new();
    let subscription = Subscription::new("billing", ["orders"]).unwrap();
    let billing = transport.subscribe(subscription).await.unwrap();
    let relay = Relay::builder(store.clone(), transport).start().await.unwrap();
    let events: Vec<OrderEvent> = (0..20)
        .flat_map(|order_id| {
            [OrderEvent::Placed { order_id, cents: 100 }, OrderEvent::Cancelled { order_id }]
        })
        .collect();

    let mut tx = store.begin().await.unwrap();
    outbox.append_all(&mut tx, &events).await.unwrap();
    store.rollback(tx).await.unwrap();
    let mut tx = store.begin().await.unwrap();
    outbox.append_all(&mut tx, &events).await.unwrap();
    store.commit(tx).await.into_result().unwrap();

    let mut received = Vec::new();
    while received.len() < events.len() {
        let next =
            tokio::time::timeout(Duration::from_secs(20), billing.next()).await.expect("in time").unwrap();
        let Received::Deliveries(deliveries) = next else { continue };
        for delivery in &deliveries {
            received.push(delivery.message.clone().unwrap());
        }
        let tags: Vec<_> = deliveries.into_iter().map(|delivery| delivery.tag).collect();
        billing.acknowledge(&tags).await.unwrap();
    }
    for order_id in 0..20 {
        let key = order_id.to_string();
        let of_order = received
            .iter()
            .filter(|message| message.key.as_ref().is_some_and(|found| *found == key.as_str()));
        let decoded: Vec<OrderEvent> =
            of_order.map(|message| Json.decode(&message.payload).unwrap()).collect();
        assert_eq!(
            decoded,
            [OrderEvent::Placed { order_id, cents: 100 }, OrderEvent::Cancelled { order_id }]
        );
    }
    assert!(relay.stop(Duration::from_secs(10)).await);
    assert_eq!(store.backlog(&Route::default()).await.unwrap().pending, 0);
}

#[tokio::test]
async fn what_is_committed_comes_out_in_order_from_memory() {
    round_trip(MemoryStore::new()).await;
}

#[cfg(feature = "sqlite")]
#[tokio::test]
async fn what_is_committed_comes_out_in_order_from_sqlite() {
    let store = SqliteStore::in_memory().await.unwrap();
    store.migrate().await.unwrap();
    round_trip(store).await;
}

#[cfg(feature = "sqlite")]
#[tokio::test]
async fn a_relay_says_that_the_store_was_never_migrated() {
    let folder = tempfile::tempdir().unwrap();
    let store = SqliteStore::open(folder.path().join("new.db")).await.unwrap();
    let error = Relay::builder(store, MemoryTransport::new()).start().await.unwrap_err();
    assert!(error.to_string().contains("migrate"), "{error}");
}
