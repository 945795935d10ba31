//! Age of the oldest message of each topic of a route, as a metric.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use outbox_contract::admin::TopicFigures;
use outbox_contract::{Route, metric};

use super::sent::{MAX_TOPICS, label};

/// Labels of the metric of one route.
#[derive(Debug)]
pub(crate) struct TopicAges {
    route: String,
    /// Topics that have a label of their own.
    topics: BTreeSet<String>,
    /// Labels of the last measurement.
    waiting: BTreeSet<String>,
}

impl TopicAges {
    pub(crate) fn new(route: &Route) -> Self {
        Self { route: route.as_str().to_owned(), topics: BTreeSet::new(), waiting: BTreeSet::new() }
    }

    /// Exports a measurement: an age for each topic where messages wait, and 0 for one where none
    /// wait any more.
    pub(crate) fn export(&mut self, figures: &[TopicFigures]) {
        for (topic, age) in self.measured(figures) {
            let labels = [("route", self.route.clone()), ("topic", topic)];
            metrics::gauge!(metric::TOPIC_OLDEST_AGE, &labels).set(age.as_secs_f64());
        }
    }

    /// Returns the ages by label. Pure.
    fn measured(&mut self, figures: &[TopicFigures]) -> BTreeMap<String, Duration> {
        let mut ages: Vec<_> =
            figures.iter().filter_map(|it| Some((it.oldest_age?, it.topic.as_str()))).collect();
        // If not all of them get a label, those that have waited longest do.
        ages.sort_by(|one, other| other.cmp(one));
        let mut measured = BTreeMap::new();
        for (age, topic) in ages {
            let oldest: &mut Duration =
                measured.entry(label(&mut self.topics, topic, MAX_TOPICS)).or_default();
            *oldest = age.max(*oldest);
        }
        let waiting = measured.keys().cloned().collect();
        for gone in std::mem::replace(&mut self.waiting, waiting) {
            measured.entry(gone).or_default();
        }
        measured
    }
}

#[cfg(test)]
mod tests {
    use outbox_contract::Topic;

    use super::*;

    fn figures(topic: &str, age: Option<u64>) -> TopicFigures {
        let mut figures = TopicFigures::new(Topic::new(topic).unwrap());
        figures.oldest_age = age.map(Duration::from_secs);
        figures
    }

    #[test]
    fn the_topics_that_have_waited_longest_get_the_labels() {
        let mut ages = TopicAges::new(&Route::default());
        let many: Vec<_> = (0..150).map(|n| figures(&format!("topic-{n}"), Some(n))).collect();
        let measured = ages.measured(&many);
        assert_eq!(measured.len(), MAX_TOPICS + 1);
        assert_eq!(measured["topic-149"], Duration::from_secs(149));
        assert_eq!(measured["_OTHER"], Duration::from_secs(49), "the oldest of the others");
        assert!(!measured.contains_key("topic-49"));
        let later = ages.measured(&[figures("topic-149", Some(200)), figures("topic-49", Some(60))]);
        assert_eq!((later["topic-149"].as_secs(), later["_OTHER"].as_secs()), (200, 60));
        assert_eq!(later.len(), MAX_TOPICS + 1, "the others are at 0");
        assert_eq!(later["topic-148"], Duration::ZERO);
    }

    #[test]
    fn a_topic_without_messages_that_wait_is_at_zero_once() {
        let mut ages = TopicAges::new(&Route::default());
        assert_eq!(ages.measured(&[figures("orders", Some(7)), figures("dead", None)]).len(), 1);
        assert_eq!(ages.measured(&[figures("orders", None)]), [("orders".to_owned(), Duration::ZERO)].into());
        assert_eq!(ages.measured(&[]), BTreeMap::new());
    }
}
