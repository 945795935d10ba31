//! SQLite and PostgreSQL, which understand the same statements.

use examples_shared::transports::Failed;
use outbox::prelude::*;

use super::{Account, Database, OrderRow};

macro_rules! database {
    ($store:ty) => {
        impl Database for $store {
            async fn make_shop(&self) -> Result<(), Failed> {
                for table in [
                    "create table if not exists customers (name text primary key, events bigint not null)",
                    "create table if not exists orders (id text primary key, customer text not null, state text not null, cents bigint not null)",
                ] {
                    sqlx::query(table).execute(self.pool()).await?;
                }
                Ok(())
            }

            async fn make_ledger(&self) -> Result<(), Failed> {
                let table = "create table if not exists accounts (customer text primary key, cents bigint not null, events bigint not null)";
                sqlx::query(table).execute(self.pool()).await?;
                Ok(())
            }

            async fn count_event(tx: &mut Self::Connection, customer: &str) -> Result<u32, HandlerError> {
                let events: i64 = sqlx::query_scalar(
                    "insert into customers values ($1, 1) on conflict (name) do update set events = customers.events + 1
                     returning events",
                )
                .bind(customer)
                .fetch_one(tx)
                .await?;
                Ok(u32::try_from(events)?)
            }

            async fn write_order(tx: &mut Self::Connection, order: &OrderRow<'_>) -> Result<(), HandlerError> {
                sqlx::query(
                    "insert into orders values ($1, $2, $3, $4)
                     on conflict (id) do update set state = excluded.state, cents = orders.cents + excluded.cents",
                )
                .bind(order.id)
                .bind(order.customer)
                .bind(order.state)
                .bind(order.cents)
                .execute(tx)
                .await?;
                Ok(())
            }

            async fn book(tx: &mut Self::Connection, customer: &str, cents: i64) -> Result<(), HandlerError> {
                sqlx::query(
                    "insert into accounts values ($1, $2, 1) on conflict (customer) do update
                     set cents = accounts.cents + excluded.cents, events = accounts.events + 1",
                )
                .bind(customer)
                .bind(cents)
                .execute(tx)
                .await?;
                Ok(())
            }

            async fn customers(&self) -> Result<Vec<(String, u32)>, Failed> {
                let rows = sqlx::query_as("select name, events from customers");
                let rows: Vec<(String, i64)> = rows.fetch_all(self.pool()).await?;
                rows.into_iter().map(|(name, events)| Ok((name, u32::try_from(events)?))).collect()
            }

            async fn cents(&self) -> Result<i64, Failed> {
                let sum = "select cast(coalesce(sum(cents), 0) as bigint) from orders";
                Ok(sqlx::query_scalar(sum).fetch_one(self.pool()).await?)
            }

            async fn accounts(&self) -> Result<Vec<Account>, Failed> {
                let rows = sqlx::query_as("select customer, cents, events from accounts");
                let rows: Vec<(String, i64, i64)> = rows.fetch_all(self.pool()).await?;
                let account = |(customer, cents, events)| Ok(Account { customer, cents, events: u32::try_from(events)? });
                rows.into_iter().map(account).collect::<Result<_, std::num::TryFromIntError>>().map_err(Failed::from)
            }
        }
    };
}

database!(SqliteStore);
#[cfg(feature = "postgres")]
database!(PostgresStore);
