//! Direct mode: begin, deduplicate, handle, append, commit, acknowledge.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use futures_util::FutureExt;
use outbox_engine::HandlerFailure;
use outbox_testkit::{StoreCall, StoreFault};

use crate::inbox::support::{MS, S, World, message, within};

#[tokio::test(start_paused = true)]
async fn every_message_is_handled_and_acknowledged() {
    let world = World::new();
    let mut sent = Vec::new();
    for key in ["a", "b", "c"] {
        sent.extend(world.send(key, 50));
    }
    let inbox = world.inbox().start().await.unwrap();
    within(S * 10, || world.feed.unacknowledged() == 0).await;
    world.ledger.assert_once_and_in_order(&sent);
    assert_eq!((inbox.stats().handled, inbox.stats().resets), (150, 0));
    assert!(inbox.stop(S * 10).await);
}

#[tokio::test(start_paused = true)]
async fn a_repeat_has_no_second_effect_wherever_it_comes() {
    let world = World::new();
    let sent = world.send("a", 3);
    for stale in [0, 1, 0, 2] {
        world.feed.send(sent[stale].clone());
    }
    let inbox = world.inbox().start().await.unwrap();
    within(S * 10, || world.feed.unacknowledged() == 0).await;
    world.ledger.assert_once_and_in_order(&sent);
    assert_eq!(inbox.stats().duplicates, 4);
}

#[tokio::test(start_paused = true)]
async fn nothing_is_acknowledged_before_its_effect_is_committed_or_it_is_stored() {
    let world = World::new();
    let early = Arc::new(Mutex::new(Vec::new()));
    let (ledger, tables, seen) = (world.ledger.clone(), world.tables.clone(), Arc::clone(&early));
    world.feed.watch(move |message| {
        let snapshot = tables.snapshot();
        let waits = snapshot.hot.iter().chain(&snapshot.parked);
        let stored = waits.map(|(_, stored)| stored.message.id);
        if !ledger.has(message.id) && !stored.into_iter().any(|id| id == message.id) {
            seen.lock().unwrap().push(message.id);
        }
    });
    let poison = world.send("poison", 2);
    world.send("a", 20);
    let failing = poison[0].id;
    let inbox = world.inbox_that(move |message, _| {
        let fails = message.id == failing;
        Box::pin(async move {
            tokio::time::sleep(MS * 5).await;
            if fails { Err(HandlerFailure::failed("tested", "not yet").into()) } else { Ok(()) }
        })
    });
    let _inbox = inbox.start().await.unwrap();
    within(S * 30, || world.feed.unacknowledged() == 0).await;
    assert_eq!(*early.lock().unwrap(), []);
}

#[tokio::test(start_paused = true)]
async fn a_commit_whose_result_is_unknown_is_found_out() {
    for (fault, name) in [(StoreFault::After, "it was"), (StoreFault::Before, "it was not")] {
        for times in 1..4 {
            let world = World::new();
            let sent = world.send("a", 3);
            world.store.inject(StoreCall::Commit, fault, times);
            let inbox = world.inbox().start().await.unwrap();
            within(S * 30, || world.feed.unacknowledged() == 0).await;
            world.ledger.assert_once_and_in_order(&sent);
            assert_eq!(inbox.stats().failed, 0, "{name} committed: nothing is counted");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn when_it_can_not_be_found_out_everything_is_delivered_again() {
    for fault in [StoreFault::Before, StoreFault::After] {
        let world = World::new();
        let inbox = world.inbox().start().await.unwrap();
        // Before that it asks what the consumer has handled.
        within(S, || !world.feed.subscriptions().is_empty()).await;
        world.store.inject(StoreCall::Commit, fault, 1);
        world.store.inject(StoreCall::IsHandled, StoreFault::Before, 3);
        let sent = world.send("a", 3);
        within(S * 30, || world.feed.unacknowledged() == 0).await;
        world.ledger.assert_once_and_in_order(&sent);
        // The answer "no" needs no question.
        assert!(inbox.stats().resets <= 1);
        assert!(fault == StoreFault::Before || inbox.stats().resets == 1);
    }
}

#[tokio::test(start_paused = true)]
async fn a_store_that_hangs_in_any_call_holds_nothing_up_for_good() {
    for call in [StoreCall::Begin, StoreCall::Deduplicate, StoreCall::Commit, StoreCall::Rollback] {
        for fault in [StoreFault::HangBefore, StoreFault::HangAfter] {
            let world = World::new();
            let mut sent = world.send("a", 3);
            sent.push(message("b"));
            world.feed.send(sent[3].clone());
            world.store.inject(call, fault, 1);
            let inbox = world.inbox().start().await.unwrap();
            within(S * 60, || world.feed.unacknowledged() == 0).await;
            world.ledger.assert_once_and_in_order(&sent);
            drop(inbox);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_broker_that_goes_away_and_comes_back_delivers_on() {
    let world = World::new();
    let mut sent = world.send("a", 3);
    let inbox = world.inbox().start().await.unwrap();
    within(S, || world.feed.unacknowledged() == 0).await;
    world.feed.away(true);
    tokio::time::sleep(S * 60).await;
    sent.extend(world.send("a", 3));
    world.feed.away(false);
    within(S * 30, || world.feed.unacknowledged() == 0).await;
    world.ledger.assert_once_and_in_order(&sent);
    assert!(inbox.stop(S * 10).await);
}

#[tokio::test(start_paused = true)]
async fn as_many_transactions_are_open_at_once_as_there_may_be_and_no_more() {
    let world = World::concurrent(1);
    let (running, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let max_running = Arc::clone(&most);
    let inbox = world.inbox_that(move |_, _| {
        let (running, most) = (Arc::clone(&running), Arc::clone(&max_running));
        async move {
            most.fetch_max(running.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
            tokio::time::sleep(MS * 10).await;
            running.fetch_sub(1, Ordering::SeqCst);
            Ok(())
        }
        .boxed()
    });
    let sent: Vec<_> = (0..40).flat_map(|key| world.send(&format!("key-{key}"), 2)).collect();
    let _inbox = inbox.concurrency(3).start().await.unwrap();
    within(S * 60, || world.feed.unacknowledged() == 0).await;
    world.ledger.assert_once_and_in_order(&sent);
    assert_eq!(most.load(Ordering::SeqCst), 3);
}

#[tokio::test(start_paused = true)]
async fn acknowledgements_are_gathered_and_a_stop_forgets_none() {
    let world = World::concurrent(1);
    world.feed.delay_acknowledgements(S * 10);
    let sent: Vec<_> = (0..20).flat_map(|key| world.send(&format!("key-{key}"), 5)).collect();
    let inbox = world.inbox().start().await.unwrap();
    let took = within(S * 60, || world.ledger.len() == sent.len()).await;
    assert!(took < S, "handling waits for no acknowledgement, and took {took:?}");
    assert_eq!((world.feed.unacknowledged(), world.feed.acknowledgements()), (100, 0));
    within(S * 60, || world.feed.unacknowledged() == 0).await;
    assert_eq!(world.feed.acknowledgements(), 1);
    let more = world.send("key-1", 1);
    within(S, || world.ledger.has(more[0].id)).await;
    assert!(inbox.stop(S * 20).await);
    assert_eq!((world.feed.unacknowledged(), world.feed.acknowledgements()), (0, 2));
}

#[tokio::test(start_paused = true)]
async fn a_small_prefetch_waits_for_no_acknowledgement() {
    for prefetch in [1, 3, 8] {
        let world = World::concurrent(1);
        world.feed.delay_acknowledgements(S * 3_600);
        let sent: Vec<_> = (0..10).flat_map(|key| world.send(&format!("key-{key}"), 10)).collect();
        let _inbox = world.inbox().prefetch(prefetch).start().await.unwrap();
        within(S * 60, || world.ledger.len() == sent.len()).await;
        world.ledger.assert_once_and_in_order(&sent);
    }
}
