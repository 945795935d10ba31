//! Cursors, marks and counters are hints, and the rows are the truth (P2). Rows below them are
//! delivered, in key order (P3).

use std::collections::BTreeSet;

use outbox_contract::{MessageId, Store};
use outbox_engine::{Reason, RelayHandle, Status};

use crate::promises::support::{S, World, message, route, within};

const KEYS: usize = 7;

/// Appends this many messages, over a few keys.
async fn write(world: &World, count: usize) -> Vec<MessageId> {
    world.append((0..count).map(|n| message(&format!("key-{}", n % KEYS)))).await
}

/// Returns true if health reports messages below the read position with this cause. While they
/// wait, the status may be worse because of their age.
fn says(relay: &RelayHandle, cause: &str) -> bool {
    let health = relay.health();
    let is_said =
        |reason: &Reason| reason.text.contains("messages stood below") && reason.text.contains(cause);
    health.status >= Status::Degraded && health.reasons.iter().any(is_said)
}

/// Asserts that each key was delivered in the order of its positions.
fn assert_in_order(world: &World) {
    for key in 0..KEYS {
        let positions = world.positions(&format!("key-{key}"));
        assert!(positions.is_sorted(), "key-{key}: {positions:?}");
    }
}

/// As after a restore or an import of the table alone. Delivered messages are delivered again,
/// because nothing distinguishes them from undelivered ones.
#[tokio::test(start_paused = true)]
async fn messages_that_are_put_back_under_a_running_relay_are_delivered_within_a_minute() {
    for world in [World::new(), World::concurrent(), World::stripes()] {
        let rig = world.rig();
        write(&world, 500).await;
        let rows = world.store.snapshot().hot;
        let relay = rig.relay().start().await.unwrap();
        world.drained(S * 10).await;
        // Long after the checks that follow a start.
        tokio::time::sleep(S * 300).await;
        assert_eq!(relay.health().status, Status::Healthy);

        world.store.put_back(rows);
        let new = write(&world, 10).await;
        world.drained(S * 60).await;
        assert_eq!(world.broker.len(), 1_010);
        for key in 0..KEYS {
            let mut positions = world.positions(&format!("key-{key}"));
            let again = positions.split_off(500 / KEYS + usize::from(key < 500 % KEYS));
            let old = again.iter().filter(|position| positions.contains(position)).copied();
            assert!(old.eq(positions.iter().copied()), "key-{key}: {positions:?}, and again {again:?}");
        }
        assert!(new.iter().all(|id| world.arrived().contains(id)));
        assert!(says(&relay, ""), "{:?}", relay.health());
        assert_eq!(relay.stats().resets, 0);
        // It is reported long enough for an operator to notice.
        tokio::time::sleep(S * 600).await;
        assert!(says(&relay, ""), "{:?}", relay.health());
        assert_eq!((relay.health().status, relay.health().reasons.len()), (Status::Degraded, 1));
        within(S * 360, || relay.health().status == Status::Healthy).await;
    }
}

/// The counters of sequence shards are restored without the messages, or are lost.
#[tokio::test(start_paused = true)]
async fn counters_that_went_back_keep_nothing_from_a_new_relay() {
    let world = World::stripes();
    let old = write(&world, 100).await;
    world.store.forget_stripes(&route());
    let new = write(&world, 10).await;
    let rig = world.rig();
    let relay = rig.relay().start().await.unwrap();
    world.drained(S * 60).await;
    assert_eq!(world.broker.len(), 110, "each once");
    assert_eq!(world.arrived().into_iter().collect::<BTreeSet<_>>(), old.into_iter().chain(new).collect());
    assert_in_order(&world);
    assert!(says(&relay, "outbox_stripe was restored"), "{:?}", relay.health());
}

/// The rows come back as well, which the relay has read or has never seen. This works whether or
/// not an append makes the relay look.
#[tokio::test(start_paused = true)]
async fn counters_that_go_back_under_a_running_relay_keep_nothing_from_it() {
    for (is_read_past, appended) in [(false, 0), (false, 10), (true, 0), (true, 10)] {
        let world = World::stripes();
        write(&world, 100).await;
        let rows = world.store.snapshot().hot;
        if !is_read_past {
            let settled: Vec<_> = rows.iter().map(|(_, stored)| stored.row()).collect();
            world.store.settle(&route(), &settled).await.unwrap();
        }
        let rig = world.rig();
        let relay = rig.relay().start().await.unwrap();
        world.drained(S * 10).await;
        tokio::time::sleep(S * 300).await;
        let before: Vec<usize> = (0..KEYS).map(|key| world.positions(&format!("key-{key}")).len()).collect();

        world.store.forget_stripes(&route());
        world.store.put_back(rows);
        let new = write(&world, appended).await;
        world.drained(S * 60).await;
        assert_eq!(world.broker.len(), before.iter().sum::<usize>() + 100 + appended);
        assert!(new.iter().all(|id| world.arrived().contains(id)));
        for (key, before) in before.into_iter().enumerate() {
            let positions = world.positions(&format!("key-{key}"));
            assert!(positions[before..].is_sorted(), "key-{key}, {is_read_past}: {positions:?}");
        }
        // Without an append, it may be that only rows went back.
        let cause = if appended > 0 { "outbox_stripe was restored" } else { "" };
        assert!(says(&relay, cause), "{:?}", relay.health());
    }
}
