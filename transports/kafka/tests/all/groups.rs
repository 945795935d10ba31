//! Groups that take no member, or not this one: said with a remedy, and not waited for in silence.

#![allow(clippy::unwrap_used, reason = "a panic in a test is a failed test")]

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use crate::support::{PATIENCE, deliver, fresh_name, fresh_topic, numbered, stored};
use outbox_contract::backend::{Deliveries, Received, Subscription, Transport};
use outbox_contract::{Topic, TransportError, TransportErrorKind};
use outbox_servers::{Kafka, OrSkip};
use outbox_transport_kafka::{GroupProtocol, KafkaTransport, KafkaTransportBuilder};
use rdkafka::ClientConfig;
use rdkafka::consumer::{BaseConsumer, Consumer as _};
use tokio::time::timeout;

const SHORT: Duration = Duration::from_secs(30);

/// A consumer of rdkafka itself, that shares out partitions as the default of Kafka is.
struct Stranger {
    leaves: Arc<AtomicBool>,
    thread: std::thread::JoinHandle<()>,
}

impl Stranger {
    /// Returns when it is a member.
    fn join(brokers: &str, group: &str, topic: &Topic) -> Self {
        let mut config = ClientConfig::new();
        config.set("bootstrap.servers", brokers).set("group.id", group);
        config.set("partition.assignment.strategy", "range").set("session.timeout.ms", "6000");
        let consumer: BaseConsumer = config.create().unwrap();
        consumer.subscribe(&[topic.as_str()]).unwrap();
        let leaves = Arc::new(AtomicBool::new(false));
        let (is_asked, (joins, joined)) = (Arc::clone(&leaves), mpsc::channel());
        let thread = std::thread::spawn(move || {
            while !is_asked.load(Ordering::Acquire) {
                drop(consumer.poll(Duration::from_millis(100)));
                if consumer.assignment().unwrap().count() > 0 {
                    let _ = joins.send(());
                }
            }
        });
        joined.recv_timeout(PATIENCE).unwrap();
        Self { leaves, thread }
    }

    fn leave(self) {
        self.leaves.store(true, Ordering::Release);
        self.thread.join().unwrap();
    }
}

async fn subscribe(builder: KafkaTransportBuilder, group: &str, topic: &Topic) -> Box<dyn Deliveries> {
    let subscription = Subscription::new(group, [topic.clone()]).unwrap();
    builder.build().unwrap().subscribe(subscription).await.unwrap()
}

async fn error_of(member: &dyn Deliveries) -> TransportError {
    let next = timeout(SHORT, member.next()).await.unwrap_or_else(|_| panic!("nothing was said"));
    next.map(|received| panic!("{received:?} instead of an error")).unwrap_err()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_group_that_shares_out_in_another_way_is_named_until_it_is_gone() {
    let Some(server) = Kafka::newest().shared().or_skip() else { return };
    let topic = fresh_topic(&server.url(), 2, &[]).await;
    let group = fresh_name().to_string();
    let (brokers, of, name) = (server.url(), topic.clone(), group.clone());
    let stranger = tokio::task::spawn_blocking(move || Stranger::join(&brokers, &name, &of)).await.unwrap();

    let member = subscribe(KafkaTransport::builder(server.url()), &group, &topic).await;
    for _ in 0..2 {
        let error = error_of(&*member).await;
        assert_eq!(error.kind(), TransportErrorKind::Unavailable, "{error}");
        assert!(error.to_string().contains("partition.assignment.strategy"), "{error}");
    }

    tokio::task::spawn_blocking(|| stranger.leave()).await.unwrap();
    let transport = KafkaTransport::builder(server.url()).build().unwrap();
    deliver(&transport, &stored([numbered(&topic, "a", 0)]), PATIENCE).await;
    let came = async {
        loop {
            match member.next().await {
                Ok(Received::Deliveries(deliveries)) => return deliveries.len(),
                Err(error) => assert!(error.is_retryable(), "{error}"),
                other => panic!("{other:?}"),
            }
        }
    };
    assert_eq!(timeout(PATIENCE, came).await.unwrap(), 1);
}

/// Whoever closes may end the process at once: a member that has not left by then would keep its
/// partitions from others until its session ends.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_member_has_left_its_group_when_its_close_returns() {
    let Some(server) = Kafka::newest().shared().or_skip() else { return };
    let topic = fresh_topic(&server.url(), 2, &[]).await;
    let group = fresh_name().to_string();
    let transport = KafkaTransport::builder(server.url()).build().unwrap();
    for round in 0..5 {
        deliver(&transport, &stored([numbered(&topic, "a", round)]), PATIENCE).await;
        let member = subscribe(KafkaTransport::builder(server.url()), &group, &topic).await;
        let received = timeout(PATIENCE, member.next()).await.unwrap().unwrap();
        let Received::Deliveries(deliveries) = received else { panic!("{received:?}") };
        let tags: Vec<_> = deliveries.into_iter().map(|delivery| delivery.tag).collect();
        member.acknowledge(&tags).await.unwrap();
        member.close().await.unwrap();
        assert_eq!(members(&server.url(), &group).await, 0, "round {round}");
    }
}

/// Returns the number of members that the broker knows of a group.
async fn members(brokers: &str, group: &str) -> usize {
    let (brokers, group) = (brokers.to_owned(), group.to_owned());
    let asked = tokio::task::spawn_blocking(move || {
        let client: BaseConsumer = ClientConfig::new().set("bootstrap.servers", brokers).create().unwrap();
        let groups = client.fetch_group_list(Some(&group), PATIENCE).unwrap();
        groups.groups().iter().map(|group| group.members().len()).sum()
    });
    asked.await.unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_timeout_that_the_broker_does_not_take_is_named() {
    let Some(server) = Kafka::newest().shared().or_skip() else { return };
    let topic = fresh_topic(&server.url(), 1, &[]).await;
    let builder = KafkaTransport::builder(server.url());
    // Half an hour is the most by default.
    let builder =
        builder.property("session.timeout.ms", "3000000").property("max.poll.interval.ms", "3000000");
    let member = subscribe(builder, fresh_name().as_str(), &topic).await;
    let error = error_of(&*member).await;
    assert_eq!(error.kind(), TransportErrorKind::Invalid, "{error}");
    assert!(error.to_string().contains("group.max.session.timeout.ms"), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_member_that_can_never_join_says_why_and_that_it_is_over() {
    let Some(server) = Kafka::newest().shared().or_skip() else { return };
    let topic = fresh_topic(&server.url(), 2, &[]).await;
    let group = fresh_name().to_string();
    let same = || {
        let builder = KafkaTransport::builder(server.url()).property("group.instance.id", "same");
        builder.group_protocol(GroupProtocol::Consumer)
    };
    let first = subscribe(same(), &group, &topic).await;
    let transport = KafkaTransport::builder(server.url()).build().unwrap();
    deliver(&transport, &stored([numbered(&topic, "a", 0)]), PATIENCE).await;
    // Then it is a member.
    let received = timeout(PATIENCE, first.next()).await.unwrap().unwrap();
    assert!(matches!(received, Received::Deliveries(_)), "{received:?}");

    let second = subscribe(same(), &group, &topic).await;
    let error = error_of(&*second).await;
    assert!(!error.is_retryable() && error.to_string().contains("group.instance.id"), "{error}");
    let next = timeout(SHORT, second.next()).await.unwrap().unwrap();
    assert!(matches!(next, Received::Ended), "{next:?}");
}
