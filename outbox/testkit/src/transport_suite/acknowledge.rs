//! Redelivery: which messages arrive again, and which do not.

use outbox_contract::backend::{Received, Tag};
use tokio::time::timeout;

use super::receiver::{Log, Receiver, ids, stored_ids, subscription};
use super::sender::{Sender, message};
use super::{Capability, TransportHarness, has};

/// A member that crashes leaves its unacknowledged messages to the next one: from the first of
/// them, in order.
pub async fn what_was_not_acknowledged_comes_again_in_order_after_a_crash<H: TransportHarness>(harness: &H) {
    let (topic, log) = (harness.topic().await, Log::default());
    let sender = Sender::new(harness.transport());
    let messages = sender.messages(&topic, &["a"], 10);
    let first = Receiver::join(&*harness.transport(), subscription("reader", &topic), &log).await;
    let sending = sender.start(&messages);
    let received = first.receive(10).await;
    first.acknowledge(&received[..3]).await;
    drop(first);

    let transport = harness.as_another_process().await;
    let again = Log::default();
    let second = Receiver::join(&*transport, subscription("reader", &topic), &again).await;
    second.finish(&messages[3..]).await;
    sending.finish().await;
    let (came, sent) = (again.ids(), stored_ids(&messages));
    let start = sent.iter().position(|id| *id == came[0]).expect("what comes again was sent");
    assert!(start <= 3, "the next member starts at or before the first unacknowledged, not at {start}");
    assert_eq!(came[..10 - start], sent[start..], "in order, without a gap");
}

/// Once an acknowledgement has returned, the next member does not receive the message again.
pub async fn what_was_acknowledged_does_not_come_again<H: TransportHarness>(harness: &H) {
    let (topic, log) = (harness.topic().await, Log::default());
    let sender = Sender::new(harness.transport());
    let messages = sender.messages(&topic, &["a", "b", "c"], 12);
    let first = Receiver::join(&*harness.transport(), subscription("reader", &topic), &log).await;
    tokio::join!(sender.deliver(&messages), first.finish(&messages));
    first.close().await;

    let transport = harness.as_another_process().await;
    let again = Log::default();
    let second = Receiver::join(&*transport, subscription("reader", &topic), &again).await;
    // Of the same keys: redelivered messages of them would arrive before these.
    let last = sender.messages(&topic, &["a", "b", "c"], 3);
    tokio::join!(sender.deliver(&last), second.finish(&last));
    let repeated = again.ids().iter().filter(|id| stored_ids(&messages).contains(id)).count();
    assert_eq!(repeated, 0, "acknowledged messages came again");
}

/// An acknowledgement of a later delivery does not acknowledge the earlier ones.
pub async fn acknowledging_out_of_order_loses_nothing<H: TransportHarness>(harness: &H) {
    let (topic, log) = (harness.topic().await, Log::default());
    let sender = Sender::new(harness.transport());
    let messages = sender.messages(&topic, &["a"], 5);
    let first = Receiver::join(&*harness.transport(), subscription("reader", &topic), &log).await;
    let sending = sender.start(&messages);
    let received = first.receive(5).await;
    assert_eq!(ids(&received)[..5], stored_ids(&messages));
    first.acknowledge(&received[3..4]).await;
    first.acknowledge(&received[1..2]).await;
    drop(first);

    let again = Log::default();
    let second = Receiver::join(&*harness.transport(), subscription("reader", &topic), &again).await;
    let unfinished: Vec<_> = [0, 2, 4].map(|at| std::sync::Arc::clone(&messages[at])).into();
    second.finish(&unfinished).await;
    // The finished ones between them may arrive again; then they arrive in their place.
    let came = again.ids();
    let places: Vec<_> =
        stored_ids(&messages).iter().filter_map(|id| came.iter().position(|came| came == id)).collect();
    assert!(places.is_sorted(), "in order");
    sending.finish().await;
}

/// A member acknowledges deliveries of an earlier ownership of a unit: nothing happens, and all of
/// them arrive again.
pub async fn a_stale_acknowledgement_is_ignored<H: TransportHarness>(harness: &H) {
    if !has::<H>(Capability::MovingUnits) {
        return;
    }
    let (topic, log) = (harness.topic().await, Log::default());
    let sender = Sender::new(harness.transport());
    let messages: Vec<_> = (0..40).map(|key| sender.store(message(&topic, &format!("key-{key}")))).collect();
    let first = Receiver::join(&*harness.transport(), subscription("reader", &topic), &log).await;
    let sending = sender.start(&messages);
    let old = first.receive(messages.len()).await;

    // Another member takes units away and crashes, so that they come back to the first one.
    let second = Receiver::join(&*harness.transport(), subscription("reader", &topic), &Log::default()).await;
    let (revoked, taken_over) = tokio::join!(
        async {
            loop {
                if let Received::Revoked(units) = first.next().await {
                    return units;
                }
            }
        },
        second.receive(1)
    );
    drop((second, taken_over));
    let stale: Vec<Tag> =
        old.iter().map(|it| it.tag.clone()).filter(|tag| revoked.contains(&tag.unit)).collect();
    assert!(!stale.is_empty(), "what was revoked had deliveries");
    let mut fresh = Vec::new();
    while fresh.len() < stale.len() {
        let deliveries = first.deliveries().await;
        fresh.extend(deliveries.into_iter().map(|it| it.tag).filter(|tag| revoked.contains(&tag.unit)));
    }
    assert!(stale.iter().all(|tag| !fresh.contains(tag)), "another ownership has another incarnation");
    first.acknowledge_tags(&stale).await;
    drop(first);

    let again = Log::default();
    let third = Receiver::join(&*harness.transport(), subscription("reader", &topic), &again).await;
    let finished = timeout(super::PATIENCE / 2, third.finish(&messages)).await;
    assert!(finished.is_ok(), "a stale acknowledgement took {} messages away", messages.len() - again.len());
    sending.finish().await;
}
