//! diesel-async, on PostgreSQL and MySQL.

use diesel::result::Error;
use diesel::sql_types::{BigInt, Binary, Text};
use diesel::{QueryResult, sql_query};
use diesel_async::{AsyncConnection, AsyncMysqlConnection, AsyncPgConnection, RunQueryDsl};
use outbox::message::AppendSql;
use outbox::prelude::*;
use outbox_servers::{MySql, OrSkip, Postgres};

use crate::shop::{AnyError, End, Shop, TABLE, sells};

// ANCHOR: append
async fn append(tx: &mut AsyncPgConnection, event: &AppendSql) -> QueryResult<()> {
    let statement = sql_query(event.postgres());
    statement.bind::<Binary, _>(&event.payload).bind::<Text, _>(&event.fields).execute(tx).await?;
    Ok(())
}
// ANCHOR_END: append

async fn append_mysql(tx: &mut AsyncMysqlConnection, event: &AppendSql) -> QueryResult<()> {
    for sql in event.mysql() {
        let statement = sql_query(*sql).bind::<Binary, _>(&event.payload);
        statement.bind::<Text, _>(&event.fields).execute(tx).await?;
    }
    Ok(())
}

/// A transaction that was to be rolled back was.
fn ended(end: End, result: QueryResult<()>) -> Result<(), AnyError> {
    match result {
        Err(Error::RollbackTransaction) if end == End::RollBack => Ok(()),
        result => Ok(result?),
    }
}

impl Shop for AsyncPgConnection {
    async fn place(&mut self, order_id: i64, events: &[AppendSql], end: End) -> Result<(), AnyError> {
        let placed = self.transaction::<_, Error, _>(async |tx| {
            sql_query("insert into orders values ($1)").bind::<BigInt, _>(order_id).execute(tx).await?;
            for event in events {
                append(tx, event).await?;
            }
            if end == End::Commit { Ok(()) } else { Err(Error::RollbackTransaction) }
        });
        ended(end, placed.await)
    }
}

impl Shop for AsyncMysqlConnection {
    async fn place(&mut self, order_id: i64, events: &[AppendSql], end: End) -> Result<(), AnyError> {
        let placed = self.transaction::<_, Error, _>(async |tx| {
            sql_query("insert into orders values (?)").bind::<BigInt, _>(order_id).execute(tx).await?;
            for event in events {
                append_mysql(tx, event).await?;
            }
            if end == End::Commit { Ok(()) } else { Err(Error::RollbackTransaction) }
        });
        ended(end, placed.await)
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn diesel_async_appends_to_postgres() {
    let Some(server) = Postgres::newest().shared().or_skip() else { return };
    let url = server.fresh_database();
    server.query(&url, TABLE);
    let store = PostgresStore::connect(&url).await.unwrap();
    store.migrate().await.unwrap();
    let mut shop = AsyncPgConnection::establish(&url).await.unwrap();
    sells(store, &mut shop, || server.query(&url, "select count(*) from orders")).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn diesel_async_appends_to_mysql() {
    let Some(server) = MySql::newest().shared().or_skip() else { return };
    let url = server.fresh_database();
    server.query(&url, TABLE);
    let store = MySqlStore::connect(&url).await.unwrap();
    store.migrate().await.unwrap();
    let mut shop = AsyncMysqlConnection::establish(&url).await.unwrap();
    sells(store, &mut shop, || server.query(&url, "select count(*) from orders")).await;
}
