//! Connections on which autocommit is off: a read begins a transaction that stays open, and the end
//! of one is the beginning of the next.

use std::sync::Arc;

use outbox_contract::backend::{BucketSet, Committed, Stored};
use outbox_contract::{AppendError, Consumer, Outgoing, Route, Store, StoreErrorKind, Transactional};
use outbox_servers::{MariaDb, MySql, OrSkip};
use sqlx::{Connection, MySqlConnection};

use super::support::{
    Fixture, append, fetch, keep_to_no_snapshot, message, messages, number, open, options, relay,
};

/// Fixtures on servers on which it is off for every session.
async fn both() -> Vec<Fixture> {
    let mut fixtures = Vec::new();
    for wish in [MySql::newest(), MariaDb::newest()] {
        let Some(server) = wish.config("autocommit = 0").shared().or_skip() else { continue };
        let url = server.fresh_database();
        let mut one = options();
        // Each statement of the tests through the pool is on this one.
        one.connections = 1;
        let store = open(&url, one).await;
        store.migrate().await.unwrap();
        fixtures.push(Fixture { server, url, store });
    }
    fixtures
}

/// A connection of a user on such a server: what is asked there is asked in a transaction that goes
/// on.
async fn reader(fixture: &Fixture) -> MySqlConnection {
    let mut reader = MySqlConnection::connect(&fixture.url).await.unwrap();
    assert_eq!(number(&mut reader, "select @@autocommit").await, 0);
    assert_eq!(number(&mut reader, "select count(*) from outbox_message").await, 0);
    reader
}

/// Writes of the store are committed, and its reads are current.
#[tokio::test]
async fn the_stores_own_work_is_committed_and_sees_what_others_commit() {
    for fixture in both().await {
        let another = open(&fixture.url, options()).await;
        let relay = relay(&fixture.store).await;
        let marks =
            async || fixture.store.frontier().stripes(&Route::default(), &BucketSet::ALL).await.unwrap();
        let last = |marks: Vec<outbox_contract::backend::StripeMark>| {
            marks.iter().map(|mark| mark.last.number).max()
        };
        assert_eq!(last(marks().await).unwrap_or(0), 0);
        for count in 1..=3 {
            append(&another, [message("a")]).await;
            assert_eq!(last(marks().await), Some(count));
            let read: Vec<Arc<Stored>> = messages(&fetch(&fixture.store, relay).await);
            assert_eq!(read.len(), 1, "what was there before is settled");
            fixture.store.settle(&Route::default(), &[read[0].row()]).await.unwrap();
        }
        // Another session sees the leases, and that the rows are gone.
        let mut session = MySqlConnection::connect(&fixture.url).await.unwrap();
        assert_eq!(
            number(&mut session, "select count(*) from outbox_lease where relay is not null").await,
            256
        );
        assert_eq!(number(&mut session, "select count(*) from outbox_message").await, 0);
    }
}

/// A user's read has left a transaction open on the connection. `begin` gives one that is whole,
/// and leaves the connection as it was.
#[tokio::test]
async fn a_transaction_of_begin_can_be_appended_to_after_a_read() {
    for fixture in both().await {
        for count in 1..=2 {
            let mut users = fixture.store.pool().acquire().await.unwrap();
            number(&mut users, "select count(*) from outbox_message").await;
            drop(users);
            append(&fixture.store, [message("a")]).await;
            let mut session = MySqlConnection::connect(&fixture.url).await.unwrap();
            assert_eq!(number(&mut session, "select count(*) from outbox_message").await, count);
        }
        let mut users = fixture.store.pool().acquire().await.unwrap();
        assert_eq!(number(&mut users, "select @@autocommit").await, 0, "the setting is the user's");
    }
}

/// The server would begin another transaction after a deadlock, and the driver would commit it: a
/// message without its rows (promise P1).
#[tokio::test]
async fn nothing_is_appended_to_a_transaction_that_could_have_been_rolled_back_unseen() {
    for fixture in both().await {
        let mut tx = fixture.store.pool().begin().await.unwrap();
        let error = fixture.store.append(&mut tx, &[message("a").into()]).await.unwrap_err();
        let AppendError::Store(error) = error else { panic!("expected another error: {error}") };
        assert_eq!(error.kind(), StoreErrorKind::Invalid, "{error}");
        assert!(error.to_string().contains("autocommit is off"), "{error}");
        let later = Outgoing::from(message("a")).due_at(outbox_contract::Timestamp::from_micros(i64::MAX));
        assert!(fixture.store.append(&mut tx, &[later]).await.is_err());
        let consumer = Consumer::new("shop").unwrap();
        let noted = fixture.store.deduplicate(&mut tx, &consumer, &[&message("a")]).await.unwrap_err();
        assert_eq!(noted.kind(), StoreErrorKind::Invalid, "{noted}");
        let ended = fixture.store.commit(tx).await;
        assert!(matches!(ended, Committed::No(_)), "{ended:?}");
        let mut session = MySqlConnection::connect(&fixture.url).await.unwrap();
        for table in ["outbox_message", "outbox_scheduled", "outbox_handled"] {
            assert_eq!(number(&mut session, &format!("select count(*) from {table}")).await, 0, "{table}");
        }
        assert_eq!(number(&mut session, "select max(number) from outbox_stripe").await, 0);
    }
}

/// Its marks and messages are those of its first read, until it commits. It holds up no append, and
/// one of its own is behind what it does not see.
#[tokio::test]
async fn a_reader_sees_old_marks_and_takes_its_place_behind_the_new_ones() {
    const MARK: &str = "select max(number) from outbox_stripe";
    for fixture in both().await {
        let mut reader = reader(&fixture).await;
        keep_to_no_snapshot(&mut reader).await;
        assert_eq!(number(&mut reader, MARK).await, 0);
        append(&fixture.store, [message("a"), message("a")]).await;
        assert_eq!(number(&mut reader, MARK).await, 0, "of its first read");
        // On, the transaction is the same, and can be appended to.
        sqlx::raw_sql("commit; set autocommit = 1; start transaction").execute(&mut reader).await.unwrap();
        assert_eq!(number(&mut reader, MARK).await, 2);
        append(&fixture.store, [message("a")]).await;
        assert_eq!(number(&mut reader, MARK).await, 2, "of its first read");
        sqlx::raw_sql("commit").execute(&mut reader).await.unwrap();
        let mut tx = reader.begin().await.unwrap();
        assert_eq!(number(&mut tx, MARK).await, 3);
        append(&fixture.store, [message("a")]).await;
        assert_eq!(number(&mut tx, MARK).await, 3, "of its first read");
        fixture.store.append(&mut tx, &[message("a").into()]).await.unwrap();
        tx.commit().await.unwrap();
        let relay = relay(&fixture.store).await;
        let read = messages(&fetch(&fixture.store, relay).await);
        let numbers: Vec<i64> = read.iter().map(|stored| stored.stripe.unwrap().number).collect();
        assert_eq!(numbers, [1, 2, 3, 4, 5]);
    }
}
