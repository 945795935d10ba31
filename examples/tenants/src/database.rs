//! Statements of the tenants and of the ledger: the same on SQLite and PostgreSQL.

use std::future::Future;

use outbox::prelude::*;

/// A store with the tables of a tenant, or of the ledger.
pub(crate) trait Database: Transactional + Clone {
    /// Creates missing tables.
    fn create_tables(&self) -> impl Future<Output = Result<(), sqlx::Error>> + Send;

    /// Writes an order of a tenant.
    fn insert_order(
        tx: &mut Self::Connection,
        number: i64,
        cents: i64,
    ) -> impl Future<Output = Result<(), sqlx::Error>> + Send;

    /// Books an order of a tenant in the ledger.
    fn book(
        tx: &mut Self::Connection,
        tenant: &str,
        cents: i64,
    ) -> impl Future<Output = Result<(), sqlx::Error>> + Send;

    /// Returns the tenants of the ledger, each with its orders and its cents.
    fn booked(&self) -> impl Future<Output = Result<Vec<(String, i64, i64)>, sqlx::Error>> + Send;
}

macro_rules! database {
    ($store:ty) => {
        impl Database for $store {
            async fn create_tables(&self) -> Result<(), sqlx::Error> {
                for table in [
                    "create table if not exists orders (number bigint primary key, cents bigint not null)",
                    "create table if not exists bookings (tenant text not null, cents bigint not null)",
                ] {
                    sqlx::query(table).execute(self.pool()).await?;
                }
                Ok(())
            }

            async fn insert_order(
                tx: &mut Self::Connection,
                number: i64,
                cents: i64,
            ) -> Result<(), sqlx::Error> {
                let insert = sqlx::query("insert into orders values ($1, $2)");
                insert.bind(number).bind(cents).execute(tx).await.map(drop)
            }

            async fn book(tx: &mut Self::Connection, tenant: &str, cents: i64) -> Result<(), sqlx::Error> {
                let insert = sqlx::query("insert into bookings values ($1, $2)");
                insert.bind(tenant).bind(cents).execute(tx).await.map(drop)
            }

            async fn booked(&self) -> Result<Vec<(String, i64, i64)>, sqlx::Error> {
                let select = "select tenant, count(*), cast(sum(cents) as bigint) from bookings \
                              group by tenant order by tenant";
                sqlx::query_as(select).fetch_all(self.pool()).await
            }
        }
    };
}

database!(SqliteStore);
#[cfg(feature = "postgres")]
database!(PostgresStore);
