//! Transactions of an inbox that the server loses, or a handler ends: nothing that the handler does
//! afterwards is committed, and the commit says so (promise P4).

use outbox_contract::backend::{Committed, Dedup};
use outbox_contract::{Consumer, Message, StoreErrorKind, Transactional};
use outbox_servers::{MariaDb, MySql, OrSkip};
use outbox_store_mysql::MySqlStore;
use sqlx::{AssertSqlSafe, Transaction};

use super::support::{Fixture, both, deadlock, make_stock, message, number, open, options, run};

type Tx = Transaction<'static, sqlx::MySql>;

fn shop() -> Consumer {
    Consumer::new("shop").unwrap()
}

/// A transaction in which a message is noted: the first of its connection, or one that was begun
/// behind another.
async fn handling(store: &MySqlStore, is_first: bool) -> (Tx, Message) {
    let mut tx = store.begin().await.unwrap();
    if !is_first {
        assert_eq!(store.deduplicate(&mut tx, &shop(), &[&message("a")]).await.unwrap(), [Dedup::New]);
        let (committed, next) = store.commit_and_begin(tx).await;
        committed.into_result().unwrap();
        tx = next.unwrap();
    }
    let given = message("a");
    assert_eq!(store.deduplicate(&mut tx, &shop(), &[&given]).await.unwrap(), [Dedup::New]);
    (tx, given)
}

/// A write of a handler in spite of an error that it has passed over.
async fn goes_on(tx: &mut Tx) {
    sqlx::query("update stock set n = 5 where id = 1000").execute(&mut **tx).await.unwrap();
}

/// The commit is refused, with or without another behind it; and neither the message nor what was
/// done for it is there.
async fn assert_nothing_is_committed(fixture: &Fixture, store: &MySqlStore, tx: Tx, given: &Message) {
    assert_eq!(fixture.number("select n from stock where id = 1000").await, 0, "before the commit");
    let (committed, begun) = if given.id.as_uuid().as_u128().is_multiple_of(2) {
        store.commit_and_begin(tx).await
    } else {
        (store.commit(tx).await, None)
    };
    match committed {
        Committed::No(error) => assert_eq!(error.kind(), StoreErrorKind::NotInTransaction, "{error}"),
        other => panic!("nothing was committed, and the commit said {other:?}"),
    }
    assert!(begun.is_none());
    assert_eq!(fixture.number("select n from stock where id = 1000").await, 0, "behind the commit");
    assert!(!store.is_handled(&shop(), given.id).await.unwrap());
    // The connection is as it was.
    let (tx, given) = handling(store, true).await;
    store.commit(tx).await.into_result().unwrap();
    assert!(store.is_handled(&shop(), given.id).await.unwrap());
    let mut connection = store.pool().acquire().await.unwrap();
    assert_eq!(number(&mut connection, "select @@autocommit + 0").await, 1);
    assert_eq!(number(&mut connection, "select @outbox_looks is null").await, 1);
}

#[tokio::test]
async fn what_a_handler_does_behind_a_deadlock_is_not_committed() {
    for is_first in [true, false] {
        for fixture in both().await {
            make_stock(&fixture).await;
            let (mut tx, given) = handling(&fixture.store, is_first).await;
            deadlock(&fixture, &mut tx).await;
            goes_on(&mut tx).await;
            assert_nothing_is_committed(&fixture, &fixture.store, tx, &given).await;
        }
    }
}

#[tokio::test]
async fn what_a_handler_does_behind_a_lock_timeout_that_rolled_back_is_not_committed() {
    for wish in [MySql::newest(), MariaDb::newest(), MariaDb::oldest()] {
        let Some(server) = wish.config("innodb-rollback-on-timeout = ON").shared().or_skip() else {
            continue;
        };
        let mut hasty = options();
        hasty.lock_timeout = std::time::Duration::from_secs(1);
        let fixture = Fixture::on(server, hasty).await;
        make_stock(&fixture).await;
        let mut holder = fixture.connection().await;
        run(&mut holder, "begin; update stock set n = 7 where id = 2").await;
        let (mut tx, given) = handling(&fixture.store, false).await;
        sqlx::query("update stock set n = 1 where id = 1").execute(&mut *tx).await.unwrap();
        let late = sqlx::query("update stock set n = 1 where id = 2").execute(&mut *tx).await.unwrap_err();
        assert!(fixture.store.is_conflict(&late), "{late}");
        goes_on(&mut tx).await;
        assert_nothing_is_committed(&fixture, &fixture.store, tx, &given).await;
        run(&mut holder, "rollback").await;
        assert_eq!(fixture.number("select sum(n) from stock").await, 0);
    }
}

/// Where the server rolls back the statement alone, the transaction is whole.
#[tokio::test]
async fn a_lock_timeout_that_a_handler_passes_over_leaves_the_rest() {
    let mut hasty = options();
    hasty.lock_timeout = std::time::Duration::from_secs(1);
    for fixture in super::support::both_with(hasty).await {
        make_stock(&fixture).await;
        let mut holder = fixture.connection().await;
        run(&mut holder, "begin; update stock set n = 7 where id = 2").await;
        let (mut tx, given) = handling(&fixture.store, false).await;
        sqlx::query("update stock set n = 1 where id = 2").execute(&mut *tx).await.unwrap_err();
        goes_on(&mut tx).await;
        fixture.store.commit(tx).await.into_result().unwrap();
        run(&mut holder, "rollback").await;
        assert_eq!(fixture.number("select sum(n) from stock").await, 5);
        assert!(fixture.store.is_handled(&shop(), given.id).await.unwrap());
    }
}

/// The server commits what stands in front of it, and a message that is noted there is not handled
/// again.
#[tokio::test]
async fn a_handler_that_ends_its_transaction_commits_nothing_behind_that() {
    for ends in [
        "commit",
        "rollback",
        "create table made (id int)",
        "begin",
        "rollback; begin",
        "commit; savepoint other; set session innodb_lock_wait_timeout = 5",
    ] {
        for fixture in both().await {
            make_stock(&fixture).await;
            let store = &fixture.store;
            let (mut tx, given) = handling(store, false).await;
            sqlx::raw_sql(AssertSqlSafe(ends)).execute(&mut *tx).await.unwrap();
            goes_on(&mut tx).await;
            assert_eq!(fixture.number("select n from stock where id = 1000").await, 0, "{ends}");
            let refused = store.commit(tx).await;
            let Committed::No(error) = refused else { panic!("{ends}: {refused:?}") };
            assert_eq!(error.kind(), StoreErrorKind::NotInTransaction, "{ends}: {error}");
            assert_eq!(fixture.number("select n from stock where id = 1000").await, 0, "{ends}");
            let is_kept = !ends.starts_with("rollback");
            assert_eq!(store.is_handled(&shop(), given.id).await.unwrap(), is_kept, "{ends}");
        }
    }
}

#[tokio::test]
async fn nothing_of_a_session_that_is_killed_is_committed() {
    for fixture in both().await {
        make_stock(&fixture).await;
        let store = &fixture.store;
        let (mut tx, given) = handling(store, false).await;
        goes_on(&mut tx).await;
        let session = number(&mut tx, "select connection_id()").await;
        fixture.run(&format!("kill {session}")).await;
        let lost = store.commit(tx).await;
        assert!(!matches!(lost, Committed::Yes), "{lost:?}");
        assert_eq!(fixture.number("select n from stock where id = 1000").await, 0);
        assert!(!store.is_handled(&shop(), given.id).await.unwrap());
    }
}

/// A pool of the user's own, whose connections are never restored: there autocommit stays on.
#[tokio::test]
async fn a_pool_of_the_users_own_keeps_its_autocommit() {
    for fixture in both().await {
        make_stock(&fixture).await;
        let pool =
            sqlx::mysql::MySqlPoolOptions::new().max_connections(1).connect(&fixture.url).await.unwrap();
        let store = MySqlStore::with_options(pool, options()).unwrap();
        let (mut tx, given) = handling(&store, false).await;
        assert_eq!(number(&mut tx, "select @@autocommit + 0").await, 1);
        deadlock(&fixture, &mut tx).await;
        let refused = store.commit(tx).await;
        let Committed::No(error) = refused else { panic!("{refused:?}") };
        assert_eq!(error.kind(), StoreErrorKind::NotInTransaction, "{error}");
        assert!(!store.is_handled(&shop(), given.id).await.unwrap());
        let (tx, given) = handling(&store, true).await;
        store.commit(tx).await.into_result().unwrap();
        assert!(store.is_handled(&shop(), given.id).await.unwrap());
    }
}

/// A transaction of the user's own has no savepoint at its beginning.
#[tokio::test]
async fn a_transaction_of_the_users_own_is_committed_by_the_store_too() {
    for fixture in both().await {
        make_stock(&fixture).await;
        let store = open(&fixture.url, options()).await;
        for is_lost in [false, true] {
            let mut tx = store.pool().begin().await.unwrap();
            let given = message("a");
            assert_eq!(store.deduplicate(&mut tx, &shop(), &[&given]).await.unwrap(), [Dedup::New]);
            assert_eq!(number(&mut tx, "select @@autocommit + 0").await, 1);
            if is_lost {
                deadlock(&fixture, &mut tx).await;
            }
            assert_eq!(store.commit(tx).await.into_result().is_err(), is_lost);
            assert_eq!(store.is_handled(&shop(), given.id).await.unwrap(), !is_lost);
        }
    }
}
