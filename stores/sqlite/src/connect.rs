//! Ways to a store: by a pool of the user, by a file, by a URL, or in a temporary file.

use std::path::Path;

use outbox_contract::backend::rules::options::refuse;
use outbox_contract::{Store, StoreError};
use sqlx::sqlite::SqlitePool;

use crate::config::SqliteOptions;
use crate::pools::Pools;
use crate::store::SqliteStore;

impl SqliteStore {
    /// Creates a store in the database of a pool, with the default options.
    ///
    /// Appends happen in transactions of this pool. All work of relays runs on four connections of
    /// the store's own to the same file. They are opened when they are first needed with the pool's
    /// options, so that neither waits for the other's connections. A pool of a `:memory:` database
    /// can't have such: there the pool serves for everything, and [`in_memory`](Self::in_memory) is
    /// the better choice.
    #[must_use]
    pub fn new(pool: SqlitePool) -> Self {
        Self::of(Pools::beside(pool, None), SqliteOptions::default())
    }

    /// Like [`new`](Self::new), with options. `busy_timeout` applies to the store's own
    /// connections; those of the pool keep theirs.
    ///
    /// # Errors
    ///
    /// [`Invalid`](outbox_contract::StoreErrorKind::Invalid) with every [problem with the
    /// options](SqliteOptions::problems).
    pub fn with_options(pool: SqlitePool, options: SqliteOptions) -> Result<Self, StoreError> {
        refuse("open", &options.problems())?;
        let pools = Pools::beside(pool, Some(&options));
        Ok(Self::of(pools, options))
    }

    /// Opens a store in a file, which is created if it does not exist, with the default options.
    /// `:memory:` is [`in_memory`](Self::in_memory), except for the tables:
    /// [`migrate`](Store::migrate) creates them.
    ///
    /// # Errors
    ///
    /// `Unavailable` for a file that can't be opened; `Other` for one that is not a database.
    pub async fn open(path: impl AsRef<Path>) -> Result<Self, StoreError> {
        Self::open_with(path, SqliteOptions::default()).await
    }

    /// Like [`open`](Self::open), with options.
    ///
    /// # Errors
    ///
    /// The same as of `open`, and `Invalid` with every problem with the options.
    pub async fn open_with(path: impl AsRef<Path>, options: SqliteOptions) -> Result<Self, StoreError> {
        refuse("open", &options.problems())?;
        Ok(Self::of(Pools::open(path.as_ref(), &options).await?, options))
    }

    /// Like [`open`](Self::open), for a URL: `sqlite://path/to/file.db`, relative or absolute;
    /// `sqlite::memory:` is [`in_memory`](Self::in_memory).
    ///
    /// # Errors
    ///
    /// The same as of `open`, and `Invalid` for an invalid URL.
    pub async fn connect(url: &str) -> Result<Self, StoreError> {
        Self::connect_with(url, SqliteOptions::default()).await
    }

    /// Like [`connect`](Self::connect), with options.
    ///
    /// # Errors
    ///
    /// The same as of `connect`, and `Invalid` with every problem with the options.
    pub async fn connect_with(url: &str, options: SqliteOptions) -> Result<Self, StoreError> {
        refuse("open", &options.problems())?;
        Ok(Self::of(Pools::connect(url, &options).await?, options))
    }

    /// Creates a database of this process alone, for tests and experiments. It is migrated, and
    /// deleted with the last clone of the store and of its [`pool`](Self::pool).
    ///
    /// It is really a file in the system's temporary directory, never synced to the disk. A
    /// database that SQLite keeps in memory blocks readers while a writer is active, so that a
    /// relay could not work beside the user. A process that is killed leaves the file.
    ///
    /// # Errors
    ///
    /// `Unavailable` if there is no writable directory for temporary files.
    pub async fn in_memory() -> Result<Self, StoreError> {
        Self::in_memory_with(SqliteOptions::default()).await
    }

    /// Like [`in_memory`](Self::in_memory), with options.
    ///
    /// # Errors
    ///
    /// The same as of `in_memory`, and `Invalid` with every problem with the options.
    pub async fn in_memory_with(options: SqliteOptions) -> Result<Self, StoreError> {
        refuse("open", &options.problems())?;
        let store = Self::of(Pools::temporary(&options).await?, options);
        store.migrate().await?;
        Ok(store)
    }
}
