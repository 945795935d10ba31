//! Failing keys: their messages go to the store, and nothing else waits for them.

use std::collections::BTreeMap;
use std::error::Error;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use futures_util::FutureExt;
use outbox_contract::{AdminExt, Exhausted, RetryPolicy};
use outbox_engine::{HandlerFailure, HandlerOptions};
use outbox_testkit::{StoreCall, StoreFault, Warnings};

use crate::inbox::support::{MS, S, World, message, route, within};

/// A handler that fails for one key while it is told to.
fn failing_key(
    world: &World,
    key: &'static str,
    fails: &Arc<AtomicBool>,
) -> outbox_engine::InboxBuilder<crate::inbox::support::Store> {
    let fails = Arc::clone(fails);
    world.inbox_that(move |message, _| {
        let fails = fails.load(Ordering::SeqCst) && message.order_key().as_str() == key;
        async move { if fails { Err(HandlerFailure::failed("tested", "not yet").into()) } else { Ok(()) } }
            .boxed()
    })
}

#[tokio::test(start_paused = true)]
async fn a_failing_key_pins_no_delivery_and_goes_on_in_order_when_it_heals() {
    let world = World::new();
    let fails = Arc::new(AtomicBool::new(true));
    let mut sent = world.send("bad", 5);
    sent.extend(world.send("good", 5));
    let inbox = failing_key(&world, "bad", &fails).start().await.unwrap();
    within(S * 5, || world.feed.unacknowledged() == 0).await;
    assert_eq!((world.ledger.of("good").len(), world.stored()), (5, 5));
    // Later messages go behind them, though the handler would take them now.
    fails.store(false, Ordering::SeqCst);
    sent.extend(world.send("bad", 5));
    within(S * 600, || world.ledger.len() == 15).await;
    world.ledger.assert_once_and_in_order(&sent);
    within(S * 60, || world.stored() == 0 && world.tables.snapshot().failing_keys == 0).await;
    assert!(inbox.stop(S * 30).await);
}

#[tokio::test(start_paused = true)]
async fn what_comes_while_earlier_messages_wait_is_stored_behind_them() {
    let world = World::new();
    let fails = Arc::new(AtomicBool::new(true));
    let mut sent = world.send("bad", 1);
    let inbox = failing_key(&world, "bad", &fails).start().await.unwrap();
    within(S * 5, || world.feed.unacknowledged() == 0).await;
    sent.extend(world.send("bad", 20));
    within(S * 5, || world.feed.unacknowledged() == 0).await;
    assert_eq!((world.stored(), world.ledger.len()), (21, 0));
    assert_eq!(inbox.stats().stored, 21);
    fails.store(false, Ordering::SeqCst);
    within(S * 600, || world.ledger.len() == 21).await;
    world.ledger.assert_once_and_in_order(&sent);
}

#[tokio::test(start_paused = true)]
async fn a_key_that_fails_for_ten_minutes_leaves_prefetch_and_memory_to_the_others() {
    let world = World::new();
    let fails = Arc::new(AtomicBool::new(true));
    let retry = RetryPolicy { max_attempts: 1_000, ..RetryPolicy::default() };
    let inbox = failing_key(&world, "bad", &fails).retry(retry).prefetch(50).start().await.unwrap();
    let mut sent = Vec::new();
    let mut good = 0;
    for minute in 0..10 {
        sent.extend(world.send("bad", 30));
        for key in 0..100 {
            sent.extend(world.send(&format!("good-{key}"), 1));
        }
        good += 100;
        let took = within(S * 50, || world.feed.unacknowledged() == 0).await;
        assert!(took < S * 10, "minute {minute}: the others waited for {took:?}");
        assert_eq!(world.ledger.len(), good);
        assert!(inbox.stats().in_flight <= 50);
        tokio::time::sleep(S * 60).await;
    }
    fails.store(false, Ordering::SeqCst);
    within(S * 900, || world.ledger.len() == good + 300).await;
    world.ledger.assert_once_and_in_order(&sent);
}

#[tokio::test(start_paused = true)]
async fn a_slow_key_holds_up_no_other() {
    let world = World::concurrent(1);
    let sent_slow = world.send("slow", 5);
    let mut sent = sent_slow.clone();
    for key in 0..100 {
        sent.extend(world.send(&format!("fast-{key}"), 5));
    }
    let inbox = world.inbox_that(|message, _| {
        let slow = message.order_key().as_str() == "slow";
        async move {
            if slow {
                tokio::time::sleep(S).await;
            }
            Ok(())
        }
        .boxed()
    });
    let _inbox = inbox.start().await.unwrap();
    let fast = within(S * 60, || world.ledger.len() >= 500).await;
    assert!(fast < S, "the fast keys took {fast:?}");
    within(S * 60, || world.feed.unacknowledged() == 0).await;
    world.ledger.assert_once_and_in_order(&sent);
}

#[tokio::test(start_paused = true)]
async fn a_handler_that_is_too_slow_is_rolled_back_and_never_a_success() {
    let world = World::new();
    let sent = world.send("a", 1);
    let inbox = world.bare().retry(RetryPolicy { max_attempts: 2, ..RetryPolicy::default() });
    let handler = world.handler(Arc::new(|_, _| {
        async {
            tokio::time::sleep(S * 2).await;
            Ok(())
        }
        .boxed()
    }));
    let options = HandlerOptions::default().timeout(S);
    let _inbox = inbox.on_message_with("orders", "order.placed", options, handler).start().await.unwrap();
    within(S * 60, || world.tables.snapshot().dead == 1).await;
    assert_eq!((world.ledger.len(), world.feed.unacknowledged()), (0, 0));
    let dead = world.dead().await;
    assert_eq!(dead[0].stored.message.id, sent[0].id);
    assert_eq!(dead[0].last_failure.as_ref().map(|failure| &*failure.class), Some("timeout"));
}

#[tokio::test(start_paused = true)]
async fn a_handler_that_panics_costs_its_own_key_an_attempt_and_nobody_else_anything() {
    let world = World::new();
    let mut sent = world.send("a", 2);
    sent.extend(world.send("b", 2));
    let first = sent[0].id;
    let inbox = world.inbox_that(move |message, attempt| {
        // Once before its future is made, once within.
        assert!(message.id != first || attempt != 1, "the handler panics, as the test wants");
        let panics = message.id == first && attempt == 2;
        async move {
            assert!(!panics, "the handler panics, as the test wants");
            Ok(())
        }
        .boxed()
    });
    let inbox = inbox.start().await.unwrap();
    within(S * 10, || world.feed.unacknowledged() == 0).await;
    world.ledger.assert_once_and_in_order(&sent);
    assert_eq!((inbox.stats().failed, inbox.stats().resets), (2, 0));
}

/// An error that leaves its cause out, as those of most libraries do.
#[derive(Debug)]
struct Caused<E>(E);

impl<E> fmt::Display for Caused<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("could not send the mail")
    }
}

impl<E: Error + 'static> Error for Caused<E> {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        Some(&self.0)
    }
}

#[tokio::test(start_paused = true)]
async fn a_dead_letter_says_the_cause_of_its_error_or_the_message_of_its_panic() {
    let world = World::new();
    for key in ["error", "failure", "panic"] {
        world.send(key, 1);
    }
    let inbox = world.inbox_that(|message, _| {
        let key = message.order_key();
        async move {
            match key.as_str() {
                "error" => Err(Caused(std::io::Error::other("connection refused")).into()),
                "failure" => Err(Caused(HandlerFailure::rejected("no-mailer", "there is no mailer")).into()),
                _ => panic!("no address"),
            }
        }
        .boxed()
    });
    let retry = RetryPolicy { max_attempts: 2, ..RetryPolicy::default() };
    let (warnings, _guard) = Warnings::capture();
    let _inbox = inbox.tries(1).retry(retry).start().await.unwrap();
    within(S * 60, || world.tables.snapshot().dead == 3).await;
    let warnings = warnings.take();
    let once = |words: &str| warnings.iter().filter(|warning| warning.contains(words)).count() == 1;
    // One of each kind in a minute.
    assert!(once("a handler failed; its message is tried again"), "{warnings:#?}");
    assert!(once("message became a dead letter"), "{warnings:#?}");
    let said = world.dead().await.into_iter().map(|dead| {
        let failure = dead.last_failure.unwrap();
        (dead.stored.message.order_key().as_str().to_owned(), (failure.to_string(), dead.attempts))
    });
    let said: BTreeMap<_, _> = said.collect();
    let expected = [
        ("error", "could not send the mail: connection refused [handler]", 2),
        // A rejection within another error is one too.
        ("failure", "there is no mailer [no-mailer]", 1),
        ("panic", "the handler panicked: no address; its place is on standard error [panic]", 2),
    ];
    let expected = expected.map(|(key, text, attempts)| (key.to_owned(), (text.to_owned(), attempts)));
    assert_eq!(said, BTreeMap::from(expected));
}

#[tokio::test(start_paused = true)]
async fn attempts_are_counted_in_memory_and_then_in_the_store() {
    let world = World::new();
    world.send("a", 1);
    let seen = Arc::new(std::sync::Mutex::new(Vec::new()));
    let attempts = Arc::clone(&seen);
    let inbox = world.inbox_that(move |_, attempt| {
        attempts.lock().unwrap().push(attempt);
        async { Err(HandlerFailure::failed("tested", "never").into()) }.boxed()
    });
    let retry = RetryPolicy { max_attempts: 4, ..RetryPolicy::default() };
    let _inbox = inbox.tries(3).retry(retry).start().await.unwrap();
    within(S * 600, || world.tables.snapshot().dead == 1).await;
    assert_eq!(*seen.lock().unwrap(), [1, 2, 3, 1, 2, 3, 4]);
    assert_eq!(world.dead().await[0].attempts, 4);
}

#[tokio::test(start_paused = true)]
async fn a_rejected_message_is_a_dead_letter_at_once_and_its_key_goes_on() {
    let world = World::new();
    let sent = world.send("a", 3);
    let bad = sent[0].id;
    let inbox = world.inbox_that(move |message, _| {
        let bad = message.id == bad;
        async move {
            if bad { Err(HandlerFailure::rejected("no-such-order", "never").into()) } else { Ok(()) }
        }
        .boxed()
    });
    let _inbox = inbox.start().await.unwrap();
    within(S * 30, || world.ledger.len() == 2 && world.feed.unacknowledged() == 0).await;
    world.ledger.assert_once_and_in_order(&sent[1..]);
    let dead = world.dead().await;
    assert_eq!((dead.len(), &*dead[0].reason, dead[0].attempts), (1, "rejected", 1));
}

#[tokio::test(start_paused = true)]
async fn a_held_key_waits_for_an_operator_and_then_has_no_gap() {
    let world = World::new();
    let fails = Arc::new(AtomicBool::new(true));
    let mut sent = world.send("bad", 3);
    let retry = RetryPolicy { max_attempts: 1, exhausted: Exhausted::Hold, ..RetryPolicy::default() };
    let (warnings, _guard) = Warnings::capture();
    let inbox = failing_key(&world, "bad", &fails).retry(retry).start().await.unwrap();
    within(S * 30, || inbox.observer().backlog().is_some_and(|backlog| backlog.held_keys == 1)).await;
    let warnings = warnings.take();
    assert!(warnings.iter().any(|it| it.contains("key held by the retry policy")), "{warnings:#?}");
    fails.store(false, Ordering::SeqCst);
    sent.extend(world.send("bad", 2));
    within(S * 30, || world.feed.unacknowledged() == 0).await;
    tokio::time::sleep(S * 600).await;
    assert_eq!(world.ledger.len(), 0, "nobody has released it");
    world.tables.release(&route(), &message("bad").key_id()).await.unwrap();
    within(S * 60, || world.ledger.len() == 5).await;
    world.ledger.assert_once_and_in_order(&sent);
}

#[tokio::test(start_paused = true)]
async fn a_store_that_is_away_makes_no_dead_letters_and_loses_nothing() {
    let world = World::new();
    let mut sent = world.send("a", 3);
    let inbox = world.inbox().start().await.unwrap();
    within(S * 5, || world.feed.unacknowledged() == 0).await;
    world.store.inject(StoreCall::Begin, StoreFault::Before, usize::MAX);
    sent.extend(world.send("a", 3));
    tokio::time::sleep(S * 300).await;
    assert_eq!(inbox.health().status, outbox_engine::Status::Unhealthy);
    world.store.calm();
    within(S * 30, || world.feed.unacknowledged() == 0).await;
    world.ledger.assert_once_and_in_order(&sent);
    assert_eq!((world.tables.snapshot().dead, inbox.stats().failed), (0, 0));
    within(S * 120, || inbox.health().status == outbox_engine::Status::Healthy).await;
    tokio::time::sleep(MS).await;
}

/// It is rejected as it comes, and again from the store, where it becomes a dead letter.
#[tokio::test(start_paused = true)]
async fn a_rejected_message_counts_as_failed_once() {
    let world = World::new();
    for key in 0..9 {
        world.send(&format!("key-{key}"), 1);
    }
    let inbox = world
        .inbox_that(|_, _| async { Err(HandlerFailure::rejected("tested", "never").into()) }.boxed())
        .start()
        .await
        .unwrap();
    within(S * 60, || world.tables.snapshot().dead == 9).await;
    assert_eq!((inbox.stats().failed, inbox.stats().stored), (9, 9));
}
