//! The store's own connections, and their settings.

use std::fmt::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use sqlx::postgres::{PgConnectOptions, PgConnection, PgPool};
use sqlx::{AssertSqlSafe, ConnectOptions, Connection, SqlSafeStr, SqlStr};

use crate::config::PostgresOptions;
use crate::line::Line;

/// Opens the store's own connections: with the pool's options at that moment, so that a password
/// that was changed there (`PgPool::set_connect_options`) applies here too.
#[derive(Clone)]
pub(crate) struct Door {
    pool: PgPool,
    options: Arc<PostgresOptions>,
    /// Settings of each connection when it is opened. None behind a pooler with another connection
    /// for each transaction.
    settings: Option<SqlStr>,
    /// Number of times that connections turned out to lead to a server that takes no writes.
    generation: Arc<AtomicU64>,
}

impl Door {
    pub(crate) fn new(pool: PgPool, options: &PostgresOptions) -> Self {
        let settings = direct_settings(options, Plans::Pinned);
        Self { pool, options: Arc::new(options.clone()), settings, generation: Arc::default() }
    }

    /// Returns the door of a connection with other plans.
    fn with(&self, plans: Plans) -> Self {
        Self { settings: direct_settings(&self.options, plans), ..self.clone() }
    }

    /// Returns the present options for opening a connection.
    pub(crate) fn connect_options(&self) -> PgConnectOptions {
        let own = (*self.pool.connect_options()).clone().disable_statement_logging();
        if self.options.transaction_pooler { own.statement_cache_capacity(0) } else { own }
    }

    /// Returns the settings applied to a connection after it is opened: poolers refuse or drop
    /// settings in the startup packet itself.
    pub(crate) fn settings(&self) -> Option<SqlStr> {
        self.settings.clone()
    }

    /// Opens a connection, within its time limit.
    pub(crate) async fn open(&self) -> Result<PgConnection, sqlx::Error> {
        let opening = async {
            let mut connection = PgConnection::connect_with(&self.connect_options()).await?;
            if let Some(settings) = self.settings() {
                sqlx::raw_sql(settings).execute(&mut connection).await?;
            }
            Ok(connection)
        };
        let opened = tokio::time::timeout(self.options.connect_timeout, opening).await;
        opened.unwrap_or_else(|_| Err(sqlx::Error::Io(std::io::ErrorKind::TimedOut.into())))
    }

    /// Marks open connections as stale, because their server takes no writes: each is reopened
    /// before it is used again.
    pub(crate) fn renew(&self) {
        self.generation.fetch_add(1, Ordering::Relaxed);
    }

    /// Returns the generation of usable connections: those that were opened in it.
    pub(crate) fn generation(&self) -> u64 {
        self.generation.load(Ordering::Relaxed)
    }

    /// Returns the maximum age of a connection.
    pub(crate) fn max_age(&self) -> Duration {
        self.options.max_connection_age
    }

    /// Returns the timeout of opening a connection.
    pub(crate) fn connect_timeout(&self) -> Duration {
        self.options.connect_timeout
    }

    /// Returns the idle time after which a connection is checked.
    pub(crate) fn idle_check(&self) -> Duration {
        self.options.idle_check
    }
}

/// The store's own connections, one for each kind of work.
pub(crate) struct Lines {
    /// Fetches.
    pub(crate) fetching: Line,
    /// Other reads that a relay waits for: who is writing, what is due, whether a message was
    /// handled. Never anything that takes long.
    pub(crate) looking: Line,
    /// Figures of the backlog.
    pub(crate) measuring: Line,
    /// Queries of operators, which may read a whole history.
    pub(crate) browsing: Line,
    /// Settlements.
    pub(crate) settling: Line,
    /// Heartbeats, and nothing else.
    pub(crate) leasing: Line,
    /// Transitions.
    pub(crate) transitioning: Line,
    /// Maintenance and admin operations, which may wait for locks.
    pub(crate) operating: Line,
}

impl Lines {
    pub(crate) fn new(door: &Door) -> Self {
        let of = |plans| Line::new(door.with(plans), pooled_begin(&door.options, plans));
        let line = || of(Plans::Pinned);
        // To a relay, another connection is another life of the database. This one writes each
        // time, and so detects a changed server by itself.
        let of_any_age = line().of_any_age();
        Self {
            fetching: line(),
            looking: line(),
            measuring: line(),
            browsing: of(Plans::OfEachCall),
            settling: line(),
            leasing: of_any_age,
            transitioning: line(),
            operating: line(),
        }
    }
}

/// Number of plans of a statement.
#[derive(Clone, Copy)]
enum Plans {
    /// One for all calls.
    Pinned,
    /// One for each call. A filter that is null is no condition then, and one that is not can use an
    /// index; the one plan for all filters reads a table from end to end to find a key.
    OfEachCall,
}

impl Plans {
    const fn mode(self) -> &'static str {
        match self {
            Self::Pinned => "force_generic_plan",
            Self::OfEachCall => "force_custom_plan",
        }
    }
}

fn direct_settings(options: &PostgresOptions, plans: Plans) -> Option<SqlStr> {
    (!options.transaction_pooler).then(|| AssertSqlSafe(settings(options, plans)).into_sql_str())
}

/// Settings of the store's own connections, whatever the role or the database has. Plans are
/// pinned: the tables swing between empty and millions of rows faster than statistics follow. The
/// right plan for an empty table reads a full one from end to end. Timeouts are the relay's
/// business: it keeps connections open, and limits the time of each call.
fn settings(options: &PostgresOptions, plans: Plans) -> String {
    let mut settings = format!(
        "set default_transaction_isolation = 'read committed'; set standard_conforming_strings = on; set lock_timeout = {}",
        options.lock_timeout.as_millis()
    );
    for (name, value) in plan_settings(plans) {
        write!(settings, "; set {name} = {value}")
            .unwrap_or_else(|_| unreachable!("a string takes whatever is written"));
    }
    // Not every version has them.
    settings.push_str(
        "; select set_config(s.name, '0', false) from pg_settings s where s.name in ('idle_session_timeout', 'transaction_timeout')",
    );
    settings.push_str(NOT_IN_VAIN);
    settings
}

/// Ends a statement whose caller has given up: closing its connection alone does not, and the
/// server would read a whole history for nobody, once for each call that was repeated meanwhile.
/// Other systems than Linux refuse this setting, up to PostgreSQL 15.
const NOT_IN_VAIN: &str = "; select set_config(s.name, '1s', false) from pg_settings s \
    where s.name = 'client_connection_check_interval' and version() like '%linux%'";

const fn plan_settings(plans: Plans) -> [(&'static str, &'static str); 4] {
    [
        ("enable_seqscan", "off"),
        ("enable_bitmapscan", "off"),
        ("jit", "off"),
        ("plan_cache_mode", plans.mode()),
    ]
}

/// Statement that begins the store's own work behind a pooler: with the usual settings of its
/// connections, for this transaction.
fn pooled_begin(options: &PostgresOptions, plans: Plans) -> Option<SqlStr> {
    if !options.transaction_pooler {
        return None;
    }
    let timeout = options.lock_timeout.as_millis();
    let mut begin = format!(
        "begin isolation level read committed; set local lock_timeout = {timeout}; set local idle_in_transaction_session_timeout = {timeout}"
    );
    for (name, value) in plan_settings(plans) {
        write!(begin, "; set local {name} = {value}")
            .unwrap_or_else(|_| unreachable!("a string takes whatever is written"));
    }
    Some(AssertSqlSafe(begin).into_sql_str())
}
