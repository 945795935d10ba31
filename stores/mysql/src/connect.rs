//! Ways to a store: by a pool of the user, or by a URL.

use std::time::Duration;

use outbox_contract::backend::rules::options::refuse;
use outbox_contract::{StoreError, StoreErrorKind};
use sqlx::mysql::{MySqlConnectOptions, MySqlPool, MySqlPoolOptions};

use crate::config::MySqlOptions;
use crate::error::store_error;
use crate::line::run;
use crate::store::MySqlStore;
use crate::transactions::ROLL_BACK_AND_RESTORE;

/// Time limit for getting a connection ready for its next user.
const READY: Duration = Duration::from_secs(5);

impl MySqlStore {
    /// Creates a store in the database of a pool, with the default options.
    ///
    /// Appends happen in transactions of this pool. All work of relays runs on six connections of
    /// the store's own to the same database. They are opened when they are first needed, with the
    /// options that the pool has then, so that neither waits for the other's connections.
    ///
    /// Make the pool with [`pool_options`](Self::pool_options). With other options, a canceled query
    /// may cost the pool a connection, and a transaction of `begin` that is dropped leaves its
    /// settings on one. On nodes of a Galera cluster, prefer [`connect`](Self::connect): a
    /// transaction of your own pool that a node aborts while it prepares a statement continues in
    /// autocommit, and no error is reported before the commit.
    #[must_use]
    pub fn new(pool: MySqlPool) -> Self {
        Self::of(pool, MySqlOptions::default(), false)
    }

    /// Like [`new`](Self::new), with options.
    ///
    /// # Errors
    ///
    /// [`Invalid`](StoreErrorKind::Invalid) with every [problem with the
    /// options](MySqlOptions::problems).
    pub fn with_options(pool: MySqlPool, options: MySqlOptions) -> Result<Self, StoreError> {
        refuse("open", &options.problems())?;
        Ok(Self::of(pool, options, false))
    }

    /// Connects to the database of a URL, `mysql://user:password@host:port/database`, with the
    /// default options. Opens one connection, so that a wrong address is reported at once.
    ///
    /// # Errors
    ///
    /// `Invalid` for an invalid URL; `NotPermitted` for a user, password, database or certificate
    /// that is refused; `Unavailable`.
    pub async fn connect(url: &str) -> Result<Self, StoreError> {
        Self::connect_with(url, MySqlOptions::default()).await
    }

    /// Like [`connect`](Self::connect), with options.
    ///
    /// # Errors
    ///
    /// The same as of `connect`, and `Invalid` with every problem with the options.
    pub async fn connect_with(url: &str, options: MySqlOptions) -> Result<Self, StoreError> {
        const OPERATION: &str = "connect";
        refuse("open", &options.problems())?;
        let refused = |words: &str| Err(StoreError::new(StoreErrorKind::Invalid, OPERATION, words));
        let named = url.starts_with("mysql://") || url.starts_with("mariadb://");
        // The cause may hold parts of the address, and so of the password.
        let Some(address) = named.then(|| url.parse::<MySqlConnectOptions>().ok()).flatten() else {
            return refused(
                "invalid database URL; write mysql://user:password@host:port/database, with every special character of user \
                 and password percent-encoded, and one host: of several servers, the name or the proxy that leads to the primary",
            );
        };
        if address.get_database().is_none_or(str::is_empty) {
            return refused(
                "the URL names no database; put its name at the end: mysql://user:password@host:port/database",
            );
        }
        let pool = Self::pool_options()
            .max_connections(options.connections)
            .acquire_timeout(options.connect_timeout)
            .connect_lazy_with(address);
        let store = Self::of(pool, options, true);
        // Kept for nothing else: the pool and the lines open what they need.
        store.way().open().await.map_err(|error| store_error(OPERATION, error))?;
        Ok(store)
    }

    /// Returns the options for a pool of your own, the same as of [`connect`](Self::connect). When a
    /// connection returns to the pool, an open transaction is rolled back, and the settings of
    /// [`begin`](outbox_contract::Transactional::begin) are put back. A connection that is not ready
    /// within 5 s is closed. If you replace their `after_release`, a transaction of `begin` that is
    /// dropped leaves a connection that the server closes once it is idle for
    /// `transaction_idle_timeout`.
    ///
    /// They are needed because futures are dropped half-way, by a timeout for example (seen with
    /// sqlx 0.9):
    ///
    /// - of a query whose statement is being prepared: the driver then waits for an answer to its
    ///   ROLLBACK that it has taken for another one, and the pool loses the connection;
    /// - of `pool.begin()`: the driver does not know of the transaction that the server has begun,
    ///   and the next user of the connection would write into it.
    ///
    /// ```no_run
    /// # mod outbox { pub mod mysql { pub use outbox_store_mysql::*; } }
    /// # use outbox::mysql::MySqlStore;
    /// # async fn example() -> Result<(), sqlx::Error> {
    /// let pool = MySqlStore::pool_options().max_connections(20).connect("mysql://shop@localhost/shop").await?;
    /// let store = MySqlStore::new(pool);
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn pool_options() -> MySqlPoolOptions {
        MySqlPoolOptions::new()
            // A round trip before each transaction; one that meets a broken connection is
            // Unavailable, as it may be in its middle too.
            .test_before_acquire(false)
            .after_release(|connection, _| {
                Box::pin(async move {
                    match tokio::time::timeout(READY, run(connection, ROLL_BACK_AND_RESTORE)).await {
                        Ok(ready) => ready.map(|()| true),
                        Err(_) => Err(sqlx::Error::Io(std::io::ErrorKind::TimedOut.into())),
                    }
                })
            })
    }
}
