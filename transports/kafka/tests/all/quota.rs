//! A broker that holds its clients back: it takes everything and lets each of them wait for its
//! answers, for as long as its quota says.

#![allow(clippy::unwrap_used, reason = "a panic in a test is a failed test")]

use std::time::Duration;

use crate::support::{PATIENCE, deliver, fresh_topic, log, numbered, stored};
use futures_util::future::join_all;
use outbox_contract::backend::{Outcomes, PublishBatch, RelayId, Transport};
use outbox_contract::{Message, Route, Topic};
use outbox_servers::{Kafka, KafkaServer, OrSkip};
use outbox_transport_kafka::KafkaTransport;

/// Time that a relay gives a batch, if nothing else is said, and the number that it has under way.
const TIME: Duration = Duration::from_secs(5);
const BATCHES: usize = 8;
const MESSAGES: usize = 200;
/// Of each batch, and of no other.
const KEYS: usize = 50;

/// So many bytes a second for each client.
async fn limit(server: &KafkaServer, bytes: u32) {
    let server = server.clone();
    let limit = move || {
        let quota = format!("producer_byte_rate={bytes}");
        let of_all = ["--alter", "--entity-type", "clients", "--entity-default", "--add-config", &quota];
        let brokers = server.internal_url();
        server
            .tool("kafka.admin.ConfigCommand", &[&["--bootstrap-server", &brokers][..], &of_all].concat())
            .unwrap();
    };
    tokio::task::spawn_blocking(limit).await.unwrap();
}

/// A kilobyte.
fn message(topic: &Topic, batch: usize, at: usize) -> Message {
    numbered(topic, &format!("{batch}-{}", at % KEYS), at).with_payload(format!("{at:<1000}"))
}

/// Together they take twice as long as what hangs is waited for, and most of them wait for others.
/// Nothing is given up, so nothing is sent twice.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_quota_holds_back_is_waited_for_and_sent_once() {
    // It reckons by the last two seconds, in place of eleven: else it would first take all of this
    // at once.
    let wish = Kafka::newest().config("quota.window.num=2");
    let started = tokio::task::spawn_blocking(move || wish.start().or_skip()).await.unwrap();
    let Some(server) = started else { return };
    limit(&server, 300_000).await;
    let topic = fresh_topic(&server.url(), 4, &[]).await;
    let transport = KafkaTransport::builder(server.url()).build().unwrap();
    // As large as what follows: small batches go by another producer.
    let warm = stored((0..64).map(|at| numbered(&topic, &format!("warm-{at}"), at)));
    deliver(&transport, &warm, 12 * TIME).await;

    let batches: Vec<_> = (0..BATCHES)
        .map(|batch| {
            let messages = stored((0..MESSAGES).map(|at| message(&topic, batch, at)));
            PublishBatch::new(Route::default(), RelayId::new(), "/test".into(), messages, TIME)
        })
        .collect();
    let published = batches.into_iter().map(async |batch| {
        let outcomes = Outcomes::new(MESSAGES);
        transport.publish(batch, &outcomes).await;
        outcomes.delivered().into_iter().filter(|delivered| *delivered).count()
    });
    let delivered = tokio::time::timeout(PATIENCE, join_all(published)).await.unwrap();
    assert_eq!(delivered, [MESSAGES; BATCHES]);
    assert_eq!(transport.retired_producers(), 0);
    assert_eq!(log(&server.url(), &topic).await.len(), warm.len() + BATCHES * MESSAGES);
}
