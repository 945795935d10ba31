//! Configuration: settings, their units, and the reasons for the defaults.

use std::time::Duration;

use outbox_contract::backend::rules::options::StoreOptions;
use outbox_contract::duration;
use serde::{Deserialize, Serialize};

/// Options of a [`SqliteStore`](crate::SqliteStore). A plain struct: set the fields that should
/// differ from the default, or read it from a file, with durations as text, such as `30s`.
///
/// ```
/// use std::time::Duration;
/// # mod outbox { pub mod sqlite { pub use outbox_store_sqlite::*; } }
/// use outbox::sqlite::SqliteOptions;
///
/// let mut options = SqliteOptions::default();
/// options.history = Some(Duration::from_secs(3 * 24 * 3600));
/// assert!(options.problems().is_empty());
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct SqliteOptions {
    /// Retention of delivered messages for replay, at least 1 s. Default: none are kept; keeping
    /// them costs a copy of each.
    #[serde(with = "duration::option")]
    pub history: Option<Duration>,
    /// Retention of the ids that a consumer has handled. Default 7 days. It has to exceed the
    /// longest time between a message's first publishing and its settlement, an outage of the
    /// database included. Time in which the consumer handles nothing does not count: an absence,
    /// however long, takes an eighth of the retention at most. Of processes with different values,
    /// the longest counts.
    #[serde(with = "duration")]
    pub handled_ids_kept: Duration,
    /// Retention of the record of admin operations. Default 90 days; at least 60 s.
    #[serde(with = "duration")]
    pub audit_kept: Duration,
    /// Maximum age of the ids that a consumer has handled, also of one that handles nothing any
    /// more. Default 90 days; at least `handled_ids_kept`. The longest of all processes counts.
    #[serde(with = "duration")]
    pub handled_ids_max_age: Duration,
    /// Maximum number of rows counted for the figures of the backlog. Default 100,000; at least
    /// 10,000.
    pub counting_limit: u32,
    /// Maximum wait of a statement for another writer. Default 4 s. Longer than the longest
    /// transaction of the program, shorter than the leases of its relays, and than the
    /// `store_timeout` of relays and inboxes: a wait for a slow writer then ends as a conflict, and
    /// not as an unresponsive database.
    #[serde(with = "duration")]
    pub busy_timeout: Duration,
    /// Interval at which a connection of its own asks whether the file has changed, while the
    /// relays of this process look less often: so they hear of messages that other processes have
    /// committed. While none come it grows with the time since the last one, to ten times as much
    /// after five seconds. Default 5 ms; None: they are found by polling alone.
    #[serde(with = "duration::or_none")]
    pub watch_interval: Option<Duration>,
    /// Connections of [`pool`](crate::SqliteStore::pool), the user's pool. Default 8: one of them
    /// can write at a time. Not used if the user provides the pool.
    pub connections: u32,
    /// Durability of a commit in the user's pool. Default [`Durability::PowerLoss`]. Not used if
    /// the user provides the pool.
    pub durability: Durability,
}

/// Failures that a commit survives, once it has returned.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Durability {
    /// A commit survives a loss of power too: the log is synced to the disk at each commit
    /// (`synchronous = FULL`).
    #[default]
    PowerLoss,
    /// A commit survives every end of the process, but the last commits may be lost with the power
    /// (`synchronous = NORMAL`): two to three times as many small transactions a second.
    ProcessEnd,
}

impl Default for SqliteOptions {
    fn default() -> Self {
        let StoreOptions { history, handled_ids_kept, audit_kept, handled_ids_max_age, counting_limit } =
            StoreOptions::default();
        Self {
            history,
            handled_ids_kept,
            audit_kept,
            handled_ids_max_age,
            counting_limit,
            busy_timeout: Duration::from_secs(4),
            watch_interval: Some(Duration::from_millis(5)),
            connections: 8,
            durability: Durability::default(),
        }
    }
}

impl SqliteOptions {
    /// Returns every problem with these options; empty if there is none.
    #[must_use]
    pub fn problems(&self) -> Vec<String> {
        let Self { history, handled_ids_kept, audit_kept, handled_ids_max_age, counting_limit, .. } = *self;
        let shared =
            StoreOptions { history, handled_ids_kept, audit_kept, handled_ids_max_age, counting_limit };
        let mut problems = shared.problems("sqlite");
        // SQLite takes it in milliseconds, as a number of 32 bits.
        if !(Duration::from_millis(100)..=Duration::from_secs(24 * 3_600)).contains(&self.busy_timeout) {
            problems.push(format!(
                "sqlite.busy_timeout is {:?}; make it at least 100ms and at most a day: with less, statements would fail during every other \
                 write",
                self.busy_timeout
            ));
        }
        if let Some(interval) = self.watch_interval
            && !(Duration::from_millis(1)..=Duration::from_secs(60)).contains(&interval)
        {
            problems.push(format!(
                "sqlite.watch_interval is {interval:?}; make it at least 1ms and at most 60s, or leave it out to find messages of other \
                 processes by polling"
            ));
        }
        if self.connections == 0 {
            problems.push("sqlite.connections is 0; make it at least 1".to_owned());
        }
        problems
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_has_no_problems() {
        assert_eq!(SqliteOptions::default().problems(), Vec::<String>::new());
    }

    #[test]
    fn every_problem_is_reported_at_once() {
        let options = SqliteOptions {
            history: Some(Duration::ZERO),
            handled_ids_kept: Duration::from_secs(1),
            audit_kept: Duration::ZERO,
            handled_ids_max_age: Duration::ZERO,
            counting_limit: 1,
            busy_timeout: Duration::ZERO,
            watch_interval: Some(Duration::ZERO),
            connections: 0,
            durability: Durability::ProcessEnd,
        };
        assert_eq!(options.problems().len(), 8);
    }

    #[test]
    fn a_timeout_that_sqlite_does_not_take_is_refused() {
        let options =
            SqliteOptions { busy_timeout: Duration::from_secs(30 * 86_400), ..SqliteOptions::default() };
        assert_eq!(options.problems().len(), 1);
    }
}
