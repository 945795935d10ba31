//! A handler's emitted message goes from its database over a relay and a broker to the next
//! handler, once for each handled message.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use outbox_contract::{Admin as _, Message, Outgoing, Topic, Transactional, Transport};
use outbox_engine::{HandlerContext, HandlerError, HandlerFailure, Inbox, InboxBuilder, Mode, Relay};
use outbox_servers::{OrSkip, RabbitMq};
use outbox_store_postgres::PostgresStore;
use outbox_tests::fresh::fresh_topic;
use outbox_tests::record::{PATIENCE, until};
use outbox_transport_rabbitmq::{RabbitMqTransport, Topology};

use crate::inbox::real::{Database, by_key, named, patient, publish, write};

const FAILING: &str = "failing";
const KEYS: [&str; 5] = ["a", "b", FAILING, "c", "d"];
const OF_EACH: usize = 20;

/// An inbox on a database of its own.
fn inbox(
    database: &Database,
    transport: &Arc<RabbitMqTransport>,
    consumer: &str,
    topic: &Topic,
) -> InboxBuilder<PostgresStore> {
    Inbox::builder(database.store.clone(), Arc::clone(transport))
        .consumer(consumer)
        .topic(topic)
        .tries(2)
        .first_delay(Duration::from_millis(5))
        .store_timeout(Duration::from_secs(60))
        .due_poll(Duration::from_millis(100))
        .retry(patient())
}

/// One service reserves orders, and its handler emits; another service records the emitted
/// messages, with a database of its own.
async fn from_service_to_service(mode: Mode) {
    let (Some(stock), Some(shop)) = (Database::new().await, Database::new().await) else { return };
    let Some(rabbitmq) = RabbitMq::newest().shared().or_skip() else { return };
    let (orders, reserved) = (fresh_topic(), fresh_topic());
    let transport = RabbitMqTransport::builder(rabbitmq.fresh_vhost())
        .topology(Topology::Declared)
        .partitions(2)
        .consumer(orders.clone(), "stock")
        .consumer(reserved.clone(), "shop");
    let transport = Arc::new(transport.build().unwrap());

    let (failures, publishes) = (Arc::new(AtomicU32::new(0)), reserved.clone());
    let reserving = async move |message: Message, context: &mut HandlerContext<'_, PostgresStore>| {
        let fails = message.order_key().as_str() == FAILING && failures.fetch_add(1, Ordering::SeqCst) < 6;
        write(context.tx(), "stock", &message).await?;
        // A new message in each attempt, of which one must arrive; it names its order.
        let published =
            Message::new(publishes, "stock.reserved").unwrap().with_key(message.order_key().as_str())?;
        context.publish_message(published.with_header("of", message.id.to_string())?)?;
        if fails {
            return Err(HandlerError::from(HandlerFailure::failed("tested", "not yet")));
        }
        Ok(())
    };
    let noting = async |message: Message, context: &mut HandlerContext<'_, PostgresStore>| {
        let of = message.headers.get("of").ok_or("it does not say what it is for")?.parse()?;
        // Recorded under the id of its order.
        write(context.tx(), "shop", &message.clone().with_id(of)).await?;
        Ok::<_, HandlerError>(())
    };
    let first = inbox(&stock, &transport, "stock", &orders).mode(mode).on_any(reserving);
    let second = inbox(&shop, &transport, "shop", &reserved).mode(mode).on_any(noting);
    let inboxes = [first.start().await.unwrap(), second.start().await.unwrap()];
    // Orders come from the shop's outbox; the stock's answers from its own.
    let relays = [&shop, &stock].map(|database| {
        let transport: Arc<dyn Transport> = Arc::<RabbitMqTransport>::clone(&transport);
        Relay::builder(database.store.clone(), transport).start()
    });
    let [from_shop, from_stock] = relays;
    let relays = [from_shop.await.unwrap(), from_stock.await.unwrap()];

    let message = |key: &str| Message::new(orders.clone(), "order.placed").unwrap().with_key(key).unwrap();
    let sent: Vec<Message> = (0..OF_EACH).flat_map(|_| KEYS).map(message).collect();
    let mut tx = shop.store.begin().await.unwrap();
    let outgoing: Vec<Outgoing> = sent.iter().cloned().map(Outgoing::from).collect();
    shop.store.append(&mut tx, &outgoing).await.unwrap();
    shop.store.commit(tx).await.into_result().unwrap();
    until("every order noted", async || shop.effects_besides("shop", "").await >= sent.len()).await;
    // All of it again, as from the shop's outbox: handled messages are duplicates, and emit
    // nothing.
    let source = shop.store.identity().await.unwrap().source();
    publish(&*transport, &source, &sent).await;
    let last = KEYS.map(message);
    publish(&*transport, &source, &last).await;
    let all: Vec<Message> = sent.into_iter().chain(last).collect();
    until("every later order noted", async || shop.effects_besides("shop", "").await >= all.len()).await;
    for inbox in inboxes {
        assert!(inbox.stop(PATIENCE).await, "an inbox stops in order");
    }
    for relay in relays {
        assert!(relay.stop(PATIENCE).await, "a relay stops in order");
    }
    let expected = by_key(named(&all));
    assert_eq!(stock.effects("stock").await, expected, "orders that are reserved");
    assert_eq!(shop.effects("shop").await, expected, "reservations that are noted");
    transport.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_handlers_emit_arrives_once_and_in_order_in_direct_mode() {
    from_service_to_service(Mode::Direct).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_handlers_emit_arrives_once_and_in_order_in_stored_mode() {
    from_service_to_service(Mode::Stored).await;
}
