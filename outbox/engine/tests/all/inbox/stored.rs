//! Stored mode: received in batches, acknowledged at once, handled from the store.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use futures_util::FutureExt;
use outbox_engine::{HandlerFailure, HandlerOptions, Mode, VersionMismatch};
use outbox_testkit::{StoreCall, StoreFault};

use crate::inbox::support::{MS, S, Whim, World, message, within};

#[tokio::test(start_paused = true)]
async fn deliveries_are_acknowledged_at_once_and_handled_in_order() {
    let world = World::concurrent(1);
    let mut sent = Vec::new();
    for key in 0..20 {
        sent.extend(world.send(&format!("key-{key}"), 10));
    }
    world.feed.send(sent[3].clone());
    let inbox = world.inbox_that(|_, _| {
        async {
            tokio::time::sleep(MS * 50).await;
            Ok(())
        }
        .boxed()
    });
    let inbox = inbox.mode(Mode::Stored).start().await.unwrap();
    let took = within(S * 10, || world.feed.unacknowledged() == 0).await;
    assert!(took < MS * 100 && world.ledger.len() < 100, "it does not wait for handlers");
    within(S * 60, || world.stored() == 0).await;
    world.ledger.assert_once_and_in_order(&sent);
    assert_eq!((inbox.stats().handled, inbox.stats().stored, inbox.stats().duplicates), (200, 201, 1));
    assert!(inbox.stop(S * 20).await);
}

#[tokio::test(start_paused = true)]
async fn receiving_and_handling_scale_apart() {
    let world = World::concurrent(1);
    let mut sent = world.send("a", 20);
    let receiver = world.bare().mode(Mode::Receive).start().await.unwrap();
    within(S * 10, || world.feed.unacknowledged() == 0).await;
    assert_eq!((world.stored(), world.ledger.len()), (20, 0));
    let (first, second) = (world.inbox(), world.inbox());
    let first = first.mode(Mode::Handle).start().await.unwrap();
    let _second = second.mode(Mode::Handle).start().await.unwrap();
    sent.extend(world.send("a", 20));
    within(S * 60, || world.ledger.len() == 40).await;
    assert!(first.stop(S * 20).await);
    assert!(receiver.stop(S * 20).await);
    world.ledger.assert_once_and_in_order(&sent);
}

#[tokio::test(start_paused = true)]
async fn what_was_not_surely_stored_is_stored_again_and_handled_once() {
    for fault in [StoreFault::Before, StoreFault::After, StoreFault::HangBefore, StoreFault::HangAfter] {
        for call in [StoreCall::Begin, StoreCall::Append, StoreCall::Commit] {
            let world = World::new();
            let sent = world.send("a", 10);
            world.store.inject(call, fault, 2);
            let _inbox = world.inbox().mode(Mode::Stored).start().await.unwrap();
            within(S * 120, || world.feed.unacknowledged() == 0 && world.stored() == 0).await;
            world.ledger.assert_once_and_in_order(&sent);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn batches_and_failing_keys_work_from_the_store_too() {
    let world = World::concurrent(1);
    let mut sent = Vec::new();
    for _ in 0..10 {
        for key in ["a", "bad", "b", "c"] {
            sent.extend(world.send(key, 1));
        }
    }
    let tries = Arc::new(std::sync::Mutex::new(0));
    let inbox = world.inbox_that(move |message, attempt| {
        let fails = message.order_key().as_str() == "bad" && attempt < 3;
        *tries.lock().unwrap() += 1;
        async move { if fails { Err(HandlerFailure::failed("tested", "not yet").into()) } else { Ok(()) } }
            .boxed()
    });
    let _inbox = inbox.mode(Mode::Stored).batch(10).start().await.unwrap();
    within(S * 900, || world.stored() == 0 && world.ledger.len() == 40).await;
    world.ledger.assert_once_and_in_order(&sent);
}

/// Number of calls of a handler that have begun, and of those that ran to their end.
#[derive(Clone, Default)]
struct Calls(Arc<[AtomicUsize; 2]>);

impl Calls {
    /// A handler that takes three seconds.
    fn slow(&self) -> Whim {
        let calls = self.clone();
        Arc::new(move |_, _| {
            let calls = calls.clone();
            async move {
                calls.0[0].fetch_add(1, Ordering::SeqCst);
                tokio::time::sleep(S * 3).await;
                calls.0[1].fetch_add(1, Ordering::SeqCst);
                Ok(())
            }
            .boxed()
        })
    }

    fn counts(&self) -> (usize, usize) {
        (self.0[0].load(Ordering::SeqCst), self.0[1].load(Ordering::SeqCst))
    }
}

#[tokio::test(start_paused = true)]
async fn stored_messages_that_wait_for_a_handler_hold_up_no_other_and_are_not_at_fault() {
    for batch in [1, 8] {
        let world = World::concurrent(1);
        let (calls, free) = (Calls::default(), world.handler(Arc::new(|_, _| async { Ok(()) }.boxed())));
        let mut sent: Vec<_> = (0..30).flat_map(|key| world.send(&format!("key-{key}"), 1)).collect();
        let mut read = message("free");
        read.event_type = "order.read".into();
        world.feed.send(read.clone());
        sent.push(read.clone());
        let one = HandlerOptions::default().concurrency(1);
        let inbox = world.bare().on_message_with("orders", "order.placed", one, world.handler(calls.slow()));
        let inbox = inbox.on_message("orders", "order.read", free);
        let inbox = inbox.mode(Mode::Stored).batch(batch).start().await.unwrap();
        within(S * 30, || world.feed.unacknowledged() == 0).await;
        let took = within(S * 300, || world.ledger.has(read.id)).await;
        assert!(
            took < S * if batch == 1 { 5 } else { 60 },
            "batch {batch}: the other one waited for {took:?}"
        );
        within(S * 600, || {
            assert_eq!(world.tables.snapshot().failing_keys, 0, "nothing has failed");
            world.stored() == 0
        })
        .await;
        world.ledger.assert_once_and_in_order(&sent);
        let (begun, ended) = calls.counts();
        assert_eq!(begun, ended, "batch {batch}: each call runs to its end");
        assert!(begun < 45, "batch {batch}: {begun} calls for 30 messages");
        assert_eq!(inbox.stats().failed, 0);
        assert!(inbox.stop(S * 60).await);
    }
}

/// Begun again at once, the second call would be cut off in the middle.
#[tokio::test(start_paused = true)]
async fn a_slow_call_that_ends_in_a_conflict_is_begun_again_where_there_is_time() {
    let world = World::concurrent(1);
    let (begun, ended) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let (beginning, ending) = (Arc::clone(&begun), Arc::clone(&ended));
    let inbox = world.inbox_that(move |message, _| {
        let (ending, slow) = (Arc::clone(&ending), message.order_key().as_str() == "slow");
        let conflict = slow && beginning.fetch_add(1, Ordering::SeqCst) < 4;
        async move {
            if slow {
                tokio::time::sleep(S * 8).await;
                ending.fetch_add(1, Ordering::SeqCst);
            }
            if conflict { Err(VersionMismatch::check(0, "x", 1).unwrap_err().into()) } else { Ok(()) }
        }
        .boxed()
    });
    let inbox = inbox.mode(Mode::Stored).start().await.unwrap();
    let mut sent = world.send("slow", 1);
    while !world.ledger.has(sent[0].id) {
        assert_eq!(world.tables.snapshot().failing_keys, 0, "nothing has failed");
        sent.extend(world.send("fast", 1));
        tokio::time::sleep(S).await;
    }
    within(S * 10, || world.ledger.len() == sent.len()).await;
    world.ledger.assert_once_and_in_order(&sent);
    assert_eq!((begun.load(Ordering::SeqCst), ended.load(Ordering::SeqCst)), (5, 5), "each runs to its end");
    assert_eq!(inbox.stats().failed, 0);
}

#[tokio::test(start_paused = true)]
async fn a_batch_of_slow_calls_is_made_smaller_until_it_is_done_in_time() {
    let world = World::concurrent(1);
    let calls = Calls::default();
    let sent: Vec<_> = (0..40).flat_map(|key| world.send(&format!("key-{key}"), 1)).collect();
    let inbox = world.bare().on_any(world.handler(calls.slow()));
    let inbox = inbox.mode(Mode::Stored).concurrency(1).batch(40).start().await.unwrap();
    within(S * 600, || {
        assert_eq!(world.tables.snapshot().failing_keys, 0, "nothing has failed");
        world.ledger.len() == 40
    })
    .await;
    world.ledger.assert_once_and_in_order(&sent);
    let (begun, ended) = calls.counts();
    assert_eq!(begun, ended, "each call runs to its end");
    assert!(begun < 80, "{begun} calls for 40 messages");
    assert_eq!((inbox.stats().failed, inbox.stats().conflicts), (0, 0));
}

/// As many as can be handled at once, but for one.
#[tokio::test(start_paused = true)]
async fn slow_keys_with_much_to_do_stop_no_other() {
    for slow in [1, 7] {
        let world = World::concurrent(1);
        let inbox = world.inbox_that(|message, _| {
            let is_slow = message.order_key().as_str() != "quick";
            async move {
                if is_slow {
                    tokio::time::sleep(S).await;
                }
                Ok(())
            }
            .boxed()
        });
        let _inbox = inbox.mode(Mode::Stored).start().await.unwrap();
        for key in 0..slow {
            world.send(&format!("slow-{key}"), 300);
        }
        within(S * 30, || world.feed.unacknowledged() == 0).await;
        let quick = world.send("quick", 1);
        let took = within(S * 60, || world.ledger.has(quick[0].id)).await;
        assert!(took < S * 10, "{slow} slow keys: the other one waited for {took:?}");
    }
}
