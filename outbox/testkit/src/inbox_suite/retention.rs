//! Retention of ids: they are kept, and at last forgotten.

use std::time::Duration;

use outbox_contract::{Store, Transactional};

use super::InboxHarness;
use super::world::{direct_world, start, worlds};
use crate::suite::not_applicable;

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

/// Ids are kept for the store's retention, and no longer than until the next maintenance after it.
pub async fn ids_are_forgotten_when_their_time_is_over<H: InboxHarness>(harness: &H) {
    let Some(kept) = harness.handled_ids_kept() else {
        return not_applicable::<H>("nobody can wait until ids are forgotten here");
    };
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
    harness.advance(kept.saturating_sub(Duration::from_secs(60))).await;
    assert!(known().await, "its time is not over");
    harness.advance(Duration::from_secs(120)).await;
    assert!(!known().await, "its time is over");
}
