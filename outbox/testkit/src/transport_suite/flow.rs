//! Flow control: limits on deliveries, and times without any.

use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use outbox_contract::backend::{Delivery, Received, Stored, Subscription};
use outbox_contract::{Topic, TransportErrorKind};
use tokio::time::{sleep, timeout};

use super::receiver::{Log, Receiver, received, stored_ids, subscription};
use super::sender::{Sender, message};
use super::{Capability, PATIENCE, TransportHarness, has};

/// A prefetch of 0 is refused: nothing could ever be delivered.
pub async fn a_prefetch_of_zero_is_refused<H: TransportHarness>(harness: &H) {
    let topic = harness.topic().await;
    assert_refused(harness, subscription("reader", &topic).with_prefetch(0), "prefetch").await;
}

/// A subscription without topics is refused: nothing could ever be delivered.
pub async fn a_subscription_without_topics_is_refused<H: TransportHarness>(harness: &H) {
    let mut without_topics = subscription("reader", &harness.topic().await);
    without_topics.topics.clear();
    assert_refused(harness, without_topics, "topics").await;
}

async fn assert_refused<H: TransportHarness>(harness: &H, subscription: Subscription, named: &str) {
    let refused = timeout(PATIENCE, harness.transport().subscribe(subscription)).await;
    let Err(error) = refused.expect("it is refused at once") else {
        panic!("a subscription that can get nothing is refused, but it was taken");
    };
    assert_eq!(error.kind(), TransportErrorKind::Invalid, "{error}");
    assert!(error.to_string().contains(named), "the error names the {named}: {error}");
}

/// However many messages wait, a member holds no more than the prefetch unacknowledged.
pub async fn no_more_than_the_prefetch_is_unacknowledged<H: TransportHarness>(harness: &H) {
    const PREFETCH: usize = 5;
    let (topic, log) = (harness.topic().await, Log::default());
    let member = subscription("reader", &topic).with_prefetch(PREFETCH);
    let receiver = Receiver::join(&*harness.transport(), member, &log).await;
    let sender = Sender::new(harness.transport());
    let messages = sender.messages(&topic, &["a", "b", "c"], 23);
    let sending = sender.start(&messages);
    let mut in_hand = receiver.receive(PREFETCH).await;
    assert_eq!(in_hand.len(), PREFETCH);
    receiver.assert_quiet(harness.quiet(), "the prefetch is used up").await;

    let mut left = messages.len();
    while left > 0 {
        // One at a time, so that the prefetch stays as full as it may be.
        let finished = in_hand.remove(0);
        receiver.acknowledge(&[finished]).await;
        left -= 1;
        while in_hand.len() < PREFETCH.min(left) {
            in_hand.extend(receiver.deliveries().await);
        }
        assert!(in_hand.len() <= PREFETCH, "{} are unacknowledged", in_hand.len());
    }
    sending.finish().await;
    log.assert_complete_and_in_order(&messages);
}

/// The bytes that a member holds are bounded as well; a message larger than the bound is delivered
/// alone.
pub async fn the_prefetch_is_bounded_in_bytes_too<H: TransportHarness>(harness: &H) {
    const PREFETCH_BYTES: usize = 25_000;
    let (topic, log) = (harness.topic().await, Log::default());
    let mut member = subscription("reader", &topic);
    member.prefetch_bytes = PREFETCH_BYTES;
    let receiver = Receiver::join(&*harness.transport(), member, &log).await;
    let sender = Sender::new(harness.transport());
    let sizes = [10_000, 10_000, 10_000, 40_000, 10_000, 10_000, 40_000, 10_000];
    let messages: Vec<_> =
        sizes.iter().map(|size| sender.store(message(&topic, "a").with_payload(vec![b'x'; *size]))).collect();
    let sending = sender.start(&messages);
    let payload = |of: &[Delivery]| of.iter().map(|it| received(it).payload.len()).sum::<usize>();

    let mut left = messages.len();
    while left > 0 {
        let mut in_hand = receiver.deliveries().await;
        // Everything that can arrive without an acknowledgement arrives now.
        while let Some(Ok(Received::Deliveries(more))) = receiver.inner().next().now_or_never() {
            receiver.write_down(&Received::Deliveries(more.clone()));
            in_hand.extend(more);
        }
        assert!(
            payload(&in_hand) <= PREFETCH_BYTES || in_hand.len() == 1,
            "{} messages of {} bytes together are unacknowledged",
            in_hand.len(),
            payload(&in_hand)
        );
        receiver.acknowledge(&in_hand).await;
        left = left.saturating_sub(in_hand.len());
    }
    sending.finish().await;
    log.assert_complete_and_in_order(&messages);
}

/// A paused unit waits, another one does not, and after it is resumed everything arrives in order.
pub async fn a_paused_unit_delivers_nothing_and_loses_nothing<H: TransportHarness>(harness: &H) {
    let (topic, log) = (harness.topic().await, Log::default());
    let receiver = Receiver::join(&*harness.transport(), subscription("reader", &topic), &log).await;
    let sender = Sender::new(harness.transport());
    let (first, deliveries) = one_of_many_keys(&receiver, &sender, &topic).await;
    let paused = deliveries[0].tag.unit.clone();
    let key_in = |in_it: bool| {
        let delivery = deliveries.iter().find(|it| (it.tag.unit == paused) == in_it);
        delivery.map(|delivery| received(delivery).order_key())
    };
    let waiting_key = key_in(true).expect("the unit of a delivery has a key");

    receiver.inner().pause(std::slice::from_ref(&paused)).await.expect("a unit can be paused");
    receiver.inner().pause(std::slice::from_ref(&paused)).await.expect("and again");
    let waiting = sender.messages(&topic, &[waiting_key.as_str()], 5);
    let waiting_sent = sender.start(&waiting);
    let mut all = [first, waiting.clone()].concat();
    match key_in(false) {
        Some(other_key) => {
            let others = sender.messages(&topic, &[other_key.as_str()], 5);
            let others_sent = sender.start(&others);
            receiver.finish(&others).await;
            others_sent.finish().await;
            all.extend(others);
        }
        None => assert!(!has::<H>(Capability::Units), "32 keys are in several units of the topic"),
    }
    receiver.assert_quiet(harness.quiet(), "the unit is paused").await;
    let came = log.ids();
    assert!(!stored_ids(&waiting).iter().any(|id| came.contains(id)), "the unit is paused");

    receiver.inner().resume(std::slice::from_ref(&paused)).await.expect("a unit can be resumed");
    receiver.inner().resume(&[paused]).await.expect("and again");
    receiver.finish(&waiting).await;
    waiting_sent.finish().await;
    log.assert_complete_and_in_order(&all);
}

/// Sends one message of many keys, and receives them: their deliveries tell in which unit each key
/// is.
async fn one_of_many_keys(
    receiver: &Receiver,
    sender: &Sender,
    topic: &Topic,
) -> (Vec<Arc<Stored>>, Vec<Delivery>) {
    let keys: Vec<String> = (0..32).map(|key| format!("key-{key}")).collect();
    let sent: Vec<_> = keys.iter().map(|key| sender.store(message(topic, key))).collect();
    let sending = sender.start(&sent);
    let mut deliveries = Vec::new();
    while deliveries.len() < sent.len() {
        let more = receiver.deliveries().await;
        receiver.acknowledge(&more).await;
        deliveries.extend(more);
    }
    sending.finish().await;
    (sent, deliveries)
}

/// A unit that is paused while more of it waits than the prefetch takes up no room of the others.
pub async fn a_paused_unit_leaves_room_for_the_others<H: TransportHarness>(harness: &H) {
    const PREFETCH: usize = 4;
    if !has::<H>(Capability::Units) {
        return;
    }
    let (topic, log) = (harness.topic().await, Log::default());
    let member = subscription("reader", &topic).with_prefetch(PREFETCH);
    let receiver = Receiver::join(&*harness.transport(), member, &log).await;
    let sender = Sender::new(harness.transport());
    let (mut all, deliveries) = one_of_many_keys(&receiver, &sender, &topic).await;
    let paused = deliveries[0].tag.unit.clone();
    let other = deliveries.iter().find(|it| it.tag.unit != paused);
    let other = received(other.expect("32 keys are in several units of the topic")).order_key();

    let waiting = sender.messages(&topic, &[received(&deliveries[0]).order_key().as_str()], 3 * PREFETCH);
    let waiting_sent = sender.start(&waiting);
    // Time to arrive at the member, which does not ask for them.
    sleep(harness.quiet()).await;
    receiver.inner().pause(std::slice::from_ref(&paused)).await.expect("a unit can be paused");
    let others = sender.messages(&topic, &[other.as_str()], 2 * PREFETCH);
    let others_sent = sender.start(&others);
    let finished = timeout(PATIENCE / 2, receiver.finish(&others)).await;
    assert!(finished.is_ok(), "what waits in the paused unit {paused} holds up another unit");
    others_sent.finish().await;

    receiver.inner().resume(&[paused]).await.expect("a unit can be resumed");
    receiver.finish(&waiting).await;
    waiting_sent.finish().await;
    all.extend(waiting.into_iter().chain(others));
    log.assert_complete_and_in_order(&all);
}

/// An acknowledgment that comes while `next` waits for room wakes it.
pub async fn an_acknowledgement_makes_room_for_a_next_that_waits<H: TransportHarness>(harness: &H) {
    let (topic, log) = (harness.topic().await, Log::default());
    let member = subscription("reader", &topic).with_prefetch(1);
    let receiver = Receiver::join(&*harness.transport(), member, &log).await;
    let sender = Sender::new(harness.transport());
    let messages = sender.messages(&topic, &["a"], 5);
    let sending = sender.start(&messages);
    let mut in_hand = receiver.receive(1).await;
    while log.len() < messages.len() {
        let acknowledge = receiver.acknowledge(&in_hand);
        let next = beside(harness, receiver.deliveries(), acknowledge, "the acknowledgment made room").await;
        in_hand = next;
    }
    receiver.acknowledge(&in_hand).await;
    sending.finish().await;
    log.assert_complete_and_in_order(&messages);
}

/// A unit that is resumed while `next` waits wakes it.
pub async fn a_resumed_unit_wakes_a_next_that_waits<H: TransportHarness>(harness: &H) {
    let (topic, log) = (harness.topic().await, Log::default());
    let receiver = Receiver::join(&*harness.transport(), subscription("reader", &topic), &log).await;
    let sender = Sender::new(harness.transport());
    let first = sender.messages(&topic, &["a"], 1);
    let first_sent = sender.start(&first);
    let came = receiver.receive(1).await;
    receiver.acknowledge(&came).await;
    first_sent.finish().await;

    let unit = came[0].tag.unit.clone();
    receiver.inner().pause(std::slice::from_ref(&unit)).await.expect("a unit can be paused");
    let waiting = sender.messages(&topic, &["a"], 3);
    let sending = sender.start(&waiting);
    let units = [unit];
    let resume = async { receiver.inner().resume(&units).await.expect("a unit can be resumed") };
    let next = beside(harness, receiver.deliveries(), resume, "the unit was resumed").await;
    receiver.acknowledge(&next).await;
    receiver.finish(&waiting).await;
    sending.finish().await;
    log.assert_complete_and_in_order(&[first, waiting].concat());
}

/// A drain that comes while `next` waits ends it.
pub async fn a_drain_ends_a_next_that_waits<H: TransportHarness>(harness: &H) {
    let (topic, log) = (harness.topic().await, Log::default());
    let receiver = Receiver::join(&*harness.transport(), subscription("reader", &topic), &log).await;
    let sender = Sender::new(harness.transport());
    let messages = sender.messages(&topic, &["a"], 1);
    tokio::join!(sender.deliver(&messages), receiver.finish(&messages));
    let ended = async { while !matches!(receiver.next().await, Received::Ended) {} };
    beside(harness, ended, receiver.drain(), "the subscription was drained").await;
    receiver.close().await;
}

/// Returns what a `next` answers beside which this happens, once it has waited for a while.
async fn beside<H: TransportHarness, T>(
    harness: &H,
    next: impl Future<Output = T>,
    happens: impl Future<Output = ()>,
    what: &str,
) -> T {
    let happens = async {
        sleep(harness.quiet()).await;
        happens.await;
    };
    let both = timeout(PATIENCE / 2, async { tokio::join!(next, happens).0 }).await;
    both.unwrap_or_else(|_| panic!("{what} beside a next that waits, and both did not return"))
}

/// A `next` that is dropped before it has an answer loses nothing.
pub async fn a_next_that_is_dropped_loses_nothing<H: TransportHarness>(harness: &H) {
    let (topic, log) = (harness.topic().await, Log::default());
    let member = subscription("reader", &topic).with_prefetch(7);
    let receiver = Receiver::join(&*harness.transport(), member, &log).await;
    let sender = Sender::new(harness.transport());
    let messages = sender.messages(&topic, &["a", "b", "c"], 60);
    let sending = sender.start(&messages);
    let mut in_hand: Vec<Delivery> = Vec::new();
    for round in 0..2_000_u64 {
        // Dropped after one poll, or after a short wait, by turns.
        let wait = Duration::from_micros(round % 4 * 500);
        let answer = timeout(wait, receiver.inner().next()).await;
        if let Ok(answer) = answer {
            let answer = answer.expect("receiving goes on");
            receiver.write_down(&answer);
            if let Received::Deliveries(deliveries) = answer {
                in_hand.extend(deliveries);
            }
        }
        if round % 3 == 0 {
            receiver.acknowledge(&in_hand).await;
            in_hand.clear();
        }
        if log.len() >= messages.len() && in_hand.is_empty() {
            break;
        }
    }
    receiver.acknowledge(&in_hand).await;
    receiver.finish(&messages).await;
    sending.finish().await;
    log.assert_complete_and_in_order(&messages);
}
