//! Bounded (P6): messages and bytes in memory, at any backlog, any key skew and any size.

use std::time::Duration;

use outbox_contract::RetryPolicy;
use outbox_engine::RelayHandle;
use outbox_testkit::{Fault, FaultRates};

use crate::support::{MS, Rig, S, World, message, within};

/// So slow that everything piles up where it can.
fn slow(rig: &Rig, delay: Duration) {
    rig.transport.set_rates(FaultRates { delay, ..FaultRates::default() });
}

/// Waits until nothing waits; says how many messages and bytes were in memory at the most.
async fn highest(world: &World, relay: &RelayHandle, limit: Duration) -> (usize, usize) {
    let mut highest = (0, 0);
    within(limit, || {
        let stats = relay.stats();
        highest = (highest.0.max(stats.in_flight), highest.1.max(stats.in_flight_bytes));
        world.waiting() == 0
    })
    .await;
    highest
}

#[tokio::test(start_paused = true)]
async fn a_hot_key_takes_no_more_than_its_part_and_delays_no_other() {
    let world = World::new();
    let rig = world.rig();
    slow(&rig, MS * 100);
    world.append((0..5_000).map(|_| message("hot"))).await;
    world.append((0..50).map(|n| message(&format!("key-{n}")))).await;
    let relay = rig.relay().batch(100).credit(200).per_key(50).chunk(25).start().await.unwrap();
    let others = || world.broker.published().iter().filter(|it| it.key.key != "hot").count() == 50;
    let took = within(S * 60, others).await;
    assert!(took <= S, "the other keys took {took:?}");
    let (messages, _) = highest(&world, &relay, S * 600).await;
    assert!(messages <= 200, "{messages} in memory");
    assert!(world.positions("hot").is_sorted());
}

#[tokio::test(start_paused = true)]
async fn large_messages_stay_within_the_bytes() {
    let world = World::new();
    let rig = world.rig();
    slow(&rig, MS * 10);
    let large = || message("a").with_payload(vec![0; 100_000]);
    world.append((0..60).map(|_| large())).await;
    world.append((0..60).map(|n| message(&format!("key-{n}")).with_payload(vec![0; 100_000]))).await;
    let relay = rig.relay().credit_bytes(300_000).start().await.unwrap();
    let (_, bytes) = highest(&world, &relay, S * 60).await;
    assert!(bytes <= 300_000 + large().bytes(), "{bytes} bytes in memory");
}

/// What a message has besides its content counts too.
#[tokio::test(start_paused = true)]
async fn many_small_messages_stay_within_the_bytes() {
    let world = World::new();
    let rig = world.rig();
    slow(&rig, MS * 10);
    world.append((0..3_000).map(|n| message(&format!("key-{n}")))).await;
    let relay = rig.relay().credit_bytes(100_000).start().await.unwrap();
    let (messages, bytes) = highest(&world, &relay, S * 60).await;
    assert!(bytes <= 100_000 + message("key-1000").bytes(), "{messages} messages, {bytes} bytes in memory");
}

#[tokio::test(start_paused = true)]
async fn a_message_larger_than_all_credit_is_sent_all_the_same() {
    let world = World::new();
    let rig = world.rig();
    world.append([message("a"), message("a").with_payload(vec![0; 50_000]), message("a")]).await;
    let _relay = rig.relay().credit_bytes(1_000).batch(1).credit(2).start().await.unwrap();
    world.drained(S * 10).await;
}

/// When the keys of a failing batch are due at once, they come back no faster than there is room.
#[tokio::test(start_paused = true)]
async fn failing_keys_that_are_due_at_once_stay_within_the_messages() {
    let world = World::new();
    let rig = world.rig();
    slow(&rig, MS * 10);
    let ids = world.append((0..3_000).map(|n| message(&format!("key-{}", n % 6)))).await;
    ids.iter().take(6).for_each(|id| rig.transport.inject_times(*id, Fault::Failed, 3));
    let quick = RetryPolicy { first_delay: MS, most_delay: MS * 2, ..RetryPolicy::default() };
    let relay = rig.relay().batch(50).credit(100).retry(quick).start().await.unwrap();
    let (messages, _) = highest(&world, &relay, S * 600).await;
    assert!(messages <= 100, "{messages} in memory");
}

/// All in all, whoever asks: looks, failing keys, heartbeats, figures, maintenance.
#[tokio::test(start_paused = true)]
async fn an_idle_relay_asks_the_store_twice_a_second_at_most() {
    for world in [World::new(), World::concurrent(), World::stripes()] {
        let rig = world.rig();
        let _relay = rig.relay().start().await.unwrap();
        world.append([message("a"), message("b")]).await;
        world.drained(S * 60).await;
        // Until the looks that follow an append are over.
        tokio::time::sleep(S * 30).await;
        let before = rig.store.counts().calls;
        tokio::time::sleep(S * 300).await;
        let calls = rig.store.counts().calls - before;
        assert!(calls <= 600, "{calls} calls in 300 s");
    }
}
