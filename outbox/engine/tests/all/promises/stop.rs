//! Drained stop (P8), and the cost of a kill.

use outbox_testkit::{Fault, FaultRates, StoreCall, StoreFault, StoreFaultRates};

use crate::promises::line::Late;
use crate::promises::support::{MS, S, World, message, within};

#[tokio::test(start_paused = true)]
async fn a_stop_finishes_what_is_in_flight_removes_it_and_gives_the_leases_back_at_once() {
    let world = World::new();
    let (old, new) = (world.rig(), world.rig());
    // The broker has taken a batch long before its confirmation arrives.
    old.luck.set(Late { answer: MS * 900, ..Late::default() });
    world.append((0..2_000).map(|n| message(&format!("key-{}", n % 100)))).await;
    let relay = old.relay().publish_batch(20).start().await.unwrap();
    within(S * 5, || relay.stats().delivered > 0).await;
    assert!(relay.stats().in_flight > 100, "it is in the middle of it");
    assert!(relay.stop(S * 10).await, "it drained");
    let sent = world.broker.len();
    assert_eq!(world.waiting(), 2_000 - sent, "everything that was sent is removed");
    let _successor = new.relay().start().await.unwrap();
    let took = within(S * 60, || world.broker.len() > sent).await;
    assert!(took <= MS * 20, "the successor began after {took:?}");
    world.drained(S * 60).await;
    assert_eq!(world.broker.len(), 2_000, "nothing was sent twice");
}

#[tokio::test(start_paused = true)]
async fn a_stop_says_when_its_deadline_was_too_short() {
    let world = World::new();
    let rig = world.rig();
    let ids = world.append([message("a")]).await;
    rig.transport.inject(ids[0], Fault::Hang);
    let relay = rig.relay().start().await.unwrap();
    within(S, || relay.stats().in_flight == 1).await;
    tokio::time::sleep(MS * 100).await;
    assert!(!relay.stop(S).await);
    assert_eq!(world.waiting(), 1);
}

/// When the relay is asked to stop, the first message of a key waits after an unknown outcome, and
/// the next one is being read.
#[tokio::test(start_paused = true)]
async fn what_is_read_while_a_relay_stops_does_not_pass_what_it_dropped() {
    for slow in 1..=20 {
        let world = World::new();
        let rig = world.rig();
        let first = world.append([message("a")]).await;
        rig.transport.inject_times(first[0], Fault::UnknownWithoutEffect, 1);
        let relay = rig.relay().start().await.unwrap();
        within(S, || relay.stats().unknown == 1).await;
        rig.luck.set(Late { answer: MS * slow * 10, ..Late::default() });
        world.append([message("a")]).await;
        tokio::time::sleep(MS).await;
        assert!(relay.stop(S * 20).await);
        assert!(world.broker.is_empty(), "with answers that take up to {} ms", slow * 10);
    }
}

/// A poller that waits for a hanging store keeps no other actor from finishing.
#[tokio::test(start_paused = true)]
async fn what_is_in_flight_is_removed_by_a_stop_though_reading_hangs() {
    let world = World::new();
    let rig = world.rig();
    rig.transport.set_rates(FaultRates { delay: S * 4, ..FaultRates::default() });
    world.append([message("a")]).await;
    let relay = rig.relay().start().await.unwrap();
    within(S, || relay.stats().in_flight == 1).await;
    rig.store.inject(StoreCall::Fetch, StoreFault::HangBefore, 1);
    tokio::time::sleep(MS * 100).await;
    assert!(relay.stop(S * 12).await, "it drained");
    assert_eq!((world.waiting(), world.broker.len()), (0, 1));
}

/// The store failed, and the route is to restart after a delay. The stop does the remaining work
/// instead.
#[tokio::test(start_paused = true)]
async fn a_stop_in_the_pause_before_a_restart_gives_the_leases_back_too() {
    let world = World::new();
    let (old, new) = (world.rig(), world.rig());
    let relay = old.relay().outage_first_delay(S * 5).start().await.unwrap();
    world.append([message("a")]).await;
    world.drained(S).await;
    old.store.inject(StoreCall::Fetch, StoreFault::Before, 1);
    within(S * 5, || relay.stats().resets == 1).await;
    tokio::time::sleep(MS * 10).await;
    assert!(relay.stop(S * 10).await, "nothing was left to drain");
    world.append([message("a")]).await;
    let _successor = new.relay().start().await.unwrap();
    let took = world.drained(S * 60).await;
    assert!(took <= MS * 20, "the successor began after {took:?}");
}

/// The first request to give back leases is lost. The store is reachable, and a second request
/// succeeds.
#[tokio::test(start_paused = true)]
async fn a_stop_gives_the_leases_back_though_the_first_try_fails() {
    for fault in [StoreFault::Before, StoreFault::HangBefore] {
        let world = World::new();
        let (old, new) = (world.rig(), world.rig());
        let relay = old.relay().start().await.unwrap();
        world.append([message("a")]).await;
        world.drained(S).await;
        old.store.inject(StoreCall::GiveBack, fault, 1);
        assert!(relay.stop(S * 20).await, "it was told again");
        world.append([message("a")]).await;
        let _successor = new.relay().start().await.unwrap();
        let took = world.drained(S * 60).await;
        assert!(took <= MS * 20, "{fault:?}: the successor began after {took:?}");
    }
}

/// The stop waits for messages that were delivered before the delay and not removed yet. If they
/// can't be removed, it says so.
#[tokio::test(start_paused = true)]
async fn a_stop_in_the_pause_before_a_restart_says_whether_everything_was_removed() {
    for heals in [true, false] {
        let world = World::new();
        let rig = world.rig();
        let relay = rig.relay().outage_first_delay(S * 5).store_timeout(S).start().await.unwrap();
        tokio::time::sleep(MS * 100).await;
        rig.store.set_rates_of(StoreCall::Settle, StoreFaultRates { before: 1.0, ..Default::default() });
        world.append([message("a")]).await;
        // The supervisor waits for the settler first, up to `outage_max_delay`.
        within(S * 10, || relay.stats().resets == 1).await;
        tokio::time::sleep(MS * 5_500).await;
        if heals {
            rig.store.calm();
        }
        assert_eq!(relay.stop(S * 30).await, heals);
        assert_eq!(world.waiting(), usize::from(!heals));
    }
}

#[tokio::test(start_paused = true)]
async fn after_a_kill_messages_flow_again_within_a_lease_and_a_heartbeat() {
    let mut longest = S;
    for moment in 0..20 {
        let world = World::new();
        let (old, new) = (world.rig(), world.rig());
        let relay = old.relay().start().await.unwrap();
        let _other = new.relay().start().await.unwrap();
        // Both have their share, and the kill is at any moment between two heartbeats.
        tokio::time::sleep(S * 30 + MS * 251 * moment).await;
        drop(relay);
        world.append((0..500).map(|n| message(&format!("key-{n}")))).await;
        longest = longest.max(world.drained(S * 60).await);
    }
    println!("measured: the longest pause after a kill was {longest:?}");
    assert!(longest <= S * 20, "a lease of 15 s and a heartbeat of 5 s; it took {longest:?}");
    assert!(longest > S * 9, "it was measured: a lease that was renewed can't be over sooner");
}
