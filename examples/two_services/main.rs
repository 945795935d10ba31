//! `two_services`: one takes orders, the other has the stock. Each has a database of its own; between them there is nothing but events.
//!
//! Orders are placed; the inventory reserves and answers; the orders note the answer. At the end two things must hold, whatever was delivered
//! twice on the way: what is free and what is reserved is together as much as there was, and each confirmed order is reserved once.
//!
//! - `cargo run --example two_services`: two SQLite databases and an in-process transport, nothing to install;
//! - `--postgres URL URL`: two databases on PostgreSQL, empty ones;
//! - `--rabbitmq URL`: RabbitMQ between them. Its queues stay: give it an empty virtual host.

mod database;
mod inventory;
mod orders;

use std::error::Error;
use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;
use outbox::prelude::*;
use outbox::rabbitmq::Topology;
use outbox_testkit::{Scenario, eventually};
use sqlx::PgPool;

use database::Database;
use inventory::Inventory;
use orders::Orders;

/// How many different items there are.
const ITEMS: i64 = 5;

/// Two services, a database each, and a broker between them.
#[derive(Parser)]
struct Args {
    /// How many orders are placed
    #[arg(long, value_name = "N", default_value_t = 200, value_parser = clap::value_parser!(i64).range(1..=100_000))]
    orders: i64,
    /// How many of each of the five items are in stock
    #[arg(long, value_name = "N", default_value_t = 30, value_parser = clap::value_parser!(i64).range(0..=100_000))]
    stock: i64,
    /// Two empty databases on PostgreSQL: of the orders, of the inventory
    #[arg(long, num_args = 2, value_names = ["URL", "URL"])]
    postgres: Option<Vec<String>>,
    /// RabbitMQ between the services
    #[arg(long, value_name = "URL")]
    rabbitmq: Option<String>,
    /// How many seconds all of it may take
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

type Failed = Box<dyn Error + Send + Sync>;

async fn choose_databases(args: &Args) -> Result<(), Failed> {
    let Some(urls) = &args.postgres else {
        return choose_transport(args, SqliteStore::in_memory().await?, SqliteStore::in_memory().await?)
            .await;
    };
    let orders = PostgresStore::new(PgPool::connect(&urls[0]).await?);
    let inventory = PostgresStore::new(PgPool::connect(&urls[1]).await?);
    choose_transport(args, orders, inventory).await
}

async fn choose_transport<D: Database>(args: &Args, orders: D, inventory: D) -> Result<(), Failed> {
    let Some(url) = &args.rabbitmq else {
        // Within the process too: what is published before an inbox has subscribed is kept for it.
        let builder = MemoryTransport::builder().consumer("orders".parse()?, "inventory".parse()?);
        let transport = builder.consumer("stock".parse()?, "orders".parse()?).build();
        return run(args, orders, inventory, transport.clone(), transport).await;
    };
    // Each service connects by itself, and knows whose queues must be there before it publishes.
    let connect = |topic: &str, consumer: &str| -> Result<RabbitMqTransport, Failed> {
        let builder = RabbitMqTransport::builder(url.as_str()).topology(Topology::Declared);
        Ok(builder.consumer(topic.parse()?, consumer.parse()?).build()?)
    };
    run(args, orders, inventory, connect("orders", "inventory")?, connect("stock", "orders")?).await
}

async fn run<D: Database, T: Transport + Clone>(
    args: &Args,
    orders: D,
    inventory: D,
    of_orders: T,
    of_inventory: T,
) -> Result<(), Failed> {
    let patience = Duration::from_secs(args.patience);
    // Sees everything, and has it delivered once more.
    let mut scenario = Scenario::new(of_orders.clone(), ["orders", "stock"]).await.with_patience(patience);
    let inventory = Inventory::start(inventory, of_inventory, ITEMS, args.stock).await?;
    let orders = Orders::start(orders, of_orders).await?;

    for order_id in 0..args.orders {
        orders.place(order_id, order_id % ITEMS).await?;
        if order_id == args.orders / 2 {
            scenario.repeat_all().await;
        }
    }
    let done = eventually(patience, async || {
        orders.answered().await.is_ok_and(|(confirmed, refused)| confirmed + refused == args.orders)
    })
    .await;
    let before = (orders.repeats(), inventory.repeats());
    let repeat = async {
        // Again where the scenario had seen nothing yet that it could repeat.
        loop {
            scenario.repeat_all().await;
            let heard = async || orders.repeats() > before.0 && inventory.repeats() > before.1;
            if eventually(Duration::from_secs(1), heard).await {
                return;
            }
        }
    };
    let repeated = tokio::time::timeout(patience, repeat).await.is_ok();

    let ((confirmed, refused), (free, reserved)) = (orders.answered().await?, inventory.stock().await?);
    let (reservations, reserved_orders) = inventory.reservations().await?;
    println!("orders        {} placed, {confirmed} confirmed, {refused} refused", args.orders);
    println!("stock         {} at first, {free} free, {reserved} reserved", ITEMS * args.stock);
    println!("reservations  {reservations} of {reserved_orders} orders");
    let repeats = orders.repeats() + inventory.repeats();
    println!("repeats       {repeats} deliveries that changed nothing");
    drop(scenario);
    let stopped = orders.stop(patience).await & inventory.stop(patience).await;

    let holds = free + reserved == ITEMS * args.stock
        && reservations == reserved_orders
        && (reserved, reservations) == (confirmed, confirmed);
    match (done && repeated && stopped, holds) {
        (_, false) => Err("the figures do not agree".into()),
        (false, true) => Err("not everything was answered, repeated and stopped in time".into()),
        (true, true) => Ok(()),
    }
}
