//! tokio-postgres: its listing is that of `examples/other_driver`, which runs it too.

use outbox::message::AppendSql;
use outbox::prelude::*;
use outbox_servers::{OrSkip, Postgres};
use tokio_postgres::{Client, NoTls};

use crate::shop::{AnyError, End, Shop, TABLE, sells};

impl Shop for Client {
    async fn place(&mut self, order_id: i64, events: &[AppendSql], end: End) -> Result<(), AnyError> {
        let tx = self.transaction().await?;
        // No time that is stored is that of the session.
        tx.batch_execute("set local time zone '-05:00'; set local datestyle = 'German'").await?;
        tx.execute("insert into orders values ($1)", &[&order_id]).await?;
        for event in events {
            tx.execute(event.postgres(), &[&event.payload, &event.fields]).await?;
        }
        match end {
            End::Commit => tx.commit().await?,
            End::RollBack => tx.rollback().await?,
        }
        Ok(())
    }
}

/// Connects.
pub async fn connect(url: &str) -> Client {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await.unwrap();
    tokio::spawn(connection);
    client
}

#[tokio::test(flavor = "multi_thread")]
async fn tokio_postgres_appends() {
    let Some(server) = Postgres::oldest().shared().or_skip() else { return };
    let url = server.fresh_database();
    server.query(&url, TABLE);
    let store = PostgresStore::connect(&url).await.unwrap();
    store.migrate().await.unwrap();
    let mut shop = connect(&url).await;
    sells(store, &mut shop, || server.query(&url, "select count(*) from orders")).await;
}
