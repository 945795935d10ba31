//! Low-water marks: the mark of a relay that never read a waiting message does not pass it (P2).

use std::collections::BTreeSet;

use outbox_contract::Store;
use outbox_contract::backend::{LeaseRequest, LowWater, Position, RelayId};
use outbox_engine::RelayHandle;
use outbox_testkit::{Fault, StoreCall};

use crate::promises::support::{MS, Rig, S, World, message, within};

/// Heartbeat of a relay that does nothing else.
fn lease_request() -> LeaseRequest {
    let mut request = LeaseRequest::new(RelayId::new(), super::support::route(), S * 15);
    request.label = "next".into();
    request
}

/// Starts two relays with half of the buckets each, and messages in both halves. The first relay's
/// messages wait for its transport; the second has sent its own.
async fn halves(world: &World) -> (Rig, RelayHandle, Rig, RelayHandle) {
    let (one, other) = (world.rig(), world.rig());
    let first = one.relay().heartbeat(MS * 500).store_timeout(S * 20).start().await.unwrap();
    let second = other.relay().heartbeat(MS * 500).store_timeout(S * 20).start().await.unwrap();
    within(S * 15, || (first.stats().buckets, second.stats().buckets) == (128, 128)).await;
    one.transport.go_down();
    let messages: Vec<_> = (0..64).map(|n| message(&format!("key-{n}"))).collect();
    let upper = messages.iter().filter(|message| message.bucket().0 >= 128).count();
    assert!((10..54).contains(&upper), "both have something to send");
    world.append(messages).await;
    within(S, || world.broker.len() == upper).await;
    (one, first, other, second)
}

/// The poller of a stopping relay would not read buckets acquired meanwhile, and its mark does not
/// cover them.
#[tokio::test(start_paused = true)]
async fn a_relay_that_stops_passes_nothing_of_one_that_left_meanwhile() {
    let world = World::new();
    let (_one, first, other, second) = halves(&world).await;
    // A batch of the second relay is in flight until the publish timeout.
    let slow =
        (0..).map(|n| message(&format!("slow-{n}"))).find(|message| message.bucket().0 >= 128).unwrap();
    other.transport.inject(slow.id, Fault::Hang);
    world.append([slow]).await;
    tokio::time::sleep(S).await;
    let sent = world.broker.len();
    other.trace.take();

    let stopping = tokio::spawn(second.stop(S * 20));
    tokio::time::sleep(MS * 100).await;
    first.stop(S * 20).await;
    tokio::time::sleep(S * 2).await;
    assert!(!stopping.is_finished(), "the batch is still in flight, and the second relay sends heartbeats");
    let heard = other.trace.take();
    assert!(heard.iter().any(|line| line.contains("owns")), "{heard:#?}");
    assert!(!heard.iter().any(|line| line.contains("owns 256")), "it takes nothing more: {heard:#?}");
    stopping.await.unwrap();

    let third = world.rig();
    let _relay = third.relay().start().await.unwrap();
    world.drained(S * 20).await;
    assert_eq!(world.broker.len(), 65, "{sent} were sent before");
}

/// A relay that restarts reads anew, but not what it knows to be removed.
#[tokio::test(start_paused = true)]
async fn a_relay_that_begins_anew_keeps_its_marks() {
    let world = World::new();
    let rig = world.rig();
    let relay = rig.relay().heartbeat(MS * 500).start().await.unwrap();
    world.append((0..500).map(|n| message(&format!("key-{n}")))).await;
    world.drained(S * 5).await;
    tokio::time::sleep(S * 2).await;
    rig.store.inject(StoreCall::Fetch, outbox_testkit::StoreFault::Before, 1);
    within(S * 5, || relay.stats().resets == 1).await;
    tokio::time::sleep(S * 2).await;
    drop(relay);
    tokio::time::sleep(S * 20).await;
    let leased = Store::lease(&world.store, &lease_request()).await.unwrap();
    assert_eq!(leased.leases.len(), 256);
    assert!(leased.leases.iter().all(|lease| lease.low_water.0 == 500), "{:?}", leased.leases[0]);
}

/// A saved mark far above all positions, as after a restore without the sequence. The mark is a
/// hint, and the rows are the truth.
#[tokio::test(start_paused = true)]
async fn what_stands_below_a_saved_mark_is_delivered_within_a_minute() {
    for world in [World::new(), World::concurrent()] {
        let gone = lease_request();
        let leased = Store::lease(&world.store, &gone).await.unwrap();
        let covered = leased.leases.iter().map(|lease| (lease.bucket, lease.epoch)).collect();
        let mark = LowWater::new(Position(10_000), covered, leased.life);
        let route = super::support::route();
        world.store.give_back(gone.relay, &route, &leased.leases, &mark, true).await.unwrap();

        let rig = world.rig();
        let relay = rig.relay().start().await.unwrap();
        let first = world.append((0..500).map(|n| message(&format!("key-{}", n % 7)))).await;
        world.drained(S * 60).await;
        // Later messages are below the mark, too.
        let next = world.append((0..20).map(|n| message(&format!("key-{}", n % 7)))).await;
        world.drained(S * 60).await;
        let expected: BTreeSet<_> = first.into_iter().chain(next).collect();
        let arrived = world.arrived();
        assert_eq!(arrived.len(), 520, "each once");
        assert_eq!(arrived.into_iter().collect::<BTreeSet<_>>(), expected);
        assert_eq!(relay.stats().resets, 0);

        // The saved mark goes back to a position where it is true.
        tokio::time::sleep(S * 60).await;
        drop(relay);
        tokio::time::sleep(S * 20).await;
        let leased = Store::lease(&world.store, &lease_request()).await.unwrap();
        assert!(leased.leases.iter().all(|lease| lease.low_water.0 <= 520), "{:?}", leased.leases[0]);
    }
}
