//! HTTP endpoints of the service.

use std::fmt::Write;
use std::time::Duration;

use axum::extract::State;
use axum::http::StatusCode;
use axum::routing::{get, post};
use axum::{Json, Router};
use metrics_exporter_prometheus::PrometheusHandle;
use outbox::prelude::*;
use outbox::{Health, Status};
use serde::{Deserialize, Serialize};

use crate::database::Database;
use crate::mails::OrderPlaced;

/// State shared by the request handlers. Cheap to clone.
#[derive(Clone)]
pub(crate) struct App<D: Database> {
    store: D,
    mediator: Mediator<D>,
    service: ServiceHandle<D>,
    metrics: PrometheusHandle,
}

impl<D: Database> App<D> {
    pub(crate) fn new(store: D, service: ServiceHandle<D>, metrics: PrometheusHandle) -> Self {
        Self { store, mediator: Mediator::new(service.outbox().clone()), service, metrics }
    }
}

pub(crate) fn router<D: Database>(app: App<D>) -> Router {
    Router::new()
        .route("/orders", post(place_order::<D>))
        .route("/live", get(async || "alive\n"))
        .route("/ready", get(ready::<D>))
        .route("/health", get(health::<D>))
        .route("/metrics", get(metrics::<D>))
        .with_state(app)
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
async fn place_order<D: Database>(
    State(app): State<App<D>>,
    Json(NewOrder { customer, cents }): Json<NewOrder>,
) -> Result<(StatusCode, Json<Order>), (StatusCode, &'static str)> {
    let cents = i64::from(cents);
    let placed = app.mediator.run(async move |work| {
        let order_id = D::insert_order(work.tx(), &customer, cents).await?;
        work.publish(OrderPlaced { order_id, customer: customer.clone(), cents })?;
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
async fn ready<D: Database>(State(app): State<App<D>>) -> (StatusCode, &'static str) {
    match tokio::time::timeout(Duration::from_secs(2), app.store.ping()).await {
        Ok(Ok(())) => (StatusCode::OK, "ready\n"),
        _ => (StatusCode::SERVICE_UNAVAILABLE, "the database does not answer\n"),
    }
}

/// Health, for alarms, never as a probe: 503 with every reason when messages are not being
/// delivered or handled. The cause is mostly the broker, and then every instance reports it at
/// once. Taking them out of service, or restarting them, would stop the orders too and repair
/// nothing.
async fn health<D: Database>(State(app): State<App<D>>) -> (StatusCode, String) {
    let Health { status, reasons, .. } = app.service.health();
    let code = if status == Status::Unhealthy { StatusCode::SERVICE_UNAVAILABLE } else { StatusCode::OK };
    let mut text = format!("{status:?}\n").to_lowercase();
    for reason in reasons {
        let _ = writeln!(text, "{reason}");
    }
    (code, text)
}
// ANCHOR_END: health

async fn metrics<D: Database>(State(app): State<App<D>>) -> String {
    app.metrics.run_upkeep();
    app.metrics.render()
}
