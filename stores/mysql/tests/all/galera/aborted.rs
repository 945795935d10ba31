//! Transactions that the commit of another node aborts. The server rolls them back, says so once or
//! not at all, and goes on: nothing of them may be committed afterwards, nor of what comes behind
//! (promise P1).

use outbox_contract::{AppendError, Outgoing, StoreErrorKind, Transactional};
use outbox_store_mysql::MySqlStore;
use sqlx::{MySql, Transaction};

use super::support::{Nodes, append, message, run};

type Tx = Transaction<'static, MySql>;

/// A transaction that has changed an order, and that another node has aborted since.
async fn aborted(nodes: &Nodes, first: &[Outgoing]) -> Tx {
    aborted_in(nodes, &nodes.stores[0], first).await
}

async fn aborted_in(nodes: &Nodes, store: &MySqlStore, first: &[Outgoing]) -> Tx {
    let mut tx = store.begin().await.unwrap();
    sqlx::query("update orders set state = state + 1 where id = 1").execute(&mut *tx).await.unwrap();
    if !first.is_empty() {
        store.append(&mut tx, first).await.unwrap();
    }
    let before = nodes.aborts(0).await;
    nodes.run(1, "update orders set state = 100 where id = 1").await;
    nodes.until_aborted(0, before).await;
    tx
}

fn kind(error: &AppendError) -> StoreErrorKind {
    match error {
        AppendError::Conflict(error) | AppendError::Store(error) => error.kind(),
        other => panic!("expected the store's error, got {other}"),
    }
}

async fn assert_nothing_is_left(nodes: &Nodes) {
    for node in 0..nodes.stores.len() {
        assert_eq!(nodes.number(node, "select count(*) from outbox_message").await, 0);
        assert_eq!(nodes.number(node, "select count(*) from outbox_scheduled").await, 0);
        assert_eq!(nodes.number(node, "select sum(state) from orders").await, 100);
    }
}

/// The connection is as it was: its next user finds the timeouts of the server.
async fn assert_settings_are_back(store: &MySqlStore) {
    for _ in 0..store.pool().size() {
        let settings: (u64, u64, i64, i64) = sqlx::query_as(
            "select @@innodb_lock_wait_timeout, @@wait_timeout, @@autocommit + 0, @outbox_looks is null",
        )
        .fetch_one(store.pool())
        .await
        .unwrap();
        assert_eq!(settings, (50, 28_800, 1, 1));
    }
}

#[tokio::test]
async fn what_comes_behind_an_append_that_was_refused_is_not_committed() {
    let Some(nodes) = Nodes::shared().await else { return };
    let store = &nodes.stores[0];
    let mut tx = aborted(&nodes, &[]).await;
    let refused = store.append(&mut tx, &[message("a").into()]).await.unwrap_err();
    assert_eq!(kind(&refused), StoreErrorKind::Conflict, "{refused}");
    // Somebody passes the error over.
    store.append(&mut tx, &[message("a").into()]).await.unwrap();
    sqlx::query("update orders set state = 7").execute(&mut *tx).await.unwrap();
    let refused = store.commit(tx).await.into_result().unwrap_err();
    assert_eq!(refused.kind(), StoreErrorKind::NotInTransaction, "{refused}");
    assert_nothing_is_left(&nodes).await;
    assert_settings_are_back(store).await;
}

/// As a node that aborts a transaction while it prepares a statement, without telling its client.
#[tokio::test]
async fn what_comes_behind_a_transaction_that_was_lost_in_silence_is_not_committed() {
    let Some(nodes) = Nodes::shared().await else { return };
    let store = &nodes.stores[0];
    for commits in [true, false] {
        let mut tx = store.begin().await.unwrap();
        store.append(&mut tx, &[message("a").into()]).await.unwrap();
        run(&mut tx, "rollback").await;
        sqlx::query("update orders set state = 7").execute(&mut *tx).await.unwrap();
        store.append(&mut tx, &[message("b").into()]).await.unwrap();
        if commits {
            let refused = store.commit(tx).await.into_result().unwrap_err();
            assert_eq!(refused.kind(), StoreErrorKind::NotInTransaction, "{refused}");
        } else {
            store.rollback(tx).await.unwrap();
        }
    }
    assert_eq!(nodes.number(0, "select count(*) from outbox_message").await, 0);
    assert_eq!(nodes.number(0, "select sum(state) from orders").await, 0);
    assert_settings_are_back(store).await;
}

/// A pool of the user's own, whose connections are never restored: there the server continues in
/// autocommit.
#[tokio::test]
async fn an_append_behind_a_refused_one_is_refused_too_in_a_pool_of_the_users() {
    let Some(nodes) = Nodes::shared().await else { return };
    let store = MySqlStore::new(MySqlStore::pool_options().connect(&nodes.urls[0]).await.unwrap());
    let mut tx = aborted_in(&nodes, &store, &[]).await;
    let refused = store.append(&mut tx, &[message("a").into()]).await.unwrap_err();
    assert_eq!(kind(&refused), StoreErrorKind::Conflict, "{refused}");
    let refused = store.append(&mut tx, &[message("a").into()]).await.unwrap_err();
    assert_eq!(kind(&refused), StoreErrorKind::NotInTransaction, "{refused}");
    let refused = store.commit(tx).await.into_result().unwrap_err();
    assert_eq!(refused.kind(), StoreErrorKind::NotInTransaction, "{refused}");
    assert_nothing_is_left(&nodes).await;
    assert_settings_are_back(&store).await;
}

#[tokio::test]
async fn a_commit_is_refused_with_all_that_was_appended() {
    let Some(nodes) = Nodes::shared().await else { return };
    let store = &nodes.stores[0];
    let tx = aborted(&nodes, &[message("a").into()]).await;
    let refused = store.commit(tx).await;
    assert!(matches!(refused, outbox_contract::backend::Committed::No(_)), "{refused:?}");
    assert_eq!(refused.into_result().unwrap_err().kind(), StoreErrorKind::Conflict);
    assert_nothing_is_left(&nodes).await;
    assert_settings_are_back(store).await;
}

/// Half of the append is done: the rows that follow are written by a statement that the connection
/// has not prepared yet.
#[tokio::test]
async fn a_statement_that_is_prepared_behind_the_abort_is_refused_too() {
    let Some(nodes) = Nodes::shared().await else { return };
    let store = &nodes.stores[0];
    let mut tx = aborted(&nodes, &[message("a").into()]).await;
    let refused =
        sqlx::query("insert into orders values (?, 7)").bind(7).execute(&mut *tx).await.unwrap_err();
    assert!(store.is_conflict(&refused), "{refused}");
    store.append(&mut tx, &[message("b").into()]).await.unwrap();
    let refused = store.commit(tx).await.into_result().unwrap_err();
    assert_eq!(refused.kind(), StoreErrorKind::NotInTransaction, "{refused}");
    assert_nothing_is_left(&nodes).await;
    assert_settings_are_back(store).await;
}

#[tokio::test]
async fn rolling_back_what_is_rolled_back_leaves_no_setting_behind() {
    let Some(nodes) = Nodes::shared().await else { return };
    let store = &nodes.stores[0];
    let tx = aborted(&nodes, &[message("a").into()]).await;
    store.rollback(tx).await.unwrap();
    assert_settings_are_back(store).await;
    drop(aborted(&nodes, &[message("a").into()]).await);
    assert_settings_are_back(store).await;
    append(store, &[message("a")]).await;
    assert_eq!(nodes.number(2, "select count(*) from outbox_message").await, 1);
}

#[tokio::test]
async fn of_two_nodes_that_append_to_a_key_at_once_one_is_refused() {
    let Some(nodes) = Nodes::shared().await else { return };
    let [one, other] = [&nodes.stores[0], &nodes.stores[1]];
    let mut first = one.begin().await.unwrap();
    let mut second = other.begin().await.unwrap();
    one.append(&mut first, &[message("a").into()]).await.unwrap();
    other.append(&mut second, &[message("a").into()]).await.unwrap();
    other.commit(second).await.into_result().unwrap();
    let refused = one.commit(first).await.into_result().unwrap_err();
    assert_eq!(refused.kind(), StoreErrorKind::Conflict, "{refused}");
    append(one, &[message("a")]).await;
    let numbers =
        nodes.number(2, "select group_concat(number order by number) + 0 from outbox_message").await;
    assert_eq!(numbers, 1, "from 1 on");
    assert_eq!(nodes.number(2, "select count(distinct number) from outbox_message").await, 2);
}
