//! HTTP endpoints of the service.

use std::fmt::Write;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::extract::State;
use axum::http::StatusCode;
use axum::routing::{get, post};
use axum::{Json, Router};
use metrics_exporter_prometheus::PrometheusHandle;
use outbox::prelude::*;
use outbox::{Health, Status};
use serde::{Deserialize, Serialize};
use sqlx::SqlitePool;

#[derive(Serialize, DomainEvent)]
#[event(topic = "orders", type = "order.placed")]
struct OrderPlaced {
    #[event(key)]
    order_id: i64,
    customer: String,
    cents: u32,
}

/// State shared by the request handlers.
pub(crate) struct Service {
    pool: SqlitePool,
    mediator: Mediator<SqliteStore>,
    // `None` after the stop. Locked to read it or to take it out; never across an await.
    relay: Mutex<Option<RelayHandle>>,
    metrics: PrometheusHandle,
}

impl Service {
    pub(crate) fn new(store: SqliteStore, relay: RelayHandle, metrics: PrometheusHandle) -> Self {
        let pool = store.pool().clone();
        Self { pool, mediator: Mediator::new(Outbox::new(store)), relay: Mutex::new(Some(relay)), metrics }
    }

    /// Lets the relay finish, and returns true if it did.
    pub(crate) async fn stop(&self, within: Duration) -> bool {
        let relay = self.relay().take();
        match relay {
            Some(relay) => relay.stop(within).await,
            None => true,
        }
    }

    fn relay(&self) -> MutexGuard<'_, Option<RelayHandle>> {
        self.relay.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

pub(crate) async fn create_table(pool: &SqlitePool) -> Result<(), sqlx::Error> {
    sqlx::query(
        "create table if not exists orders (id integer primary key, customer text not null, cents integer not null)",
    )
    .execute(pool)
    .await?;
    Ok(())
}

pub(crate) fn router(service: Arc<Service>) -> Router {
    Router::new()
        .route("/orders", post(place_order))
        .route("/live", get(async || "alive\n"))
        .route("/ready", get(ready))
        .route("/health", get(health))
        .route("/metrics", get(metrics))
        .with_state(service)
}

#[derive(Deserialize)]
struct NewOrder {
    customer: String,
    cents: u32,
}

#[derive(Serialize)]
struct Order {
    order_id: i64,
}

// ANCHOR: place_order
/// Writes the order and its event: both, or an error and neither.
async fn place_order(
    State(service): State<Arc<Service>>,
    Json(NewOrder { customer, cents }): Json<NewOrder>,
) -> Result<(StatusCode, Json<Order>), (StatusCode, &'static str)> {
    let placed = service.mediator.run(async move |work| {
        let order_id = sqlx::query_scalar("insert into orders (customer, cents) values (?, ?) returning id")
            .bind(&customer)
            .bind(cents)
            .fetch_one(&mut **work.tx())
            .await?;
        work.record(OrderPlaced { order_id, customer: customer.clone(), cents })?;
        Ok(order_id)
    });
    match placed.await {
        Ok(order_id) => Ok((StatusCode::CREATED, Json(Order { order_id }))),
        Err(error) => {
            // The database's error text is for us; the client learns what to do.
            eprintln!("service: could not store an order: {error}");
            Err(answer_to(&error))
        }
    }
}

fn answer_to(error: &WorkError) -> (StatusCode, &'static str) {
    match error {
        // The result is unknown: with an id that the caller chooses, a second try would show it.
        WorkError::Unknown(_) => {
            (StatusCode::INTERNAL_SERVER_ERROR, "the order may have been taken or not\n")
        }
        error if error.is_retryable() => {
            (StatusCode::SERVICE_UNAVAILABLE, "the order was not taken; try again\n")
        }
        _ => (StatusCode::INTERNAL_SERVER_ERROR, "the order was not taken\n"),
    }
}
// ANCHOR_END: place_order

// ANCHOR: health
/// Readiness, for a probe that takes an instance out of service: 200 if it can take orders. An
/// unreachable broker is no reason not to.
async fn ready(State(service): State<Arc<Service>>) -> (StatusCode, &'static str) {
    let asked = sqlx::query("select 1").execute(&service.pool);
    match tokio::time::timeout(Duration::from_secs(2), asked).await {
        Ok(Ok(_)) => (StatusCode::OK, "ready\n"),
        _ => (StatusCode::SERVICE_UNAVAILABLE, "the database does not answer\n"),
    }
}

/// Health, for alarms, never as a probe: 503 with every reason when messages are not being
/// delivered. The cause is mostly the broker, and then every instance reports it at once. Taking
/// them out of service, or restarting them, would stop the orders too and repair nothing.
async fn health(State(service): State<Arc<Service>>) -> (StatusCode, String) {
    let Some(Health { status, reasons, .. }) = service.relay().as_ref().map(RelayHandle::health) else {
        return (StatusCode::SERVICE_UNAVAILABLE, "stopping\n".to_owned());
    };
    let code = if status == Status::Unhealthy { StatusCode::SERVICE_UNAVAILABLE } else { StatusCode::OK };
    let mut text = format!("{status:?}\n").to_lowercase();
    for reason in reasons {
        let _ = writeln!(text, "{reason}");
    }
    (code, text)
}
// ANCHOR_END: health

async fn metrics(State(service): State<Arc<Service>>) -> String {
    service.metrics.run_upkeep();
    service.metrics.render()
}
