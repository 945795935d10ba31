//! The database goes away in the middle of it: nothing is lost, and no effect is there twice.

use std::time::Duration;

use super::InboxHarness;
use super::world::{direct_world, start, worlds};
use crate::{StoreCall, StoreFault};

/// The result of a commit is lost. The inbox asks whether the ids were admitted.
pub async fn a_commit_whose_result_is_unknown_is_found_out<H: InboxHarness>(harness: &H) {
    for world in worlds(harness).await {
        let mut sent = Vec::new();
        for fault in [StoreFault::After, StoreFault::Before] {
            world.faulty.inject(StoreCall::Commit, fault, 3);
            sent.extend(world.send_in_turn(&["a", "b"], 3));
            let inbox = start(world.inbox()).await;
            world.done().await;
            world.assert_once_and_in_order(&sent).await;
            assert_eq!(inbox.stats().failed, 0, "{fault:?}: it is no failure of the message");
            world.stop(inbox).await;
        }
        assert!(world.dead().await.is_empty());
    }
}

/// Nor can it be asked. Then everything is delivered again, and known or not.
pub async fn when_it_can_not_be_found_out_the_message_comes_again<H: InboxHarness>(harness: &H) {
    for world in worlds(harness).await {
        let mut sent = Vec::new();
        for fault in [StoreFault::After, StoreFault::Before] {
            world.faulty.inject(StoreCall::Commit, fault, 1);
            world.faulty.inject(StoreCall::Admitted, StoreFault::Before, 3);
            sent.extend(world.send("a", 3));
            let inbox = start(world.inbox()).await;
            world.done().await;
            world.assert_once_and_in_order(&sent).await;
            world.stop(inbox).await;
            world.faulty.calm();
        }
    }
}

/// Each call of the inbox fails now and then, before its effect or after it.
pub async fn a_store_that_comes_and_goes_loses_nothing_and_repeats_nothing<H: InboxHarness>(harness: &H) {
    let calls =
        [StoreCall::Begin, StoreCall::Admit, StoreCall::Append, StoreCall::Commit, StoreCall::Rollback];
    for world in worlds(harness).await {
        let inbox = start(world.inbox()).await;
        let mut sent = Vec::new();
        for call in calls {
            for fault in [StoreFault::Before, StoreFault::After] {
                world.faulty.inject(call, fault, 2);
                let new = world.send_in_turn(&["a", "b"], 2);
                world.feed.send(new[0].clone());
                sent.extend(new);
                world.done().await;
                world.faulty.calm();
            }
        }
        world.assert_once_and_in_order(&sent).await;
        assert!(world.dead().await.is_empty(), "it burns no attempts");
        world.stop(inbox).await;
    }
}

/// A call that never returns is given up, and what it holds with it.
pub async fn a_store_that_hangs_holds_nothing_up_for_good<H: InboxHarness>(harness: &H) {
    let world = direct_world(harness).await;
    let inbox = start(world.inbox().store_timeout(Duration::from_secs(2))).await;
    let mut sent = Vec::new();
    for call in [StoreCall::Admit, StoreCall::Commit] {
        for fault in [StoreFault::HangBefore, StoreFault::HangAfter] {
            world.faulty.inject(call, fault, 1);
            sent.extend(world.send_in_turn(&["a", "b"], 2));
            world.done().await;
            world.faulty.calm();
        }
    }
    world.assert_once_and_in_order(&sent).await;
    world.stop(inbox).await;
}
