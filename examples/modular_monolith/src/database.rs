//! What the modules need of a database: statements with numbers and text, the same on SQLite and on PostgreSQL.

use std::future::Future;

use outbox::prelude::*;
use sqlx::{AssertSqlSafe, Row};

/// A value that a statement is given.
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

/// A store whose transactions take SQL.
pub(crate) trait Database: Transactional + Clone {
    /// The type of a primary key that counts up by itself.
    const COUNTING_KEY: &'static str;

    /// Makes a table, unless it is there.
    fn create_table(
        tx: &mut Self::Tx<'static>,
        name: &'static str,
        columns: String,
    ) -> impl Future<Output = Result<(), sqlx::Error>> + Send;

    /// How many rows a statement changes.
    fn execute(
        tx: &mut Self::Tx<'static>,
        sql: &'static str,
        values: &[Value<'_>],
    ) -> impl Future<Output = Result<u64, sqlx::Error>> + Send;

    /// The numbers of a query's first row.
    fn numbers(
        tx: &mut Self::Tx<'static>,
        sql: &'static str,
        values: &[Value<'_>],
    ) -> impl Future<Output = Result<Vec<i64>, sqlx::Error>> + Send;
}

macro_rules! database {
    ($store:ty, $counting_key:literal) => {
        impl Database for $store {
            const COUNTING_KEY: &'static str = $counting_key;

            async fn create_table(
                tx: &mut Self::Tx<'static>,
                name: &'static str,
                columns: String,
            ) -> Result<(), sqlx::Error> {
                let create = format!("create table if not exists {name} ({columns})");
                sqlx::query(AssertSqlSafe(create)).execute(&mut **tx).await?;
                Ok(())
            }

            async fn execute(
                tx: &mut Self::Tx<'static>,
                sql: &'static str,
                values: &[Value<'_>],
            ) -> Result<u64, sqlx::Error> {
                let query = values.iter().fold(sqlx::query(sql), |query, value| match *value {
                    Value::Number(number) => query.bind(number),
                    Value::Text(text) => query.bind(text.to_owned()),
                });
                Ok(query.execute(&mut **tx).await?.rows_affected())
            }

            async fn numbers(
                tx: &mut Self::Tx<'static>,
                sql: &'static str,
                values: &[Value<'_>],
            ) -> Result<Vec<i64>, sqlx::Error> {
                let query = values.iter().fold(sqlx::query(sql), |query, value| match *value {
                    Value::Number(number) => query.bind(number),
                    Value::Text(text) => query.bind(text.to_owned()),
                });
                let row = query.fetch_one(&mut **tx).await?;
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
    let numbers = D::numbers(&mut tx, sql, &[]).await?;
    store.rollback(tx).await?;
    Ok(numbers)
}
