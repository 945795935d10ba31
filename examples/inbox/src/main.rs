//! Two services with a database each. The shop takes orders, the inventory reserves stock once for
//! each order, even if an order is delivered twice, and the shop receives the answer.
//!
//! `cargo run -p inbox`

use std::error::Error;
use std::path::Path;
use std::time::Duration;

use outbox::inbox::HandlerFailure;
use outbox::prelude::*;
use outbox_testkit::eventually;
use serde::{Deserialize, Serialize};
use sqlx::sqlite::{SqliteConnectOptions, SqliteJournalMode};
use sqlx::{Sqlite, SqlitePool, Transaction};

// ANCHOR: events
#[derive(Serialize, Deserialize, DomainEvent)]
#[event(topic = "orders", type = "order.placed")]
struct OrderPlaced {
    order_id: u32,
    #[event(key)]
    article: String,
    count: u32,
}

#[derive(Serialize, Deserialize, DomainEvent)]
#[event(topic = "stock", type = "stock.reserved")]
struct StockReserved {
    #[event(key)]
    order_id: u32,
}
// ANCHOR_END: events

// ANCHOR: handler
async fn reserve_stock(
    tx: &mut Transaction<'static, Sqlite>,
    order: OrderPlaced,
    context: HandlerContext<'_>,
) -> Result<(), HandlerError> {
    let OrderPlaced { order_id, article, count } = order;
    let taken = sqlx::query("update stock set count = count - ? where article = ? and count >= ?")
        .bind(count)
        .bind(&article)
        .bind(count)
        .execute(&mut **tx)
        .await?;
    if taken.rows_affected() == 0 {
        // A retry would not help: it becomes a dead letter, for an operator to look at.
        // Alternatively, emit an event that reports it, as `two_services` does.
        let words = format!("order {order_id}: there are no {count} of {article:?}");
        return Err(HandlerFailure::rejected("out-of-stock", words).into());
    }
    context.emit(&StockReserved { order_id })?;
    Ok(())
}
// ANCHOR_END: handler

/// The shop's own handler, for the inventory's answers.
async fn note_reserved(
    tx: &mut Transaction<'static, Sqlite>,
    stock: StockReserved,
    _: HandlerContext<'_>,
) -> Result<(), HandlerError> {
    let update = sqlx::query("update orders set reserved = 1 where id = ?").bind(stock.order_id);
    match update.execute(&mut **tx).await?.rows_affected() {
        1 => Ok(()),
        _ => Err(format!("there is no order {}", stock.order_id).into()),
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let folder = tempfile::tempdir()?;
    let shop = database(&folder.path().join("shop.db")).await?;
    let inventory = database(&folder.path().join("inventory.db")).await?;
    sqlx::query("create table stock (article text primary key, count integer not null)")
        .execute(&inventory)
        .await?;
    sqlx::query("insert into stock values ('lamp', 10), ('chair', 10)").execute(&inventory).await?;
    sqlx::query("create table orders (id integer primary key, reserved integer not null)")
        .execute(&shop)
        .await?;
    // In production, use a broker's. In a process, name the consumers first: then the start order
    // does not matter.
    let transport = MemoryTransport::builder()
        .consumer("orders".parse()?, "inventory".parse()?)
        .consumer("stock".parse()?, "shop".parse()?)
        .build();

    // ANCHOR: inbox
    // The inbox holds up to 8 connections (`concurrency`). If the same program answers requests,
    // give it a pool of its own.
    let store = SqliteStore::new(inventory.clone());
    store.migrate().await?;
    // The handler emits into this database, so a relay runs on it.
    let inventory_relay =
        Relay::builder(store.clone(), transport.clone()).source("/inventory").start().await?;
    let inventory_inbox = Inbox::builder(store, transport.clone())
        .consumer("inventory")
        .on::<OrderPlaced, _>(reserve_stock)
        .start()
        .await?;
    // ANCHOR_END: inbox

    let store = SqliteStore::new(shop.clone());
    store.migrate().await?;
    let outbox = Outbox::new(store.clone());
    let shop_relay = Relay::builder(store.clone(), transport.clone()).source("/shop").start().await?;
    let shop_inbox = Inbox::builder(store, transport)
        .consumer("shop")
        .on::<StockReserved, _>(note_reserved)
        .start()
        .await?;
    for (order_id, article, count) in [(1, "lamp", 2), (2, "chair", 4), (3, "lamp", 1)] {
        let order = outbox.encode(&OrderPlaced { order_id, article: article.to_owned(), count })?;
        let mut tx = shop.begin_with("begin immediate").await?;
        sqlx::query("insert into orders values (?, 0)").bind(order_id).execute(&mut *tx).await?;
        // Twice, as a broker may deliver it: the inventory handles it once.
        outbox.append_message(&mut tx, order.clone()).await?;
        outbox.append_message(&mut tx, order).await?;
        tx.commit().await?;
    }
    if !eventually(Duration::from_secs(60), async || shop_inbox.stats().handled == 3).await {
        return Err("not every order was answered in time".into());
    }
    let stock: Vec<(String, i64)> =
        sqlx::query_as("select article, count from stock order by article").fetch_all(&inventory).await?;
    for (article, count) in stock {
        println!("{article}: {count} left");
    }
    println!("{} orders handled, each once", inventory_inbox.stats().handled);
    let reserved: i64 = sqlx::query_scalar("select sum(reserved) from orders").fetch_one(&shop).await?;
    println!("{reserved} orders known to be reserved");

    // ANCHOR: stop
    // Stop each service's inbox first: the relay still sends what its handlers emitted.
    let within = Duration::from_secs(20);
    let inventory_stopped = inventory_inbox.stop(within).await & inventory_relay.stop(within).await;
    // ANCHOR_END: stop
    let shop_stopped = shop_inbox.stop(within).await & shop_relay.stop(within).await;
    if inventory_stopped && shop_stopped { Ok(()) } else { Err("something did not finish in time".into()) }
}

async fn database(file: &Path) -> Result<SqlitePool, sqlx::Error> {
    let options = SqliteConnectOptions::new().filename(file).create_if_missing(true);
    SqlitePool::connect_with(options.journal_mode(SqliteJournalMode::Wal)).await
}
