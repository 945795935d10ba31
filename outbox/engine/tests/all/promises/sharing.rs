//! Fair sharing between relays, and wake-ups.

use outbox_contract::{AdminExt, Transactional};
use outbox_engine::Status;
use outbox_testkit::{Fault, FaultRates, StoreCall, StoreFaultRates};

use tokio::time::Instant;

use crate::promises::support::{MS, S, World, message, route, topic, within};

#[tokio::test(start_paused = true)]
async fn a_second_relay_gets_half_and_the_first_has_all_again_when_it_leaves() {
    let world = World::new();
    let (one, other) = (world.rig(), world.rig());
    let first = one.relay().start().await.unwrap();
    within(S, || first.stats().buckets == 256).await;
    let second = other.relay().start().await.unwrap();
    within(S * 15, || (first.stats().buckets, second.stats().buckets) == (128, 128)).await;
    world.append((0..200).map(|n| message(&format!("key-{n}")))).await;
    world.drained(S * 5).await;
    assert!(first.stats().delivered > 50 && second.stats().delivered > 50, "both work");
    assert!(second.stop(S * 10).await);
    within(S * 6, || first.stats().buckets == 256).await;
    assert_eq!(world.broker.len(), 200, "nothing was sent twice");
}

/// Heartbeats and releases run concurrently. An outdated answer does not take back what was given
/// up.
#[tokio::test(start_paused = true)]
async fn what_was_given_up_is_not_taken_back_by_a_late_answer() {
    let world = World::new();
    let (one, other) = (world.rig(), world.rig());
    for (call, delay) in [(StoreCall::Lease, S), (StoreCall::GiveBack, S * 4)] {
        one.store.set_rates_of(call, StoreFaultRates { delay, ..StoreFaultRates::default() });
    }
    for rig in [&one, &other] {
        rig.transport.set_rates(FaultRates { delay: S, ..FaultRates::default() });
    }
    let first = one.relay().heartbeat(MS * 50).start().await.unwrap();
    within(S * 2, || first.stats().buckets == 256).await;
    let _second = other.relay().heartbeat(MS * 50).start().await.unwrap();
    let mut sent = 0;
    for n in 0..600 {
        sent += world.append((0..4).map(|key| message(&format!("key-{}", (n * 4 + key) % 200)))).await.len();
        tokio::time::sleep(MS * 20).await;
    }
    world.drained(S * 60).await;
    assert_eq!(first.stats().buckets, 128, "half of it was given up");
    assert_eq!(world.broker.len(), sent, "nothing was sent twice");
}

/// Heartbeats are answered so late that the relay stops in between. It continues as soon as the
/// next answer arrives.
#[tokio::test(start_paused = true)]
async fn a_relay_that_stopped_for_a_late_heartbeat_goes_on_with_its_answer() {
    let world = World::new();
    let rig = world.rig();
    rig.transport.set_rates(FaultRates { delay: MS * 200, ..FaultRates::default() });
    world.append((0..3_000).map(|n| message(&format!("key-{}", n % 100)))).await;
    let relay = rig
        .relay()
        .max_unconfirmed_batches(1)
        .publish_batch(1)
        .fetch_batch(100)
        .max_in_flight(200)
        .store_timeout(S * 9);
    let relay = relay.start().await.unwrap();
    within(S, || relay.stats().buckets == 256).await;
    // Later than the 10 s for which it may publish, so it stops in between, for at most 6 s.
    let late = StoreFaultRates { delay: S * 8, ..StoreFaultRates::default() };
    rig.store.set_rates_of(StoreCall::Lease, late);
    let mut stops = Vec::new();
    while world.broker.len() < 3_000 {
        let (sent, started) = (world.broker.len(), Instant::now());
        while world.broker.len() == sent {
            tokio::time::sleep(MS * 10).await;
        }
        if started.elapsed() > S {
            stops.push(started.elapsed());
        }
    }
    assert!(stops.len() > 3, "it never stopped: {stops:?}");
    assert!(stops.iter().any(|stop| *stop < S * 4), "it always waited for longer than it had to: {stops:?}");
}

/// A relay that takes over a bucket reads it from the mark on. A bucket that is being given up is
/// still in use, so the mark must not pass it.
#[tokio::test(start_paused = true)]
async fn the_mark_does_not_pass_what_is_being_given_up() {
    let world = World::new();
    let (one, other) = (world.rig(), world.rig());
    let first =
        one.relay().heartbeat(MS * 500).publish_batch(1).max_unconfirmed_batches(64).start().await.unwrap();
    // The upper half of the buckets will be given up. Their messages are in flight then, and hang.
    let messages: Vec<_> = (0..64).map(|n| message(&format!("key-{n}"))).collect();
    let hanging = messages.iter().filter(|message| message.bucket().0 >= 128).map(|message| message.id);
    let hanging: Vec<_> = hanging.collect();
    hanging.iter().for_each(|id| one.transport.inject(*id, Fault::Hang));
    let last_that_flows = messages.iter().rposition(|message| message.bucket().0 < 128).unwrap();
    let first_that_hangs = messages.iter().position(|message| message.bucket().0 >= 128).unwrap();
    assert!(first_that_hangs < last_that_flows, "else the test shows nothing");
    world.append(messages).await;
    within(S, || world.broker.len() == 64 - hanging.len()).await;
    let second = other.relay().start().await.unwrap();
    tokio::time::sleep(S * 4).await;
    assert_eq!((first.stats().buckets, second.stats().buckets), (256, 0), "it is not finished with them");
    let beats = one.trace.take();
    let marks = beats.iter().filter_map(|line| line.split_once("its mark is "));
    // Positions count from 1.
    let most = i64::try_from(first_that_hangs).unwrap();
    assert!(marks.map(|(_, mark)| mark.parse::<i64>().unwrap()).all(|mark| mark <= most), "{beats:#?}");
}

/// A relay that lost its buckets because of its transport still notices that the transport is back.
#[tokio::test(start_paused = true)]
async fn a_relay_whose_transport_was_away_gives_its_buckets_back_and_gets_them_again() {
    let world = World::new();
    let (one, other) = (world.rig(), world.rig());
    let first = one.relay().start().await.unwrap();
    let second = other.relay().start().await.unwrap();
    within(S * 15, || (first.stats().buckets, second.stats().buckets) == (128, 128)).await;
    one.transport.go_down();
    world.append((0..200).map(|n| message(&format!("key-{n}")))).await;
    within(S * 45, || (first.stats().buckets, second.stats().buckets) == (0, 256)).await;
    world.drained(S * 5).await;
    one.transport.come_back();
    within(S * 30, || (first.stats().buckets, second.stats().buckets) == (128, 128)).await;
    within(S * 10, || first.health().status == Status::Healthy).await;
}

#[tokio::test(start_paused = true)]
async fn a_commit_is_published_within_milliseconds_though_the_idle_poll_is_a_second() {
    let world = World::new();
    let rig = world.rig();
    let _relay = rig.relay().start().await.unwrap();
    tokio::time::sleep(S * 30).await;
    for n in 1..=50 {
        tokio::time::sleep(MS * 1_777).await;
        world.append([message("a")]).await;
        let took = within(S * 2, || world.broker.len() == n).await;
        assert!(took <= MS * 3, "it took {took:?}");
    }
}

/// When idle, the relay queries the store at a fixed rate and no more, whatever the database can
/// tell of open transactions. A commit of this process is found at once, and for a moment it looks
/// more often.
#[tokio::test(start_paused = true)]
async fn an_idle_relay_asks_the_store_a_few_times_a_second_and_hears_of_a_commit_at_once() {
    for world in [World::new(), World::concurrent(), World::stripes()] {
        let rig = world.rig();
        let _relay = rig.relay().start().await.unwrap();
        tokio::time::sleep(S * 30).await;
        for sent in 1..=3 {
            let calls = rig.store.counts().calls;
            tokio::time::sleep(S * 60).await;
            let idle = rig.store.counts().calls - calls;
            assert!((60..=60 * 4).contains(&idle), "{idle} calls in a minute");
            world.append([message("a")]).await;
            let took = within(S, || world.broker.len() == sent).await;
            assert!(took <= MS * 5, "it took {took:?}");
            tokio::time::sleep(S * 5).await;
        }
    }
}

/// The user commits without a wake-up. The wake-up of the append makes the relay look repeatedly
/// for a while.
#[tokio::test(start_paused = true)]
async fn a_plain_commit_some_time_after_the_append_is_found_soon() {
    let world = World::new();
    let rig = world.rig();
    rig.store.set_rates_of(outbox_testkit::StoreCall::Wakeups, outbox_testkit::StoreFaultRates::default());
    let _relay = rig.relay().start().await.unwrap();
    tokio::time::sleep(S * 30).await;
    for held in [1, 5, 20, 60, 120] {
        let sent = world.broker.len();
        let mut tx = world.store.begin().await.unwrap();
        world.write(&mut tx, [message("a")]).await;
        tokio::time::sleep(MS * held).await;
        // From here on the store's own wake-up of the commit is lost.
        let lost = outbox_testkit::StoreFault::Before;
        rig.store.inject(outbox_testkit::StoreCall::Wakeups, lost, 1);
        world.store.commit(tx).await.into_result().unwrap();
        let took = within(S * 2, || world.broker.len() > sent).await;
        assert!(took <= MS * (held + 5), "held for {held} ms, it took {took:?}");
        tokio::time::sleep(S * 5).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_pause_stops_the_route_or_the_topic_and_a_resume_ends_it() {
    for whole in [true, false] {
        let world = World::new();
        let rig = world.rig();
        let part = topic("orders");
        let paused = (!whole).then_some(&part);
        rig.transport.set_rates(outbox_testkit::FaultRates { delay: S, ..Default::default() });
        world.append((0..2_000).map(|n| message(&format!("key-{}", n % 10)))).await;
        let relay = rig.relay().max_unconfirmed_batches(1).publish_batch(5).start().await.unwrap();
        within(S * 5, || relay.stats().delivered > 0).await;
        world.store.pause(&route(), paused).await.unwrap();
        // After the next heartbeat, and after the batches in flight then.
        tokio::time::sleep(S * 7).await;
        let sent = world.broker.len();
        assert!(sent < 2_000, "there is more");
        tokio::time::sleep(S * 120).await;
        assert_eq!(world.broker.len(), sent, "whole route: {whole}");
        assert_eq!(relay.health().status, Status::Unhealthy, "what waits is old: {:?}", relay.health());
        world.store.resume(&route(), paused).await.unwrap();
        rig.transport.calm();
        world.drained(S * 10).await;
        assert_eq!(world.broker.len(), 2_000);
    }
}
