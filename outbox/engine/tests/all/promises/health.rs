//! Visible (P9): health reports what is wrong, and when it is over.

use std::sync::Arc;
use std::time::Duration;

use outbox_contract::admin::Filter;
use outbox_contract::backend::{LeaseRequest, RelayId, StoreLayer};
use outbox_contract::{
    Admin, AdminExt, Exhausted, Outgoing, RetryPolicy, RetryRule, Route, Store, Timestamp, Transactional,
};
use outbox_engine::{Reason, ReasonKind, RelayHandle, Status};
use outbox_testkit::{Fault, StoreCall, StoreFaultRates};
use tokio::time::Instant;

use crate::promises::support::{MS, S, World, key_id, message, of_topic, route, topic, within};

/// Beginnings of reasons, behind their route, each with the kind that programs see.
const KINDS: &[(&str, ReasonKind)] = &[
    ("the transport has been unavailable", ReasonKind::Outage),
    ("the transport does not answer", ReasonKind::Outage),
    ("waiting for an operator: 1 held key", ReasonKind::HeldKeys),
    ("the oldest message has been waiting", ReasonKind::OldestAge),
    ("the oldest message of failing keys has been waiting", ReasonKind::OldestAge),
    ("waiting for an operator: 1 dead letter;", ReasonKind::DeadLetters),
    ("waiting for an operator: 2 dead letters;", ReasonKind::DeadLetters),
    ("topic broken is not published", ReasonKind::Topic),
    ("the relay keeps restarting", ReasonKind::Failing),
    ("leases were last renewed", ReasonKind::Leases),
    ("the backlog has not been measured yet", ReasonKind::Unmeasured),
    ("measuring the backlog has been failing", ReasonKind::Unmeasured),
    ("maintenance has been failing", ReasonKind::Maintenance),
    ("relays of this route are configured differently", ReasonKind::Configuration),
    ("no running relay serves it", ReasonKind::UnservedRoute),
    ("check for unserved routes", ReasonKind::UnservedUnknown),
];

fn says(relay: &RelayHandle, status: Status, words: &str) -> bool {
    let health = relay.health();
    let found = health.reasons.iter().find(|reason| reason.text.contains(words));
    if let Some(Reason { kind, text, .. }) = found {
        let text =
            text.strip_prefix("route ").and_then(|text| text.split_once(": ")).map_or(&**text, |it| it.1);
        let known = KINDS.iter().find(|(begin, _)| text.starts_with(begin)).map(|(_, kind)| kind);
        assert_eq!(known, Some(kind), "{text}");
        assert!(health.reasons.iter().any(|reason| reason.status == health.status), "{health:?}");
    }
    health.status == status && found.is_some()
}

#[tokio::test(start_paused = true)]
async fn an_outage_degrades_then_fails_then_is_over() {
    let world = World::new();
    let rig = world.rig();
    let relay = rig.relay().start().await.unwrap();
    assert_ne!(relay.health().status, Status::Healthy, "nothing is known yet");
    within(S, || relay.health().status == Status::Healthy).await;
    rig.transport.go_down();
    world.append([message("a")]).await;
    within(S, || says(&relay, Status::Degraded, "the transport has been unavailable for")).await;
    within(S * 16, || {
        says(&relay, Status::Unhealthy, "the transport has been unavailable for 15s: an outage")
    })
    .await;
    rig.transport.come_back();
    within(S * 12, || relay.health().status == Status::Healthy).await;
}

/// No message would tell.
#[tokio::test(start_paused = true)]
async fn a_transport_that_is_away_while_nothing_is_to_be_sent_degrades() {
    let world = World::new();
    let rig = world.rig();
    rig.transport.go_down();
    let relay = rig.relay().start().await.unwrap();
    let away = "the transport does not answer: ";
    tokio::time::sleep(S * 10).await;
    assert!(says(&relay, Status::Degraded, away), "it was away at the start: {:?}", relay.health());
    rig.transport.come_back();
    within(S * 10, || relay.health().status == Status::Healthy).await;
    tokio::time::sleep(S * 90).await;
    rig.transport.go_down();
    within(S * 70, || says(&relay, Status::Degraded, away)).await;
    tokio::time::sleep(S * 600).await;
    assert!(says(&relay, Status::Degraded, away), "nothing waits, however long: {:?}", relay.health());
    rig.transport.come_back();
    world.append([message("a")]).await;
    world.drained(S).await;
    within(S, || relay.health().status == Status::Healthy).await;
}

/// No batch would tell that the transport is back.
#[tokio::test(start_paused = true)]
async fn an_outage_is_over_though_nothing_is_left_to_be_sent() {
    let world = World::new();
    let rig = world.rig();
    let relay = rig.relay().start().await.unwrap();
    rig.transport.go_down();
    world.append([message("a")]).await;
    within(S * 20, || says(&relay, Status::Unhealthy, "the transport has been unavailable for")).await;
    world.store.pause(&route(), Some(&topic("orders"))).await.unwrap();
    tokio::time::sleep(S * 15).await;
    assert!(says(&relay, Status::Unhealthy, "the transport has been unavailable for"), "it lasts");
    rig.transport.come_back();
    let is_outage = |reason: &Reason| reason.kind == ReasonKind::Outage;
    within(S * 30, || !relay.health().reasons.iter().any(is_outage)).await;
    world.store.resume(&route(), Some(&topic("orders"))).await.unwrap();
    world.drained(S * 10).await;
}

/// A handler of a web server, for example, has no handle to stop the relay.
#[tokio::test(start_paused = true)]
async fn an_observer_sees_what_the_handle_sees_and_outlives_it() {
    let world = World::new();
    let rig = world.rig();
    let relay = rig.relay().start().await.unwrap();
    let observer = relay.observer().clone();
    within(S, || observer.health().status == Status::Healthy).await;
    world.append([message("a")]).await;
    world.drained(S).await;
    within(S, || observer.stats().settled == 1).await;
    assert_eq!(
        (observer.id(), observer.stats(), observer.backlog()),
        (relay.id(), relay.stats(), relay.observer().backlog())
    );
    assert!(relay.stop(S * 20).await);
    assert_eq!(observer.health().status, Status::Unhealthy, "nothing is published any more");
}

#[tokio::test(start_paused = true)]
async fn a_held_key_degrades_until_it_is_released() {
    let world = World::new();
    let rig = world.rig();
    let ids = world.append([message("a")]).await;
    rig.transport.inject(ids[0], Fault::Failed);
    let hold = RetryPolicy { max_attempts: 1, exhausted: Exhausted::Hold, ..RetryPolicy::default() };
    let relay = rig.relay().retry(hold).start().await.unwrap();
    within(S * 10, || says(&relay, Status::Degraded, "waiting for an operator: 1 held key")).await;
    within(S * 70, || says(&relay, Status::Degraded, "the oldest message of failing keys has been waiting"))
        .await;
    tokio::time::sleep(S * 600).await;
    assert_eq!(relay.health().status, Status::Degraded, "however long: {:?}", relay.health());
    rig.transport.calm();
    world.store.release(&route(), &key_id("a")).await.unwrap();
    within(S * 15, || relay.health().status == Status::Healthy).await;
}

#[tokio::test(start_paused = true)]
async fn a_key_that_is_retried_for_long_degrades_and_does_not_hide_other_messages_that_wait() {
    let world = World::new();
    let rig = world.rig();
    let ids = world.append([message("a")]).await;
    rig.transport.inject(ids[0], Fault::Failed);
    let retry = RetryPolicy { max_attempts: 1_000, ..RetryPolicy::default() };
    let relay = rig.relay().retry(retry).start().await.unwrap();
    let failing = "the oldest message of failing keys has been waiting";
    within(S * 80, || says(&relay, Status::Degraded, failing)).await;
    tokio::time::sleep(S * 600).await;
    assert!(says(&relay, Status::Degraded, failing), "however long: {:?}", relay.health());
    world.store.pause(&route(), None).await.unwrap();
    tokio::time::sleep(S * 20).await;
    world.append([message("b")]).await;
    within(S * 80, || says(&relay, Status::Unhealthy, "the oldest message has been waiting for")).await;
}

#[tokio::test(start_paused = true)]
async fn dead_letters_degrade_until_somebody_has_seen_to_them() {
    let world = World::new();
    let rig = world.rig();
    let relay = rig.relay().start().await.unwrap();
    for (count, told) in [(1, "1 dead letter;"), (2, "2 dead letters;")] {
        let ids = world.append([message("a")]).await;
        rig.transport.inject(ids[0], Fault::Rejected);
        let words = format!("waiting for an operator: {told}");
        within(S * 15, || says(&relay, Status::Degraded, &words)).await;
        assert!(says(&relay, Status::Degraded, &format!("{count} since this relay started")));
    }
    // A relay that starts later finds the earlier ones.
    let later = world.rig().relay().start().await.unwrap();
    within(S * 15, || says(&later, Status::Degraded, "waiting for an operator: 2 dead letters")).await;
    assert!(says(&later, Status::Degraded, "0 since this relay started"));
    world.store.purge(&Filter::all_routes()).await.unwrap();
    within(S * 15, || relay.health().status == Status::Healthy).await;
}

/// Messages waiting at the start have no owner before the first lease, which is about to come.
#[tokio::test(start_paused = true)]
async fn a_good_start_is_not_said_to_leave_buckets_without_an_owner() {
    let world = World::new();
    world.append((0..50).map(|n| message(&format!("key-{n}")))).await;
    let rig = world.rig();
    rig.store.set_rates_of(StoreCall::Lease, StoreFaultRates { delay: S * 2, ..StoreFaultRates::default() });
    let relay = rig.relay().start().await.unwrap();
    let mut is_measured = false;
    for _ in 0..200 {
        tokio::time::sleep(MS * 50).await;
        let unowned =
            relay.observer().backlog().iter().map(|(_, backlog)| backlog.unowned_buckets).sum::<u64>();
        is_measured |= unowned > 0;
        let health = relay.health();
        let is_unowned = |reason: &Reason| reason.kind == ReasonKind::UnownedBuckets;
        assert!(!health.reasons.iter().any(is_unowned), "{health:?}");
    }
    assert!(is_measured, "it was measured before the first lease");
}

#[tokio::test(start_paused = true)]
async fn a_broken_topic_degrades_until_it_heals() {
    let world = World::new();
    let rig = world.rig();
    rig.transport.break_topic(topic("broken"));
    world.append([of_topic("broken", "a")]).await;
    let relay = rig.relay().start().await.unwrap();
    within(S * 10, || {
        says(&relay, Status::Degraded, "topic broken is not published: an outage was injected")
    })
    .await;
    rig.transport.heal_topic(&topic("broken"));
    within(S * 15, || relay.health().status == Status::Healthy).await;
}

#[tokio::test(start_paused = true)]
async fn a_store_that_is_away_makes_it_unhealthy_until_it_is_back() {
    let world = World::new();
    let rig = world.rig();
    let relay = rig.relay().start().await.unwrap();
    within(S, || relay.health().status == Status::Healthy).await;
    rig.store.set_rates(StoreFaultRates { before: 1.0, ..StoreFaultRates::default() });
    within(S * 30, || says(&relay, Status::Unhealthy, "the relay keeps restarting")).await;
    within(S * 30, || says(&relay, Status::Unhealthy, "leases were last renewed")).await;
    rig.store.calm();
    world.append([message("a")]).await;
    let took = world.drained(S * 10).await;
    assert!(took <= S * 6, "it worked again after {took:?}");
    // Frequent failures are remembered for a minute.
    within(S * 90, || relay.health().status == Status::Healthy).await;
}

const FAILS: StoreFaultRates =
    StoreFaultRates { before: 1.0, after: 0.0, hang_before: 0.0, hang_after: 0.0, delay: S };

#[tokio::test(start_paused = true)]
async fn a_backlog_that_could_never_be_measured_makes_it_unhealthy() {
    let world = World::new();
    let rig = world.rig();
    rig.store.set_rates_of(StoreCall::Backlog, FAILS);
    let relay = rig.relay().start().await.unwrap();
    within(S, || says(&relay, Status::Degraded, "has not been measured yet")).await;
    within(S * 60, || says(&relay, Status::Unhealthy, "measuring the backlog has been failing for")).await;
    rig.store.calm();
    within(S * 30, || relay.health().status == Status::Healthy).await;
    rig.store.set_rates_of(StoreCall::Backlog, FAILS);
    within(S * 60, || says(&relay, Status::Unhealthy, "measuring the backlog has been failing for")).await;
}

/// It takes up to four seconds, two on average.
#[tokio::test(start_paused = true)]
async fn a_backlog_that_takes_long_to_measure_is_measured_less_often() {
    let world = World::new();
    let rig = world.rig();
    rig.store
        .set_rates_of(StoreCall::Backlog, StoreFaultRates { delay: S * 4, ..StoreFaultRates::default() });
    let relay = rig.relay().start().await.unwrap();
    within(S * 10, || relay.health().status == Status::Healthy).await;
    for second in 0..600 {
        tokio::time::sleep(S).await;
        let health = relay.health();
        assert_eq!(health.status, Status::Healthy, "after {second} s: {:?}", health.reasons);
    }
    let calls = rig.store.calls(StoreCall::Backlog);
    assert!((15..=40).contains(&calls), "{calls} in ten minutes");
}

#[tokio::test(start_paused = true)]
async fn maintenance_that_fails_degrades() {
    for call in [StoreCall::Elect, StoreCall::Maintain, StoreCall::RecordRetention] {
        let world = World::new();
        let rig = world.rig();
        rig.store.set_rates_of(call, FAILS);
        let relay = rig.relay().start().await.unwrap();
        within(S * 60, || says(&relay, Status::Degraded, "maintenance has been failing for")).await;
        rig.store.calm();
        within(S * 30, || relay.health().status == Status::Healthy).await;
    }
}

/// A handle of a store that keeps delivered messages.
struct Keeping<T>(T);

impl<T: Store> StoreLayer for Keeping<T> {
    type Inner = T;

    fn inner(&self) -> &T {
        &self.0
    }

    fn history_kept(&self) -> Option<Duration> {
        Some(S * 60)
    }
}

#[tokio::test(start_paused = true)]
async fn relays_that_are_configured_differently_say_so() {
    let another = RetryPolicy { max_attempts: 3, ..RetryPolicy::default() };
    let rule = RetryRule { class: Some("timeout".into()), max_attempts: Some(1), ..RetryRule::default() };
    let by_class = RetryPolicy { rules: vec![rule], ..RetryPolicy::default() };
    for number in 0..5 {
        let world = World::new();
        let (one, other) = (world.rig(), world.rig());
        let first = one.relay().start().await.unwrap();
        tokio::time::sleep(MS * 100).await;
        let second = match number {
            0 => other.relay().retry(another.clone()),
            1 => other.relay().retry(by_class.clone()),
            2 => other.relay().source("/another-shop"),
            3 => other.relay_on(Keeping(Arc::clone(&other.store))),
            // A larger machine, with the same treatment of messages.
            _ => other.relay().max_unconfirmed_batches(32).fetch_batch(500).publish_timeout(S * 2),
        };
        let second = second.start().await.unwrap();
        let words = "relays of this route are configured differently (retry policies, source or history)";
        if number < 4 {
            within(S * 10, || {
                says(&first, Status::Degraded, words) && says(&second, Status::Degraded, words)
            })
            .await;
        } else {
            tokio::time::sleep(S * 20).await;
            assert_eq!((first.health().status, second.health().status), (Status::Healthy, Status::Healthy));
        }
    }
}

/// A round of maintenance may take long. The backlog is measured meanwhile.
#[tokio::test(start_paused = true)]
async fn what_waits_is_measured_while_maintenance_takes_long() {
    let world = World::new();
    let rig = world.rig();
    rig.store.set_rates_of(StoreCall::Maintain, StoreFaultRates { hang_before: 1.0, ..Default::default() });
    let relay = rig.relay().store_timeout(S * 600).start().await.unwrap();
    tokio::time::sleep(S).await;
    rig.transport.go_down();
    world.append([message("a")]).await;
    within(S * 12, || relay.observer().backlog().iter().any(|(_, backlog)| backlog.pending == 1)).await;
    within(S * 90, || says(&relay, Status::Unhealthy, "the oldest message has been waiting for")).await;
}

/// The age of the backlog comes from a measurement. If one never returns, the last one must not
/// pass for current.
#[tokio::test(start_paused = true)]
async fn a_measurement_that_never_ends_makes_it_unhealthy() {
    let world = World::new();
    let rig = world.rig();
    let relay = rig.relay().store_timeout(S * 60).start().await.unwrap();
    within(S, || relay.health().status == Status::Healthy).await;
    rig.store
        .set_rates_of(StoreCall::Backlog, StoreFaultRates { hang_before: 1.0, ..StoreFaultRates::default() });
    within(S * 90, || says(&relay, Status::Unhealthy, "measuring the backlog has been failing for")).await;
}

async fn append(world: &World, outgoing: Outgoing) {
    let mut tx = world.store.begin().await.unwrap();
    world.store.append(&mut tx, &[outgoing]).await.unwrap();
    world.store.commit(tx).await.into_result().unwrap();
}

async fn append_by(world: &World, route: &str) {
    append(world, Outgoing::from(message("a")).by(Route::new(route).unwrap())).await;
}

/// Registers a relay of another program, for so long.
async fn serve(world: &World, route: &str, lasts: Duration) {
    let route = Route::new(route).unwrap();
    let mut request = LeaseRequest::new(RelayId::new(), route, lasts);
    request.label = "another".to_owned();
    world.store.lease(&request).await.unwrap();
}

fn unserved(relay: &RelayHandle) -> Vec<String> {
    relay.observer().unserved().iter().map(|unserved| unserved.route.to_string()).collect()
}

/// As for a mistyped route, or a renamed consumer. Only relays of other routes can notice.
#[tokio::test(start_paused = true)]
async fn a_route_that_no_relay_serves_degrades_until_one_does() {
    let world = World::new();
    let rig = world.rig();
    let relay = rig.relay().start().await.unwrap();
    append_by(&world, "attic").await;
    tokio::time::sleep(S * 80).await;
    append_by(&world, "inbox/stock").await;
    within(S * 41, || {
        says(&relay, Status::Degraded, "route attic: no running relay serves it, and its oldest")
    })
    .await;
    assert_eq!(unserved(&relay), ["attic"], "the other one has not waited for a minute");
    within(S * 61, || says(&relay, Status::Degraded, "route inbox/stock: no running relay serves it")).await;
    assert!(says(&relay, Status::Degraded, "start the inbox of this consumer"), "{:?}", relay.health());
    assert_eq!(unserved(&relay), ["attic", "inbox/stock"], "the longest waiting first");

    serve(&world, "attic", S * 3_600).await;
    serve(&world, "inbox/stock", S * 90).await;
    within(S * 61, || relay.health().status == Status::Healthy).await;
    within(S * 121, || unserved(&relay) == ["inbox/stock"]).await;
    assert!(
        relay.observer().backlog().iter().all(|(_, backlog)| backlog.pending == 0),
        "its own route has nothing to do with it"
    );
}

/// Relays that start together need a moment. An earlier backlog is no problem meanwhile.
#[tokio::test(start_paused = true)]
async fn a_relay_of_two_routes_and_an_old_backlog_is_well_from_the_start() {
    let world = World::new();
    for route in ["default", "audit"] {
        append_by(&world, route).await;
    }
    tokio::time::sleep(S * 600).await;
    let rig = world.rig();
    rig.transport.go_down();
    let relay = rig.relay().route("audit", Arc::clone(&rig.transport)).start().await.unwrap();
    for _ in 0..200 {
        tokio::time::sleep(S).await;
        assert_eq!(unserved(&relay), [""; 0], "a relay whose broker is away serves its routes");
    }
}

/// Programs that are deployed together start one after the other.
#[tokio::test(start_paused = true)]
async fn a_relay_that_starts_a_little_later_is_waited_for() {
    let world = World::new();
    append_by(&world, "audit").await;
    tokio::time::sleep(S * 600).await;
    let rig = world.rig();
    let relay = rig.relay().start().await.unwrap();
    let unserved_within = async |limit| {
        for _ in 0..limit {
            tokio::time::sleep(S).await;
            assert_eq!(unserved(&relay), [""; 0]);
        }
    };
    unserved_within(30).await;
    serve(&world, "audit", S * 3_600).await;
    unserved_within(200).await;
}

/// A relay whose heartbeats fail has lost its routes, and reports the lost leases instead.
#[tokio::test(start_paused = true)]
async fn a_relay_does_not_tell_of_its_own_route() {
    let world = World::new();
    let rig = world.rig();
    rig.transport.go_down();
    let relay = rig.relay().start().await.unwrap();
    for route in ["default", "attic"] {
        append_by(&world, route).await;
    }
    tokio::time::sleep(S).await;
    rig.store.set_rates_of(StoreCall::Lease, FAILS);
    within(S * 125, || unserved(&relay) == ["attic"]).await;
    let store = world.store.unserved(S * 60).await.unwrap();
    assert_eq!(store.len(), 2, "neither is served: {store:?}");
    assert!(says(&relay, Status::Unhealthy, "leases were last renewed"), "{:?}", relay.health());
}

/// The backlog is measured as often as before, whether the query fails or hangs. An old answer
/// expires, and health reports that there is none.
#[tokio::test(start_paused = true)]
async fn a_store_that_tells_of_no_route_hinders_no_measurement_and_is_told() {
    for rates in [FAILS, StoreFaultRates { hang_before: 1.0, ..StoreFaultRates::default() }] {
        let world = World::new();
        let rig = world.rig();
        // Longer than the pause between two measurements.
        let relay = rig.relay().store_timeout(S * 30).lease(S * 120).start().await.unwrap();
        append_by(&world, "attic").await;
        within(S * 130, || unserved(&relay) == ["attic"]).await;
        rig.store.set_rates_of(StoreCall::Unserved, rates);
        let (begun, mut scheduled) = (Instant::now(), 0);
        while begun.elapsed() < S * 130 {
            let later = Outgoing::from(message("a")).due_at(Timestamp::now().plus(S * 36_000));
            append(&world, later).await;
            scheduled += 1;
            within(S * 6, || relay.observer().backlog()[0].1.scheduled == scheduled).await;
        }
        assert_eq!(unserved(&relay), ["attic"], "that was two minutes ago");
        within(S * 240, || says(&relay, Status::Degraded, "check for unserved routes has been failing for"))
            .await;
        assert_eq!(
            relay.health().reasons.len(),
            1,
            "the backlog was measured all the time: {:?}",
            relay.health()
        );
        assert_eq!(unserved(&relay), [""; 0], "the answer has expired");
        rig.store.calm();
        rig.store.set_rates_of(StoreCall::Unserved, StoreFaultRates::default());
        within(S * 125, || unserved(&relay) == ["attic"]).await;
    }
}
