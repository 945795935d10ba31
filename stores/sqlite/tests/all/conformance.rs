//! The suite that every store must pass, on a file and on a database of the process alone.

use std::sync::Arc;
use std::time::Duration;

use outbox_store_sqlite::{SqliteOptions, SqliteStore};
use outbox_testkit::store_suite::StoreHarness;
use tempfile::TempDir;

fn options() -> SqliteOptions {
    let mut options = SqliteOptions::default();
    options.history = Some(Duration::from_secs(3_600));
    options
}

/// Sets back the times at which messages were handled, as if that time had passed.
async fn age_handled_ids(store: &SqliteStore, by: Duration) {
    let by = i64::try_from(by.as_micros()).expect("not that long");
    let update = sqlx::query("update outbox_handled set handled_at = handled_at - ?").bind(by);
    update.execute(store.pool()).await.expect("the table is there");
    let update = sqlx::query("update outbox_retention set renewed_at = renewed_at - ?").bind(by);
    update.execute(store.pool()).await.expect("the table is there");
}

/// The tests do not own the machine's clock: the ends of lives, leases and roles are moved instead.
async fn lease_longer(store: &SqliteStore, by: Duration) {
    let by = i64::try_from(by.as_micros()).expect("not that long");
    for table in ["outbox_relay", "outbox_lease", "outbox_role"] {
        let update = format!("update {table} set expires_at = expires_at + ?");
        let update = sqlx::query(sqlx::AssertSqlSafe(update)).bind(by);
        update.execute(store.pool()).await.expect("the tables are there");
    }
}

async fn refuse_audit(store: &SqliteStore) {
    let away = sqlx::query("alter table outbox_audit rename to outbox_away");
    away.execute(store.pool()).await.expect("the table is there");
}

async fn set_last_position(store: &SqliteStore, last: i64) {
    let update = sqlx::query("update sqlite_sequence set seq = ? where name = 'outbox_message'").bind(last);
    let changed = update.execute(store.pool()).await.expect("the table is there").rows_affected();
    assert_eq!(changed, 1, "a message was appended before");
}

async fn restore_parked(store: &SqliteStore) {
    let columns = "position, id, route, bucket, topic, key, event_type, schema_version, content_type, headers, payload, occurred_at, appended_at";
    let copy = format!("insert into outbox_message ({columns}) select {columns} from outbox_parked");
    sqlx::query(sqlx::AssertSqlSafe(copy)).execute(store.pool()).await.expect("the tables are there");
}

async fn spoil_parked(store: &SqliteStore, topic: &str) {
    let spoil = sqlx::query("update outbox_parked set headers = x'78' where topic = ?").bind(topic);
    spoil.execute(store.pool()).await.expect("the table is there");
}

async fn release_by_hand(store: &SqliteStore) {
    let release = sqlx::query("update outbox_key set held = false");
    release.execute(store.pool()).await.expect("the table is there");
}

mod file {
    use super::*;

    struct File {
        directory: TempDir,
        store: Arc<SqliteStore>,
    }

    async fn open(directory: &TempDir) -> Arc<SqliteStore> {
        open_with(directory, options()).await
    }

    async fn open_with(directory: &TempDir, options: SqliteOptions) -> Arc<SqliteStore> {
        let path = directory.path().join("outbox.db");
        Arc::new(SqliteStore::open_with(path, options).await.expect("the file can be opened"))
    }

    impl StoreHarness for File {
        type Store = SqliteStore;

        async fn fresh() -> Self {
            let directory = tempfile::tempdir().expect("a directory can be made");
            let store = open(&directory).await;
            Self { directory, store }
        }

        fn store(&self) -> Arc<SqliteStore> {
            Arc::clone(&self.store)
        }

        async fn as_another_process(&self) -> Arc<SqliteStore> {
            open(&self.directory).await
        }

        async fn as_another_process_that_keeps_ids(&self, kept: Duration) -> Option<Arc<SqliteStore>> {
            let mut options = options();
            options.handled_ids_kept = kept;
            Some(open_with(&self.directory, options).await)
        }

        async fn set_clock_back(&self, by: Duration) -> bool {
            lease_longer(&self.store, by).await;
            true
        }

        async fn refuse_audit(&self) -> bool {
            refuse_audit(&self.store).await;
            true
        }

        async fn set_last_position(&self, last: i64) -> bool {
            set_last_position(&self.store, last).await;
            true
        }

        async fn restore_parked(&self) -> bool {
            restore_parked(&self.store).await;
            true
        }

        async fn spoil_parked(&self, topic: &str) -> bool {
            spoil_parked(&self.store, topic).await;
            true
        }

        async fn release_by_hand(&self) -> bool {
            release_by_hand(&self.store).await;
            true
        }

        async fn age_handled_ids(&self, by: Duration) {
            age_handled_ids(&self.store, by).await;
        }
    }

    outbox_testkit::store_conformance!(File);
}

mod in_memory {
    use super::*;

    struct InMemory(Arc<SqliteStore>);

    impl StoreHarness for InMemory {
        type Store = SqliteStore;

        async fn fresh() -> Self {
            let store = SqliteStore::in_memory_with(options()).await;
            Self(Arc::new(store.expect("a temporary file can be made")))
        }

        fn store(&self) -> Arc<SqliteStore> {
            Arc::clone(&self.0)
        }

        async fn set_clock_back(&self, by: Duration) -> bool {
            lease_longer(&self.0, by).await;
            true
        }

        async fn refuse_audit(&self) -> bool {
            refuse_audit(&self.0).await;
            true
        }

        async fn set_last_position(&self, last: i64) -> bool {
            set_last_position(&self.0, last).await;
            true
        }

        async fn restore_parked(&self) -> bool {
            restore_parked(&self.0).await;
            true
        }

        async fn spoil_parked(&self, topic: &str) -> bool {
            spoil_parked(&self.0, topic).await;
            true
        }

        async fn release_by_hand(&self) -> bool {
            release_by_hand(&self.0).await;
            true
        }

        async fn age_handled_ids(&self, by: Duration) {
            age_handled_ids(&self.0, by).await;
        }

        fn capabilities(&self) -> outbox_testkit::store_suite::Capabilities {
            outbox_testkit::store_suite::Capabilities::default().with_migrations(false)
        }
    }

    outbox_testkit::store_conformance!(InMemory);
}
