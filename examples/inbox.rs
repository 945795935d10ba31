//! Two services with a database each: the shop takes orders, the inventory reserves stock for each order once, whatever is delivered twice.
//!
//! `cargo run --example inbox`

use std::error::Error;
use std::path::Path;
use std::time::Duration;

use outbox::prelude::*;
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

#[derive(Serialize, DomainEvent)]
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
    sqlx::query("update stock set count = count - ? where article = ?")
        .bind(order.count)
        .bind(&order.article)
        .execute(&mut **tx)
        .await?;
    context.emit(&StockReserved { order_id: order.order_id })?;
    Ok(())
}
// ANCHOR_END: handler

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let folder = tempfile::tempdir()?;
    let shop = database(&folder.path().join("shop.db")).await?;
    let inventory = database(&folder.path().join("inventory.db")).await?;
    sqlx::query("create table stock (article text primary key, count integer not null)")
        .execute(&inventory)
        .await?;
    sqlx::query("insert into stock values ('lamp', 10), ('chair', 10)").execute(&inventory).await?;
    let topic = Topic::new("orders")?;
    let transport = outbox::memory::MemoryTransport::builder().consumer(topic, "inventory".parse()?).build();

    // ANCHOR: inbox
    let store = SqliteStore::new(inventory.clone());
    store.migrate().await?;
    let inbox = Inbox::builder(store, transport.clone())
        .consumer("inventory")
        .on::<OrderPlaced, _>(reserve_stock)
        .start()
        .await?;
    // ANCHOR_END: inbox

    let store = SqliteStore::new(shop.clone());
    store.migrate().await?;
    let outbox = Outbox::new(store.clone());
    let relay = Relay::builder(store, transport).start().await?;
    for (order_id, article, count) in [(1, "lamp", 2), (2, "chair", 4), (3, "lamp", 1)] {
        let order = outbox.encode(&OrderPlaced { order_id, article: article.to_owned(), count })?;
        // Twice, as a broker may: the inventory handles it once.
        for _ in 0..2 {
            let mut tx = shop.begin_with("begin immediate").await?;
            outbox.append_message(&mut tx, order.clone()).await?;
            tx.commit().await?;
        }
    }
    while inbox.stats().handled < 3 {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let stock: Vec<(String, i64)> =
        sqlx::query_as("select article, count from stock order by article").fetch_all(&inventory).await?;
    for (article, count) in stock {
        println!("{article}: {count} left");
    }
    println!("{} orders handled, each once", inbox.stats().handled);

    // ANCHOR: stop
    let drained = relay.stop(Duration::from_secs(20)).await & inbox.stop(Duration::from_secs(20)).await;
    // ANCHOR_END: stop
    if drained { Ok(()) } else { Err("something did not finish in time".into()) }
}

async fn database(file: &Path) -> Result<SqlitePool, sqlx::Error> {
    let options = SqliteConnectOptions::new().filename(file).create_if_missing(true);
    SqlitePool::connect_with(options.journal_mode(SqliteJournalMode::Wal)).await
}
