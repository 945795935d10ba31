//! The store's own connections, and what is set on them.

use std::fmt::Write;

use sqlx::postgres::{PgConnectOptions, PgPool};
use sqlx::{AssertSqlSafe, ConnectOptions, SqlSafeStr, SqlStr};

use crate::config::PostgresOptions;
use crate::line::Line;

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
    pub(crate) fn new(own: &PgConnectOptions, options: &PostgresOptions) -> Self {
        let line = || Line::new(own.clone(), options.connect_timeout, pooled_begin(options));
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
pub(crate) fn own_options(pool: &PgPool, options: &PostgresOptions) -> PgConnectOptions {
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
