//! Export of metrics and spans to OpenTelemetry, by OTLP over HTTP.

mod client;
mod recorder;

use std::time::Duration;

use metrics_exporter_prometheus::PrometheusRecorder;
use metrics_util::layers::FanoutBuilder;
use opentelemetry::KeyValue;
use opentelemetry::metrics::MeterProvider;
use opentelemetry::trace::TracerProvider;
use opentelemetry_otlp::{
    ExporterBuildError, MetricExporter, OTEL_EXPORTER_OTLP_ENDPOINT, OTEL_EXPORTER_OTLP_METRICS_ENDPOINT,
    OTEL_EXPORTER_OTLP_METRICS_PROTOCOL, OTEL_EXPORTER_OTLP_PROTOCOL, OTEL_EXPORTER_OTLP_TRACES_ENDPOINT,
    OTEL_EXPORTER_OTLP_TRACES_PROTOCOL, SpanExporter, WithExportConfig, WithHttpConfig,
};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::metrics::SdkMeterProvider;
use opentelemetry_sdk::trace::{SdkTracer, SdkTracerProvider};
use tracing::{Metadata, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::filter::filter_fn;
use tracing_subscriber::registry::LookupSpan;

use crate::exit::Failed;
use crate::redact;
use crate::settings::Settings;
use client::Client;
use recorder::OtelRecorder;

/// Name of the scope of metrics and spans.
const SCOPE: &str = "outbox";
/// Time for the last export, at the end of the program.
const LAST_EXPORT: Duration = Duration::from_secs(5);
/// Variables that name a collector.
const ENDPOINTS: [&str; 3] =
    [OTEL_EXPORTER_OTLP_ENDPOINT, OTEL_EXPORTER_OTLP_TRACES_ENDPOINT, OTEL_EXPORTER_OTLP_METRICS_ENDPOINT];
/// Variables that choose a protocol.
const PROTOCOLS: [&str; 3] =
    [OTEL_EXPORTER_OTLP_PROTOCOL, OTEL_EXPORTER_OTLP_TRACES_PROTOCOL, OTEL_EXPORTER_OTLP_METRICS_PROTOCOL];

/// A running export.
#[derive(Clone, Debug)]
pub(crate) struct Otlp {
    spans: SdkTracerProvider,
    metrics: SdkMeterProvider,
}

impl Otlp {
    /// Starts the export, if the settings or the environment name a collector.
    pub(crate) fn start(settings: &Settings) -> Result<Option<Self>, Failed> {
        let variable = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
        let is_disabled = variable("OTEL_SDK_DISABLED").is_some_and(|it| it.eq_ignore_ascii_case("true"));
        if is_disabled || (settings.otlp.is_none() && ENDPOINTS.iter().all(|name| variable(name).is_none())) {
            return Ok(None);
        }
        for name in PROTOCOLS {
            if let Some(other) = variable(name).filter(|protocol| protocol != "http/protobuf") {
                return Err(Failed::usage(format!(
                    "{name} is {other:?}; this program exports by http/protobuf, mostly to port 4318"
                )));
            }
        }
        let collector = settings.otlp.as_deref().map(collector).transpose()?;
        let client = Client::new(tokio::runtime::Handle::current())?;
        let resource = resource(&settings.relay.label);
        let spans = SpanExporter::builder().with_http().with_http_client(client.clone());
        let metrics = MetricExporter::builder().with_http().with_http_client(client);
        let (spans, metrics) = match collector {
            Some(url) => (
                spans.with_endpoint(format!("{url}/v1/traces")).build(),
                metrics.with_endpoint(format!("{url}/v1/metrics")).build(),
            ),
            None => (spans.build(), metrics.build()),
        };
        let wrong = |error: ExporterBuildError| Failed::usage(format!("the export by OTLP: {error}"));
        let (spans, metrics) = (spans.map_err(wrong)?, metrics.map_err(wrong)?);
        let spans = SdkTracerProvider::builder().with_batch_exporter(spans).with_resource(resource.clone());
        let metrics = SdkMeterProvider::builder().with_periodic_exporter(metrics).with_resource(resource);
        Ok(Some(Self { spans: spans.build(), metrics: metrics.build() }))
    }

    /// Returns the layer of spans: those of relays and inboxes, whatever the level of the log is.
    pub(crate) fn layer<S>(&self) -> impl Layer<S> + use<S>
    where
        S: Subscriber + for<'s> LookupSpan<'s>,
    {
        let tracer: SdkTracer = self.spans.tracer(SCOPE);
        let is_ours = |it: &Metadata<'_>| it.is_span() && it.target().starts_with("outbox");
        tracing_opentelemetry::layer().with_tracer(tracer).with_filter(filter_fn(is_ours))
    }

    /// Exports what is left, and ends.
    pub(crate) async fn shutdown(self) {
        let last = tokio::task::spawn_blocking(move || {
            // Errors are logged by the exporters.
            let _ = self.spans.shutdown_with_timeout(LAST_EXPORT);
            let _ = self.metrics.shutdown_with_timeout(LAST_EXPORT);
        });
        if tokio::time::timeout(LAST_EXPORT, last).await.is_err() {
            tracing::warn!(
                "the collector of OpenTelemetry did not accept the last metrics and spans in time"
            );
        }
    }
}

/// Installs the recorders of metrics.
pub(crate) fn install(prometheus: Option<PrometheusRecorder>, otlp: Option<&Otlp>) -> Result<(), String> {
    let otlp = otlp.map(|otlp| OtelRecorder::new(otlp.metrics.meter(SCOPE)));
    match (prometheus, otlp) {
        (None, None) => Ok(()),
        (Some(prometheus), None) => {
            metrics::set_global_recorder(prometheus).map_err(|error| error.to_string())
        }
        (None, Some(otlp)) => metrics::set_global_recorder(otlp).map_err(|error| error.to_string()),
        (Some(prometheus), Some(otlp)) => {
            let both = FanoutBuilder::default().add_recorder(prometheus).add_recorder(otlp).build();
            metrics::set_global_recorder(both).map_err(|error| error.to_string())
        }
    }
}

/// Returns the address of a collector, to which the path of a signal is added.
fn collector(url: &str) -> Result<&str, Failed> {
    let host = url.strip_prefix("http://").or_else(|| url.strip_prefix("https://"));
    let Some(host) = host.filter(|host| !host.is_empty()) else {
        return Err(Failed::usage(format!(
            "otlp is {:?}; write the URL of a collector, as http://127.0.0.1:4318",
            redact::url(url)
        )));
    };
    if host.split('/').next().is_some_and(|authority| authority.contains('@')) {
        return Err(Failed::usage(
            "the URL of otlp has a user; give credentials in OTEL_EXPORTER_OTLP_HEADERS instead",
        ));
    }
    Ok(url.trim_end_matches('/'))
}

/// Returns the attributes of this program. The environment overrides them: `OTEL_SERVICE_NAME`,
/// `OTEL_RESOURCE_ATTRIBUTES`.
fn resource(label: &str) -> Resource {
    let own = [
        KeyValue::new("service.name", "outbox-relay"),
        KeyValue::new("service.version", env!("CARGO_PKG_VERSION")),
        KeyValue::new("service.instance.id", label.to_owned()),
    ];
    let given = Resource::builder().build();
    let is_given = |(name, value): (&opentelemetry::Key, &opentelemetry::Value)| {
        let unknown = value.as_str().starts_with("unknown_service");
        (!unknown).then(|| KeyValue::new(name.clone(), value.clone()))
    };
    Resource::builder_empty().with_attributes(own).with_attributes(given.iter().filter_map(is_given)).build()
}

#[cfg(test)]
mod tests {
    use opentelemetry::Key;

    use super::*;

    #[test]
    fn the_url_of_a_collector_is_checked() {
        assert_eq!(collector("http://127.0.0.1:4318/").unwrap(), "http://127.0.0.1:4318");
        assert_eq!(collector("https://collector/otlp").unwrap(), "https://collector/otlp");
        for wrong in ["127.0.0.1:4318", "grpc://collector", "http://", "http://user:secret-1@collector"] {
            let error = collector(wrong).unwrap_err().to_string();
            assert!(!error.contains("secret-1"), "{error}");
        }
    }

    #[test]
    fn the_program_has_a_name_without_an_environment() {
        let resource = resource("relay-1");
        let of = |name| resource.get(&Key::from_static_str(name)).map(|value| value.to_string());
        assert_eq!(of("service.name").as_deref(), Some("outbox-relay"));
        assert_eq!(of("service.instance.id").as_deref(), Some("relay-1"));
        assert!(of("telemetry.sdk.language").is_some());
    }
}
