//! A failing handler delays its own key, and no other (promise P5).

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use outbox_contract::{StoreError, StoreErrorKind};
use outbox_engine::{HandlerFailure, HandlerOptions};

use super::InboxHarness;
use super::world::{Whim, World, in_each_mode, start, well, well_unless};

/// A failing key holds no delivery; later messages of the key wait behind it, though their handler
/// would succeed. After recovery all of it is handled in order.
pub async fn a_failing_key_waits_in_the_store_and_the_others_flow<H: InboxHarness>(harness: &H) {
    in_each_mode(harness, async |world: World<H>| {
        let fails = Arc::new(AtomicBool::new(true));
        let broken = Arc::clone(&fails);
        let inbox = world.inbox_that(move |message, _| {
            well_unless(World::<H>::is_of(message, "bad") && broken.load(Ordering::SeqCst))
        });
        // The failing key alone would fill it.
        let inbox = start(inbox.prefetch(4)).await;
        let mut sent = world.send("bad", 6);
        sent.extend(world.send_in_turn(&["a", "b"], 10));
        world.acknowledged().await;
        let good = sent[6..].to_vec();
        world
            .until("the others handled", async || {
                world.handled().await.values().map(Vec::len).sum::<usize>() == good.len()
            })
            .await;
        world.assert_once_and_in_order(&good).await;
        assert!(world.waiting().await >= 6, "the failing key waits in the store");
        let later = world.send("bad", 4);
        world.acknowledged().await;
        fails.store(false, Ordering::SeqCst);
        sent.extend(later);
        sent.extend(world.send("bad", 2));
        world.done().await;
        world.assert_once_and_in_order(&sent).await;
        assert!(world.dead().await.is_empty());
        world.stop(inbox).await;
    })
    .await;
}

/// One message of a batch fails at first: all others are handled, and it is handled when it no
/// longer fails.
pub async fn a_batch_in_which_one_fails_is_done_again_one_by_one<H: InboxHarness>(harness: &H) {
    in_each_mode(harness, async |world: World<H>| {
        let (calls, others) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicUsize::new(0)));
        let (seen, served) = (Arc::clone(&calls), Arc::clone(&others));
        // It keeps failing until another message of its batch was called again.
        let inbox = world.inbox_that(move |message, _| {
            if World::<H>::is_of(message, "bad") {
                let fails = seen.fetch_add(1, Ordering::SeqCst) < 3;
                return well_unless(fails);
            }
            served.fetch_add(1, Ordering::SeqCst);
            well()
        });
        let sent = world.send_in_turn(&["a", "bad", "b", "c"], 2);
        let inbox = start(inbox).await;
        world.done().await;
        world.assert_once_and_in_order(&sent).await;
        assert!(calls.load(Ordering::SeqCst) >= 5, "two messages, and three failures of the first");
        assert!(others.load(Ordering::SeqCst) >= 6, "each other one was handled");
        assert!(world.dead().await.is_empty(), "no failure of the batch is counted against the others");
        world.stop(inbox).await;
    })
    .await;
}

/// A handler that takes too long is rolled back, and counts as failed.
pub async fn a_handler_that_takes_too_long_is_rolled_back_and_never_a_success<H: InboxHarness>(harness: &H) {
    in_each_mode(harness, async |world: World<H>| {
        let slow = world.handler(|message, _| {
            if World::<H>::is_of(message, "slow") { Box::pin(std::future::pending()) } else { well() }
        });
        let options = HandlerOptions::default().timeout(Duration::from_millis(500));
        let inbox = world.bare().on_message_with("orders", "order.placed", options, slow);
        let inbox = inbox.tries(1).retry(world.retry(2));
        let (never, sent) = (world.send("slow", 1), world.send("a", 3));
        let inbox = start(inbox).await;
        world.until("a dead letter", async || !world.dead().await.is_empty()).await;
        world.done().await;
        assert!(!world.has_handled(&never[0]).await, "it was rolled back");
        let dead = world.dead().await;
        let slow = dead.iter().find(|dead| dead.stored.message.id == never[0].id);
        let failure = slow.and_then(|dead| dead.last_failure.as_ref());
        assert_eq!(failure.map(|failure| &*failure.class), Some("timeout"));
        // On a very slow machine messages may become dead letters too; but no message is both.
        for message in &sent {
            let is_dead = dead.iter().any(|dead| dead.stored.message.id == message.id);
            assert_ne!(world.has_handled(message).await, is_dead);
        }
        world.stop(inbox).await;
    })
    .await;
}

/// A handler that panics has failed.
pub async fn a_handler_that_panics_is_rolled_back_and_tried_again<H: InboxHarness>(harness: &H) {
    in_each_mode(harness, async |world: World<H>| {
        let panics = AtomicU32::new(0);
        let inbox = world.inbox_that(move |message, _| {
            let is_bad = World::<H>::is_of(message, "bad");
            let panics = is_bad && panics.fetch_add(1, Ordering::SeqCst) < 3;
            Box::pin(async move {
                assert!(!panics, "the handler panics, as the suite wants");
                Ok(())
            })
        });
        let sent = world.send_in_turn(&["bad", "a"], 3);
        let inbox = start(inbox).await;
        world.done().await;
        world.assert_once_and_in_order(&sent).await;
        world.stop(inbox).await;
    })
    .await;
}

/// A message that its handler rejects is a dead letter at its first attempt, and later messages of
/// its key are handled.
pub async fn a_rejected_message_is_a_dead_letter_and_its_key_goes_on<H: InboxHarness>(harness: &H) {
    in_each_mode(harness, async |world: World<H>| {
        let sent = world.send("a", 4);
        let bad = sent[1].id;
        let inbox = world.inbox_that(move |message, _| {
            let bad = message.id == bad;
            Box::pin(async move {
                if bad { Err(HandlerFailure::rejected("no-such-order", "never").into()) } else { Ok(()) }
            })
        });
        let inbox = start(inbox).await;
        world.until("a dead letter", async || !world.dead().await.is_empty()).await;
        world.done().await;
        let mut handled = sent.clone();
        handled.remove(1);
        world.assert_once_and_in_order(&handled).await;
        let dead = world.dead().await;
        assert_eq!((dead.len(), &*dead[0].reason, dead[0].stored.message.id), (1, "rejected", bad));
        let failure = dead[0].last_failure.as_ref();
        assert_eq!(failure.map(|failure| &*failure.class), Some("no-such-order"));
        world.stop(inbox).await;
    })
    .await;
}

/// A message whose attempts are used up becomes a dead letter with that reason, and its key
/// continues.
pub async fn a_message_that_always_fails_is_a_dead_letter_in_the_end<H: InboxHarness>(harness: &H) {
    in_each_mode(harness, async |world: World<H>| {
        let sent = world.send("a", 3);
        let bad = sent[0].id;
        let inbox = world.inbox_that(move |message, _| well_unless(message.id == bad));
        let inbox = start(inbox.retry(world.retry(4))).await;
        world.until("a dead letter", async || !world.dead().await.is_empty()).await;
        world.done().await;
        world.assert_once_and_in_order(&sent[1..]).await;
        let dead = world.dead().await;
        assert_eq!((dead.len(), dead[0].stored.message.id, dead[0].attempts), (1, bad, 4));
        let (first, last) = (dead[0].first_failure.as_ref(), dead[0].last_failure.as_ref());
        let class = |failure: Option<&outbox_contract::Failure>| failure.map(|it| it.class.to_string());
        assert_eq!((class(first).as_deref(), class(last).as_deref()), (Some("suite"), Some("suite")));
        world.stop(inbox).await;
    })
    .await;
}

/// A conflict with another transaction is no failure: the whole transaction restarts, and no
/// attempt is counted.
pub async fn a_conflict_is_tried_again_and_never_counts<H: InboxHarness>(harness: &H) {
    in_each_mode(harness, async |world: World<H>| {
        let left = AtomicU32::new(15);
        let attempts = Arc::new(Mutex::new(Vec::new()));
        let seen = Arc::clone(&attempts);
        let inbox = world.inbox_that(move |_, attempt| {
            seen.lock().unwrap_or_else(PoisonError::into_inner).push(attempt);
            conflict_if(
                left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1)).is_ok(),
            )
        });
        let sent = world.send_in_turn(&["a", "b"], 3);
        // One failure would make a dead letter.
        let inbox = start(inbox.tries(1).retry(world.retry(1))).await;
        world.done().await;
        world.assert_once_and_in_order(&sent).await;
        let attempts = attempts.lock().unwrap_or_else(PoisonError::into_inner).clone();
        assert!(attempts.len() >= 6 + 15 && attempts.iter().all(|attempt| *attempt == 1), "{attempts:?}");
        assert!(world.dead().await.is_empty());
        world.stop(inbox).await;
    })
    .await;
}

fn conflict_if(conflict: bool) -> Whim {
    Box::pin(async move {
        if conflict {
            let error =
                StoreError::new(StoreErrorKind::Conflict, "suite", "another transaction was in the way");
            return Err(error.into());
        }
        Ok(())
    })
}
