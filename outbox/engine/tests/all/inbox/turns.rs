//! Turns: how many transactions an inbox has, whose they are, and what becomes of whoever gets
//! none.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use futures_util::FutureExt;
use outbox_contract::RetryPolicy;
use outbox_engine::{HandlerFailure, Mode, Status};
use outbox_testkit::{StoreCall, StoreFault};
use tokio::runtime::Handle;
use tokio::time::Instant;

use crate::inbox::support::{MS, S, World, within};

/// However long a handler has the right to write, who waits for it is not a store that is away.
#[tokio::test(start_paused = true)]
async fn with_one_writer_at_a_time_the_others_queue_for_it() {
    for (mode, handler) in [(Mode::Direct, MS * 300), (Mode::Direct, S * 5), (Mode::Stored, S * 5)] {
        let world = World::new();
        let sent: Vec<_> = (0..40).flat_map(|key| world.send(&format!("key-{key}"), 1)).collect();
        let inbox = world.inbox_that(move |_, _| {
            async move {
                tokio::time::sleep(handler).await;
                Ok(())
            }
            .boxed()
        });
        let inbox = inbox.mode(mode).start().await.unwrap();
        let took = within(S * 600, || world.ledger.len() == 40).await;
        world.ledger.assert_once_and_in_order(&sent);
        assert!(
            took < handler * 41 + S * 10,
            "{mode:?}: one after the other, without a pause; it took {took:?}"
        );
        assert_eq!((inbox.stats().resets, inbox.stats().failed), (0, 0), "{mode:?} {handler:?}");
        assert!(inbox.stop(S * 60).await);
    }
}

/// Messages from the broker and from the store together have as many transactions as there may be.
#[tokio::test(start_paused = true)]
async fn there_are_never_more_transactions_than_there_may_be() {
    for concurrency in [1, 2, 8] {
        let world = World::concurrent(1);
        let (now, most, failed) =
            (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let (running, highest, failing) = (Arc::clone(&now), Arc::clone(&most), Arc::clone(&failed));
        let inbox = world.inbox_that(move |message, _| {
            let (running, failing) = (Arc::clone(&running), Arc::clone(&failing));
            let fails = message.order_key().as_str().starts_with("bad");
            highest.fetch_max(running.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
            async move {
                tokio::time::sleep(MS * 100).await;
                running.fetch_sub(1, Ordering::SeqCst);
                failing.fetch_add(usize::from(fails), Ordering::SeqCst);
                if fails { Err(HandlerFailure::failed("tested", "never").into()) } else { Ok(()) }
            }
            .boxed()
        });
        let retry = RetryPolicy {
            max_attempts: 10_000,
            first_delay: MS * 10,
            max_delay: MS * 50,
            ..RetryPolicy::default()
        };
        let inbox =
            inbox.concurrency(concurrency).tries(1).retry(retry).due_poll(MS * 50).start().await.unwrap();
        (0..20).for_each(|key| _ = world.send(&format!("bad-{key}"), 1));
        within(S * 60, || world.stored() == 20).await;
        (0..400).for_each(|key| _ = world.send(&format!("good-{key}"), 1));
        within(S * 600, || world.ledger.len() == 400).await;
        let failed = failed.load(Ordering::SeqCst);
        assert!(failed > 40, "of {concurrency}, what waits in the store had its turns meanwhile: {failed}");
        assert_eq!(most.load(Ordering::SeqCst), concurrency, "handlers at once");
        assert_eq!(inbox.stats().resets, 0);
    }
}

/// A pool that others have emptied, or a database that does not answer: nothing was begun, so
/// nothing is in doubt.
#[tokio::test(start_paused = true)]
async fn a_connection_that_does_not_come_is_waited_for_and_said() {
    for mode in [Mode::Direct, Mode::Stored] {
        let world = World::concurrent(1);
        let inbox = world.inbox_that(|message, _| {
            let slow = message.order_key().as_str() == "slow";
            async move {
                if slow {
                    tokio::time::sleep(S * 9).await;
                }
                Ok(())
            }
            .boxed()
        });
        let inbox = inbox.mode(mode).start().await.unwrap();
        let begun = |world: &World| world.store.calls(StoreCall::Begin);
        let mut sent = world.send("slow", 1);
        within(S * 10, || begun(&world) == if mode == Mode::Direct { 1 } else { 2 }).await;
        world.store.inject(StoreCall::Begin, StoreFault::HangBefore, usize::MAX);
        sent.extend((0..50).flat_map(|key| world.send(&format!("key-{key}"), 2)));
        within(S * 10, || world.ledger.len() == 1).await;
        tokio::time::sleep(S * 300).await;
        let health = inbox.health();
        assert_eq!(health.status, Status::Unhealthy, "{mode:?}: {health:?}");
        let said = |words: &str| health.reasons.iter().any(|reason| reason.text.contains(words));
        assert!(said("could not begin a transaction") && said("no answer within"), "{mode:?}: {health:?}");
        world.store.calm();
        within(S * 30, || world.feed.unacknowledged() == 0 && world.ledger.len() == 101).await;
        world.ledger.assert_once_and_in_order(&sent);
        let stats = inbox.stats();
        assert_eq!((stats.resets, stats.failed, stats.duplicates), (0, 0, 0), "{mode:?}: {stats:?}");
        within(S * 70, || inbox.health().status == Status::Healthy).await;
    }
}

/// A task that waits for a connection does not keep an inbox from stopping.
#[tokio::test(start_paused = true)]
async fn an_inbox_that_waits_for_connections_stops_in_order() {
    let world = World::concurrent(1);
    world.store.inject(StoreCall::Begin, StoreFault::HangBefore, usize::MAX);
    let inbox = world.inbox().start().await.unwrap();
    (0..50).for_each(|key| _ = world.send(&format!("key-{key}"), 2));
    tokio::time::sleep(S * 60).await;
    assert!(inbox.stop(S * 30).await);
    assert_eq!((world.ledger.len(), world.feed.unacknowledged()), (0, 100));
}

/// Their handlers take all of their time, again and again, in memory and then from the store.
#[tokio::test(start_paused = true)]
async fn keys_whose_handler_times_out_leave_turns_to_the_others() {
    for bad in [8, 30, 100] {
        let world = World::concurrent(1);
        let (begun, waits) = (Arc::new(Mutex::new(BTreeMap::new())), Arc::new(Mutex::new(Vec::new())));
        let (calls, seen, start) = (Arc::clone(&begun), Arc::clone(&waits), Instant::now());
        let inbox = world.inbox_that(move |message, _| {
            let key = message.order_key().as_str().to_owned();
            let hangs = key.starts_with("bad");
            if hangs {
                *calls.lock().unwrap().entry(key).or_insert(0) += 1;
            } else {
                // Its key says when it was sent.
                let sent = start + MS * key.parse().unwrap();
                seen.lock().unwrap().push(sent.elapsed());
            }
            async move { if hangs { std::future::pending().await } else { Ok(()) } }.boxed()
        });
        let inbox = inbox.start().await.unwrap();
        (0..bad).for_each(|key| _ = world.send(&format!("bad-{key}"), 1));
        // They can't be told from others before they run.
        within(S * 300, || begun.lock().unwrap().len() == bad).await;
        tokio::time::sleep(S * 11).await;
        for _ in 0..3_000 {
            world.send(&start.elapsed().as_millis().to_string(), 1);
            tokio::time::sleep(MS * 100).await;
        }
        within(S, || waits.lock().unwrap().len() == 3_000).await;
        let slowest = waits.lock().unwrap().iter().max().copied().unwrap();
        assert!(slowest < S, "{bad} bad keys: the slowest other message waited for {slowest:?}");
        let calls: usize = begun.lock().unwrap().values().sum();
        assert!(calls > 60, "{bad} bad keys had their turns too, {calls} of them");
        assert_eq!(inbox.stats().resets, 0);
    }
}

/// As those of keys that fail: one that is tried again sooner than another replaces its timer.
#[tokio::test(start_paused = true)]
async fn timers_do_not_multiply_with_failing_keys() {
    let world = World::concurrent(1);
    let inbox =
        world.inbox_that(|_, _| async { Err(HandlerFailure::failed("tested", "never").into()) }.boxed());
    let _inbox = inbox.tries(10).start().await.unwrap();
    let tasks = || Handle::current().metrics().num_alive_tasks();
    let mut after = Vec::new();
    for minute in 0..2 {
        for key in 0..300 {
            world.send(&format!("key-{minute}-{key}"), 1);
            tokio::time::sleep(MS * 200).await;
        }
        after.push(tasks());
    }
    assert!(after[1] <= after[0] + 20, "after each minute there were so many tasks: {after:?}");
}
