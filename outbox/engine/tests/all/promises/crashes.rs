//! Failing parts: messages in flight are not lost, confirmed ones are removed, and the relay
//! continues.

use outbox_contract::{Outgoing, Transactional};
use outbox_testkit::{Fault, FaultRates, StoreCall, StoreFault};

use crate::promises::line::Late;
use crate::promises::support::{MS, S, World, message, within};

/// The store fails while batches are in flight. The relay waits for them, and removes what they
/// delivered.
#[tokio::test(start_paused = true)]
async fn what_is_in_flight_when_the_store_fails_is_confirmed_and_sent_once() {
    for call in [StoreCall::Fetch, StoreCall::Lease, StoreCall::Transition, StoreCall::Due] {
        let world = World::new();
        let rig = world.rig();
        // The broker has taken a batch long before its confirmation arrives.
        rig.luck.set(Late { answer: MS * 800, ..Late::default() });
        let ids = world.append((0..400).map(|n| message(&format!("key-{}", n % 100)))).await;
        // One key fails now and then, so that transitions are made and keys are due.
        rig.transport.inject_times(ids[17], Fault::Failed, 3);
        let relay =
            rig.relay().heartbeat(MS * 300).due_poll(MS * 300).publish_batch(10).start().await.unwrap();
        within(S * 5, || relay.stats().delivered > 0).await;
        for _ in 0..4 {
            rig.store.inject(call, StoreFault::Before, 1);
            tokio::time::sleep(MS * 700).await;
        }
        world.drained(S * 60).await;
        // A heartbeat is retried while the leases last.
        let expected = call != StoreCall::Lease;
        assert_eq!(relay.stats().resets > 0, expected, "{call:?} failed: {:?}", relay.stats());
        let mut arrived = world.broker.published();
        // Messages of the failing key may be repeated: a transition removes them, and transitions
        // end with the incarnation.
        let failing = arrived.iter().find(|it| it.id == ids[17]).unwrap().key.clone();
        arrived.retain(|it| it.key != failing);
        assert_eq!(arrived.len(), 396, "{call:?}: nothing else was sent twice");
    }
}

#[tokio::test(start_paused = true)]
async fn a_removal_that_fails_is_tried_again_and_loses_nothing() {
    for fault in [StoreFault::Before, StoreFault::After, StoreFault::HangBefore, StoreFault::HangAfter] {
        let world = World::new();
        let rig = world.rig();
        rig.store.inject(StoreCall::Settle, fault, 3);
        let ids = world.append((0..100).map(|n| message(&format!("key-{n}")))).await;
        let relay = rig.relay().start().await.unwrap();
        within(S * 60, || relay.stats().in_flight == 0 && world.waiting() == 0).await;
        assert!(ids.iter().all(|id| world.arrived().contains(id)), "{fault:?}");
        if matches!(fault, StoreFault::Before | StoreFault::After) {
            assert_eq!(world.broker.len(), 100, "{fault:?}: what is still to be removed is not sent again");
        }
        assert!(relay.stop(S * 20).await, "{fault:?}");
        assert_eq!(world.waiting(), 0);
    }
}

/// A transition whose answer was lost may have been made or not. Either way, each message is
/// delivered, in order.
#[tokio::test(start_paused = true)]
async fn a_step_whose_answer_is_lost_loses_nothing_and_keeps_the_order() {
    for fault in [StoreFault::Before, StoreFault::After, StoreFault::HangBefore, StoreFault::HangAfter] {
        let world = World::new();
        let rig = world.rig();
        let ids = world.append([message("a"), message("a"), message("a")]).await;
        rig.transport.inject_times(ids[0], Fault::Failed, 2);
        rig.store.inject(StoreCall::Transition, fault, 2);
        let _relay = rig.relay().start().await.unwrap();
        world.drained(S * 90).await;
        assert_eq!(world.arrived(), ids, "{fault:?}");
    }
}

/// When the poller fails, the route still waits for confirmations while it drops a failing key that
/// it was about to send.
#[tokio::test(start_paused = true)]
async fn a_lane_outlives_the_poller_that_it_tells() {
    let world = World::new();
    let rig = world.rig();
    let failing = world.append([message("failing")]).await;
    rig.transport.inject_times(failing[0], Fault::Failed, 1);
    // The order of the calls determines how late the store answers. With this order, the
    // confirmation is still pending at the end.
    let relay = rig.relay().max_unconfirmed_batches(4).maintain_every(S * 2).start().await.unwrap();
    within(S, || relay.stats().parked == 1).await;
    rig.transport.inject(failing[0], Fault::Hang);
    tokio::time::sleep(S * 2).await;
    rig.luck.set(Late { answer: S * 4, ..Late::default() });
    world.append([message("good")]).await;
    within(S, || world.broker.len() == 1).await;
    rig.store.inject(StoreCall::Fetch, StoreFault::Before, 1);
    within(S * 5, || relay.stats().resets == 1).await;
    within(S * 20, || world.waiting() == 1).await;
    assert_eq!(world.broker.len(), 1, "it was confirmed, and not sent again");
}

/// Every part that calls the store meets a panic in it, including maintenance.
#[tokio::test(start_paused = true)]
async fn a_store_that_panics_for_a_while_is_survived() {
    let world = World::new();
    let rig = world.rig();
    let relay = rig.relay().start().await.unwrap();
    tokio::time::sleep(S).await;
    rig.luck.set(Late { panics: 1.0, ..Late::default() });
    let mut tx = world.store.begin().await.unwrap();
    let soon = outbox_contract::Timestamp::now().plus(S * 10);
    let outgoing = [Outgoing::from(message("a")), Outgoing::from(message("b")).due_at(soon)];
    world.store.append(&mut tx, &outgoing).await.unwrap();
    world.store.commit(tx).await.into_result().unwrap();
    tokio::time::sleep(S * 30).await;
    assert!(relay.stats().resets > 0);
    rig.luck.set(Late::default());
    within(S * 30, || world.broker.len() == 2).await;
    world.drained(S).await;
    within(S * 90, || relay.health().status == outbox_engine::Status::Healthy).await;
}

/// The death of a publisher affects no other batches of its lane.
#[tokio::test(start_paused = true)]
async fn publishers_that_panic_are_replaced_and_everything_arrives() {
    let world = World::new();
    let rig = world.rig();
    let rates = FaultRates { panic_before: 0.05, panic_after: 0.05, delay: MS * 20, ..FaultRates::default() };
    rig.transport.set_rates(rates);
    let ids = world.append((0..1_000).map(|n| message(&format!("key-{}", n % 40)))).await;
    let relay = rig.relay().publish_batch(10).start().await.unwrap();
    tokio::time::sleep(S * 30).await;
    rig.transport.calm();
    world.drained(S * 60).await;
    assert!(relay.stats().restarts > 10 && relay.stats().resets == 0, "{:?}", relay.stats());
    assert!(ids.iter().all(|id| world.arrived().contains(id)));
    assert!(world.dead().await.is_empty());
}
