//! Topics that are missing, deleted or not to be read, beside one that is well: it goes on, and
//! they are named until they are well too.

#![allow(clippy::unwrap_used, reason = "a panic in a test is a failed test")]

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use crate::support::{
    PATIENCE, delete_topic, deliver, finished_by, fresh_name, fresh_topic, make_topic, numbered, stored,
};
use outbox_contract::backend::{Deliveries, Problem, Received, Subscription, Transport};
use outbox_contract::{Consumer, Topic};
use outbox_servers::{Kafka, KafkaServer, OrSkip};
use outbox_transport_kafka::{GroupProtocol, KafkaTransport};

const BOTH: [GroupProtocol; 2] = [GroupProtocol::Cooperative, GroupProtocol::Consumer];

/// A member, and what came to it of each topic.
struct Reader {
    member: Box<dyn Deliveries>,
    came: BTreeMap<Topic, Vec<usize>>,
}

impl Reader {
    async fn join(transport: &KafkaTransport, topics: &[&Topic]) -> Self {
        let consumer = Consumer::new(fresh_name().as_str()).unwrap();
        Self::join_as(transport, consumer, topics).await
    }

    async fn join_as(transport: &KafkaTransport, consumer: Consumer, topics: &[&Topic]) -> Self {
        let subscription = Subscription::new(consumer, topics.iter().map(|topic| (*topic).clone())).unwrap();
        Self { member: transport.subscribe(subscription).await.unwrap(), came: BTreeMap::new() }
    }

    /// Receives and acknowledges until this holds. Any error is a failure: something can be
    /// received all the time.
    async fn until(&mut self, what: &str, holds: impl Fn(&Self) -> bool) {
        let started = Instant::now();
        while !holds(self) {
            assert!(
                started.elapsed() < PATIENCE,
                "{what}: {:?}, problems {:?}",
                self.came,
                self.member.problems()
            );
            let Ok(next) = tokio::time::timeout(Duration::from_millis(100), self.member.next()).await else {
                continue;
            };
            let Received::Deliveries(deliveries) = next.unwrap() else { continue };
            let tags: Vec<_> = deliveries.iter().map(|delivery| delivery.tag.clone()).collect();
            for delivery in deliveries {
                let number = std::str::from_utf8(&delivery.message.unwrap().payload).unwrap().parse();
                self.came.entry(delivery.tag.unit.topic).or_default().push(number.unwrap());
            }
            self.member.acknowledge(&tags).await.unwrap();
        }
    }

    fn has(&self, topic: &Topic, number: usize) -> bool {
        self.came.get(topic).is_some_and(|came| came.contains(&number))
    }

    fn problems_of(&self, topic: &Topic) -> Vec<Problem> {
        self.member.problems().into_iter().filter(|problem| problem.topic == *topic).collect()
    }
}

async fn send(transport: &KafkaTransport, topic: &Topic, numbers: std::ops::Range<usize>) {
    deliver(transport, &stored(numbers.map(|at| numbered(topic, "a", at))), PATIENCE).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_topic_that_is_deleted_delays_no_other_until_it_is_made_again() {
    let Some(server) = Kafka::newest().shared().or_skip() else { return };
    futures_util::future::join_all(BOTH.map(|protocol| deleted(&server, protocol))).await;
}

async fn deleted(server: &KafkaServer, protocol: GroupProtocol) {
    let transport = KafkaTransport::builder(server.url()).group_protocol(protocol).build().unwrap();
    let (well, deleted) =
        (fresh_topic(&server.url(), 2, &[]).await, fresh_topic(&server.url(), 2, &[]).await);
    send(&transport, &well, 0..80).await;
    send(&transport, &deleted, 0..80).await;
    let mut reader = Reader::join(&transport, &[&well, &deleted]).await;
    reader.until("all of both", |it| it.has(&well, 79) && it.has(&deleted, 79)).await;

    delete_topic(&server.url(), &deleted).await;
    reader.until("it is named", |it| !it.problems_of(&deleted).is_empty()).await;
    let problem = &reader.problems_of(&deleted)[0];
    assert!(problem.number.is_none() && problem.error.contains("create it"), "{problem}");
    for at in 0..10 {
        let (from, to) = (80 + at * 10, 90 + at * 10);
        send(&transport, &well, from..to).await;
        reader.until("the other goes on", |it| it.has(&well, to - 1)).await;
    }
    assert_eq!(reader.problems_of(&well), []);

    make_topic(&server.url(), &deleted, 2, &[]).await;
    send(&transport, &deleted, 100..120).await;
    reader.until("it is received again", |it| it.has(&deleted, 119)).await;
    reader.until("nothing is wrong", |it| it.member.problems().is_empty()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_topic_that_is_missing_at_the_start_is_received_once_it_is_made() {
    let Some(server) = Kafka::newest().shared().or_skip() else { return };
    futures_util::future::join_all(BOTH.map(|protocol| missing_at_the_start(&server, protocol))).await;
}

async fn missing_at_the_start(server: &KafkaServer, protocol: GroupProtocol) {
    let transport = KafkaTransport::builder(server.url()).group_protocol(protocol).build().unwrap();
    let (well, missing) = (fresh_topic(&server.url(), 1, &[]).await, fresh_name());
    let mut reader = Reader::join(&transport, &[&well, &missing]).await;
    assert_eq!(reader.problems_of(&missing).len(), 1);
    send(&transport, &well, 0..20).await;
    reader.until("the other is received", |it| it.has(&well, 19)).await;
    assert_eq!(reader.problems_of(&missing).len(), 1);

    make_topic(&server.url(), &missing, 1, &[]).await;
    send(&transport, &missing, 0..20).await;
    reader.until("it is received", |it| it.has(&missing, 19)).await;
    reader.until("nothing is wrong", |it| it.member.problems().is_empty()).await;
}

/// Adds or removes a right of the user without rights.
async fn acl(
    server: &KafkaServer,
    change: &'static str,
    operation: &'static str,
    of: &'static str,
    name: &str,
) {
    let (server, name) = (server.clone(), name.to_owned());
    let changed = move || {
        let (user, brokers) = (format!("User:{}", Kafka::NOBODY.0), server.internal_url());
        let mut args = vec!["--bootstrap-server", &brokers, change, "--allow-principal", &user];
        args.extend(["--operation", operation, of, &name]);
        if change == "--remove" {
            args.push("--force");
        }
        server.tool("org.apache.kafka.tools.AclCommand", &args).unwrap()
    };
    tokio::task::spawn_blocking(changed).await.unwrap();
}

/// The transport of the user without rights.
fn of_nobody(server: &KafkaServer, protocol: GroupProtocol) -> KafkaTransport {
    KafkaTransport::builder(server.url())
        .property("security.protocol", "SASL_PLAINTEXT")
        .property("sasl.mechanism", "PLAIN")
        .property("sasl.username", Kafka::NOBODY.0)
        .property("sasl.password", Kafka::NOBODY.1)
        .group_protocol(protocol)
        .build()
        .unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_topic_that_may_not_be_read_any_more_delays_no_other_until_it_may() {
    let started =
        tokio::task::spawn_blocking(|| Kafka::newest().authorized().start().or_skip()).await.unwrap();
    let Some(server) = started else { return };
    let group = fresh_name().to_string();
    let (well, secret) = (
        fresh_topic(&server.internal_url(), 2, &[]).await,
        fresh_topic(&server.internal_url(), 2, &[]).await,
    );
    for topic in [&well, &secret] {
        acl(&server, "--add", "Read", "--topic", topic.as_str()).await;
        // Kept: the topic can be seen all the time.
        acl(&server, "--add", "Describe", "--topic", topic.as_str()).await;
    }
    acl(&server, "--add", "Read", "--group", &group).await;
    let writer = KafkaTransport::builder(server.internal_url()).build().unwrap();
    let transport = of_nobody(&server, GroupProtocol::Cooperative);
    send(&writer, &well, 0..10).await;
    send(&writer, &secret, 0..10).await;
    let consumer = Consumer::new(group.as_str()).unwrap();
    let mut reader = Reader::join_as(&transport, consumer, &[&well, &secret]).await;
    reader.until("all of both", |it| it.has(&well, 9) && it.has(&secret, 9)).await;

    acl(&server, "--remove", "Read", "--topic", secret.as_str()).await;
    send(&writer, &secret, 10..20).await;
    reader.until("it is named", |it| !it.problems_of(&secret).is_empty()).await;
    let problem = &reader.problems_of(&secret)[0];
    assert!(problem.error.contains("grant Read"), "{problem}");
    for at in 0..5 {
        let (from, to) = (10 + at * 10, 20 + at * 10);
        send(&writer, &well, from..to).await;
        reader.until("the other goes on", |it| it.has(&well, to - 1)).await;
    }
    assert_eq!(reader.problems_of(&well), []);
    let committed = finished_by(&server.internal_url(), &group, &well).await;
    assert_eq!(committed, 60, "and is committed");

    acl(&server, "--add", "Read", "--topic", secret.as_str()).await;
    reader.until("it is received again", |it| it.has(&secret, 19)).await;
    reader.until("nothing is wrong", |it| it.member.problems().is_empty()).await;
}

/// A broker that divides the partitions refuses the heartbeat of a member that asks for a topic
/// which it may not describe: as it is, of all topics.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_topic_that_may_not_be_described_delays_no_other_until_it_may() {
    let started =
        tokio::task::spawn_blocking(|| Kafka::newest().authorized().start().or_skip()).await.unwrap();
    let Some(server) = started else { return };
    futures_util::future::join_all(BOTH.map(|protocol| not_described(&server, protocol))).await;
}

async fn not_described(server: &KafkaServer, protocol: GroupProtocol) {
    let group = fresh_name().to_string();
    let (well, secret) = (
        fresh_topic(&server.internal_url(), 2, &[]).await,
        fresh_topic(&server.internal_url(), 2, &[]).await,
    );
    // It brings the right to describe.
    acl(server, "--add", "Read", "--topic", well.as_str()).await;
    acl(server, "--add", "Read", "--group", &group).await;
    let writer = KafkaTransport::builder(server.internal_url()).build().unwrap();
    let transport = of_nobody(server, protocol);
    send(&writer, &well, 0..10).await;
    send(&writer, &secret, 0..10).await;
    let consumer = Consumer::new(group.as_str()).unwrap();
    let mut reader = Reader::join_as(&transport, consumer.clone(), &[&well, &secret]).await;
    reader.until("the other is received", |it| it.has(&well, 9)).await;
    let problem = &reader.problems_of(&secret)[0];
    assert!(problem.error.contains("grant Read"), "{problem}");

    acl(server, "--add", "Read", "--topic", secret.as_str()).await;
    reader.until("it is received", |it| it.has(&secret, 9)).await;
    reader.until("nothing is wrong", |it| it.member.problems().is_empty()).await;

    acl(server, "--remove", "Read", "--topic", secret.as_str()).await;
    send(&writer, &secret, 10..20).await;
    reader.until("it is named", |it| !it.problems_of(&secret).is_empty()).await;
    send(&writer, &well, 10..20).await;
    reader.until("the other goes on", |it| it.has(&well, 19)).await;
    // By the same transport, which may describe it as far as it knows.
    reader.member.close().await.unwrap();
    let mut reader = Reader::join_as(&transport, consumer, &[&well, &secret]).await;
    send(&writer, &well, 20..30).await;
    reader.until("the other is received by the next member", |it| it.has(&well, 29)).await;

    acl(server, "--add", "Read", "--topic", secret.as_str()).await;
    reader.until("it is received again", |it| it.has(&secret, 19)).await;
    reader.until("nothing is wrong", |it| it.member.problems().is_empty()).await;
}
