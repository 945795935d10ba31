//! Transactions that the server rolls back behind the driver's back: nothing is committed of them,
//! and nothing without them (promise P1).

use std::time::Duration;

use futures_util::FutureExt;
use outbox_contract::backend::Committed;
use outbox_contract::{AppendError, Consumer, StoreErrorKind, Transactional};
use outbox_store_mysql::MySqlStore;
use outbox_testkit::eventually;
use sqlx::Connection;
use sqlx::mysql::MySqlConnection;
use tokio::time::timeout;

use super::support::{
    Fixture, LONG, append, both, both_with, deadlock, fetch, make_stock, message, messages, number, options,
    relay, run,
};

/// Begins a transaction, lets it be rolled back by a real deadlock in two statements of the user's,
/// and gives it back as if nothing had happened.
async fn deadlocked(fixture: &Fixture) -> sqlx::Transaction<'static, sqlx::MySql> {
    make_stock(fixture).await;
    let mut victim = fixture.store.begin().await.unwrap();
    deadlock(fixture, &mut victim).await;
    victim
}

#[tokio::test]
async fn an_append_after_a_deadlock_that_was_passed_over_writes_nothing() {
    for fixture in both().await {
        let mut tx = deadlocked(&fixture).await;
        let AppendError::Store(error) =
            fixture.store.append(&mut tx, &[message("a").into()]).await.unwrap_err()
        else {
            panic!("expected another error");
        };
        assert_eq!(error.kind(), StoreErrorKind::NotInTransaction, "{error}");
        assert!(error.to_string().contains("start again from the beginning"), "{error}");
        // Also what is due later, and what an inbox notes.
        let later = outbox_contract::Outgoing::from(message("a"))
            .due_at(outbox_contract::Timestamp::from_micros(i64::MAX));
        assert!(fixture.store.append(&mut tx, &[later]).await.is_err());
        let consumer = Consumer::new("shop").unwrap();
        let noted = fixture.store.deduplicate(&mut tx, &consumer, &[&message("a")]).await.unwrap_err();
        assert_eq!(noted.kind(), StoreErrorKind::NotInTransaction, "{noted}");
        let ended = fixture.store.commit(tx).await;
        assert!(matches!(ended, Committed::No(_)), "{ended:?}");
        for table in ["outbox_message", "outbox_scheduled", "outbox_handled"] {
            assert_eq!(fixture.number(&format!("select count(*) from {table}")).await, 0, "{table}");
        }
        assert_eq!(fixture.number("select max(number) from outbox_stripe").await, 0);
    }
}

#[tokio::test]
async fn a_commit_after_a_deadlock_that_was_passed_over_says_no() {
    for begins_another in [false, true] {
        for fixture in both().await {
            let tx = deadlocked(&fixture).await;
            let (committed, begun) = if begins_another {
                fixture.store.commit_and_begin(tx).await
            } else {
                (fixture.store.commit(tx).await, None)
            };
            match committed {
                Committed::No(error) => assert_eq!(error.kind(), StoreErrorKind::NotInTransaction, "{error}"),
                other => panic!("nothing was committed, and the commit said {other:?}"),
            }
            assert!(begun.is_none());
            // The connection can be used again.
            append(&fixture.store, [message("a")]).await;
        }
    }
}

/// The server has rolled the whole transaction back, and an append that tried again would commit
/// its message alone.
#[tokio::test]
async fn a_deadlock_of_two_appends_is_a_conflict_and_is_not_tried_again() {
    for fixture in both().await {
        fixture.run("create table stock (id int primary key)").await;
        let (mut one, mut other) =
            (fixture.store.begin().await.unwrap(), fixture.store.begin().await.unwrap());
        sqlx::query("insert into stock values (1)").execute(&mut *one).await.unwrap();
        sqlx::query("insert into stock values (2)").execute(&mut *other).await.unwrap();
        fixture.store.append(&mut one, &[message("a").into()]).await.unwrap();
        fixture.store.append(&mut other, &[message("b").into()]).await.unwrap();
        let (to_b, to_a) = ([message("b").into()], [message("a").into()]);
        let (first, second) =
            tokio::join!(fixture.store.append(&mut one, &to_b), fixture.store.append(&mut other, &to_a));
        let mut committed = 0;
        for (ended, tx) in [(first, one), (second, other)] {
            match ended {
                Ok(()) => {
                    fixture.store.commit(tx).await.into_result().unwrap();
                    committed += 1;
                }
                Err(error) => {
                    assert!(matches!(error, AppendError::Conflict(_)), "{error}");
                    assert!(error.is_retryable());
                    // Whoever commits all the same commits nothing.
                    assert!(fixture.store.commit(tx).await.into_result().is_err());
                }
            }
        }
        assert_eq!(committed, 1, "one of the two was in the other's way");
        assert_eq!(fixture.number("select count(*) from stock").await, 1);
        assert_eq!(fixture.number("select count(*) from outbox_message").await, 2);
    }
}

#[tokio::test]
async fn a_lock_that_does_not_come_is_a_conflict() {
    let mut hasty = options();
    hasty.lock_timeout = std::time::Duration::from_secs(1);
    for fixture in both_with(hasty).await {
        let mut holder = fixture.store.begin().await.unwrap();
        fixture.store.append(&mut holder, &[message("a").into()]).await.unwrap();
        let mut tx = fixture.store.begin().await.unwrap();
        let error = fixture.store.append(&mut tx, &[message("a").into()]).await.unwrap_err();
        assert!(matches!(error, AppendError::Conflict(_)), "{error}");
        fixture.store.rollback(tx).await.unwrap();
        fixture.store.commit(holder).await.into_result().unwrap();
        assert_eq!(fixture.number("select count(*) from outbox_message").await, 1);
    }
}

/// Statements that commit implicitly end the transaction as well.
#[tokio::test]
async fn an_append_behind_a_commit_of_the_users_own_is_refused() {
    for fixture in both().await {
        let mut tx = fixture.store.begin().await.unwrap();
        sqlx::raw_sql("create table made (id int)").execute(&mut *tx).await.unwrap();
        let error = fixture.store.append(&mut tx, &[message("a").into()]).await.unwrap_err();
        let AppendError::Store(error) = error else { panic!("expected another error: {error}") };
        assert_eq!(error.kind(), StoreErrorKind::NotInTransaction, "{error}");
        fixture.store.rollback(tx).await.unwrap();
        assert_eq!(fixture.number("select count(*) from outbox_message").await, 0);
    }
}

#[tokio::test]
async fn rolling_back_to_a_savepoint_takes_the_numbers_back_too() {
    for fixture in both().await {
        let mut tx = fixture.store.begin().await.unwrap();
        let mut inner = tx.begin().await.unwrap();
        fixture.store.append(&mut inner, &[message("a").into(), message("a").into()]).await.unwrap();
        inner.rollback().await.unwrap();
        let kept = message("a");
        fixture.store.append(&mut tx, &[kept.clone().into()]).await.unwrap();
        fixture.store.commit(tx).await.into_result().unwrap();
        let relay = relay(&fixture.store).await;
        let read = messages(&fetch(&fixture.store, relay).await);
        assert_eq!(read.len(), 1);
        assert_eq!(read[0].message.id, kept.id);
        assert_eq!(read[0].stripe.unwrap().number, 1);
    }
}

/// Of the transaction that is open, which has to have read something.
async fn isolation(connection: &mut MySqlConnection) -> String {
    const OWN: &str = "select trx_isolation_level from information_schema.innodb_trx where trx_mysql_thread_id = connection_id()";
    sqlx::raw_sql("select count(*) from outbox_message").execute(&mut *connection).await.unwrap();
    sqlx::query_scalar(OWN).fetch_one(connection).await.unwrap()
}

/// The connections of the pool are the user's, and so are their settings.
#[tokio::test]
async fn settings_of_a_transaction_are_put_back_when_it_ends() {
    let mut one = options();
    one.connections = 1;
    const SETTINGS: &str = "select @@innodb_lock_wait_timeout * 1000000 + @@wait_timeout";
    const AUTOCOMMIT: &str = "select @@autocommit + 0";
    for fixture in both_with(one).await {
        let users = number(&mut fixture.store.pool().acquire().await.unwrap(), SETTINGS).await;
        let ours = i64::try_from(LONG.as_secs() * 1_000_000 + LONG.as_secs() * 2).unwrap();
        for ends in ["commit", "rollback", "dropped", "refused"] {
            let mut tx = fixture.store.begin().await.unwrap();
            assert_eq!(number(&mut tx, SETTINGS).await, ours);
            let (committed, begun) = fixture.store.commit_and_begin(tx).await;
            committed.into_result().unwrap();
            let mut tx = begun.unwrap();
            assert_eq!(number(&mut tx, SETTINGS).await, ours);
            assert_eq!(isolation(&mut tx).await, "READ COMMITTED");
            match ends {
                "commit" => fixture.store.commit(tx).await.into_result().unwrap(),
                "rollback" => fixture.store.rollback(tx).await.unwrap(),
                // As an error that is passed on with `?` does, and a request that is cancelled.
                "dropped" => drop(tx),
                _ => {
                    run(&mut tx, "commit").await;
                    let refused = fixture.store.commit(tx).await;
                    assert!(matches!(refused, Committed::No(_)), "{refused:?}");
                }
            }
            let mut connection = fixture.store.pool().acquire().await.unwrap();
            assert_eq!(number(&mut connection, SETTINGS).await, users, "{ends}");
            assert_eq!(number(&mut connection, AUTOCOMMIT).await, 1, "{ends}");
        }
        // Its caller is gone when it has begun.
        assert!(fixture.store.begin().now_or_never().is_none());
        let mut connection = fixture.store.pool().acquire().await.unwrap();
        assert_eq!(number(&mut connection, SETTINGS).await, users, "a begin that was cancelled");
    }
}

/// A pool that was made otherwise does nothing with what comes back.
#[tokio::test]
async fn a_refused_commit_puts_settings_back_in_every_pool() {
    const SETTINGS: &str = "select @@innodb_lock_wait_timeout * 1000000 + @@wait_timeout";
    for fixture in both().await {
        let pool =
            sqlx::mysql::MySqlPoolOptions::new().max_connections(1).connect(&fixture.url).await.unwrap();
        let store = MySqlStore::with_options(pool, options()).unwrap();
        let users = number(&mut store.pool().acquire().await.unwrap(), SETTINGS).await;
        let mut tx = store.begin().await.unwrap();
        assert_ne!(number(&mut tx, SETTINGS).await, users);
        run(&mut tx, "commit").await;
        let refused = store.commit(tx).await;
        assert!(matches!(refused, Committed::No(_)), "{refused:?}");
        assert_eq!(number(&mut store.pool().acquire().await.unwrap(), SETTINGS).await, users);
    }
}

/// The driver mistakes what is left of the answer for that of its ROLLBACK, and would wait for more
/// for ever.
#[tokio::test]
async fn a_query_that_is_dropped_while_it_is_prepared_costs_the_pool_no_connection() {
    let mut one = options();
    one.connections = 1;
    for fixture in both_with(one).await {
        fixture.run("create table changing (id int, n int)").await;
        let (mut reader, mut other) = (fixture.connection().await, fixture.connection().await);
        let mut reads = reader.begin().await.unwrap();
        sqlx::raw_sql("select id from changing").execute(&mut *reads).await.unwrap();
        const CHANGE: &str = "alter table changing add column m int, algorithm = copy";
        let changing = tokio::spawn(async move { sqlx::raw_sql(CHANGE).execute(&mut other).await });
        let waits = format!(
            "select count(*) from information_schema.processlist where info = '{CHANGE}' and state like '%metadata lock'"
        );
        let waiting = eventually(LONG, async || fixture.sessions(&waits).await != 0).await;
        assert!(waiting, "the change waits for who reads");
        let mut tx = fixture.store.begin().await.unwrap();
        // To prepare it, the server looks at the table, behind who changes it. Too short a wait
        // would only let a mistake pass.
        let query = sqlx::query("select id, n from changing where id = ?").bind(1).execute(&mut *tx);
        assert!(timeout(Duration::from_millis(300), query).await.is_err(), "it waits for the table");
        drop(tx);
        reads.commit().await.unwrap();
        changing.await.unwrap().unwrap();
        let begun = fixture.store.begin().await.unwrap();
        fixture.store.rollback(begun).await.unwrap();
    }
}
