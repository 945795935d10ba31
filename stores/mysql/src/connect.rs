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
    /// A store in the database of a pool, with the default options.
    ///
    /// Appends happen in transactions of this pool. Everything that relays do runs on six
    /// connections of our own to the same database, opened when they are first needed with the
    /// options that the pool has then, so that neither waits for the other's connections. Make the
    /// pool with [`pool_options`](Self::pool_options), or a cancelled query may cost it a
    /// connection, and a transaction of `begin` that is dropped leaves its settings on one. On
    /// nodes of a Galera cluster prefer [`connect`](Self::connect): there a transaction of a pool
    /// of your own that a node aborts while it prepares a statement continues in autocommit, and
    /// you see no error before the commit.
    #[must_use]
    pub fn new(pool: MySqlPool) -> Self {
        Self::of(pool, MySqlOptions::default(), false)
    }

    /// As [`new`](Self::new), with options.
    ///
    /// # Errors
    ///
    /// [`Invalid`](StoreErrorKind::Invalid) with everything that is [wrong with the
    /// options](MySqlOptions::problems).
    pub fn with_options(pool: MySqlPool, options: MySqlOptions) -> Result<Self, StoreError> {
        refuse("open", &options.problems())?;
        Ok(Self::of(pool, options, false))
    }

    /// A store in the database of a URL, `mysql://user:password@host:port/database`, with the
    /// default options. Connects once, so that an address that can't be right is known at once.
    ///
    /// # Errors
    ///
    /// `Invalid` for what is not such a URL; `NotPermitted` for a user, password, database or
    /// certificate that is refused; `Unavailable`.
    pub async fn connect(url: &str) -> Result<Self, StoreError> {
        Self::connect_with(url, MySqlOptions::default()).await
    }

    /// As [`connect`](Self::connect), with options.
    ///
    /// # Errors
    ///
    /// As `connect`, and `Invalid` with everything that is wrong with the options.
    pub async fn connect_with(url: &str, options: MySqlOptions) -> Result<Self, StoreError> {
        const OPERATION: &str = "connect";
        refuse("open", &options.problems())?;
        let refused = |words: &str| Err(StoreError::new(StoreErrorKind::Invalid, OPERATION, words));
        let named = url.starts_with("mysql://") || url.starts_with("mariadb://");
        // The cause may hold parts of the address, and so of the password.
        let Some(address) = named.then(|| url.parse::<MySqlConnectOptions>().ok()).flatten() else {
            return refused(
                "invalid database URL; write mysql://user:password@host:port/database, with every special character of user \
                 and password percent-encoded",
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

    /// Options of a pool of your own, as [`connect`](Self::connect) has them: what is open on a
    /// connection that comes back is rolled back, the settings of
    /// [`begin`](outbox_contract::Transactional::begin) are put back, and one that does not get
    /// ready for its next user within 5 seconds is closed. Where a pool has an `after_release` of
    /// its own, a transaction of `begin` that is dropped, neither committed nor rolled back, leaves
    /// a connection behind that the server closes when it is idle for `transaction_idle_timeout`.
    ///
    /// They are for futures that are dropped before they are done, as a timeout does (seen with
    /// sqlx 0.9). Of a query whose statement is being prepared: the driver afterwards waits for an
    /// answer to its ROLLBACK that it has taken for another one, and the connection would be lost
    /// to the pool for good. Of `pool.begin()`: the driver knows nothing of the transaction that
    /// the server has begun, and whoever used the connection next, without one of their own, would
    /// write into it.
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
