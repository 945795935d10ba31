//! Messages, a relay of few words, and a consumer of few words. Every wait is for a condition, with
//! a limit that no machine needs.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use outbox_contract::backend::{
    Bucket, Deliveries, Delivery, Epoch, Outcome, Outcomes, Position, PublishBatch, Received, RelayId,
    Stored, Subscription, Transport, Unavailable,
};
use outbox_contract::{Message, MessageId, Route, Timestamp, Topic};
use outbox_servers::RedisServer;
use outbox_transport_redis::{RedisTransport, RedisTransportBuilder};
use tokio::time::{Instant, sleep, timeout};

/// Time limit for what must happen.
pub(crate) const PATIENCE: Duration = Duration::from_secs(120);

/// Interval of looks.
pub(crate) const EVERY: Duration = Duration::from_millis(20);

/// A transport to a server, with names of its own, and times that a slow machine keeps.
pub(crate) fn builder(server: &RedisServer) -> RedisTransportBuilder {
    at(&server.url(), &server.fresh_prefix())
}

pub(crate) fn at(url: &str, prefix: &str) -> RedisTransportBuilder {
    RedisTransport::builder(url)
        .prefix(prefix)
        .lease(Duration::from_secs(60))
        .heartbeat(Duration::from_millis(200))
        .request_timeout(Duration::from_secs(30))
        .connect_timeout(Duration::from_secs(30))
}

pub(crate) fn topic() -> Topic {
    Topic::new("orders").unwrap()
}

/// So many messages of these keys, in turn, each behind the last in the store.
pub(crate) fn messages(keys: &[&str], count: usize) -> Vec<Arc<Stored>> {
    (0..count).map(|at| stored(keys[at % keys.len()], 20)).collect()
}

pub(crate) fn stored(key: &str, bytes: usize) -> Arc<Stored> {
    stored_in(topic(), key, bytes)
}

pub(crate) fn stored_in(topic: Topic, key: &str, bytes: usize) -> Arc<Stored> {
    static POSITION: AtomicI64 = AtomicI64::new(0);
    let position = Position(POSITION.fetch_add(1, Ordering::Relaxed) + 1);
    let message = Message::new(topic, "order.placed").unwrap().with_key(key).unwrap();
    Arc::new(Stored::new(position, Timestamp::now(), message.with_payload(vec![b'x'; bytes])))
}

pub(crate) fn batch(messages: &[Arc<Stored>]) -> PublishBatch {
    PublishBatch::new(Route::default(), RelayId::new(), "/shop".into(), messages.to_vec(), PATIENCE)
}

/// Publishes once, and says what was reported.
pub(crate) async fn publish(transport: &RedisTransport, messages: &[Arc<Stored>]) -> Vec<Option<Outcome>> {
    publish_within(transport, messages, PATIENCE).await
}

/// As `publish`, given up after a time, as a relay does.
pub(crate) async fn publish_within(
    transport: &RedisTransport,
    messages: &[Arc<Stored>],
    within: Duration,
) -> Vec<Option<Outcome>> {
    let outcomes = Outcomes::new(messages.len());
    // Messages not reported by then are unknown.
    let _ = timeout(within, transport.publish(batch(messages), &outcomes)).await;
    outcomes.take()
}

/// Publishes under these epochs, the same for every bucket.
pub(crate) async fn publish_under(
    transport: &RedisTransport,
    messages: &[Arc<Stored>],
    epoch: impl Fn(Bucket) -> i64,
) -> Vec<Option<Outcome>> {
    publish_of("/shop", transport, messages, epoch).await
}

/// As `publish_under`, for the outbox of a source.
pub(crate) async fn publish_of(
    source: &str,
    transport: &RedisTransport,
    messages: &[Arc<Stored>],
    epoch: impl Fn(Bucket) -> i64,
) -> Vec<Option<Outcome>> {
    let outcomes = Outcomes::new(messages.len());
    let epochs: BTreeMap<Bucket, Epoch> =
        messages.iter().map(|stored| (stored.bucket, Epoch(epoch(stored.bucket)))).collect();
    let mut batch = batch(messages).with_epochs(epochs);
    batch.source = source.into();
    transport.publish(batch, &outcomes).await;
    outcomes.take()
}

/// Publishes until every message is delivered, in order, as a relay does.
pub(crate) async fn deliver(transport: &RedisTransport, messages: &[Arc<Stored>]) {
    let start = Instant::now();
    for batch in messages.chunks(50) {
        let mut left = batch.to_vec();
        while !left.is_empty() {
            let outcomes = publish_within(transport, &left, Duration::from_secs(5)).await;
            let mut reported = outcomes.iter();
            left.retain(|_| reported.next() != Some(&Some(Outcome::Delivered)));
            if !left.is_empty() {
                assert!(start.elapsed() < PATIENCE, "not delivered within {PATIENCE:?}: {outcomes:?}");
                sleep(EVERY).await;
            }
        }
    }
}

/// The class of what was said of a message that was not delivered, with how far it reaches.
pub(crate) fn class(outcome: &Option<Outcome>) -> String {
    match outcome {
        Some(Outcome::Unavailable(Unavailable::Route, failure)) => format!("route {}", failure.class),
        Some(Outcome::Unavailable(Unavailable::Topic, failure)) => format!("topic {}", failure.class),
        Some(Outcome::Unknown(failure)) => format!("unknown {}", failure.class),
        Some(Outcome::Rejected(failure)) => format!("rejected {}", failure.class),
        Some(Outcome::Failed(failure) | Outcome::Postponed(_, failure)) => {
            format!("failed {}", failure.class)
        }
        Some(Outcome::Delivered) => "delivered".to_owned(),
        Some(Outcome::Blocked) => "blocked".to_owned(),
        None => "nothing".to_owned(),
    }
}

pub(crate) async fn subscribe(transport: &RedisTransport, consumer: &str) -> Box<dyn Deliveries> {
    subscribe_with(transport, consumer, 1_000).await
}

pub(crate) async fn subscribe_with(
    transport: &RedisTransport,
    consumer: &str,
    prefetch: usize,
) -> Box<dyn Deliveries> {
    let subscription = Subscription::new(consumer, [topic()]).unwrap().with_prefetch(prefetch);
    transport.subscribe(subscription).await.unwrap()
}

/// Receives what comes next; errors that pass are waited out.
pub(crate) async fn next(deliveries: &dyn Deliveries) -> Received {
    let start = Instant::now();
    loop {
        match timeout(PATIENCE, deliveries.next()).await.expect("something comes") {
            Ok(received) => return received,
            Err(error) => {
                assert!(error.is_retryable(), "{error}");
                assert!(start.elapsed() < PATIENCE, "it does not pass: {error}");
                sleep(EVERY).await;
            }
        }
    }
}

/// The next deliveries, whatever is revoked before them.
pub(crate) async fn next_deliveries(deliveries: &dyn Deliveries) -> Vec<Delivery> {
    loop {
        match next(deliveries).await {
            Received::Deliveries(deliveries) => return deliveries,
            Received::Revoked(_) => {}
            other => panic!("deliveries were expected, {other:?} came"),
        }
    }
}

/// Acknowledges; when it is not known whether that worked, what comes again is acknowledged again.
pub(crate) async fn acknowledge(deliveries: &dyn Deliveries, of: &[Delivery]) {
    let tags: Vec<_> = of.iter().map(|delivery| delivery.tag.clone()).collect();
    if let Err(error) = deliveries.acknowledge(&tags).await {
        assert!(error.is_retryable(), "{error}");
    }
}

pub(crate) fn id(delivery: &Delivery) -> MessageId {
    delivery.message.as_ref().expect("a message of ours").id
}

/// Receives and acknowledges until each of these messages came; checks that first deliveries of
/// each key are in order.
pub(crate) async fn finish(deliveries: &dyn Deliveries, messages: &[Arc<Stored>]) {
    let mut log = Log::default();
    while !log.has_all(messages) {
        let came = next_deliveries(deliveries).await;
        log.write_down(&came);
        acknowledge(deliveries, &came).await;
    }
    log.assert_in_order(messages);
}

/// Returns what came, in order, repeats left out.
#[derive(Default)]
pub(crate) struct Log(Vec<MessageId>);

impl Log {
    pub(crate) fn write_down(&mut self, came: &[Delivery]) {
        for delivery in came {
            if !self.0.contains(&id(delivery)) {
                self.0.push(id(delivery));
            }
        }
    }

    /// Returns the number of deliveries that came.
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    pub(crate) fn has_all(&self, messages: &[Arc<Stored>]) -> bool {
        messages.iter().all(|stored| self.0.contains(&stored.message.id))
    }

    #[track_caller]
    pub(crate) fn assert_in_order(&self, messages: &[Arc<Stored>]) {
        let mut last: BTreeMap<_, usize> = BTreeMap::new();
        for stored in messages {
            let place = self.0.iter().position(|id| *id == stored.message.id).expect("it came");
            let before = last.insert(stored.message.key_id(), place);
            assert!(before.is_none_or(|before| before < place), "out of order: {}", stored.message.key_id());
        }
    }
}

/// Looks until something is so.
pub(crate) async fn until(what: &str, mut is_so: impl AsyncFnMut() -> bool) {
    let start = Instant::now();
    while !is_so().await {
        assert!(start.elapsed() < PATIENCE, "not within {PATIENCE:?}: {what}");
        sleep(EVERY).await;
    }
}
