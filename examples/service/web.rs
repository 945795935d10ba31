//! What the service answers.

use std::fmt::Write;
use std::sync::Arc;
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
use tokio::sync::Mutex;

#[derive(Serialize, DomainEvent)]
#[event(topic = "orders", type = "order.placed")]
struct OrderPlaced {
    #[event(key)]
    order_id: i64,
    customer: String,
    cents: u32,
}

/// What the handlers of requests share.
pub(crate) struct Service {
    mediator: Mediator<SqliteStore>,
    /// None: it was stopped.
    relay: Mutex<Option<RelayHandle>>,
    metrics: PrometheusHandle,
}

impl Service {
    pub(crate) fn new(
        mediator: Mediator<SqliteStore>,
        relay: RelayHandle,
        metrics: PrometheusHandle,
    ) -> Self {
        Self { mediator, relay: Mutex::new(Some(relay)), metrics }
    }

    /// Lets the relay finish, and says whether it did.
    pub(crate) async fn stop(&self, within: Duration) -> bool {
        match self.relay.lock().await.take() {
            Some(relay) => relay.stop(within).await,
            None => true,
        }
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
/// The order and its event: both, or an error and neither.
async fn place_order(
    State(service): State<Arc<Service>>,
    Json(NewOrder { customer, cents }): Json<NewOrder>,
) -> Result<(StatusCode, Json<Order>), (StatusCode, String)> {
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
        // The caller can't know either whether it is there; an id that the caller chooses would tell on the second try.
        Err(error) => Err((StatusCode::SERVICE_UNAVAILABLE, error.to_string())),
    }
}
// ANCHOR_END: place_order

/// 503 when messages are not getting out. A relay that merely waits for somebody is still the better one: restarting it would not help.
async fn health(State(service): State<Arc<Service>>) -> (StatusCode, String) {
    let Some(Health { status, reasons, .. }) = service.relay.lock().await.as_ref().map(RelayHandle::health)
    else {
        return (StatusCode::SERVICE_UNAVAILABLE, "stopping\n".to_owned());
    };
    let code = if status == Status::Unhealthy { StatusCode::SERVICE_UNAVAILABLE } else { StatusCode::OK };
    let mut text = format!("{status:?}\n").to_lowercase();
    for reason in reasons {
        let _ = writeln!(text, "{reason}");
    }
    (code, text)
}

async fn metrics(State(service): State<Arc<Service>>) -> String {
    service.metrics.run_upkeep();
    service.metrics.render()
}
