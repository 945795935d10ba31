//! Metrics of an inbox: each shows what happened, from zero on.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use futures_util::FutureExt;
use outbox_contract::backend::{Lag, Loss, LossCause, Undecodable, Unit};
use outbox_contract::{Bytes, Message, RetryPolicy, StoreError, StoreErrorKind, Topic};
use outbox_engine::{HandlerContext, HandlerError, HandlerFailure, Mode, UnknownType};
use outbox_testkit::{StoreCall, StoreFault};

use crate::inbox::support::{S, Store, World, message, within};
use crate::scrape::Values;

/// Asserts values of the consumer's metrics, by the middle of their names.
#[track_caller]
fn are(values: &Values, expected: &[(&str, f64)]) {
    for (name, value) in expected {
        values.are(&[(&format!("{name} consumer=\"inventory\""), *value)]);
    }
}

#[tokio::test(start_paused = true)]
async fn a_repeat_is_received_and_not_handled_again() {
    let values = Values::collect();
    let world = World::new();
    let sent = world.send("a", 3);
    world.feed.send(sent[0].clone());
    let inbox = world.inbox().start().await.unwrap();
    within(S * 10, || world.feed.unacknowledged() == 0 && inbox.stats().duplicates == 1).await;
    are(
        &values,
        &[
            ("outbox_inbox_received_total", 4.0),
            ("outbox_inbox_handled_total", 3.0),
            ("outbox_inbox_duplicates_total", 1.0),
            ("outbox_inbox_failed_total", 0.0),
            ("outbox_inbox_resets_total", 0.0),
        ],
    );
}

#[tokio::test(start_paused = true)]
async fn a_stored_message_is_counted_by_the_inbox_and_by_its_route() {
    let values = Values::collect();
    let world = World::new();
    let sent = world.send("a", 3);
    let _inbox = world.inbox().mode(Mode::Stored).start().await.unwrap();
    within(S * 10, || world.ledger.len() == sent.len() && world.stored() == 0).await;
    are(&values, &[("outbox_inbox_stored_total", 3.0)]);
    values.are(&[("outbox_delivered_total route=\"inbox/inventory\"", 3.0)]);
    // They were handled, and sent nowhere.
    let sent = "messaging_client_sent_messages_total route=\"inbox/inventory\",messaging_destination_name=\"orders\",error_type=\"\"";
    assert_eq!(values.get(sent), None);
}

#[tokio::test(start_paused = true)]
async fn a_message_that_fails_and_one_without_a_handler_are_counted() {
    let values = Values::collect();
    let world = World::new();
    let fails = |_: &Message, _: u32| {
        async { Err(HandlerError::from(HandlerFailure::rejected("test", "bad"))) }.boxed()
    };
    let handler = world.handler(Arc::new(fails));
    let inbox = world.bare().on_message("orders", "order.shipped", handler);
    let mut known = message("a");
    known.event_type = "order.shipped".into();
    world.send("b", 1);
    world.feed.send(known);
    let inbox = inbox.unknown_types(UnknownType::Ignore).start().await.unwrap();
    within(S * 10, || world.feed.unacknowledged() == 0 && inbox.stats().failed == 1).await;
    are(&values, &[("outbox_inbox_failed_total", 1.0), ("outbox_inbox_ignored_total", 1.0)]);
}

#[tokio::test(start_paused = true)]
async fn a_message_for_a_newer_program_is_postponed() {
    let values = Values::collect();
    let world = World::new();
    let handler = world.handler(Arc::new(|_, _| async { Ok(()) }.boxed()));
    let inbox = world.bare().on_message("orders", "order.shipped", handler);
    world.send("a", 1);
    let inbox = inbox.unknown_types(UnknownType::Wait).start().await.unwrap();
    within(S * 60, || inbox.stats().postponed >= 1).await;
    assert!(values.of("outbox_inbox_postponed_total consumer=\"inventory\"") >= 1.0);
    are(&values, &[("outbox_inbox_failed_total", 0.0)]);
}

#[tokio::test(start_paused = true)]
async fn conflicts_are_counted_apart_from_failures() {
    let values = Values::collect();
    let world = World::new();
    let left = AtomicU32::new(20);
    let inbox = world.inbox_that(move |_, _| {
        let conflicts = left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1));
        let deadlock =
            || HandlerError::from(StoreError::new(StoreErrorKind::Conflict, "tested", "a deadlock"));
        async move { if conflicts.is_ok() { Err(deadlock()) } else { Ok(()) } }.boxed()
    });
    world.send("a", 1);
    let _inbox = inbox.start().await.unwrap();
    within(S * 60, || world.feed.unacknowledged() == 0).await;
    assert!(values.of("outbox_inbox_conflicts_total consumer=\"inventory\"") >= 1.0);
    are(&values, &[("outbox_inbox_failed_total", 0.0)]);
}

#[tokio::test(start_paused = true)]
async fn interruptions_by_the_database_are_counted_apart_from_failures() {
    let values = Values::collect();
    let world = World::concurrent(1);
    let lasts = Arc::new(AtomicBool::new(true));
    let is_cut = Arc::clone(&lasts);
    let inbox = world.bare().on_any(async move |_: Message, context: &mut HandlerContext<'_, Store>| {
        if is_cut.load(Ordering::SeqCst) { Err(HandlerError::from(context.tx().terminate())) } else { Ok(()) }
    });
    let retry = RetryPolicy { max_attempts: 1, ..RetryPolicy::default() };
    world.send("a", 1);
    let inbox = inbox.retry(retry).start().await.unwrap();
    within(S * 60, || inbox.stats().interrupted >= 1).await;
    lasts.store(false, Ordering::SeqCst);
    assert!(values.of("outbox_inbox_interrupted_total consumer=\"inventory\"") >= 1.0);
    are(&values, &[("outbox_inbox_failed_total", 0.0)]);
}

#[tokio::test(start_paused = true)]
async fn records_beyond_the_bound_are_counted_as_dropped() {
    let values = Values::collect();
    let world = World::new();
    let inbox = world.inbox().prefetch(1).max_undecodable(2).start().await.unwrap();
    for number in 0..40 {
        let junk = Undecodable::new("no id", Bytes::from_static(b"\xff"), Vec::new());
        world.feed.send_junk("orders".parse().unwrap(), junk.at(format!("orders/0@{number}")));
    }
    within(S * 60, || world.feed.unacknowledged() == 0 && inbox.stats().dropped > 0).await;
    are(&values, &[("outbox_inbox_dropped_total", 38.0)]);
}

#[tokio::test(start_paused = true)]
async fn a_topic_without_messages_is_a_problem_until_it_is_back() {
    let values = Values::collect();
    let world = World::concurrent(1);
    let missing: Topic = "bills".parse().unwrap();
    world.feed.fail_topic(&missing, Some("the topic is not on the broker: create it"));
    let _inbox = world.inbox().topic("bills").start().await.unwrap();
    let problems = "outbox_inbox_problems consumer=\"inventory\",topic=\"bills\"";
    within(S * 10, || values.get(problems) == Some(1.0)).await;
    world.feed.fail_topic(&missing, None);
    within(S * 10, || values.get(problems) == Some(0.0)).await;
}

#[tokio::test(start_paused = true)]
async fn a_commit_that_can_not_be_found_out_is_counted_as_a_reset() {
    let values = Values::collect();
    let world = World::new();
    let _inbox = world.inbox().start().await.unwrap();
    // Before that it asks what the consumer has handled.
    within(S, || !world.feed.subscriptions().is_empty()).await;
    world.store.inject(StoreCall::Commit, StoreFault::After, 1);
    world.store.inject(StoreCall::IsHandled, StoreFault::Before, 3);
    world.send("a", 3);
    within(S * 30, || world.feed.unacknowledged() == 0).await;
    are(&values, &[("outbox_inbox_resets_total", 1.0)]);
}

#[tokio::test(start_paused = true)]
async fn what_waits_at_the_broker_and_what_it_lost_is_measured() {
    let values = Values::collect();
    let world = World::new();
    let inbox = world.inbox().start().await.unwrap();
    let unit = |number| Unit { topic: Topic::new("orders").unwrap(), number };
    let stuck = Lag::new(unit(1), 4).with_stuck(Some("a transaction is open".to_owned()));
    world.feed.lag(vec![Lag::new(unit(0), 3).with_age(Some(S * 9)), stuck]);
    world.feed.lose(Loss::new(unit(0), LossCause::Trimmed, "the log was trimmed").with_messages(3));
    world.feed.misconfigure(Some("maxmemory-policy allkeys-lru"));
    within(S * 10, || inbox.stats().lag == 7 && inbox.stats().losses == 1).await;
    within(S * 90, || values.get("outbox_unsafe_settings transport=\"feed\"") == Some(1.0)).await;
    let of_orders = |name: &str| values.of(&format!("{name} consumer=\"inventory\",topic=\"orders\""));
    let of_unit = |unit: u32| {
        values.of(&format!("outbox_inbox_lag consumer=\"inventory\",topic=\"orders\",unit=\"{unit}\""))
    };
    assert_eq!((of_unit(0), of_unit(1)), (3.0, 4.0));
    assert_eq!((of_orders("outbox_inbox_lag_age_seconds"), of_orders("outbox_inbox_stuck")), (9.0, 1.0));
    let trimmed = "consumer=\"inventory\",topic=\"orders\",cause=\"trimmed\"";
    assert_eq!(values.of(&format!("outbox_inbox_losses_total {trimmed}")), 1.0);
    assert_eq!(values.of(&format!("outbox_inbox_missing_total {trimmed}")), 3.0);
}
