//! Number of statements of each step of a message: what is found out beside the work costs none.

use outbox_contract::backend::{Dedup, RelayId};
use outbox_contract::{Consumer, Outgoing, Route, Store, Transactional};
use outbox_servers::{OrSkip, Postgres, PostgresServer};
use outbox_store_postgres::PostgresStore;

use super::support::{fetch, lease, message, messages, open, options};

/// Beside the work of a step: a wake-up, on a connection of its own; and the driver's end of the
/// transaction that is begun behind each commit, when the connection goes back to its pool.
const BESIDE: [&str; 2] = ["pg_notify", "statement: ROLLBACK"];

/// Statements in the log.
fn statements(server: &PostgresServer) -> Vec<String> {
    let is_statement = |line: &&str| {
        let is_beside = BESIDE.iter().any(|words| line.contains(words));
        (line.contains("LOG:  execute") || line.contains("LOG:  statement")) && !is_beside
    };
    server.log().lines().filter(is_statement).map(str::to_owned).collect()
}

/// One message on its way, with the statements of each step.
async fn way(
    server: &PostgresServer,
    store: &PostgresStore,
    relay: RelayId,
    bytes: usize,
) -> Vec<(&'static str, Vec<String>)> {
    let mut before = statements(server).len();
    let mut steps = Vec::new();
    let mut step = |name| {
        let new = statements(server).split_off(before);
        before += new.len();
        steps.push((name, new));
    };
    let outgoing = [Outgoing::from(message("a").with_payload(vec![b'x'; bytes]))];
    let mut tx = store.begin().await.unwrap();
    step("begin");
    store.append(&mut tx, &outgoing).await.unwrap();
    step("append");
    store.commit(tx).await.into_result().unwrap();
    step("commit");
    lease(store, relay).await;
    step("heartbeat");
    let read = messages(&fetch(store, relay).await);
    step("fetch");
    store.settle(&Route::default(), &[read[0].row()]).await.unwrap();
    step("settle");
    let consumer = Consumer::new("inventory").unwrap();
    let mut tx = store.begin().await.unwrap();
    step("begin handling");
    let deduplicated = store.deduplicate(&mut tx, &consumer, &[&read[0].message]).await.unwrap();
    assert_eq!(deduplicated, [Dedup::New]);
    step("deduplicate");
    store.commit(tx).await.into_result().unwrap();
    step("commit handling");
    steps
}

#[tokio::test]
async fn every_step_of_a_message_is_one_statement() {
    let Some(server) = Postgres::newest().config("log_statement = 'all'").start().or_skip() else { return };
    let store = open(&server.url(), options()).await;
    store.migrate().await.unwrap();
    let relay = RelayId::new();
    // Connections are opened, and set.
    way(&server, &store, relay, 10).await;
    for (name, statements) in way(&server, &store, relay, 10).await {
        assert_eq!(statements.len(), 1, "{name}: {statements:#?}");
    }
    // Content that is large is read apart.
    for (name, statements) in way(&server, &store, relay, 100_000).await {
        let count = if name == "fetch" { 2 } else { 1 };
        assert_eq!(statements.len(), count, "{name}: {statements:#?}");
    }
}
