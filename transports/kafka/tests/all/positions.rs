//! Positions of a group that the broker has no longer, and what waits for it: on real brokers,
//! whose offsets are deleted and whose logs are trimmed.

#![allow(clippy::unwrap_used, reason = "a panic in a test is a failed test")]

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use crate::support::{PATIENCE, deliver, fresh_name, fresh_topic, numbered, set, stored};
use outbox_contract::backend::{
    Deliveries, Lag, Loss, LossCause, OffsetReset, Problem, Received, Stored, Subscription, Transport,
};
use outbox_contract::{Consumer, Timestamp, Topic};
use outbox_servers::{Kafka, OrSkip};
use outbox_testkit::Warnings;
use outbox_transport_kafka::{GroupProtocol, KafkaTransport};
use rdkafka::ClientConfig;
use rdkafka::admin::{AdminClient, AdminOptions, NewPartitions};
use rdkafka::client::DefaultClientContext;
use rdkafka::producer::{BaseProducer, BaseRecord, Producer as _};
use rdkafka::topic_partition_list::{Offset, TopicPartitionList};
use tokio::time::{Instant, sleep, timeout};

/// Interval of looks.
const EVERY: Duration = Duration::from_millis(50);

/// A topic, and a consumer of it.
struct World {
    brokers: String,
    topic: Topic,
    group: String,
    transport: KafkaTransport,
    sent: usize,
}

impl World {
    async fn new(brokers: String, partitions: i32, protocol: GroupProtocol) -> Self {
        let topic = fresh_topic(&brokers, partitions, &[]).await;
        let transport = KafkaTransport::builder(&brokers).group_protocol(protocol).build().unwrap();
        Self { brokers, topic, group: fresh_name().to_string(), transport, sent: 0 }
    }

    fn admin(&self) -> AdminClient<DefaultClientContext> {
        ClientConfig::new().set("bootstrap.servers", &self.brokers).create().unwrap()
    }

    async fn publish(&mut self, count: usize) {
        let messages = (self.sent..self.sent + count).map(|n| numbered(&self.topic, &format!("key-{n}"), n));
        let messages: Vec<Arc<Stored>> = stored(messages);
        deliver(&self.transport, &messages, PATIENCE).await;
        self.sent += count;
    }

    /// Joins as the consumer, which has handled the topic last at this time, if it ever did.
    async fn join(&self, handled: Option<Timestamp>, reset: OffsetReset) -> Box<dyn Deliveries> {
        let handled = handled.map(|at| BTreeMap::from([(self.topic.clone(), at)])).unwrap_or_default();
        let subscription = Subscription::new(&self.group, [self.topic.clone()]).unwrap();
        self.transport.subscribe(subscription.with_handled(handled, reset)).await.unwrap()
    }

    /// Reads so many messages, acknowledges them and leaves.
    async fn handle(&self, member: Box<dyn Deliveries>, count: usize) -> Vec<usize> {
        let numbers = read(&*member, count).await;
        member.close().await.unwrap();
        numbers
    }

    async fn delete_group(&self) {
        let options = AdminOptions::new().operation_timeout(Some(PATIENCE)).request_timeout(Some(PATIENCE));
        let start = Instant::now();
        // The member that left may be there for another moment.
        while self.admin().delete_groups(&[&self.group], &options).await.unwrap().iter().any(Result::is_err) {
            assert!(start.elapsed() < PATIENCE, "the group can't be deleted");
            sleep(EVERY).await;
        }
    }

    async fn trim(&self, partition: i32, before: i64) {
        let mut list = TopicPartitionList::new();
        list.add_partition_offset(self.topic.as_str(), partition, Offset::Offset(before)).unwrap();
        self.admin().delete_records(&list, &AdminOptions::new()).await.unwrap();
    }
}

async fn next(member: &dyn Deliveries) -> Vec<outbox_contract::backend::Delivery> {
    loop {
        match timeout(PATIENCE, member.next()).await.unwrap().unwrap() {
            Received::Deliveries(deliveries) => return deliveries,
            Received::Revoked(_) => {}
            other => panic!("{other:?}"),
        }
    }
}

/// Reads at least so many messages, and acknowledges them.
async fn read(member: &dyn Deliveries, count: usize) -> Vec<usize> {
    let mut numbers = Vec::new();
    while numbers.len() < count {
        let deliveries = next(member).await;
        let number = |message: &outbox_contract::Message| {
            std::str::from_utf8(&message.payload).unwrap().parse::<usize>().unwrap()
        };
        numbers.extend(deliveries.iter().map(|delivery| number(delivery.message.as_ref().unwrap())));
        let tags: Vec<_> = deliveries.into_iter().map(|delivery| delivery.tag).collect();
        member.acknowledge(&tags).await.unwrap();
    }
    numbers.sort_unstable();
    numbers
}

async fn eventually<T>(what: &str, look: impl Fn() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(start.elapsed() < PATIENCE, "not within {PATIENCE:?}: {what}");
        sleep(EVERY).await;
    }
}

async fn losses(member: &dyn Deliveries, count: usize) -> Vec<Loss> {
    let all = std::sync::Mutex::new(Vec::new());
    eventually("losses", || {
        let mut all = all.lock().unwrap();
        all.extend(member.losses());
        (all.len() >= count).then(|| all.clone())
    })
    .await
}

async fn problem(member: &dyn Deliveries) -> Problem {
    eventually("a problem", || member.problems().into_iter().next()).await
}

/// Waits until the lags together are so many messages.
async fn waits(member: &dyn Deliveries, messages: u64) -> Vec<Lag> {
    let sum = |lags: &Vec<Lag>| lags.iter().map(|lag| lag.messages).sum::<u64>();
    eventually("the lag", || Some(member.lags()).filter(|lags| !lags.is_empty() && sum(lags) == messages))
        .await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_group_whose_offsets_are_gone_does_what_is_configured() {
    let Some(server) = Kafka::newest().shared().or_skip() else { return };
    for protocol in [GroupProtocol::Cooperative, GroupProtocol::Consumer] {
        for reset in [OffsetReset::None, OffsetReset::Earliest, OffsetReset::Latest, OffsetReset::LastHandled]
        {
            let mut world = World::new(server.url(), 2, protocol).await;
            world.publish(10).await;
            let member = world.join(None, reset).await;
            assert!(member.losses().is_empty(), "a new consumer has lost nothing");
            assert_eq!(world.handle(member, 10).await, (0..10).collect::<Vec<_>>());
            let last = Timestamp::now().plus(Duration::from_millis(2));
            while Timestamp::now() <= last {
                sleep(Duration::from_millis(1)).await;
            }
            world.publish(5).await;
            world.delete_group().await;

            let member = world.join(Some(last), reset).await;
            let found = losses(&*member, 2).await;
            assert!(found.iter().all(|loss| loss.cause == LossCause::Position), "{found:?}");
            // Messages from now on are behind the end that was found.
            world.publish(4).await;
            let expected = match reset {
                OffsetReset::Earliest => 0..19,
                OffsetReset::LastHandled => 10..19,
                OffsetReset::Latest => 15..19,
                OffsetReset::None => {
                    let problem = problem(&*member).await;
                    assert!(
                        problem.error.contains("offset_reset") && problem.error.contains(&world.group),
                        "{problem}"
                    );
                    assert_eq!(member.problems().len(), 2);
                    assert!(timeout(Duration::from_secs(2), member.next()).await.is_err(), "nothing is read");
                    continue;
                }
            };
            let count = expected.len();
            assert_eq!(read(&*member, count).await, expected.collect::<Vec<_>>(), "{reset} {protocol:?}");
        }
    }
}

/// The way out: the operator sets the offset.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_refused_group_goes_on_when_somebody_has_set_its_offset() {
    let Some(server) = Kafka::newest().shared().or_skip() else { return };
    let mut world = World::new(server.url(), 1, GroupProtocol::Cooperative).await;
    world.publish(6).await;
    let member = world.join(None, OffsetReset::None).await;
    world.handle(member, 6).await;
    world.publish(3).await;
    let tool = |args: Vec<String>| {
        let mut all = vec![
            "--bootstrap-server".to_owned(),
            server.internal_url(),
            "--group".to_owned(),
            world.group.clone(),
        ];
        all.extend(args);
        let all: Vec<&str> = all.iter().map(String::as_str).collect();
        server.tool("org.apache.kafka.tools.consumer.group.ConsumerGroupCommand", &all).unwrap()
    };
    let topic = world.topic.to_string();
    let deleted = ["--delete-offsets", "--topic", &topic].map(str::to_owned).to_vec();
    let told = tool(deleted);
    assert!(told.contains("Successful"), "{told}");
    let member = world.join(Some(Timestamp::now()), OffsetReset::None).await;
    let refused = problem(&*member).await;
    assert_eq!(refused.number, Some(0), "{refused}");
    member.close().await.unwrap();
    let set =
        ["--reset-offsets", "--to-offset", "6", "--topic", &topic, "--execute"].map(str::to_owned).to_vec();
    tool(set);
    let member = world.join(Some(Timestamp::now()), OffsetReset::None).await;
    assert_eq!(read(&*member, 3).await, [6, 7, 8]);
    assert!(member.problems().is_empty() && member.losses().is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_trimmed_before_it_was_read_is_counted() {
    let Some(server) = Kafka::newest().shared().or_skip() else { return };
    for reset in [OffsetReset::None, OffsetReset::Earliest] {
        let mut world = World::new(server.url(), 1, GroupProtocol::Cooperative).await;
        world.publish(5).await;
        let member = world.join(None, reset).await;
        world.handle(member, 5).await;
        world.publish(5).await;
        world.trim(0, 8).await;
        let member = world.join(Some(Timestamp::now()), reset).await;
        let found = losses(&*member, 1).await;
        assert_eq!((found[0].cause, found[0].messages), (LossCause::Trimmed, Some(3)), "{found:?}");
        if reset == OffsetReset::None {
            assert!(problem(&*member).await.error.contains("begins at offset 8"));
        } else {
            assert_eq!(read(&*member, 2).await, [8, 9]);
        }
    }
}

/// Neither of them has lost anything.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_new_topic_and_a_partition_that_was_added_begin_at_their_beginning() {
    let Some(server) = Kafka::newest().shared().or_skip() else { return };
    let mut world = World::new(server.url(), 1, GroupProtocol::Cooperative).await;
    world.publish(3).await;
    let member = world.join(None, OffsetReset::None).await;
    world.handle(member, 3).await;
    let added = NewPartitions::new(world.topic.as_str(), 4);
    world.admin().create_partitions(&[added], &AdminOptions::new()).await.unwrap();
    world.transport = KafkaTransport::builder(&world.brokers).build().unwrap();
    world.publish(20).await;
    let (other, name) = (fresh_topic(&world.brokers, 1, &[]).await, Consumer::new(&world.group).unwrap());
    deliver(&world.transport, &stored([numbered(&other, "a", 100)]), PATIENCE).await;
    let handled = BTreeMap::from([(world.topic.clone(), Timestamp::now())]);
    let subscription = Subscription::new(name, [world.topic.clone(), other])
        .unwrap()
        .with_handled(handled, OffsetReset::None);
    let member = world.transport.subscribe(subscription).await.unwrap();
    let expected: Vec<usize> = (3..23).chain([100]).collect();
    assert_eq!(read(&*member, 21).await, expected);
    assert!(member.problems().is_empty() && member.losses().is_empty());
}

/// A member that ends while its first message is still handled has committed nothing of it, and has
/// lost nothing either.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_consumer_that_finished_only_later_messages_has_a_position() {
    let Some(server) = Kafka::newest().shared().or_skip() else { return };
    let mut world = World::new(server.url(), 1, GroupProtocol::Cooperative).await;
    world.publish(5).await;
    let member = world.join(None, OffsetReset::None).await;
    let mut came = Vec::new();
    while came.len() < 5 {
        came.extend(next(&*member).await);
    }
    let later: Vec<_> = came[1..].iter().map(|delivery| delivery.tag.clone()).collect();
    member.acknowledge(&later).await.unwrap();
    member.close().await.unwrap();
    let member = world.join(Some(Timestamp::now()), OffsetReset::None).await;
    assert_eq!(read(&*member, 5).await, [0, 1, 2, 3, 4]);
    assert!(member.losses().is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_waits_is_measured_in_each_partition() {
    let Some(server) = Kafka::newest().shared().or_skip() else { return };
    let mut world = World::new(server.url(), 2, GroupProtocol::Cooperative).await;
    world.publish(40).await;
    let member = world.join(None, OffsetReset::None).await;
    let lags = waits(&*member, 40).await;
    assert_eq!(lags.len(), 2);
    let old = lags.iter().filter(|lag| lag.messages > 0);
    assert!(old.clone().count() > 0 && old.clone().all(|lag| lag.age.is_some()), "{lags:?}");
    read(&*member, 40).await;
    let lags = waits(&*member, 0).await;
    assert!(lags.iter().all(|lag| lag.age.is_none() && lag.stuck.is_none()), "{lags:?}");

    // The client fetches nothing of what is paused, and what comes is counted all the same.
    let units: Vec<_> = lags.into_iter().map(|lag| lag.unit).collect();
    member.pause(&units).await.unwrap();
    world.publish(7).await;
    waits(&*member, 7).await;
}

/// A producer of another program died in a transaction: what is behind it can't be read, by
/// anybody, until the broker ends it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_transaction_that_hangs_is_named_until_it_is_over() {
    let Some(server) = Kafka::newest().shared().or_skip() else { return };
    let mut world = World::new(server.url(), 1, GroupProtocol::Cooperative).await;
    world.publish(3).await;
    let member = world.join(None, OffsetReset::None).await;
    read(&*member, 3).await;
    let producer: BaseProducer = ClientConfig::new()
        .set("bootstrap.servers", &world.brokers)
        .set("transactional.id", fresh_name().as_str())
        .set("transaction.timeout.ms", "600000")
        .create()
        .unwrap();
    let name = world.topic.clone();
    let producer = tokio::task::spawn_blocking(move || {
        producer.init_transactions(PATIENCE).unwrap();
        producer.begin_transaction().unwrap();
        producer
            .send(BaseRecord::<str, str>::to(name.as_str()).payload("{}"))
            .map_err(|(error, _)| error)
            .unwrap();
        producer.flush(PATIENCE).unwrap();
        producer
    })
    .await
    .unwrap();
    world.publish(4).await;
    let stuck = || member.lags().into_iter().find_map(|lag| Some((lag.messages, lag.stuck?)));
    let (messages, why) = eventually("the transaction is named", stuck).await;
    assert_eq!(messages, 5);
    assert!(why.contains("kafka-transactions") && why.contains(world.topic.as_str()), "{why}");
    tokio::task::spawn_blocking(move || producer.abort_transaction(PATIENCE).unwrap()).await.unwrap();
    assert_eq!(read(&*member, 4).await, [3, 4, 5, 6]);
    eventually("it is over", || stuck().is_none().then_some(())).await;
}

/// They may be changed under a running program.
#[tokio::test]
async fn dangerous_settings_of_topics_are_found_by_each_check() {
    let Some(server) = Kafka::newest().shared().or_skip() else { return };
    let mut world = World::new(server.url(), 1, GroupProtocol::Cooperative).await;
    world.publish(1).await;
    let (warnings, _guard) = Warnings::capture();
    let warned =
        || warnings.take().into_iter().filter(|warning| warning.contains(world.topic.as_str())).count();
    world.transport.check().await.unwrap();
    assert_eq!(warned(), 0);
    set(&world.brokers, &world.topic, "unclean.leader.election.enable", "true").await;
    world.transport.check().await.unwrap();
    assert_eq!(warned(), 1);
    world.transport.check().await.unwrap();
    assert_eq!(warned(), 0, "it is said once");
}
