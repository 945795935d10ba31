//! Bounded memory (P6): limits of messages and bytes hold for any backlog, key skew and message
//! size.

use std::time::Duration;

use outbox_contract::{AdminExt, RetryPolicy};
use outbox_engine::RelayHandle;
use outbox_testkit::{Fault, FaultRates, StoreCall, StoreFaultRates};

use crate::promises::support::{MS, Rig, S, World, key_id, message, route, within};

/// Makes the broker so slow that messages pile up.
fn slow(rig: &Rig, delay: Duration) {
    rig.transport.set_rates(FaultRates { delay, ..FaultRates::default() });
}

/// Waits until nothing is pending. Returns the maximum numbers of messages and bytes in memory
/// meanwhile.
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
    let relay =
        rig.relay().fetch_batch(100).max_in_flight(200).per_key(50).publish_batch(25).start().await.unwrap();
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
    let relay = rig.relay().max_in_flight_bytes(300_000).start().await.unwrap();
    let (_, bytes) = highest(&world, &relay, S * 60).await;
    assert!(bytes <= 300_000 + large().bytes(), "{bytes} bytes in memory");
}

/// The fixed part of each message counts, too.
#[tokio::test(start_paused = true)]
async fn many_small_messages_stay_within_the_bytes() {
    let world = World::new();
    let rig = world.rig();
    slow(&rig, MS * 10);
    world.append((0..3_000).map(|n| message(&format!("key-{n}")))).await;
    let relay = rig.relay().max_in_flight_bytes(100_000).start().await.unwrap();
    let (messages, bytes) = highest(&world, &relay, S * 60).await;
    assert!(bytes <= 100_000 + message("key-1000").bytes(), "{messages} messages, {bytes} bytes in memory");
}

#[tokio::test(start_paused = true)]
async fn a_message_larger_than_max_in_flight_bytes_is_sent() {
    let world = World::new();
    let rig = world.rig();
    world.append([message("a"), message("a").with_payload(vec![0; 50_000]), message("a")]).await;
    let _relay =
        rig.relay().max_in_flight_bytes(1_000).fetch_batch(1).max_in_flight(2).start().await.unwrap();
    world.drained(S * 10).await;
}

/// The keys of a failing batch are due at once. They are retried only as fast as there is room.
#[tokio::test(start_paused = true)]
async fn failing_keys_that_are_due_at_once_stay_within_the_messages() {
    let world = World::new();
    let rig = world.rig();
    slow(&rig, MS * 10);
    let ids = world.append((0..3_000).map(|n| message(&format!("key-{}", n % 6)))).await;
    ids.iter().take(6).for_each(|id| rig.transport.inject_times(*id, Fault::Failed, 3));
    let quick = RetryPolicy { first_delay: MS, max_delay: MS * 2, ..RetryPolicy::default() };
    let relay = rig.relay().fetch_batch(50).max_in_flight(100).retry(quick).start().await.unwrap();
    let (messages, _) = highest(&world, &relay, S * 600).await;
    assert!(messages <= 100, "{messages} in memory");
}

/// Each message takes most of the bytes. They are retried one after the other, and all of them,
/// whether they succeed or hang.
#[tokio::test(start_paused = true)]
async fn large_messages_of_many_failing_keys_come_back_one_after_the_other() {
    let world = World::new();
    let rig = world.rig();
    slow(&rig, MS * 10);
    let large = |n| message(&format!("key-{n}")).with_payload(vec![0; 200_000]);
    let ids = world.append((0..20).map(large)).await;
    ids.iter().for_each(|id| rig.transport.inject_times(*id, Fault::Failed, 2));
    let quick = RetryPolicy { first_delay: MS, max_delay: MS * 2, ..RetryPolicy::default() };
    let relay = rig.relay().max_in_flight_bytes(300_000).retry(quick).start().await.unwrap();
    within(S * 60, || relay.stats().failed >= 20).await;
    rig.transport.set_rates(FaultRates { hang: 1.0, ..FaultRates::default() });
    tokio::time::sleep(S * 10).await;
    let before = rig.store.counts().calls;
    tokio::time::sleep(S * 60).await;
    let calls = rig.store.counts().calls - before;
    assert!(calls <= 600, "{calls} calls in a minute in which nothing can be sent");
    rig.transport.calm();
    let (_, bytes) = highest(&world, &relay, S * 120).await;
    assert!(bytes <= 300_000 + large(0).bytes(), "{bytes} bytes in memory");
    assert_eq!(world.broker.len(), 20, "each was sent once");
}

/// The relays were stopped, and a key is held. Its backlog is parked in portions, however long the
/// store takes for that, and no other key waits for it.
#[tokio::test(start_paused = true)]
async fn the_backlog_of_a_held_key_stays_within_the_messages_and_delays_no_other() {
    const BACKLOG: usize = 5_000;
    for world in [World::new(), World::concurrent(), World::stripes()] {
        let rig = world.rig();
        world.store.hold(&route(), &key_id("held")).await.unwrap();
        let held = world.append((0..BACKLOG).map(|_| message("held"))).await;
        world.append((0..300).map(|n| message(&format!("key-{n}")))).await;
        let slow = StoreFaultRates { delay: S * 600, ..StoreFaultRates::default() };
        rig.store.set_rates_of(StoreCall::Transition, slow);
        let _relay =
            rig.relay().fetch_batch(100).max_in_flight(200).store_timeout(S * 700).start().await.unwrap();
        within(S * 10, || world.broker.len() == 300).await;
        tokio::time::sleep(S * 10).await;
        let lines = rig.trace.take();
        let aside = lines.iter().filter_map(|line| line.split("is to park ").nth(1)?.split(' ').next());
        let aside: usize = aside.map(|rows| rows.parse::<usize>().unwrap()).sum();
        assert!(world.store.snapshot().parked.is_empty(), "the store has not answered yet");
        assert!(aside <= 300, "{aside} rows were read that wait to be parked");

        rig.store.calm();
        tokio::time::sleep(S * 600).await;
        within(S * 60, || world.store.snapshot().parked.len() == BACKLOG).await;
        world.store.release(&route(), &key_id("held")).await.unwrap();
        world.drained(S * 60).await;
        let arrived = world.arrived();
        let arrived: Vec<_> = arrived[300..].to_vec();
        assert!(arrived == held, "in order, and once");
    }
}

/// All callers together: looks, failing keys, heartbeats, measurements, maintenance.
#[tokio::test(start_paused = true)]
async fn an_idle_relay_asks_the_store_twice_a_second_at_most() {
    for world in [World::new(), World::concurrent(), World::stripes()] {
        let rig = world.rig();
        let _relay = rig.relay().start().await.unwrap();
        world.append([message("a"), message("b")]).await;
        world.drained(S * 60).await;
        // Until the extra looks after an append are over.
        tokio::time::sleep(S * 30).await;
        let before = rig.store.counts().calls;
        tokio::time::sleep(S * 300).await;
        let calls = rig.store.counts().calls - before;
        assert!(calls <= 600, "{calls} calls in 300 s");
    }
}
