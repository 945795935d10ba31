//! Several tenants, each with a database of its own, and one broker for all.
//!
//! Each tenant has an outbox in its own database, and a relay for it. A ledger handles the events of
//! all tenants with one inbox.
//!
//! `cargo run -p tenants`

mod database;

use std::sync::Arc;
use std::time::Duration;

use clap::Parser;
use examples_shared::transports::{self, Failed};
use outbox::prelude::*;
use outbox::{AppendOptions, Transport};
use serde::{Deserialize, Serialize};

use database::Database;

/// Orders of each tenant: their numbers are the same in every database.
const ORDERS: i64 = 3;

#[derive(Parser)]
#[command(about = "Several tenants, each with a database of its own, and one broker for all.")]
struct Args {
    /// PostgreSQL databases of two tenants and of the ledger [default: three SQLite files]
    #[arg(long, num_args = 3, value_names = ["NORTH", "SOUTH", "LEDGER"])]
    stores: Option<Vec<String>>,
    /// Broker by its URL, or memory: for none
    #[arg(long, value_name = "URL", default_value = "memory:")]
    transport: String,
}

// ANCHOR: event
#[derive(Serialize, Deserialize, DomainEvent)]
#[event(topic = "orders", type = "order.placed")]
struct OrderPlaced {
    /// Tenant and number: order 1 of one tenant must not wait for order 1 of another.
    #[event(key)]
    order: String,
    cents: i64,
}
// ANCHOR_END: event

// ANCHOR: tenant
/// A tenant: its database, and the service that relays from it.
struct Tenant<D: Database> {
    name: String,
    store: D,
    service: ServiceHandle<D>,
}

impl<D: Database> Tenant<D> {
    /// Opens a tenant, also while the program runs.
    async fn open(name: &str, store: D, transport: Arc<dyn Transport>) -> Result<Self, Failed> {
        store.migrate().await?; // gives the outbox an identity: the `source` of this tenant's events
        store.create_tables().await?;
        let service = Service::builder(name, store.clone(), transport).start().await?;
        Ok(Self { name: name.to_owned(), store, service })
    }

    async fn place_order(&self, number: i64, cents: i64) -> Result<(), Failed> {
        let mut tx = self.store.begin().await?;
        D::insert_order(D::connection(&mut tx), number, cents).await?;
        let order = OrderPlaced { order: format!("{}/{number}", self.name), cents };
        let tenant = AppendOptions::new().extension("tenantid", self.name.as_str());
        self.service.outbox().append_with(&mut tx, &order, tenant).await?;
        self.store.commit(tx).await.into_result()?;
        Ok(())
    }
}
// ANCHOR_END: tenant

// ANCHOR: handler
/// Books an order for the tenant that its event names.
async fn book<D: Database>(
    order: OrderPlaced,
    context: &mut HandlerContext<'_, D>,
) -> Result<(), HandlerError> {
    let tenant = context.extension("tenantid").ok_or("the event names no tenant")?;
    D::book(context.tx(), tenant, order.cents).await?;
    Ok(())
}
// ANCHOR_END: handler

#[tokio::main]
async fn main() -> Result<(), Failed> {
    let args = Args::parse();
    let transport = transports::open(&args.transport, &[("orders", "ledger")])?;
    match args.stores {
        #[cfg(feature = "postgres")]
        Some(urls) => {
            let connect = async |at: usize| PostgresStore::connect(&urls[at]).await;
            run(connect(0).await?, connect(1).await?, connect(2).await?, transport).await
        }
        #[cfg(not(feature = "postgres"))]
        Some(_) => Err("--stores needs a feature: cargo run -p tenants --features postgres".into()),
        None => {
            let folder = tempfile::tempdir()?;
            let open = async |name: &str| SqliteStore::open(folder.path().join(name)).await;
            run(open("north.db").await?, open("south.db").await?, open("ledger.db").await?, transport).await
        }
    }
}

async fn run<D: Database>(
    north: D,
    south: D,
    of_ledger: D,
    transport: Arc<dyn Transport>,
) -> Result<(), Failed> {
    of_ledger.migrate().await?;
    of_ledger.create_tables().await?;
    let ledger = Service::builder("ledger", of_ledger.clone(), Arc::clone(&transport))
        .inbox("ledger", |inbox| inbox.on(book::<D>))
        .without_relay() // it publishes nothing
        .start()
        .await?;
    let tenants = [
        Tenant::open("north", north, Arc::clone(&transport)).await?,
        Tenant::open("south", south, transport).await?,
    ];
    for tenant in &tenants {
        for number in 1..=ORDERS {
            tenant.place_order(number, 100 * number).await?;
        }
    }
    until_handled(&ledger, 2 * ORDERS as u64).await?;
    for (tenant, orders, cents) in of_ledger.booked().await? {
        println!("{tenant}: {orders} orders, {cents} cents");
    }
    for tenant in tenants {
        tenant.service.shutdown(Duration::from_secs(20)).await?;
    }
    ledger.shutdown(Duration::from_secs(20)).await?;
    Ok(())
}

/// Waits until the ledger has handled this many events.
async fn until_handled<D: Database>(ledger: &ServiceHandle<D>, events: u64) -> Result<(), Failed> {
    let waiting = async {
        while ledger.inbox("ledger").is_none_or(|inbox| inbox.stats().handled < events) {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    let late = |_| format!("not handled within a minute: {:?}", ledger.health().reasons);
    Ok(tokio::time::timeout(Duration::from_secs(60), waiting).await.map_err(late)?)
}
