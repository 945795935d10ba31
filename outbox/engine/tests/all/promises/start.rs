//! Errors at the start of a relay, reported all at once.

use std::sync::Arc;

use outbox_contract::{RetryPolicy, StoreErrorKind};
use outbox_engine::{Relay, StartError};
use outbox_store_memory::MemoryStore;
use outbox_testkit::{ChaosStore, NullTransport, StoreCall, StoreFault};

use crate::promises::support::{MS, S, World, message};

#[tokio::test(start_paused = true)]
async fn everything_that_is_wrong_is_said_at_once() {
    let world = World::new();
    let rig = world.rig();
    let never = RetryPolicy { max_attempts: 0, ..RetryPolicy::default() };
    let error = rig
        .relay()
        .lease(S)
        .fetch_batch(0)
        .lanes(0)
        .route("default", Arc::clone(&world.broker))
        .route("a\nb", Arc::clone(&world.broker))
        .topic_retry("orders", never)
        .topic_retry("", RetryPolicy::default())
        .start()
        .await
        .unwrap_err();
    let StartError::Config(problems) = &error else { panic!("{error}") };
    let expected = [
        "lease (1s) is too short",
        "batch is 0",
        "lanes is 0",
        "route default is configured twice",
        "a\\nb",
        "topic orders: retry.max_attempts is 0",
        "the topic is empty",
    ];
    assert_eq!(problems.len(), expected.len(), "{error}");
    for words in expected {
        assert!(error.to_string().contains(words), "{words} is not in: {error}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_store_that_was_never_migrated_is_refused_with_the_remedy() {
    let world = World::new();
    let error = world.rig_on(false).relay().start().await.unwrap_err();
    let StartError::Store(cause) = &error else { panic!("{error}") };
    assert_eq!(cause.kind(), StoreErrorKind::NotMigrated);
    assert!(error.to_string().contains("run the migrations first"), "{error}");
}

#[tokio::test(start_paused = true)]
async fn a_store_that_does_not_answer_keeps_nobody_waiting() {
    let store = Arc::new(ChaosStore::new(Arc::new(MemoryStore::new()), 1));
    store.inject(StoreCall::Check, StoreFault::HangBefore, 1);
    let relay = Relay::builder(store, NullTransport::new()).store_timeout(S * 3);
    let error = relay.start().await.unwrap_err();
    let StartError::Store(cause) = &error else { panic!("{error}") };
    assert_eq!(cause.kind(), StoreErrorKind::Unavailable);
    assert!(error.to_string().contains("no answer within 3s"), "{error}");
}

#[tokio::test(start_paused = true)]
async fn a_transport_that_is_away_keeps_nobody_from_starting() {
    let world = World::new();
    let rig = world.rig();
    rig.transport.go_down_for(MS * 3_000);
    world.append([message("a")]).await;
    let _relay = rig.relay().start().await.unwrap();
    world.drained(S * 10).await;
}
