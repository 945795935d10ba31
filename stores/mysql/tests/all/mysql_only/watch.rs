//! Watch: relays hear of what other processes commit, also after the session was lost, on one
//! connection for all of them, which ends with the last.

use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::BoxStream;
use outbox_contract::backend::{BucketSet, FetchRequest, Wakeup};
use outbox_contract::{Store, Transactional};
use sqlx::mysql::MySqlConnection;
use sqlx::{AssertSqlSafe, Connection, Row};

use super::support::{LONG, append, both, fetch, message, number, open, relay};

/// The sessions of a database that nobody uses but the test's stores.
const OTHERS: &str = "from information_schema.processlist where db = database() and id <> connection_id() and command <> 'Killed'";

async fn woken(stream: &mut BoxStream<'static, Wakeup>) {
    let heard = tokio::time::timeout(LONG, stream.next()).await.expect("nobody is woken");
    assert_eq!(heard, Some(Wakeup::Now));
}

async fn sessions(connection: &mut MySqlConnection) -> i64 {
    number(connection, &format!("select count(*) {OTHERS}")).await
}

async fn until(connection: &mut MySqlConnection, statement: &str, wanted: i64) {
    let counted = async {
        while number(connection, statement).await != wanted {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    tokio::time::timeout(LONG, counted).await.unwrap_or_else(|_| panic!("never {wanted}: {statement}"));
}

#[tokio::test]
async fn a_commit_of_another_process_wakes_relays() {
    for fixture in both().await {
        let other = fixture.another().await;
        let relay = relay(&fixture.store).await;
        let mut stream = fixture.store.wakeups();
        for turn in 0..3 {
            assert_eq!(fetch(&fixture.store, relay).await.rows.len(), turn);
            append(&other, [message(&format!("key-{turn}"))]).await;
            woken(&mut stream).await;
        }
    }
}

/// A transaction that took its position before another one, and is committed after it.
#[tokio::test]
async fn a_commit_below_another_one_wakes_relays() {
    for fixture in both().await {
        let other = fixture.another().await;
        let relay = relay(&fixture.store).await;
        assert_eq!(fetch(&fixture.store, relay).await.rows.len(), 0);
        let mut stream = fixture.store.wakeups();
        let mut late = fixture.connection().await;
        let mut late = late.begin().await.unwrap();
        other.append(&mut late, &[message("late").into()]).await.unwrap();
        append(&other, [message("early")]).await;
        woken(&mut stream).await;
        late.commit().await.unwrap();
        woken(&mut stream).await;
    }
}

#[tokio::test]
async fn a_watch_whose_session_is_killed_goes_on() {
    for fixture in both().await {
        let relay = relay(&fixture.store).await;
        assert_eq!(fetch(&fixture.store, relay).await.rows.len(), 0);
        let other = fixture.another().await;
        let mut stream = fixture.store.wakeups();
        append(&other, [message("a")]).await;
        woken(&mut stream).await;
        // All sessions of the store: which one watches can't be seen.
        let mut connection = fixture.connection().await;
        let ids = format!("select cast(id as signed) {OTHERS}");
        let rows = loop {
            match sqlx::raw_sql(AssertSqlSafe(ids.clone())).fetch_all(&mut connection).await {
                Ok(rows) => break rows,
                // Another test's statement has bytes that are no text (MySQL 3854).
                Err(error) => assert!(error.to_string().contains("Cannot convert string"), "{error}"),
            }
        };
        for row in rows {
            let id: i64 = row.try_get_unchecked(0).unwrap();
            let _ = sqlx::raw_sql(AssertSqlSafe(format!("kill {id}"))).execute(&mut connection).await;
        }
        // Messages may have come meanwhile.
        woken(&mut stream).await;
        append(&fixture.another().await, [message("b")]).await;
        woken(&mut stream).await;
    }
}

#[tokio::test]
async fn one_session_watches_for_all_relays_and_ends_with_the_last() {
    for fixture in both().await {
        let relay = relay(&fixture.store).await;
        assert_eq!(fetch(&fixture.store, relay).await.rows.len(), 0);
        let other = fixture.another().await;
        append(&other, [message("a")]).await;
        let mut connection = fixture.connection().await;
        let before = sessions(&mut connection).await;
        let statement = format!("select count(*) {OTHERS}");
        let (mut first, mut second) = (fixture.store.wakeups(), fixture.store.wakeups());
        tokio::join!(woken(&mut first), woken(&mut second));
        until(&mut connection, &statement, before + 1).await;
        drop(first);
        append(&other, [message("b")]).await;
        woken(&mut second).await;
        until(&mut connection, &statement, before + 1).await;
        drop(second);
        until(&mut connection, &statement, before).await;
    }
}

/// Without the right the watch pauses, and goes on once it is there.
#[tokio::test]
async fn a_watch_without_a_right_waits_for_it() {
    for fixture in both().await {
        let database = fixture.url.rsplit('/').next().unwrap().split('?').next().unwrap().to_owned();
        fixture
            .run(&format!("create user '{database}'@'%'; grant insert on {database}.* to '{database}'@'%'"))
            .await;
        let url = fixture.url.replacen("root@", &format!("{database}@"), 1);
        let denied = open(&url, fixture.store.options().clone()).await;
        let relay = relay(&fixture.store).await;
        let request = FetchRequest::new(Default::default(), relay, BucketSet::ALL);
        denied.fetch(&request).await.unwrap_err();
        let mut stream = denied.wakeups();
        let watching = tokio::spawn(async move { woken(&mut stream).await });
        // Longer than it takes to be refused.
        tokio::time::sleep(Duration::from_secs(1)).await;
        fixture.run(&format!("grant select on {database}.* to '{database}'@'%'")).await;
        append(&fixture.store, [message("a")]).await;
        watching.await.unwrap();
        fixture.run(&format!("drop user '{database}'@'%'")).await;
    }
}
