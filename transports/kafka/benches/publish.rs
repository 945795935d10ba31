//! What publishing costs this process: microseconds of processor time for each message of 300 bytes, to a topic of four partitions, from memory.
//!
//! `cargo bench -p outbox-transport-kafka`. Rates say something of the machine, processor time of the code.

#![allow(clippy::unwrap_used, clippy::cast_precision_loss, reason = "a program that measures may fail")]

use std::sync::Arc;
use std::time::{Duration, Instant};

use outbox_contract::{
    Chunk, Message, Outcome, Outcomes, Position, RelayId, Route, Stored, Timestamp, Topic, Transport,
};
use outbox_servers::{Kafka, OrSkip};
use outbox_transport_kafka::KafkaTransport;
use rdkafka::ClientConfig;
use rdkafka::admin::{AdminClient, AdminOptions, NewTopic, TopicReplication};
use rdkafka::client::DefaultClientContext;

/// Messages in each round.
const MESSAGES: usize = 100_000;

/// Partitions of the topic, all on one broker.
const PARTITIONS: i32 = 4;

fn main() {
    let Some(server) = Kafka::newest().shared().or_skip() else { return };
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        let topic = Topic::new("bench").unwrap();
        make(&server.url(), &topic).await;
        println!(
            "{:>6} {:>12} {:>10} {:>10} {:>12}",
            "chunk", "under way", "linger ms", "us CPU", "messages/s"
        );
        for (chunk, under_way) in [(100, 1), (100, 4), (250, 1), (250, 4), (250, 8), (1_000, 2)] {
            for linger in [1, 2, 5] {
                measure(&server.url(), &topic, chunk, under_way, Duration::from_millis(linger)).await;
            }
        }
    });
}

async fn make(brokers: &str, topic: &Topic) {
    let admin: AdminClient<DefaultClientContext> =
        ClientConfig::new().set("bootstrap.servers", brokers).create().unwrap();
    let topic = NewTopic::new(topic.as_str(), PARTITIONS, TopicReplication::Fixed(1));
    // One that is there already will do.
    let _ = admin.create_topics([&topic], &AdminOptions::new()).await.unwrap();
}

async fn measure(brokers: &str, topic: &Topic, chunk: usize, under_way: usize, linger: Duration) {
    let transport: Arc<dyn Transport> =
        Arc::new(KafkaTransport::builder(brokers).linger(linger).build().unwrap());
    let messages: Vec<_> = (0..chunk * under_way).map(|at| stored(topic, at)).collect();
    let lanes: Vec<_> = messages.chunks(chunk).map(<[_]>::to_vec).collect();
    // The connection is made, and the broker knows the producer, before the round that counts.
    run(&transport, &lanes, chunk * under_way).await;
    let (started, cpu) = (Instant::now(), processor_time());
    let sent = run(&transport, &lanes, MESSAGES).await;
    let (wall, cpu) = (started.elapsed(), processor_time() - cpu);
    let per_message = cpu.as_secs_f64() * 1e6 / sent as f64;
    let (linger, rate) = (linger.as_millis(), sent as f64 / wall.as_secs_f64());
    println!("{chunk:>6} {under_way:>12} {linger:>10} {per_message:>10.1} {rate:>12.0}");
    transport.close().await;
}

/// Publishes each lane's chunk again and again, the lanes side by side; says how many messages that were.
async fn run(transport: &Arc<dyn Transport>, lanes: &[Vec<Arc<Stored>>], messages: usize) -> usize {
    let rounds = messages.div_ceil(lanes.iter().map(Vec::len).sum());
    let tasks = lanes.iter().cloned().map(|lane| {
        let transport = Arc::clone(transport);
        tokio::spawn(async move {
            for _ in 0..rounds {
                let outcomes = Outcomes::new(lane.len());
                let deadline = Duration::from_secs(60);
                let chunk =
                    Chunk::new(Route::default(), RelayId::new(), "/bench".into(), lane.clone(), deadline);
                transport.publish(chunk, &outcomes).await;
                assert!(
                    outcomes.take().iter().all(|it| *it == Some(Outcome::Delivered)),
                    "a message was not delivered"
                );
            }
            rounds * lane.len()
        })
    });
    let mut sent = 0;
    for task in tasks.collect::<Vec<_>>() {
        sent += task.await.unwrap();
    }
    sent
}

fn stored(topic: &Topic, at: usize) -> Arc<Stored> {
    let message = Message::new(topic.clone(), "bench.event").with_key(format!("key-{at}")).unwrap();
    let message = message.with_payload(vec![b'x'; 300]);
    Arc::new(Stored::new(Position(i64::try_from(at).unwrap() + 1), Timestamp::now(), message))
}

/// Processor time of this process, all threads, user and system.
fn processor_time() -> Duration {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let fields: Vec<u64> = stat
        .rsplit(')')
        .next()
        .unwrap_or_default()
        .split_whitespace()
        .skip(11)
        .take(2)
        .filter_map(|field| field.parse().ok())
        .collect();
    // The kernel counts in hundredths of a second for programs, whatever its own clock.
    Duration::from_millis(fields.iter().sum::<u64>() * 10)
}
