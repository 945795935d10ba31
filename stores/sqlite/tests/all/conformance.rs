//! The suite that every store must pass, on a file and on a database of the process alone.

use std::sync::Arc;
use std::time::Duration;

use outbox_store_sqlite::{SqliteOptions, SqliteStore};
use outbox_testkit::store_suite::{Capability, StoreHarness};
use tempfile::TempDir;

fn options() -> SqliteOptions {
    let mut options = SqliteOptions::default();
    options.history = Some(Duration::from_secs(3_600));
    options
}

async fn open(directory: &TempDir, options: SqliteOptions) -> Arc<SqliteStore> {
    let path = directory.path().join("outbox.db");
    Arc::new(SqliteStore::open_with(path, options).await.expect("the file can be opened"))
}

/// A store of a file, or of this process alone.
struct Subject<const IN_FILE: bool> {
    directory: Option<TempDir>,
    store: Arc<SqliteStore>,
}

impl<const IN_FILE: bool> StoreHarness for Subject<IN_FILE> {
    type Store = SqliteStore;
    const LACKS: &'static [Capability] =
        if IN_FILE { &[] } else { &[Capability::Migrations, Capability::OtherRetention] };

    async fn fresh() -> Self {
        if IN_FILE {
            let directory = tempfile::tempdir().expect("a directory can be made");
            let store = open(&directory, options()).await;
            return Self { directory: Some(directory), store };
        }
        let store = SqliteStore::in_memory_with(options()).await;
        Self { directory: None, store: Arc::new(store.expect("a temporary file can be made")) }
    }

    fn store(&self) -> Arc<SqliteStore> {
        Arc::clone(&self.store)
    }

    async fn as_another_process(&self) -> Arc<SqliteStore> {
        match &self.directory {
            Some(directory) => open(directory, options()).await,
            None => self.store(),
        }
    }

    async fn as_another_process_that_keeps_ids(&self, kept: Duration) -> Arc<SqliteStore> {
        let mut options = options();
        options.handled_ids_kept = kept;
        let directory = self.directory.as_ref().expect("a database of this process alone lacks it");
        open(directory, options).await
    }

    /// The tests do not own the machine's clock: the ends of lives, leases and roles are moved
    /// instead.
    async fn set_clock_back(&self, by: Duration) {
        let by = i64::try_from(by.as_micros()).expect("not that long");
        for table in ["outbox_relay", "outbox_lease", "outbox_role"] {
            let update = format!("update {table} set expires_at = expires_at + ?");
            let update = sqlx::query(sqlx::AssertSqlSafe(update)).bind(by);
            update.execute(self.store.pool()).await.expect("the tables are there");
        }
    }

    async fn refuse_audit(&self) {
        let away = sqlx::query("alter table outbox_audit rename to outbox_away");
        away.execute(self.store.pool()).await.expect("the table is there");
    }

    async fn set_last_position(&self, last: i64) {
        let update =
            sqlx::query("update sqlite_sequence set seq = ? where name = 'outbox_message'").bind(last);
        let changed = update.execute(self.store.pool()).await.expect("the table is there").rows_affected();
        assert_eq!(changed, 1, "a message was appended before");
    }

    async fn restore_parked(&self) {
        let columns = "position, id, route, bucket, topic, key, event_type, schema_version, content_type, headers, payload, occurred_at, appended_at";
        let copy = format!("insert into outbox_message ({columns}) select {columns} from outbox_parked");
        sqlx::query(sqlx::AssertSqlSafe(copy))
            .execute(self.store.pool())
            .await
            .expect("the tables are there");
    }

    async fn spoil_parked(&self, topic: &str) {
        let spoil = sqlx::query("update outbox_parked set headers = x'78' where topic = ?").bind(topic);
        spoil.execute(self.store.pool()).await.expect("the table is there");
    }

    async fn release_by_hand(&self) {
        let release = sqlx::query("update outbox_key set held = false");
        release.execute(self.store.pool()).await.expect("the table is there");
    }

    /// Sets back the times at which messages were handled, as if that time had passed.
    async fn age_handled_ids(&self, by: Duration) {
        let by = i64::try_from(by.as_micros()).expect("not that long");
        let update = sqlx::query("update outbox_handled set handled_at = handled_at - ?").bind(by);
        update.execute(self.store.pool()).await.expect("the table is there");
        let update = sqlx::query("update outbox_retention set renewed_at = renewed_at - ?").bind(by);
        update.execute(self.store.pool()).await.expect("the table is there");
    }
}

mod file {
    use super::*;

    outbox_testkit::store_conformance!(Subject<true>);
}

mod in_memory {
    use super::*;

    outbox_testkit::store_conformance!(Subject<false>);
}
