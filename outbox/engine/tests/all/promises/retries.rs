//! Retry policies, and admin operations on keys that used up their attempts.

use std::time::Duration;

use outbox_contract::admin::Filter;
use outbox_contract::{Admin, AdminExt, Exhausted, MessageId, RetryPolicy};
use outbox_engine::RelayHandle;
use outbox_testkit::Fault;
use tokio::time::Instant;

use crate::promises::support::{MS, Rig, S, World, key_id, message, route, within};

#[tokio::test(start_paused = true)]
async fn attempts_follow_the_schedule_and_end_in_a_dead_letter_that_says_why() {
    let world = World::new();
    let rig = world.rig();
    let ids = world.append([message("a"), message("a")]).await;
    rig.transport.inject(ids[0], Fault::Failed);
    let policy = RetryPolicy {
        max_attempts: 5,
        first_delay: S,
        max_delay: S * 3,
        exhausted: Exhausted::DeadLetter,
        ..RetryPolicy::default()
    };
    let relay = rig.relay().retry(policy).start().await.unwrap();
    let mut waits = Vec::new();
    for attempt in 1..=5 {
        waits.push(within(S * 10, || relay.stats().failed == attempt).await);
    }
    for (attempt, (wait, bound)) in waits[1..].iter().zip([1, 2, 3, 3]).enumerate() {
        let most = S * bound + MS * 20;
        assert!(*wait <= most, "the wait after attempt {attempt} was {wait:?}, {most:?} at the most");
    }
    world.drained(S).await;
    let dead = world.dead().await;
    assert_eq!(
        (dead[0].stored.message.id, dead[0].reason.as_str(), dead[0].attempts),
        (ids[0], "exhausted", 5)
    );
    assert!(dead[0].first_failure.is_some() && dead[0].last_failure.is_some());
    assert_eq!(world.arrived(), [ids[1]], "the key goes on");
}

#[tokio::test(start_paused = true)]
async fn a_dead_letter_has_the_first_and_the_last_failure() {
    let world = World::new();
    let rig = world.rig();
    let ids = world.append([message("a")]).await;
    rig.transport.inject_times(ids[0], Fault::Failed, 2);
    let relay = rig.relay().start().await.unwrap();
    within(S * 10, || relay.stats().failed == 2).await;
    rig.transport.inject(ids[0], Fault::Rejected);
    within(S * 10, || world.store.snapshot().dead == 1).await;
    let dead = &world.dead().await[0];
    assert_eq!((dead.reason.as_str(), dead.attempts), ("rejected", 3));
    let words = |failure: &Option<outbox_contract::Failure>| failure.as_ref().unwrap().message.clone();
    assert_eq!(words(&dead.first_failure), "a failure was injected");
    assert_eq!(words(&dead.last_failure), "a rejection was injected");
}

/// Attempts are stored with the key, so two relays see the same number.
#[tokio::test(start_paused = true)]
async fn attempts_go_on_where_another_relay_left_them() {
    let world = World::new();
    let rig = world.rig();
    let ids = world.append([message("a")]).await;
    rig.transport.inject(ids[0], Fault::Failed);
    let policy = RetryPolicy { max_attempts: 4, ..RetryPolicy::default() };
    let relay = rig.relay().retry(policy.clone()).start().await.unwrap();
    within(S * 10, || relay.stats().failed == 2).await;
    tokio::time::sleep(MS * 10).await;
    assert!(relay.stop(S * 10).await);
    let another = rig.relay().retry(policy).start().await.unwrap();
    within(S * 30, || world.store.snapshot().dead == 1).await;
    assert_eq!((another.stats().failed, world.dead().await[0].attempts), (2, 4));
}

/// Creates a key that used up its attempts and is held, with two messages behind the failed one.
async fn held(world: &World, rig: &Rig) -> (RelayHandle, Vec<MessageId>) {
    let ids = world.append([message("a"), message("a"), message("a")]).await;
    rig.transport.inject(ids[0], Fault::Failed);
    let policy = RetryPolicy { max_attempts: 2, exhausted: Exhausted::Hold, ..RetryPolicy::default() };
    let relay = rig.relay().retry(policy).start().await.unwrap();
    within(S * 30, || relay.stats().failed == 2).await;
    tokio::time::sleep(S * 600).await;
    let failing = world.store.failing_keys(&Filter::all_routes()).await.unwrap();
    assert!(failing[0].held && failing[0].attempts == 2 && failing[0].parked == 3, "{failing:?}");
    assert!(world.broker.is_empty(), "no message passes it");
    (relay, ids)
}

/// Time until admin operations take effect: the next query for due keys.
const NOTICED: Duration = Duration::from_secs(6);

#[tokio::test(start_paused = true)]
async fn a_held_key_that_is_released_goes_on_without_a_gap() {
    let world = World::new();
    let rig = world.rig();
    let (_relay, ids) = held(&world, &rig).await;
    rig.transport.calm();
    world.store.release(&route(), &key_id("a")).await.unwrap();
    world.drained(NOTICED).await;
    assert_eq!(world.arrived(), ids);
    assert_eq!(world.store.snapshot().failing_keys, 0, "it flows again");
}

#[tokio::test(start_paused = true)]
async fn a_held_key_whose_first_message_is_skipped_goes_on_with_the_next() {
    let world = World::new();
    let rig = world.rig();
    let (_relay, ids) = held(&world, &rig).await;
    assert_eq!(world.store.skip(&route(), &key_id("a")).await.unwrap(), Some(ids[0]));
    world.drained(NOTICED).await;
    assert_eq!(world.arrived(), ids[1..]);
    assert_eq!(world.dead().await[0].reason, "skipped");
}

#[tokio::test(start_paused = true)]
async fn a_held_key_that_is_discarded_is_empty_and_flows_again() {
    let world = World::new();
    let rig = world.rig();
    let (_relay, _) = held(&world, &rig).await;
    assert_eq!(world.store.discard(&route(), &key_id("a")).await.unwrap(), 3);
    let next = world.append([message("a")]).await;
    world.drained(S).await;
    assert_eq!(world.arrived(), next);
    assert_eq!(world.dead().await.len(), 3);
}

#[tokio::test(start_paused = true)]
async fn a_dead_letter_that_is_requeued_goes_to_the_end_of_its_key() {
    let world = World::new();
    let rig = world.rig();
    let ids = world.append([message("a"), message("a")]).await;
    rig.transport.inject_times(ids[0], Fault::Rejected, 1);
    let _relay = rig.relay().start().await.unwrap();
    world.drained(S * 5).await;
    assert_eq!(world.store.requeue(&Filter::all_routes()).await.unwrap(), 1);
    world.drained(S * 5).await;
    assert_eq!(world.arrived(), [ids[1], ids[0]]);
}

/// A scheduled message is sent when it is due, neither sooner nor a polling interval later.
#[tokio::test(start_paused = true)]
async fn a_scheduled_message_is_sent_when_it_is_due() {
    use outbox_contract::backend::Clock;
    use outbox_contract::{Outgoing, Transactional};
    let rig_world = World::new();
    let clock = std::sync::Arc::new(outbox_testkit::TestClock::new(1));
    let store = outbox_store_memory::MemoryStore::builder()
        .clock(std::sync::Arc::<outbox_testkit::TestClock>::clone(&clock))
        .build();
    let world = World { store, ..rig_world };
    let rig = world.rig();
    let _relay = rig.relay().start().await.unwrap();
    let mut tx = world.store.begin().await.unwrap();
    let due_at = clock.now().plus(S * 30);
    world.store.append(&mut tx, &[Outgoing::from(message("a")).due_at(due_at)]).await.unwrap();
    world.store.commit(tx).await.into_result().unwrap();
    let started = Instant::now();
    tokio::time::sleep(S * 29).await;
    within(S * 11, || world.broker.len() == 1).await;
    let took = started.elapsed();
    assert!(took >= S * 30 && took <= S * 30 + MS * 10, "it took {took:?}");
}
