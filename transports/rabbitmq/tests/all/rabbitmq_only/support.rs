//! Support of the tests: a server, messages, and patience.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use lapin::options::{QueueBindOptions, QueueDeclareOptions, QueueDeleteOptions};
use lapin::types::{AMQPValue, FieldTable};
use outbox_contract::backend::{
    Deliveries, Delivery, Outcome, Outcomes, Position, PublishBatch, Received, RelayId, Stored, Subscription,
    Transport,
};
use outbox_contract::{Consumer, Message, MessageId, Route, Timestamp, Topic};
use outbox_servers::{OrSkip, RabbitMq, RabbitMqServer};
use outbox_transport_rabbitmq::{RabbitMqTransport, RabbitMqTransportBuilder, Topology};
use tokio::time::{sleep, timeout};

/// Time limit for what must happen. Machines are slow, brokers slower.
pub(crate) const PATIENCE: Duration = Duration::from_secs(120);

/// The server of all tests that do it no harm, with a virtual host of the test's own.
pub(crate) fn vhost() -> Option<(RabbitMqServer, String)> {
    let server = RabbitMq::newest().shared().or_skip()?;
    let url = server.fresh_vhost();
    Some((server, url))
}

/// The name of the virtual host of a URL.
pub(crate) fn vhost_of(url: &str) -> &str {
    url.rsplit('/').next().unwrap()
}

pub(crate) fn topic(name: &str) -> Topic {
    Topic::new(name).unwrap()
}

pub(crate) fn consumer() -> Consumer {
    Consumer::new("inventory").unwrap()
}

/// A transport that makes what it needs, with the queue of the consumer for the topic `orders`.
pub(crate) fn declared(url: &str) -> RabbitMqTransportBuilder {
    RabbitMqTransport::builder(url).topology(Topology::Declared).consumer(topic("orders"), consumer())
}

pub(crate) fn subscription() -> Subscription {
    Subscription::new(consumer(), [topic("orders")]).unwrap()
}

pub(crate) async fn subscribe(transport: &RabbitMqTransport) -> Box<dyn Deliveries> {
    transport.subscribe(subscription()).await.unwrap()
}

/// One message for each of these keys.
pub(crate) fn messages(topic: &Topic, keys: &[&str]) -> Vec<Arc<Stored>> {
    keys.iter().map(|key| message(topic, key, 2)).collect()
}

pub(crate) fn message(topic: &Topic, key: &str, bytes: usize) -> Arc<Stored> {
    static POSITION: AtomicI64 = AtomicI64::new(1);
    let message = Message::new(topic.clone(), "test.event")
        .unwrap()
        .with_key(key)
        .unwrap()
        .with_payload(vec![b'x'; bytes]);
    Arc::new(Stored::new(Position(POSITION.fetch_add(1, Ordering::Relaxed)), Timestamp::now(), message))
}

pub(crate) fn ids(messages: &[Arc<Stored>]) -> BTreeSet<MessageId> {
    messages.iter().map(|stored| stored.message.id).collect()
}

/// Publishes once, as a relay does: what is not reported within the deadline is unknown.
pub(crate) async fn publish(
    transport: &RabbitMqTransport,
    messages: &[Arc<Stored>],
    deadline: Duration,
) -> Vec<Option<Outcome>> {
    let outcomes = Outcomes::new(messages.len());
    let batch =
        PublishBatch::new(Route::default(), RelayId::new(), "/test".into(), messages.to_vec(), deadline);
    let _ = timeout(deadline, transport.publish(batch, &outcomes)).await;
    outcomes.take()
}

/// Publishes until everything is delivered.
pub(crate) async fn deliver(transport: &RabbitMqTransport, messages: &[Arc<Stored>]) {
    let mut left = messages.to_vec();
    eventually("everything is delivered", async || {
        let outcomes = publish(transport, &left, Duration::from_secs(10)).await;
        let mut outcomes = outcomes.iter();
        left.retain(|_| outcomes.next() != Some(&Some(Outcome::Delivered)));
        left.is_empty().then_some(())
    })
    .await;
}

/// Asks again and again until there is an answer.
pub(crate) async fn eventually<T>(what: &str, mut ask: impl AsyncFnMut() -> Option<T>) -> T {
    let asking = async {
        loop {
            match ask().await {
                Some(answer) => return answer,
                None => sleep(Duration::from_millis(50)).await,
            }
        }
    };
    timeout(PATIENCE, asking).await.unwrap_or_else(|_| panic!("{what}: not within {PATIENCE:?}"))
}

/// The next deliveries, whatever is said before them.
pub(crate) async fn deliveries(member: &dyn Deliveries) -> Vec<Delivery> {
    eventually("deliveries come", async || match member.next().await {
        Ok(Received::Deliveries(deliveries)) => Some(deliveries),
        Ok(Received::Revoked(_)) => None,
        Err(error) if error.is_retryable() => None,
        other => panic!("{other:?}"),
    })
    .await
}

/// Receives until these have come, and acknowledges everything. Says what came first of each, in
/// order.
pub(crate) async fn finish(member: &dyn Deliveries, messages: &[Arc<Stored>]) -> Vec<MessageId> {
    finish_telling(member, messages, |_| {}).await
}

/// As [`finish`]; tells of each batch how many deliveries it has.
pub(crate) async fn finish_telling(
    member: &dyn Deliveries,
    messages: &[Arc<Stored>],
    tell: impl Fn(usize),
) -> Vec<MessageId> {
    let (mut left, mut came) = (ids(messages), Vec::new());
    while !left.is_empty() {
        let deliveries = deliveries(member).await;
        for delivery in &deliveries {
            let id = id_of(delivery);
            left.remove(&id);
            if !came.contains(&id) {
                came.push(id);
            }
        }
        tell(deliveries.len());
        let tags: Vec<_> = deliveries.into_iter().map(|delivery| delivery.tag).collect();
        // Of a connection that is lost meanwhile they come again.
        let _ = member.acknowledge(&tags).await;
    }
    came
}

pub(crate) fn id_of(delivery: &Delivery) -> MessageId {
    delivery.message.as_ref().unwrap().id
}

/// Waits until the connection was lost and the member knows; says which units were taken away.
pub(crate) async fn revoked(member: &dyn Deliveries) -> usize {
    eventually("the units are revoked", async || match member.next().await {
        Ok(Received::Revoked(units)) => Some(units.len()),
        _ => None,
    })
    .await
}

/// The class of what was said of a message that the transport or its topic could not take.
pub(crate) fn class(outcome: &Option<Outcome>) -> &str {
    match outcome {
        Some(Outcome::Delivered) => "delivered",
        Some(Outcome::Blocked) => "behind another",
        Some(
            Outcome::Unavailable(_, failure)
            | Outcome::Unknown(failure)
            | Outcome::Rejected(failure)
            | Outcome::Failed(failure)
            | Outcome::Postponed(_, failure),
        ) => &failure.class,
        None => "nothing",
    }
}

/// Deletes a queue, as a person would.
pub(crate) async fn delete_queue(url: &str, name: &str) {
    let connection = lapin::Connection::connect(url, lapin::ConnectionProperties::default()).await.unwrap();
    let channel = connection.create_channel().await.unwrap();
    channel.queue_delete(name.into(), QueueDeleteOptions::default()).await.unwrap();
    connection.close(200, "OK".into()).await.unwrap();
}

/// Declares a queue as somebody else would, with these arguments, and binds it.
pub(crate) async fn queue(url: &str, name: &str, routing_key: &str, arguments: &[(&str, AMQPValue)]) {
    let connection = lapin::Connection::connect(url, lapin::ConnectionProperties::default()).await.unwrap();
    let channel = connection.create_channel().await.unwrap();
    let options = QueueDeclareOptions { durable: true, ..QueueDeclareOptions::default() };
    let mut table = FieldTable::default();
    for (name, value) in arguments {
        table.insert((*name).into(), value.clone());
    }
    channel.queue_declare(name.into(), options, table).await.unwrap();
    let none = FieldTable::default();
    let bound = channel.queue_bind(
        name.into(),
        "outbox".into(),
        routing_key.into(),
        QueueBindOptions::default(),
        none,
    );
    bound.await.unwrap();
    connection.close(200, "OK".into()).await.unwrap();
}
