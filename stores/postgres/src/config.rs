//! Configuration: settings, their units, and the reasons for the defaults.

use std::time::Duration;

use outbox_contract::backend::rules::options::StoreOptions;
use outbox_contract::duration;
use serde::{Deserialize, Serialize};

/// Options of a [`PostgresStore`](crate::PostgresStore). A plain struct: set the fields that should
/// differ from the default, or read it from a file, with durations as text, such as `30s`.
///
/// ```
/// use std::time::Duration;
/// # mod outbox { pub mod postgres { pub use outbox_store_postgres::*; } }
/// use outbox::postgres::PostgresOptions;
///
/// let mut options = PostgresOptions::default();
/// options.schema = Some("shop".to_owned());
/// options.history = Some(Duration::from_secs(3 * 24 * 3600));
/// assert!(options.problems().is_empty());
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct PostgresOptions {
    /// Schema of the outbox: lower-case letters, digits and `_`, at most 48 of them. Default: none;
    /// the tables are found by the `search_path`. Each schema can have an outbox of its own.
    pub schema: Option<String>,
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
    /// [`begin`](outbox_contract::Transactional::begin) begins and in the store's own. Default 3 s.
    /// Shorter than the leases of relays, and than the `store_timeout` of relays and inboxes: a
    /// lock wait then ends as a conflict, and not as an unresponsive database.
    #[serde(with = "duration")]
    pub lock_timeout: Duration,
    /// Maximum idle time of a transaction that `begin` has begun, before the server ends it.
    /// Default 12 s. Shorter than the leases of relays: the locks of a paused program must not
    /// outlive its lease. A handler that waits for other services has to be quicker.
    #[serde(with = "duration")]
    pub transaction_idle_timeout: Duration,
    /// Timeout of opening a connection. Default 10 s.
    #[serde(with = "duration")]
    pub connect_timeout: Duration,
    /// Idle time after which one of the store's own connections is checked before it is used again;
    /// the connection that listens for wake-ups is always checked. Default 30 s. Networks silently
    /// forget idle connections: set it shorter than the timeout of yours.
    #[serde(with = "duration")]
    pub idle_check: Duration,
    /// Maximum age of the store's own connections, except that of heartbeats. Default 30 minutes.
    /// An older one is reopened before it is used, which resolves its host name again: the name may
    /// lead elsewhere by now (a failover, another host behind a balancer).
    #[serde(with = "duration")]
    pub max_connection_age: Duration,
    /// Connections of [`pool`](crate::PostgresStore::pool), the user's pool. Default 10. Not used
    /// if the user provides the pool.
    pub connections: u32,
    /// True if a transaction pooler (PgBouncer in transaction mode) is in front of the server.
    /// Default no. The store then relies on no session state: no prepared statements that outlive
    /// their transaction, no settings of the session, and no LISTEN, so that relays find other
    /// programs' messages by polling.
    pub transaction_pooler: bool,
    /// Minimum interval between this process's wake-ups of other programs (NOTIFY, on a connection
    /// of its own, after the commit). Default 2 ms. None: other programs are never woken, and find
    /// this program's messages by polling.
    #[serde(with = "duration::or_none")]
    pub notify_interval: Option<Duration>,
}

impl Default for PostgresOptions {
    fn default() -> Self {
        let StoreOptions { history, handled_ids_kept, audit_kept, handled_ids_max_age, counting_limit } =
            StoreOptions::default();
        Self {
            schema: None,
            history,
            handled_ids_kept,
            audit_kept,
            handled_ids_max_age,
            counting_limit,
            lock_timeout: Duration::from_secs(3),
            transaction_idle_timeout: Duration::from_secs(12),
            connect_timeout: Duration::from_secs(10),
            idle_check: Duration::from_secs(30),
            max_connection_age: Duration::from_secs(30 * 60),
            connections: 10,
            transaction_pooler: false,
            notify_interval: Some(Duration::from_millis(2)),
        }
    }
}

impl PostgresOptions {
    /// Maximum length of the name of a schema, in bytes: a channel's name contains it, and has at
    /// most 63.
    const MAX_SCHEMA_BYTES: usize = 48;

    /// Returns every problem with these options; empty if there is none.
    #[must_use]
    pub fn problems(&self) -> Vec<String> {
        let Self { history, handled_ids_kept, audit_kept, handled_ids_max_age, counting_limit, .. } = *self;
        let shared =
            StoreOptions { history, handled_ids_kept, audit_kept, handled_ids_max_age, counting_limit };
        let mut problems = shared.problems("postgres");
        if let Some(schema) = &self.schema
            && !is_plain_name(schema)
        {
            problems.push(format!(
                "postgres.schema is {schema:?}; use 1 to {} lower-case letters, digits and `_`, a letter or `_` first",
                Self::MAX_SCHEMA_BYTES
            ));
        }
        for (name, timeout) in [
            ("lock_timeout", self.lock_timeout),
            ("transaction_idle_timeout", self.transaction_idle_timeout),
            ("connect_timeout", self.connect_timeout),
            ("idle_check", self.idle_check),
            ("max_connection_age", self.max_connection_age),
        ] {
            // The server takes them in milliseconds, as a number of 32 bits; 0 would mean none.
            if timeout < Duration::from_millis(100) || timeout > Duration::from_secs(24 * 3600) {
                problems.push(format!(
                    "postgres.{name} is {timeout:?}; make it at least 100ms and at most a day"
                ));
            }
        }
        if self.connections == 0 {
            problems.push("postgres.connections is 0; make it at least 1".to_owned());
        }
        if self.notify_interval.is_some_and(|interval| interval < Duration::from_millis(1)) {
            problems
                .push("postgres.notify_interval is below 1ms; leave it out to send no wake-ups".to_owned());
        }
        problems
    }
}

/// Returns true if a name can be used in a statement between quotes, and in a name, with nothing to
/// escape.
fn is_plain_name(name: &str) -> bool {
    let mut bytes = name.bytes();
    name.len() <= PostgresOptions::MAX_SCHEMA_BYTES
        && bytes.next().is_some_and(|first| first.is_ascii_lowercase() || first == b'_')
        && bytes.all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_has_no_problems() {
        assert_eq!(PostgresOptions::default().problems(), Vec::<String>::new());
    }

    #[test]
    fn every_problem_is_reported_at_once() {
        let options = PostgresOptions {
            schema: Some("Shop\"; drop".to_owned()),
            history: Some(Duration::ZERO),
            handled_ids_kept: Duration::from_secs(1),
            audit_kept: Duration::ZERO,
            handled_ids_max_age: Duration::ZERO,
            counting_limit: 1,
            lock_timeout: Duration::ZERO,
            transaction_idle_timeout: Duration::MAX,
            connect_timeout: Duration::ZERO,
            idle_check: Duration::ZERO,
            max_connection_age: Duration::ZERO,
            connections: 0,
            transaction_pooler: true,
            notify_interval: Some(Duration::ZERO),
        };
        assert_eq!(options.problems().len(), 13);
    }

    #[test]
    fn a_schema_is_a_plain_name() {
        for (name, plain) in
            [("shop", true), ("_a1", true), ("1a", false), ("", false), ("a-b", false), ("ä", false)]
        {
            assert_eq!(is_plain_name(name), plain, "{name}");
        }
        assert!(!is_plain_name(&"a".repeat(49)));
    }
}
