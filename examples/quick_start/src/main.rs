//! The minimal setup: an event is written in a transaction, relayed, and received. SQLite and one
//! process; nothing to install.
//!
//! `cargo run -p quick-start`

use std::error::Error;
use std::path::Path;
use std::time::Duration;

use outbox::backend::Received;
use outbox::prelude::*;
use serde::Serialize;
use sqlx::SqlitePool;
use sqlx::sqlite::{SqliteConnectOptions, SqliteJournalMode};

// ANCHOR: event
#[derive(Serialize, DomainEvent)]
#[event(topic = "orders", type = "order.placed")]
struct OrderPlaced {
    #[event(key)]
    order_id: u32,
    total_cents: u32,
}
// ANCHOR_END: event

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let folder = tempfile::tempdir()?;
    let pool = your_database(&folder.path().join("shop.db")).await?;
    let transport = MemoryTransport::new();

    // ANCHOR: relay
    let store = SqliteStore::new(pool.clone());
    store.migrate().await?; // tables of its own, beside yours
    let outbox = Outbox::new(store.clone());
    let relay = Relay::builder(store, transport.clone()).start().await?; // here, or in another process
    // ANCHOR_END: relay

    // ANCHOR: subscribe
    let billing = transport.subscribe(Subscription::new("billing".parse()?, ["orders".parse()?])).await?;
    // ANCHOR_END: subscribe

    // ANCHOR: append
    let mut tx = pool.begin_with("begin immediate").await?; // your transaction, your queries
    sqlx::query("insert into orders (id, cents) values (1, 4200)").execute(&mut *tx).await?;
    outbox.append(&mut tx, &OrderPlaced { order_id: 1, total_cents: 4_200 }).await?;
    tx.commit().await?; // the order and its event: from here on both, before it neither
    // ANCHOR_END: append

    // ANCHOR: receive
    if let Received::Deliveries(deliveries) = billing.next().await? {
        for delivery in deliveries {
            match delivery.message {
                Ok(message) => println!(
                    "billing received {}: {}",
                    message.event_type,
                    String::from_utf8_lossy(&message.payload)
                ),
                // With `?` here, any foreign record on the broker would end the program.
                Err(junk) => eprintln!("billing skipped an {junk}"),
            }
            billing.acknowledge(&[delivery.tag]).await?;
        }
    }
    // ANCHOR_END: receive

    // ANCHOR: stop
    let drained = relay.stop(Duration::from_secs(20)).await;
    // ANCHOR_END: stop
    if drained { Ok(()) } else { Err("the relay did not finish in time".into()) }
}

/// Setup that a service already has: a database, with tables of its own.
async fn your_database(file: &Path) -> Result<SqlitePool, sqlx::Error> {
    let options = SqliteConnectOptions::new().filename(file).create_if_missing(true);
    let pool = SqlitePool::connect_with(options.journal_mode(SqliteJournalMode::Wal)).await?;
    sqlx::query("create table orders (id integer primary key, cents integer not null)")
        .execute(&pool)
        .await?;
    Ok(pool)
}
