//! Rules of a retry policy, through a relay: each action and each selector; the order of the key
//! around each action, and what happens when a call of it fails.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use outbox_contract::admin::{Actor, AuditEntry, Filter};
use outbox_contract::backend::{StoreCall, StoreLayer};
use outbox_contract::{
    Admin, AdminExt, Exhausted, Message, MessageId, RetryPolicy, RetryRule, Route, StoreError,
    StoreErrorKind, Topic,
};
use outbox_engine::{Relay, RelayHandle, Status};
use outbox_testkit::{ChaosStore, Fault, StoreFault, TestClock};

use crate::promises::link::Link;
use crate::promises::support::{MS, Rig, S, World, key_id, message, of_topic, route, topic, within};

/// A rule for a class, with an action after so many attempts.
fn rule(class: &str, max_attempts: u32, exhausted: Exhausted) -> RetryRule {
    RetryRule {
        class: Some(class.into()),
        max_attempts: Some(max_attempts),
        exhausted: Some(exhausted),
        ..RetryRule::default()
    }
}

fn policy(rules: impl Into<Vec<RetryRule>>) -> RetryPolicy {
    RetryPolicy { rules: rules.into(), ..RetryPolicy::default() }
}

/// A relay with these rules.
async fn relay(rig: &Rig, rules: impl Into<Vec<RetryRule>>) -> RelayHandle {
    rig.relay().retry(policy(rules)).start().await.unwrap()
}

async fn audit(world: &World) -> Vec<AuditEntry> {
    world.store.audit(&Filter::all_routes()).await.unwrap()
}

/// Three messages of a key, of which this one fails with this class; and one of another key.
async fn three(world: &World, rig: &Rig, bad: usize, fault: Fault) -> Vec<MessageId> {
    let ids = world.append([message("a"), message("a"), message("a"), message("b")]).await;
    rig.transport.inject(ids[bad], fault);
    ids
}

/// The ids of key `a` that arrived.
fn arrived_of_a(world: &World, ids: &[MessageId]) -> Vec<MessageId> {
    world.arrived().into_iter().filter(|id| *id != ids[3]).collect()
}

#[tokio::test(start_paused = true)]
async fn a_discarded_message_is_gone_counted_and_recorded_and_its_key_goes_on() {
    for (bad, fault, attempts) in [
        (0, Fault::FailedAs("bad-tenant"), 1),
        (0, Fault::FailedAs("bad-tenant"), 3),
        (1, Fault::FailedAs("bad-tenant"), 2),
        (2, Fault::RejectedAs("bad-tenant"), 3),
    ] {
        let world = World::new();
        let rig = world.rig();
        let ids = three(&world, &rig, bad, fault).await;
        let relay = relay(&rig, [rule("bad-tenant", attempts, Exhausted::Discard)]).await;
        world.drained(S * 60).await;
        let expected: Vec<_> = ids[..3].iter().filter(|id| **id != ids[bad]).copied().collect();
        assert_eq!(arrived_of_a(&world, &ids), expected, "{fault:?}");
        let failed = if fault == Fault::RejectedAs("bad-tenant") { 1 } else { u64::from(attempts) };
        let stats = relay.stats();
        assert_eq!((stats.failed, stats.discarded, stats.dead_lettered), (failed, 1, 0));
        assert!(world.dead().await.is_empty());
        let entries = audit(&world).await;
        assert_eq!(entries.len(), 1, "{entries:?}");
        assert_eq!((entries[0].operation.as_str(), &entries[0].ids[..]), ("drop", &[ids[bad]][..]));
        assert_eq!((&entries[0].route, &entries[0].topic), (&Some(route()), &Some(topic("orders"))));
        assert!(entries[0].detail.contains("bad-tenant"), "{entries:?}");
        assert_eq!(world.store.snapshot().failing_keys, 0, "it flows again");
        assert!(relay.stop(S * 10).await);
    }
}

#[tokio::test(start_paused = true)]
async fn a_held_key_waits_with_its_followers_and_shows_why() {
    let world = World::new();
    let rig = world.rig();
    let ids = three(&world, &rig, 1, Fault::FailedAs("bad-tenant")).await;
    let relay = relay(&rig, [rule("bad-tenant", 2, Exhausted::Hold)]).await;
    within(S * 60, || relay.stats().failed == 2).await;
    tokio::time::sleep(S * 3_600).await;
    assert_eq!(arrived_of_a(&world, &ids), ids[..1]);
    assert_eq!(relay.stats().failed, 2, "it is not tried again");
    let failing = world.store.failing_keys(&Filter::all_routes()).await.unwrap();
    let last = failing[0].last_failure.as_ref().unwrap();
    assert!(failing[0].held && failing[0].attempts == 2 && last.class == "bad-tenant", "{failing:?}");
    rig.transport.calm();
    world.store.release(&route(), &key_id("a")).await.unwrap();
    world.drained(S * 10).await;
    assert_eq!(arrived_of_a(&world, &ids), ids[..3], "in order, without a gap");
}

#[tokio::test(start_paused = true)]
async fn a_paused_topic_waits_on_all_relays_with_its_attempts_and_others_go_on() {
    for fault in [Fault::FailedAs("no-license"), Fault::RejectedAs("no-license")] {
        let world = World::new();
        let rig = world.rig();
        let ids = three(&world, &rig, 1, fault).await;
        let rules = [rule("no-license", 3, Exhausted::PauseTopic)];
        let (first, other) = (relay(&rig, rules.clone()).await, world.rig());
        other.transport.inject(ids[1], fault);
        let second = relay(&other, rules).await;
        let attempts = if fault == Fault::RejectedAs("no-license") { 1 } else { 3 };
        let failed = || first.stats().failed + second.stats().failed;
        within(S * 60, || failed() == attempts).await;
        tokio::time::sleep(S * 10).await;
        let paused = world.store.ownership(&route()).await.unwrap().paused;
        assert_eq!((paused.route, &paused.topics[..]), (false, &[topic("orders")][..]));
        let entries = audit(&world).await;
        assert_eq!((entries.len(), entries[0].operation.as_str()), (1, "pause"), "{entries:?}");
        assert!(entries[0].actor.as_str().contains("retry policy"), "{entries:?}");
        assert!(entries[0].actor.as_str().contains("[no-license]"), "{entries:?}");
        let why = "topic orders is not published: paused by the retry policy: a ";
        let tells =
            |relay: &RelayHandle| relay.health().reasons.iter().any(|reason| reason.text.contains(why));
        assert!(tells(&first) || tells(&second), "{:?} {:?}", first.health(), second.health());
        assert_eq!((first.health().status, second.health().status), (Status::Degraded, Status::Degraded));

        let other_topic = world.append([of_topic("customers", "a")]).await[0];
        let same_topic = world.append([message("c")]).await[0];
        within(S * 5, || world.arrived().contains(&other_topic)).await;
        tokio::time::sleep(S * 3_600).await;
        assert!(!world.arrived().contains(&same_topic), "the whole topic waits");
        assert_eq!(failed(), attempts, "nothing of it is tried");
        let failing = world.store.failing_keys(&Filter::all_routes()).await.unwrap();
        assert!(!failing[0].held && u64::from(failing[0].attempts) == attempts, "{failing:?}");

        // Resumed too early: one more attempt, and the topic is paused again.
        world.store.resume(&route(), Some(&topic("orders"))).await.unwrap();
        within(S * 20, || failed() == attempts + 1).await;
        tokio::time::sleep(S * 60).await;
        assert_eq!(failed(), attempts + 1);
        assert_eq!(world.store.ownership(&route()).await.unwrap().paused.topics, [topic("orders")]);

        rig.transport.calm();
        other.transport.calm();
        world.store.resume(&route(), Some(&topic("orders"))).await.unwrap();
        world.drained(S * 30).await;
        let of_a: Vec<_> = world.arrived().into_iter().filter(|id| ids[..3].contains(id)).collect();
        assert_eq!(of_a, ids[..3], "in order, without a gap");
        assert!(world.dead().await.is_empty());
    }
}

/// The keys of a topic exhaust their attempts at the same time. One pause is enough.
#[tokio::test(start_paused = true)]
async fn many_keys_that_pause_a_topic_at_once_pause_it_once() {
    let world = World::new();
    let rig = world.rig();
    let ids = world.append((0..50).map(|n| message(&format!("key-{n}")))).await;
    rig.inject(&ids, Fault::FailedAs("no-license"));
    let relay = relay(&rig, [rule("no-license", 1, Exhausted::PauseTopic)]).await;
    within(S * 10, || relay.stats().failed > 0).await;
    tokio::time::sleep(S * 60).await;
    let entries = audit(&world).await;
    assert_eq!((entries.len(), entries[0].operation.as_str()), (1, "pause"), "{entries:?}");
    rig.transport.calm();
    world.store.resume(&route(), Some(&topic("orders"))).await.unwrap();
    world.drained(S * 30).await;
}

#[tokio::test(start_paused = true)]
async fn a_rule_applies_to_its_class_and_topic_and_the_first_one_wins() {
    let world = World::new();
    let rig = world.rig();
    let of = |name: &str, fault| (of_topic(name, "k"), fault);
    let cases: [(Message, Fault); 5] = [
        of("orders.eu", Fault::FailedAs("kafka.timeout")),
        of("orders.us", Fault::FailedAs("kafka.timeout")),
        of("orders.us.1", Fault::FailedAs("chaos")),
        of("invoices", Fault::FailedAs("kafka.timeout")),
        of("invoices.1", Fault::FailedAs("chaos")),
    ];
    let ids = world.append(cases.iter().map(|(message, _)| message.clone())).await;
    for (id, (_, fault)) in ids.iter().zip(&cases) {
        rig.transport.inject(*id, *fault);
    }
    let on = |topic: &str, rule: RetryRule| RetryRule { topic: Some(topic.into()), ..rule };
    let relay = relay(
        &rig,
        [
            on("orders.eu", rule("kafka.*", 1, Exhausted::Hold)),
            on("orders.*", rule("kafka.*", 2, Exhausted::Discard)),
            on("orders.*", RetryRule { max_attempts: Some(3), ..RetryRule::default() }),
            rule("kafka.*", 4, Exhausted::DeadLetter),
        ],
    )
    .await;
    // Twelve attempts for what no rule matches.
    within(S * 1_200, || relay.stats().failed == 1 + 2 + 3 + 4 + 12).await;
    tokio::time::sleep(S * 1_200).await;
    assert_eq!((relay.stats().failed, relay.stats().discarded), (22, 1));
    let dead: Vec<_> = world.dead().await.iter().map(|it| (it.stored.message.id, it.attempts)).collect();
    assert_eq!(dead, [(ids[2], 3), (ids[3], 4), (ids[4], 12)]);
    let failing = world.store.failing_keys(&Filter::all_routes()).await.unwrap();
    assert_eq!(failing.iter().map(|key| key.first).collect::<Vec<_>>(), [Some(ids[0])]);
    assert!(failing[0].held);
}

#[tokio::test(start_paused = true)]
async fn a_rule_has_delays_of_its_own() {
    let world = World::new();
    let rig = world.rig();
    let ids = world.append([message("a"), message("b")]).await;
    rig.transport.inject(ids[0], Fault::FailedAs("slow-down"));
    let slow = RetryRule {
        class: Some("slow-down".into()),
        max_attempts: Some(RetryPolicy::UNLIMITED),
        first_delay: Some(MS * 10),
        factor: Some(1.0),
        max_delay: Some(MS * 10),
        ..RetryRule::default()
    };
    let relay = relay(&rig, [slow]).await;
    // With the defaults the attempts would be exhausted after twelve, in minutes.
    within(S * 20, || relay.stats().failed >= 500).await;
    assert_eq!((relay.stats().dead_lettered, world.dead().await.len()), (0, 0));
    rig.transport.calm();
    world.drained(S).await;
}

/// A call whose answer is lost may have been made or not. Either way, the key goes on, in order.
#[tokio::test(start_paused = true)]
async fn an_action_whose_answer_is_lost_is_done_once_and_keeps_the_order() {
    for fault in [StoreFault::Before, StoreFault::After, StoreFault::HangBefore, StoreFault::HangAfter] {
        let world = World::new();
        let rig = world.rig();
        let ids = three(&world, &rig, 0, Fault::FailedAs("bad-tenant")).await;
        rig.store.inject(StoreCall::Transition, fault, 2);
        let _relay = relay(&rig, [rule("bad-tenant", 1, Exhausted::Discard)]).await;
        world.drained(S * 90).await;
        assert_eq!(arrived_of_a(&world, &ids), ids[1..3], "{fault:?}");
        let entries = audit(&world).await;
        assert_eq!(entries.iter().map(|entry| &entry.ids[..]).collect::<Vec<_>>(), [&ids[..1]], "{fault:?}");
    }
}

/// A relay whose pauses fail at first: as if it died between the step of the key and the pause.
#[derive(Clone)]
struct PausesFail {
    inner: Arc<ChaosStore<Link>>,
    failures: Arc<AtomicUsize>,
}

impl StoreLayer for PausesFail {
    type Inner = ChaosStore<Link>;

    fn inner(&self) -> &ChaosStore<Link> {
        &self.inner
    }

    fn acting_as(&self, _actor: Actor) -> Box<dyn Admin + '_> {
        Box::new(self.clone())
    }

    async fn set_paused(&self, route: &Route, topic: Option<&Topic>, paused: bool) -> Result<(), StoreError> {
        let fails = |left: usize| left.checked_sub(1);
        if self.failures.fetch_update(Ordering::SeqCst, Ordering::SeqCst, fails).is_ok() {
            return Err(StoreError::new(StoreErrorKind::Unavailable, "pause", "as the test has it"));
        }
        self.inner.set_paused(route, topic, paused).await
    }
}

#[tokio::test(start_paused = true)]
async fn a_pause_that_fails_is_made_after_the_next_failure() {
    let world = World::new();
    let rig = world.rig();
    let ids = three(&world, &rig, 0, Fault::FailedAs("no-license")).await;
    let failures = Arc::new(AtomicUsize::new(2));
    let store = PausesFail { inner: Arc::clone(&rig.store), failures: Arc::clone(&failures) };
    let relay = Relay::builder(store, Arc::clone(&rig.transport))
        .clock(Arc::<TestClock>::clone(&rig.clock))
        .seed(1)
        .retry(policy([rule("no-license", 2, Exhausted::PauseTopic)]))
        .start()
        .await
        .unwrap();
    within(S * 120, || failures.load(Ordering::SeqCst) == 0).await;
    within(S * 120, || relay.stats().failed == 4).await;
    tokio::time::sleep(S * 600).await;
    assert_eq!(relay.stats().failed, 4, "the topic is paused at last");
    assert_eq!(world.store.ownership(&route()).await.unwrap().paused.topics, [topic("orders")]);
    assert!(arrived_of_a(&world, &ids).is_empty(), "its followers wait");
    rig.transport.calm();
    world.store.resume(&route(), Some(&topic("orders"))).await.unwrap();
    world.drained(S * 30).await;
    assert_eq!(arrived_of_a(&world, &ids), ids[..3]);
}

/// A relay stands still after the key's step, before the pause: the next one goes on from there.
#[tokio::test(start_paused = true)]
async fn the_next_relay_pauses_a_topic_that_the_one_before_did_not() {
    let world = World::new();
    let rig = world.rig();
    let ids = three(&world, &rig, 0, Fault::FailedAs("no-license")).await;
    let store =
        PausesFail { inner: Arc::clone(&rig.store), failures: Arc::new(AtomicUsize::new(usize::MAX)) };
    let policy = policy([rule("no-license", 2, Exhausted::PauseTopic)]);
    let first = Relay::builder(store, Arc::clone(&rig.transport)).retry(policy.clone()).seed(1);
    let first = first.clock(Arc::<TestClock>::clone(&rig.clock)).start().await.unwrap();
    within(S * 120, || first.stats().failed == 2).await;
    rig.gate.set_open(false);
    let other = world.rig();
    other.transport.inject(ids[0], Fault::FailedAs("no-license"));
    let second = other.relay().retry(policy).start().await.unwrap();
    within(S * 120, || second.stats().failed == 1).await;
    tokio::time::sleep(S * 600).await;
    assert_eq!(second.stats().failed, 1, "the attempts were kept");
    assert_eq!(world.store.ownership(&route()).await.unwrap().paused.topics, [topic("orders")]);
}
