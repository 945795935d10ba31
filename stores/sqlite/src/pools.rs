//! Connections: which statements run on which, and the durability of their commits.
//!
//! SQLite has one writer at a time. Each of the store's own write pools has one connection: its
//! statements queue up fairly in the process before they compete for the lock of the file. And a
//! relay never waits for the user's connections.

use std::path::Path;
use std::pin::Pin;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use outbox_contract::{StoreError, StoreErrorKind};
use sqlx::pool::PoolConnectionMetadata;
use sqlx::sqlite::{
    SqliteConnectOptions, SqliteConnection, SqliteJournalMode, SqlitePool, SqlitePoolOptions,
    SqliteSynchronous,
};
use sqlx::{ConnectOptions, Connection};
use tempfile::TempDir;

use crate::config::{Durability, SqliteOptions};
use crate::error::store_error;
use crate::place::Place;

/// Size to which the log of a database file is truncated after a burst.
const JOURNAL_SIZE_LIMIT: &str = "67108864";

/// The connections of a store.
#[derive(Clone)]
pub(crate) struct Pools {
    /// The file that they are connected to; None if it is not visible to others.
    pub(crate) place: Option<Arc<Place>>,
    /// The user's: appends, deduplication, and the user's own statements.
    pub(crate) users: SqlitePool,
    /// Fetch, due, backlog, browsing.
    pub(crate) reads: SqlitePool,
    /// Settlements and leases: they may be lost with the power, because that costs a repeat at
    /// most.
    pub(crate) settling: SqlitePool,
    /// Transitions, admin operations, maintenance, migration: durable when they return.
    pub(crate) deciding: SqlitePool,
    /// For one more connection, which watches the file; None if no other process can write it.
    pub(crate) watching: Option<SqliteConnectOptions>,
}

impl Pools {
    /// Opens a database file, which is created if it does not exist.
    pub(crate) async fn open(path: &Path, options: &SqliteOptions) -> Result<Self, StoreError> {
        let file = SqliteConnectOptions::new().filename(path).create_if_missing(true);
        if is_memory(&file) {
            return Self::temporary(options).await;
        }
        Self::of_file(file, options, None).await
    }

    /// Connects to a database by its URL.
    pub(crate) async fn connect(url: &str, options: &SqliteOptions) -> Result<Self, StoreError> {
        // The URL stays out of the errors: it may be another database's, with a password in it.
        let invalid = || {
            let words = "invalid SQLite URL; write sqlite://path/to/file.db or sqlite::memory:";
            StoreError::new(StoreErrorKind::Invalid, "connect", words)
        };
        if !url.starts_with("sqlite:") {
            return Err(invalid());
        }
        let file = SqliteConnectOptions::from_str(url).map_err(|error| invalid().with_source(error))?;
        if is_memory(&file) {
            return Self::temporary(options).await;
        }
        Self::of_file(file.create_if_missing(true), options, None).await
    }

    /// Creates a database of this process alone, deleted with the last of its connections.
    pub(crate) async fn temporary(options: &SqliteOptions) -> Result<Self, StoreError> {
        let directory = tempfile::Builder::new().prefix("outbox-").tempdir().map_err(|error| {
            StoreError::new(
                StoreErrorKind::Unavailable,
                "in_memory",
                "cannot create a temporary directory; set TMPDIR to a writable directory",
            )
            .with_source(error)
        })?;
        let file =
            SqliteConnectOptions::new().filename(directory.path().join("outbox.db")).create_if_missing(true);
        Self::of_file(file, options, Some(Arc::new(directory))).await
    }

    /// Opens the store's connections beside the user's pool, to the same file: they wait for other
    /// writers as the user's do, or as these options set.
    pub(crate) fn beside(users: SqlitePool, options: Option<&SqliteOptions>) -> Self {
        let file = users.connect_options();
        if is_memory(&file) {
            // Each connection to such a database sees another one, or locks the whole of it: share
            // the user's.
            let (reads, settling, deciding) = (users.clone(), users.clone(), users.clone());
            return Self { place: None, users, reads, settling, deciding, watching: None };
        }
        let acquire_timeout = users.options().get_acquire_timeout();
        let mut own = (*file).clone().pragma("journal_size_limit", JOURNAL_SIZE_LIMIT);
        if let Some(options) = options {
            own = own.busy_timeout(options.busy_timeout);
        }
        Self::with_own(users, &own, acquire_timeout, None)
    }

    async fn of_file(
        file: SqliteConnectOptions,
        options: &SqliteOptions,
        directory: Option<Arc<TempDir>>,
    ) -> Result<Self, StoreError> {
        let file = file.busy_timeout(options.busy_timeout).pragma("journal_size_limit", JOURNAL_SIZE_LIMIT);
        let synchronous = match (&directory, options.durability) {
            (Some(_), _) => SqliteSynchronous::Off,
            (None, Durability::PowerLoss) => SqliteSynchronous::Full,
            (None, Durability::ProcessEnd) => SqliteSynchronous::Normal,
        };
        // The first connection switches the file to WAL, which the file remembers; if each
        // requested it, they would wait for one another.
        let first = file.clone().journal_mode(SqliteJournalMode::Wal).connect().await;
        let first = first.map_err(|error| store_error("open", error))?;
        let acquire_timeout = options.busy_timeout * 2;
        let users = SqlitePoolOptions::new()
            .max_connections(options.connections.max(1))
            .acquire_timeout(acquire_timeout)
            .after_release(keep_or_close(directory.clone()))
            .connect_lazy_with(file.clone().synchronous(synchronous));
        let pools = Self::with_own(users, &file, acquire_timeout, directory.as_ref());
        first.close().await.map_err(|error| store_error("open", error))?;
        Ok(pools)
    }

    fn with_own(
        users: SqlitePool,
        file: &SqliteConnectOptions,
        acquire_timeout: Duration,
        temporary: Option<&Arc<TempDir>>,
    ) -> Self {
        let own = |connections: u32, synchronous: SqliteSynchronous| {
            let synchronous = if temporary.is_some() { SqliteSynchronous::Off } else { synchronous };
            SqlitePoolOptions::new()
                .max_connections(connections)
                .acquire_timeout(acquire_timeout)
                .idle_timeout(None)
                .max_lifetime(None)
                .test_before_acquire(false)
                .after_release(keep_or_close(temporary.cloned()))
                .connect_lazy_with(file.clone().synchronous(synchronous).disable_statement_logging())
        };
        Self {
            place: Place::of(file.get_filename()).filter(|_| temporary.is_none()).map(Arc::new),
            users,
            reads: own(2, SqliteSynchronous::Normal),
            settling: own(1, SqliteSynchronous::Normal),
            deciding: own(1, SqliteSynchronous::Full),
            watching: temporary.is_none().then(|| file.clone()),
        }
    }
}

type Kept<'c> = Pin<Box<dyn Future<Output = Result<bool, sqlx::Error>> + Send + 'c>>;

/// Handles a connection that returns to a pool; the pool keeps the directory, which is removed when
/// its last clone is gone.
///
/// When the disk is full or fails, SQLite itself rolls a transaction back. The driver does not see
/// it and still counts it as open: later transactions of that connection would be savepoints of
/// none, and never end. Such a connection is closed.
fn keep_or_close(
    directory: Option<Arc<TempDir>>,
) -> impl for<'c> Fn(&'c mut SqliteConnection, PoolConnectionMetadata) -> Kept<'c> + Send + Sync + 'static {
    move |connection, _| {
        let _kept = &directory;
        Box::pin(async move {
            // A rollback that was queued by dropping a transaction is done before the answer to
            // this.
            connection.ping().await?;
            Ok(!connection.is_in_transaction())
        })
    }
}

/// Returns true if these options name a database that lives in one process's memory.
fn is_memory(options: &SqliteConnectOptions) -> bool {
    let name = options.get_filename().to_string_lossy();
    name.is_empty()
        || name == ":memory:"
        || name.starts_with("file:sqlx-in-memory")
        || options.to_url_lossy().query_pairs().any(|(name, value)| name == "mode" && value == "memory")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a connection's settings, in milliseconds and bytes.
    async fn settings(pool: &SqlitePool) -> (i64, i64) {
        let of = async |pragma: &'static str| sqlx::query_scalar(pragma).fetch_one(pool).await.unwrap();
        (of("pragma busy_timeout").await, of("pragma journal_size_limit").await)
    }

    #[tokio::test]
    async fn own_connections_beside_a_users_pool_are_set_as_the_options_say() {
        let directory = tempfile::tempdir().unwrap();
        let file =
            SqliteConnectOptions::new().filename(directory.path().join("outbox.db")).create_if_missing(true);
        let users = SqlitePool::connect_with(file.busy_timeout(Duration::from_secs(3))).await.unwrap();
        let options = SqliteOptions { busy_timeout: Duration::from_millis(700), ..SqliteOptions::default() };
        for (options, busy_timeout) in [(None, 3_000), (Some(&options), 700)] {
            let pools = Pools::beside(users.clone(), options);
            for own in [&pools.reads, &pools.settling, &pools.deciding] {
                assert_eq!(settings(own).await, (busy_timeout, 67_108_864));
            }
        }
        assert_eq!(settings(&users).await.0, 3_000, "the user's own are the user's");
    }
}
