//! mysql_async, on MySQL and MariaDB.

use mysql_async::prelude::*;
use mysql_async::{Pool, Transaction, TxOpts};
use outbox::message::AppendSql;
use outbox::prelude::*;
use outbox_servers::{MariaDb, Missing, MySql, MySqlServer, OrSkip};

use crate::shop::{AnyError, End, Shop, TABLE, sells};

// ANCHOR: append
async fn append(tx: &mut Transaction<'_>, event: &AppendSql) -> mysql_async::Result<()> {
    for sql in event.mysql() {
        tx.exec_drop(*sql, (&event.payload, &event.fields)).await?;
    }
    Ok(())
}
// ANCHOR_END: append

impl Shop for Pool {
    async fn place(&mut self, order_id: i64, events: &[AppendSql], end: End) -> Result<(), AnyError> {
        let mut connection = self.get_conn().await?;
        // No time that is stored is that of the session.
        connection.query_drop("set time_zone = '+05:00'").await?;
        let mut tx = connection.start_transaction(TxOpts::new()).await?;
        tx.exec_drop("insert into orders values (?)", (order_id,)).await?;
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

async fn appends_to(server: Result<MySqlServer, Missing>) {
    let Some(server) = server.or_skip() else { return };
    let url = server.fresh_database();
    server.query(&url, TABLE);
    let store = MySqlStore::connect(&url).await.unwrap();
    store.migrate().await.unwrap();
    let mut shop = Pool::new(url.as_str());
    sells(store, &mut shop, || server.query(&url, "select count(*) from orders")).await;
    shop.disconnect().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn mysql_async_appends_to_mysql() {
    appends_to(MySql::newest().shared()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn mysql_async_appends_to_mariadb() {
    appends_to(MariaDb::newest().shared()).await;
}
