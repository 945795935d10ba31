//! The first program: an event is written in a transaction, and handled once. SQLite and one
//! process; nothing to install.
//!
//! `cargo run -p quick-start`, and Ctrl-C to stop it.

use std::error::Error;
use std::path::Path;

// ANCHOR: use
use outbox::prelude::*;
use serde::{Deserialize, Serialize};
// ANCHOR_END: use
use sqlx::SqlitePool;
use sqlx::sqlite::{SqliteConnectOptions, SqliteJournalMode};

// ANCHOR: event
#[derive(Serialize, Deserialize, DomainEvent)]
#[event(topic = "orders", type = "order.placed")]
struct OrderPlaced {
    #[event(key)]
    order_id: u32,
    cents: u32,
}
// ANCHOR_END: event

// ANCHOR: handler
async fn bill(order: OrderPlaced, context: &mut HandlerContext<'_, SqliteStore>) -> Result<(), HandlerError> {
    let insert = sqlx::query("insert into invoices values (?, ?)").bind(order.order_id).bind(order.cents);
    insert.execute(context.tx()).await?; // committed once, however often the event is delivered
    println!("invoice for order {}: {} cents", order.order_id, order.cents);
    Ok(())
}
// ANCHOR_END: handler

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let folder = tempfile::tempdir()?;
    let pool = your_database(&folder.path().join("shop.db")).await?;

    // ANCHOR: service
    let store = SqliteStore::new(pool.clone());
    store.migrate().await?; // tables of its own, beside yours
    let service = Service::builder("shop", store, MemoryTransport::new())
        .inbox("billing", |inbox| inbox.on(bill))
        .start()
        .await?;
    // ANCHOR_END: service

    // ANCHOR: append
    let mut tx = pool.begin_with("begin immediate").await?; // your transaction, your queries
    sqlx::query("insert into orders values (1, 4200)").execute(&mut *tx).await?;
    service.outbox().append(&mut tx, &OrderPlaced { order_id: 1, cents: 4_200 }).await?;
    tx.commit().await?; // the order and its event: from here on both, before it neither
    // ANCHOR_END: append

    // ANCHOR: stop
    service.run_until(tokio::signal::ctrl_c()).await?; // then drains, and stops
    // ANCHOR_END: stop
    Ok(())
}

/// Setup that a service already has: a database, with tables of its own.
async fn your_database(file: &Path) -> Result<SqlitePool, sqlx::Error> {
    let options = SqliteConnectOptions::new().filename(file).create_if_missing(true);
    let pool = SqlitePool::connect_with(options.journal_mode(SqliteJournalMode::Wal)).await?;
    for table in
        ["orders (id integer primary key, cents integer)", "invoices (order_id integer, cents integer)"]
    {
        sqlx::query(sqlx::AssertSqlSafe(format!("create table {table}"))).execute(&pool).await?;
    }
    Ok(pool)
}
