//! Behavior that only the in-process transport has: confirmation by acknowledgment, declared
//! consumers, bounded buffers.

#![allow(clippy::unwrap_used, reason = "a panic in a test is a failed test")]

use std::sync::Arc;
use std::time::Duration;

use outbox_contract::backend::{
    Deliveries, Delivery, Outcome, Outcomes, Position, PublishBatch, Received, RelayId, Stored, Subscription,
    Transport, Unavailable,
};
use outbox_contract::{Consumer, Message, Route, Timestamp, Topic, TransportErrorKind};
use outbox_transport_memory::{MemoryTransport, MemoryTransportBuilder};
use tokio::task::JoinHandle;
use tokio::time::timeout;

fn topic() -> Topic {
    Topic::new("orders").unwrap()
}

fn consumer(name: &str) -> Consumer {
    Consumer::new(name).unwrap()
}

fn stored(key: &str, position: i64) -> Arc<Stored> {
    let message = Message::new(topic(), "order.placed").unwrap().with_key(key).unwrap();
    Arc::new(Stored::new(Position(position), Timestamp::default(), message))
}

fn numbered(key: &str, positions: std::ops::RangeInclusive<i64>) -> Vec<Arc<Stored>> {
    positions.map(|position| stored(key, position)).collect()
}

/// Publishes in the background; the outcomes can be read at any time.
fn publish(transport: &MemoryTransport, messages: &[Arc<Stored>]) -> (JoinHandle<()>, Outcomes) {
    let outcomes = Outcomes::new(messages.len());
    let batch = PublishBatch::new(
        Route::default(),
        RelayId::new(),
        "/shop".into(),
        messages.to_vec(),
        Duration::from_secs(60),
    );
    let (transport, slots) = (transport.clone(), outcomes.clone());
    (tokio::spawn(async move { transport.publish(batch, &slots).await }), outcomes)
}

async fn finished(publishing: JoinHandle<()>) {
    timeout(Duration::from_secs(60), publishing).await.expect("the publish ends").unwrap();
}

async fn join(transport: &MemoryTransport, name: &str) -> Box<dyn Deliveries> {
    transport.subscribe(Subscription::new(consumer(name), [topic()]).unwrap()).await.unwrap()
}

async fn deliveries(of: &dyn Deliveries) -> Vec<Delivery> {
    match timeout(Duration::from_secs(60), of.next()).await.expect("something comes").unwrap() {
        Received::Deliveries(deliveries) => deliveries,
        other => panic!("deliveries were expected, {other:?} came"),
    }
}

async fn acknowledge(of: &dyn Deliveries, deliveries: &[Delivery]) {
    let tags: Vec<_> = deliveries.iter().map(|delivery| delivery.tag.clone()).collect();
    of.acknowledge(&tags).await.unwrap();
}

fn sequences(deliveries: &[Delivery]) -> Vec<i64> {
    deliveries.iter().map(|delivery| delivery.origin.as_ref().unwrap().sequence).collect()
}

/// Lets all tasks run until they wait: in paused time a sleep ends when no task can run.
async fn settle() {
    tokio::time::sleep(Duration::from_millis(1)).await;
}

fn class_of(outcome: Option<&Outcome>) -> (Option<Unavailable>, String) {
    match outcome {
        Some(Outcome::Unavailable(what, failure)) => (Some(*what), failure.to_string()),
        other => (None, format!("{other:?}")),
    }
}

#[tokio::test(start_paused = true)]
async fn a_message_is_delivered_when_every_consumer_has_acknowledged_it() {
    let transport = MemoryTransport::new();
    let (inventory, billing) = (join(&transport, "inventory").await, join(&transport, "billing").await);
    let (publishing, outcomes) = publish(&transport, &[stored("a", 1)]);
    for member in [&inventory, &billing] {
        settle().await;
        assert!(!publishing.is_finished() && !outcomes.is_complete());
        let came = deliveries(&**member).await;
        acknowledge(&**member, &came).await;
    }
    finished(publishing).await;
    assert_eq!(outcomes.take(), [Some(Outcome::Delivered)]);
}

/// Returns the outcomes of three messages of a key after the acknowledgment of these, in this
/// order.
async fn reported_after(acknowledged: &[usize]) -> Vec<Option<Outcome>> {
    let transport = MemoryTransport::new();
    let member = join(&transport, "inventory").await;
    let (publishing, outcomes) = publish(&transport, &numbered("a", 1..=3));
    let came = deliveries(&*member).await;
    for at in acknowledged {
        acknowledge(&*member, &came[*at..=*at]).await;
    }
    publishing.abort();
    outcomes.take()
}

#[tokio::test(start_paused = true)]
async fn a_follower_is_delivered_no_earlier_than_its_predecessor() {
    let delivered = Some(Outcome::Delivered);
    assert_eq!(reported_after(&[1, 2]).await, [None, None, None]);
    assert_eq!(reported_after(&[1, 0]).await, [delivered.clone(), delivered.clone(), None]);
    assert_eq!(reported_after(&[2, 1, 0]).await, [delivered.clone(), delivered.clone(), delivered]);
}

#[tokio::test(start_paused = true)]
async fn every_invalid_setting_is_reported_by_the_check() {
    let wrong = MemoryTransport::builder().consumer("", "billing").consumer("orders", "a\nb");
    let transport = wrong.partitions(257).buffer_messages(0).max_message_bytes(0).build();
    let error = transport.check().await.unwrap_err();
    assert_eq!((error.kind(), error.code()), (TransportErrorKind::Invalid, "OBX-TRANSPORT-INVALID"));
    for problem in [
        "the topic is empty",
        "the consumer \"a\\nb\"",
        "partitions is 257; make it 1 to 256",
        "buffer_messages is 0; make it at least 1",
        "max_message_bytes is 0; make it at least 1",
    ] {
        assert!(error.to_string().contains(problem), "{problem}: {error}");
    }
    MemoryTransport::builder().consumer(topic(), "billing").build().check().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_declared_consumer_that_is_not_there_yet_misses_nothing() {
    let transport = MemoryTransport::builder().consumer(topic(), "billing").build();
    let inventory = join(&transport, "inventory").await;
    let message = stored("a", 1);
    let (publishing, outcomes) = publish(&transport, &[Arc::clone(&message)]);
    finished(publishing).await;
    let (what, words) = class_of(outcomes.take()[0].as_ref());
    assert_eq!(what, Some(Unavailable::Topic));
    let expected = "consumer billing of topic orders is not connected; delivery resumes when it subscribes [no-subscriber]";
    assert_eq!(words, expected);

    let billing = join(&transport, "billing").await;
    let (publishing, outcomes) = publish(&transport, &[message]);
    for member in [inventory, billing] {
        let came = deliveries(&*member).await;
        assert_eq!(sequences(&came), [1], "once: nothing was enqueued while a consumer was missing");
        acknowledge(&*member, &came).await;
    }
    finished(publishing).await;
    assert_eq!(outcomes.take(), [Some(Outcome::Delivered)]);
}

#[tokio::test(start_paused = true)]
async fn a_topic_without_consumers_is_unavailable_and_says_what_to_do() {
    let transport = MemoryTransport::new();
    let (publishing, outcomes) = publish(&transport, &numbered("a", 1..=2));
    finished(publishing).await;
    let taken = outcomes.take();
    let (what, words) = class_of(taken[0].as_ref());
    assert_eq!(what, Some(Unavailable::Topic));
    let expected = "topic orders has no subscriber; subscribe, or declare its consumers [no-subscriber]";
    assert_eq!(words, expected);
    assert_eq!(taken[1], Some(Outcome::Blocked));
}

#[tokio::test(start_paused = true)]
async fn a_consumer_whose_members_are_gone_keeps_its_messages_when_enqueuing_confirms() {
    let transport = MemoryTransport::builder().confirm_on_enqueue().build();
    join(&transport, "inventory").await.close().await.unwrap();
    let (publishing, outcomes) = publish(&transport, &numbered("a", 1..=3));
    finished(publishing).await;
    assert_eq!(outcomes.take(), vec![Some(Outcome::Delivered); 3]);
    let back = join(&transport, "inventory").await;
    assert_eq!(sequences(&deliveries(&*back).await), [1, 2, 3]);
}

/// Asserts that publishing in the second mode waits, where only the buffer can block it.
async fn assert_waits_for_room(builder: MemoryTransportBuilder) {
    let transport = builder.confirm_on_enqueue().build();
    let member = join(&transport, "inventory").await;
    let (publishing, outcomes) = publish(&transport, &numbered("a", 1..=5));
    settle().await;
    assert!(!publishing.is_finished(), "there is no room for all of it");
    let came = deliveries(&*member).await;
    assert_eq!(sequences(&came), [1, 2], "as much as there was room for");
    acknowledge(&*member, &came[..1]).await;
    assert_eq!(sequences(&deliveries(&*member).await), [3], "one more for one that is gone");
    publishing.abort();
    settle().await;
    acknowledge(&*member, &came[1..]).await;
    assert!(
        timeout(Duration::from_secs(1), member.next()).await.is_err(),
        "nothing is started after the drop"
    );
    let delivered =
        outcomes.take().into_iter().filter(|outcome| *outcome == Some(Outcome::Delivered)).count();
    assert_eq!(delivered, 3);
}

#[tokio::test(start_paused = true)]
async fn publishing_waits_for_room_in_messages_and_stops_with_its_future() {
    assert_waits_for_room(MemoryTransport::builder().buffer_messages(2)).await;
}

#[tokio::test(start_paused = true)]
async fn publishing_waits_for_room_in_bytes_and_stops_with_its_future() {
    let one = stored("a", 1).message.bytes();
    assert_waits_for_room(MemoryTransport::builder().buffer_bytes(2 * one + one / 2)).await;
}

#[tokio::test(start_paused = true)]
async fn a_message_larger_than_the_buffer_waits_alone() {
    let transport = MemoryTransport::builder().buffer_bytes(1).build();
    let member = join(&transport, "inventory").await;
    let (publishing, _) = publish(&transport, &numbered("a", 1..=2));
    for position in 1..=2 {
        let came = deliveries(&*member).await;
        assert_eq!(sequences(&came), [position]);
        acknowledge(&*member, &came).await;
    }
    finished(publishing).await;
}

/// P5: a message that waits for room blocks only the later ones of its topic.
#[tokio::test(start_paused = true)]
async fn a_topic_without_room_holds_up_no_other() {
    let transport = MemoryTransport::builder().buffer_messages(1).build();
    let full = join(&transport, "inventory").await;
    let shipments = Topic::new("shipments").unwrap();
    let other = transport
        .subscribe(Subscription::new(consumer("inventory"), [shipments.clone()]).unwrap())
        .await
        .unwrap();
    let shipped = Message::new(shipments, "order.shipped").unwrap().with_key("a").unwrap();
    let shipped = Arc::new(Stored::new(Position(4), Timestamp::default(), shipped));
    let messages = [stored("a", 1), stored("b", 2), stored("a", 3), shipped];
    let (publishing, outcomes) = publish(&transport, &messages);
    let came = deliveries(&*other).await;
    assert_eq!(sequences(&came), [4]);
    acknowledge(&*other, &came).await;
    for position in 1..=3 {
        let came = deliveries(&*full).await;
        assert_eq!(sequences(&came), [position]);
        acknowledge(&*full, &came).await;
    }
    finished(publishing).await;
    assert_eq!(outcomes.take(), vec![Some(Outcome::Delivered); 4]);
}

/// A producer may append a message twice, and the relay send both in one batch.
#[tokio::test(start_paused = true)]
async fn a_batch_that_has_one_message_twice_is_confirmed_as_a_whole() {
    let transport = MemoryTransport::new();
    let member = join(&transport, "inventory").await;
    let message = stored("a", 1);
    let (publishing, outcomes) = publish(&transport, &[Arc::clone(&message), message, stored("a", 2)]);
    let came = deliveries(&*member).await;
    assert_eq!(sequences(&came), [1, 2]);
    acknowledge(&*member, &came).await;
    finished(publishing).await;
    assert_eq!(outcomes.take(), vec![Some(Outcome::Delivered); 3]);
}

#[tokio::test(start_paused = true)]
async fn what_is_sent_again_while_it_waits_is_delivered_once_and_confirmed_to_the_last_who_asked() {
    let transport = MemoryTransport::builder().buffer_messages(3).build();
    let member = join(&transport, "inventory").await;
    let messages = numbered("a", 1..=3);
    for _ in 0..100 {
        let (given_up, _) = publish(&transport, &messages);
        settle().await;
        given_up.abort();
    }
    let (publishing, outcomes) = publish(&transport, &messages);
    settle().await;
    let came = deliveries(&*member).await;
    assert_eq!(sequences(&came), [1, 2, 3]);
    acknowledge(&*member, &came).await;
    finished(publishing).await;
    assert_eq!(outcomes.take(), vec![Some(Outcome::Delivered); 3]);
    assert!(timeout(Duration::from_secs(1), member.next()).await.is_err(), "no copies came");
}

#[tokio::test(start_paused = true)]
async fn what_is_sent_again_comes_to_nobody_who_finished_it_while_another_has_not() {
    let transport = MemoryTransport::new();
    let (quick, slow) = (join(&transport, "quick").await, join(&transport, "slow").await);
    let messages = numbered("a", 1..=2);
    let (given_up, _) = publish(&transport, &messages);
    acknowledge(&*quick, &deliveries(&*quick).await).await;
    given_up.abort();
    let late = join(&transport, "late").await;
    let (publishing, outcomes) = publish(&transport, &messages);
    settle().await;
    assert!(timeout(Duration::from_secs(1), quick.next()).await.is_err(), "finished before");
    assert!(timeout(Duration::from_secs(1), late.next()).await.is_err(), "published before it subscribed");
    acknowledge(&*slow, &deliveries(&*slow).await).await;
    finished(publishing).await;
    assert_eq!(outcomes.take(), vec![Some(Outcome::Delivered); 2]);
}

#[tokio::test(start_paused = true)]
async fn a_publish_that_waits_for_room_ends_when_the_last_member_leaves() {
    let transport = MemoryTransport::builder().buffer_messages(1).build();
    let member = join(&transport, "inventory").await;
    let messages = [stored("a", 1), stored("b", 2)];
    let (publishing, outcomes) = publish(&transport, &messages);
    let came = deliveries(&*member).await;
    assert_eq!(sequences(&came), [1]);
    drop(member);
    settle().await;
    publishing.abort();
    let taken = outcomes.take();
    assert_eq!(taken[0], None, "it waits for the next member, and is unknown until then");
    assert_eq!(class_of(taken[1].as_ref()).0, Some(Unavailable::Topic));
}

#[tokio::test(start_paused = true)]
async fn closing_ends_what_is_under_way() {
    let transport = MemoryTransport::builder().buffer_messages(1).build();
    let member = join(&transport, "inventory").await;
    let (publishing, outcomes) = publish(&transport, &[stored("a", 1), stored("b", 2)]);
    let came = deliveries(&*member).await;
    transport.close().await;
    finished(publishing).await;
    let taken = outcomes.take();
    assert!(matches!(taken[0], Some(Outcome::Unknown(_))), "it may have been handled: {taken:?}");
    assert_eq!(class_of(taken[1].as_ref()).0, Some(Unavailable::Route));
    assert!(member.next().await.is_err());
    assert!(member.acknowledge(&[came[0].tag.clone()]).await.is_err());
}

#[tokio::test(start_paused = true)]
async fn a_subscription_that_makes_no_sense_is_refused() {
    let transport = MemoryTransport::new();
    let nothing = Subscription::new("inventory", [""; 0]).unwrap();
    let nothing = transport.subscribe(nothing).await.err().unwrap();
    assert_eq!(
        nothing.to_string(),
        "subscribe: the subscription has no topics; name at least one [OBX-TRANSPORT-INVALID]"
    );
    let none = Subscription::new(consumer("inventory"), [topic()]).unwrap().with_prefetch(0);
    let none = transport.subscribe(none).await.err().unwrap();
    assert!(none.to_string().contains("the prefetch is 0"), "{none}");
}

#[tokio::test(start_paused = true)]
async fn a_busy_unit_does_not_starve_the_others() {
    let transport = MemoryTransport::builder().confirm_on_enqueue().build();
    let mut subscription = Subscription::new(consumer("inventory"), [topic()]).unwrap();
    subscription.prefetch = 10;
    let member = transport.subscribe(subscription).await.unwrap();
    let mut messages = numbered("busy", 1..=100);
    messages.extend(["k1", "k2", "k3", "k4"].map(|key| stored(key, 1_000)));
    let (publishing, _) = publish(&transport, &messages);
    finished(publishing).await;
    let came = deliveries(&*member).await;
    assert_eq!(came.len(), 10);
    let others = sequences(&came).iter().filter(|sequence| **sequence == 1_000).count();
    assert!(others > 0, "another unit is among the first: {came:?}");
}
