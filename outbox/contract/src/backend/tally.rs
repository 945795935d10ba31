//! Tallies: figures that a store counts by topic, and routes that it finds in its tables.

use std::collections::BTreeMap;

use crate::admin::{RouteStatus, TopicFigures};
use crate::clock::Timestamp;
use crate::name::{Route, Topic};

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

/// Sum of what a store has counted by topics.
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

/// Routes that a store has found in its tables, with their relays and pauses.
#[derive(Debug, Default)]
pub struct RouteTally(BTreeMap<Route, RouteStatus>);

impl RouteTally {
    /// Adds a route. Ignores a name that can be none; [`Store::unserved`](crate::Store::unserved)
    /// reports its messages.
    pub fn route(&mut self, name: &str) {
        self.status(name);
    }

    /// Adds a live relay of a route.
    pub fn relay(&mut self, route: &str) {
        if let Some(status) = self.status(route) {
            status.relays += 1;
        }
    }

    /// Adds a pause of a route; an empty topic means the whole route.
    pub fn pause(&mut self, route: &str, topic: &str) {
        let Some(status) = self.status(route) else { return };
        status.paused.route |= topic.is_empty();
        status.paused.topics.extend(Topic::new(topic));
        status.paused.topics.sort();
    }

    /// Returns the routes in the order of their names.
    #[must_use]
    pub fn finish(self) -> Vec<RouteStatus> {
        self.0.into_values().take(RouteStatus::MAX).collect()
    }

    fn status(&mut self, name: &str) -> Option<&mut RouteStatus> {
        let route = Route::new(name).ok()?;
        Some(self.0.entry(route.clone()).or_insert_with(|| RouteStatus::new(route)))
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
        assert_eq!(of_b.oldest_age, Some(std::time::Duration::from_secs(6)));
        assert_eq!((figures[0].dead, figures[0].oldest_age, figures[0].is_at_least), (4, None, false));

        let mut tally = TopicTally::new(now, 10);
        tally.add(Figure::Waiting, "b", 3, None);
        tally.passed(Figure::Waiting, 7);
        assert!(tally.finish()[0].is_at_least, "ten rows were looked at");
    }

    #[test]
    fn routes_are_gathered_with_their_relays_and_pauses() {
        let mut tally = RouteTally::default();
        tally.route("b");
        tally.relay("a");
        tally.relay("a");
        tally.pause("a", "orders");
        tally.pause("a", "");
        tally.route("no\nroute");
        let told: Vec<_> = tally.finish().into_iter().map(|s| (s.route, s.relays, s.paused)).collect();
        let paused = crate::backend::Paused { route: true, topics: vec![Topic::new("orders").unwrap()] };
        let route = |name| Route::new(name).unwrap();
        assert_eq!(told, [(route("a"), 2, paused), (route("b"), 0, Default::default())]);
    }
}
