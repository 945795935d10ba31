//! Configuration: what can be set, in which unit, and why the default is what it is.

use std::time::Duration;

/// How a [`SqliteStore`](crate::SqliteStore) works. A plain struct: set what should differ from the default.
///
/// ```
/// use std::time::Duration;
/// use outbox_store_sqlite::SqliteOptions;
///
/// let mut options = SqliteOptions::default();
/// options.history = Some(Duration::from_secs(3 * 24 * 3600));
/// assert!(options.problems().is_empty());
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SqliteOptions {
    /// How long delivered messages are kept for replay. Default: none are kept; keeping them costs a copy of each.
    pub history: Option<Duration>,
    /// How long the ids are kept that a consumer has handled. Default 7 days. It has to exceed the longest time between a message's first
    /// publishing and its settlement, an outage of the database included.
    pub admissions_kept: Duration,
    /// How many rows are looked at for the figures of the backlog. Default 100,000; at least 10,000.
    pub counting_limit: u32,
    /// How long a statement waits for another writer. Default 4 s. Longer than the longest transaction of the program, shorter than the
    /// leases of its relays, and than the `store_timeout` of relays and inboxes: a writer that is slow is a conflict then, and not a database that does
    /// not answer.
    pub busy_timeout: Duration,
    /// Connections of [`pool`](crate::SqliteStore::pool), the user's pool. Default 8: one of them can write at a time. Not used where the
    /// user brings the pool.
    pub connections: u32,
    /// What a commit in the user's pool survives. Default [`Durability::PowerLoss`]. Not used where the user brings the pool.
    pub durability: Durability,
}

/// What a commit survives, once it has returned.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Durability {
    /// A loss of power too: the log is synced to the disk at each commit (`synchronous = FULL`).
    #[default]
    PowerLoss,
    /// The end of the process, however it comes, but the last commits may be lost with the power (`synchronous = NORMAL`): two to three times
    /// as many small transactions a second.
    ProcessEnd,
}

impl Default for SqliteOptions {
    fn default() -> Self {
        Self {
            history: None,
            admissions_kept: Duration::from_secs(7 * 24 * 3600),
            counting_limit: 100_000,
            busy_timeout: Duration::from_secs(4),
            connections: 8,
            durability: Durability::default(),
        }
    }
}

impl SqliteOptions {
    /// Everything that is wrong with these options; empty when nothing is.
    #[must_use]
    pub fn problems(&self) -> Vec<String> {
        let mut problems = Vec::new();
        if self.history.is_some_and(|kept| kept.is_zero()) {
            problems.push("sqlite.history is 0; leave it out to keep no history".to_owned());
        }
        if self.admissions_kept < Duration::from_secs(60) {
            problems.push(format!(
                "sqlite.admissions_kept is {:?}; a repeat that comes later would be handled twice: at least 60s",
                self.admissions_kept
            ));
        }
        if self.counting_limit < 10_000 {
            problems
                .push(format!("sqlite.counting_limit is {}; make it at least 10000", self.counting_limit));
        }
        if self.busy_timeout < Duration::from_millis(100) {
            problems.push(format!(
                "sqlite.busy_timeout is {:?}; statements would fail whenever anybody writes: at least 100ms",
                self.busy_timeout
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
            admissions_kept: Duration::ZERO,
            counting_limit: 1,
            busy_timeout: Duration::ZERO,
            connections: 0,
            durability: Durability::ProcessEnd,
        };
        assert_eq!(options.problems().len(), 5);
    }
}
