//! The suite that every store must pass, on the newest and on the oldest available server. A fresh
//! database for each test.

use std::sync::Arc;
use std::time::Duration;

use outbox_servers::{OrSkip, Postgres, PostgresServer};
use outbox_store_postgres::{PostgresOptions, PostgresStore};
use outbox_testkit::store_suite::StoreHarness;

/// Opens a store with eight connections and a pool: many tests at once share one server.
async fn open(url: &str) -> Arc<PostgresStore> {
    open_with(url, PostgresOptions::default()).await
}

async fn open_with(url: &str, mut options: PostgresOptions) -> Arc<PostgresStore> {
    options.history = Some(Duration::from_secs(3_600));
    // A test runs as long as it has to, even on a slow machine.
    options.lock_timeout = Duration::from_secs(60);
    options.transaction_idle_timeout = Duration::from_secs(120);
    options.connect_timeout = Duration::from_secs(60);
    Arc::new(PostgresStore::connect_with(url, options).await.expect("the server takes connections"))
}

/// Sets back the times at which messages were handled, as if that time had passed.
async fn age_handled_ids(store: &PostgresStore, by: Duration) {
    let by = i64::try_from(by.as_micros()).expect("not that long");
    let update = sqlx::query("update outbox_handled set handled_at = handled_at - $1").bind(by);
    update.execute(store.pool()).await.expect("the table is there");
    let update = sqlx::query("update outbox_retention set renewed_at = renewed_at - $1").bind(by);
    update.execute(store.pool()).await.expect("the table is there");
}

/// The tests do not own the server's clock: the ends of lives, leases and roles are moved instead.
async fn lease_longer(store: &PostgresStore, by: Duration) {
    let by = i64::try_from(by.as_micros()).expect("not that long");
    for table in ["outbox_relay", "outbox_lease", "outbox_role"] {
        let update = format!("update {table} set expires_at = expires_at + $1");
        let update = sqlx::query(sqlx::AssertSqlSafe(update)).bind(by);
        update.execute(store.pool()).await.expect("the tables are there");
    }
}

async fn restore_parked(store: &PostgresStore) {
    let columns = "position, id, route, bucket, topic, key, event_type, schema_version, content_type, headers, payload, occurred_at, appended_at";
    let copy = format!("insert into outbox_message ({columns}) select {columns} from outbox_parked");
    sqlx::query(sqlx::AssertSqlSafe(copy)).execute(store.pool()).await.expect("the tables are there");
}

fn skipped(server: Option<&PostgresServer>) -> Option<String> {
    server.is_none().then(|| "there is no PostgreSQL".to_owned())
}

macro_rules! on {
    ($module:ident, $wish:expr) => {
        mod $module {
            use super::*;

            struct Subject {
                url: String,
                store: Arc<PostgresStore>,
                _server: PostgresServer,
            }

            impl StoreHarness for Subject {
                type Store = PostgresStore;

                async fn fresh() -> Self {
                    let server = $wish.shared().expect("it was there when it was asked for");
                    let url = server.fresh_database();
                    Self { store: open(&url).await, url, _server: server }
                }

                fn store(&self) -> Arc<PostgresStore> {
                    Arc::clone(&self.store)
                }

                async fn as_another_process(&self) -> Arc<PostgresStore> {
                    open(&self.url).await
                }

                async fn as_another_process_that_keeps_ids(&self, kept: Duration) -> Arc<PostgresStore> {
                    let mut options = PostgresOptions::default();
                    options.handled_ids_kept = kept;
                    open_with(&self.url, options).await
                }

                async fn set_clock_back(&self, by: Duration) {
                    lease_longer(&self.store, by).await;
                }

                async fn refuse_audit(&self) {
                    let away = sqlx::query("alter table outbox_audit rename to outbox_away");
                    away.execute(self.store.pool()).await.expect("the table is there");
                }

                async fn set_last_position(&self, last: i64) {
                    let set =
                        sqlx::query("select setval('outbox_message_position', $1 + 1, false)").bind(last);
                    set.execute(self.store.pool()).await.expect("the sequence is there");
                }

                async fn restore_parked(&self) {
                    restore_parked(&self.store).await;
                }

                async fn spoil_parked(&self, topic: &str) {
                    let spoil =
                        sqlx::query("update outbox_parked set headers = 'x' where topic = $1").bind(topic);
                    spoil.execute(self.store.pool()).await.expect("the table is there");
                }

                async fn release_by_hand(&self) {
                    let release = sqlx::query("update outbox_key set held = false");
                    release.execute(self.store.pool()).await.expect("the table is there");
                }

                async fn age_handled_ids(&self, by: Duration) {
                    age_handled_ids(&self.store, by).await;
                }

                fn skipped() -> Option<String> {
                    skipped($wish.shared().or_skip().as_ref())
                }
            }

            outbox_testkit::store_conformance!(Subject);
        }
    };
}

on!(newest, Postgres::newest());
on!(oldest, Postgres::oldest());
