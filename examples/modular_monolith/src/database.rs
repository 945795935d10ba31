//! Database operations of the modules: statements with numbers and text, the same on SQLite and on
//! PostgreSQL.

use std::future::Future;

use outbox::prelude::*;
use sqlx::{AssertSqlSafe, Row};

/// An argument of a statement.
#[derive(Clone, Copy)]
pub(crate) enum Value<'v> {
    Number(i64),
    Text(&'v str),
}

impl From<i64> for Value<'_> {
    fn from(number: i64) -> Self {
        Self::Number(number)
    }
}

impl<'v> From<&'v str> for Value<'v> {
    fn from(text: &'v str) -> Self {
        Self::Text(text)
    }
}

/// A store whose transactions accept SQL. Statements run on the connection of a transaction.
pub(crate) trait Database: Transactional + Clone {
    /// Type of an auto-incrementing primary key.
    const COUNTING_KEY: &'static str;

    /// Creates a table if it does not exist.
    fn create_table(
        tx: &mut Self::Connection,
        name: &'static str,
        columns: String,
    ) -> impl Future<Output = Result<(), sqlx::Error>> + Send;

    /// Executes a statement and returns the number of changed rows.
    fn execute(
        tx: &mut Self::Connection,
        sql: &'static str,
        values: &[Value<'_>],
    ) -> impl Future<Output = Result<u64, sqlx::Error>> + Send;

    /// Returns the numbers of a query's first row.
    fn numbers(
        tx: &mut Self::Connection,
        sql: &'static str,
        values: &[Value<'_>],
    ) -> impl Future<Output = Result<Vec<i64>, sqlx::Error>> + Send;
}

macro_rules! database {
    ($store:ty, $counting_key:literal) => {
        impl Database for $store {
            const COUNTING_KEY: &'static str = $counting_key;

            async fn create_table(
                tx: &mut Self::Connection,
                name: &'static str,
                columns: String,
            ) -> Result<(), sqlx::Error> {
                let create = format!("create table if not exists {name} ({columns})");
                sqlx::query(AssertSqlSafe(create)).execute(tx).await?;
                Ok(())
            }

            async fn execute(
                tx: &mut Self::Connection,
                sql: &'static str,
                values: &[Value<'_>],
            ) -> Result<u64, sqlx::Error> {
                let query = values.iter().fold(sqlx::query(sql), |query, value| match *value {
                    Value::Number(number) => query.bind(number),
                    Value::Text(text) => query.bind(text.to_owned()),
                });
                Ok(query.execute(tx).await?.rows_affected())
            }

            async fn numbers(
                tx: &mut Self::Connection,
                sql: &'static str,
                values: &[Value<'_>],
            ) -> Result<Vec<i64>, sqlx::Error> {
                let query = values.iter().fold(sqlx::query(sql), |query, value| match *value {
                    Value::Number(number) => query.bind(number),
                    Value::Text(text) => query.bind(text.to_owned()),
                });
                let row = query.fetch_one(tx).await?;
                (0..row.len()).map(|column| row.try_get(column)).collect()
            }
        }
    };
}

database!(SqliteStore, "integer primary key");
#[cfg(feature = "postgres")]
database!(PostgresStore, "bigint generated always as identity primary key");

/// Reads numbers in a transaction of its own.
pub(crate) async fn look<D: Database>(store: &D, sql: &'static str) -> Result<Vec<i64>, HandlerError> {
    let mut tx = store.begin().await?;
    let numbers = D::numbers(D::connection(&mut tx), sql, &[]).await?;
    store.rollback(tx).await?;
    Ok(numbers)
}
