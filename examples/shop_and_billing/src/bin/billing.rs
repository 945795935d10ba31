//! Writes an invoice for each order, once, in a database of its own.
//!
//! `cargo run -p shop-and-billing --bin billing`, with `$DATABASE_URL` and `$KAFKA` in place of the
//! defaults. Ctrl-C stops it.

// ANCHOR: all
use std::error::Error;

use outbox::prelude::*;
use shop_and_billing::{OrderPlaced, setting};
use sqlx::PgPool;

async fn bill(
    order: OrderPlaced,
    context: &mut HandlerContext<'_, PostgresStore>,
) -> Result<(), HandlerError> {
    let insert = sqlx::query("insert into invoices (order_id, cents) values ($1, $2)");
    insert.bind(order.order_id).bind(order.cents).execute(context.tx()).await?;
    println!("invoice to {}: order {}, {} cents", order.customer, order.order_id, order.cents);
    Ok(())
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    tracing_subscriber::fmt().with_writer(std::io::stderr).init();
    let url = setting("DATABASE_URL", "postgres://outbox:outbox@localhost/billing");
    let pool = PgPool::connect(&url).await?;
    let table = "create table if not exists invoices (order_id bigint primary key, cents bigint not null)";
    sqlx::query(table).execute(&pool).await?;

    let store = PostgresStore::new(pool);
    store.migrate().await?;
    let kafka = KafkaTransport::builder(setting("KAFKA", "localhost:9092")).build()?;
    let service =
        Service::builder("billing", store, kafka).inbox("billing", |inbox| inbox.on(bill)).start().await?;
    service.run_until(tokio::signal::ctrl_c()).await?;
    Ok(())
}
// ANCHOR_END: all
