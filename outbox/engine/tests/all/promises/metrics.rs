//! Metrics of a relay: each shows what happened, from zero on.

use outbox_contract::{AdminExt, Exhausted, Outgoing, RetryPolicy, Route, Transactional};
use outbox_testkit::{Fault, StoreCall, StoreFault};

use crate::promises::support::{S, World, key_id, message, of_topic, route, within};
use crate::scrape::Values;

/// A policy that holds after two attempts.
fn hold() -> RetryPolicy {
    RetryPolicy { max_attempts: 2, exhausted: Exhausted::Hold, ..RetryPolicy::default() }
}

#[tokio::test(start_paused = true)]
async fn deliveries_are_counted_by_topic_and_an_empty_route_is_at_zero() {
    let values = Values::collect();
    let world = World::new();
    let _relay = world.rig().relay().start().await.unwrap();
    world.append([message("a"), message("b"), of_topic("bills", "a")]).await;
    world.drained(S * 10).await;
    tokio::time::sleep(S * 30).await;
    values.are(&[
        ("outbox_delivered_total route=\"default\"", 3.0),
        ("outbox_takeovers_total route=\"default\"", 256.0),
        ("outbox_buckets route=\"default\"", 256.0),
        ("outbox_pending route=\"default\"", 0.0),
        ("outbox_oldest_age_seconds route=\"default\"", 0.0),
        ("outbox_in_flight route=\"default\"", 0.0),
        ("outbox_in_flight_bytes route=\"default\"", 0.0),
        ("outbox_breaker_open route=\"default\"", 0.0),
        ("outbox_unmeasured_seconds route=\"default\"", 0.0),
        // Counters of events that have not happened are exported too: an alert sees the first one
        // as an increase.
        ("outbox_dead_lettered_total route=\"default\"", 0.0),
        ("outbox_below_cursor_total route=\"default\"", 0.0),
    ]);
    assert!(values.of("outbox_latency_seconds_count route=\"default\"") >= 1.0);
    let sent = |topic: &str| {
        format!(
            "messaging_client_sent_messages_total route=\"default\",messaging_destination_name=\"{topic}\",error_type=\"\""
        )
    };
    values.are(&[(&sent("orders"), 2.0), (&sent("bills"), 1.0)]);
}

/// The wall clock of the relay's machine, which is decades behind here, says nothing about it.
#[tokio::test(start_paused = true)]
async fn the_latency_is_measured_by_the_clock_of_the_database() {
    let values = Values::collect();
    let world = World::new();
    world.append([message("a")]).await;
    tokio::time::sleep(S * 100).await;
    let _relay = world.rig().relay().start().await.unwrap();
    world.drained(S * 10).await;
    let latency = values.of("outbox_latency_seconds_sum route=\"default\"");
    assert!((100.0..110.0).contains(&latency), "{latency}");
}

#[tokio::test(start_paused = true)]
async fn what_waits_for_the_broker_is_in_flight_and_grows_old() {
    let values = Values::collect();
    let world = World::new();
    let rig = world.rig();
    let ids = world.append([message("a"), message("b")]).await;
    rig.inject(&ids[..1], Fault::Hang);
    let _relay = rig.relay().observe_every(S).start().await.unwrap();
    within(S * 10, || {
        values.get("outbox_in_flight route=\"default\"") > Some(0.0)
            && values.of("outbox_in_flight_bytes route=\"default\"") > 0.0
    })
    .await;
    rig.transport.go_down();
    within(S * 60, || values.of("outbox_breaker_open route=\"default\"") > 0.0).await;
    within(S * 60, || values.of("outbox_oldest_age_seconds route=\"default\"") > 10.0).await;
    assert!(values.of("outbox_pending route=\"default\"") >= 1.0);
}

#[tokio::test(start_paused = true)]
async fn the_age_of_each_topic_is_measured_until_none_of_its_messages_waits() {
    let values = Values::collect();
    let world = World::new();
    let rig = world.rig();
    let ids = world.append([message("a"), of_topic("bills", "a")]).await;
    rig.inject(&ids[..1], Fault::Failed);
    let _relay = rig.relay().retry(hold()).start().await.unwrap();
    let orders = "outbox_topic_oldest_age_seconds route=\"default\",topic=\"orders\"";
    tokio::time::sleep(S * 70).await;
    assert!(values.of(orders) > 50.0);
    assert_eq!(values.get(&orders.replace("orders", "bills")), None, "it was delivered at once");
    rig.transport.calm();
    world.store.release(&route(), &key_id("a")).await.unwrap();
    world.drained(S * 10).await;
    tokio::time::sleep(S * 70).await;
    values.are(&[(orders, 0.0)]);
}

/// The query is made once a minute, and not while nothing waits.
#[tokio::test(start_paused = true)]
async fn the_ages_of_topics_cost_a_query_a_minute_while_messages_wait() {
    let world = World::new();
    let rig = world.rig();
    let _relay = rig.relay().retry(hold()).start().await.unwrap();
    tokio::time::sleep(S * 600).await;
    assert_eq!(rig.store.calls(StoreCall::Topics), 0);
    let failing = message("a");
    rig.inject(&[failing.id], Fault::Failed);
    world.append([failing]).await;
    tokio::time::sleep(S * 600).await;
    let queries = rig.store.calls(StoreCall::Topics);
    assert!((9..=10).contains(&queries), "{queries}");
}

#[tokio::test(start_paused = true)]
async fn a_failing_key_is_counted_until_an_operator_decides() {
    let values = Values::collect();
    let world = World::new();
    let rig = world.rig();
    let ids = world.append([message("a"), message("a"), message("a")]).await;
    rig.inject(&ids[..1], Fault::Failed);
    let _relay = rig.relay().observe_every(S / 10).retry(hold()).start().await.unwrap();
    within(S * 10, || values.get("outbox_retrying_keys route=\"default\"") > Some(0.0)).await;
    within(S * 60, || values.of("outbox_held_keys route=\"default\"") > 0.0).await;
    values.are(&[
        ("outbox_failed_total route=\"default\"", 2.0),
        ("outbox_parked_total route=\"default\"", 3.0),
        ("outbox_parked route=\"default\"", 3.0),
        ("outbox_retrying_keys route=\"default\"", 0.0),
        ("outbox_held_keys route=\"default\"", 1.0),
        (
            "messaging_client_sent_messages_total route=\"default\",messaging_destination_name=\"orders\",error_type=\"chaos\"",
            2.0,
        ),
    ]);
}

#[tokio::test(start_paused = true)]
async fn a_dead_letter_is_counted_once_and_stays_in_the_store() {
    let values = Values::collect();
    let world = World::new();
    let rig = world.rig();
    let ids = world.append([message("a"), message("a")]).await;
    rig.inject(&ids[..1], Fault::Rejected);
    let _relay = rig.relay().observe_every(S).start().await.unwrap();
    world.drained(S * 10).await;
    tokio::time::sleep(S * 2).await;
    values.are(&[
        ("outbox_dead_lettered_total route=\"default\"", 1.0),
        ("outbox_dead_letters route=\"default\"", 1.0),
        ("outbox_delivered_total route=\"default\"", 1.0),
    ]);
}

#[tokio::test(start_paused = true)]
async fn a_message_that_the_policy_discards_is_counted_and_is_no_dead_letter() {
    let values = Values::collect();
    let world = World::new();
    let rig = world.rig();
    let ids = world.append([message("a"), message("a")]).await;
    rig.inject(&ids[..1], Fault::Rejected);
    let discard = RetryPolicy { exhausted: Exhausted::Discard, ..RetryPolicy::default() };
    let _relay = rig.relay().retry(discard).start().await.unwrap();
    world.drained(S * 10).await;
    values.are(&[
        ("outbox_discarded_total route=\"default\"", 1.0),
        ("outbox_dead_lettered_total route=\"default\"", 0.0),
        ("outbox_delivered_total route=\"default\"", 1.0),
    ]);
}

#[tokio::test(start_paused = true)]
async fn unknown_outcomes_and_restarts_of_publishers_are_counted() {
    let values = Values::collect();
    let world = World::new();
    let rig = world.rig();
    let _relay = rig.relay().start().await.unwrap();
    let ids: Vec<_> = (0..2).map(|_| message("a")).collect();
    rig.transport.inject_times(ids[0].id, Fault::UnknownWithoutEffect, 1);
    rig.transport.inject_times(ids[1].id, Fault::PanicBefore, 1);
    world.append([ids[0].clone()]).await;
    world.drained(S * 60).await;
    values.are(&[
        ("outbox_unknown_total route=\"default\"", 1.0),
        ("outbox_restarts_total route=\"default\"", 0.0),
    ]);
    world.append([ids[1].clone()]).await;
    world.drained(S * 60).await;
    values.are(&[
        ("outbox_restarts_total route=\"default\"", 1.0),
        ("outbox_resets_total route=\"default\"", 0.0),
    ]);
}

#[tokio::test(start_paused = true)]
async fn a_failing_database_is_counted_as_a_reset_and_its_figures_grow_old() {
    let values = Values::collect();
    let world = World::new();
    let rig = world.rig();
    let _relay = rig.relay().observe_every(S).start().await.unwrap();
    tokio::time::sleep(S * 3).await;
    rig.store.inject(StoreCall::Backlog, StoreFault::Before, usize::MAX);
    tokio::time::sleep(S * 60).await;
    // Nothing waits as far as anybody knows, and that is long ago.
    assert!(values.of("outbox_unmeasured_seconds route=\"default\"") > 50.0);
    assert!(values.of("outbox_oldest_age_seconds route=\"default\"") > 50.0);
    rig.store.inject(StoreCall::Fetch, StoreFault::Before, 1);
    within(S * 60, || values.of("outbox_resets_total route=\"default\"") > 0.0).await;
    rig.store.calm();
    within(S * 60, || values.of("outbox_unmeasured_seconds route=\"default\"") == 0.0).await;
}

#[tokio::test(start_paused = true)]
async fn a_transition_that_an_operator_overtakes_is_counted_as_refused() {
    let values = Values::collect();
    let world = World::new();
    let rig = world.rig();
    let ids = world.append([message("a")]).await;
    rig.inject(&ids, Fault::Failed);
    rig.store.set_latency_of(StoreCall::Transition, S * 2);
    let relay = rig.relay().start().await.unwrap();
    // The second attempt has failed, and is to be recorded.
    within(S * 60, || relay.stats().failed == 2).await;
    world.store.hold(&route(), &key_id("a")).await.unwrap();
    within(S * 10, || values.of("outbox_refused_total route=\"default\"") > 0.0).await;
}

#[tokio::test(start_paused = true)]
async fn routes_without_a_relay_are_counted_and_named() {
    let values = Values::collect();
    let world = World::new();
    let _relay = world.rig().relay().start().await.unwrap();
    let mut tx = world.store.begin().await.unwrap();
    let elsewhere = Outgoing::from(message("a")).by(Route::new("attic").unwrap());
    world.store.append(&mut tx, &[elsewhere]).await.unwrap();
    world.store.commit(tx).await.into_result().unwrap();
    tokio::time::sleep(S * 180).await;
    values.are(&[("outbox_unserved_routes", 1.0)]);
    assert!(values.of("outbox_unserved_age_seconds route=\"attic\"") > 60.0);
}

#[tokio::test(start_paused = true)]
async fn messages_below_the_cursor_are_counted() {
    let values = Values::collect();
    let world = World::new();
    world.append((0..10).map(|_| message("a"))).await;
    let rows = world.store.snapshot().hot;
    let _relay = world.rig().relay().start().await.unwrap();
    world.drained(S * 10).await;
    tokio::time::sleep(S * 300).await;
    values.are(&[("outbox_below_cursor_total route=\"default\"", 0.0)]);
    world.store.put_back(rows);
    world.drained(S * 60).await;
    assert!(values.of("outbox_below_cursor_total route=\"default\"") >= 1.0);
}
