//! Behavior that only Kafka has, on a real broker: topics that are missing or take no such message,
//! a broker that goes away.

#![allow(clippy::unwrap_used, reason = "a panic in a test is a failed test")]

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::support::{
    PATIENCE, delete_topic, deliver, first_of_key, fresh_name, fresh_topic, log, make_topic, numbered,
    publish, stored, topics,
};
use bytes::Bytes;
use outbox_contract::backend::{Outcome, Received, Stored, Subscription, Transport, Unavailable};
use outbox_contract::{Message, TransportErrorKind};
use outbox_servers::{Kafka, OrSkip, Proxy};
use outbox_transport_kafka::{KafkaTransport, Mechanism};
use rdkafka::ClientConfig;
use rdkafka::message::{Header, OwnedHeaders};
use rdkafka::producer::{BaseRecord, DefaultProducerContext, Producer as _, ThreadedProducer};

/// For batches that must go through.
const LONG: Duration = Duration::from_secs(60);
/// For batches that can't.
const SHORT: Duration = Duration::from_secs(6);

fn transport(brokers: &str) -> KafkaTransport {
    KafkaTransport::builder(brokers).build().unwrap()
}

/// Returns the class of an outcome that says that a topic is unavailable.
fn topic_unavailable(outcome: &Option<Outcome>) -> Option<&str> {
    match outcome {
        Some(Outcome::Unavailable(Unavailable::Topic, failure)) => Some(&failure.class),
        _ => None,
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_missing_topic_is_unavailable_until_it_is_made() {
    let Some(server) = Kafka::newest().shared().or_skip() else { return };
    let transport = transport(&server.url());
    let topic = fresh_name();
    let messages = stored([numbered(&topic, "a", 0), numbered(&topic, "a", 1)]);
    let outcomes = publish(&transport, &messages, LONG).await;
    assert_eq!(topic_unavailable(&outcomes[0]), Some("topic-missing"), "{outcomes:?}");
    assert_eq!(outcomes[1], Some(Outcome::Blocked));

    let nobody = Subscription::new("reader", [topic.clone()]).unwrap();
    let error = transport.subscribe(nobody).await.err().unwrap();
    assert_eq!(error.kind(), TransportErrorKind::Missing, "{error}");

    make_topic(&server.url(), &topic, 2, &[]).await;
    deliver(&transport, &messages, LONG).await;
    assert_eq!(first_of_key(&log(&server.url(), &topic).await, "a"), [0, 1]);
}

/// A name that is misspelt would be a topic with the broker's defaults, and one that was deleted
/// would come back.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_broker_that_makes_topics_makes_none_for_us() {
    let wish = Kafka::newest().config("auto.create.topics.enable=true");
    let started = tokio::task::spawn_blocking(move || wish.start().or_skip()).await.unwrap();
    let Some(server) = started else { return };
    let transport = transport(&server.url());
    let missing = fresh_name();
    let deleted = fresh_topic(&server.url(), 1, &[]).await;
    deliver(&transport, &stored([numbered(&deleted, "a", 0)]), LONG).await;
    delete_topic(&server.url(), &deleted).await;
    for topic in [&missing, &deleted] {
        let start = Instant::now();
        // Until the transport has seen that the topic is gone, and then some more.
        let mut seen = 0;
        while seen < 3 {
            assert!(start.elapsed() < PATIENCE, "{topic} was never missing");
            let outcomes = publish(&transport, &stored([numbered(topic, "a", 1)]), SHORT).await;
            assert_ne!(outcomes[0], Some(Outcome::Delivered), "{topic} does not exist");
            seen += usize::from(topic_unavailable(&outcomes[0]) == Some("topic-missing"));
        }
        let nobody = Subscription::new("reader", [topic.clone()]).unwrap();
        let error = transport.subscribe(nobody).await.err().unwrap();
        assert_eq!(error.kind(), TransportErrorKind::Missing, "{error}");
    }
    let there = topics(&server.url()).await;
    assert!(!there.contains(&missing.to_string()) && !there.contains(&deleted.to_string()), "{there:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keys_go_to_the_partitions_of_the_java_client() {
    let Some(server) = Kafka::newest().shared().or_skip() else { return };
    let topic = fresh_topic(&server.url(), 50, &[]).await;
    let keys = ["21", "foobar", "a-little-bit-long-string", "abc"];
    let messages = stored(keys.iter().map(|key| numbered(&topic, key, 0)));
    deliver(&transport(&server.url()), &messages, LONG).await;
    // The positive part of the Java client's hash of each key, modulo 50.
    let hashes: [i32; 4] = [-973_932_308, -790_332_482, -985_981_536, 479_470_107];
    let log = log(&server.url(), &topic).await;
    for (key, hash) in keys.iter().zip(hashes) {
        let at = log.iter().find(|(_, of, _)| of == key).map(|(partition, _, _)| *partition);
        assert_eq!(at, Some((hash & i32::MAX) % 50), "{key}");
    }
}

/// As the book says of clients on librdkafka: they agree with the Java client if asked to, and not
/// by default.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn librdkafka_gives_keys_the_same_partitions_by_murmur2_random_alone() {
    let Some(server) = Kafka::newest().shared().or_skip() else { return };
    let keys: Vec<String> = (0..20).map(|number| format!("order-{number}")).collect();
    let mut partitions = Vec::new();
    for partitioner in [None, Some("murmur2_random"), Some("consistent_random")] {
        let topic = fresh_topic(&server.url(), 50, &[]).await;
        if let Some(partitioner) = partitioner {
            let mut config = ClientConfig::new();
            config.set("bootstrap.servers", server.url()).set("partitioner", partitioner);
            let (keys, topic) = (keys.clone(), topic.clone());
            let write = move || {
                let producer: ThreadedProducer<DefaultProducerContext> = config.create().unwrap();
                for key in &keys {
                    let record = BaseRecord::to(topic.as_str()).key(key).payload("{}");
                    producer.send(record).map_err(|(error, _)| error).unwrap();
                }
                producer.flush(PATIENCE).unwrap();
            };
            tokio::task::spawn_blocking(write).await.unwrap();
        } else {
            let messages = stored(keys.iter().map(|key| numbered(&topic, key, 0)));
            deliver(&transport(&server.url()), &messages, LONG).await;
        }
        let log = log(&server.url(), &topic).await;
        partitions
            .push(log.into_iter().map(|(partition, key, _)| (key, partition)).collect::<BTreeMap<_, _>>());
    }
    let [ours, asked, default] = &partitions[..] else { unreachable!() };
    assert_eq!((ours.len(), ours), (keys.len(), asked));
    assert_ne!(ours, default, "the default of librdkafka is another hash");
}

/// A record's own key is the message's, whatever bytes it is: what the broker keeps in order is
/// handled in order. Without one it is the subject.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn records_of_other_producers_are_read_with_their_keys() {
    let Some(server) = Kafka::newest().shared().or_skip() else { return };
    let topic = fresh_topic(&server.url(), 1, &[]).await;
    let (brokers, name) = (server.url(), topic.clone());
    let write = move || {
        let producer: ThreadedProducer<DefaultProducerContext> =
            ClientConfig::new().set("bootstrap.servers", brokers).create().unwrap();
        let long = [b'x'; 300];
        let keys = [Some(&b"order-1"[..]), Some(b"\0\0\0\x07"), Some(&long), Some(b""), None];
        for (id, key) in ["1", "2", "3", "4", "5"].into_iter().zip(keys) {
            let attributes = [
                ("specversion", "1.0"),
                ("id", id),
                ("source", "/legacy"),
                ("type", "x"),
                ("subject", "line-1"),
            ];
            let headers = attributes.iter().fold(OwnedHeaders::new(), |headers, (attribute, value)| {
                headers.insert(Header { key: &format!("ce_{attribute}"), value: Some(*value) })
            });
            let mut record = BaseRecord::to(name.as_str()).payload(id).headers(headers);
            if let Some(key) = key {
                record = record.key(key);
            }
            producer.send(record).map_err(|(error, _)| error).unwrap();
        }
        producer.flush(PATIENCE).unwrap();
    };
    tokio::task::spawn_blocking(write).await.unwrap();

    let subscription = Subscription::new("reader", [topic]).unwrap();
    let deliveries = transport(&server.url()).subscribe(subscription).await.unwrap();
    let mut keys = Vec::new();
    while keys.len() < 5 {
        let next = tokio::time::timeout(PATIENCE, deliveries.next()).await.unwrap().unwrap();
        let Received::Deliveries(received) = next else { continue };
        for delivery in received {
            let message = delivery.message.unwrap();
            keys.push((message.payload.clone(), message.key.map(|key| key.to_string())));
        }
    }
    let long = outbox_contract::Key::of_bytes(&[b'x'; 300]).to_string();
    assert!(long.starts_with("xxx"), "{long}");
    let expected = [("1", "order-1"), ("2", "0x00000007"), ("3", &long), ("4", "0x"), ("5", "line-1")];
    assert_eq!(keys, expected.map(|(id, key)| (Bytes::from(id), Some(key.to_owned()))));
}

/// The topic takes less than the transport was told. A record batch is rejected as a whole: only
/// the guilty message is said to be, what follows of its key is not sent, and everybody else
/// arrives, in order.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_message_that_the_topic_does_not_take_is_rejected_alone() {
    let Some(server) = Kafka::newest().shared().or_skip() else { return };
    let topic = fresh_topic(&server.url(), 2, &[("max.message.bytes", "20000")]).await;
    let transport = transport(&server.url());
    // The broker knows the producer: what is under way is not held back by the first message of a
    // partition.
    let warm = stored((0..32).map(|key| numbered(&topic, &format!("warm-{key}"), 0)));
    deliver(&transport, &warm, LONG).await;

    let key = |at: usize| format!("key-{}", at % 10);
    let mut messages: Vec<Message> = (0..200).map(|at| numbered(&topic, &key(at), at)).collect();
    messages[53] = messages[53].clone().with_payload(vec![b'x'; 50_000]);
    let messages = stored(messages);
    // Messages in front of it may come back unknown with a batch that was refused; then it is
    // blocked, and a relay sends all of that again.
    let large = Arc::clone(&messages[53]);
    let mut left = messages;
    let started = Instant::now();
    loop {
        assert!(started.elapsed() < PATIENCE, "the large message was neither rejected nor delivered");
        let outcomes = publish(&transport, &left, LONG).await;
        let is_rejected = |it: &Option<Outcome>| matches!(it, Some(Outcome::Rejected(_)));
        let at = left.iter().position(|message| message.message.id == large.message.id).unwrap();
        assert!(outcomes.iter().enumerate().all(|(other, it)| other == at || !is_rejected(it)), "it alone");
        if let Some(Outcome::Rejected(failure)) = &outcomes[at] {
            assert_eq!(failure.class, "message-too-large");
            let of_its_key = |message: &Stored| message.message.key == large.message.key;
            let behind = left.iter().zip(&outcomes).skip(at + 1).filter(|(message, _)| of_its_key(message));
            assert!(behind.clone().all(|(_, it)| *it == Some(Outcome::Blocked)), "what follows of its key");
            assert!(behind.count() > 0);
        }
        let rejected = is_rejected(&outcomes[at]);
        let mut outcomes = outcomes.into_iter();
        left.retain(|_| outcomes.next().flatten() != Some(Outcome::Delivered));
        if rejected {
            break;
        }
    }
    left.retain(|message| message.message.id != large.message.id);
    let sent = log(&server.url(), &topic).await;
    assert_eq!(first_of_key(&sent, "key-3"), [3, 13, 23, 33, 43]);

    deliver(&transport, &left, LONG).await;
    let sent = log(&server.url(), &topic).await;
    for of in 0..10 {
        let expected: Vec<usize> = (of..200).step_by(10).filter(|at| *at != 53).collect();
        assert_eq!(first_of_key(&sent, &format!("key-{of}")), expected);
    }
}

/// The broker knows nothing of the producer, and would take the second batch after it refused the
/// first: so the first message goes alone.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_follows_a_refused_first_message_into_a_cold_partition() {
    let Some(server) = Kafka::newest().shared().or_skip() else { return };
    let topic = fresh_topic(&server.url(), 1, &[("max.message.bytes", "20000")]).await;
    let transport =
        KafkaTransport::builder(server.url()).property("batch.num.messages", "1").build().unwrap();
    let mut messages: Vec<Message> = (0..20).map(|at| numbered(&topic, "a", at)).collect();
    messages[0] = messages[0].clone().with_payload(vec![b'x'; 50_000]);
    let outcomes = publish(&transport, &stored(messages), LONG).await;
    assert!(matches!(outcomes[0], Some(Outcome::Rejected(_) | Outcome::Unknown(_))), "{outcomes:?}");
    assert!(outcomes[1..].iter().all(|it| *it == Some(Outcome::Blocked)), "{outcomes:?}");
    assert_eq!(first_of_key(&log(&server.url(), &topic).await, "a"), [0; 0]);
}

/// Many small messages that are too large together, since the topic takes less than the transport
/// was told: none of them is rejected.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn small_messages_of_a_batch_that_is_too_large_are_not_rejected() {
    let Some(server) = Kafka::newest().shared().or_skip() else { return };
    let topic = fresh_topic(&server.url(), 1, &[("max.message.bytes", "5000")]).await;
    let transport = transport(&server.url());
    deliver(&transport, &stored([numbered(&topic, "warm", 0)]), LONG).await;
    let message = |at: usize| numbered(&topic, &format!("key-{}", at % 5), at);
    let messages = stored((0..60).map(message));
    let outcomes = publish(&transport, &messages, LONG).await;
    assert!(!outcomes.iter().any(|it| matches!(it, Some(Outcome::Rejected(_)))), "{outcomes:?}");
    deliver(&transport, &messages, LONG).await;
    let log = log(&server.url(), &topic).await;
    for of in 0..5 {
        let expected: Vec<usize> = (of..60).step_by(5).collect();
        assert_eq!(first_of_key(&log, &format!("key-{of}")), expected);
    }
}

/// The broker is killed while messages are under way, and comes back: everything arrives, in order.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_broker_that_is_killed_and_comes_back_loses_and_reorders_nothing() {
    let Some(server) = Kafka::newest().start().or_skip() else { return };
    let topic = fresh_topic(&server.url(), 2, &[]).await;
    let transport = transport(&server.url());
    let messages = stored((0..600).map(|at| numbered(&topic, &format!("key-{}", at % 3), at)));
    let sending = {
        let (transport, messages) = (transport.clone(), messages.clone());
        tokio::spawn(async move {
            for batch in messages.chunks(50) {
                deliver(&transport, batch, SHORT).await;
            }
        })
    };
    let away = server.clone();
    tokio::task::spawn_blocking(move || {
        away.kill();
        away.start_again();
    })
    .await
    .unwrap();
    tokio::time::timeout(3 * PATIENCE, sending).await.unwrap().unwrap();
    let log = log(&server.url(), &topic).await;
    for of in 0..3 {
        let expected: Vec<usize> = (of..600).step_by(3).collect();
        assert_eq!(first_of_key(&log, &format!("key-{of}")), expected);
    }
}

/// No broker: unavailable, without any key's fault; and `check` says so.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_broker_that_is_away_is_an_unavailable_route() {
    let Some(server) = Kafka::newest().shared().or_skip() else { return };
    let proxy = Proxy::to(&server.url());
    proxy.refuse(true);
    let topic = fresh_topic(&server.url(), 1, &[]).await;
    let transport = transport(&proxy.addr().to_string());
    let outcomes = publish(&transport, &stored([numbered(&topic, "a", 0)]), SHORT).await;
    assert!(matches!(&outcomes[0], Some(Outcome::Unavailable(Unavailable::Route, _))), "{outcomes:?}");
    let error = transport.check().await.unwrap_err();
    assert_eq!(error.kind(), TransportErrorKind::Unavailable, "{error}");
    proxy.refuse(false);
    // Reached through the proxy, the broker names its own address: from now on it is there.
    deliver(&transport, &stored([numbered(&topic, "a", 0)]), LONG).await;
    transport.check().await.unwrap();
}

#[tokio::test]
async fn properties_that_the_promises_rest_on_are_refused() {
    for name in ["enable.idempotence", "acks", "partitioner", "enable.auto.commit", "message.timeout.ms"] {
        let error = KafkaTransport::builder("127.0.0.1:1").property(name, "x").build().unwrap_err();
        assert_eq!(error.kind(), TransportErrorKind::Invalid);
        assert!(error.to_string().contains(name), "{error}");
    }
}

#[tokio::test]
async fn passwords_are_not_shown() {
    let builder = || KafkaTransport::builder("127.0.0.1:1");
    let by_property = builder().property("sasl.password", "hush");
    let by_method = builder().credentials(Mechanism::Plain, "shop", "hush");
    assert!(!format!("{by_property:?} {by_method:?}").contains("hush"));
    assert!(!format!("{:?}", by_method.build().unwrap()).contains("hush"));
    for (name, value) in [("sasl.passphrase", "hush"), ("socket.timeout.ms", "hush")] {
        let error = builder().property(name, value).build().unwrap_err();
        assert_eq!(error.kind(), TransportErrorKind::Invalid, "{error}");
        assert!(!format!("{error} {error:?}").contains("hush"), "{error:?}");
    }
}

/// Without its feature, nothing of TLS is taken for something else in silence.
#[cfg(not(feature = "tls"))]
#[tokio::test]
async fn tls_and_scram_without_their_feature_are_refused_by_its_name() {
    let builder = || KafkaTransport::builder("127.0.0.1:1");
    let wishes = [
        builder().tls(),
        builder().authorities("pem"),
        builder().identity("pem", "pem"),
        builder().credentials(Mechanism::ScramSha256, "shop", "hush"),
        builder().property("security.protocol", "sasl_ssl"),
    ];
    for wish in wishes {
        let error = wish.build().unwrap_err();
        assert_eq!(error.kind(), TransportErrorKind::Invalid, "{error}");
        assert!(error.to_string().contains("feature `tls`"), "{error}");
    }
}
