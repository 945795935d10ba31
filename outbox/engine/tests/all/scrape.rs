//! Metrics as a scrape of Prometheus shows them, of all that runs on the thread of a test.

use metrics::LocalRecorderGuard;
use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle};
use outbox_contract::metric::ALL;

/// The values that this thread has recorded since these were made.
pub(crate) struct Values {
    handle: PrometheusHandle,
    _collecting: LocalRecorderGuard<'static>,
}

impl Values {
    pub(crate) fn collect() -> Self {
        // For the rest of the test program.
        let recorder: &'static _ = Box::leak(Box::new(PrometheusBuilder::new().build_recorder()));
        let handle = recorder.handle();
        Self { handle, _collecting: metrics::set_default_local_recorder(recorder) }
    }

    /// Returns the value of a series, written as `name label="value",label="value"`.
    pub(crate) fn get(&self, series: &str) -> Option<f64> {
        let (name, labels) = series.split_once(' ').unwrap_or((series, ""));
        let begin = if labels.is_empty() { format!("{name} ") } else { format!("{name}{{{labels}}} ") };
        self.handle.render().lines().find_map(|line| line.strip_prefix(&begin)?.parse().ok())
    }

    /// Returns the value of a series that exists.
    #[track_caller]
    pub(crate) fn of(&self, series: &str) -> f64 {
        self.get(series).unwrap_or_else(|| panic!("no {series} in\n{}", self.handle.render()))
    }

    /// Asserts the values of several series.
    #[track_caller]
    pub(crate) fn are(&self, expected: &[(&str, f64)]) {
        for (series, value) in expected {
            assert!((self.of(series) - value).abs() < 1e-9, "{series} is {}, not {value}", self.of(series));
        }
    }
}

/// The tests below `promises/metrics.rs` and `inbox/metrics.rs` make every metric happen.
#[test]
fn every_metric_is_made_to_happen_by_a_test() {
    let tests = [include_str!("promises/metrics.rs"), include_str!("inbox/metrics.rs")].concat();
    let missing: Vec<&str> = ALL
        .iter()
        .map(|metric| metric.name)
        .filter(|name| !tests.contains(&format!("{name} ")) && !tests.contains(&format!("{name}\"")))
        .filter(|name| !tests.contains(&format!("{name}_count ")))
        .collect();
    assert!(missing.is_empty(), "no test asserts {missing:?}");
}
