//! Configuration: settings, their units, and the reasons for the defaults.

use std::time::Duration;

use outbox_contract::backend::rules::options::StoreOptions;
use outbox_contract::duration;
use serde::{Deserialize, Serialize};

/// Options of a [`MySqlStore`](crate::MySqlStore). A plain struct: set the fields that should
/// differ from the default, or read it from a file, with durations as text, such as `30s`.
///
/// ```
/// use std::time::Duration;
/// # mod outbox { pub mod mysql { pub use outbox_store_mysql::*; } }
/// use outbox::mysql::MySqlOptions;
///
/// let mut options = MySqlOptions::default();
/// options.history = Some(Duration::from_secs(3 * 24 * 3600));
/// assert!(options.problems().is_empty());
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct MySqlOptions {
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
    /// Maximum wait of a statement for another transaction's lock, in transactions that
    /// [`begin`](outbox_contract::Transactional::begin) begins and in the store's own; the server
    /// counts whole seconds. Default 3 s. Shorter than the leases of relays, and than the
    /// `store_timeout` of relays and inboxes: a lock wait then ends as a conflict, and not as an
    /// unresponsive database.
    #[serde(with = "duration")]
    pub lock_timeout: Duration,
    /// Maximum idle time of a transaction that `begin` has begun, before the server closes its
    /// connection; the server counts whole seconds. Default 12 s. Shorter than the leases of
    /// relays: the locks of a paused program must not outlive its lease. A handler that waits for
    /// other services has to be quicker. The store's own transactions wait for nothing but the
    /// database: they may be idle for this long, or for `lock_timeout` if that is shorter, so that
    /// another relay that waits for their locks gets them.
    #[serde(with = "duration")]
    pub transaction_idle_timeout: Duration,
    /// Time limit of one of the store's own statements: on MySQL one that only reads, on MariaDB
    /// any. Default 30 s.
    #[serde(with = "duration")]
    pub statement_timeout: Duration,
    /// Time limit for opening a connection. Default 10 s.
    #[serde(with = "duration")]
    pub connect_timeout: Duration,
    /// Interval at which a connection of its own asks for messages that other processes have
    /// committed, while the relays of this process look less often. While none come it grows with
    /// the time since the last one, to ten times as much after ten seconds. Default 10 ms; None:
    /// they are found by polling alone.
    #[serde(with = "duration::or_none")]
    pub watch_interval: Option<Duration>,
    /// Connections of [`pool`](crate::MySqlStore::pool), the user's pool. Default 10. Not used if
    /// the user provides the pool.
    pub connections: u32,
}

impl Default for MySqlOptions {
    fn default() -> Self {
        let StoreOptions { history, handled_ids_kept, audit_kept, handled_ids_max_age, counting_limit } =
            StoreOptions::default();
        Self {
            history,
            handled_ids_kept,
            audit_kept,
            handled_ids_max_age,
            counting_limit,
            lock_timeout: Duration::from_secs(3),
            transaction_idle_timeout: Duration::from_secs(12),
            statement_timeout: Duration::from_secs(30),
            connect_timeout: Duration::from_secs(10),
            watch_interval: Some(Duration::from_millis(10)),
            connections: 10,
        }
    }
}

impl MySqlOptions {
    /// Returns every problem with these options; empty if there is none.
    #[must_use]
    pub fn problems(&self) -> Vec<String> {
        let Self { history, handled_ids_kept, audit_kept, handled_ids_max_age, counting_limit, .. } = *self;
        let shared =
            StoreOptions { history, handled_ids_kept, audit_kept, handled_ids_max_age, counting_limit };
        let mut problems = shared.problems("mysql");
        for (name, timeout) in [
            ("lock_timeout", self.lock_timeout),
            ("transaction_idle_timeout", self.transaction_idle_timeout),
            ("statement_timeout", self.statement_timeout),
            ("connect_timeout", self.connect_timeout),
        ] {
            // The server takes them in whole seconds; 0 would mean at once, or never.
            if timeout < Duration::from_secs(1) || timeout > Duration::from_secs(24 * 3600) {
                problems.push(format!("mysql.{name} is {timeout:?}; make it at least 1s and at most a day"));
            }
        }
        if let Some(interval) = self.watch_interval
            && !(Duration::from_millis(1)..=Duration::from_secs(60)).contains(&interval)
        {
            problems.push(format!(
                "mysql.watch_interval is {interval:?}; make it at least 1ms and at most 60s, or leave it out to find messages of other \
                 processes by polling"
            ));
        }
        if self.connections == 0 {
            problems.push("mysql.connections is 0; make it at least 1".to_owned());
        }
        problems
    }
}

/// A timeout as the server takes it: whole seconds, rounded up.
pub(crate) fn seconds(timeout: Duration) -> u64 {
    timeout.as_secs() + u64::from(timeout.subsec_nanos() > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_has_no_problems() {
        assert_eq!(MySqlOptions::default().problems(), Vec::<String>::new());
    }

    #[test]
    fn every_problem_is_reported_at_once() {
        let options = MySqlOptions {
            history: Some(Duration::ZERO),
            handled_ids_kept: Duration::from_secs(1),
            audit_kept: Duration::ZERO,
            handled_ids_max_age: Duration::ZERO,
            counting_limit: 1,
            lock_timeout: Duration::ZERO,
            transaction_idle_timeout: Duration::MAX,
            statement_timeout: Duration::ZERO,
            connect_timeout: Duration::ZERO,
            watch_interval: Some(Duration::ZERO),
            connections: 0,
        };
        assert_eq!(options.problems().len(), 11);
    }

    #[test]
    fn a_timeout_is_never_shorter_than_asked_for() {
        assert_eq!(seconds(Duration::from_secs(5)), 5);
        assert_eq!(seconds(Duration::from_millis(5_001)), 6);
    }
}
