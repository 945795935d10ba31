//! `modular_monolith`: one program, one database, and two modules that know only each other's
//! events.
//!
//! Within a module, handlers run in the transaction that raised the event. Between modules, events
//! go through the outbox, an in-process transport and the inbox. Each module can therefore be slow,
//! fail and be repeated without affecting the other. It becomes a service of its own when a broker
//! replaces the transport.
//!
//! - `cargo run -p modular-monolith`: SQLite, nothing to install;
//! - with `--features postgres`, `-- --postgres URL`: an empty database on PostgreSQL.

mod database;
mod sales;
mod shipping;

use std::error::Error;
use std::time::Duration;

use clap::Parser;
use outbox::prelude::*;

use database::Database;

/// Maximum time that the program waits for a result.
const PATIENCE: Duration = Duration::from_secs(120);

/// Two modules in one program that know only each other's events.
#[derive(Parser)]
struct Args {
    /// An empty database on PostgreSQL, instead of SQLite: with `--features postgres`
    #[arg(long, value_name = "URL")]
    postgres: Option<String>,
}

type Failed = Box<dyn Error + Send + Sync>;

#[tokio::main]
async fn main() -> Result<(), Failed> {
    match Args::parse().postgres {
        #[cfg(feature = "postgres")]
        Some(url) => run(PostgresStore::connect(&url).await?).await,
        #[cfg(not(feature = "postgres"))]
        Some(_) => Err("PostgreSQL is not built in; run it again with `--features postgres`".into()),
        None => run(SqliteStore::in_memory().await?).await,
    }
}

async fn run<D: Database>(store: D) -> Result<(), Failed> {
    store.migrate().await?;
    sales::create_tables(&store).await?;
    shipping::create_tables(&store).await?;

    // ANCHOR: service
    let service = Service::builder("shop", store.clone(), MemoryTransport::new())
        .inbox("sales", sales::inbox)
        .inbox("shipping", shipping::inbox)
        .start()
        .await?;
    // ANCHOR_END: service
    let mediator = sales::mediator(service.outbox());

    for customer in ["ann", "bob"] {
        sales::grant(&store, customer, 10_000).await?;
    }
    let mut refused = 0;
    for (customer, cents) in [("ann", 6_000), ("bob", 4_000), ("ann", 6_000), ("ann", 4_000), ("bob", 1)] {
        if let Err(error) = sales::place(&mediator, customer, cents).await {
            println!("refused       {error}");
            refused += 1;
        }
    }

    // The modules exchange the events themselves; this only looks until they have.
    let all_shipped = async {
        while !sales::figures(&store).await.is_ok_and(|(orders, once, _)| orders == once) {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    service.run_until(tokio::time::timeout(PATIENCE, all_shipped)).await?;

    let ((orders, once, more), parcels) = (sales::figures(&store).await?, shipping::parcels(&store).await?);
    println!("orders        {orders} placed, {refused} refused");
    println!("parcels       {parcels} sent");
    println!("shipped       {once} orders once, {more} more than once");
    if orders == once && orders == parcels { Ok(()) } else { Err("not everything arrived in time".into()) }
}
