//! Fencing (P7): a relay that lost its leases does no harm.

use std::sync::Arc;

use outbox_contract::backend::Clock;
use outbox_store_memory::MemoryStore;
use outbox_testkit::{Fault, StoreCall, StoreFault, StoreFaultRates, TestClock};

use crate::promises::support::{MS, S, World, message, within};

/// Its clock shows that more time has passed than the lease lasts, while its timers and its memory
/// are unaware.
#[tokio::test(start_paused = true)]
async fn a_relay_that_slept_past_its_lease_publishes_nothing() {
    let world = World::new();
    let rig = world.rig();
    let ids = world.append((0..10).map(|n| message(&format!("key-{n}")))).await;
    ids.iter().for_each(|id| rig.transport.inject_times(*id, Fault::UnknownWithoutEffect, 1));
    let relay = rig.relay().store_timeout(S * 600).start().await.unwrap();
    within(S, || relay.stats().unknown > 0).await;
    // From here on no heartbeat gets through, while there is work in memory.
    rig.gate.set_open(false);
    rig.clock.suspend(S * 16);
    rig.transport.calm();
    let tried = rig.transport.counts().batches;
    tokio::time::sleep(S * 60).await;
    assert_eq!(rig.transport.counts().batches, tried, "no batch was started");
    rig.gate.set_open(true);
    world.drained(S * 30).await;
}

/// It slept past its lease, and another relay owns everything by now. Its next heartbeat reports
/// that, and renews its registration. But its poller, which drops what is in memory, is waiting for
/// an earlier fetch.
#[tokio::test(start_paused = true)]
async fn a_relay_that_slept_past_its_lease_starts_nothing_of_what_another_owns() {
    let database = Arc::new(TestClock::new(7));
    let clock: Arc<dyn Clock> = Arc::<TestClock>::clone(&database);
    let world = World { store: MemoryStore::builder().clock(clock).build(), ..World::new() };
    let (one, other) = (world.rig(), world.rig());
    let timeout = S * 60;
    let slept =
        one.relay().max_unconfirmed_batches(1).publish_batch(1).heartbeat(S).store_timeout(timeout).start();
    let slept = slept.await.unwrap();
    within(S, || slept.stats().buckets == 256).await;
    let messages: Vec<_> = (0..10).map(|n| message(&format!("key-{n}"))).collect();
    one.transport.inject(messages[0].id, Fault::Hang);
    world.append(messages).await;
    within(S, || slept.stats().in_flight == 10 && one.transport.counts().hung == 1).await;
    one.store.inject(StoreCall::Fetch, StoreFault::HangBefore, 1);
    tokio::time::sleep(MS * 1_500).await;

    one.gate.set_open(false);
    database.suspend(S * 16);
    one.clock.suspend(S * 16);
    let owner = other.relay().start().await.unwrap();
    world.drained(S).await;
    assert_eq!((owner.stats().buckets, world.broker.len()), (256, 10));
    one.gate.set_open(true);
    within(S * 2, || slept.stats().buckets == 0).await;
    let batches = one.transport.counts().batches;
    // The hanging batch times out, and the next message of its lane is due.
    within(S * 6, || slept.stats().unknown == 1).await;
    tokio::time::sleep(S * 10).await;
    assert_eq!(one.transport.counts().batches, batches, "no batch was started");
    assert_eq!(world.broker.len(), 10, "and nothing was repeated");

    // It resumes its share when its poller is back.
    tokio::time::sleep(timeout).await;
    within(S * 20, || slept.stats().buckets == 128).await;
    drop(owner);
    world.append((0..100).map(|n| message(&format!("key-{n}")))).await;
    world.drained(S * 30).await;
}

/// Fence of the store: it refuses what a relay decided before it was suspended.
#[tokio::test(start_paused = true)]
async fn steps_of_a_relay_that_stood_still_past_its_lease_are_refused() {
    let world = World::new();
    let (old, new) = (world.rig(), world.rig());
    let ids = world.append([message("a"), message("a")]).await;
    old.transport.inject(ids[0], Fault::Rejected);
    // The dead letter is decided, and in flight for longer than the lease lasts.
    let under_way = StoreFaultRates { delay: S * 600, ..StoreFaultRates::default() };
    old.store.set_rates_of(StoreCall::Transition, under_way);
    let paused = old.relay().store_timeout(S * 700).start().await.unwrap();
    within(S, || paused.stats().failed == 1).await;
    old.gate.set_open(false);
    let _successor = new.relay().start().await.unwrap();
    world.drained(S * 60).await;
    assert_eq!(world.arrived(), ids, "the successor sent both");
    old.gate.set_open(true);
    within(S * 700, || old.trace.take().iter().any(|line| line.contains("LeaseLost"))).await;
    assert_eq!((world.dead().await.len(), world.store.snapshot().failing_keys), (0, 0));
    assert_eq!(world.arrived(), ids, "and nothing was repeated");
}

/// Confirmed messages may still be removed, whichever relay owns the bucket now.
#[tokio::test(start_paused = true)]
async fn a_relay_without_leases_still_settles_what_was_confirmed() {
    let world = World::new();
    let rig = world.rig();
    world.append([message("a")]).await;
    rig.store
        .set_rates_of(StoreCall::Settle, StoreFaultRates { delay: S * 600, ..StoreFaultRates::default() });
    rig.store.set_rates_of(StoreCall::Lease, StoreFaultRates::default());
    let relay = rig.relay().store_timeout(S * 700).start().await.unwrap();
    within(S, || relay.stats().delivered == 1).await;
    // All later heartbeats are lost.
    rig.store
        .set_rates_of(StoreCall::Lease, StoreFaultRates { hang_before: 1.0, ..StoreFaultRates::default() });
    tokio::time::sleep(S * 20).await;
    assert_eq!(world.waiting(), 1);
    world.drained(S * 700).await;
    assert_eq!(world.broker.len(), 1);
}

/// A relay that can't renew stops by itself well before its leases expire, and does not send what
/// it has in memory.
#[tokio::test(start_paused = true)]
async fn a_relay_that_can_not_renew_stops_before_its_leases_end() {
    let world = World::new();
    let rig = world.rig();
    let _relay = rig.relay().store_timeout(S * 600).start().await.unwrap();
    tokio::time::sleep(MS * 10).await;
    rig.store
        .set_rates_of(StoreCall::Lease, StoreFaultRates { hang_before: 1.0, ..StoreFaultRates::default() });
    tokio::time::sleep(MS * 9_900).await;
    world.append([message("a")]).await;
    within(MS * 20, || world.broker.len() == 1).await;
    // A lease of 15 s minus the publish timeout of 5 s, counted from before the only answered
    // heartbeat.
    tokio::time::sleep(MS * 200).await;
    world.append([message("b")]).await;
    tokio::time::sleep(S * 300).await;
    assert_eq!(world.broker.len(), 1);
}

/// The leases outlast a lost heartbeat, so nothing is dropped.
#[tokio::test(start_paused = true)]
async fn a_heartbeat_that_fails_once_is_sent_again_while_the_leases_last() {
    for fault in [StoreFault::Before, StoreFault::After] {
        let world = World::new();
        let rig = world.rig();
        let relay = rig.relay().start().await.unwrap();
        tokio::time::sleep(S).await;
        rig.store.inject(StoreCall::Lease, fault, 1);
        for _ in 0..300 {
            tokio::time::sleep(MS * 100).await;
            world.append([message("a")]).await;
        }
        world.drained(S).await;
        assert_eq!(relay.stats().resets, 0, "{fault:?}");
        assert_eq!(world.broker.len(), 300, "nothing was sent twice");
    }
}

/// Only heartbeats can tell that the relay is still there.
#[tokio::test(start_paused = true)]
async fn heartbeats_that_fail_for_longer_than_the_leases_last_drop_everything() {
    let world = World::new();
    let rig = world.rig();
    let relay = rig.relay().start().await.unwrap();
    tokio::time::sleep(S).await;
    let fails = StoreFaultRates { before: 1.0, ..StoreFaultRates::default() };
    rig.store.set_rates_of(StoreCall::Lease, fails);
    within(S * 16, || relay.stats().resets > 0).await;
    rig.store.calm();
    world.append([message("a")]).await;
    world.drained(S * 20).await;
}

/// Each answer takes nearly the whole timeout. The leases are still renewed before they expire.
#[tokio::test(start_paused = true)]
async fn leases_do_not_run_out_between_heartbeats_that_are_slow_but_succeed() {
    let world = World::new();
    let rig = world.rig();
    let slow = StoreFaultRates { delay: MS * 4_900, ..StoreFaultRates::default() };
    rig.store.set_rates_of(StoreCall::Lease, slow);
    let relay = rig.relay().start().await.unwrap();
    world.append([message("a")]).await;
    world.drained(S * 10).await;
    for _ in 0..3_000 {
        tokio::time::sleep(MS * 100).await;
        let lapsed =
            relay.health().reasons.iter().any(|reason| reason.text.contains("leases were last renewed"));
        assert!(!lapsed, "{:?}", relay.health());
    }
    assert_eq!(relay.stats().resets, 0);
}
