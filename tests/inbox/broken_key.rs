//! A key whose handler fails repeatedly, beside ten thousand messages of others on the same
//! partition, or queue: the others flow to the end, and neither memory nor prefetch fills up. It
//! fails for seconds; for longer, with more messages of others, if `OUTBOX_FAILING_SECONDS` is set:
//!
//! ```text
//! OUTBOX_FAILING_SECONDS=600 cargo test -p outbox-tests --test all keeps_failing
//! ```

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use outbox_contract::{Message, Store, Topic, Transport};
use outbox_engine::{HandlerContext, HandlerError, HandlerFailure, Inbox};
use outbox_servers::{Kafka, OrSkip, RabbitMq};
use outbox_store_postgres::PostgresStore;
use outbox_tests::fresh::{fresh_topic, make_kafka_topic};
use outbox_tests::record::{PATIENCE, until};
use outbox_transport_kafka::KafkaTransport;
use outbox_transport_rabbitmq::{RabbitMqTransport, Topology};

use crate::inbox::real::{Database, by_key, named, patient, publish, write};

const FAILING: &str = "failing";
/// Number of messages of other keys, and of the failing one: one behind each two hundred.
const OTHERS: usize = 10_000;
const OTHER_KEYS: usize = 500;
const EVERY: usize = 200;
/// More attempts than a key that fails for ten minutes gets with the default policy.
const ATTEMPTS: u32 = 15;
/// Fewer than the failing key has messages: it would fill it.
const PREFETCH: usize = 40;
const CONCURRENCY: usize = 8;
/// Maximum number of messages in memory: all unacknowledged ones, and those that were acknowledged
/// and not yet put away.
const MOST: usize = PREFETCH * (1 + CONCURRENCY);
/// Name of the consumer under which handlers write.
const CONSUMER: &str = "inventory";

/// Returns the time that the key keeps failing after all others are handled:
/// `OUTBOX_FAILING_SECONDS`, none by default.
fn goes_on() -> Duration {
    let seconds = std::env::var("OUTBOX_FAILING_SECONDS");
    Duration::from_secs(seconds.map_or(0, |seconds| seconds.parse().expect("a number of seconds")))
}

fn of_key(topic: &Topic, key: &str) -> Message {
    Message::new(topic.clone(), "order.placed").unwrap().with_key(key).unwrap()
}

fn messages(topic: &Topic) -> Vec<Message> {
    let message = |key: &str| of_key(topic, key);
    let others = (0..OTHERS).map(|number| (number, message(&format!("key-{}", number % OTHER_KEYS))));
    others
        .flat_map(|(number, other)| {
            let failing = (number % EVERY == 0).then(|| message(FAILING));
            failing.into_iter().chain([other])
        })
        .collect()
}

async fn others_flow(database: &Database, transport: Arc<dyn Transport>, topic: &Topic) {
    let (fails, attempts) = (Arc::new(AtomicBool::new(true)), Arc::new(AtomicU32::new(0)));
    let (broken, tried) = (Arc::clone(&fails), Arc::clone(&attempts));
    let handler = async move |message: Message, context: &mut HandlerContext<'_, PostgresStore>| {
        let failed = message.order_key().as_str() == FAILING && broken.load(Ordering::SeqCst);
        if failed {
            tried.fetch_add(1, Ordering::SeqCst);
        }
        write(context.tx(), CONSUMER, &message).await?;
        if failed {
            return Err(HandlerError::from(HandlerFailure::failed("tested", "not yet")));
        }
        Ok(())
    };
    let inbox = Inbox::builder(database.store.clone(), Arc::clone(&transport))
        // Named after the topic, as it is no other test's either.
        .consumer(topic.as_str())
        .topic(topic)
        .on_any(handler)
        .concurrency(CONCURRENCY)
        .batch(10)
        .tries(2)
        .first_delay(Duration::from_millis(5))
        .prefetch(PREFETCH)
        .store_timeout(Duration::from_secs(60))
        .due_poll(Duration::from_millis(100))
        .retry(patient())
        .start()
        .await
        .unwrap();
    let sent = messages(topic);
    // From the broker, a message returns with some more headers.
    let bytes = (sent.iter().map(Message::bytes).max().unwrap() + 1_000) * MOST;
    let within_bounds = || {
        let stats = inbox.stats();
        assert!(stats.in_flight <= MOST, "{} messages are in memory", stats.in_flight);
        assert!(stats.in_flight_bytes <= bytes, "{} bytes are in memory", stats.in_flight_bytes);
    };
    publish(&*transport, "/tests", &sent).await;
    until("all others handled while the key fails", async || {
        within_bounds();
        database.effects_besides(CONSUMER, FAILING).await == OTHERS
    })
    .await;
    until("the failing key tried again and again", async || {
        within_bounds();
        attempts.load(Ordering::SeqCst) >= ATTEMPTS
    })
    .await;
    let (mut sent, mut others, end) = (sent, OTHERS, Instant::now() + goes_on());
    while Instant::now() < end {
        let more: Vec<Message> = (0..10).map(|key| of_key(topic, &format!("key-{key}"))).collect();
        publish(&*transport, "/tests", &more).await;
        others += more.len();
        sent.extend(more);
        until("what comes meanwhile handled", async || {
            within_bounds();
            database.effects_besides(CONSUMER, FAILING).await == others
        })
        .await;
        let before = attempts.load(Ordering::SeqCst);
        until("the failing key tried once more", async || attempts.load(Ordering::SeqCst) > before).await;
    }
    let failing = OTHERS / EVERY;
    until("the failing key off the broker", async || {
        let backlog = database.store.backlog(inbox.observer().route()).await.unwrap();
        backlog.pending + backlog.parked >= failing as u64 && inbox.stats().in_flight == 0
    })
    .await;
    assert!(!database.effects(CONSUMER).await.contains_key(FAILING), "it fails");
    fails.store(false, Ordering::SeqCst);
    until("the failing key handled", async || {
        database.effects(CONSUMER).await.get(FAILING).is_some_and(|effects| effects.len() >= failing)
    })
    .await;
    let route = inbox.observer().route().clone();
    assert!(inbox.stop(PATIENCE).await, "the inbox stops in order");
    assert_eq!(database.effects(CONSUMER).await, by_key(named(&sent)), "effects by key");
    assert_eq!(database.store.backlog(&route).await.unwrap().dead, 0, "no message is given up");
    transport.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_that_keeps_failing_lets_ten_thousand_others_flow_on_one_queue_of_rabbitmq() {
    let Some(database) = Database::new().await else { return };
    let Some(rabbitmq) = RabbitMq::newest().shared().or_skip() else { return };
    let topic = fresh_topic();
    let transport = RabbitMqTransport::builder(rabbitmq.fresh_vhost())
        .topology(Topology::Declared)
        .partitions(1)
        .consumer(topic.clone(), topic.as_str())
        .build()
        .unwrap();
    others_flow(&database, Arc::new(transport), &topic).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_that_keeps_failing_lets_ten_thousand_others_flow_on_one_partition_of_kafka() {
    let Some(database) = Database::new().await else { return };
    let Some(kafka) = Kafka::newest().shared().or_skip() else { return };
    let topic = fresh_topic();
    make_kafka_topic(&kafka.url(), &topic, 1).await.unwrap();
    let transport = KafkaTransport::builder(kafka.url()).build().unwrap();
    others_flow(&database, Arc::new(transport), &topic).await;
}
