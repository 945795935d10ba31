//! Diesel, on SQLite: its drivers for PostgreSQL and MySQL need the C clients of these databases.

use diesel::prelude::*;
use diesel::result::Error;
use diesel::sql_query;
use diesel::sql_types::{BigInt, Binary, Text};
use outbox::message::AppendSql;
use outbox::prelude::*;

use crate::shop::{AnyError, End, Shop, TABLE, sells};

// ANCHOR: append
fn append(tx: &mut SqliteConnection, event: &AppendSql) -> QueryResult<()> {
    let statement = sql_query(event.sqlite()); // on PostgreSQL, `event.postgres()`
    statement.bind::<Binary, _>(&event.payload).bind::<Text, _>(&event.fields).execute(tx)?;
    Ok(())
}
// ANCHOR_END: append

impl Shop for SqliteConnection {
    async fn place(&mut self, order_id: i64, events: &[AppendSql], end: End) -> Result<(), AnyError> {
        let placed = self.immediate_transaction(|tx| {
            sql_query("insert into orders values (?)").bind::<BigInt, _>(order_id).execute(tx)?;
            for event in events {
                append(tx, event)?;
            }
            if end == End::Commit { Ok(()) } else { Err(Error::RollbackTransaction) }
        });
        match placed {
            Err(Error::RollbackTransaction) => Ok(()),
            placed => Ok(placed?),
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn diesel_appends() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("shop.db");
    let store = SqliteStore::open(&path).await.unwrap();
    store.migrate().await.unwrap();
    let mut shop = SqliteConnection::establish(path.to_str().unwrap()).unwrap();
    sql_query(TABLE).execute(&mut shop).unwrap();
    sells(store, &mut shop, || crate::with_rusqlite::orders(&path)).await;
}
