//! SeaORM 1, which is built on sqlx 0.8.

use outbox::message::AppendSql;
use outbox::prelude::*;
use outbox_servers::{MySql, OrSkip, Postgres};
use sea_orm::{
    ConnectionTrait, Database, DatabaseConnection, DatabaseTransaction, DbBackend, DbErr, Statement,
    TransactionTrait,
};

use crate::shop::{AnyError, End, Shop, TABLE, sells};

// ANCHOR: append
async fn append(tx: &DatabaseTransaction, event: &AppendSql) -> Result<(), DbErr> {
    let database = tx.get_database_backend();
    let statements = match database {
        DbBackend::MySql => event.mysql().to_vec(),
        DbBackend::Postgres => vec![event.postgres()],
        DbBackend::Sqlite => vec![event.sqlite()],
    };
    for sql in statements {
        let parameters = [event.payload.clone().into(), event.fields.clone().into()];
        tx.execute(Statement::from_sql_and_values(database, sql, parameters)).await?;
    }
    Ok(())
}
// ANCHOR_END: append

impl Shop for DatabaseConnection {
    async fn place(&mut self, order_id: i64, events: &[AppendSql], end: End) -> Result<(), AnyError> {
        let tx = self.begin().await?;
        tx.execute_unprepared(&format!("insert into orders values ({order_id})")).await?;
        for event in events {
            append(&tx, event).await?;
        }
        match end {
            End::Commit => tx.commit().await?,
            End::RollBack => tx.rollback().await?,
        }
        Ok(())
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn sea_orm_appends_to_postgres() {
    let Some(server) = Postgres::newest().shared().or_skip() else { return };
    let url = server.fresh_database();
    server.query(&url, TABLE);
    let store = PostgresStore::connect(&url).await.unwrap();
    store.migrate().await.unwrap();
    let mut shop = Database::connect(&url).await.unwrap();
    sells(store, &mut shop, || server.query(&url, "select count(*) from orders")).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn sea_orm_appends_to_mysql() {
    let Some(server) = MySql::newest().shared().or_skip() else { return };
    let url = server.fresh_database();
    server.query(&url, TABLE);
    let store = MySqlStore::connect(&url).await.unwrap();
    store.migrate().await.unwrap();
    let mut shop = Database::connect(&url).await.unwrap();
    sells(store, &mut shop, || server.query(&url, "select count(*) from orders")).await;
}

/// It can't begin with `begin immediate`; its first statement takes the lock, since it writes.
#[tokio::test(flavor = "multi_thread")]
async fn sea_orm_appends_to_sqlite() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("shop.db");
    let store = SqliteStore::open(&path).await.unwrap();
    store.migrate().await.unwrap();
    let mut shop = Database::connect(format!("sqlite:{}", path.display())).await.unwrap();
    shop.execute_unprepared(TABLE).await.unwrap();
    sells(store, &mut shop, || crate::with_rusqlite::orders(&path)).await;
}
