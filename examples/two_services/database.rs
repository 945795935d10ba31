//! What both services need of a database: statements with numbers in and numbers out, the same on SQLite and on PostgreSQL.

use std::future::Future;

use outbox::prelude::*;
use sqlx::Row;

/// A store whose transactions take SQL.
pub(crate) trait Database: Transactional + Clone {
    /// How many rows a statement changes.
    fn execute(
        tx: &mut Self::Tx<'static>,
        sql: &'static str,
        values: &[i64],
    ) -> impl Future<Output = Result<u64, sqlx::Error>> + Send;

    /// The numbers of a query's first row.
    fn numbers(
        tx: &mut Self::Tx<'static>,
        sql: &'static str,
        values: &[i64],
    ) -> impl Future<Output = Result<Vec<i64>, sqlx::Error>> + Send;
}

macro_rules! database {
    ($store:ty) => {
        impl Database for $store {
            async fn execute(
                tx: &mut Self::Tx<'static>,
                sql: &'static str,
                values: &[i64],
            ) -> Result<u64, sqlx::Error> {
                let query = values.iter().fold(sqlx::query(sql), |query, value| query.bind(*value));
                Ok(query.execute(&mut **tx).await?.rows_affected())
            }

            async fn numbers(
                tx: &mut Self::Tx<'static>,
                sql: &'static str,
                values: &[i64],
            ) -> Result<Vec<i64>, sqlx::Error> {
                let query = values.iter().fold(sqlx::query(sql), |query, value| query.bind(*value));
                let row = query.fetch_one(&mut **tx).await?;
                (0..row.len()).map(|column| row.try_get(column)).collect()
            }
        }
    };
}

database!(SqliteStore);
database!(PostgresStore);

/// Reads numbers in a transaction of its own.
pub(crate) async fn look<D: Database>(store: &D, sql: &'static str) -> Result<Vec<i64>, HandlerError> {
    let mut tx = store.begin().await?;
    let numbers = D::numbers(&mut tx, sql, &[]).await?;
    store.rollback(tx).await?;
    Ok(numbers)
}
