//! Retention of ids: they are kept, and at last forgotten, or when an operator says so.

use std::time::Duration;

use outbox_contract::admin::HandledFilter;
use outbox_contract::backend::rules::options::StoreOptions;
use outbox_contract::{Admin, Message, Store, Transactional};

use super::InboxHarness;
use super::world::{direct_world, start, worlds};
use crate::store_suite::{Capability, has};

/// Maintenance does not forget ids that may be delivered again.
pub async fn a_repeat_is_known_after_the_store_was_cleaned_up<H: InboxHarness>(harness: &H) {
    for world in worlds(harness).await {
        let sent = world.send_in_turn(&["a", "b"], 3);
        let inbox = start(world.inbox()).await;
        world.done().await;
        world.store.maintain(1_000).await.expect("the store is cleaned up");
        for message in &sent {
            let handled = world.store.is_handled(&world.consumer, message.id).await;
            assert!(handled.expect("the store answers"), "the id is kept");
            world.feed.send(message.clone());
        }
        world.done().await;
        world.assert_once_and_in_order(&sent).await;
        world.stop(inbox).await;
    }
}

/// Ids of a consumer that is gone are kept up to the store's maximum age, and no longer than until
/// the next maintenance after it.
pub async fn ids_are_forgotten_when_their_time_is_over<H: InboxHarness>(harness: &H) {
    if !has::<H>(Capability::ExpiredIds) {
        return;
    }
    let max_age = StoreOptions::default().handled_ids_max_age;
    let world = direct_world(harness).await;
    let sent = world.send("a", 3);
    let inbox = start(world.inbox()).await;
    world.done().await;
    world.stop(inbox).await;
    let known = async || {
        world.store.maintain(1_000).await.expect("the store is cleaned up");
        let handled = world.store.is_handled(&world.consumer, sent[0].id).await;
        handled.expect("the store answers")
    };
    harness.advance(max_age.saturating_sub(Duration::from_secs(60))).await;
    assert!(known().await, "its time is not over");
    harness.advance(Duration::from_secs(120)).await;
    assert!(!known().await, "its time is over");
}

/// A consumer that was made to forget a key handles its messages once more when they come again:
/// all of them, in their order, and no other key's. After that they are repeats again.
pub async fn what_is_forgotten_is_handled_once_more<H: InboxHarness>(harness: &H) {
    for world in worlds(harness).await {
        let (wrong, right) = (world.send("wrong", 4), world.send("right", 2));
        let inbox = start(world.inbox()).await;
        world.done().await;
        let sent: Vec<&Message> = wrong.iter().chain(&right).collect();

        let key = world.key_id("wrong");
        let filter = HandledFilter::of(world.consumer.clone())
            .and_then(|all| all.with_topic(key.topic)?.with_key(key.key));
        let filter = filter.expect("valid names");
        assert_eq!(world.store.count_handled(&filter).await.expect("the store answers"), 4);
        assert_eq!(world.store.forget(&filter).await.expect("the store answers"), 4);
        for _ in 0..2 {
            sent.iter().for_each(|message| world.feed.send((*message).clone()));
            world.done().await;
        }
        let effects: Vec<Message> = wrong.iter().chain(&right).chain(&wrong).cloned().collect();
        world.assert_once_and_in_order(&effects).await;
        assert!(world.dead().await.is_empty());
        world.stop(inbox).await;
    }
}
