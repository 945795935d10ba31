//! Ways to a store: by a pool of the user, or by a URL.

use std::time::Duration;

use outbox_contract::backend::rules::options::refuse;
use outbox_contract::{StoreError, StoreErrorKind};
use sqlx::postgres::{PgConnectOptions, PgPool, PgPoolOptions};

use crate::config::PostgresOptions;
use crate::error::store_error;
use crate::line::connect;
use crate::pooler;
use crate::store::PostgresStore;

impl PostgresStore {
    /// Creates a store in the database of a pool, with the default options.
    ///
    /// Appends happen in transactions of this pool. Everything else runs on at most eight
    /// connections of the store's own to the same database. They are opened when they are first
    /// needed, with the options that the pool has then (`PgPool::set_connect_options`), so that
    /// neither waits for the other's connections. Hooks of the pool (`after_connect`,
    /// `before_acquire`, `after_release`) do not run on them: settings that the outbox depends on,
    /// such as a `search_path` or a role, belong in the connect options,
    /// [`PostgresOptions::schema`] or the role's own settings.
    #[must_use]
    pub fn new(pool: PgPool) -> Self {
        Self::of(pool, PostgresOptions::default())
    }

    /// Like [`new`](Self::new), with options.
    ///
    /// # Errors
    ///
    /// [`Invalid`](StoreErrorKind::Invalid) with every [problem with the
    /// options](PostgresOptions::problems).
    pub fn with_options(pool: PgPool, options: PostgresOptions) -> Result<Self, StoreError> {
        refuse("open", &options.problems())?;
        Ok(Self::of(pool, options))
    }

    /// Connects to the database of a URL, `postgres://user:password@host:port/database`, with the
    /// default options. Opens one connection, so that a wrong address is reported at once.
    ///
    /// # Errors
    ///
    /// `Invalid` for an invalid URL; `NotPermitted` for a user, password, database or certificate
    /// that is refused; `Unavailable`.
    pub async fn connect(url: &str) -> Result<Self, StoreError> {
        Self::connect_with(url, PostgresOptions::default()).await
    }

    /// Like [`connect`](Self::connect), with options.
    ///
    /// # Errors
    ///
    /// The same as of `connect`, and `Invalid` with every problem with the options.
    pub async fn connect_with(url: &str, options: PostgresOptions) -> Result<Self, StoreError> {
        const OPERATION: &str = "connect";
        refuse("open", &options.problems())?;
        // The driver takes any scheme, and would connect to a server of another kind.
        let is_named = ["postgres://", "postgresql://"].iter().any(|scheme| url.starts_with(scheme));
        let parsed = if is_named {
            url.parse::<PgConnectOptions>()
        } else {
            Err(sqlx::Error::Configuration("its scheme".into()))
        };
        let mut address: PgConnectOptions = parsed.map_err(|error: sqlx::Error| {
            // The cause may hold parts of the address, and so of the password.
            let words = match error {
                sqlx::Error::Configuration(_) => {
                    "invalid database URL; write postgres://user:password@host:port/database, with every special \
                     character of user and password percent-encoded, and one host: of several servers, the name or the proxy that \
                     leads to the primary"
                }
                _ => "invalid database URL",
            };
            StoreError::new(StoreErrorKind::Invalid, OPERATION, words)
        })?;
        if options.transaction_pooler {
            address = address.statement_cache_capacity(0);
        }
        let first = connect(&address, options.connect_timeout).await;
        let first = first.map_err(|error| store_error(OPERATION, error))?;
        // Kept for nothing else: the pool opens its connections itself.
        let mut first = first;
        if !options.transaction_pooler {
            pooler::refuse(OPERATION, &mut first, &address).await?;
        }
        drop(first);
        let pool = PgPoolOptions::new()
            .max_connections(options.connections)
            .acquire_timeout(options.connect_timeout.max(Duration::from_secs(1)))
            // It would cost a round trip before each transaction; a broken connection makes the
            // transaction Unavailable, as it may in its middle too.
            .test_before_acquire(false)
            .connect_lazy_with(address);
        Ok(Self::of(pool, options))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_url_of_another_database_is_refused() {
        for url in ["mysql://root@127.0.0.1:1/shop", "127.0.0.1:1/shop"] {
            let error = PostgresStore::connect(url).await.map(drop).expect_err(url);
            assert_eq!(error.kind(), StoreErrorKind::Invalid, "{error}");
        }
    }
}
