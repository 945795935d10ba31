//! A service whose driver is tokio-postgres. Its transactions are those of tokio-postgres, and the
//! relay and the inbox in the same program have their own connections.
//!
//! `cargo run -p other-driver -- ORDER_ID`, with `$DATABASE_URL` in place of the default.

use std::error::Error;
use std::io;
use std::time::Duration;

use outbox::error::{StoreError, StoreErrorKind};
use outbox::message::AppendSql;
use outbox::prelude::*;
use serde::{Deserialize, Serialize};
use tokio::sync::mpsc;
use tokio_postgres::{Client, NoTls};

type AnyError = Box<dyn Error + Send + Sync>;

#[derive(Serialize, Deserialize, DomainEvent)]
#[event(topic = "orders", type = "order.placed")]
struct OrderPlaced {
    #[event(key)]
    order_id: i32,
    cents: i32,
}

// ANCHOR: append
async fn place_order(client: &mut Client, order: &OrderPlaced) -> Result<(), AnyError> {
    let tx = client.transaction().await?; // your transaction, your queries
    tx.execute("insert into orders values ($1, $2)", &[&order.order_id, &order.cents]).await?;
    let append = AppendSql::new(Message::encode(order)?)?;
    tx.execute(append.postgres(), &[&append.payload, &append.fields]).await?;
    tx.commit().await?; // the order and its event: from here on both, before it neither
    Ok(())
}
// ANCHOR_END: append

/// In place of your pool: a new connection each time.
struct Database {
    url: String,
}

impl Database {
    async fn client(&self) -> Result<Client, tokio_postgres::Error> {
        let (client, connection) = tokio_postgres::connect(&self.url, NoTls).await?;
        tokio::spawn(connection);
        Ok(client)
    }
}

// ANCHOR: handler
struct Billing {
    database: Database,
    billed: mpsc::UnboundedSender<i32>,
}

async fn bill(
    order: OrderPlaced,
    context: &mut HandlerContext<'_, PostgresStore, Billing>,
) -> Result<(), HandlerError> {
    let (source, id) = (context.source().unwrap_or_default(), context.event_id());
    let billing = context.state();
    let mut client = billing.database.client().await.map_err(cause)?;
    bill_once(&mut client, source, &id, &order).await.map_err(cause)?;
    billing.billed.send(order.order_id)?;
    Ok(())
}

/// The invoice and the name of its event, committed together: a repeat writes nothing.
async fn bill_once(
    client: &mut Client,
    source: &str,
    id: &str,
    order: &OrderPlaced,
) -> Result<(), tokio_postgres::Error> {
    let tx = client.transaction().await?;
    let handle = "insert into billed_events (source, id) values ($1, $2) on conflict do nothing";
    if tx.execute(handle, &[&source, &id]).await? == 1 {
        tx.execute("insert into invoices values ($1, $2)", &[&order.order_id, &order.cents]).await?;
    }
    tx.commit().await
}

/// Tells the inbox which errors are not the message's fault, so that no attempt is counted.
fn cause(error: tokio_postgres::Error) -> HandlerError {
    let is_io = error.source().is_some_and(|source| source.is::<io::Error>());
    let kind = match error.code().map(|state| state.code()) {
        Some(state) if state.starts_with("40") => StoreErrorKind::Conflict, // it is restarted at once
        Some(state) if ["08", "53", "57", "58"].contains(&&state[..2]) => StoreErrorKind::Unavailable,
        None if is_io || error.is_closed() => StoreErrorKind::Unavailable,
        _ => return error.into(),
    };
    StoreError::new(kind, "bill", "the database of the invoices failed").with_source(error).into()
}
// ANCHOR_END: handler

const TABLES: &str = "
    create table if not exists orders (id int primary key, cents int not null);
    create table if not exists invoices (order_id int not null, cents int not null);
    create table if not exists billed_events (
        source text, id text, at timestamptz not null default now(), primary key (source, id)
    )";

#[tokio::main]
async fn main() -> Result<(), AnyError> {
    let url = std::env::var("DATABASE_URL")
        .unwrap_or_else(|_| "postgres://outbox:outbox@localhost/orders".to_owned());
    let order_id = std::env::args().nth(1).map_or(Ok(1), |id| id.parse())?;
    let database = Database { url };
    let mut client = database.client().await?;
    client.batch_execute(TABLES).await?;

    let (billed, mut invoices) = mpsc::unbounded_channel();
    // ANCHOR: service
    let store = PostgresStore::connect(&database.url).await?; // connections of its own
    store.migrate().await?;
    let service = Service::builder("shop", store, MemoryTransport::new()) // or a broker
        .state(Billing { database, billed })
        .inbox("billing", |inbox| inbox.on(bill))
        .start()
        .await?;
    // ANCHOR_END: service

    // ANCHOR: wake
    place_order(&mut client, &OrderPlaced { order_id, cents: 4_200 }).await?;
    service.outbox().store().wakeup_signal().committed(); // or `NOTIFY outbox`, or wait for the poll
    // ANCHOR_END: wake

    if let Some(order_id) = invoices.recv().await {
        println!("billed order {order_id}");
    }
    service.shutdown(Duration::from_secs(20)).await?;
    Ok(())
}
