//! Each codec that Kafka has, in both directions.

#![allow(clippy::unwrap_used, reason = "a panic in a test is a failed test")]

use crate::support::{PATIENCE, deliver, fresh_topic, numbered, stored};
use outbox_contract::Topic;
use outbox_contract::backend::{Received, Subscription, Transport};
use outbox_servers::{Kafka, OrSkip};
use outbox_transport_kafka::KafkaTransport;

const COUNT: usize = 200;

/// Receives as many records as were sent, in order.
async fn receive(transport: &KafkaTransport, topic: &Topic) {
    let subscription = Subscription::new("reader", [topic.clone()]).unwrap();
    let member = transport.subscribe(subscription).await.unwrap();
    let mut came = Vec::new();
    while came.len() < COUNT {
        let next = tokio::time::timeout(PATIENCE, member.next()).await;
        let next = next.unwrap_or_else(|_| panic!("{} records came: {:?}", came.len(), member.problems()));
        let Received::Deliveries(deliveries) = next.unwrap() else { continue };
        came.extend(deliveries.into_iter().map(|delivery| delivery.message.unwrap().payload));
    }
    let expected: Vec<String> = (0..COUNT).map(|at| at.to_string()).collect();
    assert_eq!(came, expected);
}

async fn round_trip(codec: &str) {
    let Some(server) = Kafka::newest().shared().or_skip() else { return };
    let messages = |topic: &Topic| stored((0..COUNT).map(|at| numbered(topic, "a", at)));
    let plain = KafkaTransport::builder(server.url()).build().unwrap();
    let compressing =
        KafkaTransport::builder(server.url()).property("compression.codec", codec).build().unwrap();
    // The broker compresses what it keeps of this topic, whatever producers send.
    let kept = fresh_topic(&server.url(), 1, &[("compression.type", codec)]).await;
    deliver(&plain, &messages(&kept), PATIENCE).await;
    receive(&plain, &kept).await;
    // It keeps this as it came.
    let sent = fresh_topic(&server.url(), 1, &[]).await;
    deliver(&compressing, &messages(&sent), PATIENCE).await;
    receive(&plain, &sent).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn gzip_is_written_and_read() {
    round_trip("gzip").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn snappy_is_written_and_read() {
    round_trip("snappy").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lz4_is_written_and_read() {
    round_trip("lz4").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn zstd_is_written_and_read() {
    round_trip("zstd").await;
}
