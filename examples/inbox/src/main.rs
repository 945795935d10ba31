//! Two services with a database each. The shop takes orders, the inventory reserves stock once for
//! each order, even if an order is delivered twice, and the shop receives the answer.
//!
//! `cargo run -p inbox`

use std::collections::BTreeSet;
use std::error::Error;
use std::path::Path;

use outbox::prelude::*;
use serde::{Deserialize, Serialize};
use sqlx::SqlitePool;
use sqlx::sqlite::{SqliteConnectOptions, SqliteJournalMode};
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};

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
    order: OrderPlaced,
    context: &mut HandlerContext<'_, SqliteStore>,
) -> Result<(), HandlerError> {
    let OrderPlaced { order_id, article, count } = order;
    let taken = sqlx::query("update stock set count = count - ?1 where article = ?2 and count >= ?1")
        .bind(count)
        .bind(&article)
        .execute(context.tx())
        .await?;
    if taken.rows_affected() == 0 {
        // A retry would not help: it becomes a dead letter, for an operator to look at.
        // Alternatively, publish an event that reports it, as `two_services` does.
        let words = format!("order {order_id}: there are no {count} of {article:?}");
        return Err(HandlerFailure::rejected("out-of-stock", words).into());
    }
    context.publish(&StockReserved { order_id })?;
    Ok(())
}
// ANCHOR_END: handler

// ANCHOR: state
/// State that the shop's handlers share.
struct Shop {
    answered: UnboundedSender<u32>,
}

async fn note_reserved(
    stock: StockReserved,
    context: &mut HandlerContext<'_, SqliteStore, Shop>,
) -> Result<(), HandlerError> {
    let update = sqlx::query("update orders set reserved = 1 where id = ?").bind(stock.order_id);
    if update.execute(context.tx()).await?.rows_affected() == 0 {
        return Err(format!("there is no order {}", stock.order_id).into());
    }
    context.state().answered.send(stock.order_id)?;
    Ok(())
}
// ANCHOR_END: state

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let folder = tempfile::tempdir()?;
    let orders = "create table orders (id integer primary key, reserved integer not null)";
    let stock = "create table stock (article text primary key, count integer not null);
                 insert into stock values ('lamp', 10), ('chair', 10)";
    let shop_pool = database(&folder.path().join("shop.db"), orders).await?;
    let inventory_pool = database(&folder.path().join("inventory.db"), stock).await?;
    // In production, use a broker's. In a process, name the consumers first: then the start order
    // of the services does not matter.
    let transport =
        MemoryTransport::builder().consumer("orders", "inventory").consumer("stock", "shop").build();

    // ANCHOR: inventory
    let store = SqliteStore::new(inventory_pool.clone());
    store.migrate().await?;
    let inventory = Service::builder("inventory", store, transport.clone())
        .inbox("inventory", |inbox| inbox.on(reserve_stock))
        .start()
        .await?;
    // ANCHOR_END: inventory

    let store = SqliteStore::new(shop_pool.clone());
    store.migrate().await?;
    let (answered, mut answers) = unbounded_channel();
    // ANCHOR: shop
    let shop = Service::builder("shop", store, transport)
        .state(Shop { answered })
        .inbox("shop", |inbox| inbox.on(note_reserved))
        .start()
        .await?;
    // ANCHOR_END: shop

    for (order_id, article, count) in [(1, "lamp", 2), (2, "chair", 4), (3, "lamp", 1)] {
        let order = shop.outbox().encode(&OrderPlaced { order_id, article: article.to_owned(), count })?;
        let mut tx = shop_pool.begin_with("begin immediate").await?;
        sqlx::query("insert into orders values (?, 0)").bind(order_id).execute(&mut *tx).await?;
        // Twice, as a broker may deliver it: the inventory handles it once.
        shop.outbox().append_messages(&mut tx, vec![order.clone(), order]).await?;
        tx.commit().await?;
    }

    let mut known = BTreeSet::new();
    let all_answered = async {
        while known.len() < 3 {
            known.extend(answers.recv().await);
        }
    };
    shop.run_until(all_answered).await?;
    inventory.run_until(std::future::ready(())).await?;

    let stock: Vec<(String, i64)> = sqlx::query_as("select article, count from stock order by article")
        .fetch_all(&inventory_pool)
        .await?;
    for (article, count) in stock {
        println!("{article}: {count} left");
    }
    let handled = inventory.inbox("inventory").map_or(0, |inbox| inbox.stats().handled);
    println!("{handled} orders handled, each once");
    let reserved: i64 = sqlx::query_scalar("select sum(reserved) from orders").fetch_one(&shop_pool).await?;
    println!("{reserved} orders known to be reserved");
    Ok(())
}

async fn database(file: &Path, tables: &'static str) -> Result<SqlitePool, sqlx::Error> {
    let options = SqliteConnectOptions::new().filename(file).create_if_missing(true);
    let pool = SqlitePool::connect_with(options.journal_mode(SqliteJournalMode::Wal)).await?;
    sqlx::raw_sql(tables).execute(&pool).await?;
    Ok(pool)
}
