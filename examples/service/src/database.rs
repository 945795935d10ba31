//! Statements of the service: the same on SQLite and PostgreSQL.

use std::future::Future;

use outbox::prelude::*;

/// A store with the tables of the service.
pub(crate) trait Database: Transactional + Clone {
    /// Creates missing tables.
    fn create_tables(&self) -> impl Future<Output = Result<(), sqlx::Error>> + Send;

    /// Returns without an error if the database answers.
    fn ping(&self) -> impl Future<Output = Result<(), sqlx::Error>> + Send;

    /// Writes an order, and returns its id.
    fn insert_order(
        tx: &mut Self::Connection,
        customer: &str,
        cents: i64,
    ) -> impl Future<Output = Result<i64, sqlx::Error>> + Send;

    /// Notes that a mail was sent for an order.
    fn insert_mail(
        tx: &mut Self::Connection,
        order_id: i64,
    ) -> impl Future<Output = Result<(), sqlx::Error>> + Send;
}

macro_rules! database {
    ($store:ty, $counting_key:literal) => {
        impl Database for $store {
            async fn create_tables(&self) -> Result<(), sqlx::Error> {
                for table in [
                    concat!("orders (id ", $counting_key, ", customer text not null, cents bigint not null)"),
                    "mails (order_id bigint not null)",
                ] {
                    let create = format!("create table if not exists {table}");
                    sqlx::query(sqlx::AssertSqlSafe(create)).execute(self.pool()).await?;
                }
                Ok(())
            }

            async fn ping(&self) -> Result<(), sqlx::Error> {
                sqlx::query("select 1").execute(self.pool()).await.map(drop)
            }

            async fn insert_order(
                tx: &mut Self::Connection,
                customer: &str,
                cents: i64,
            ) -> Result<i64, sqlx::Error> {
                let insert = "insert into orders (customer, cents) values ($1, $2) returning id";
                sqlx::query_scalar(insert).bind(customer).bind(cents).fetch_one(tx).await
            }

            async fn insert_mail(tx: &mut Self::Connection, order_id: i64) -> Result<(), sqlx::Error> {
                sqlx::query("insert into mails values ($1)").bind(order_id).execute(tx).await.map(drop)
            }
        }
    };
}

database!(SqliteStore, "integer primary key");
#[cfg(feature = "postgres")]
database!(PostgresStore, "bigint generated always as identity primary key");
