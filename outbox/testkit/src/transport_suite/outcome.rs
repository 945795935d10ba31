//! The reported outcome of each message of a batch, and its meaning for those behind it.

use std::sync::Arc;
use std::time::Duration;

use outbox_contract::TransportErrorKind;
use outbox_contract::backend::{Outcome, Outcomes};
use tokio::time::{sleep, timeout};

use super::receiver::{Log, Receiver, subscription};
use super::sender::{Sender, assert_key_prefix, message};
use super::{Capability, PATIENCE, TransportHarness, has};

/// Without faults, a publish that returns has reported every message as delivered.
pub async fn every_message_of_a_batch_gets_an_outcome<H: TransportHarness>(harness: &H) {
    let (topic, log) = (harness.topic().await, Log::default());
    let receiver = Receiver::join(&*harness.transport(), subscription("reader", &topic), &log).await;
    let sender = Sender::new(harness.transport());
    // Connections are opened and units assigned before the batch that counts.
    let first = sender.messages(&topic, &["warm"], 1);
    tokio::join!(sender.deliver(&first), receiver.finish(&first));

    let messages = sender.messages(&topic, &["a", "b", "c"], 60);
    let (outcomes, ()) = tokio::join!(sender.publish(&messages), receiver.finish(&messages));
    assert_eq!(outcomes, vec![Some(Outcome::Delivered); messages.len()]);
}

/// A topic that does not exist, or that has no receiver, is unavailable. No message of it counts as
/// delivered, and other topics in the same batch flow (promise P5).
pub async fn an_unroutable_topic_is_unavailable_and_holds_up_no_other<H: TransportHarness>(harness: &H) {
    if !has::<H>(Capability::UnroutableTopic) {
        return;
    }
    let unroutable = harness.unroutable_topic();
    let (topic, log) = (harness.topic().await, Log::default());
    let receiver = Receiver::join(&*harness.transport(), subscription("reader", &topic), &log).await;
    let sender = Sender::new(harness.transport());
    let mut batch = sender.messages(&unroutable, &["a", "a", "b"], 3);
    let routable = sender.messages(&topic, &["a", "b"], 4);
    batch.extend(routable.iter().cloned());

    let publish = async {
        let mut outcomes = sender.publish(&batch).await;
        // The broker may be slow to assign the good topic: it is resent until it succeeds.
        while !outcomes[3..].iter().all(|it| *it == Some(Outcome::Delivered)) {
            sleep(Duration::from_millis(50)).await;
            outcomes = sender.publish(&batch).await;
        }
        outcomes
    };
    let (outcomes, ()) = tokio::join!(timeout(PATIENCE, publish), receiver.finish(&routable));
    let outcomes = outcomes.expect("a topic goes on beside one that is unavailable");
    for (index, outcome) in outcomes[..3].iter().enumerate() {
        let blocked = index == 1 && *outcome == Some(Outcome::Blocked);
        assert!(
            blocked || matches!(outcome, Some(Outcome::Unavailable(..))),
            "message {index}, to a topic without consumers, is unavailable or blocked, but it is {outcome:?}"
        );
    }
    log.assert_complete_and_in_order(&routable);
}

/// A message that the broker always refuses is rejected permanently. Later messages of its key wait
/// for the decision about it, and other keys continue.
pub async fn a_message_that_is_too_large_is_rejected_and_blocks_its_key_alone<H: TransportHarness>(
    harness: &H,
) {
    if !has::<H>(Capability::SizeLimit) {
        return;
    }
    let bytes = harness.too_large();
    let (topic, log) = (harness.topic().await, Log::default());
    let transport = harness.transport();
    let receiver = Receiver::join(&*transport, subscription("reader", &topic), &log).await;
    let sender = Sender::new(Arc::clone(&transport));
    let before = sender.store(message(&topic, "a"));
    let large = sender.store(message(&topic, "a").with_payload(vec![b'x'; bytes]));
    let behind = sender.store(message(&topic, "a"));
    let other = sender.store(message(&topic, "b"));
    assert!(transport.validate(&large.message).is_err(), "what can never be sent is known early");
    assert!(transport.validate(&before.message).is_ok());

    let batch = [Arc::clone(&before), large, behind, Arc::clone(&other)];
    let publish = async {
        loop {
            let outcomes = sender.publish(&batch).await;
            let through = [0, 3].iter().all(|at| outcomes[*at] == Some(Outcome::Delivered));
            if through && matches!(outcomes[1], Some(Outcome::Rejected(_))) {
                return outcomes;
            }
            sleep(Duration::from_millis(50)).await;
        }
    };
    let expected = [before, other];
    let (outcomes, ()) = tokio::join!(timeout(PATIENCE, publish), receiver.finish(&expected));
    let outcomes =
        outcomes.expect("the large message is rejected, the one before it and other keys are delivered");
    assert_eq!(outcomes[2], Some(Outcome::Blocked), "what follows the rejected message of its key");

    // Any sent message of the two in the middle would arrive before this one.
    let last = sender.store(message(&topic, "a"));
    let last = [last];
    tokio::join!(sender.deliver(&last), receiver.finish(&last));
    let mut sent = expected.to_vec();
    sent.extend(last);
    log.assert_complete_and_in_order(&sent);
}

/// The relay drops a publish at its deadline. The messages that arrived until then, or later, are a
/// prefix of each key: resent as a whole, first deliveries are in order. Where batches arrive in
/// parts, at least one is dropped in the middle.
pub async fn what_arrives_of_a_dropped_publish_is_a_prefix_of_each_key<H: TransportHarness>(harness: &H) {
    let transport = harness.transport();
    let sender = Sender::new(Arc::clone(&transport));
    let (mut in_the_middle, in_parts) = (0, has::<H>(Capability::BatchesInParts));
    for round in 0..24 {
        let arrived_before = [0, 1, 10, 60][round % 4];
        if round >= 4 && (in_the_middle > 0 || !in_parts) {
            break;
        }
        let (topic, log) = (harness.topic().await, Log::default());
        let receiver = Receiver::join(&*transport, subscription("reader", &topic), &log).await;
        // Where a batch is complete at once, larger ones are tried.
        let size = 1 << (2 * (round / 4)).min(10);
        let payload = vec![b'x'; size * 64];
        let of = |at: usize| message(&topic, ["a", "b", "c", "d"][at % 4]).with_payload(payload.clone());
        let messages: Vec<_> = (0..100).map(|at| sender.store(of(at))).collect();
        let outcomes = Outcomes::new(messages.len());
        {
            let mut publish = transport.publish(sender.publish_batch(&messages), &outcomes);
            let arrived = async {
                while log.len() < arrived_before {
                    let deliveries = receiver.deliveries().await;
                    receiver.acknowledge(&deliveries).await;
                }
            };
            // In this order, so that the publish begins even where nothing has to arrive.
            let dropped = tokio::select! {
                biased;
                () = &mut publish => false,
                () = arrived => true,
            };
            in_the_middle += usize::from(dropped && log.len() > 0);
        }
        let reported = outcomes.take();
        assert_key_prefix(&messages, &reported);
        let left: Vec<_> = messages
            .iter()
            .zip(&reported)
            .filter(|(_, outcome)| **outcome != Some(Outcome::Delivered))
            .map(|(stored, _)| Arc::clone(stored))
            .collect();
        tokio::join!(sender.deliver(&left), receiver.finish(&messages));
        log.assert_complete_and_in_order(&messages);
    }
    assert!(in_the_middle > 0 || !in_parts, "no publish was dropped in the middle, so nothing was shown");
}

/// A closed transport returns an error, and delivers nothing.
pub async fn a_closed_transport_takes_nothing_more<H: TransportHarness>(harness: &H) {
    let topic = harness.topic().await;
    let transport = harness.transport();
    let sender = Sender::new(Arc::clone(&transport));
    transport.close().await;
    transport.close().await;

    let closed = Some(TransportErrorKind::Closed);
    assert_eq!(transport.check().await.err().map(|error| error.kind()), closed, "check");
    let subscribed = transport.subscribe(subscription("reader", &topic)).await;
    assert_eq!(subscribed.err().map(|error| error.kind()), closed, "subscribe");
    let messages = sender.messages(&topic, &["a", "b"], 4);
    let outcomes = sender.publish(&messages).await;
    let counts_nothing = |it: &Option<Outcome>| {
        matches!(it, None | Some(Outcome::Unavailable(..) | Outcome::Unknown(_) | Outcome::Blocked))
    };
    assert!(
        outcomes.iter().all(counts_nothing),
        "to a closed transport nothing is delivered, and no attempt is counted: {outcomes:?}"
    );
}

/// A diagnosis of the broker gives a remedy for each finding, and changes nothing: what is
/// published behind it is all that arrives, and a topic without receivers still has none.
pub async fn a_diagnosis_has_remedies_and_changes_nothing<H: TransportHarness>(harness: &H) {
    let topic = harness.topic().await;
    let transport = harness.transport();
    let unroutable = has::<H>(Capability::UnroutableTopic).then(|| harness.unroutable_topic());
    let topics: Vec<_> = std::iter::once(topic.clone()).chain(unroutable.clone()).collect();
    let log = Log::default();
    let receiver = Receiver::join(&*transport, subscription("reader", &topic), &log).await;
    let mut found = Vec::new();
    for _ in 0..2 {
        found.push(transport.diagnose(&topics).await.expect("the broker is examined"));
    }
    for diagnosis in &found[0] {
        let is_whole = !diagnosis.text.is_empty() && !diagnosis.remedy.is_empty();
        assert!(is_whole, "a finding has a text and a remedy: {diagnosis:?}");
    }
    assert_eq!(found[0], found[1], "the same state has the same findings");
    let sender = Sender::new(Arc::clone(&transport));
    let messages = sender.messages(&topic, &["a", "b"], 4);
    tokio::join!(sender.deliver(&messages), receiver.finish(&messages));
    log.assert_complete_and_in_order(&messages);
    if let Some(nowhere) = unroutable {
        let outcomes = sender.publish(&sender.messages(&nowhere, &["a"], 1)).await;
        assert!(matches!(&outcomes[0], Some(Outcome::Unavailable(..))), "the topic was made: {outcomes:?}");
    }
}
