//! Metrics of the crate `metrics` as instruments of OpenTelemetry.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use metrics::{
    Counter, CounterFn, Gauge, GaugeFn, Histogram, HistogramFn, Key, KeyName, Metadata, Recorder,
    SharedString, Unit,
};
use metrics_util::registry::{Registry, Storage};
use opentelemetry::KeyValue;
use opentelemetry::metrics::{self as otel, Meter};
use outbox::telemetry::ALL;

use crate::commands::SECONDS;

/// A recorder that keeps an instrument for each series.
#[derive(Debug)]
pub(crate) struct OtelRecorder {
    series: Registry<Key, Instruments>,
}

impl OtelRecorder {
    pub(super) fn new(meter: Meter) -> Self {
        Self { series: Registry::new(Instruments { meter }) }
    }
}

impl Recorder for OtelRecorder {
    // The table of all metrics has units and descriptions.
    fn describe_counter(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn describe_gauge(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn describe_histogram(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn register_counter(&self, key: &Key, _: &Metadata<'_>) -> Counter {
        self.series.get_or_create_counter(key, |counter| Arc::clone(counter).into())
    }

    fn register_gauge(&self, key: &Key, _: &Metadata<'_>) -> Gauge {
        self.series.get_or_create_gauge(key, |gauge| Arc::clone(gauge).into())
    }

    fn register_histogram(&self, key: &Key, _: &Metadata<'_>) -> Histogram {
        self.series.get_or_create_histogram(key, |histogram| Arc::clone(histogram).into())
    }
}

/// Makes the instruments.
#[derive(Debug)]
struct Instruments {
    meter: Meter,
}

/// An instrument with the labels of one series, and its value where it is set in steps.
#[derive(Debug)]
struct Series<I> {
    instrument: I,
    labels: Vec<KeyValue>,
    value: AtomicU64,
}

impl<I> Series<I> {
    fn new(instrument: I, key: &Key) -> Arc<Self> {
        let labels =
            key.labels().map(|label| KeyValue::new(label.key().to_owned(), label.value().to_owned()));
        Arc::new(Self { instrument, labels: labels.collect(), value: AtomicU64::new(0) })
    }
}

impl Storage<Key> for Instruments {
    type Counter = Arc<Series<otel::Counter<u64>>>;
    type Gauge = Arc<Series<otel::Gauge<f64>>>;
    type Histogram = Arc<Series<otel::Histogram<f64>>>;

    fn counter(&self, key: &Key) -> Self::Counter {
        let (unit, help) = described(key);
        let counter = self.meter.u64_counter(key.name().to_owned()).with_unit(unit).with_description(help);
        Series::new(counter.build(), key)
    }

    fn gauge(&self, key: &Key) -> Self::Gauge {
        let (unit, help) = described(key);
        let gauge = self.meter.f64_gauge(key.name().to_owned()).with_unit(unit).with_description(help);
        Series::new(gauge.build(), key)
    }

    fn histogram(&self, key: &Key) -> Self::Histogram {
        let (unit, help) = described(key);
        let histogram = self.meter.f64_histogram(key.name().to_owned()).with_unit(unit);
        let histogram = histogram.with_description(help).with_boundaries(SECONDS.to_vec());
        Series::new(histogram.build(), key)
    }
}

/// Returns the unit, as OpenTelemetry writes it, and the description of a metric.
fn described(key: &Key) -> (String, &'static str) {
    let Some(metric) = ALL.iter().find(|metric| metric.name == key.name()) else {
        return ("1".to_owned(), "");
    };
    let unit = match metric.unit {
        "seconds" => "s".to_owned(),
        "bytes" => "By".to_owned(),
        "1 or 0" => "1".to_owned(),
        other => format!("{{{other}}}"),
    };
    (unit, metric.help)
}

impl CounterFn for Series<otel::Counter<u64>> {
    fn increment(&self, value: u64) {
        self.value.fetch_add(value, Ordering::Relaxed);
        self.instrument.add(value, &self.labels);
    }

    fn absolute(&self, value: u64) {
        let before = self.value.fetch_max(value, Ordering::Relaxed);
        self.instrument.add(value.saturating_sub(before), &self.labels);
    }
}

impl Series<otel::Gauge<f64>> {
    fn change(&self, change: impl Fn(f64) -> f64) {
        let next = |bits| change(f64::from_bits(bits)).to_bits();
        let before = self.value.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |bits| Some(next(bits)));
        self.instrument.record(f64::from_bits(next(before.unwrap_or_default())), &self.labels);
    }
}

impl GaugeFn for Series<otel::Gauge<f64>> {
    fn increment(&self, value: f64) {
        self.change(|before| before + value);
    }

    fn decrement(&self, value: f64) {
        self.change(|before| before - value);
    }

    fn set(&self, value: f64) {
        self.change(|_| value);
    }
}

impl HistogramFn for Series<otel::Histogram<f64>> {
    fn record(&self, value: f64) {
        self.instrument.record(value, &self.labels);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::sync::Mutex;
    use std::time::Duration;

    use opentelemetry::metrics::MeterProvider;
    use opentelemetry_sdk::error::OTelSdkResult;
    use opentelemetry_sdk::metrics::data::{
        AggregatedMetrics, HistogramDataPoint, Metric, MetricData, ResourceMetrics,
    };
    use opentelemetry_sdk::metrics::exporter::PushMetricExporter;
    use opentelemetry_sdk::metrics::{SdkMeterProvider, Temporality};

    use super::*;

    /// An exporter that keeps the last export: the series of each metric.
    #[derive(Clone, Default)]
    struct Exported(Arc<Mutex<BTreeMap<String, String>>>);

    impl PushMetricExporter for Exported {
        async fn export(&self, metrics: &ResourceMetrics) -> OTelSdkResult {
            let metrics = metrics.scope_metrics().flat_map(|scope| scope.metrics());
            *self.0.lock().unwrap() =
                metrics.map(|metric| (metric.name().to_owned(), series(metric))).collect();
            Ok(())
        }

        fn force_flush(&self) -> OTelSdkResult {
            Ok(())
        }

        fn shutdown_with_timeout(&self, _: Duration) -> OTelSdkResult {
            Ok(())
        }

        fn temporality(&self) -> Temporality {
            Temporality::Cumulative
        }
    }

    fn series(metric: &Metric) -> String {
        let text = |value: String, labels: Vec<&KeyValue>| {
            let labels: Vec<_> =
                labels.iter().map(|label| format!("{}={}", label.key, label.value)).collect();
            format!("{value} {} {}", metric.unit(), labels.join(" "))
        };
        let series: Vec<_> = match metric.data() {
            AggregatedMetrics::U64(MetricData::Sum(sum)) => {
                sum.data_points().map(|it| text(it.value().to_string(), it.attributes().collect())).collect()
            }
            AggregatedMetrics::F64(MetricData::Gauge(gauge)) => gauge
                .data_points()
                .map(|it| text(it.value().to_string(), it.attributes().collect()))
                .collect(),
            AggregatedMetrics::F64(MetricData::Histogram(histogram)) => {
                let value = |it: &HistogramDataPoint<f64>| {
                    assert_eq!(it.bounds().collect::<Vec<_>>(), SECONDS);
                    format!("{} in {}", it.sum(), it.count())
                };
                histogram.data_points().map(|it| text(value(it), it.attributes().collect())).collect()
            }
            other => panic!("{} is {other:?}", metric.name()),
        };
        series.join("; ")
    }

    #[test]
    fn each_kind_of_metric_is_exported_with_its_labels_and_unit() {
        let exported = Exported::default();
        let provider = SdkMeterProvider::builder().with_periodic_exporter(exported.clone()).build();
        metrics::with_local_recorder(&OtelRecorder::new(provider.meter("test")), || {
            let counter = metrics::counter!("outbox_delivered_total", "route" => "default");
            counter.increment(2);
            counter.increment(3);
            counter.absolute(9);
            let gauge = metrics::gauge!("outbox_pending", "route" => "default");
            gauge.set(7.0);
            gauge.increment(4.0);
            gauge.decrement(1.0);
            let histogram = metrics::histogram!("outbox_latency_seconds", "route" => "default");
            histogram.record(0.5);
            histogram.record(1.5);
        });
        provider.force_flush().unwrap();
        let exported = std::mem::take(&mut *exported.0.lock().unwrap());
        let expected = [
            ("outbox_delivered_total", "9 {messages} route=default"),
            ("outbox_latency_seconds", "2 in 2 s route=default"),
            ("outbox_pending", "10 {messages} route=default"),
        ];
        let expected = expected.map(|(name, series)| (name.to_owned(), series.to_owned()));
        assert_eq!(exported, expected.into());
    }
}
