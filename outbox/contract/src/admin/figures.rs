//! Figures of the topics of a route.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::clock::Timestamp;
use crate::name::Topic;

/// Backlog of one topic of a route.
///
/// Each figure is counted up to a limit of the store for the whole route, at least 10,000.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct TopicFigures {
    /// The topic.
    pub topic: Topic,
    /// Number of messages to publish, without those parked.
    pub waiting: u64,
    /// Number of parked messages of failing keys.
    pub parked: u64,
    /// Age of the oldest message that waits or is parked, of those counted. `None`: there is none.
    pub oldest_age: Option<Duration>,
    /// Number of failing keys that the relay will retry.
    pub retrying_keys: u64,
    /// Number of keys that wait for an operator.
    pub held_keys: u64,
    /// Number of dead letters.
    pub dead: u64,
    /// True if a limit was reached: the figures are lower bounds, and topics may be missing.
    pub is_at_least: bool,
}

impl TopicFigures {
    /// Maximum number of topics in one answer.
    pub const MAX: usize = 1_000;

    /// Creates the figures of a topic where nothing waits.
    #[must_use]
    pub const fn new(topic: Topic) -> Self {
        Self {
            topic,
            waiting: 0,
            parked: 0,
            oldest_age: None,
            retrying_keys: 0,
            held_keys: 0,
            dead: 0,
            is_at_least: false,
        }
    }
}

/// Kind of a figure of a topic.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Figure {
    /// Messages to publish.
    Waiting,
    /// Parked messages.
    Parked,
    /// Keys that the relay retries.
    Retrying,
    /// Keys that wait for an operator.
    Held,
    /// Dead letters.
    Dead,
}

impl Figure {
    /// Returns the kind of this name: `waiting`, `parked`, `retrying`, `held` or `dead`.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Some(match name {
            "waiting" => Self::Waiting,
            "parked" => Self::Parked,
            "retrying" => Self::Retrying,
            "held" => Self::Held,
            "dead" => Self::Dead,
            _ => return None,
        })
    }
}

/// Sum of what a store has counted by topics. For authors of stores.
#[derive(Debug)]
pub struct TopicTally {
    now: Timestamp,
    limit: u64,
    counted: BTreeMap<Figure, u64>,
    topics: BTreeMap<Topic, TopicFigures>,
}

impl TopicTally {
    /// Begins a tally at this time of the database's clock. No more than `limit` rows of each kind
    /// are counted.
    #[must_use]
    pub const fn new(now: Timestamp, limit: u64) -> Self {
        Self { now, limit, counted: BTreeMap::new(), topics: BTreeMap::new() }
    }

    /// Adds a count of a topic, and when the oldest of these messages was appended. Ignores a name
    /// that is no topic: its messages become dead letters when a relay reads them.
    pub fn add(&mut self, figure: Figure, topic: &str, count: u64, oldest: Option<Timestamp>) {
        *self.counted.entry(figure).or_default() += count;
        let Ok(topic) = Topic::new(topic) else { return };
        let figures = self.topics.entry(topic.clone()).or_insert_with(|| TopicFigures::new(topic));
        match figure {
            Figure::Waiting => figures.waiting += count,
            Figure::Parked => figures.parked += count,
            Figure::Retrying => figures.retrying_keys += count,
            Figure::Held => figures.held_keys += count,
            Figure::Dead => figures.dead += count,
        }
        if let (Figure::Waiting | Figure::Parked, Some(oldest)) = (figure, oldest) {
            figures.oldest_age = figures.oldest_age.max(Some(self.now.since(oldest)));
        }
    }

    /// Notes rows that were counted without a topic: those of other routes, among the first of all.
    pub fn passed(&mut self, figure: Figure, count: u64) {
        *self.counted.entry(figure).or_default() += count;
    }

    /// Returns the figures, in the order of the topics.
    #[must_use]
    pub fn finish(self) -> Vec<TopicFigures> {
        let is_at_least =
            self.counted.values().any(|count| *count >= self.limit) || self.topics.len() > TopicFigures::MAX;
        let figures = self.topics.into_values().take(TopicFigures::MAX);
        figures.map(|figures| TopicFigures { is_at_least, ..figures }).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_of_a_topic_are_added_up_to_a_limit() {
        let now = Timestamp::from_micros(10_000_000);
        let mut tally = TopicTally::new(now, 10);
        tally.add(Figure::Waiting, "b", 3, Some(Timestamp::from_micros(4_000_000)));
        tally.add(Figure::Parked, "b", 2, Some(Timestamp::from_micros(7_000_000)));
        tally.add(Figure::Held, "b", 1, None);
        tally.add(Figure::Dead, "a", 4, None);
        tally.add(Figure::Dead, "not\na topic", 4, None);
        let figures = tally.finish();
        let topics: Vec<_> = figures.iter().map(|figures| figures.topic.as_str()).collect();
        assert_eq!(topics, ["a", "b"]);
        let of_b = &figures[1];
        assert_eq!((of_b.waiting, of_b.parked, of_b.held_keys), (3, 2, 1));
        assert_eq!(of_b.oldest_age, Some(Duration::from_secs(6)));
        assert_eq!((figures[0].dead, figures[0].oldest_age, figures[0].is_at_least), (4, None, false));

        let mut tally = TopicTally::new(now, 10);
        tally.add(Figure::Waiting, "b", 3, None);
        tally.passed(Figure::Waiting, 7);
        assert!(tally.finish()[0].is_at_least, "ten rows were looked at");
    }
}
