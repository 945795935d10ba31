//! Telemetry of the engine: spans that belong to the trace of the messages they cover.

mod metrics;
mod propagation;

pub(crate) use self::metrics::{describe_metrics, register_counters};
pub use propagation::consume_span;
pub(crate) use propagation::publish_span;
