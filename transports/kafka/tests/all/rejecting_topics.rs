//! A topic that takes nothing, beside one that takes everything: the other one goes on as if it
//! were alone.

#![allow(clippy::unwrap_used, reason = "a panic in a test is a failed test")]

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::support::{PATIENCE, first_of_key, fresh_topic, log, numbered, publish, stored};
use futures_util::future::join_all;
use outbox_contract::backend::{Outcome, Stored};
use outbox_contract::{Message, Topic};
use outbox_servers::{Kafka, OrSkip};
use outbox_transport_kafka::{KafkaTransport, Mechanism};

const LONG: Duration = Duration::from_secs(60);
/// Number of batches under way at once, as with the publishers of a relay.
const LANES: usize = 4;
const BATCH: usize = 100;

/// Publishes as a relay does: some lanes, each with keys of its own, a batch after the other, until
/// each message is delivered or rejected. Says how many each topic rejected.
async fn relay(transport: &KafkaTransport, messages: &[Arc<Stored>]) -> BTreeMap<Topic, usize> {
    let mut lanes: Vec<Vec<Arc<Stored>>> = vec![Vec::new(); LANES];
    for message in messages {
        let lane = message.message.order_key().as_str().bytes().map(usize::from).sum::<usize>() % LANES;
        lanes[lane].push(Arc::clone(message));
    }
    let started = Instant::now();
    let run = |mut left: Vec<Arc<Stored>>| async move {
        let mut rejected = Vec::new();
        while !left.is_empty() {
            assert!(started.elapsed() < PATIENCE, "{} messages were not settled", left.len());
            let batch: Vec<_> = left.iter().take(BATCH).cloned().collect();
            let outcomes = publish(transport, &batch, LONG).await;
            let mut outcomes = outcomes.into_iter();
            left.retain(|message| match outcomes.next().flatten() {
                Some(Outcome::Delivered) => false,
                Some(Outcome::Rejected(_)) => {
                    rejected.push(message.message.topic.clone());
                    false
                }
                _ => true,
            });
        }
        rejected
    };
    let mut counts = BTreeMap::new();
    for topic in join_all(lanes.into_iter().map(run)).await.into_iter().flatten() {
        *counts.entry(topic).or_default() += 1;
    }
    counts
}

/// Of each of two topics as many, in turns.
fn mixed(good: &Topic, bad: impl Fn(usize) -> Message, count: usize) -> Vec<Arc<Stored>> {
    stored((0..count).flat_map(|at| [numbered(good, &format!("key-{}", at % 50), at), bad(at)]))
}

/// Nothing at the good topic is repeated, and each of its keys is in order.
async fn assert_undisturbed(brokers: &str, good: &Topic, count: usize) {
    let log = log(brokers, good).await;
    for of in 0..50 {
        let expected: Vec<usize> = (of..count).step_by(50).collect();
        assert_eq!(first_of_key(&log, &format!("key-{of}")), expected);
    }
    assert_eq!(log.len(), count, "nothing is repeated");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_topic_that_takes_no_message_of_this_size_costs_other_topics_nothing() {
    let Some(server) = Kafka::newest().shared().or_skip() else { return };
    let good = fresh_topic(&server.url(), 4, &[]).await;
    let bad = fresh_topic(&server.url(), 4, &[("max.message.bytes", "100")]).await;
    let transport = KafkaTransport::builder(server.url()).build().unwrap();
    let messages = mixed(&good, |at| numbered(&bad, &format!("key-{}", at % 50), at), 2_000);
    let rejected = relay(&transport, &messages).await;
    assert_eq!(rejected, BTreeMap::from([(bad, 2_000)]));
    assert_undisturbed(&server.url(), &good, 2_000).await;
    assert_eq!(transport.retired_producers(), 0, "what is too large is not sent");
}

/// A topic that keeps the last record of each key takes none without one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_topic_that_takes_no_such_record_costs_other_topics_nothing() {
    let Some(server) = Kafka::newest().shared().or_skip() else { return };
    let good = fresh_topic(&server.url(), 4, &[]).await;
    let bad = fresh_topic(&server.url(), 4, &[("cleanup.policy", "compact")]).await;
    let transport = KafkaTransport::builder(server.url()).build().unwrap();
    let messages =
        mixed(&good, |at| Message::new(bad.clone(), "x").unwrap().with_payload(at.to_string()), 500);
    let rejected = relay(&transport, &messages).await;
    assert_eq!(rejected, BTreeMap::from([(bad, 500)]));
    assert_undisturbed(&server.url(), &good, 500).await;
    assert_eq!(transport.retired_producers(), 0);
}

/// A user that may not ask what topics take learns of it by the first rejections; from then on they
/// are the bad topic's own matter.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_topic_takes_is_learnt_from_what_it_rejects() {
    let started =
        tokio::task::spawn_blocking(|| Kafka::newest().authorized().shared().or_skip()).await.unwrap();
    let Some(server) = started else { return };
    let good = fresh_topic(&server.internal_url(), 4, &[]).await;
    let bad = fresh_topic(&server.internal_url(), 4, &[("max.message.bytes", "100")]).await;
    for topic in [&good, &bad] {
        let (server, topic) = (server.clone(), topic.to_string());
        let grant = move || {
            let (user, brokers) = (format!("User:{}", Kafka::NOBODY.0), server.internal_url());
            let args = ["--bootstrap-server", &brokers, "--add", "--allow-principal", &user];
            let what = ["--operation", "Write", "--topic", &topic];
            server.tool("org.apache.kafka.tools.AclCommand", &[&args[..], &what[..]].concat()).unwrap()
        };
        tokio::task::spawn_blocking(grant).await.unwrap();
    }
    let transport = KafkaTransport::builder(server.url())
        .credentials(Mechanism::Plain, Kafka::NOBODY.0, Kafka::NOBODY.1)
        .build()
        .unwrap();
    let messages = mixed(&good, |at| numbered(&bad, &format!("key-{}", at % 50), at), 1_000);
    let rejected = relay(&transport, &messages).await;
    assert_eq!(rejected, BTreeMap::from([(bad, 1_000)]));
    let log = log(&server.internal_url(), &good).await;
    // The first rejections of all are met together with the good ones, by each lane once.
    assert!(log.len() <= 1_000 + LANES * BATCH, "{} of 1000", log.len());
    assert!(transport.retired_producers() <= 3 * LANES as u64, "{}", transport.retired_producers());
}

/// Small messages of a topic that takes no large batches go in batches that it takes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_topic_that_takes_only_small_batches_gets_small_batches() {
    let Some(server) = Kafka::newest().shared().or_skip() else { return };
    let good = fresh_topic(&server.url(), 4, &[]).await;
    let small = fresh_topic(&server.url(), 4, &[("max.message.bytes", "2000")]).await;
    let transport = KafkaTransport::builder(server.url()).build().unwrap();
    let messages = mixed(&good, |at| numbered(&small, &format!("key-{}", at % 50), at), 1_000);
    let rejected = relay(&transport, &messages).await;
    assert_eq!(rejected, BTreeMap::new());
    assert_undisturbed(&server.url(), &good, 1_000).await;
    assert_undisturbed(&server.url(), &small, 1_000).await;
    assert_eq!(transport.retired_producers(), 0);
}
