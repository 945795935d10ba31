//! rusqlite, whose SQLite is that of the store.

use std::path::Path;

use outbox::message::AppendSql;
use outbox::prelude::*;
use rusqlite::{Connection, Transaction, TransactionBehavior};

use crate::shop::{AnyError, End, Shop, TABLE, sells};

// ANCHOR: append
fn append(tx: &Transaction<'_>, event: &AppendSql) -> rusqlite::Result<()> {
    tx.execute(event.sqlite(), (&event.payload, &event.fields))?;
    Ok(())
}
// ANCHOR_END: append

impl Shop for Connection {
    async fn place(&mut self, order_id: i64, events: &[AppendSql], end: End) -> Result<(), AnyError> {
        let tx = self.transaction_with_behavior(TransactionBehavior::Immediate)?;
        tx.execute("insert into orders values (?1)", [order_id])?;
        for event in events {
            append(&tx, event)?;
        }
        match end {
            End::Commit => tx.commit()?,
            End::RollBack => tx.rollback()?,
        }
        Ok(())
    }
}

/// Returns the number of orders.
pub fn orders(path: &Path) -> String {
    let connection = Connection::open(path).unwrap();
    let count: i64 = connection.query_row("select count(*) from orders", [], |row| row.get(0)).unwrap();
    count.to_string()
}

#[tokio::test(flavor = "multi_thread")]
async fn rusqlite_appends() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("shop.db");
    let store = SqliteStore::open(&path).await.unwrap();
    store.migrate().await.unwrap();
    let mut shop = Connection::open(&path).unwrap();
    shop.execute(TABLE, []).unwrap();
    sells(store, &mut shop, || orders(&path)).await;
}
