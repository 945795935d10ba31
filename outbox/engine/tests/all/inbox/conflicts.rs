//! Conflicts: tried again uncounted; those that last hold up their own key alone, and come to an
//! end.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use futures_util::FutureExt;
use outbox_contract::{RetryPolicy, StoreError, StoreErrorKind};
use outbox_engine::{HandlerError, Mode, VersionMismatch};

use crate::inbox::support::{MS, S, Store, World, within};

fn deadlock() -> HandlerError {
    StoreError::new(StoreErrorKind::Conflict, "tested", "a deadlock").into()
}

/// A handler that meets a conflict with each message of the key `bad`, while it is told to.
fn conflicting(
    world: &World,
    conflict: fn() -> HandlerError,
    lasts: &Arc<AtomicBool>,
) -> outbox_engine::InboxBuilder<Store> {
    let lasts = Arc::clone(lasts);
    world.inbox_that(move |message, _| {
        let conflicts = message.order_key().as_str() == "bad" && lasts.load(Ordering::SeqCst);
        async move { if conflicts { Err(conflict()) } else { Ok(()) } }.boxed()
    })
}

#[tokio::test(start_paused = true)]
async fn a_conflict_is_tried_again_and_not_counted() {
    let world = World::new();
    let sent = world.send("a", 2);
    let left = Arc::new(AtomicU32::new(20));
    let conflicts = Arc::clone(&left);
    let inbox = world.inbox_that(move |_, attempt| {
        assert_eq!(attempt, 1);
        let conflict =
            conflicts.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |n| n.checked_sub(1)).is_ok();
        async move {
            if conflict {
                return Err(deadlock());
            }
            Ok(())
        }
        .boxed()
    });
    let inbox = inbox.start().await.unwrap();
    within(S * 60, || world.feed.unacknowledged() == 0).await;
    world.ledger.assert_once_and_in_order(&sent);
    let stats = inbox.stats();
    assert_eq!((stats.failed, stats.stored, stats.resets), (0, 0, 0));
    assert!(stats.conflicts > 0);
}

/// A message whose version can never be the expected one.
#[tokio::test(start_paused = true)]
async fn a_version_that_never_fits_holds_up_its_own_key_and_becomes_a_dead_letter() {
    for mode in [Mode::Direct, Mode::Stored] {
        let world = World::concurrent(1);
        let mismatch = || VersionMismatch::check(0, "x", 1).unwrap_err().into();
        let retry = RetryPolicy { max_attempts: 2, ..RetryPolicy::default() };
        let inbox = conflicting(&world, mismatch, &Arc::new(AtomicBool::new(true)));
        let _inbox = inbox.mode(mode).prefetch(50).retry(retry).start().await.unwrap();
        world.send("bad", 60);
        let good = world.send("good", 10);
        let took = within(S * 60, || world.ledger.of("good").len() == 10).await;
        assert!(took < S * 30, "{mode:?}: the other key waited for {took:?}");
        world.ledger.assert_once_and_in_order(&good);
        within(S * 60, || world.feed.unacknowledged() == 0).await;
        within(S * 300, || world.tables.snapshot().dead > 0).await;
        let failure = world.dead().await.remove(0).last_failure.unwrap();
        assert_eq!(&*failure.class, "conflict");
        assert!(failure.message.contains("x is no longer at version 1"), "{failure}");
    }
}

/// It has ended many transactions in a row while others were committed: it is not the database that
/// is busy.
#[tokio::test(start_paused = true)]
async fn a_conflict_that_only_one_message_meets_is_its_failure_in_the_end() {
    let world = World::concurrent(1);
    let retry = RetryPolicy { max_attempts: 2, ..RetryPolicy::default() };
    let inbox = conflicting(&world, deadlock, &Arc::new(AtomicBool::new(true)));
    let _inbox = inbox.retry(retry).start().await.unwrap();
    let bad = world.send("bad", 1);
    let mut seconds = 0;
    while world.tables.snapshot().dead == 0 {
        assert!(seconds < 300, "it is tried for ever");
        world.send("good", 1);
        tokio::time::sleep(S).await;
        seconds += 1;
    }
    assert_eq!(world.dead().await[0].stored.message.id, bad[0].id);
}

/// All transactions fail, say because a table is locked: that is no message's fault.
#[tokio::test(start_paused = true)]
async fn a_conflict_that_everybody_meets_is_waited_for_and_never_counted() {
    let world = World::concurrent(1);
    let lasts = Arc::new(AtomicBool::new(true));
    let retry = RetryPolicy { max_attempts: 1, ..RetryPolicy::default() };
    let inbox = conflicting(&world, deadlock, &lasts).retry(retry).start().await.unwrap();
    let sent = world.send("bad", 10);
    within(S * 60, || world.feed.unacknowledged() == 0).await;
    assert_eq!((world.stored(), inbox.stats().stored), (10, 10), "it waits where it is in nobody's way");
    tokio::time::sleep(S * 600).await;
    assert_eq!((world.tables.snapshot().dead, inbox.stats().failed, inbox.stats().resets), (0, 0, 0));
    lasts.store(false, Ordering::SeqCst);
    within(S * 60, || world.ledger.len() == 10 && world.stored() == 0).await;
    world.ledger.assert_once_and_in_order(&sent);
    tokio::time::sleep(MS).await;
}

/// A call that is broken off in a pause would leave the message's outcome unknown.
#[tokio::test(start_paused = true)]
async fn long_pauses_between_conflicts_are_not_taken_for_lost_answers() {
    let world = World::concurrent(1);
    let mismatch = || VersionMismatch::check(0, "x", 1).unwrap_err().into();
    let retry = RetryPolicy { max_attempts: 1, ..RetryPolicy::default() };
    let inbox = conflicting(&world, mismatch, &Arc::new(AtomicBool::new(true)));
    let inbox = inbox.mode(Mode::Stored).first_delay(S * 30).max_delay(S * 60).retry(retry);
    let inbox = inbox.start().await.unwrap();
    world.send("bad", 1);
    within(S * 600, || world.tables.snapshot().dead > 0).await;
    let failure = world.dead().await.remove(0).last_failure.unwrap();
    assert_eq!(&*failure.class, "conflict", "{failure}");
    assert!(inbox.stats().conflicts > 0);
}

/// The turn is free for another message meanwhile.
#[tokio::test(start_paused = true)]
async fn whoever_waits_after_a_conflict_holds_up_nobody_for_long() {
    let world = World::concurrent(1);
    let inbox = conflicting(&world, deadlock, &Arc::new(AtomicBool::new(true)));
    let inbox = inbox.concurrency(1).first_delay(S * 30).max_delay(S * 60);
    let _inbox = inbox.start().await.unwrap();
    world.send("bad", 1);
    tokio::time::sleep(MS * 100).await;
    let good = world.send("good", 1);
    let took = within(S * 600, || world.ledger.has(good[0].id)).await;
    assert!(took < S * 10, "the other key waited for {took:?}");
}
