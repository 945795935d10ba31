//! Atomicity (P1) and key order (P3).

use std::sync::Arc;

use outbox_contract::Transactional;
use outbox_testkit::{Fault, FaultRates, StoreCall, StoreFaultRates};

use crate::promises::line::Late;
use crate::promises::support::{MS, S, World, message, within};

#[tokio::test(start_paused = true)]
async fn what_is_rolled_back_is_never_sent() {
    for world in [World::new(), World::concurrent(), World::stripes()] {
        let rig = world.rig();
        let _relay = rig.relay().start().await.unwrap();
        let mut tx = world.store.begin().await.unwrap();
        world.write(&mut tx, [message("a")]).await;
        tokio::time::sleep(S).await;
        world.store.rollback(tx).await.unwrap();
        let mut abandoned = world.store.begin().await.unwrap();
        world.write(&mut abandoned, [message("a")]).await;
        drop(abandoned);
        let committed = world.append([message("a")]).await;
        world.drained(S).await;
        tokio::time::sleep(S * 60).await;
        assert_eq!(world.arrived(), committed);
    }
}

#[tokio::test(start_paused = true)]
async fn what_follows_a_failing_message_waits_for_it() {
    let world = World::new();
    let rig = world.rig();
    let ids = world.append([message("a"), message("a"), message("a")]).await;
    rig.transport.inject_times(ids[1], Fault::Failed, 3);
    let relay = rig.relay().start().await.unwrap();
    world.drained(S * 30).await;
    assert_eq!(world.arrived(), ids, "in order, and once");
    assert_eq!(relay.stats().failed, 3);
}

#[tokio::test(start_paused = true)]
async fn what_is_appended_while_a_key_fails_goes_behind_it() {
    let world = World::new();
    let rig = world.rig();
    let mut ids = world.append([message("a"), message("a")]).await;
    rig.transport.inject_times(ids[0], Fault::Failed, 4);
    let _relay = rig.relay().start().await.unwrap();
    for _ in 0..50 {
        ids.extend(world.append([message("a")]).await);
        tokio::time::sleep(MS * 100).await;
    }
    world.drained(S * 60).await;
    assert_eq!(world.arrived(), ids);
}

#[tokio::test(start_paused = true)]
async fn what_follows_a_message_of_unknown_outcome_waits_for_it() {
    for fault in [Fault::UnknownWithoutEffect, Fault::Hang, Fault::PanicBefore] {
        let world = World::new();
        let rig = world.rig();
        let ids = world.append([message("a"), message("a"), message("a")]).await;
        rig.transport.inject_times(ids[0], fault, 2);
        let _relay = rig.relay().start().await.unwrap();
        world.drained(S * 60).await;
        assert_eq!(world.arrived(), ids, "{fault:?}");
    }
}

/// A message fails. Before the transition that parks it takes effect, a fetch has read the next
/// message of its key, and the answer of that fetch arrives last.
#[tokio::test(start_paused = true)]
async fn a_key_that_begins_to_fail_while_a_fetch_is_under_way_keeps_its_order() {
    let world = World::new();
    let rig = world.rig();
    rig.luck.set(Late { answer: MS * 40, ..Late::default() });
    rig.store.set_rates_of(
        StoreCall::Transition,
        StoreFaultRates { delay: MS * 10, ..StoreFaultRates::default() },
    );
    let _relay = rig.relay().start().await.unwrap();
    for round in 0..100 {
        let key = format!("key-{round}");
        let mut ids = world.append([message(&key)]).await;
        rig.transport.inject_times(ids[0], Fault::Failed, 1);
        tokio::time::sleep(MS * 7).await;
        ids.extend(world.append([message(&key)]).await);
        let sent = world.broker.len();
        world.drained(S * 30).await;
        assert_eq!(world.arrived()[sent..], ids, "{key}");
    }
}

#[tokio::test(start_paused = true)]
async fn concurrent_writers_of_a_key_are_sent_in_the_order_of_their_commits() {
    for world in [World::concurrent(), World::stripes()] {
        concurrent_writers_of_a_key(world).await;
    }
}

async fn concurrent_writers_of_a_key(world: World) {
    let world = Arc::new(world);
    let rig = world.rig();
    let _relay = rig.relay().start().await.unwrap();
    let committed = Arc::new(std::sync::Mutex::new(Vec::new()));
    let mut writers = tokio::task::JoinSet::new();
    for writer in 0..8_u32 {
        let (world, committed) = (Arc::clone(&world), Arc::clone(&committed));
        writers.spawn(async move {
            for n in 0..20_u32 {
                let mut tx = world.store.begin().await.unwrap();
                // Writes to a key of its own first, so that positions are assigned long before they
                // are committed.
                world.write(&mut tx, [message(&format!("own-{writer}"))]).await;
                tokio::time::sleep(MS * ((writer * 7 + n) % 23)).await;
                let ids = world.write(&mut tx, [message("shared")]).await;
                tokio::time::sleep(MS * ((writer * 3 + n) % 11)).await;
                world.store.commit(tx).await.into_result().unwrap();
                // No other writer gets the key's lock between the commit and this line, as all run
                // on one thread.
                committed.lock().unwrap().extend(ids);
            }
        });
    }
    while writers.join_next().await.is_some() {}
    world.drained(S * 30).await;
    assert_eq!(world.arrived().len(), 320, "everything, and once");
    let shared: Vec<_> = world.broker.published().into_iter().filter(|it| it.key.key == "shared").collect();
    let arrived: Vec<_> = shared.into_iter().map(|it| it.id).collect();
    assert_eq!(arrived, *committed.lock().unwrap());
}

/// A position is committed late, below others that were read long before.
#[tokio::test(start_paused = true)]
async fn a_transaction_that_commits_late_is_not_passed_over() {
    for world in [World::concurrent(), World::stripes()] {
        a_transaction_that_commits_late(world).await;
    }
}

async fn a_transaction_that_commits_late(world: World) {
    let rig = world.rig();
    let _relay = rig.relay().start().await.unwrap();
    let mut late = world.store.begin().await.unwrap();
    let late_ids = world.write(&mut late, [message("late")]).await;
    for _ in 0..20 {
        world.append([message("early")]).await;
        tokio::time::sleep(S).await;
    }
    assert_eq!(world.broker.len(), 20, "no message waits for the late one");
    world.store.commit(late).await.into_result().unwrap();
    within(S * 2, || world.arrived().last() == Some(&late_ids[0])).await;
}

/// As above, for long. Fetches do not scan again what was delivered meanwhile, and still see the
/// late commit.
#[tokio::test(start_paused = true)]
async fn a_transaction_that_stays_open_costs_the_others_nothing() {
    // With sequence shards, each row uses up 1,024 positions.
    for (world, unit) in [(World::concurrent(), 1), (World::stripes(), 1_024)] {
        a_transaction_that_stays_open(world, unit).await;
    }
}

async fn a_transaction_that_stays_open(world: World, unit: usize) {
    let rig = world.rig();
    let _relay = rig.relay().fetch_batch(10).start().await.unwrap();
    let mut late = world.store.begin().await.unwrap();
    let late_ids = world.write(&mut late, [message("late")]).await;
    for turn in 0..300 {
        world.append([message("early"), message("other")]).await;
        within(S * 60, || world.broker.len() == 2 * (turn + 1)).await;
        tokio::time::sleep(MS * 40).await;
    }
    let reads: Vec<String> = rig.trace.take().into_iter().filter(|line| line.contains("reads")).collect();
    let behind = |line: &String| line.split("behind ").nth(1)?.split(':').next()?.parse::<usize>().ok();
    let last = behind(reads.last().unwrap()).unwrap();
    assert!(last >= 400 * unit, "the last read began behind {last}, of 601 positions of {unit}");

    world.store.commit(late).await.into_result().unwrap();
    within(S * 2, || world.arrived().last() == Some(&late_ids[0])).await;
    world.drained(S * 60).await;
}

#[tokio::test(start_paused = true)]
async fn a_key_whose_message_never_answers_delays_no_other() {
    let world = World::new();
    let rig = world.rig();
    let ids = world.append([message("slow"), message("slow")]).await;
    rig.transport.inject(ids[0], Fault::Hang);
    // So busy that keys wait in a line together.
    rig.transport.set_rates(FaultRates { delay: MS * 6, ..FaultRates::default() });
    let relay = rig.relay().max_unconfirmed_batches(4).publish_timeout(S).start().await.unwrap();
    // Messages that share its batch the first time wait for the publish timeout; none do a second
    // time.
    within(S * 10, || relay.stats().unknown == 1).await;
    let mut longest = MS;
    for n in 0..20_000 {
        world.append([message(&format!("key-{n}"))]).await;
        tokio::time::sleep(MS).await;
        if n % 20 == 19 {
            longest = longest.max(within(S * 60, || world.waiting() <= ids.len()).await);
        }
    }
    assert!(longest <= MS * 50, "the slowest was removed after {longest:?}");
    assert!(relay.stats().failed > 1, "it was tried again as a failing message too");
}
