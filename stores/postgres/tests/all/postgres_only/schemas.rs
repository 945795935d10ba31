//! Several outboxes in one database, and migrations that another tool runs.

use futures_util::StreamExt as _;
use outbox_contract::Store;
use outbox_contract::backend::Wakeup;
use outbox_servers::{OrSkip, Postgres};
use outbox_store_postgres::PostgresStore;

use super::support::{LONG, append, fetch, message, messages, open, options, relay};

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

/// The channel is that of the schema in use, however a program came by it.
#[tokio::test]
async fn programs_that_find_a_schema_in_different_ways_wake_one_another() {
    let Some(server) = Postgres::newest().shared().or_skip() else { return };
    let odd = "It's a name of \"ours\", so long that the name of its channel is cut";
    for (schema, option) in [("shop", Some("shop")), (odd, None)] {
        let url = server.fresh_database();
        let quoted = format!("\"{}\"", schema.replace('"', "\"\""));
        let database = server.query(&url, "select current_database()");
        server.query(&url, &format!("create schema {quoted}"));
        server.query(&url, &format!("alter database {database} set search_path = {quoted}"));
        let by_path = open(&url, options()).await;
        by_path.migrate().await.unwrap();
        let mut named = options();
        named.schema = option.map(str::to_owned);
        let other = open(&url, named).await;
        for (listener, sender) in [(&by_path, &other), (&other, &by_path)] {
            let mut heard = listener.wakeups();
            // The first one says that it listens.
            assert_eq!(heard.next().await, Some(Wakeup::Now));
            append(sender, [message("a")]).await;
            let woken = async { while heard.next().await != Some(Wakeup::Now) {} };
            tokio::time::timeout(LONG, woken).await.expect("the other program is woken");
        }
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

/// A name in the `search_path` that stands for the current user, and functions that are called by
/// another role.
#[tokio::test]
async fn a_role_that_appends_to_the_outbox_of_another_role_appends_to_that_one() {
    let Some(server) = Postgres::newest().shared().or_skip() else { return };
    for by_hand in [false, true] {
        let url = server.fresh_database();
        let database = url.rsplit('/').next().unwrap();
        let (_, at) = url.split_once('@').unwrap();
        let [alice, bob] = ["alice", "bob"].map(|name| format!("{name}_{database}"));
        let mut stores = Vec::new();
        for role in [&alice, &bob] {
            server.query(&url, &format!("create role {role} login superuser; create schema {role}"));
            let address = format!("postgres://{role}@{at}");
            let store = open(&address, options()).await;
            if by_hand {
                for migration in PostgresStore::migrations() {
                    server.query(&address, migration.sql);
                }
            }
            store.migrate().await.unwrap();
            store.check().await.unwrap();
            stores.push(store);
        }
        append(&stores[0], (0..5).map(|n| message(&format!("key-{n}")))).await;
        let as_bob = format!("postgres://{bob}@{at}");
        server.query(
            &as_bob,
            &format!("insert into {alice}.outbox_message (topic, event_type) values ('orders', 'x')"),
        );
        server.query(&as_bob, &format!("select {alice}.outbox_append('orders', 'x')"));
        let relay_of_alice = relay(&stores[0]).await;
        let read = messages(&fetch(&stores[0], relay_of_alice).await);
        let positions: Vec<i64> = read.iter().map(|stored| stored.position.0).collect();
        assert_eq!(positions, [1, 2, 3, 4, 5, 6, 7]);
        assert_eq!(stores[1].backlog(&Default::default()).await.unwrap().pending, 0);
    }
}
