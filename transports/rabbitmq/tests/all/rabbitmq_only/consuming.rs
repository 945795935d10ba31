//! Members that crash, are cut, and come back.

use std::collections::BTreeSet;
use std::time::Duration;

use lapin::types::AMQPValue;
use outbox_contract::backend::{Received, Subscription, Transport};
use outbox_contract::{MessageId, TransportErrorKind};
use outbox_servers::{OrSkip, Proxy, RabbitMq};
use outbox_transport_rabbitmq::{RabbitMqTransport, Topology};

use crate::rabbitmq_only::support::{
    consumer, declared, delete_queue, deliver, deliveries, eventually, finish, id_of, ids, messages, queue,
    revoked, subscribe, subscription, topic, vhost,
};
use crate::rabbitmq_only::wiretap::Wiretap;

fn text(value: &str) -> AMQPValue {
    AMQPValue::LongString(value.into())
}

/// RabbitMQ drops what was delivered 20 times, unless the queue says otherwise.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn thirty_members_that_crash_with_messages_in_hand_drop_nothing() {
    let Some((_server, url)) = vhost() else { return };
    let transport = declared(&url).build().unwrap();
    let sent = messages(&topic("orders"), &["a", "a", "a"]);
    deliver(&transport, &sent).await;
    for _ in 0..30 {
        let member = subscribe(&transport).await;
        let came = deliveries(&*member).await;
        assert_eq!(id_of(&came[0]), sent[0].message.id, "from the first unacknowledged");
        drop(member);
    }
    let came = finish(&*subscribe(&transport).await, &sent).await;
    assert_eq!(came, sent.iter().map(|stored| stored.message.id).collect::<Vec<_>>());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_received_over_a_lost_connection_is_not_acknowledged_over_the_next() {
    let Some((_server, url)) = vhost() else { return };
    let proxy = Proxy::to(&url);
    let transport = declared(&proxy.url(&url)).build().unwrap();
    let member = subscribe(&transport).await;
    let sent = messages(&topic("orders"), &["a", "b", "c"]);
    deliver(&transport, &sent).await;
    let mut old = Vec::new();
    while old.len() < sent.len() {
        old.extend(deliveries(&*member).await);
    }
    proxy.cut();
    assert_eq!(revoked(&*member).await, 1);
    let mut again = Vec::new();
    while again.len() < sent.len() {
        again.extend(deliveries(&*member).await);
    }
    assert!(again.iter().all(|new| old.iter().all(|old| new.tag.incarnation > old.tag.incarnation)));
    let stale: Vec<_> = old.into_iter().map(|delivery| delivery.tag).collect();
    member.acknowledge(&stale).await.unwrap();
    // Twice is harmless too.
    let first = [again[0].tag.clone()];
    member.acknowledge(&first).await.unwrap();
    member.acknowledge(&first).await.unwrap();
    member.close().await.unwrap();
    let left: Vec<_> = sent.iter().filter(|stored| stored.message.id != id_of(&again[0])).cloned().collect();
    let came: BTreeSet<MessageId> = finish(&*subscribe(&transport).await, &left).await.into_iter().collect();
    assert_eq!(came, ids(&left), "what was not acknowledged, and nothing else");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_queue_that_was_deleted_is_consumed_anew() {
    let Some((_server, url)) = vhost() else { return };
    let transport = declared(&url).build().unwrap();
    let member = subscribe(&transport).await;
    delete_queue(&url, "inventory:orders").await;
    assert_eq!(revoked(&*member).await, 1);
    let sent = messages(&topic("orders"), &["a", "b"]);
    let (came, ()) = tokio::join!(finish(&*member, &sent), deliver(&transport, &sent));
    assert_eq!(came.into_iter().collect::<BTreeSet<_>>(), ids(&sent));
}

/// Beside one that is there: a queue that is missing when the member joins, is made, and is
/// deleted.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_queue_that_is_missing_delays_no_other_until_it_is_made() {
    let Some((_server, url)) = vhost() else { return };
    let owner = declared(&url).build().unwrap();
    owner.check().await.unwrap();
    let first = messages(&topic("orders"), &["a", "b"]);
    deliver(&owner, &first).await;
    let transport = RabbitMqTransport::builder(&url).topology(Topology::Trusted).build().unwrap();
    let both = Subscription::new(consumer(), [topic("orders"), topic("bills")]).unwrap();
    let member = transport.subscribe(both).await.unwrap();
    finish(&*member, &first).await;
    let problem = &member.problems()[0];
    assert_eq!((problem.topic.as_str(), problem.number, member.problems().len()), ("bills", Some(0), 1));
    assert!(problem.error.contains("inventory:bills"), "{problem}");

    let making = declared(&url).consumer(topic("bills"), consumer()).build().unwrap();
    let second = messages(&topic("bills"), &["a", "b"]);
    deliver(&making, &second).await;
    finish(&*member, &second).await;
    assert_eq!(member.problems(), []);

    delete_queue(&url, "inventory:bills").await;
    eventually("it is named", async || (!member.problems().is_empty()).then_some(())).await;
    let third = messages(&topic("orders"), &["a", "b"]);
    let (came, ()) = tokio::join!(finish(&*member, &third), deliver(&owner, &third));
    assert_eq!(came.into_iter().collect::<BTreeSet<_>>(), ids(&third));
}

/// The next member begins when the first one has left, and not before, with what that one left.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_member_that_stops_politely_leaves_the_rest_in_order() {
    let Some((_server, url)) = vhost() else { return };
    let transport = declared(&url).build().unwrap();
    let sent = messages(&topic("orders"), &["a", "a", "a", "a", "a", "a"]);
    deliver(&transport, &sent).await;
    let first = transport.subscribe(subscription().with_prefetch(3)).await.unwrap();
    let mut in_hand = Vec::new();
    while in_hand.len() < 3 {
        in_hand.extend(deliveries(&*first).await);
    }
    let next = subscribe(&transport).await;
    first.drain().await.unwrap();
    first.acknowledge(&[in_hand[0].tag.clone(), in_hand[1].tag.clone()]).await.unwrap();
    first.close().await.unwrap();
    let came = finish(&*next, &sent[2..]).await;
    assert_eq!(came, sent[2..].iter().map(|stored| stored.message.id).collect::<Vec<_>>());
}

/// The broker takes what is held for too long back, and may give it to the next member behind what
/// is newer.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_member_keeps_what_it_holds_for_longer_than_other_consumers_may() {
    let wish = RabbitMq::newest().config("consumer_timeout = 2000");
    let started = tokio::task::spawn_blocking(move || wish.start().or_skip()).await.unwrap();
    let Some(server) = started else { return };
    let transport = declared(&server.url()).build().unwrap();
    let sent = messages(&topic("orders"), &["a", "a", "a"]);
    deliver(&transport, &sent).await;
    let member = subscribe(&transport).await;
    let mut held = Vec::new();
    while held.len() < sent.len() {
        held.extend(deliveries(&*member).await);
    }
    let said = tokio::time::timeout(Duration::from_secs(10), member.next()).await;
    assert!(said.is_err(), "{said:?}");
    let tags: Vec<_> = held.iter().map(|delivery| delivery.tag.clone()).collect();
    member.acknowledge(&tags).await.unwrap();
    let next = messages(&topic("orders"), &["a"]);
    deliver(&transport, &next).await;
    assert_eq!(id_of(&deliveries(&*member).await[0]), next[0].message.id);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_queue_that_would_lose_or_reorder_messages_is_refused() {
    let Some((_server, url)) = vhost() else { return };
    declared(&url).build().unwrap().check().await.unwrap();
    let transport = RabbitMqTransport::builder(&url).build().unwrap();
    let quorum = ("x-queue-type", text("quorum"));
    let single = ("x-single-active-consumer", AMQPValue::Boolean(true));
    let endless = ("x-delivery-limit", AMQPValue::LongInt(-1));
    let dead = ("x-dead-letter-exchange", text("outbox"));
    let short = ("x-max-length", AMQPValue::LongInt(10));
    let refuses = ("x-overflow", text("reject-publish"));
    type Arguments<'a> = &'a [(&'a str, AMQPValue)];
    let queues: [(Arguments<'_>, Option<&str>); 8] = [
        (&[quorum.clone(), single.clone(), endless.clone()], None),
        (&[quorum.clone(), single.clone(), dead], None),
        (&[quorum.clone(), single.clone(), endless.clone(), short.clone(), refuses], None),
        (&[quorum.clone(), single.clone()], Some("x-delivery-limit is not set")),
        (
            &[quorum.clone(), single.clone(), ("x-delivery-limit", AMQPValue::LongInt(50))],
            Some("x-delivery-limit is 50"),
        ),
        (&[quorum.clone(), single.clone(), endless.clone(), short], Some("reject-publish")),
        (&[quorum, endless], Some("x-single-active-consumer is not set")),
        (&[single], Some("x-queue-type is")),
    ];
    for (at, (arguments, expected)) in queues.into_iter().enumerate() {
        let topic = topic(&format!("topic-{at}"));
        queue(&url, &format!("inventory:{topic}"), topic.as_str(), arguments).await;
        let mut subscription = subscription();
        subscription.topics = vec![topic];
        match (transport.subscribe(subscription).await, expected) {
            (Ok(_), None) => {}
            (Err(error), Some(words)) => {
                assert_eq!(error.kind(), TransportErrorKind::Invalid, "{error}");
                assert!(error.to_string().contains(words), "{error}");
            }
            (Ok(_), Some(words)) => panic!("queue {at} was taken, though {words}"),
            (Err(error), None) => panic!("queue {at} was refused: {error}"),
        }
    }
}

/// One after the other, those of a broker that is far away would take longer than an inbox waits
/// for a subscription.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_queues_are_asked_for_at_once() {
    const QUEUES: usize = 8;
    let Some((_server, url)) = vhost() else { return };
    declared(&url).partitions(8).build().unwrap().check().await.unwrap();
    // The broker says nothing before it is asked for a channel for each queue: to look at it, and
    // then to consume it.
    let wiretap = Wiretap::of(&url).silent_while([1..QUEUES, QUEUES + 1..2 * QUEUES]);
    let transport = RabbitMqTransport::builder(wiretap.url(&url)).topology(Topology::Trusted).partitions(8);
    let transport = transport.build().unwrap();
    transport.subscribe(subscription()).await.unwrap().close().await.unwrap();
    assert_eq!(wiretap.consumed(), QUEUES);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_no_message_comes_with_the_reason_and_its_payload() {
    let Some((_server, url)) = vhost() else { return };
    let transport = declared(&url).build().unwrap();
    let member = subscribe(&transport).await;
    let connection = lapin::Connection::connect(&url, lapin::ConnectionProperties::default()).await.unwrap();
    let channel = connection.create_channel().await.unwrap();
    let options = lapin::options::BasicPublishOptions::default();
    let properties = lapin::BasicProperties::default().with_message_id("17".into());
    let published = channel.basic_publish("outbox".into(), "orders".into(), options, b"hello", properties);
    published.await.unwrap().await.unwrap();
    let came = deliveries(&*member).await;
    let undecodable = came[0].message.as_ref().unwrap_err();
    assert!(undecodable.reason.contains("specversion"), "{undecodable}");
    assert_eq!(undecodable.payload, "hello");
    assert_eq!(undecodable.place.as_deref(), Some("message-id 17"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_member_of_a_closed_transport_hears_that_it_is_over() {
    let Some((_server, url)) = vhost() else { return };
    let transport =
        declared(&url).pauses(Duration::from_millis(20), Duration::from_millis(200)).build().unwrap();
    let member = subscribe(&transport).await;
    transport.close().await;
    for _ in 0..2 {
        let closed = eventually("the member hears of it", async || match member.next().await {
            Ok(Received::Revoked(_)) => None,
            other => Some(other.map(drop).unwrap_err().kind()),
        });
        assert_eq!(closed.await, TransportErrorKind::Closed);
    }
}
