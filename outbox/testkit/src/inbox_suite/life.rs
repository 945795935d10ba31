//! Inboxes end, in order or not, and others continue where they stopped (promise P8).

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use outbox_contract::backend::RelayId;
use outbox_engine::{Mode, Step};
use tokio::sync::Notify;

use super::InboxHarness;
use super::world::{World, in_each_mode, start, well};

const KEYS: [&str; 5] = ["a", "b", "c", "d", "e"];

/// An inbox that is stopped with its memory full finishes the work that it has begun and no more.
/// The next one handles the rest, in order.
pub async fn a_stopped_inbox_leaves_the_rest_to_another_in_order<H: InboxHarness>(harness: &H) {
    in_each_mode(harness, async |world: World<H>| {
        let begun = Arc::new(AtomicUsize::new(0));
        let enough = Arc::new(Notify::new());
        let (calls, told) = (Arc::clone(&begun), Arc::clone(&enough));
        let first = world.inbox_that(move |_, _| {
            if calls.fetch_add(1, Ordering::SeqCst) == 15 {
                told.notify_one();
            }
            well()
        });
        let mut sent = world.send_in_turn(&KEYS, 20);
        let first = start(first.prefetch(50)).await;
        let reached = tokio::time::timeout(super::world::PATIENCE, enough.notified());
        assert!(reached.await.is_ok(), "it handles");
        world.stop(first).await;
        world.until("given back what it had not finished", async || world.feed.in_flight() == 0).await;
        let handled: usize = world.handled().await.values().map(Vec::len).sum();
        let left = world.feed.unacknowledged() as u64 + world.waiting().await;
        assert_eq!(handled as u64 + left, 100, "all that it has handled is acknowledged");
        let begun = begun.load(Ordering::SeqCst);
        let second = start(world.inbox()).await;
        sent.extend(world.send_in_turn(&KEYS, 1));
        world.done().await;
        world.assert_once_and_in_order(&sent).await;
        assert!(begun >= handled, "{begun} were begun");
        world.stop(second).await;
    })
    .await;
}

/// An inbox that dies behind any of its steps leaves its messages to the next one.
pub async fn an_inbox_that_dies_behind_any_step_has_each_effect_once<H: InboxHarness>(harness: &H) {
    in_each_mode(harness, async |world: World<H>| {
        // The store sees the next life under the same id, so it need not wait until the leases of
        // this one expire.
        let id = RelayId::new();
        let mut sent = Vec::new();
        for (number, step) in Step::ALL.into_iter().enumerate() {
            let died = Arc::new(Notify::new());
            let (told, times) = (Arc::clone(&died), AtomicUsize::new(0));
            let inbox = world.inbox().id(id).on_step(move |over| {
                if over == step && times.fetch_add(1, Ordering::SeqCst) == number % 3 {
                    told.notify_one();
                }
            });
            let inbox = start(inbox).await;
            // One by one, so that there are enough steps of each kind.
            let mut ended = std::pin::pin!(died.notified());
            let reached = async {
                loop {
                    sent.extend(world.send_in_turn(&KEYS, 1));
                    let acknowledged = world.acknowledged();
                    let handled = std::pin::pin!(acknowledged);
                    match futures_util::future::select(&mut ended, handled).await {
                        futures_util::future::Either::Left(_) => return,
                        futures_util::future::Either::Right(_) => {}
                    }
                }
            };
            let reached = tokio::time::timeout(super::world::PATIENCE, reached).await;
            assert!(reached.is_ok(), "{:?}: it comes to {step:?}", world.way);
            drop(inbox);
        }
        let last = start(world.inbox().id(id)).await;
        sent.extend(world.send_in_turn(&KEYS, 1));
        world.done().await;
        world.assert_once_and_in_order(&sent).await;
        assert!(world.dead().await.is_empty());
        world.stop(last).await;
    })
    .await;
}

/// One process receives messages, another handles them.
pub async fn receiving_and_handling_are_apart_in_stored_mode<H: InboxHarness>(harness: &H) {
    in_each_mode(harness, async |world: World<H>| {
        if world.way.mode != Mode::Stored {
            return;
        }
        let mut sent = world.send_in_turn(&KEYS, 4);
        let receiver = start(world.bare().mode(Mode::Receive)).await;
        world.acknowledged().await;
        assert_eq!(world.waiting().await, 20);
        world.assert_once_and_in_order(&[]).await;
        let handler = start(world.inbox().mode(Mode::Handle)).await;
        sent.extend(world.send_in_turn(&KEYS, 2));
        world.done().await;
        world.assert_once_and_in_order(&sent).await;
        world.stop(receiver).await;
        world.stop(handler).await;
    })
    .await;
}
