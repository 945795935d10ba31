//! HTTP client of the exporters.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::connect::HttpConnector;
use opentelemetry_http::hyper::HyperClient;
use opentelemetry_http::{Bytes, HttpClient, HttpError, Request, Response};
use outbox::async_trait;
use tokio::runtime::Handle;

use crate::exit::Failed;

/// Maximum duration of a request; that of an export, of several requests, is set by
/// `OTEL_EXPORTER_OTLP_TIMEOUT`.
const REQUEST: Duration = Duration::from_secs(10);

/// A client whose requests run on the runtime of the program: exporters have threads of their own,
/// without one.
#[derive(Clone)]
pub(super) struct Client {
    inner: Arc<HyperClient<HttpsConnector<HttpConnector>>>,
    runtime: Handle,
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client").finish_non_exhaustive()
    }
}

impl Client {
    pub(super) fn new(runtime: Handle) -> Result<Self, Failed> {
        let provider = rustls::crypto::ring::default_provider();
        let connector = HttpsConnectorBuilder::new().with_provider_and_native_roots(provider);
        let connector = connector.map_err(|error| {
            Failed::error(format!("the certificates of this machine could not be read: {error}"))
        })?;
        let connector = connector.https_or_http().enable_http1().build();
        Ok(Self { inner: Arc::new(HyperClient::new(connector, REQUEST, None)), runtime })
    }
}

#[async_trait]
impl HttpClient for Client {
    async fn send_bytes(&self, request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
        let inner = Arc::clone(&self.inner);
        self.runtime.spawn(async move { inner.send_bytes(request).await }).await?
    }
}
