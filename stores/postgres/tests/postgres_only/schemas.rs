//! Several outboxes in one database, and migrations that somebody else's tool runs.

use outbox_contract::Store;
use outbox_servers::{OrSkip, Postgres};
use outbox_store_postgres::PostgresStore;

use super::support::{append, fetch, message, messages, open, options, relay};

#[tokio::test]
async fn each_schema_has_an_outbox_of_its_own() {
    let Some(server) = Postgres::newest().shared().or_skip() else { return };
    let url = server.fresh_database();
    let mut stores = Vec::new();
    for schema in [None, Some("shop"), Some("stock")] {
        let mut options = options();
        options.schema = schema.map(str::to_owned);
        let store = open(&url, options).await;
        store.migrate().await.unwrap();
        store.check().await.unwrap();
        stores.push(store);
    }
    for (number, store) in stores.iter().enumerate() {
        append(store, (0..=number).map(|n| message(&format!("key-{n}")))).await;
    }
    server.query(&url, "select shop.outbox_append('orders', 'x', key => 'a')");
    server.query(&url, "insert into stock.outbox_message (topic, event_type) values ('orders', 'x')");
    for (store, count) in stores.iter().zip([1, 3, 4]) {
        let relay = relay(store).await;
        let read = messages(&fetch(store, relay).await);
        assert_eq!(read.len(), count);
        let positions: Vec<i64> = read.iter().map(|stored| stored.position.0).collect();
        assert_eq!(positions, (1..=i64::try_from(count).unwrap()).collect::<Vec<_>>());
        let rows: Vec<_> = read.iter().map(|stored| stored.row()).collect();
        store.settle(&Default::default(), &rows).await.unwrap();
        assert_eq!(store.backlog(&Default::default()).await.unwrap().pending, 0);
    }
}

#[tokio::test]
async fn another_tool_can_run_the_migrations() {
    let Some(server) = Postgres::newest().shared().or_skip() else { return };
    let url = server.fresh_database();
    server.query(&url, "create schema shop");
    for migration in PostgresStore::migrations() {
        server.query(&url, &format!("set search_path to shop; {}", migration.sql));
    }
    let mut options = options();
    options.schema = Some("shop".to_owned());
    let store = open(&url, options).await;
    store.check().await.unwrap();
    store.migrate().await.unwrap();
    append(&store, [message("a")]).await;
    let relay = relay(&store).await;
    assert_eq!(fetch(&store, relay).await.rows.len(), 1);
}
