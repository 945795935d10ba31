//! Latest findings about routes without a running relay.

use std::collections::BTreeSet;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use outbox_contract::backend::Unserved;
use outbox_contract::{Route, metric};

use super::unserved::EVERY;

/// Maximum number of routes that become labels of a metric during the life of a relay. The names
/// come from the store, where a writer may make up any number.
const MAX_LABELS: usize = 20;

/// Last answer of the store, and the time since.
#[derive(Debug)]
pub(crate) struct UnservedRoutes {
    /// Time for which an answer is valid.
    lasts: Duration,
    // Locked for a few instructions, never across an await.
    seen: Mutex<Seen>,
}

#[derive(Debug)]
struct Seen {
    /// Instant of the last answer, on the relay's own clock; initially the relay's start.
    answered: Duration,
    routes: Vec<Unserved>,
    /// Error of the last query.
    error: Option<String>,
    /// Routes that have been labels of the metric. They are again when found again.
    labels: BTreeSet<Route>,
}

impl UnservedRoutes {
    /// Returns findings without an answer so far, which is no problem yet.
    pub(crate) fn new(started: Duration, store_timeout: Duration) -> Self {
        let seen = Seen { answered: started, routes: Vec::new(), error: None, labels: BTreeSet::new() };
        Self { lasts: EVERY * 3 + store_timeout, seen: Mutex::new(seen) }
    }

    pub(crate) fn found(&self, now: Duration, routes: Vec<Unserved>) {
        let mut seen = self.seen();
        for unserved in routes.iter().filter(|found| !seen.tells_of(&found.route)).take(MAX_LABELS) {
            let (route, waited) = (&unserved.route, unserved.oldest_age);
            let advice = advice(unserved);
            tracing::warn!(%route, ?waited, "no running relay serves a route with messages; {advice}");
        }
        (seen.answered, seen.routes, seen.error) = (now, routes, None);
        seen.show();
    }

    pub(crate) fn failed(&self, now: Duration, error: String) {
        let mut seen = self.seen();
        seen.error = Some(error);
        if self.is_old(&seen, now) {
            seen.routes.clear();
            seen.show();
        }
    }

    /// Returns the routes found, unless the last answer is too old.
    pub(crate) fn routes(&self, now: Duration) -> Vec<Unserved> {
        let seen = self.seen();
        if self.is_old(&seen, now) { Vec::new() } else { seen.routes.clone() }
    }

    /// Returns for how long there has been no answer, and why, if that is too long. A query that
    /// never returns yields no error.
    pub(crate) fn unknown(&self, now: Duration) -> Option<(Duration, String)> {
        let seen = self.seen();
        let error = || seen.error.clone().unwrap_or_else(|| "no answer".to_owned());
        self.is_old(&seen, now).then(|| (now.saturating_sub(seen.answered), error()))
    }

    fn is_old(&self, seen: &Seen, now: Duration) -> bool {
        now.saturating_sub(seen.answered) > self.lasts
    }

    fn seen(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Seen {
    fn tells_of(&self, route: &Route) -> bool {
        self.routes.iter().any(|unserved| unserved.route == *route)
    }

    /// Sets the metrics to the findings, and to zero for routes that are no longer found.
    fn show(&mut self) {
        for unserved in &self.routes {
            if self.labels.len() < MAX_LABELS {
                self.labels.insert(unserved.route.clone());
            }
        }
        for label in &self.labels {
            let age = self.routes.iter().find(|unserved| unserved.route == *label);
            let age = age.map_or(0.0, |unserved| unserved.oldest_age.as_secs_f64());
            metrics::gauge!(metric::UNSERVED_AGE, "route" => label.as_str().to_owned()).set(age);
        }
        let routes = u32::try_from(self.routes.len()).unwrap_or(u32::MAX);
        metrics::gauge!(metric::UNSERVED_ROUTES).set(f64::from(routes));
    }
}

/// Returns the remedy for an operator.
pub(crate) fn advice(unserved: &Unserved) -> String {
    let whose = match unserved.route.as_str().strip_prefix("inbox/") {
        _ if !unserved.can_be_served => None,
        Some(consumer) => (!consumer.is_empty()).then_some("the inbox of this consumer"),
        None => Some("a relay for it"),
    };
    whose.map_or_else(
        || {
            "its name is invalid (empty after inbox/, over 64 bytes, or with control characters), so \
             no relay can serve it; correct the program that wrote it, and give these rows another \
             route in the database"
                .to_owned()
        },
        |whose| {
            format!(
                "start {whose}; or, if the name was changed or mistyped, use the right one from now \
                 on and serve this one until it is empty"
            )
        },
    )
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::sync::Arc;

    use metrics::{Counter, Gauge, GaugeFn, Histogram, Key, KeyName, Metadata, Recorder, SharedString, Unit};

    use super::*;

    const S: Duration = Duration::from_secs(1);

    /// Recorder that keeps the last value of each gauge, by name and labels.
    #[derive(Clone, Default)]
    struct Shown(Arc<Mutex<BTreeMap<String, f64>>>);

    struct OneGauge(Shown, String);

    impl GaugeFn for OneGauge {
        fn increment(&self, _: f64) {}

        fn decrement(&self, _: f64) {}

        fn set(&self, value: f64) {
            self.0.0.lock().unwrap().insert(self.1.clone(), value);
        }
    }

    impl Recorder for Shown {
        fn describe_counter(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

        fn describe_gauge(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

        fn describe_histogram(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

        fn register_counter(&self, _: &Key, _: &Metadata<'_>) -> Counter {
            Counter::noop()
        }

        fn register_gauge(&self, key: &Key, _: &Metadata<'_>) -> Gauge {
            let label = key.labels().next().map(|label| label.value().to_owned());
            let name = label.map_or(key.name().to_owned(), |label| format!("{} {label}", key.name()));
            Gauge::from_arc(Arc::new(OneGauge(self.clone(), name)))
        }

        fn register_histogram(&self, _: &Key, _: &Metadata<'_>) -> Histogram {
            Histogram::noop()
        }
    }

    fn unserved(names: &[&str]) -> Vec<Unserved> {
        names.iter().map(|name| Unserved::new(Route::new(name).unwrap(), S * 90)).collect()
    }

    #[test]
    fn the_advice_for_an_invalid_route_is_not_to_serve_it() {
        let found = [("audit", S), ("inbox/stock", S), ("inbox/", S), ("audit\n", S)];
        let advice: BTreeMap<String, String> = Unserved::gather(found, Duration::ZERO)
            .iter()
            .map(|found| (found.route.to_string(), advice(found)))
            .collect();
        assert!(advice["audit"].starts_with("start a relay for it"), "{advice:?}");
        assert!(advice["inbox/stock"].starts_with("start the inbox"), "{advice:?}");
        for route in ["inbox/", "audit\u{fffd}"] {
            assert!(advice[route].contains("another route in the database"), "{advice:?}");
            assert!(!advice[route].contains("start"), "{advice:?}");
        }
    }

    fn shown(then: impl FnOnce()) -> BTreeMap<String, f64> {
        let shown = Shown::default();
        metrics::with_local_recorder(&shown, then);
        shown.0.lock().unwrap().clone()
    }

    #[test]
    fn the_metrics_are_back_at_zero_when_nothing_is_found_any_more() {
        let routes = UnservedRoutes::new(Duration::ZERO, S * 5);
        let expected = |count, attic, bills| {
            let ages =
                [("outbox_unserved_age_seconds attic", attic), ("outbox_unserved_age_seconds bills", bills)];
            let all = ages.into_iter().chain([("outbox_unserved_routes", count)]);
            all.map(|(name, value)| (name.to_owned(), value)).collect::<BTreeMap<String, f64>>()
        };
        assert_eq!(shown(|| routes.found(S * 60, unserved(&["attic", "bills"]))), expected(2.0, 90.0, 90.0));
        assert_eq!(shown(|| routes.found(S * 120, unserved(&["bills"]))), expected(1.0, 0.0, 90.0));
        assert_eq!(shown(|| routes.found(S * 180, Vec::new())), expected(0.0, 0.0, 0.0));
    }

    #[test]
    fn so_many_routes_are_labels_and_all_of_them_are_counted() {
        let routes = UnservedRoutes::new(Duration::ZERO, S * 5);
        let names: Vec<String> = (0..50).map(|at| format!("route-{at}")).collect();
        let mut gauges = BTreeMap::new();
        for some in names.chunks(25) {
            let some: Vec<&str> = some.iter().map(String::as_str).collect();
            gauges.extend(shown(|| routes.found(S * 60, unserved(&some))));
        }
        assert_eq!(gauges.remove("outbox_unserved_routes"), Some(25.0));
        assert_eq!(gauges.len(), MAX_LABELS, "in its whole life: {gauges:?}");
        assert_eq!(routes.routes(S * 60).len(), 25, "and all of them are returned");
    }

    #[test]
    fn an_answer_is_not_shown_for_ever() {
        let routes = UnservedRoutes::new(Duration::ZERO, S * 5);
        routes.found(S * 60, unserved(&["attic"]));
        let failed = |at| shown(|| routes.failed(S * at, "away".to_owned()));
        assert_eq!(failed(120), BTreeMap::new(), "it still holds");
        assert_eq!((routes.routes(S * 245).len(), routes.unknown(S * 245)), (1, None));
        assert_eq!(routes.unknown(S * 246), Some((S * 186, "away".to_owned())));
        assert_eq!(routes.routes(S * 246), []);
        assert_eq!(failed(246).get("outbox_unserved_age_seconds attic"), Some(&0.0));

        routes.found(S * 300, unserved(&["attic"]));
        assert_eq!((routes.routes(S * 300).len(), routes.unknown(S * 300)), (1, None));
        assert_eq!(
            routes.unknown(S * 486),
            Some((S * 186, "no answer".to_owned())),
            "the query never returned"
        );
    }
}
