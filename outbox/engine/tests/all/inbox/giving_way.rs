//! Giving way: a member that is too old for what waits leaves what is stored to newer ones.

use std::time::Duration;

use outbox_contract::Admin;
use outbox_contract::admin::Ownership;
use outbox_engine::{InboxBuilder, InboxHandle, Mode};

use crate::inbox::support::{S, Store, World, message, route, within};

/// A lease of these inboxes.
const LEASE: Duration = Duration::from_secs(60);

/// Builds a member that knows one type, which is not that of the messages of the tests.
fn older(world: &World, label: &str) -> InboxBuilder<Store> {
    let handler = world.handler(std::sync::Arc::new(|_, _| Box::pin(async { Ok(()) })));
    let member = world.beside().bare().label(label).lease(LEASE);
    member.on_message("orders", "order.shipped", handler)
}

async fn ownership(world: &World) -> Ownership {
    world.tables.ownership(&route()).await.unwrap()
}

/// Returns the number of buckets that a member owns.
async fn buckets(world: &World, label: &str) -> usize {
    let relays = ownership(world).await.relays;
    relays.iter().filter(|relay| relay.live && relay.label == label).map(|relay| relay.buckets).sum()
}

/// Returns the sum of all epochs: it grows with every bucket that changes its owner.
async fn epochs(world: &World) -> i64 {
    ownership(world).await.buckets.iter().map(|bucket| bucket.epoch.0).sum()
}

/// Waits until members own so many buckets each.
async fn until_owned(world: &World, limit: Duration, expected: &[(&str, usize)]) {
    for _ in 0..limit.as_secs() {
        let mut are_so = true;
        for (label, count) in expected {
            are_so &= buckets(world, label).await == *count;
        }
        if are_so {
            return;
        }
        tokio::time::sleep(S).await;
    }
    panic!("not within {limit:?}: {expected:?}; {:?}", ownership(world).await.relays);
}

/// Starts a member whose store holds messages of all of these keys, which it does not know.
async fn started_with(world: &World, inbox: InboxBuilder<Store>, count: usize) -> InboxHandle {
    let inbox = inbox.start().await.unwrap();
    let receiver = world.bare().mode(Mode::Receive).start().await.unwrap();
    (0..count).for_each(|key| world.feed.send(message(&format!("key-{key}"))));
    within(S * 60, || world.feed.unacknowledged() == 0).await;
    within(S * 60, || world.tables.snapshot().failing_keys == count).await;
    assert!(receiver.stop(S * 30).await);
    inbox
}

/// In direct mode the older one has no bucket for as long as a message may wait; after that it
/// counts again.
#[tokio::test(start_paused = true)]
async fn an_older_member_gives_way_to_a_newer_one_for_as_long_as_a_message_may_wait() {
    let world = World::concurrent(1);
    let upgrade = S * 900;
    let older = started_with(&world, older(&world, "older").wait_for_upgrade(upgrade), 20).await;
    let newer = world.inbox().label("newer").lease(LEASE).start().await.unwrap();
    until_owned(&world, S * 120, &[("older", 0), ("newer", 256)]).await;
    within(S * 60, || world.ledger.len() == 20).await;
    let moved = epochs(&world).await;
    tokio::time::sleep(upgrade - S * 240).await;
    assert_eq!((buckets(&world, "newer").await, epochs(&world).await), (256, moved), "nothing moves");
    until_owned(&world, S * 480, &[("older", 128), ("newer", 128)]).await;
    assert!(older.stop(S * 30).await && newer.stop(S * 30).await);
    assert_eq!(world.tables.snapshot().dead, 0);
}

/// Where all messages wait in the store, it takes its share again soon, and keeps it for a while.
#[tokio::test(start_paused = true)]
async fn an_older_member_of_a_stored_inbox_takes_its_share_again_soon() {
    let world = World::concurrent(1);
    let older = started_with(&world, older(&world, "older").mode(Mode::Handle), 20).await;
    let newer = world.inbox().mode(Mode::Stored).label("newer").lease(LEASE).start().await.unwrap();
    until_owned(&world, S * 120, &[("older", 0), ("newer", 256)]).await;
    within(S * 60, || world.ledger.len() == 20).await;
    until_owned(&world, LEASE * 3, &[("older", 128), ("newer", 128)]).await;
    let moved = epochs(&world).await;
    (20..40).for_each(|key| drop(world.send(&format!("key-{key}"), 1)));
    within(S * 60, || world.tables.snapshot().failing_keys > 0).await;
    tokio::time::sleep(S * 300).await;
    assert_eq!((buckets(&world, "older").await, epochs(&world).await), (128, moved), "it rests");
    within(S * 900, || world.ledger.len() == 40).await;
    assert!(older.stop(S * 30).await && newer.stop(S * 30).await);
    assert_eq!(world.tables.snapshot().dead, 0);
}

/// Members of which none knows a type share the buckets as if all did: each bucket changes its
/// owner a few times while its message waits.
#[tokio::test(start_paused = true)]
async fn members_that_are_all_too_old_keep_their_shares() {
    let world = World::concurrent(1);
    let first = started_with(&world, older(&world, "first"), 20).await;
    let second = older(&world, "second").start().await.unwrap();
    tokio::time::sleep(S * 300).await;
    until_owned(&world, S * 60, &[("first", 128), ("second", 128)]).await;
    let moved = epochs(&world).await;
    assert!(moved <= 256 * 4, "{moved}");
    tokio::time::sleep(S * 900).await;
    assert_eq!((buckets(&world, "first").await, epochs(&world).await), (128, moved), "nothing moves");
    assert!(first.stop(S * 30).await && second.stop(S * 30).await);
}
