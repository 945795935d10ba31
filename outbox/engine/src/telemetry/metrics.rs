//! Descriptions of metrics, for the recorder of the program.

use metrics::Unit;
use outbox_contract::metric::{ALL, Kind, Metric};

/// Registers units and descriptions of all metrics with the recorder of this program. Idempotent,
/// and without effect if no recorder is installed.
pub(crate) fn describe_metrics() {
    for metric in ALL {
        let unit = unit(metric.unit);
        match metric.kind {
            Kind::Counter => metrics::describe_counter!(metric.name, unit, metric.help),
            Kind::Gauge => metrics::describe_gauge!(metric.name, unit, metric.help),
            Kind::Histogram => metrics::describe_histogram!(metric.name, unit, metric.help),
        }
    }
}

/// Registers the counters that have this label and no other. They are exported from zero on: a
/// counter that appears with its first increment has no increase that an alert could see.
pub(crate) fn register_counters(label: &'static str, value: &str) {
    let alone = |metric: &&Metric| metric.kind == Kind::Counter && metric.labels == [label];
    for metric in ALL.iter().filter(alone) {
        metrics::counter!(metric.name, label => value.to_owned()).increment(0);
    }
}

fn unit(name: &str) -> Unit {
    match name {
        "seconds" => Unit::Seconds,
        "bytes" => Unit::Bytes,
        _ => Unit::Count,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use metrics::{Counter, Gauge, Histogram, Key, KeyName, Metadata, Recorder, SharedString};

    use outbox_contract::Message;
    use outbox_store_memory::MemoryStore;
    use outbox_testkit::Feed;

    use super::*;
    use crate::{HandlerContext, Inbox, Mode};

    /// Recorder that collects the descriptions.
    #[derive(Default)]
    struct Told(Mutex<Vec<(String, Option<Unit>, String)>>);

    impl Told {
        fn add(&self, name: &KeyName, unit: Option<Unit>, help: &SharedString) {
            self.0.lock().unwrap().push((name.as_str().to_owned(), unit, help.to_string()));
        }
    }

    impl Recorder for Told {
        fn describe_counter(&self, name: KeyName, unit: Option<Unit>, help: SharedString) {
            self.add(&name, unit, &help);
        }

        fn describe_gauge(&self, name: KeyName, unit: Option<Unit>, help: SharedString) {
            self.add(&name, unit, &help);
        }

        fn describe_histogram(&self, name: KeyName, unit: Option<Unit>, help: SharedString) {
            self.add(&name, unit, &help);
        }

        fn register_counter(&self, _: &Key, _: &Metadata<'_>) -> Counter {
            Counter::noop()
        }

        fn register_gauge(&self, _: &Key, _: &Metadata<'_>) -> Gauge {
            Gauge::noop()
        }

        fn register_histogram(&self, _: &Key, _: &Metadata<'_>) -> Histogram {
            Histogram::noop()
        }
    }

    /// Every mode of an inbox registers them, because the process may have no other part that does.
    #[tokio::test]
    async fn an_inbox_of_every_mode_describes_them() {
        for mode in [Mode::Direct, Mode::Stored, Mode::Receive, Mode::Handle] {
            let told = Told::default();
            let recorder = metrics::set_default_local_recorder(&told);
            let inbox = Inbox::builder(MemoryStore::new(), Feed::new()).consumer("inventory").topic("orders");
            let inbox = inbox.on_any(async |_: Message, _: &mut HandlerContext<'_, MemoryStore>| Ok(()));
            drop(inbox.mode(mode).start().await.unwrap());
            drop(recorder);
            let told = told.0.into_inner().unwrap();
            assert!(ALL.iter().all(|metric| told.iter().any(|(told, ..)| told == metric.name)), "{mode:?}");
        }
    }

    #[test]
    fn every_metric_is_described_with_its_unit() {
        let told = Told::default();
        metrics::with_local_recorder(&told, describe_metrics);
        let told = told.0.into_inner().unwrap();
        assert_eq!(told.len(), ALL.len());
        let unit = |name: &str| told.iter().find(|(told, ..)| told == name).unwrap().1;
        assert_eq!(unit("outbox_latency_seconds"), Some(Unit::Seconds));
        assert_eq!(unit("outbox_in_flight_bytes"), Some(Unit::Bytes));
        assert_eq!(unit("outbox_delivered_total"), Some(Unit::Count));
        assert!(told.iter().all(|(.., help)| !help.is_empty()));
    }
}
