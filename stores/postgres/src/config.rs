//! Configuration: what can be set, in which unit, and why the default is what it is.

use std::time::Duration;

/// How a [`PostgresStore`](crate::PostgresStore) works. A plain struct: set what should differ from the default.
///
/// ```
/// use std::time::Duration;
/// use outbox_store_postgres::PostgresOptions;
///
/// let mut options = PostgresOptions::default();
/// options.schema = Some("shop".to_owned());
/// options.history = Some(Duration::from_secs(3 * 24 * 3600));
/// assert!(options.problems().is_empty());
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PostgresOptions {
    /// The schema that the outbox is in: lower-case letters, digits and `_`, at most 48 of them. Default: none; the tables are found by the
    /// `search_path`. Each schema can have an outbox of its own.
    pub schema: Option<String>,
    /// How long delivered messages are kept for replay. Default: none are kept; keeping them costs a copy of each.
    pub history: Option<Duration>,
    /// How long the ids are kept that a consumer has handled. Default 7 days. It has to exceed the longest time between a message's first
    /// publishing and its settlement, an outage of the database included.
    pub admissions_kept: Duration,
    /// How many rows are looked at for the figures of the backlog. Default 100,000; at least 10,000.
    pub counting_limit: u32,
    /// How long a statement waits for somebody else's lock, in transactions that [`begin`](outbox_contract::Transactional::begin) begins and
    /// in the store's own. Default 3 s. Shorter than the leases of relays, and than the `store_timeout` of relays and inboxes: a lock that does not
    /// come is a conflict then, and not a database that does not answer.
    pub lock_timeout: Duration,
    /// How long a transaction that `begin` has begun may be idle, before the server ends it. Default 12 s. Shorter than the leases of
    /// relays: the locks of a paused program must not outlive its lease. A handler that waits for something else has to be quicker.
    pub transaction_idle_timeout: Duration,
    /// How long opening a connection may take. Default 10 s.
    pub connect_timeout: Duration,
    /// After how much silence one of the store's own connections is asked whether it is still there, before it is used again, and the one that
    /// listens for wake-ups in any case. Default 30 s. Networks forget connections on which nothing is said, and tell nobody: shorter than yours does.
    pub idle_check: Duration,
    /// The greatest age of the store's own connections, but for that of heartbeats. Default 30 minutes. An older one is opened anew before it is used: a name that
    /// leads elsewhere by now (a failover, another host behind a balancer) is asked for again.
    pub max_connection_age: Duration,
    /// Connections of [`pool`](crate::PostgresStore::pool), the user's pool. Default 10. Not used where the user brings the pool.
    pub connections: u32,
    /// Whether a pooler that gives out connections by the transaction (PgBouncer in transaction mode) stands in front of the server. Default
    /// no. Then nothing of a session is relied on: no prepared statements that outlive their transaction, no settings of the session, and no
    /// LISTEN, so that what other programs write is found by polling.
    pub transaction_pooler: bool,
    /// How far apart at least this process's wake-ups of other programs are (NOTIFY, on a connection of its own, after the commit). Default
    /// 2 ms. None: others are never told, and find what is written here by polling.
    pub notify_interval: Option<Duration>,
}

impl Default for PostgresOptions {
    fn default() -> Self {
        Self {
            schema: None,
            history: None,
            admissions_kept: Duration::from_secs(7 * 24 * 3600),
            counting_limit: 100_000,
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
    /// The most bytes that the name of a schema may have: a channel's name is made of it, and has at most 63.
    const MOST_SCHEMA_BYTES: usize = 48;

    /// Everything that is wrong with these options; empty when nothing is.
    #[must_use]
    pub fn problems(&self) -> Vec<String> {
        let mut problems = Vec::new();
        if let Some(schema) = &self.schema
            && !is_plain_name(schema)
        {
            problems.push(format!(
                "postgres.schema is {schema:?}; use 1 to {} lower-case letters, digits and `_`, a letter or `_` first",
                Self::MOST_SCHEMA_BYTES
            ));
        }
        if self.history.is_some_and(|kept| kept < Duration::from_secs(1)) {
            problems.push("postgres.history is below 1s; leave it out to keep no history".to_owned());
        }
        if self.admissions_kept < Duration::from_secs(60) {
            problems.push(format!(
                "postgres.admissions_kept is {:?}; a repeat that comes later would be handled twice: at least 60s",
                self.admissions_kept
            ));
        }
        if self.counting_limit < 10_000 {
            problems
                .push(format!("postgres.counting_limit is {}; make it at least 10000", self.counting_limit));
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
            problems.push("postgres.notify_interval is below 1ms; leave it out to tell nobody".to_owned());
        }
        problems
    }

    /// The channel on which programs of this outbox wake one another.
    pub(crate) fn channel(&self) -> String {
        match &self.schema {
            Some(schema) => format!("outbox_{schema}"),
            None => "outbox".to_owned(),
        }
    }
}

/// Whether a name can stand in a statement between quotes, and in a name, with nothing to escape.
fn is_plain_name(name: &str) -> bool {
    let mut bytes = name.bytes();
    name.len() <= PostgresOptions::MOST_SCHEMA_BYTES
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
            admissions_kept: Duration::ZERO,
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
        assert_eq!(options.problems().len(), 11);
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
