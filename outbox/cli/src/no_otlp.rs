//! In place of the export to OpenTelemetry, in a program that was built without it.

use metrics_exporter_prometheus::PrometheusRecorder;
use tracing_subscriber::layer::Identity;

use crate::exit::Failed;
use crate::settings::Settings;

/// An export: there is none.
#[derive(Clone, Debug)]
pub(crate) enum Otlp {}

impl Otlp {
    /// Refuses an export that the settings ask for. The environment may be meant for other
    /// programs.
    pub(crate) fn start(settings: &Settings) -> Result<Option<Self>, Failed> {
        if settings.otlp.is_some() {
            return Err(Failed::usage("this program was built without otlp; build it with the feature"));
        }
        Ok(None)
    }

    pub(crate) fn layer(&self) -> Identity {
        match *self {}
    }

    pub(crate) async fn shutdown(self) {
        match self {}
    }
}

/// Installs the recorder of metrics.
pub(crate) fn install(prometheus: Option<PrometheusRecorder>, _: Option<&Otlp>) -> Result<(), String> {
    let Some(prometheus) = prometheus else { return Ok(()) };
    metrics::set_global_recorder(prometheus).map_err(|error| error.to_string())
}
