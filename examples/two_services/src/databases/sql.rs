//! SQLite, PostgreSQL and MySQL: the same statements, numbers in and numbers out.

use examples_shared::transports::Failed;
use outbox::prelude::*;
use sqlx::Row;

use super::{Database, State};

macro_rules! database {
    // MySQL has no numbered arguments: they appear in statement order.
    ($store:ty, $integer:literal, $words:expr) => {
        impl Sql for $store {
            const STOCK: &'static str = concat!(
                "select cast(sum(free) as ",
                $integer,
                "), cast(sum(reserved) as ",
                $integer,
                ") from stock"
            );

            async fn create(&self, table: &'static str) -> Result<(), sqlx::Error> {
                sqlx::query(table).execute(self.pool()).await?;
                Ok(())
            }

            async fn execute(
                tx: &mut Self::Connection,
                sql: &'static str,
                values: &[i64],
            ) -> Result<u64, sqlx::Error> {
                let query = sqlx::query(sqlx::AssertSqlSafe($words(sql)));
                let query = values.iter().fold(query, |query, value| query.bind(*value));
                Ok(query.execute(tx).await?.rows_affected())
            }

            async fn pair(&self, sql: &'static str) -> Result<(i64, i64), sqlx::Error> {
                let row = sqlx::query(sql).fetch_one(self.pool()).await?;
                Ok((row.try_get(0)?, row.try_get(1)?))
            }
        }
    };
}

database!(SqliteStore, "bigint", str::to_owned);
#[cfg(feature = "postgres")]
database!(PostgresStore, "bigint", str::to_owned);
#[cfg(feature = "mysql")]
database!(outbox::mysql::MySqlStore, "signed", |sql: &str| ["$1", "$2", "$3"]
    .iter()
    .fold(sql.to_owned(), |sql, number| sql.replace(number, "?")));

/// A store whose transactions accept SQL.
trait Sql: Transactional + Clone {
    /// Query for the sums of the stock. The databases differ in the type of a sum, and in the name
    /// of a 64-bit integer.
    const STOCK: &'static str;

    /// Creates a table. Not in a transaction: on MySQL that would end it.
    fn create(&self, table: &'static str) -> impl Future<Output = Result<(), sqlx::Error>> + Send;

    /// Returns the number of rows that a statement changes. Its arguments appear in order.
    fn execute(
        tx: &mut Self::Connection,
        sql: &'static str,
        values: &[i64],
    ) -> impl Future<Output = Result<u64, sqlx::Error>> + Send;

    /// Returns the two numbers of a query.
    fn pair(&self, sql: &'static str) -> impl Future<Output = Result<(i64, i64), sqlx::Error>> + Send;
}

impl<S: Sql> Database for S {
    async fn make_orders(&self) -> Result<(), Failed> {
        let create =
            "create table orders (id bigint primary key, item bigint not null, state bigint not null)";
        Ok(self.create(create).await?)
    }

    async fn make_stock(&self, items: i64, each: i64) -> Result<(), Failed> {
        for table in [
            "create table stock (item bigint primary key, free bigint not null, reserved bigint not null)",
            // No key on the order: the example shows that each is reserved once.
            "create table reservations (order_id bigint not null, item bigint not null)",
        ] {
            self.create(table).await?;
        }
        let mut tx = self.begin().await?;
        for item in 0..items {
            S::execute(S::connection(&mut tx), "insert into stock values ($1, $2, 0)", &[item, each]).await?;
        }
        Ok(self.commit(tx).await.into_result()?)
    }

    async fn write_order(tx: &mut S::Connection, order: i64, item: i64) -> Result<(), HandlerError> {
        S::execute(tx, "insert into orders values ($1, $2, $3)", &[order, item, State::Waits as i64]).await?;
        Ok(())
    }

    async fn answer(tx: &mut S::Connection, order: i64, state: State) -> Result<bool, HandlerError> {
        let update = "update orders set state = $1 where id = $2 and state = $3";
        Ok(S::execute(tx, update, &[state as i64, order, State::Waits as i64]).await? == 1)
    }

    async fn take(tx: &mut S::Connection, item: i64) -> Result<bool, HandlerError> {
        let take = "update stock set free = free - 1, reserved = reserved + 1 where item = $1 and free > 0";
        Ok(S::execute(tx, take, &[item]).await? == 1)
    }

    async fn reserve(tx: &mut S::Connection, order: i64, item: i64) -> Result<(), HandlerError> {
        S::execute(tx, "insert into reservations values ($1, $2)", &[order, item]).await?;
        Ok(())
    }

    async fn answered(&self) -> Result<(i64, i64), Failed> {
        let count =
            "select count(case when state = 1 then 1 end), count(case when state = 2 then 1 end) from orders";
        Ok(self.pair(count).await?)
    }

    async fn stock(&self) -> Result<(i64, i64), Failed> {
        Ok(self.pair(Self::STOCK).await?)
    }

    async fn reservations(&self) -> Result<(i64, i64), Failed> {
        Ok(self.pair("select count(*), count(distinct order_id) from reservations").await?)
    }
}
