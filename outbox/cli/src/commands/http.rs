//! Health and metrics of a relay, and the dashboard, over HTTP.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::IntoResponse;
use axum::routing::get;
use metrics_exporter_prometheus::{
    BuildError, Matcher, PrometheusBuilder, PrometheusHandle, PrometheusRecorder,
};
use outbox::Status;
use outbox::relay::{Health, Reason, RelayObserver};
use outbox::telemetry::{ALL, Kind};
use serde_json::json;
use tokio::net::TcpListener;

use crate::commands::verifying;
use crate::exit::Failed;
use crate::otlp::{self, Otlp};
use crate::{escape, redact};

/// Bounds of the buckets of a histogram, from a fast delivery to a long outage.
pub(crate) const SECONDS: &[f64] =
    &[0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1_800.0, 7_200.0];

/// An address that is taken.
#[derive(Debug)]
pub(crate) struct Http {
    listener: TcpListener,
}

impl Http {
    /// Takes an address. A port alone is one of this machine only.
    pub(crate) async fn bind(address: &str) -> Result<Self, Failed> {
        let address = parsed(address)?;
        let listener = TcpListener::bind(address).await.map_err(|error| {
            Failed::error(format!("could not listen on {address}: {error}; choose another --http address"))
        })?;
        Ok(Self { listener })
    }

    /// Returns the address.
    pub(crate) fn address(&self) -> Result<SocketAddr, Failed> {
        Ok(self.listener.local_addr()?)
    }

    /// Answers until the program ends.
    pub(crate) fn serve(self, router: Router) {
        let service = router.into_make_service_with_connect_info::<SocketAddr>();
        tokio::spawn(async move {
            if let Err(error) = axum::serve(self.listener, service).await {
                tracing::error!(%error, "the HTTP server has ended; health and metrics are unreachable");
            }
        });
    }
}

/// Begins to collect metrics, for `/metrics` and for OpenTelemetry.
pub(crate) fn collect(is_served: bool, otlp: Option<&Otlp>) -> Result<Option<PrometheusHandle>, Failed> {
    let failed = |error: String| Failed::error(format!("metrics can't be collected: {error}"));
    let prometheus = is_served.then(recorder).transpose().map_err(|error| failed(error.to_string()))?;
    let handle = prometheus.as_ref().map(PrometheusRecorder::handle);
    otlp::install(prometheus, otlp).map_err(failed)?;
    Ok(handle)
}

/// Returns the router of life, health and metrics of a relay.
pub(crate) fn router(relay: RelayObserver, metrics: PrometheusHandle) -> Router {
    let app = App { relay, metrics };
    Router::new()
        .route("/live", get(async || "alive\n"))
        .route("/health", get(health))
        .route("/metrics", get(self::metrics))
        .with_state(app)
}

/// Returns a recorder with durations as histograms: those of several relays add up, quantiles do
/// not.
fn recorder() -> Result<PrometheusRecorder, BuildError> {
    let mut builder = PrometheusBuilder::new();
    let histograms = ALL.iter().filter(|metric| metric.kind == Kind::Histogram).map(|metric| metric.name);
    for name in histograms.chain([verifying::LATENCY]) {
        builder = builder.set_buckets_for_metric(Matcher::Full(name.to_owned()), SECONDS)?;
    }
    Ok(builder.build_recorder())
}

fn parsed(address: &str) -> Result<SocketAddr, Failed> {
    let port = address.trim_start_matches(':').parse::<u16>();
    if let Ok(port) = port {
        return Ok(SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), port));
    }
    address.parse().map_err(|_| {
        Failed::usage(format!(
            "http is {address:?}; write an address and a port, as 127.0.0.1:9464, or a port alone"
        ))
    })
}

#[derive(Clone)]
struct App {
    relay: RelayObserver,
    metrics: PrometheusHandle,
}

/// 503 when messages are not delivered: for alarms, never as a probe that restarts a relay.
async fn health(State(app): State<App>) -> impl IntoResponse {
    let Health { status, reasons, .. } = app.relay.health();
    let code = if status == Status::Unhealthy { StatusCode::SERVICE_UNAVAILABLE } else { StatusCode::OK };
    let name = |status: Status| format!("{status:?}").to_lowercase();
    let object = |reason: &Reason| {
        let text = redact::hide(&reason.text);
        json!({ "code": reason.kind.code(), "status": name(reason.status), "text": text })
    };
    let reasons: Vec<_> = reasons.iter().map(object).collect();
    let body = json!({ "status": name(status), "reasons": reasons });
    (code, [(header::CONTENT_TYPE, "application/json")], escape::json(&body.to_string()) + "\n")
}

async fn metrics(State(app): State<App>) -> impl IntoResponse {
    page(State(app.metrics)).await
}

/// Answers with the metrics.
pub(crate) async fn page(State(metrics): State<PrometheusHandle>) -> impl IntoResponse {
    metrics.run_upkeep();
    ([(header::CONTENT_TYPE, "text/plain; version=0.0.4")], metrics.render())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_alone_is_on_this_machine_only() {
        for text in ["9464", ":9464", "127.0.0.1:9464"] {
            assert_eq!(parsed(text).unwrap().to_string(), "127.0.0.1:9464");
        }
        assert!(parsed("0.0.0.0:1").is_ok() && parsed("somewhere").is_err());
    }
}
