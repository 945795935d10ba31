//! A shop in every driver: what it writes, and what must come of it.

use std::error::Error;
use std::time::Duration;

use outbox::Timestamp;
use outbox::message::{AppendSql, Outgoing};
use outbox::prelude::*;
use serde::{Deserialize, Serialize};
use tokio::sync::mpsc;

pub type AnyError = Box<dyn Error + Send + Sync>;

pub const TABLE: &str = "create table orders (id bigint not null)";

/// Characters that a wrong cast, an escape or another character set would change.
const UNUSUAL: &str = "C:\\dir \"Zürich\" \u{1f4a1} \u{0}";
const TENANT: &str = "a\"b\\c ü \u{1f4a1}";

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, DomainEvent)]
#[event(topic = "orders", type = "order.placed", version = 2)]
struct OrderPlaced {
    #[event(key)]
    customer: String,
    order_id: i64,
    note: String,
}

/// End of a transaction.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum End {
    Commit,
    RollBack,
}

/// A service with a driver.
pub trait Shop {
    /// Writes an order and appends its events, in one transaction.
    async fn place(&mut self, order_id: i64, events: &[AppendSql], end: End) -> Result<(), AnyError>;
}

/// Message that the inbox handled: an order and its tenant, or a file.
#[derive(Debug, PartialEq)]
enum Received {
    Order(OrderPlaced, Option<String>),
    File(Vec<u8>),
}

type Seen = mpsc::UnboundedSender<Received>;

async fn see_order<S: Transactional>(
    order: OrderPlaced,
    context: &mut HandlerContext<'_, S, Seen>,
) -> Result<(), HandlerError> {
    assert_eq!(context.message().schema_version, 2);
    let tenant = context.headers().get("tenant").map(str::to_owned);
    Ok(context.state().send(Received::Order(order, tenant))?)
}

async fn see_file<S: Transactional>(
    file: Message,
    context: &mut HandlerContext<'_, S, Seen>,
) -> Result<(), HandlerError> {
    Ok(context.state().send(Received::File(file.payload.to_vec()))?)
}

fn order(customer: &str, order_id: i64) -> OrderPlaced {
    OrderPlaced { customer: customer.to_owned(), order_id, note: UNUSUAL.to_owned() }
}

/// An event of each order.
pub fn events(orders: &[(&str, i64)]) -> Vec<AppendSql> {
    orders.iter().map(|(customer, id)| with(&order(customer, *id), AppendOptions::new())).collect()
}

fn with(order: &OrderPlaced, options: AppendOptions) -> AppendSql {
    let message = Message::encode(order).unwrap();
    AppendSql::new(options.header("tenant", TENANT).apply(message).unwrap()).unwrap()
}

/// Every byte, as an event that is no text has them.
fn file() -> AppendSql {
    let message = Message::new("files", "file.stored").unwrap();
    let message = message.with_content_type("application/octet-stream").with_payload(bytes());
    AppendSql::new(Outgoing::from(message)).unwrap()
}

fn bytes() -> Vec<u8> {
    (0..=u8::MAX).collect()
}

/// Sells by the driver, and publishes by the store. `count` returns the number of orders in the
/// database.
pub async fn sells<S>(store: S, shop: &mut impl Shop, count: impl Fn() -> String)
where
    S: Transactional + Clone,
{
    shop.place(1, &events(&[("north", 1)]), End::Commit).await.unwrap();
    shop.place(2, &events(&[("north", 2), ("south \\ \"1\"", 2)]), End::RollBack).await.unwrap();
    shop.place(3, &events(&[("north", 3), ("north", 4), ("south \\ \"1\"", 5)]), End::Commit).await.unwrap();
    // Times: one that passed, and one that an offset from UTC would move away.
    let passed = with(&order("due", 6), AppendOptions::new().due_at(Timestamp::from_micros(1)));
    let soon = with(&order("soon", 7), AppendOptions::new().after(Duration::from_millis(10)));
    shop.place(6, &[passed, soon, file()], End::Commit).await.unwrap();
    assert_eq!(count().trim(), "3", "committed orders");

    let received = publish(store, 7).await;
    let of = |key: &str| {
        let orders = received.iter().filter_map(|one| match one {
            Received::Order(order, tenant) if order.customer == key => Some((order, tenant)),
            Received::Order(..) | Received::File(_) => None,
        });
        let ids = orders.map(|(one, tenant)| {
            assert_eq!((one, tenant.as_deref()), (&order(key, one.order_id), Some(TENANT)));
            one.order_id
        });
        ids.collect::<Vec<_>>()
    };
    assert_eq!(of("north"), [1, 3, 4]);
    assert_eq!([of("south \\ \"1\""), of("due"), of("soon")], [[5], [6], [7]]);
    assert!(received.contains(&Received::File(bytes())));
}

/// Runs the relay and an inbox until that many messages have come; returns them, and the ones that
/// came until both stopped.
async fn publish<S: Transactional + Clone>(store: S, messages: usize) -> Vec<Received> {
    let (seen, mut received) = mpsc::unbounded_channel();
    let service = Service::builder("shop", store.clone(), MemoryTransport::new())
        .state(seen)
        .inbox("billing", |inbox| inbox.on(see_order::<S>).on_message("files", "file.stored", see_file::<S>))
        .start()
        .await
        .unwrap();
    let mut all = Vec::new();
    while all.len() < messages {
        let next = tokio::time::timeout(Duration::from_secs(60), received.recv()).await;
        all.push(next.unwrap_or_else(|_| panic!("only {all:?}")).unwrap());
    }
    service.shutdown(Duration::from_secs(30)).await.unwrap();
    all.extend(std::iter::from_fn(|| received.try_recv().ok()));
    let backlog = store.backlog(&Route::default()).await.unwrap();
    assert_eq!((all.len(), backlog.pending), (messages, 0), "{all:?}");
    all
}
