//! `two_services`: one takes orders, the other has the stock. Each has a database of its own; only
//! events connect them.
//!
//! Orders are placed; the inventory reserves and answers; the orders record the answer. Everything
//! is delivered twice, as it may happen with any broker. At the end two things must hold all the
//! same: free and reserved stock add up to the initial stock, and each confirmed order is reserved
//! once.
//!
//! - `cargo run -p two-services`: two SQLite databases and an in-process transport, nothing to
//!   install;
//! - `--stores URL URL`: two empty databases, of PostgreSQL, MySQL or MongoDB, or one of each;
//! - `--transport URL`: RabbitMQ, Kafka or Redis between them. Its queues persist, so the topics
//!   `orders` and `stock` must be unused before.
//!
//! Everything except SQLite requires its feature: `cargo run -p two-services --features
//! postgres,rabbitmq -- …`.

mod databases;
mod inventory;
mod orders;
mod twice;

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use clap::Parser;
use examples_shared::transports::{self, Failed};
use outbox::inbox::InboxObserver;
use outbox::prelude::*;

use databases::Database;
use twice::Twice;

/// Number of different items.
const ITEMS: i64 = 5;

/// Two services, a database each, and a broker between them.
#[derive(Parser)]
struct Args {
    /// Number of orders to place
    #[arg(long, value_name = "N", default_value_t = 200, value_parser = clap::value_parser!(i64).range(1..=100_000))]
    orders: i64,
    /// Initial stock of each of the five items
    #[arg(long, value_name = "N", default_value_t = 30, value_parser = clap::value_parser!(i64).range(0..=100_000))]
    stock: i64,
    /// Two empty databases: of the orders, of the inventory. postgres://, mysql://, mongodb://;
    /// default: two of SQLite
    #[arg(long, num_args = 2, value_names = ["URL", "URL"])]
    stores: Option<Vec<String>>,
    /// Broker between the services: amqp:// (RabbitMQ), redis://, kafka://HOST:PORT (the topics
    /// must exist)
    #[arg(long, value_name = "URL", default_value = "memory:")]
    transport: String,
    /// Maximum seconds for the whole run
    #[arg(long, value_name = "S", default_value_t = 300)]
    patience: u64,
}

#[tokio::main]
async fn main() -> ExitCode {
    match choose_databases(&Args::parse()).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("two_services: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Runs both services on databases of one kind.
async fn choose_databases(args: &Args) -> Result<(), Failed> {
    let Some(urls) = &args.stores else {
        return run(args, SqliteStore::in_memory().await?, SqliteStore::in_memory().await?).await;
    };
    let (orders, inventory) = (&urls[0], &urls[1]);
    match orders.split(':').next().unwrap_or_default() {
        "sqlite" => {
            run(args, SqliteStore::connect(orders).await?, SqliteStore::connect(inventory).await?).await
        }
        #[cfg(feature = "postgres")]
        "postgres" | "postgresql" => {
            run(args, PostgresStore::connect(orders).await?, PostgresStore::connect(inventory).await?).await
        }
        #[cfg(feature = "mysql")]
        "mysql" | "mariadb" => {
            use outbox::mysql::MySqlStore;
            run(args, MySqlStore::connect(orders).await?, MySqlStore::connect(inventory).await?).await
        }
        #[cfg(feature = "mongodb")]
        "mongodb" => {
            use outbox::mongodb::MongoDbStore;
            run(args, MongoDbStore::connect(orders).await?, MongoDbStore::connect(inventory).await?).await
        }
        scheme => Err(transports::unknown(scheme, &["postgres", "mysql", "mongodb"])),
    }
}

async fn run<D: Database>(args: &Args, orders: D, inventory: D) -> Result<(), Failed> {
    // Consumers whose queues must exist before anything is published.
    let consumers = [("orders", "inventory"), ("stock", "orders")];
    let of_orders = transports::open(&args.transport, &consumers)?;
    // A separate service opens its own connection. In one process both share the transport.
    let of_inventory = match args.transport.starts_with("memory:") {
        true => Arc::clone(&of_orders),
        false => transports::open(&args.transport, &consumers)?,
    };
    let (of_orders, of_inventory) = (Arc::new(Twice(of_orders)), Arc::new(Twice(of_inventory)));
    let inventory_service = inventory::start(inventory.clone(), of_inventory, ITEMS, args.stock).await?;
    let orders_service = orders::start(orders.clone(), of_orders).await?;
    let mediator = Mediator::new(orders_service.outbox().clone());

    for order_id in 0..args.orders {
        orders::place(&mediator, order_id, order_id % ITEMS).await?;
    }
    let repeats = || {
        let of = |inbox: Option<&InboxObserver>| inbox.map_or(0, |inbox| inbox.stats().duplicates);
        of(orders_service.inbox("orders")) + of(inventory_service.inbox("inventory"))
    };
    let done = async {
        loop {
            let (confirmed, refused) = orders.answered().await?;
            if confirmed + refused == args.orders && repeats() > 0 {
                return Ok::<_, Failed>(());
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    let patience = Duration::from_secs(args.patience);
    let done = tokio::time::timeout(patience, done).await;
    orders_service.shutdown(patience).await?;
    inventory_service.shutdown(patience).await?;

    let ((confirmed, refused), (free, reserved)) = (orders.answered().await?, inventory.stock().await?);
    let (reservations, reserved_orders) = inventory.reservations().await?;
    println!("orders        {} placed, {confirmed} confirmed, {refused} refused", args.orders);
    println!("stock         {} at first, {free} free, {reserved} reserved", ITEMS * args.stock);
    println!("reservations  {reservations} of {reserved_orders} orders");
    println!("repeats       {} deliveries that changed nothing", repeats());

    let holds = free + reserved == ITEMS * args.stock
        && reservations == reserved_orders
        && (reserved, reservations) == (confirmed, confirmed);
    if !holds {
        return Err("the figures do not agree".into());
    }
    done.map_err(|_| "not everything was answered and repeated in time")?
}
