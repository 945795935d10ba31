//! Configuration: what can be set, in which unit, and why the default is what it is.

use std::time::Duration;

use outbox_contract::backend::rules::options::StoreOptions;
use outbox_contract::duration;
use serde::{Deserialize, Serialize};

/// Options of a [`MongoDbStore`](crate::MongoDbStore). A plain struct: set the fields that should
/// differ from the default, or read it from a file, with durations as text, such as `30s`.
///
/// ```
/// use std::time::Duration;
/// # mod outbox { pub mod mongodb { pub use outbox_store_mongodb::*; } }
/// use outbox::mongodb::MongoDbOptions;
///
/// let mut options = MongoDbOptions::default();
/// options.history = Some(Duration::from_secs(3 * 24 * 3600));
/// assert!(options.problems().is_empty());
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct MongoDbOptions {
    /// Retention of delivered messages for replay, at least 1 s. Default: none are kept; keeping
    /// them costs a copy of each, and a transaction for each settlement.
    #[serde(with = "duration::option")]
    pub history: Option<Duration>,
    /// Retention of the ids that a consumer has handled. Default 7 days. It has to exceed the
    /// longest time between a message's first publishing and its settlement, an outage of the
    /// database included. Time in which the consumer handles nothing does not count: an absence,
    /// however long, takes an eighth of the retention at most. Of processes with different values,
    /// the longest counts.
    #[serde(with = "duration")]
    pub handled_ids_kept: Duration,
    /// Retention of the record of admin operations, from each operation on. Default 90 days; at
    /// least 60 s.
    #[serde(with = "duration")]
    pub audit_kept: Duration,
    /// Maximum age of the ids that a consumer has handled, also of one that handles nothing any
    /// more. Default 90 days; at least `handled_ids_kept`. The longest of all processes counts.
    #[serde(with = "duration")]
    pub handled_ids_max_age: Duration,
    /// Maximum number of rows counted for the figures of the backlog. Default 100,000; at least
    /// 10,000.
    pub counting_limit: u32,
    /// Maximum time for which one of the store's own transactions is retried after conflicts.
    /// Default 3 s; shorter than the leases of its relays, and than the `store_timeout` of relays
    /// and inboxes: a lasting conflict is then reported as such, and not as an unresponsive
    /// database. Appends and deduplication are never retried: their transaction is the user's.
    #[serde(with = "duration")]
    pub conflict_timeout: Duration,
    /// Maximum wait of a call for a primary. Default 10 s, where the driver waits for 30; shorter
    /// than the leases of its relays. Not used if the user provides the client.
    #[serde(with = "duration")]
    pub server_selection_timeout: Duration,
    /// True if relays are woken by a change stream, if the server has them, so that they find other
    /// programs' messages at once. Default: yes. Without it, they poll.
    pub change_streams: bool,
}

impl Default for MongoDbOptions {
    fn default() -> Self {
        let StoreOptions { history, handled_ids_kept, audit_kept, handled_ids_max_age, counting_limit } =
            StoreOptions::default();
        Self {
            history,
            handled_ids_kept,
            audit_kept,
            handled_ids_max_age,
            counting_limit,
            conflict_timeout: Duration::from_secs(3),
            server_selection_timeout: Duration::from_secs(10),
            change_streams: true,
        }
    }
}

/// Maximum of a timeout: a longer one is a typing error, and may be beyond any clock.
const MAX_TIMEOUT: Duration = Duration::from_secs(24 * 3_600);

impl MongoDbOptions {
    /// Returns every problem with these options; empty if there is none.
    #[must_use]
    pub fn problems(&self) -> Vec<String> {
        let Self { history, handled_ids_kept, audit_kept, handled_ids_max_age, counting_limit, .. } = *self;
        let shared =
            StoreOptions { history, handled_ids_kept, audit_kept, handled_ids_max_age, counting_limit };
        let mut problems = shared.problems("mongodb");
        if !(Duration::from_millis(100)..=MAX_TIMEOUT).contains(&self.conflict_timeout) {
            problems.push(format!(
                "mongodb.conflict_timeout is {:?}; make it at least 100ms and at most a day: with less, steps would fail whenever two relays meet",
                self.conflict_timeout
            ));
        }
        if !(Duration::from_millis(100)..=MAX_TIMEOUT).contains(&self.server_selection_timeout) {
            problems.push(format!(
                "mongodb.server_selection_timeout is {:?}; make it at least 100ms and at most a day",
                self.server_selection_timeout
            ));
        }
        problems
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_has_no_problems() {
        assert_eq!(MongoDbOptions::default().problems(), Vec::<String>::new());
    }

    #[test]
    fn every_problem_is_reported_at_once() {
        let options = MongoDbOptions {
            history: Some(Duration::ZERO),
            handled_ids_kept: Duration::from_secs(1),
            audit_kept: Duration::ZERO,
            handled_ids_max_age: Duration::ZERO,
            counting_limit: 1,
            conflict_timeout: Duration::ZERO,
            server_selection_timeout: Duration::ZERO,
            change_streams: false,
        };
        assert_eq!(options.problems().len(), 7);
    }

    #[test]
    fn a_timeout_beyond_any_clock_is_refused() {
        let (conflict_timeout, server_selection_timeout) = (Duration::MAX, Duration::MAX);
        let options = MongoDbOptions { conflict_timeout, server_selection_timeout, ..Default::default() };
        assert_eq!(options.problems().len(), 2);
    }
}
