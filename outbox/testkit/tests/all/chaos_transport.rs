//! Faults that the chaos transport injects, and those that it never injects.

#![allow(clippy::unwrap_used, reason = "a panic in a test is a failed test")]

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use outbox_contract::backend::{Outcome, Outcomes, Position, PublishBatch, RelayId, Stored, Unavailable};
use outbox_contract::{KeyId, Message, MessageId, Route, Timestamp, Topic, Transport};
use outbox_testkit::{ChaosTransport, Fault, FaultCounts, FaultRates, RecordingTransport};
use tokio::time::{Instant, timeout};

fn topic(name: &str) -> Topic {
    Topic::new(name).unwrap()
}

/// One message for each key, in this order: `batch("orders", "aab")` has two of key a and one of
/// key b.
fn batch(topic_name: &str, keys: &str) -> Vec<Arc<Stored>> {
    let keys = (1..).zip(keys.chars());
    keys.map(|(position, key)| {
        let message =
            Message::new(topic(topic_name), "suite.event").unwrap().with_key(key.to_string()).unwrap();
        Arc::new(Stored::new(Position(position), Timestamp::default(), message))
    })
    .collect()
}

struct Setup {
    recording: Arc<RecordingTransport>,
    chaos: Arc<ChaosTransport>,
}

impl Setup {
    fn new(seed: u64) -> Self {
        let recording = Arc::new(RecordingTransport::new());
        let behind = Arc::clone(&recording) as Arc<dyn Transport>;
        Self { recording, chaos: Arc::new(ChaosTransport::new(behind, seed)) }
    }

    /// Publishes as a relay does: on a task that may crash, until a deadline. Each outcome in one
    /// letter.
    async fn publish(&self, messages: &[Arc<Stored>]) -> String {
        let outcomes = Outcomes::new(messages.len());
        let (chaos, slots, messages) = (Arc::clone(&self.chaos), outcomes.clone(), messages.to_vec());
        let task = tokio::spawn(async move {
            let deadline = Duration::from_secs(10);
            let batch =
                PublishBatch::new(Route::default(), RelayId::new(), "/suite".into(), messages, deadline);
            timeout(deadline, chaos.publish(batch, &slots)).await.is_err()
        });
        let end = match task.await {
            Ok(true) => " hung",
            Ok(false) => "",
            Err(error) => {
                assert!(error.is_panic());
                " crashed"
            }
        };
        let letters: String = outcomes.take().into_iter().map(|outcome| letter(outcome.as_ref())).collect();
        letters + end
    }

    /// Returns the messages sent so far, as indices of these.
    fn sent(&self, of: &[Arc<Stored>]) -> Vec<usize> {
        let place = |id: MessageId| of.iter().position(|stored| stored.message.id == id);
        self.recording.published().iter().filter_map(|published| place(published.id)).collect()
    }
}

fn letter(outcome: Option<&Outcome>) -> char {
    match outcome {
        None => '-',
        Some(Outcome::Delivered) => 'd',
        Some(Outcome::Rejected(_)) => 'r',
        Some(Outcome::Failed(_)) => 'f',
        Some(Outcome::Postponed(..)) => 'p',
        Some(Outcome::Unavailable(Unavailable::Route, _)) => 'R',
        Some(Outcome::Unavailable(Unavailable::Topic, _)) => 'T',
        Some(Outcome::Unknown(_)) => 'u',
        Some(Outcome::Blocked) => 'b',
    }
}

#[tokio::test(start_paused = true)]
async fn each_fault_does_what_its_name_says_to_its_message_and_those_behind() {
    let table = [
        (Fault::Failed, "dfbd", vec![0, 3]),
        (Fault::Rejected, "drbd", vec![0, 3]),
        (Fault::UnknownWithoutEffect, "dubd", vec![0, 3]),
        (Fault::UnknownWithEffect, "duud", vec![0, 1, 2, 3]),
        (Fault::Hang, "d--d hung", vec![0, 3]),
        (Fault::PanicBefore, "---- crashed", vec![]),
        (Fault::PanicAfter, "---- crashed", vec![0, 1, 2, 3]),
    ];
    for (fault, outcomes, sent) in table {
        let setup = Setup::new(1);
        let messages = batch("orders", "aaab");
        setup.chaos.inject(messages[1].message.id, fault);
        assert_eq!(setup.publish(&messages).await, outcomes, "{fault:?}");
        assert_eq!(setup.sent(&messages), sent, "{fault:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_fault_for_some_times_is_over_after_them_and_one_that_is_lifted_at_once() {
    let setup = Setup::new(1);
    let messages = batch("orders", "ab");
    setup.chaos.inject_times(messages[0].message.id, Fault::Failed, 2);
    setup.chaos.inject(messages[1].message.id, Fault::Rejected);
    assert_eq!(setup.publish(&messages).await, "fr");
    assert_eq!(setup.publish(&messages).await, "fr");
    setup.chaos.lift(messages[1].message.id);
    assert_eq!(setup.publish(&messages).await, "dd");
    let counts = setup.chaos.counts();
    assert_eq!((counts.batches, counts.failed, counts.rejected, counts.sent), (3, 2, 2, 2));
}

#[tokio::test(start_paused = true)]
async fn a_broken_topic_holds_up_no_other_and_heals() {
    let setup = Setup::new(1);
    let messages = [batch("orders", "aab"), batch("payments", "a")].concat();
    setup.chaos.break_topic(topic("orders"));
    assert_eq!(setup.publish(&messages).await, "TbTd");
    setup.chaos.heal_topic(&topic("orders"));
    assert_eq!(setup.publish(&messages).await, "dddd");
}

#[tokio::test(start_paused = true)]
async fn an_outage_is_seen_by_every_call_and_ends_in_its_time() {
    let setup = Setup::new(1);
    let messages = batch("orders", "ab");
    setup.chaos.go_down_for(Duration::from_secs(30));
    assert_eq!(setup.publish(&messages).await, "RR");
    assert!(setup.chaos.check().await.unwrap_err().is_retryable());
    tokio::time::advance(Duration::from_secs(31)).await;
    assert!(setup.chaos.check().await.is_ok());
    setup.chaos.go_down();
    tokio::time::advance(Duration::from_secs(3_600)).await;
    assert_eq!(setup.publish(&messages).await, "RR");
    setup.chaos.come_back();
    assert_eq!(setup.publish(&messages).await, "dd");
}

fn everything_goes_wrong() -> FaultRates {
    FaultRates {
        failed: 0.05,
        rejected: 0.02,
        unknown_without_effect: 0.05,
        unknown_with_effect: 0.05,
        hang: 0.01,
        panic_before: 0.005,
        panic_after: 0.005,
        outage: 0.05,
        outage_lasts: Duration::from_secs(1),
        delay: Duration::from_millis(100),
    }
}

/// Publishes twenty batches under all faults; what came of each.
async fn storm(seed: u64) -> (Setup, Vec<String>) {
    let setup = Setup::new(seed);
    setup.chaos.set_rates(everything_goes_wrong());
    let mut came = Vec::new();
    for _ in 0..20 {
        let messages = batch("orders", "aabcbacbaddeacbaad");
        let outcomes = setup.publish(&messages).await;
        let sent = setup.sent(&messages);
        assert_prefixes(&messages, &sent, &outcomes);
        came.push(format!("{outcomes} {sent:?}"));
    }
    (setup, came)
}

/// Asserts that the sent messages of each key are a prefix of it, and those reported delivered too,
/// all of which were sent.
fn assert_prefixes(messages: &[Arc<Stored>], sent: &[usize], outcomes: &str) {
    let mut by_key: BTreeMap<KeyId, Vec<usize>> = BTreeMap::new();
    for (index, stored) in messages.iter().enumerate() {
        by_key.entry(stored.message.key_id()).or_default().push(index);
    }
    let letters = outcomes[..messages.len()].char_indices();
    let delivered: Vec<usize> = letters.filter(|(_, it)| *it == 'd').map(|(at, _)| at).collect();
    for of_key in by_key.values() {
        for some in [sent, &delivered] {
            let some: Vec<usize> = some.iter().copied().filter(|index| of_key.contains(index)).collect();
            assert_eq!(some, of_key[..some.len()], "a prefix of its key; all outcomes: {outcomes}");
        }
    }
    assert!(delivered.iter().all(|index| sent.contains(index)), "what is confirmed was sent");
}

#[tokio::test(start_paused = true)]
async fn the_key_prefix_property_holds_under_all_faults_and_every_fault_happens() {
    let mut total = FaultCounts::default();
    for seed in 0..100 {
        let counts = storm(seed).await.0.chaos.counts();
        total.failed += counts.failed;
        total.rejected += counts.rejected;
        total.unknown_without_effect += counts.unknown_without_effect;
        total.unknown_with_effect += counts.unknown_with_effect;
        total.unavailable += counts.unavailable;
        total.blocked += counts.blocked;
        total.hung += counts.hung;
        total.panics += counts.panics;
    }
    let each = [
        total.failed,
        total.rejected,
        total.unknown_without_effect,
        total.unknown_with_effect,
        total.unavailable,
        total.blocked,
        total.hung,
        total.panics,
    ];
    assert!(each.iter().all(|count| *count > 10), "{total:?}");
}

#[tokio::test(start_paused = true)]
async fn the_same_seed_gives_the_same_faults_and_another_gives_others() {
    let (_, first) = storm(7).await;
    assert_eq!(storm(7).await.1, first);
    assert_ne!(storm(8).await.1, first);
}

#[tokio::test(start_paused = true)]
async fn calm_ends_everything() {
    let (setup, _) = storm(3).await;
    let messages = batch("orders", "aab");
    setup.chaos.inject(messages[0].message.id, Fault::Failed);
    setup.chaos.break_topic(topic("orders"));
    setup.chaos.go_down();
    setup.chaos.calm();
    let before = Instant::now();
    assert_eq!(setup.publish(&messages).await, "ddd");
    assert_eq!(before.elapsed(), Duration::ZERO, "no delay either");
}
