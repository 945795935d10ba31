//! The databases that the tests run on: the same statements, numbers in and numbers out.

use std::future::Future;
use std::time::Duration;

use outbox_contract::{Store, Transactional};
use outbox_servers::{OrSkip, Postgres};
use outbox_store_postgres::{PostgresOptions, PostgresStore};
use outbox_store_sqlite::SqliteStore;
use sqlx::{PgPool, Row};

/// A store whose transactions take SQL.
pub(crate) trait Database: Transactional + Clone {
    /// True if two transactions may write different rows at the same time.
    const SIDE_BY_SIDE: bool;

    /// Returns the number of rows that a statement changed.
    fn execute(
        tx: &mut Self::Connection,
        sql: &'static str,
        values: &[i64],
    ) -> impl Future<Output = Result<u64, sqlx::Error>> + Send;

    /// Returns the number that a query returns.
    fn number(
        tx: &mut Self::Connection,
        sql: &'static str,
        values: &[i64],
    ) -> impl Future<Output = Result<i64, sqlx::Error>> + Send;
}

macro_rules! database {
    ($store:ty, $side_by_side:literal) => {
        impl Database for $store {
            const SIDE_BY_SIDE: bool = $side_by_side;

            async fn execute(
                tx: &mut Self::Connection,
                sql: &'static str,
                values: &[i64],
            ) -> Result<u64, sqlx::Error> {
                let query = values.iter().fold(sqlx::query(sql), |query, value| query.bind(*value));
                Ok(query.execute(tx).await?.rows_affected())
            }

            async fn number(
                tx: &mut Self::Connection,
                sql: &'static str,
                values: &[i64],
            ) -> Result<i64, sqlx::Error> {
                let query = values.iter().fold(sqlx::query(sql), |query, value| query.bind(*value));
                query.fetch_one(tx).await?.try_get(0)
            }
        }
    };
}

database!(SqliteStore, false);
database!(PostgresStore, true);

/// Creates a table of the user's, beside those of the outbox: rows 0 to 9, at 0.
async fn with_table<D: Database>(store: D) -> D {
    let mut tx = store.begin().await.unwrap();
    let create =
        "create table counters (id bigint primary key, value bigint not null, version bigint not null)";
    D::execute(D::connection(&mut tx), create, &[]).await.unwrap();
    for id in 0..10 {
        D::execute(D::connection(&mut tx), "insert into counters values ($1, 0, 0)", &[id]).await.unwrap();
    }
    store.commit(tx).await.into_result().unwrap();
    store
}

pub(crate) async fn sqlite() -> Option<SqliteStore> {
    Some(with_table(SqliteStore::in_memory().await.unwrap()).await)
}

/// None: PostgreSQL is unavailable here, which is reported.
pub(crate) async fn postgres() -> Option<PostgresStore> {
    let server = Postgres::newest().shared().or_skip()?;
    let pool = PgPool::connect(&server.fresh_database()).await.unwrap();
    // A slow machine must not look like a lock timeout.
    let mut options = PostgresOptions::default();
    options.lock_timeout = Duration::from_secs(120);
    options.transaction_idle_timeout = Duration::from_secs(240);
    let store = PostgresStore::with_options(pool, options).unwrap();
    store.migrate().await.unwrap();
    Some(with_table(store).await)
}
