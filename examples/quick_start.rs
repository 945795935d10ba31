//! The least that there is: an event is written in a transaction, relayed, and received. SQLite and one process; nothing to install.
//!
//! `cargo run --example quick_start`

use std::time::Duration;

use outbox::prelude::*;
use outbox::subscription::Received;
use serde::Serialize;

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
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("shop.db");
    // ANCHOR: essential
    let store = SqliteStore::open(file).await?;
    store.migrate().await?;
    let outbox = Outbox::new(store.clone());
    let transport = MemoryTransport::new();
    let billing = transport.subscribe(Subscription::new("billing".parse()?, ["orders".parse()?])).await?;
    let relay = Relay::builder(store.clone(), transport).start().await?;

    let mut tx = store.pool().begin_with("begin immediate").await?; // your transaction, your queries
    sqlx::query("create table orders (id integer primary key, cents integer)").execute(&mut *tx).await?;
    sqlx::query("insert into orders values (1, 4200)").execute(&mut *tx).await?;
    outbox.append(&mut tx, &OrderPlaced { order_id: 1, total_cents: 4_200 }).await?;
    tx.commit().await?; // the order and its event exist from here on, both or neither

    if let Received::Deliveries(deliveries) = billing.next().await? {
        println!("billing received {:?}", deliveries[0].message);
        billing.acknowledge(&[deliveries[0].tag.clone()]).await?;
    }
    relay.stop(Duration::from_secs(5)).await;
    // ANCHOR_END: essential
    Ok(())
}
