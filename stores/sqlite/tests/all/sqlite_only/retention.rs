//! Rows past their retention are removed, also where a clock was ahead for a while and left rows of
//! the future behind.

use std::time::Duration;

use outbox_contract::Store;
use outbox_store_sqlite::{SqliteOptions, SqliteStore};

use super::support::Fixture;

const HISTORY: (&str, &str) = (
    "outbox_history",
    "insert into outbox_history (position, id, route, topic, order_key, event_type, schema_version, content_type, headers, payload, occurred_at,
                                 appended_at, delivered_at)
     select value, randomblob(16), 'default', 'orders', 'a', 'x', 1, 'text/plain', '', '', 0, 0, ",
);
const IS_HANDLED: (&str, &str) = (
    "outbox_handled",
    "insert into outbox_handled (consumer, id, topic, handled_at) select 'c', randomblob(16), 'orders', ",
);

/// Writes this many rows of an age in days; a negative age is in the future.
async fn fill(store: &SqliteStore, (_, insert): (&str, &str), rows: u32, days: i64) {
    let at = format!("cast(round((julianday('now') - 2440587.5 - {days}) * 86400000.0) as integer) * 1000");
    let numbers = format!(
        "with recursive n(value) as (select 1 union all select value + 1 from n where value < {rows})"
    );
    let statement = sqlx::AssertSqlSafe(format!("{insert} {at} from ({numbers} select value from n)"));
    sqlx::raw_sql(statement).execute(store.pool()).await.unwrap();
}

async fn count(store: &SqliteStore, (table, _): (&str, &str)) -> i64 {
    let statement = sqlx::AssertSqlSafe(format!("select count(*) from {table}"));
    sqlx::query_scalar(statement).fetch_one(store.pool()).await.unwrap()
}

async fn store(fixture: &Fixture) -> SqliteStore {
    let mut options = SqliteOptions::default();
    options.history = Some(Duration::from_secs(7 * 24 * 3_600));
    SqliteStore::open_with(fixture.path(), options).await.unwrap()
}

#[tokio::test]
async fn rows_of_a_clock_that_was_ahead_go_with_what_came_after_them() {
    let fixture = Fixture::new().await;
    let store = store(&fixture).await;
    for (rows, days) in [(20, 9), (1_000, -365), (30, 8), (5, 1)] {
        fill(&store, HISTORY, rows, days).await;
    }
    let mut rounds = 0;
    while count(&store, HISTORY).await > 5 && rounds < 50 {
        store.maintain(100).await.unwrap();
        rounds += 1;
    }
    assert_eq!(count(&store, HISTORY).await, 5, "what is over its time is gone");
    store.maintain(100).await.unwrap();
    assert_eq!(count(&store, HISTORY).await, 5, "the rest is kept");
}

/// They may have been written a moment ago, by a clock that is right again now.
#[tokio::test]
async fn rows_of_a_clock_that_was_ahead_are_kept_while_nothing_behind_them_is_over_its_time() {
    for table in [HISTORY, IS_HANDLED] {
        for behind in [&[][..], &[(1, 1)], &[(1, -1)]] {
            let fixture = Fixture::new().await;
            let store = store(&fixture).await;
            fill(&store, table, 10, -365).await;
            for (rows, days) in behind {
                fill(&store, table, *rows, *days).await;
            }
            let before = count(&store, table).await;
            store.maintain(100).await.unwrap();
            assert_eq!(count(&store, table).await, before, "{}", table.0);
        }
    }
}

/// The oldest first, in rounds of a bounded size; what a clock that was ahead recorded stays until
/// then.
#[tokio::test]
async fn recorded_operations_are_removed_at_the_end_of_their_retention() {
    const AUDIT: (&str, &str) = (
        "outbox_audit",
        "insert into outbox_audit (actor, operation, detail, affected, ids, at) select 'ann', 'purge', '{}', 0, '', ",
    );
    let fixture = Fixture::new().await;
    let store = store(&fixture).await;
    for (rows, days) in [(250, 91), (3, 89), (2, -365)] {
        fill(&store, AUDIT, rows, days).await;
    }
    let (mut removed, mut rounds) = (0, 0);
    loop {
        let done = store.maintain(100).await.unwrap();
        (removed, rounds) = (removed + done.audit_removed, rounds + 1);
        if !done.more {
            break;
        }
    }
    assert_eq!((removed, rounds, count(&store, AUDIT).await), (250, 3, 5));
}
