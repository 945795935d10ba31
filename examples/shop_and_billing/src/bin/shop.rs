//! Takes orders by HTTP, stores each with its event, and relays the events to Kafka.
//!
//! `cargo run -p shop-and-billing --bin shop`, with `$DATABASE_URL`, `$KAFKA` and `$LISTEN` in
//! place of the defaults. Ctrl-C stops it.

// ANCHOR: main
use std::error::Error;
use std::time::Duration;

use axum::extract::State;
use axum::http::StatusCode;
use axum::routing::post;
use axum::{Json, Router};
use outbox::prelude::*;
use serde::Deserialize;
use shop_and_billing::{OrderPlaced, setting};
use sqlx::PgPool;

type AnyError = Box<dyn Error + Send + Sync>;

#[tokio::main]
async fn main() -> Result<(), AnyError> {
    tracing_subscriber::fmt().with_writer(std::io::stderr).init(); // without it, relays are silent
    let pool = PgPool::connect(&setting("DATABASE_URL", "postgres://outbox:outbox@localhost/orders")).await?;
    let table = "create table if not exists orders \
                 (id bigserial primary key, customer text not null, cents bigint not null)";
    sqlx::query(table).execute(&pool).await?;

    let store = PostgresStore::new(pool.clone());
    store.migrate().await?; // creates the tables of the outbox beside yours, or upgrades them
    let kafka = KafkaTransport::builder(setting("KAFKA", "localhost:9092")).build()?;
    let service = Service::builder("shop", store, kafka).start().await?; // the relay runs from here on

    let shop = Shop { pool, outbox: service.outbox().clone() };
    let router = Router::new().route("/orders", post(place_order)).with_state(shop);
    let listener = tokio::net::TcpListener::bind(setting("LISTEN", "127.0.0.1:8080")).await?;
    println!("listening on http://{}", listener.local_addr()?);
    let stop = async { _ = tokio::signal::ctrl_c().await };
    axum::serve(listener, router).with_graceful_shutdown(stop).await?; // requests finish first
    service.shutdown(Duration::from_secs(20)).await?; // then what is in flight to Kafka
    Ok(())
}
// ANCHOR_END: main

// ANCHOR: append
#[derive(Clone)]
struct Shop {
    pool: PgPool,
    outbox: Outbox<PostgresStore>,
}

#[derive(Deserialize)]
struct NewOrder {
    customer: String,
    cents: i64,
}

impl Shop {
    /// Writes the order and its event: both, or an error and neither.
    async fn insert(&self, NewOrder { customer, cents }: NewOrder) -> Result<i64, AnyError> {
        let mut tx = self.pool.begin().await?;
        let insert = "insert into orders (customer, cents) values ($1, $2) returning id";
        let insert = sqlx::query_scalar(insert).bind(&customer).bind(cents);
        let order_id: i64 = insert.fetch_one(&mut *tx).await?;
        self.outbox.append(&mut tx, &OrderPlaced { order_id, customer, cents }).await?;
        tx.commit().await?;
        Ok(order_id)
    }
}

async fn place_order(
    State(shop): State<Shop>,
    Json(order): Json<NewOrder>,
) -> Result<String, (StatusCode, &'static str)> {
    match shop.insert(order).await {
        Ok(order_id) => Ok(format!("order {order_id}\n")),
        Err(error) => {
            eprintln!("could not store an order: {error}");
            Err((StatusCode::SERVICE_UNAVAILABLE, "try again\n"))
        }
    }
}
// ANCHOR_END: append
