//! The store's own connections, and what is set on them.

use std::fmt::Write;
use std::sync::Arc;
use std::time::Duration;

use sqlx::postgres::{PgConnectOptions, PgConnection, PgPool};
use sqlx::{AssertSqlSafe, ConnectOptions, SqlSafeStr, SqlStr};

use crate::config::PostgresOptions;
use crate::line::{Line, connect};

/// How the store's own connections are opened: with what the pool has at that moment, so that a password that was changed there
/// (`PgPool::set_connect_options`) holds here too.
#[derive(Clone)]
pub(crate) struct Door {
    pool: PgPool,
    options: Arc<PostgresOptions>,
}

impl Door {
    pub(crate) fn new(pool: PgPool, options: &PostgresOptions) -> Self {
        Self { pool, options: Arc::new(options.clone()) }
    }

    /// What a connection is opened with now.
    pub(crate) fn connect_options(&self) -> PgConnectOptions {
        own_options(&self.pool, &self.options)
    }

    /// Opens a connection, within the time that this may take.
    pub(crate) async fn open(&self) -> Result<PgConnection, sqlx::Error> {
        connect(&self.connect_options(), self.options.connect_timeout).await
    }

    /// How long opening a connection may take.
    pub(crate) fn connect_timeout(&self) -> Duration {
        self.options.connect_timeout
    }

    /// How long a connection may be silent before it is asked whether it is still there.
    pub(crate) fn idle_check(&self) -> Duration {
        self.options.idle_check
    }
}

/// The store's own connections, one for each kind of work.
pub(crate) struct Lines {
    /// Fetches.
    pub(crate) fetching: Line,
    /// What else a relay reads before it goes on: who is writing, what is due, whether a message was handled. Never anything that takes long.
    pub(crate) looking: Line,
    /// Figures of the backlog.
    pub(crate) measuring: Line,
    /// What operators look at, which may be a whole history.
    pub(crate) browsing: Line,
    /// Settlements.
    pub(crate) settling: Line,
    /// Heartbeats, and nothing else.
    pub(crate) leasing: Line,
    /// Diversions.
    pub(crate) diverting: Line,
    /// Maintenance and the verbs of operators, which may wait for locks.
    pub(crate) operating: Line,
}

impl Lines {
    pub(crate) fn new(door: &Door) -> Self {
        let line = || Line::new(door.clone(), pooled_begin(&door.options));
        Self {
            fetching: line(),
            looking: line(),
            measuring: line(),
            browsing: line(),
            settling: line(),
            leasing: line(),
            diverting: line(),
            operating: line(),
        }
    }
}

/// The options of the store's own connections. Plans are pinned: the tables swing between empty and millions of rows faster than anybody
/// counts them, and what is right for an empty table reads a full one from end to end.
fn own_options(pool: &PgPool, options: &PostgresOptions) -> PgConnectOptions {
    let own = (*pool.connect_options()).clone().disable_statement_logging();
    if options.transaction_pooler {
        return own.statement_cache_capacity(0);
    }
    own.options([
        ("default_transaction_isolation", "read committed".to_owned()),
        ("lock_timeout", options.lock_timeout.as_millis().to_string()),
    ])
    .options(PLANS.iter().copied())
}

const PLANS: [(&str, &str); 4] = [
    ("enable_seqscan", "off"),
    ("enable_bitmapscan", "off"),
    ("jit", "off"),
    ("plan_cache_mode", "force_generic_plan"),
];

/// How the store's own work begins behind a pooler: with what its connections have elsewhere, for this transaction.
fn pooled_begin(options: &PostgresOptions) -> Option<SqlStr> {
    if !options.transaction_pooler {
        return None;
    }
    let timeout = options.lock_timeout.as_millis();
    let mut begin = format!(
        "begin isolation level read committed; set local lock_timeout = {timeout}; set local idle_in_transaction_session_timeout = {timeout}"
    );
    for (name, value) in PLANS {
        write!(begin, "; set local {name} = {value}")
            .unwrap_or_else(|_| unreachable!("a string takes whatever is written"));
    }
    Some(AssertSqlSafe(begin).into_sql_str())
}
