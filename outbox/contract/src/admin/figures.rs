//! Figures of the topics of a route.

use std::time::Duration;

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
