//! Attempts to publish, counted by topic and class of failure.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use outbox_contract::backend::{Outcome, Stored};
use outbox_contract::{Route, Topic, metric};

/// Maximum number of topics of a route that become labels. Their names come from writers.
pub(super) const MAX_TOPICS: usize = 100;
/// Maximum number of classes of failure of a route that become labels.
const MAX_CLASSES: usize = 20;
/// Label of what exceeds these, as OpenTelemetry has it for `error.type`.
const OTHER: &str = "_OTHER";
/// Class of an attempt without an answer.
const NO_ANSWER: &str = "unknown";

/// Topics of the messages of a batch: each with the number of the message after its last one.
#[derive(Debug, Default)]
pub(crate) struct Topics(Vec<(Topic, usize)>);

impl Topics {
    pub(crate) fn of(messages: &[Arc<Stored>]) -> Self {
        let mut topics: Vec<(Topic, usize)> = Vec::new();
        for (number, stored) in messages.iter().enumerate() {
            match topics.last_mut() {
                Some((topic, end)) if *topic == stored.message.topic => *end = number + 1,
                _ => topics.push((stored.message.topic.clone(), number + 1)),
            }
        }
        Self(topics)
    }
}

/// Labels of the metric of one route.
#[derive(Debug)]
pub(crate) struct Sent {
    route: String,
    topics: BTreeSet<String>,
    classes: BTreeSet<String>,
}

impl Sent {
    pub(crate) fn new(route: &Route) -> Self {
        Self { route: route.as_str().to_owned(), topics: BTreeSet::new(), classes: BTreeSet::new() }
    }

    /// Counts the messages of a batch. The broker has never seen the `refused` ones.
    pub(crate) fn count(&mut self, topics: &Topics, outcomes: &[Option<Outcome>], refused: &BTreeSet<usize>) {
        // Those are handled, and not sent.
        if self.route.starts_with("inbox/") {
            return;
        }
        let mut counts: BTreeMap<(&Topic, &str), u64> = BTreeMap::new();
        let mut begin = 0;
        for (topic, end) in &topics.0 {
            for number in begin..*end {
                let outcome = outcomes.get(number).and_then(Option::as_ref);
                if let Some(class) = class(outcome).filter(|_| !refused.contains(&number)) {
                    *counts.entry((topic, class)).or_default() += 1;
                }
            }
            begin = *end;
        }
        for ((topic, class), count) in counts {
            let labels = [
                ("route", self.route.clone()),
                ("messaging_destination_name", label(&mut self.topics, topic.as_str(), MAX_TOPICS)),
                ("error_type", label(&mut self.classes, class, MAX_CLASSES)),
            ];
            metrics::counter!(metric::SENT, &labels).increment(count);
        }
    }
}

/// Returns the class of an attempt; empty if it was confirmed, and none if it was not made.
fn class(outcome: Option<&Outcome>) -> Option<&str> {
    match outcome {
        Some(Outcome::Delivered) => Some(""),
        Some(Outcome::Blocked) => None,
        Some(
            Outcome::Rejected(failure)
            | Outcome::Failed(failure)
            | Outcome::Postponed(_, failure)
            | Outcome::Unavailable(_, failure)
            | Outcome::Unknown(failure),
        ) => Some(&failure.class),
        None => Some(NO_ANSWER),
    }
}

/// Returns a label, or the one for all that are too many.
pub(super) fn label(known: &mut BTreeSet<String>, name: &str, max: usize) -> String {
    if name.is_empty() || known.contains(name) {
        return name.to_owned();
    }
    if known.len() >= max {
        return OTHER.to_owned();
    }
    known.insert(name.to_owned());
    name.to_owned()
}

#[cfg(test)]
mod tests {
    use outbox_contract::Failure;

    use super::*;

    #[test]
    fn what_was_not_sent_is_not_counted() {
        assert_eq!(class(Some(&Outcome::Delivered)), Some(""));
        assert_eq!(class(Some(&Outcome::Blocked)), None);
        assert_eq!(class(Some(&Outcome::Failed(Failure::new("timeout", "late")))), Some("timeout"));
        assert_eq!(class(None), Some("unknown"));
    }

    #[test]
    fn labels_are_bounded_and_known_ones_stay() {
        let mut known = BTreeSet::new();
        assert_eq!(
            [1, 2, 1, 3, 1, 2].map(|topic| label(&mut known, &topic.to_string(), 2)),
            ["1", "2", "1", OTHER, "1", "2"]
        );
        assert_eq!(label(&mut known, "", 2), "", "a success has no class, however many there are");
    }
}
