//! PgBouncer in transaction mode: all clients have one session of the server between them, in which
//! the names that drivers give to statements are taken.

use diesel_async::{AsyncConnection, AsyncPgConnection};
use outbox::message::AppendSql;
use outbox::prelude::*;
use outbox_servers::{OrSkip, PgBouncer, PgBouncerServer, Postgres, PostgresServer};
use sea_orm::{ConnectionTrait, Database, DatabaseConnection, DbBackend, Statement, TransactionTrait};
use sqlx::PgPool;
use tokio_postgres::Client;
use tokio_postgres::types::{ToSql, Type};

use crate::shop::{AnyError, End, Shop, TABLE, events};
use crate::with_tokio_postgres::connect;

/// A driver that keeps no statement prepared.
struct Unprepared<D>(D);

impl Shop for Unprepared<Client> {
    async fn place(&mut self, _: i64, events: &[AppendSql], _: End) -> Result<(), AnyError> {
        let tx = self.0.transaction().await?;
        for event in events {
            let parameters: [(&(dyn ToSql + Sync), Type); 2] =
                [(&event.payload, Type::BYTEA), (&event.fields, Type::TEXT)];
            tx.execute_typed(event.postgres(), &parameters).await?;
        }
        Ok(tx.commit().await?)
    }
}

impl Shop for Unprepared<PgPool> {
    async fn place(&mut self, _: i64, events: &[AppendSql], _: End) -> Result<(), AnyError> {
        let mut tx = self.0.begin().await?;
        for event in events {
            let statement = sqlx::query(event.postgres()).persistent(false);
            statement.bind(&event.payload).bind(&event.fields).execute(&mut *tx).await?;
        }
        Ok(tx.commit().await?)
    }
}

impl Shop for Unprepared<DatabaseConnection> {
    async fn place(&mut self, _: i64, events: &[AppendSql], _: End) -> Result<(), AnyError> {
        let tx = self.0.begin().await?;
        for event in events {
            let parameters = [event.payload.clone().into(), event.fields.clone().into()];
            let statement = Statement::from_sql_and_values(DbBackend::Postgres, event.postgres(), parameters);
            tx.execute_unprepared(&statement.to_string()).await?;
        }
        Ok(tx.commit().await?)
    }
}

/// A database with an outbox, behind a pooler with one session.
async fn pooled(
    pooler: fn(&PostgresServer) -> PgBouncer,
) -> Option<(PgBouncerServer, String, PostgresStore)> {
    let server = Postgres::newest().shared().or_skip()?;
    let url = server.fresh_database();
    server.query(&url, TABLE);
    let store = PostgresStore::connect(&url).await.unwrap();
    store.migrate().await.unwrap();
    let pooler = pooler(&server).config("default_pool_size = 1").start().or_skip()?;
    let pooled = pooler.url(&url);
    // As those of another program, which had the session before.
    let names = (0..1_000).map(|n| format!("prepare s{n} as select 1; prepare sqlx_s_{n} as select 1;"));
    connect(&pooled).await.batch_execute(&names.collect::<String>()).await.unwrap();
    Some((pooler, pooled, store))
}

/// Two clients append in turns.
async fn in_turns(first: &mut impl Shop, second: &mut impl Shop) -> Result<(), AnyError> {
    for n in 0..5 {
        first.place(n, &events(&[("\\ \"north\"", n)]), End::Commit).await?;
        second.place(n, &events(&[("\\ \"north\"", n)]), End::Commit).await?;
    }
    Ok(())
}

async fn pending(store: &PostgresStore) -> u64 {
    store.backlog(&Route::default()).await.unwrap().pending
}

#[tokio::test(flavor = "multi_thread")]
async fn every_driver_appends_behind_a_pooler() {
    let Some((_pooler, url, store)) = pooled(PgBouncer::newest).await else { return };
    in_turns(&mut connect(&url).await, &mut connect(&url).await).await.unwrap();
    let sqlx = PgPool::connect(&url).await.unwrap();
    in_turns(&mut sqlx.clone(), &mut PgPool::connect(&url).await.unwrap()).await.unwrap();
    let mut diesel = AsyncPgConnection::establish(&url).await.unwrap();
    in_turns(&mut diesel, &mut AsyncPgConnection::establish(&url).await.unwrap()).await.unwrap();
    let mut sea_orm = Database::connect(&url).await.unwrap();
    in_turns(&mut sea_orm, &mut Database::connect(&url).await.unwrap()).await.unwrap();
    assert_eq!(pending(&store).await, 40);
}

#[tokio::test(flavor = "multi_thread")]
async fn without_prepared_statements_drivers_append_behind_an_old_pooler() {
    let Some((_pooler, url, store)) = pooled(PgBouncer::oldest).await else { return };
    let (first, second) = (connect(&url).await, connect(&url).await);
    in_turns(&mut Unprepared(first), &mut Unprepared(second)).await.unwrap();
    let (first, second) = (PgPool::connect(&url).await.unwrap(), PgPool::connect(&url).await.unwrap());
    in_turns(&mut Unprepared(first), &mut Unprepared(second)).await.unwrap();
    let first = Database::connect(&url).await.unwrap();
    let second = Database::connect(&url).await.unwrap();
    in_turns(&mut Unprepared(first), &mut Unprepared(second)).await.unwrap();
    assert_eq!(pending(&store).await, 30);
}
