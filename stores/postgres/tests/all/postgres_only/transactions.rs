//! Transactions: failures that the driver does not report, and the server's handling of idle ones.

use std::time::Duration;

use outbox_contract::backend::{Committed, Dedup};
use outbox_contract::{AppendError, Consumer, Store, StoreErrorKind, Transactional};
use outbox_servers::{OrSkip, Postgres, Proxy};
use tokio::time::timeout;

use super::support::{Fixture, LONG, append, message, open, options, run};

/// The server answers the COMMIT of such a transaction with success, and rolls it back.
#[tokio::test]
async fn a_transaction_in_which_a_statement_failed_is_never_committed() {
    let Some(fixture) = Fixture::new().await else { return };
    let store = &fixture.store;
    for begins_another in [false, true] {
        let mut tx = store.begin().await.unwrap();
        store.append(&mut tx, &[message("a").into()]).await.unwrap();
        sqlx::query("select 1 / 0").execute(&mut *tx).await.unwrap_err();
        let (committed, begun) =
            if begins_another { store.commit_and_begin(tx).await } else { (store.commit(tx).await, None) };
        match committed {
            Committed::No(error) => assert_eq!(error.kind(), StoreErrorKind::NotInTransaction, "{error}"),
            other => panic!("{other:?}"),
        }
        assert!(begun.is_none());
    }
    assert_eq!(fixture.number("select count(*) from outbox_message").await, 0);
    // Its connection returns to the pool.
    append(store, [message("a")]).await;
    assert_eq!(fixture.number("select count(*) from outbox_message").await, 1);
}

#[tokio::test]
async fn appending_to_a_transaction_that_failed_is_refused_with_the_remedy() {
    let Some(fixture) = Fixture::new().await else { return };
    let mut tx = fixture.store.begin().await.unwrap();
    sqlx::query("select 1 / 0").execute(&mut *tx).await.unwrap_err();
    let refused = fixture.store.append(&mut tx, &[message("a").into()]).await;
    let Err(AppendError::Store(error)) = refused else { panic!("{refused:?}") };
    assert_eq!(error.kind(), StoreErrorKind::NotInTransaction);
    assert!(error.to_string().contains("start again"), "{error}");
    fixture.store.rollback(tx).await.unwrap();
}

#[tokio::test]
async fn a_commit_that_the_server_refuses_is_known_not_to_have_happened() {
    let Some(fixture) = Fixture::new().await else { return };
    fixture
        .run("create table parent (id int primary key); create table child (id int references parent initially deferred)")
        .await;
    let mut tx = fixture.store.begin().await.unwrap();
    run(&mut tx, "insert into child values (1)").await;
    fixture.store.append(&mut tx, &[message("a").into()]).await.unwrap();
    assert!(matches!(fixture.store.commit(tx).await, Committed::No(_)));
    assert_eq!(fixture.number("select count(*) from outbox_message").await, 0);
}

/// The connections that commits return are clean: they have no open transaction.
#[tokio::test]
async fn nothing_is_left_open_behind_a_commit() {
    // A server of its own, for its log.
    let Some(server) = Postgres::newest().start().or_skip() else { return };
    let fixture = Fixture::on(server, options()).await;
    for _ in 0..5 {
        append(&fixture.store, [message("a")]).await;
        let (committed, begun) = fixture.store.commit_and_begin(fixture.store.begin().await.unwrap()).await;
        committed.into_result().unwrap();
        drop(begun.unwrap());
    }
    let idle = "select case when count(*) = 0 then 1::bigint else 0 end from pg_stat_activity \
                where datname = current_database() and state like 'idle in transaction%'";
    fixture.until(idle, 1).await;
    assert_eq!(fixture.number("select count(*) from outbox_message").await, 5);
    let warnings = fixture.server.log().matches("there is no transaction in progress").count();
    assert_eq!(warnings, 0, "no commit or rollback is sent without a transaction");
}

/// The driver counts a transaction when its BEGIN is answered: if it is dropped before, the driver
/// would return the connection with an open one.
#[tokio::test]
async fn a_begin_that_is_dropped_half_way_leaves_no_transaction_on_its_connection() {
    // A server of its own, for its log.
    let Some(server) = Postgres::newest().start().or_skip() else { return };
    let mut one = options();
    one.connections = 1;
    let fixture = Fixture::on(server, one).await;
    append(&fixture.store, [message("a")]).await;
    for _ in 0..20 {
        // Polled once: the BEGIN is on its way, and mostly not answered yet.
        let _ = timeout(Duration::ZERO, fixture.store.begin()).await;
        // By itself, and so committed at once.
        sqlx::query("select pg_current_xact_id()").execute(fixture.store.pool()).await.unwrap();
        append(&fixture.store, [message("a")]).await;
    }
    assert_eq!(fixture.number("select count(*) from outbox_message").await, 21);
    let warnings = fixture.server.log().matches("there is already a transaction in progress").count();
    assert_eq!(warnings, 0, "no transaction is begun within another");
}

#[tokio::test]
async fn a_commit_whose_answer_is_lost_is_unknown_and_the_recorded_id_tells() {
    let Some(fixture) = Fixture::new().await else { return };
    let proxy = Proxy::to(&fixture.url);
    let store = open(&proxy.url(&fixture.url), options()).await;
    let consumer = Consumer::new("inventory").unwrap();
    let handled = message("a");
    let mut tx = store.begin().await.unwrap();
    assert_eq!(store.deduplicate(&mut tx, &consumer, &[&handled]).await.unwrap(), [Dedup::New]);

    proxy.swallow_answers();
    let committing = tokio::spawn({
        let store = store.clone();
        async move { store.commit(tx).await }
    });
    // The server has committed; the client never learns of it.
    fixture.until("select count(*) from outbox_handled", 1).await;
    proxy.cut();
    let committed = committing.await.unwrap();
    assert!(matches!(committed, Committed::Unknown(_)), "{committed:?}");
    proxy.pass();
    assert!(fixture.store.is_handled(&consumer, handled.id).await.unwrap());
}

#[tokio::test]
async fn transactions_that_are_begun_here_have_their_timeouts() {
    let mut options = options();
    options.lock_timeout = Duration::from_millis(4_500);
    options.transaction_idle_timeout = Duration::from_millis(11_500);
    let Some(fixture) = Fixture::with(options).await else { return };
    let mut tx = fixture.store.begin().await.unwrap();
    for _ in 0..2 {
        let set: (String, String) = sqlx::query_as(
            "select current_setting('lock_timeout'), current_setting('idle_in_transaction_session_timeout')",
        )
        .fetch_one(&mut *tx)
        .await
        .unwrap();
        assert_eq!(set, ("4500ms".to_owned(), "11500ms".to_owned()));
        // And so has a transaction that is begun with a commit.
        let (committed, begun) = fixture.store.commit_and_begin(tx).await;
        committed.into_result().unwrap();
        tx = begun.unwrap();
    }
    fixture.store.rollback(tx).await.unwrap();
    // For the transaction alone: the connection is the user's.
    let mut connection = fixture.store.pool().acquire().await.unwrap();
    let after: String = sqlx::query_scalar("select current_setting('lock_timeout')")
        .fetch_one(&mut *connection)
        .await
        .unwrap();
    assert_eq!(after, "0");
}

/// A paused program's locks do not outlive its lease: its successor can continue.
#[tokio::test]
async fn a_transaction_that_is_idle_for_too_long_is_ended_and_its_locks_are_free() {
    let mut options = options();
    options.transaction_idle_timeout = Duration::from_millis(500);
    let Some(fixture) = Fixture::with(options).await else { return };
    let mut tx = fixture.store.begin().await.unwrap();
    fixture.store.append(&mut tx, &[message("a").into()]).await.unwrap();
    // Begun by hand, it waits for as long as necessary.
    let other =
        fixture.run("insert into outbox_message (topic, key, event_type) values ('orders', 'a', 'x')");
    tokio::time::timeout(LONG, other).await.expect("the locks of an idle transaction are free");
    let committed = fixture.store.commit(tx).await;
    assert!(!matches!(committed, Committed::Yes), "{committed:?}");
    assert_eq!(fixture.number("select count(*) from outbox_message").await, 1);
}

#[tokio::test]
async fn a_lock_that_does_not_come_is_a_conflict() {
    let mut options = options();
    options.lock_timeout = Duration::from_millis(300);
    let Some(fixture) = Fixture::with(options).await else { return };
    let mut holder = fixture.connection().await;
    run(
        &mut holder,
        "begin; insert into outbox_message (topic, key, event_type) values ('orders', 'a', 'x')",
    )
    .await;
    let mut tx = fixture.store.begin().await.unwrap();
    let refused = fixture.store.append(&mut tx, &[message("a").into()]).await.unwrap_err();
    assert!(matches!(refused, AppendError::Conflict(_)), "{refused}");
    fixture.store.rollback(tx).await.unwrap();
}

#[tokio::test]
async fn a_conflict_of_the_users_own_statement_is_known_as_one() {
    let Some(fixture) = Fixture::new().await else { return };
    fixture.run("create table stock (n int); insert into stock values (1)").await;
    let mut connection = fixture.connection().await;
    run(&mut connection, "begin isolation level repeatable read; select * from stock").await;
    fixture.run("update stock set n = 2").await;
    let conflict = sqlx::query("update stock set n = 3").execute(&mut connection).await.unwrap_err();
    assert!(fixture.store.is_conflict(&conflict), "{conflict}");
    assert!(!fixture.store.is_conflict(&sqlx::Error::RowNotFound));
    let mut another = fixture.connection().await;
    let broken = sqlx::query("select 1 / 0").execute(&mut another).await.unwrap_err();
    assert!(!fixture.store.is_conflict(&broken));
}

/// A server that was restarted has broken every connection of the pool and of the store.
#[tokio::test]
async fn a_restart_of_the_server_is_survived() {
    let Some(server) = Postgres::newest().start().or_skip() else { return };
    let store = open(&server.fresh_database(), options()).await;
    store.migrate().await.unwrap();
    append(&store, [message("a")]).await;
    let relay = super::support::relay(&store).await;
    assert_eq!(super::support::fetch(&store, relay).await.rows.len(), 1);
    server.restart();
    // The broken connection had done nothing, so another one serves.
    append(&store, [message("a")]).await;
    let request = super::support::lease_request(relay);
    if let Err(error) = store.lease(&request).await {
        assert_eq!(error.kind(), StoreErrorKind::Unavailable, "{error}");
        store.lease(&request).await.unwrap();
    }
}
