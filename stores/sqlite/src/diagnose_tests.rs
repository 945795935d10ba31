//! Findings about a file, each made to happen.

use outbox_contract::admin::DiagnosisKind;
use outbox_contract::{Admin, Store};
use sqlx::sqlite::SqlitePool;
use tempfile::TempDir;

use crate::SqliteStore;
use crate::diagnose::{LIMITS, Limits, find};

const NONE: Limits = Limits { free: 1 << 20, behind: 1 << 20, log: 1 << 20 };

async fn store() -> (TempDir, SqliteStore) {
    let directory = tempfile::tempdir().unwrap();
    let store = SqliteStore::open(directory.path().join("outbox.db")).await.unwrap();
    store.migrate().await.unwrap();
    (directory, store)
}

/// Returns kinds and texts of all findings.
async fn found(store: &SqliteStore, limits: Limits) -> Vec<(DiagnosisKind, String)> {
    let found = find(store.pools(), limits).await.unwrap();
    found.into_iter().map(|found| (found.kind, found.text)).collect()
}

async fn run(pool: &SqlitePool, statements: &'static str) {
    sqlx::raw_sql(statements).execute(pool).await.unwrap();
}

/// Rows of 4 MiB together.
const ROWS: &str = "with recursive n(n) as (select 1 union all select n + 1 from n where n < 4096)
     insert into outbox_message (route, topic, event_type, payload) select 'default', 'orders', 'x', zeroblob(1000) from n";

#[tokio::test]
async fn free_pages_are_found_until_the_file_is_made_anew() {
    let (_directory, store) = store().await;
    assert_eq!(store.diagnose().await.unwrap(), []);
    run(store.pool(), ROWS).await;
    assert_eq!(found(&store, Limits { log: u64::MAX, ..NONE }).await, [], "they are in use");
    run(store.pool(), "delete from outbox_message").await;
    let free = found(&store, Limits { log: u64::MAX, ..NONE }).await;
    assert_eq!(free.len(), 1, "{free:?}");
    assert!(free[0].0 == DiagnosisKind::Bloat && free[0].1.ends_with(" are free"), "{free:?}");
    assert_eq!(found(&store, LIMITS).await, [], "they are few");
    run(store.pool(), "vacuum").await;
    assert_eq!(found(&store, Limits { log: u64::MAX, ..NONE }).await, []);
}

#[tokio::test]
async fn a_log_that_a_reader_keeps_from_being_checkpointed_is_found() {
    let (_directory, store) = store().await;
    let mut reader = store.pool().acquire().await.unwrap();
    sqlx::raw_sql("begin; select count(*) from outbox_message").execute(&mut *reader).await.unwrap();
    run(store.pool(), ROWS).await;
    let kept = found(&store, NONE).await;
    assert_eq!(kept.len(), 1, "{kept:?}");
    assert!(kept[0].0 == DiagnosisKind::Cleanup && kept[0].1.contains("can't be checkpointed"), "{kept:?}");
    assert_eq!(found(&store, LIMITS).await, [], "it is short");
    sqlx::raw_sql("rollback").execute(&mut *reader).await.unwrap();
    // What it kept is taken over by the checkpoint of the examination; the file stays as long as it was.
    let grown = found(&store, NONE).await;
    assert!(grown.len() == 1 && grown[0].0 == DiagnosisKind::Bloat, "{grown:?}");
    assert!(grown[0].1.starts_with("the write-ahead log had "), "{grown:?}");
    run(store.pool(), "pragma wal_checkpoint(truncate)").await;
    assert_eq!(found(&store, NONE).await, []);
}

#[tokio::test]
async fn a_database_in_memory_has_no_finding() {
    let store = SqliteStore::in_memory().await.unwrap();
    store.migrate().await.unwrap();
    assert_eq!(store.diagnose().await.unwrap(), []);
}
