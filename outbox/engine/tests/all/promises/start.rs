//! Errors at the start of a relay, reported all at once.

use std::sync::Arc;

use outbox_contract::backend::{Received, Subscription, TransportLayer};
use outbox_contract::{
    Admin, RetryPolicy, RetryRule, StoreErrorKind, Transactional, Transport, TransportError,
};
use outbox_engine::{Relay, RelayBuilder, StartError};
use outbox_store_memory::MemoryStore;
use outbox_testkit::{ChaosStore, NullTransport, StoreCall, StoreFault};
use outbox_transport_memory::MemoryTransport;

use crate::promises::support::{MS, S, World, message};

#[tokio::test(start_paused = true)]
async fn everything_that_is_wrong_is_said_at_once() {
    let world = World::new();
    let rig = world.rig();
    let covered = RetryRule { class: Some("timeout".into()), ..RetryRule::default() };
    let rules =
        vec![RetryRule { topic: Some("a\nb*".into()), ..RetryRule::default() }, covered.clone(), covered];
    let never = RetryPolicy { max_attempts: 0, rules, ..RetryPolicy::default() };
    let error = rig
        .relay()
        .lease(S)
        .fetch_batch(0)
        .max_unconfirmed_batches(0)
        .route("default", Arc::clone(&world.broker))
        .route("a\nb", Arc::clone(&world.broker))
        .retry(never)
        .start()
        .await
        .unwrap_err();
    let StartError::Config(problems) = &error else { panic!("{error}") };
    let expected = [
        "lease (1s) is too short",
        "batch is 0",
        "max_unconfirmed_batches is 0",
        "route default is configured twice",
        "a\\nb",
        "retry.max_attempts is 0",
        "topic \"a\\nb*\" matches nothing",
        "retry.rules[2] (class timeout): it never applies, because retry.rules[1]",
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

/// `fn main() -> Result<(), Box<dyn Error>>` prints an error by `Debug`.
#[tokio::test(start_paused = true)]
async fn an_error_that_main_returns_is_printed_as_its_text_and_code() {
    let world = World::new();
    let missing = world.rig_on(false).relay().start().await.unwrap_err();
    let wrong = world.rig().relay().max_unconfirmed_batches(0).start().await.unwrap_err();
    for (error, code) in [(missing, "OBX-STORE-NOT-MIGRATED"), (wrong, "OBX-START-CONFIG")] {
        let printed = format!("{:?}", Box::<dyn std::error::Error>::from(error));
        assert!(printed.starts_with("not started") && printed.contains(&format!("[{code}]")), "{printed}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_store_that_does_not_answer_keeps_nobody_waiting() {
    for call in [StoreCall::Check, StoreCall::Identity] {
        let store = Arc::new(ChaosStore::new(Arc::new(MemoryStore::new()), 1));
        store.inject(call, StoreFault::HangBefore, 1);
        let relay = Relay::builder(store, NullTransport::new()).store_timeout(S * 3);
        let error = relay.start().await.unwrap_err();
        let StartError::Store(cause) = &error else { panic!("{error}") };
        assert_eq!(cause.kind(), StoreErrorKind::Unavailable);
        assert!(error.to_string().contains("no answer within 3s"), "{error}");
    }
}

/// Sources of the messages that a relay of this store publishes, one after the other.
async fn source_of(store: &Arc<MemoryStore>, configure: impl FnOnce(RelayBuilder) -> RelayBuilder) -> String {
    let transport = Arc::new(MemoryTransport::new());
    let reader = Subscription::new("reader", [message("a").topic]).unwrap();
    let deliveries = transport.subscribe(reader).await.unwrap();
    let relay = configure(Relay::builder(Arc::clone(store), transport)).start().await.unwrap();
    let mut tx = store.begin().await.unwrap();
    store.append(&mut tx, &[message("a").into()]).await.unwrap();
    store.commit(tx).await.into_result().unwrap();
    let received = loop {
        if let Received::Deliveries(received) = deliveries.next().await.unwrap() {
            break received;
        }
    };
    deliveries.acknowledge(&[received[0].tag.clone()]).await.unwrap();
    assert!(relay.stop(S * 20).await);
    received[0].origin.as_ref().unwrap().source.to_string()
}

#[tokio::test(start_paused = true)]
async fn the_source_of_a_message_is_the_identity_of_its_outbox_unless_one_is_configured() {
    let (one, other) = (Arc::new(MemoryStore::new()), Arc::new(MemoryStore::new()));
    let of_one = source_of(&one, |relay| relay).await;
    assert_eq!(of_one, one.identity().await.unwrap().source());
    assert_eq!(of_one, source_of(&one, |relay| relay.label("another life")).await);
    assert_ne!(of_one, source_of(&other, |relay| relay).await);
    assert_eq!(source_of(&one, |relay| relay.source("/shop")).await, "/shop");
    let renewed = one.renew_identity().await.unwrap();
    assert_eq!(source_of(&one, |relay| relay).await, renewed.source());
    assert_ne!(renewed.source(), of_one);
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

/// A transport whose check never answers.
struct Mute(Arc<MemoryTransport>);

impl TransportLayer for Mute {
    type Inner = Arc<MemoryTransport>;

    fn inner(&self) -> &Arc<MemoryTransport> {
        &self.0
    }

    async fn check(&self) -> Result<(), TransportError> {
        std::future::pending().await
    }
}

#[tokio::test(start_paused = true)]
async fn a_transport_whose_check_never_answers_keeps_nobody_from_starting() {
    let broker = Arc::new(MemoryTransport::new());
    let store = Arc::new(MemoryStore::new());
    let relay = Relay::builder(store, Mute(broker)).publish_timeout(S * 3).lease(S * 20);
    let relay = tokio::time::timeout(S * 4, relay.start()).await.expect("it starts").unwrap();
    assert!(relay.stop(S * 20).await);
}
