//! Removal of what the broker confirmed: a few messages wait for others, many do not.

use std::time::Duration;

use outbox_testkit::{StoreCall, StoreFaultRates};

use crate::promises::support::{MS, S, World, message, within};

/// Maximum time that a few removals wait for others, and a look each at the begin and at the end.
const LINGER: Duration = Duration::from_millis(12);

#[tokio::test(start_paused = true)]
async fn a_few_removals_share_a_statement_and_wait_for_others_only_for_a_moment() {
    let world = World::new();
    let rig = world.rig();
    let _relay = rig.relay().start().await.unwrap();
    for n in 0..20 {
        world.append([message(&format!("key-{n}"))]).await;
        within(S, || world.broker.len() > n).await;
        tokio::time::sleep(MS).await;
    }
    let took = world.drained(S).await;
    assert!(took <= LINGER, "the last one took {took:?}");
    let statements = rig.store.calls(StoreCall::Settle);
    assert!((1..=10).contains(&statements), "{statements} statements for 20 messages");
}

#[tokio::test(start_paused = true)]
async fn many_removals_wait_for_no_others_even_behind_a_few_that_do() {
    let world = World::new();
    let rig = world.rig();
    let _relay = rig.relay().start().await.unwrap();
    world.append([message("first")]).await;
    within(S, || world.broker.len() == 1).await;
    world.append((0..200).map(|n| message(&format!("key-{n}")))).await;
    within(S, || world.broker.len() == 201).await;
    let took = world.drained(S).await;
    assert!(took <= MS, "it took {took:?}");
}

/// Results that wait count as in flight, so a relay with little credit would wait for itself.
#[tokio::test(start_paused = true)]
async fn a_relay_that_may_have_little_in_flight_waits_for_no_others() {
    let world = World::new();
    let rig = world.rig();
    let _relay = rig.relay().fetch_batch(8).max_in_flight(8).start().await.unwrap();
    world.append([message("a")]).await;
    within(S, || world.broker.len() == 1).await;
    let took = world.drained(S).await;
    assert!(took <= MS, "it took {took:?}");
}

/// A flush that was planned before a failure does not cut the pause behind it short.
#[tokio::test(start_paused = true)]
async fn a_removal_that_failed_is_tried_again_at_growing_intervals() {
    let world = World::new();
    let rig = world.rig();
    rig.store.set_rates_of(StoreCall::Settle, StoreFaultRates { before: 1.0, ..Default::default() });
    let relay = rig.relay().start().await.unwrap();
    // The first one waits for others, and these do not wait.
    world.append([message("first")]).await;
    within(S, || world.broker.len() == 1).await;
    world.append((0..200).map(|n| message(&format!("key-{n}")))).await;
    tokio::time::sleep(S * 10).await;
    let tries = rig.store.calls(StoreCall::Settle);
    assert!((2..=6).contains(&tries), "{tries} tries in ten seconds");
    rig.store.set_rates_of(StoreCall::Settle, StoreFaultRates::default());
    world.drained(S * 60).await;
    assert!(relay.stop(S * 10).await);
}
