//! A broker, topics and batches for tests.

#![allow(dead_code, unreachable_pub, reason = "each test program uses a part of it")]

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use outbox_contract::backend::{Outcome, Outcomes, Position, PublishBatch, RelayId, Stored, Transport};
use outbox_contract::{Message, Route, Timestamp, Topic};
use rdkafka::ClientConfig;
use rdkafka::admin::{AdminClient, AdminOptions, AlterConfig, NewTopic, ResourceSpecifier, TopicReplication};
use rdkafka::client::DefaultClientContext;
use rdkafka::consumer::{BaseConsumer, Consumer as _};
use rdkafka::message::Message as _;
use rdkafka::topic_partition_list::{Offset, TopicPartitionList};

/// Time limit for what must happen. Long: a slow machine is no failure.
pub const PATIENCE: Duration = Duration::from_secs(120);

fn admin(brokers: &str) -> AdminClient<DefaultClientContext> {
    ClientConfig::new().set("bootstrap.servers", brokers).create().unwrap()
}

/// Returns true if it counts against no message: nothing was delivered, rejected or failed.
pub fn counts_nothing(outcome: &Option<Outcome>) -> bool {
    matches!(outcome, Some(Outcome::Unavailable(..) | Outcome::Unknown(_) | Outcome::Blocked))
}

fn options() -> AdminOptions {
    AdminOptions::new().operation_timeout(Some(PATIENCE)).request_timeout(Some(PATIENCE))
}

/// A name that no other topic has.
pub fn fresh_name() -> Topic {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    let time = std::time::UNIX_EPOCH.elapsed().unwrap_or_default().as_micros();
    Topic::new(format!("test-{time}-{}", NEXT.fetch_add(1, Ordering::Relaxed))).unwrap()
}

/// An unused topic.
pub async fn fresh_topic(brokers: &str, partitions: i32, config: &[(&str, &str)]) -> Topic {
    let topic = fresh_name();
    make_topic(brokers, &topic, partitions, config).await;
    topic
}

/// Makes a topic; returns when the broker knows it.
pub async fn make_topic(brokers: &str, topic: &Topic, partitions: i32, config: &[(&str, &str)]) {
    make_topic_of_copies(brokers, topic, partitions, 1, config).await;
}

/// The same, of so many copies.
pub async fn make_topic_of_copies(
    brokers: &str,
    topic: &Topic,
    partitions: i32,
    copies: i32,
    config: &[(&str, &str)],
) {
    let admin = admin(brokers);
    let new = NewTopic::new(topic.as_str(), partitions, TopicReplication::Fixed(copies));
    let new = config.iter().fold(new, |new, (name, value)| new.set(name, value));
    let made = admin.create_topics([&new], &options()).await.unwrap();
    made.into_iter().for_each(|made| drop(made.unwrap()));
    let topic = topic.clone();
    let known = move || {
        let start = Instant::now();
        loop {
            let metadata = admin.inner().fetch_metadata(Some(topic.as_str()), PATIENCE).unwrap();
            let found = metadata.topics().iter().any(|it| {
                it.error().is_none()
                    && !it.partitions().is_empty()
                    && it.partitions().iter().all(|it| it.leader() >= 0)
            });
            if found {
                return;
            }
            assert!(start.elapsed() < PATIENCE, "the broker does not know {topic}");
            std::thread::sleep(Duration::from_millis(20));
        }
    };
    tokio::task::spawn_blocking(known).await.unwrap();
}

/// Deletes a topic.
pub async fn delete_topic(brokers: &str, topic: &Topic) {
    let admin = admin(brokers);
    let deleted = admin.delete_topics(&[topic.as_str()], &options()).await.unwrap();
    deleted.into_iter().for_each(|deleted| drop(deleted.unwrap()));
}

/// The names of all topics there are.
pub async fn topics(brokers: &str) -> Vec<String> {
    let admin = admin(brokers);
    let ask = move || {
        let metadata = admin.inner().fetch_metadata(None, PATIENCE).unwrap();
        metadata.topics().iter().map(|topic| topic.name().to_owned()).collect()
    };
    tokio::task::spawn_blocking(ask).await.unwrap()
}

/// Sets a property of a topic.
pub async fn set(brokers: &str, topic: &Topic, name: &str, value: &str) {
    let change = AlterConfig::new(ResourceSpecifier::Topic(topic.as_str())).set(name, value);
    let changed = admin(brokers).alter_configs([&change], &options()).await.unwrap();
    changed.into_iter().for_each(|changed| drop(changed.unwrap()));
}

/// Messages as they stand in a store: each behind the last.
pub fn stored(messages: impl IntoIterator<Item = Message>) -> Vec<Arc<Stored>> {
    let messages = (1..).zip(messages);
    messages.map(|(at, message)| Arc::new(Stored::new(Position(at), Timestamp::now(), message))).collect()
}

/// A message of a key, with a payload that is its number.
pub fn numbered(topic: &Topic, key: &str, number: usize) -> Message {
    Message::new(topic.clone(), "test").unwrap().with_key(key).unwrap().with_payload(number.to_string())
}

/// Publishes a batch, once.
pub async fn publish(
    transport: &dyn Transport,
    messages: &[Arc<Stored>],
    deadline: Duration,
) -> Vec<Option<Outcome>> {
    let outcomes = Outcomes::new(messages.len());
    let batch =
        PublishBatch::new(Route::default(), RelayId::new(), "/test".into(), messages.to_vec(), deadline);
    // Messages not reported by then are unknown.
    let _ = tokio::time::timeout(deadline, transport.publish(batch, &outcomes)).await;
    outcomes.take()
}

/// Publishes until all is delivered.
pub async fn deliver(transport: &dyn Transport, messages: &[Arc<Stored>], deadline: Duration) {
    let start = Instant::now();
    let mut left = messages.to_vec();
    while !left.is_empty() {
        assert!(start.elapsed() < PATIENCE, "{} messages were not delivered", left.len());
        let outcomes = publish(transport, &left, deadline).await;
        let mut outcomes = outcomes.into_iter();
        left.retain(|_| outcomes.next().flatten() != Some(Outcome::Delivered));
        if !left.is_empty() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}

/// All that is in the log of a topic now: partition by partition, the key and the payload of each
/// record.
pub async fn log(brokers: &str, topic: &Topic) -> Vec<(i32, String, String)> {
    let (brokers, topic) = (brokers.to_owned(), topic.clone());
    tokio::task::spawn_blocking(move || read(&brokers, &topic)).await.unwrap()
}

fn read(brokers: &str, topic: &Topic) -> Vec<(i32, String, String)> {
    let mut config = ClientConfig::new();
    config.set("bootstrap.servers", brokers).set("group.id", "log").set("enable.auto.commit", "false");
    let consumer: BaseConsumer = config.create().unwrap();
    let metadata = consumer.fetch_metadata(Some(topic.as_str()), PATIENCE).unwrap();
    let mut all = Vec::new();
    for partition in 0..i32::try_from(metadata.topics()[0].partitions().len()).unwrap() {
        let start = Instant::now();
        let (low, high) = loop {
            // A new topic has no leader yet, where it was just made.
            match consumer.fetch_watermarks(topic.as_str(), partition, PATIENCE) {
                Ok(marks) => break marks,
                Err(error) => {
                    assert!(start.elapsed() < PATIENCE, "the log of {topic} can't be read: {error}")
                }
            }
            std::thread::sleep(Duration::from_millis(100));
        };
        let mut next = low;
        let mut list = TopicPartitionList::new();
        list.add_partition_offset(topic.as_str(), partition, Offset::Offset(low)).unwrap();
        consumer.assign(&list).unwrap();
        while next < high {
            assert!(start.elapsed() < PATIENCE, "the log of {topic} can't be read");
            let Some(Ok(record)) = consumer.poll(Duration::from_millis(100)) else { continue };
            let text = |bytes: Option<&[u8]>| String::from_utf8_lossy(bytes.unwrap_or_default()).into_owned();
            next = record.offset() + 1;
            all.push((partition, text(record.key()), text(record.payload())));
        }
    }
    all
}

/// Returns the number of records of a topic that a group has finished, all partitions together, by
/// its committed offsets.
pub async fn finished_by(brokers: &str, group: &str, topic: &Topic) -> i64 {
    let (brokers, group, topic) = (brokers.to_owned(), group.to_owned(), topic.clone());
    let ask = move || {
        let mut config = ClientConfig::new();
        config.set("bootstrap.servers", brokers).set("group.id", group);
        let consumer: BaseConsumer = config.create().unwrap();
        let metadata = consumer.fetch_metadata(Some(topic.as_str()), PATIENCE).unwrap();
        let mut list = TopicPartitionList::new();
        for partition in metadata.topics()[0].partitions() {
            list.add_partition(topic.as_str(), partition.id());
        }
        let committed = consumer.committed_offsets(list, PATIENCE).unwrap();
        committed.elements().iter().filter_map(|it| it.offset().to_raw()).map(|offset| offset.max(0)).sum()
    };
    tokio::task::spawn_blocking(ask).await.unwrap()
}

/// The broker that leads a partition now, by its number, if there is one that answers.
pub async fn leader(brokers: &str, topic: &Topic) -> Option<i32> {
    let (admin, topic) = (admin(brokers), topic.clone());
    let ask = move || {
        let metadata = admin.inner().fetch_metadata(Some(topic.as_str()), PATIENCE).ok()?;
        let leader = metadata.topics().first()?.partitions().first()?.leader();
        (leader >= 0).then_some(leader)
    };
    tokio::task::spawn_blocking(ask).await.unwrap()
}

/// First appearances of each number of a key, in the order of the log.
pub fn first_of_key(log: &[(i32, String, String)], key: &str) -> Vec<usize> {
    let mut first = Vec::new();
    for (_, _, payload) in log.iter().filter(|(_, of, _)| of == key) {
        if let Ok(number) = payload.parse()
            && !first.contains(&number)
        {
            first.push(number);
        }
    }
    first
}
