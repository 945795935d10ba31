//! Consumers and their members: which of them receives a message, and joins and departures.

use std::sync::Arc;
use std::time::Duration;

use outbox_contract::MessageId;
use outbox_contract::backend::{Delivery, Received};
use tokio::time::{sleep, timeout};

use super::receiver::{Log, Receiver, ids, stored_ids, subscription};
use super::sender::{Sender, message};
use super::{Capability, PATIENCE, TransportHarness, has};

/// Consumers do not take messages from each other.
pub async fn two_consumers_each_get_everything<H: TransportHarness>(harness: &H) {
    let topic = harness.topic().await;
    let (one, other) = (Log::default(), Log::default());
    let transport = harness.transport();
    let first = Receiver::join(&*transport, subscription("inventory", &topic), &one).await;
    let second = Receiver::join(&*transport, subscription("billing", &topic), &other).await;
    let sender = Sender::new(transport);
    let messages = sender.messages(&topic, &["a", "b", "c"], 30);
    let sending = sender.start(&messages);
    tokio::join!(first.finish(&messages), second.finish(&messages));
    sending.finish().await;
    one.assert_complete_and_in_order(&messages);
    other.assert_complete_and_in_order(&messages);
}

/// Members of a consumer work side by side, each unit with one of them.
pub async fn members_share_the_units_and_each_unit_has_one_owner<H: TransportHarness>(harness: &H) {
    if !has::<H>(Capability::Units) || !has::<H>(Capability::MovingUnits) {
        return;
    }
    let (topic, log) = (harness.topic().await, Log::default());
    let other = harness.as_another_process().await;
    let first = Receiver::join(&*harness.transport(), subscription("reader", &topic), &log).await;
    let second = Receiver::join(&*other, subscription("reader", &topic), &log).await;
    let sender = Sender::new(harness.transport());

    let mut all = Vec::new();
    let rounds = async {
        // Until both received something: a broker takes its time to assign units. Then one more
        // round, in which nothing moves.
        loop {
            let settled = log.members() == 2;
            let since = log.len();
            let round: Vec<_> =
                (0..64).map(|key| sender.store(message(&topic, &format!("key-{key}")))).collect();
            all.extend(round.iter().cloned());
            sender.deliver(&round).await;
            while !round.iter().all(|stored| log.ids().contains(&stored.message.id)) {
                sleep(Duration::from_millis(5)).await;
            }
            if settled {
                return since;
            }
        }
    };
    let receive = |receiver: Receiver| async move {
        loop {
            if let Received::Deliveries(deliveries) = receiver.next().await {
                receiver.acknowledge(&deliveries).await;
            }
        }
    };
    let since = tokio::select! {
        since = timeout(PATIENCE, rounds) => since.expect("both members get a share of the units"),
        () = receive(first) => unreachable!("receiving goes on"),
        () = receive(second) => unreachable!("receiving goes on"),
    };
    log.assert_one_owner_for_each_unit(since);
    log.assert_complete_and_in_order(&all);
}

/// Members join, crash with unacknowledged deliveries, and leave; nothing is lost, and first
/// deliveries stay in order.
pub async fn first_deliveries_keep_their_order_while_members_come_and_crash<H: TransportHarness>(
    harness: &H,
) {
    let (topic, log) = (harness.topic().await, Log::default());
    let join = |prefetch: usize| {
        let subscription = subscription("reader", &topic).with_prefetch(prefetch);
        let log = &log;
        async move { Receiver::join(&*harness.transport(), subscription, log).await }
    };
    let sender = Sender::new(harness.transport());
    let messages = sender.messages(&topic, &["a", "b", "c", "d", "e", "f", "g"], 210);
    let mut present = join(20).await;
    let sending = sender.start(&messages);
    // Unacknowledged deliveries of the present member, and those lost with the members before it.
    let mut in_hand: Vec<Delivery> = Vec::new();
    let mut unfinished: Vec<MessageId> = Vec::new();
    for round in 0..6 {
        let newcomer = join(20).await;
        // Whichever of them receives first: the broker decides how many units each has.
        let mut in_newcomers_hand = Vec::new();
        tokio::select! {
            received = present.deliveries() => in_hand.extend(received),
            received = newcomer.deliveries() => in_newcomers_hand = received,
        }
        let rest = in_hand.split_off(in_hand.len() / 2);
        present.acknowledge(&in_hand).await;
        unfinished.extend(ids(&rest));
        if round % 2 == 0 {
            drop(present);
        } else {
            present.close().await;
        }
        (present, in_hand) = (newcomer, in_newcomers_hand);
    }
    present.acknowledge(&in_hand).await;
    present.finish(&messages).await;
    while !unfinished.iter().all(|id| log.ids().iter().filter(|came| *came == id).count() > 1) {
        // It was not acknowledged, so another member receives it.
        let deliveries = present.deliveries().await;
        present.acknowledge(&deliveries).await;
    }
    sending.finish().await;
    log.assert_complete_and_in_order(&messages);
}

/// A member stops in order while its prefetch is full and another one waits for its units: no
/// acknowledged message arrives again, nothing is lost, nothing overtakes.
pub async fn a_polite_stop_with_a_full_prefetch_loses_and_reorders_nothing<H: TransportHarness>(harness: &H) {
    const PREFETCH: usize = 10;
    let (topic, log) = (harness.topic().await, Log::default());
    let sender = Sender::new(harness.transport());
    let messages = sender.messages(&topic, &["a", "b", "c", "d", "e"], 100);
    let member = || subscription("reader", &topic).with_prefetch(PREFETCH);
    let first = Receiver::join(&*harness.transport(), member(), &log).await;
    let sending = sender.start(&messages);
    let in_hand = first.receive(PREFETCH).await;
    first.drain().await;
    first.drain().await;
    assert!(matches!(first.next().await, Received::Ended), "a drained subscription has ended");

    let after = Log::default();
    let transport = harness.as_another_process().await;
    let (second, ()) = tokio::join!(Receiver::join(&*transport, member(), &after), async {
        first.acknowledge(&in_hand).await;
        assert!(matches!(first.next().await, Received::Ended), "and stays so");
    });
    first.close().await;
    let unfinished: Vec<_> = messages
        .iter()
        .filter(|stored| !ids(&in_hand).contains(&stored.message.id))
        .map(Arc::clone)
        .collect();
    second.finish(&unfinished).await;
    sending.finish().await;
    let repeated = after.ids().iter().filter(|id| ids(&in_hand).contains(id)).count();
    assert_eq!(repeated, 0, "what was acknowledged before the close came again");
    after.assert_complete_and_in_order(&unfinished);
    assert_eq!(stored_ids(&messages).len(), in_hand.len() + unfinished.len());
}

/// A member that drains hears of a revocation before the end, and of none after it: *Ended* is the
/// last word.
pub async fn what_was_revoked_is_said_before_the_end<H: TransportHarness>(harness: &H) {
    if !has::<H>(Capability::MovingUnits) {
        return;
    }
    let (topic, log) = (harness.topic().await, Log::default());
    let sender = Sender::new(harness.transport());
    let messages: Vec<_> = (0..40).map(|key| sender.store(message(&topic, &format!("key-{key}")))).collect();
    let first = Receiver::join(&*harness.transport(), subscription("reader", &topic), &log).await;
    let sending = sender.start(&messages);
    let in_hand = first.receive(messages.len()).await;

    // Another member gets deliveries of the first one, which has not been told yet.
    let other = harness.as_another_process().await;
    let second = Receiver::join(&*other, subscription("reader", &topic), &Log::default()).await;
    let taken_over = second.receive(1).await;
    first.drain().await;
    let mut revoked = Vec::new();
    loop {
        match first.next().await {
            Received::Revoked(units) => revoked.extend(units),
            Received::Ended => break,
            other => panic!("a member that drains gets nothing more, but {other:?} came"),
        }
    }
    let unit = &taken_over[0].tag.unit;
    assert!(revoked.contains(unit), "the end was said before the revocation of {unit}: {revoked:?}");
    first.acknowledge(&in_hand).await;
    second.acknowledge(&taken_over).await;
    first.close().await;
    let receive = async {
        loop {
            let deliveries = second.deliveries().await;
            second.acknowledge(&deliveries).await;
        }
    };
    tokio::select! {
        () = sending.finish() => {}
        () = receive => unreachable!("receiving goes on"),
    }
}

/// Behind the end of a drained member nothing is said, whatever becomes of its units.
pub async fn nothing_is_said_behind_the_end<H: TransportHarness>(harness: &H) {
    let (topic, log) = (harness.topic().await, Log::default());
    let sender = Sender::new(harness.transport());
    let messages: Vec<_> = (0..40).map(|key| sender.store(message(&topic, &format!("key-{key}")))).collect();
    let first = Receiver::join(&*harness.transport(), subscription("reader", &topic), &log).await;
    let sending = sender.start(&messages);
    let in_hand = first.receive(messages.len()).await;
    first.drain().await;
    assert!(matches!(first.next().await, Received::Ended), "a drained subscription has ended");

    // The broker decides whether units move before the first one leaves.
    let other = harness.as_another_process().await;
    let second = Receiver::join(&*other, subscription("reader", &topic), &log).await;
    first.acknowledge(&in_hand).await;
    sending.finish().await;
    let _ = timeout(harness.quiet(), second.deliveries()).await;
    for _ in 0..3 {
        let said = first.next().await;
        assert!(matches!(said, Received::Ended), "the end is the last word, but {said:?} came");
    }
    first.close().await;
}

/// A `subscribe` that is dropped before it is done has not joined, or leaves again: another member
/// gets every unit.
pub async fn a_subscribe_that_is_dropped_leaves_no_member<H: TransportHarness>(harness: &H) {
    let (topic, log) = (harness.topic().await, Log::default());
    let transport = harness.transport();
    for wait in [0, 1, 3, 10, 30] {
        let subscribe = transport.subscribe(subscription("reader", &topic));
        // Polled at least once. One that is done in time leaves as a crash does.
        drop(timeout(Duration::from_millis(wait), subscribe).await);
    }
    let receiver = Receiver::join(&*transport, subscription("reader", &topic), &log).await;
    let sender = Sender::new(Arc::clone(&transport));
    let messages: Vec<_> = (0..40).map(|key| sender.store(message(&topic, &format!("key-{key}")))).collect();
    let sending = sender.start(&messages);
    receiver.finish(&messages).await;
    sending.finish().await;
    log.assert_complete_and_in_order(&messages);
}
