//! Health and metrics of a relay, and the dashboard, over HTTP.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::IntoResponse;
use axum::routing::get;
use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle};
use outbox::Status;
use outbox::relay::{Health, RelayObserver};
use serde_json::json;
use tokio::net::TcpListener;

use crate::exit::Failed;
use crate::{escape, redact};

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
                tracing::error!(%error, "nothing is served over HTTP any more");
            }
        });
    }
}

/// Begins to collect metrics.
pub(crate) fn collect() -> Result<PrometheusHandle, Failed> {
    PrometheusBuilder::new()
        .install_recorder()
        .map_err(|error| Failed::error(format!("metrics can't be collected: {error}")))
}

/// Returns the router of health and metrics of a relay.
pub(crate) fn router(relay: RelayObserver, metrics: PrometheusHandle) -> Router {
    let app = App { relay, metrics };
    Router::new().route("/health", get(health)).route("/metrics", get(self::metrics)).with_state(app)
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
    let reasons: Vec<String> = reasons.iter().map(|reason| redact::hide(reason)).collect();
    let body = json!({ "status": format!("{status:?}").to_lowercase(), "reasons": reasons });
    (code, [(header::CONTENT_TYPE, "application/json")], escape::json(&body.to_string()) + "\n")
}

async fn metrics(State(app): State<App>) -> impl IntoResponse {
    app.metrics.run_upkeep();
    ([(header::CONTENT_TYPE, "text/plain; version=0.0.4")], app.metrics.render())
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
