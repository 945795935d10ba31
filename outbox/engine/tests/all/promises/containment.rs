//! Contained failure (P5): a poison message delays only its key, an unavailable topic only itself,
//! and an outage uses up no attempts.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use outbox_contract::backend::TransportLayer;
use outbox_contract::{Exhausted, Failure, Message, Rejection, RetryPolicy};
use outbox_engine::{Reason, Relay, Status};
use outbox_testkit::{ChaosTransport, Fault, FaultRates};

use crate::promises::support::{MS, S, World, message, of_topic, topic, within};

#[tokio::test(start_paused = true)]
async fn a_poison_message_holds_up_its_own_key_only() {
    let world = World::new();
    let rig = world.rig();
    let poison = world.append([message("poisoned"), message("poisoned")]).await;
    rig.transport.inject(poison[0], Fault::Failed);
    let hold = RetryPolicy { exhausted: Exhausted::Hold, ..RetryPolicy::default() };
    let _relay = rig.relay().retry(hold).start().await.unwrap();
    let mut longest = MS;
    for n in 0..500 {
        let expected = world.broker.len() + 1;
        world.append([message(&format!("key-{n}"))]).await;
        longest = longest.max(within(S * 60, || world.broker.len() >= expected).await);
    }
    assert!(longest <= MS * 20, "the slowest took {longest:?}");
    assert!(world.positions("poisoned").is_empty(), "its follower waits");
}

#[tokio::test(start_paused = true)]
async fn a_broken_topic_holds_up_that_topic_only_and_costs_the_others_nothing() {
    let mut costs = Vec::new();
    for waiting in [0, 20_000] {
        let world = World::new();
        let rig = world.rig();
        rig.transport.break_topic(topic("broken"));
        world.append((0..waiting).map(|n| of_topic("broken", &format!("key-{n}")))).await;
        let relay = rig.relay().start().await.unwrap();
        tokio::time::sleep(S * 20).await;
        let before = relay.stats().fetches;
        for n in 0..500 {
            let expected = world.broker.len() + 1;
            world.append([message(&format!("key-{n}"))]).await;
            let took = within(S * 60, || world.broker.len() >= expected).await;
            assert!(took <= MS * 20, "with {waiting} waiting, it took {took:?}");
        }
        costs.push(relay.stats().fetches - before);
        within(S, || world.waiting() == waiting).await;
        assert_eq!((relay.stats().failed, world.dead().await.len()), (0, 0));
        rig.transport.heal_topic(&topic("broken"));
        world.drained(S * 60).await;
    }
    assert!(costs[1] <= costs[0] + costs[0] / 5, "fetches without and with a broken topic: {costs:?}");
}

/// With few messages, each retry takes all of them into memory, so that nothing is left to read
/// meanwhile.
#[tokio::test(start_paused = true)]
async fn a_broken_topic_is_tried_ever_more_seldom_and_said_until_something_of_it_is_published() {
    for waiting in [1, 20] {
        let world = World::new();
        let rig = world.rig();
        let relay = rig.relay().max_unconfirmed_batches(4).start().await.unwrap();
        within(S, || relay.health().status == Status::Healthy).await;
        // As with a broker that is asked for its metadata first.
        rig.transport.set_rates(FaultRates { delay: S, ..FaultRates::default() });
        rig.transport.break_topic(topic("broken"));
        world.append((0..waiting).map(|n| of_topic("broken", &format!("key-{n}")))).await;
        let is_said = || {
            let reasons = relay.health().reasons;
            reasons.iter().any(|reason| reason.text.contains("topic broken is not published:"))
        };
        within(S * 5, is_said).await;
        let before = rig.transport.counts().batches;
        for look in 0..500 {
            tokio::time::sleep(MS * 97).await;
            assert!(is_said(), "look {look} with {waiting}: {:?}", relay.health());
        }
        // The delays grow from 0.2 s to 5 s.
        let tries = rig.transport.counts().batches - before;
        assert!((5..=25).contains(&tries), "{tries} tries in {:?} with {waiting}", MS * 97 * 500);
        rig.transport.heal_topic(&topic("broken"));
        world.drained(S * 10).await;
        within(S * 10, || relay.health().status == Status::Healthy).await;
        rig.transport.break_topic(topic("broken"));
        world.append([of_topic("broken", "a")]).await;
        within(S * 5, is_said).await;
    }
}

#[tokio::test(start_paused = true)]
async fn an_outage_burns_no_attempts_and_makes_no_dead_letters() {
    let world = World::new();
    let rig = world.rig();
    let patient = RetryPolicy { max_attempts: 1, ..RetryPolicy::default() };
    let relay = rig.relay().retry(patient).start().await.unwrap();
    rig.transport.go_down();
    world.append((0..500).map(|n| message(&format!("key-{}", n % 50)))).await;
    tokio::time::sleep(S * 3_600).await;
    let batches = rig.transport.counts().batches;
    assert!(batches < 3_600, "{batches} batches tried in an hour");
    rig.transport.come_back();
    let took = world.drained(S * 10).await;
    assert!(took <= S * 6, "it was back after {took:?}");
    assert_eq!((relay.stats().failed, world.dead().await.len()), (0, 0));
    assert_eq!(world.broker.len(), 500, "each was sent once");
}

/// A backlog lasts for minutes. A key that failed once is retried when it is due.
#[tokio::test(start_paused = true)]
async fn a_failing_key_is_tried_again_in_time_while_a_backlog_lasts() {
    for depth in [1, 2, 3] {
        let world = World::new();
        let rig = world.rig();
        rig.transport.set_rates(FaultRates { delay: MS * 100, ..FaultRates::default() });
        let ids = world.append((0..2_000).map(|n| message(&format!("key-{}", n % 100)))).await;
        rig.transport.inject_times(ids[7], Fault::Failed, 1);
        let quick = RetryPolicy { first_delay: MS, max_delay: MS * 5, ..RetryPolicy::default() };
        let relay = rig
            .relay()
            .max_unconfirmed_batches(depth)
            .publish_batch(1)
            .fetch_batch(100)
            .max_in_flight(200)
            .retry(quick);
        let relay = relay.start().await.unwrap();
        within(S * 10, || relay.stats().failed == 1).await;
        let took = within(S * 600, || world.arrived().contains(&ids[7])).await;
        assert!(took <= S * 3, "with {depth} publishers it was tried again after {took:?}");
        assert!(world.waiting() > 1_000, "the backlog lasts");
    }
}

/// No batch gets an answer. That is an outage, and not the fault of the messages.
#[tokio::test(start_paused = true)]
async fn a_broker_that_answers_nobody_burns_no_attempts() {
    let world = World::new();
    let rig = world.rig();
    let ids = world.append((0..40).map(|n| message(&format!("key-{n}")))).await;
    ids.iter().for_each(|id| rig.transport.inject(*id, Fault::Hang));
    let relay = rig.relay().start().await.unwrap();
    tokio::time::sleep(S * 3_600).await;
    assert_eq!((relay.stats().failed, world.dead().await.len()), (0, 0));
    rig.transport.calm();
    world.drained(S * 120).await;
    assert_eq!(world.broker.len(), 40);
}

/// Earlier deliveries prove nothing about the missing answers, even for keys that were failing
/// already.
#[tokio::test(start_paused = true)]
async fn a_broker_that_answers_nobody_burns_no_attempts_of_keys_that_fail_already() {
    let world = World::new();
    let rig = world.rig();
    let retry = RetryPolicy { max_attempts: 2, first_delay: S * 10, ..RetryPolicy::default() };
    let relay = rig.relay().max_unconfirmed_batches(4).retry(retry).start().await.unwrap();
    world.append([message("good")]).await;
    world.drained(S * 10).await;
    let failing = world.append([message("failing"), message("failing")]).await;
    rig.transport.inject_times(failing[0], Fault::Failed, 1);
    within(S, || relay.stats().failed == 1).await;
    rig.transport.set_rates(FaultRates { hang: 1.0, ..FaultRates::default() });
    world.append((0..40).map(|n| message(&format!("key-{n}")))).await;
    tokio::time::sleep(S * 3_600).await;
    assert!(relay.stats().unknown > 100, "it was tried meanwhile: {:?}", relay.stats());
    assert_eq!((relay.stats().failed, world.dead().await.len()), (1, 0));
    rig.transport.calm();
    world.drained(S * 120).await;
    assert_eq!(world.broker.len(), 43);
}

/// A message that gets no answer while others are delivered, at once or after a long wait, has
/// failed.
#[tokio::test(start_paused = true)]
async fn a_message_that_breaks_things_while_others_go_through_is_counted() {
    for fault in [Fault::UnknownWithoutEffect, Fault::Hang] {
        let world = World::new();
        let rig = world.rig();
        let poison = world.append([message("poisoned")]).await[0];
        rig.transport.inject(poison, fault);
        let twice = RetryPolicy { max_attempts: 2, ..RetryPolicy::default() };
        let relay =
            rig.relay().max_unconfirmed_batches(4).publish_timeout(S).retry(twice).start().await.unwrap();
        for n in 0.. {
            assert!(n < 6_000, "{fault:?} is not counted: {:?}", relay.stats());
            world.append([message(&format!("key-{}", n % 10))]).await;
            tokio::time::sleep(MS * 100).await;
            if world.store.snapshot().dead == 1 {
                break;
            }
        }
        let dead = &world.dead().await[0];
        assert_eq!((dead.stored.message.id, dead.attempts), (poison, 2), "{fault:?}");
        assert_eq!(dead.last_failure.as_ref().unwrap().class, "breaks");
    }
}

#[tokio::test(start_paused = true)]
async fn a_message_that_panics_the_publisher_becomes_a_dead_letter_alone() {
    for fault in [Fault::PanicBefore, Fault::PanicAfter] {
        let world = World::new();
        let rig = world.rig();
        let mut ids = world.append((0..20).map(|n| message(&format!("key-{n}")))).await;
        let poison = ids.remove(7);
        rig.transport.inject(poison, fault);
        let twice = RetryPolicy { max_attempts: 2, ..RetryPolicy::default() };
        let relay = rig.relay().retry(twice).start().await.unwrap();
        let others = || ids.iter().all(|id| world.arrived().contains(id));
        within(S * 30, others).await;
        within(S * 300, || world.store.snapshot().dead == 1).await;
        let dead = world.dead().await;
        assert_eq!((dead[0].stored.message.id, dead[0].attempts), (poison, 2), "{fault:?}");
        assert_eq!(dead[0].last_failure.as_ref().unwrap().class, "breaks");
        assert!(relay.stats().restarts >= 10, "five times for each attempt: {:?}", relay.stats());
        world.drained(S * 30).await;
    }
}

/// As with a partition without a leader: a third of the keys hang permanently. Each of their
/// messages is tried and waited for, while the others flow normally. With two publishers,
/// they wait for it at most for the publish timeout.
#[tokio::test(start_paused = true)]
async fn a_part_of_the_broker_that_answers_nobody_holds_up_no_other_key() {
    const KEYS: u32 = 300;
    for (depth, slowest) in [(4, S), (2, S * 6)] {
        let world = World::new();
        let rig = world.rig();
        let _relay = rig.relay().max_unconfirmed_batches(depth).start().await.unwrap();
        let (mut sent, mut hanging) = (Vec::new(), 0);
        let mut longest = MS;
        // A hundred messages a second, for a minute and a half.
        for n in 0..9_000_u32 {
            let key = n % KEYS;
            let id = world.append([message(&format!("key-{key}"))]).await[0];
            if key.is_multiple_of(3) {
                rig.transport.inject(id, Fault::Hang);
                hanging += 1;
            } else {
                sent.push(id);
            }
            tokio::time::sleep(MS * 10).await;
            if n % 50 == 49 {
                let took = within(S * 60, || world.broker.len() >= sent.len()).await;
                if n > 3_000 {
                    longest = longest.max(took);
                }
            }
        }
        assert!(longest <= slowest, "with {depth} publishers a lane, the slowest took {longest:?}");
        within(S, || world.waiting() == hanging).await;
        rig.transport.calm();
        within(S * 600, || world.broker.len() >= sent.len() + hanging).await;
        world.drained(S * 60).await;
        assert_eq!(world.dead().await.len(), 0, "nothing of it is given up");
    }
}

/// Transport that refuses messages of a certain key before asking the broker.
struct Strict(Arc<ChaosTransport>);

impl TransportLayer for Strict {
    type Inner = ChaosTransport;

    fn inner(&self) -> &ChaosTransport {
        &self.0
    }

    fn name(&self) -> &'static str {
        "strict"
    }

    fn validate(&self, message: &Message) -> Result<(), Rejection> {
        let large = message.key.as_ref().is_some_and(|key| key.as_str() == "large");
        if large { Err(Rejection(Failure::new("too-large", "as the test has it"))) } else { Ok(()) }
    }
}

/// A message refused without asking the broker is no evidence about the broker.
#[tokio::test(start_paused = true)]
async fn a_message_that_is_refused_at_once_does_not_end_an_outage() {
    let world = World::new();
    let rig = world.rig();
    let relay = Relay::builder(Arc::clone(&rig.store), Strict(Arc::clone(&rig.transport)));
    let relay = relay.clock(Arc::<outbox_testkit::TestClock>::clone(&rig.clock)).seed(1).publish_batch(1);
    let relay = relay.start().await.unwrap();
    rig.transport.go_down();
    world.append([message("a")]).await;
    let away = |status| {
        let health = relay.health();
        let says = |reason: &Reason| reason.text.contains("the transport has been unavailable for");
        health.status == status && health.reasons.iter().any(says)
    };
    within(S, || away(Status::Degraded)).await;
    for _ in 0..20 {
        world.append([message("large")]).await;
        tokio::time::sleep(S).await;
    }
    assert!(world.store.snapshot().dead > 0, "it was refused");
    assert!(away(Status::Unhealthy), "the outage lasts: {:?}", relay.health());
    rig.transport.come_back();
    world.drained(S * 30).await;
}

/// Transport that learns of a higher limit right after it has refused a message.
struct Raised(Arc<ChaosTransport>, AtomicBool);

impl TransportLayer for Raised {
    type Inner = ChaosTransport;

    fn inner(&self) -> &ChaosTransport {
        &self.0
    }

    fn validate(&self, _message: &Message) -> Result<(), Rejection> {
        let refuses = !self.1.swap(true, Ordering::SeqCst);
        if refuses { Err(Rejection(Failure::new("too-large", "as the test has it"))) } else { Ok(()) }
    }
}

#[tokio::test(start_paused = true)]
async fn a_message_that_is_refused_is_not_sent_whatever_the_limit_is_by_then() {
    let world = World::new();
    let rig = world.rig();
    let raised = Raised(Arc::clone(&rig.transport), AtomicBool::default());
    let relay = Relay::builder(Arc::clone(&rig.store), raised);
    let relay = relay.clock(Arc::<outbox_testkit::TestClock>::clone(&rig.clock)).seed(1);
    let _relay = relay.start().await.unwrap();
    world.append([message("a"), message("a")]).await;
    world.drained(S * 10).await;
    assert_eq!((world.dead().await.len(), world.broker.len()), (1, 1), "the first is one, the second sent");
}
