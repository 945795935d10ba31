//! Settings of the server's, or of a session's own, that would change what a statement does.

use std::time::Duration;

use outbox_contract::backend::{BucketSet, Dedup, FetchRequest};
use outbox_contract::{Consumer, Message, Outgoing, Store, Transactional};
use outbox_servers::{MariaDb, MySql, OrSkip};

use super::support::{Fixture, append, both, fails, fetch, message, messages, options, relay};

/// Number of messages, each of a key of its own: more than the server shows of a table that is
/// asked for without a limit.
const MANY: usize = 150;

#[tokio::test]
async fn settings_that_cut_answers_or_begin_transactions_change_nothing() {
    for wish in [MySql::newest(), MariaDb::newest()] {
        let Some(server) = wish.start().or_skip() else { continue };
        server.query(
            &server.url(),
            "set global sql_select_limit = 100; set global completion_type = 'CHAIN'; set global sql_safe_updates = 1",
        );
        let fixture = Fixture::on(server, options()).await;
        let store = &fixture.store;
        store.check().await.unwrap();
        let relay = relay(store).await;
        let many: Vec<Message> = (0..MANY).map(|n| message(&format!("key-{n}"))).collect();
        append(store, many.clone()).await;
        let stripes = many
            .iter()
            .map(|message| outbox_contract::backend::StripeId::of("orders", message.order_key().as_str()));
        let stripes = stripes.collect::<std::collections::BTreeSet<_>>().len();
        assert!(stripes > 100);
        let marks = store.frontier().stripes(&Default::default(), &BucketSet::ALL).await.unwrap();
        assert_eq!(marks.len(), stripes, "a mark that is not shown is a message that is not read");
        let request = FetchRequest::new(Default::default(), relay, BucketSet::ALL);
        let read = messages(&store.fetch(&request).await.unwrap());
        assert_eq!(read.len(), MANY);
        store.transition(&[fails(relay, &read[..1])]).await.unwrap();
        let rows: Vec<_> = read.iter().map(|stored| stored.row()).collect();
        store.settle(&Default::default(), &rows).await.unwrap();
        store.maintain(100).await.unwrap();
        assert!(fetch(store, relay).await.rows.is_empty());

        // Transactions of the pool's connections, which have the server's settings: one after
        // another on the same connection, and a batch.
        let consumer = Consumer::new("shop").unwrap();
        let batch: Vec<&Message> = many.iter().collect();
        let mut tx = store.begin().await.unwrap();
        // Of those that were handled before, and those that were not, both are more than are shown.
        let first = store.deduplicate(&mut tx, &consumer, &batch[..1]).await.unwrap();
        assert_eq!(first, [Dedup::New]);
        let (committed, tx) = store.commit_and_begin(tx).await;
        committed.into_result().unwrap();
        let mut tx = tx.unwrap();
        let handled = store.deduplicate(&mut tx, &consumer, &batch).await.unwrap();
        let new = handled.iter().filter(|deduplication| **deduplication == Dedup::New).count();
        assert_eq!(new, MANY - 1, "what is noted and told to be a duplicate is handled by nobody");
        store.commit(tx).await.into_result().unwrap();
        let mut tx = store.begin().await.unwrap();
        store.append(&mut tx, &[Outgoing::from(message("a"))]).await.unwrap();
        store.rollback(tx).await.unwrap();
        assert!(fetch(store, relay).await.rows.is_empty(), "what was rolled back is not there");
    }
}

/// A message says what is to be changed where the server can't write its log of a transaction that
/// is READ COMMITTED.
#[tokio::test]
async fn a_log_by_statement_is_refused_with_the_remedy() {
    for wish in [MySql::newest(), MariaDb::newest()] {
        let Some(server) = wish.binlog().start().or_skip() else { continue };
        server.query(&server.url(), "set global binlog_format = 'ROW'");
        let fixture = Fixture::on(server, options()).await;
        fixture.server.query(&fixture.url, "set global binlog_format = 'STATEMENT'");
        let another = fixture.another().await;
        let error = another
            .lease(&super::support::heartbeat(outbox_contract::backend::RelayId::new()))
            .await
            .unwrap_err();
        assert!(error.to_string().contains("binlog_format"), "{error}");
    }
}

/// The server's clock is two hours beside this machine's: a delay of an hour ends when it says so.
#[tokio::test]
async fn a_delay_is_counted_by_the_servers_clock_whatever_the_senders_says() {
    for fixture in both().await {
        for hours in [2, -2] {
            let mut tx = fixture.store.begin().await.unwrap();
            let clock = format!("set timestamp = unix_timestamp() + {hours} * 3600");
            sqlx::raw_sql(sqlx::AssertSqlSafe(clock)).execute(&mut *tx).await.unwrap();
            let delayed = Outgoing::from(message("a")).after(Duration::from_secs(3_600));
            fixture.store.append(&mut tx, &[delayed]).await.unwrap();
            let left: i64 = sqlx::query_scalar(
                "select cast((max(due_at) - timestampdiff(microsecond, '1970-01-01', utc_timestamp(6))) div 60000000 as signed) from outbox_scheduled",
            )
            .fetch_one(&mut *tx)
            .await
            .unwrap();
            assert!((50..=60).contains(&left), "{left} minutes");
            sqlx::raw_sql("set timestamp = default").execute(&mut *tx).await.unwrap();
            fixture.store.rollback(tx).await.unwrap();
        }
    }
}
