//! sqlx 0.8, beside the stores' 0.9.

use outbox::message::AppendSql;
use outbox::prelude::*;
use outbox_servers::{MySql, OrSkip, Postgres};
use sqlx::{MySqlPool, MySqlTransaction, PgPool, PgTransaction, SqlitePool, SqliteTransaction};

use crate::shop::{AnyError, End, Shop, TABLE, sells};

// ANCHOR: append
async fn append(tx: &mut PgTransaction<'_>, event: &AppendSql) -> sqlx::Result<()> {
    let statement = sqlx::query(event.postgres()).bind(&event.payload).bind(&event.fields);
    statement.execute(&mut **tx).await?;
    Ok(())
}
// ANCHOR_END: append

// ANCHOR: append_mysql
async fn append_mysql(tx: &mut MySqlTransaction<'_>, event: &AppendSql) -> sqlx::Result<()> {
    for sql in event.mysql() {
        sqlx::query(sql).bind(&event.payload).bind(&event.fields).execute(&mut **tx).await?;
    }
    Ok(())
}
// ANCHOR_END: append_mysql

async fn append_sqlite(tx: &mut SqliteTransaction<'_>, event: &AppendSql) -> sqlx::Result<()> {
    sqlx::query(event.sqlite()).bind(&event.payload).bind(&event.fields).execute(&mut **tx).await?;
    Ok(())
}

impl Shop for PgPool {
    async fn place(&mut self, order_id: i64, events: &[AppendSql], end: End) -> Result<(), AnyError> {
        let mut tx = self.begin().await?;
        sqlx::query("insert into orders values ($1)").bind(order_id).execute(&mut *tx).await?;
        for event in events {
            append(&mut tx, event).await?;
        }
        match end {
            End::Commit => tx.commit().await?,
            End::RollBack => tx.rollback().await?,
        }
        Ok(())
    }
}

impl Shop for MySqlPool {
    async fn place(&mut self, order_id: i64, events: &[AppendSql], end: End) -> Result<(), AnyError> {
        let mut tx = self.begin().await?;
        sqlx::query("insert into orders values (?)").bind(order_id).execute(&mut *tx).await?;
        for event in events {
            append_mysql(&mut tx, event).await?;
        }
        match end {
            End::Commit => tx.commit().await?,
            End::RollBack => tx.rollback().await?,
        }
        Ok(())
    }
}

impl Shop for SqlitePool {
    async fn place(&mut self, order_id: i64, events: &[AppendSql], end: End) -> Result<(), AnyError> {
        let mut tx = self.begin_with("begin immediate").await?;
        sqlx::query("insert into orders values (?1)").bind(order_id).execute(&mut *tx).await?;
        for event in events {
            append_sqlite(&mut tx, event).await?;
        }
        match end {
            End::Commit => tx.commit().await?,
            End::RollBack => tx.rollback().await?,
        }
        Ok(())
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn sqlx_appends_to_postgres() {
    let Some(server) = Postgres::newest().shared().or_skip() else { return };
    let url = server.fresh_database();
    server.query(&url, TABLE);
    let store = PostgresStore::connect(&url).await.unwrap();
    store.migrate().await.unwrap();
    let mut shop = PgPool::connect(&url).await.unwrap();
    sells(store, &mut shop, || server.query(&url, "select count(*) from orders")).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn sqlx_appends_to_mysql() {
    let Some(server) = MySql::newest().shared().or_skip() else { return };
    let url = server.fresh_database();
    server.query(&url, TABLE);
    let store = MySqlStore::connect(&url).await.unwrap();
    store.migrate().await.unwrap();
    let mut shop = MySqlPool::connect(&url).await.unwrap();
    sells(store, &mut shop, || server.query(&url, "select count(*) from orders")).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn sqlx_appends_to_sqlite() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("shop.db");
    let store = SqliteStore::open(&path).await.unwrap();
    store.migrate().await.unwrap();
    let mut shop = SqlitePool::connect(&format!("sqlite:{}", path.display())).await.unwrap();
    sqlx::query(TABLE).execute(&shop).await.unwrap();
    sells(store, &mut shop, || crate::with_rusqlite::orders(&path)).await;
}
