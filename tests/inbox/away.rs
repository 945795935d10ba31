//! An inbox that was away for longer than its broker remembers where it was: what is configured
//! happens, on a real database and real brokers, and it is said.

use outbox_contract::backend::OffsetReset;
use outbox_contract::{Message, Topic};
use outbox_engine::{HandlerContext, Inbox, InboxHandle, Status};
use outbox_servers::{OrSkip, Redis};
use outbox_store_postgres::PostgresStore;
use outbox_tests::fresh::Fresh;
use outbox_tests::kind::{StoreKind, TransportKind};
use outbox_tests::pair::Pair;
use outbox_tests::record::{PATIENCE, until};
use rdkafka::ClientConfig;
use rdkafka::admin::{AdminClient, AdminOptions};
use rdkafka::client::DefaultClientContext;

use crate::inbox::real::{Database, publish, write};

/// Begins the life of an inbox. Its consumer has the name of the topic.
async fn start(database: &Database, pair: &Pair, reset: OffsetReset) -> InboxHandle {
    let handler = async move |message: Message, context: &mut HandlerContext<'_, PostgresStore>| {
        let consumer = message.topic.to_string();
        Ok(write(context.tx(), &consumer, &message).await?)
    };
    let inbox = Inbox::builder(database.store.clone(), pair.transport().unwrap());
    let inbox = inbox.consumer(pair.topic.as_str()).topic(&pair.topic).offset_reset(reset);
    inbox.store_timeout(PATIENCE / 2).on_any(handler).start().await.unwrap()
}

/// Deletes all that the broker knows of the consumer.
async fn forget(pair: &Pair, transport: TransportKind) {
    let group = pair.topic.as_str();
    if transport == TransportKind::Redis {
        let server = Redis::newest().shared().or_skip().unwrap();
        for stream in server.cli(&["KEYS", &format!("*{{{group}:*}}")]).lines() {
            server.cli(&["XGROUP", "DESTROY", stream, group]);
        }
        return;
    }
    let address = pair.broker.strip_prefix("kafka://").unwrap();
    let admin: AdminClient<DefaultClientContext> =
        ClientConfig::new().set("bootstrap.servers", address).create().unwrap();
    let options = AdminOptions::new().request_timeout(Some(PATIENCE)).operation_timeout(Some(PATIENCE));
    until("the group is deleted", async || {
        admin.delete_groups(&[group], &options).await.unwrap().iter().all(Result::is_ok)
    })
    .await;
}

fn messages(topic: &Topic, count: usize) -> Vec<Message> {
    let message = |at: usize| {
        Message::new(topic.clone(), "order.placed").unwrap().with_key(format!("key-{at}")).unwrap()
    };
    (0..count).map(message).collect()
}

async fn away(transport: TransportKind) {
    let (Some(database), Some(fresh)) =
        (Database::new().await, Fresh::new(StoreKind::Memory, transport).await)
    else {
        return;
    };
    let pair = &fresh.pair;
    let effects = async || database.effects_besides(pair.topic.as_str(), "").await;
    let inbox = start(&database, pair, OffsetReset::None).await;
    let sent = messages(&pair.topic, 20);
    publish(&*pair.transport().unwrap(), "/shop", &sent).await;
    until("all are handled", async || effects().await == 20).await;
    assert_eq!(inbox.health().status, Status::Healthy, "{:?}", inbox.health());
    assert!(inbox.stop(PATIENCE).await);
    forget(pair, transport).await;

    // It asks, and repeats nothing.
    let inbox = start(&database, pair, OffsetReset::None).await;
    let says = |inbox: &InboxHandle, words: &str| {
        inbox.health().reasons.iter().any(|reason| reason.text.contains(words))
    };
    until("the position is missed", async || says(&inbox, "offset_reset") && inbox.stats().losses > 0).await;
    assert_eq!(inbox.health().status, Status::Degraded);
    assert_eq!((inbox.stats().received, effects().await), (0, 20));
    assert!(inbox.stop(PATIENCE).await);

    // Everything comes again, and the ids that are kept tell it.
    let inbox = start(&database, pair, OffsetReset::Earliest).await;
    until("all come again", async || inbox.stats().duplicates == 20).await;
    until("it is said", async || {
        says(&inbox, "the broker has lost messages, or the position")
            && inbox.observer().problems().is_empty()
    })
    .await;
    publish(&*pair.transport().unwrap(), "/shop", &messages(&pair.topic, 5)).await;
    until("it goes on", async || effects().await == 25).await;
    assert!(inbox.stop(PATIENCE).await);

    // It was there a moment ago: what it handled within that hour comes again.
    forget(pair, transport).await;
    let inbox = start(&database, pair, OffsetReset::LastHandled).await;
    publish(&*pair.transport().unwrap(), "/shop", &messages(&pair.topic, 5)).await;
    until("it goes on", async || effects().await == 30).await;
    assert!(inbox.stop(PATIENCE).await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_inbox_whose_offsets_kafka_has_forgotten_does_what_is_configured() {
    away(TransportKind::Kafka).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_inbox_whose_groups_redis_has_lost_does_what_is_configured() {
    away(TransportKind::Redis).await;
}
