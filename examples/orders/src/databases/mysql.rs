//! MySQL and MariaDB, which have no `on conflict` and no `returning`.

use examples_shared::transports::Failed;
use outbox::mysql::MySqlStore;
use outbox::prelude::*;

use super::{Account, Database, OrderRow};

impl Database for MySqlStore {
    async fn make_shop(&self) -> Result<(), Failed> {
        for table in [
            "create table if not exists customers (name varchar(255) primary key, events bigint not null)",
            "create table if not exists orders (id varchar(255) primary key, customer varchar(255) not null, state varchar(255) not null, cents bigint not null)",
        ] {
            sqlx::query(table).execute(self.pool()).await?;
        }
        Ok(())
    }

    async fn make_ledger(&self) -> Result<(), Failed> {
        let table = "create table if not exists accounts (customer varchar(255) primary key, cents bigint not null, events bigint not null)";
        sqlx::query(table).execute(self.pool()).await?;
        Ok(())
    }

    async fn count_event(tx: &mut Self::Connection, customer: &str) -> Result<u32, HandlerError> {
        let count = "insert into customers values (?, 1) on duplicate key update events = events + 1";
        sqlx::query(count).bind(customer).execute(&mut *tx).await?;
        let events = sqlx::query_scalar("select events from customers where name = ?").bind(customer);
        let events: i64 = events.fetch_one(&mut *tx).await?;
        Ok(u32::try_from(events)?)
    }

    async fn write_order(tx: &mut Self::Connection, order: &OrderRow<'_>) -> Result<(), HandlerError> {
        sqlx::query(
            "insert into orders values (?, ?, ?, ?)
             on duplicate key update state = values(state), cents = cents + values(cents)",
        )
        .bind(order.id)
        .bind(order.customer)
        .bind(order.state)
        .bind(order.cents)
        .execute(&mut *tx)
        .await?;
        Ok(())
    }

    async fn book(tx: &mut Self::Connection, customer: &str, cents: i64) -> Result<(), HandlerError> {
        let book = "insert into accounts values (?, ?, 1)
                    on duplicate key update cents = cents + values(cents), events = events + 1";
        sqlx::query(book).bind(customer).bind(cents).execute(&mut *tx).await?;
        Ok(())
    }

    async fn customers(&self) -> Result<Vec<(String, u32)>, Failed> {
        let rows = sqlx::query_as("select name, events from customers");
        let rows: Vec<(String, i64)> = rows.fetch_all(self.pool()).await?;
        rows.into_iter().map(|(name, events)| Ok((name, u32::try_from(events)?))).collect()
    }

    async fn cents(&self) -> Result<i64, Failed> {
        let sum = "select cast(coalesce(sum(cents), 0) as signed) from orders";
        Ok(sqlx::query_scalar(sum).fetch_one(self.pool()).await?)
    }

    async fn accounts(&self) -> Result<Vec<Account>, Failed> {
        let rows = sqlx::query_as("select customer, cents, events from accounts");
        let rows: Vec<(String, i64, i64)> = rows.fetch_all(self.pool()).await?;
        rows.into_iter()
            .map(|(customer, cents, events)| Ok(Account { customer, cents, events: u32::try_from(events)? }))
            .collect()
    }
}
