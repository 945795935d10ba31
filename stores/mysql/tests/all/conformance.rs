//! The suite that every store must pass, on MySQL and on MariaDB. A fresh database for each test.

use std::sync::Arc;
use std::time::Duration;

use outbox_servers::{Galera, MariaDb, Missing, MySql, MySqlServer, OrSkip};
use outbox_store_mysql::{MySqlOptions, MySqlStore};
use outbox_testkit::store_suite::{Capability, StoreHarness};

/// A test runs as long as it has to, on however slow a machine.
async fn open(url: &str) -> Arc<MySqlStore> {
    open_with(url, MySqlOptions::default()).await
}

async fn open_with(url: &str, mut options: MySqlOptions) -> Arc<MySqlStore> {
    options.history = Some(Duration::from_secs(3_600));
    options.lock_timeout = Duration::from_secs(60);
    options.transaction_idle_timeout = Duration::from_secs(120);
    options.statement_timeout = Duration::from_secs(120);
    options.connect_timeout = Duration::from_secs(60);
    Arc::new(MySqlStore::connect_with(url, options).await.expect("the server takes connections"))
}

/// Sets back the times at which messages were handled, as if that time had passed.
async fn age_handled_ids(store: &MySqlStore, by: Duration) {
    let by = i64::try_from(by.as_micros()).expect("not that long");
    let update = sqlx::query("update outbox_handled set handled_at = handled_at - ?").bind(by);
    update.execute(store.pool()).await.expect("the table is there");
    let update = sqlx::query("update outbox_retention set renewed_at = renewed_at - ?").bind(by);
    update.execute(store.pool()).await.expect("the table is there");
}

/// The server's clock is not the tests' own: the ends of lives, leases and roles are moved instead.
async fn lease_longer(store: &MySqlStore, by: Duration) {
    let by = i64::try_from(by.as_micros()).expect("not that long");
    for table in ["outbox_relay", "outbox_lease", "outbox_role"] {
        let update = format!("update {table} set expires_at = expires_at + ?");
        let update = sqlx::query(sqlx::AssertSqlSafe(update)).bind(by);
        update.execute(store.pool()).await.expect("the tables are there");
    }
}

async fn restore_parked(store: &MySqlStore) {
    let columns = "position, stripe, number, id, route, topic, `key`, event_type, schema_version, content_type, headers, payload, occurred_at, appended_at";
    let copy = format!("insert into outbox_message ({columns}) select {columns} from outbox_parked");
    sqlx::query(sqlx::AssertSqlSafe(copy)).execute(store.pool()).await.expect("the tables are there");
}

macro_rules! on {
    ($module:ident, $wish:expr) => {
        mod $module {
            use super::*;

            struct Subject {
                url: String,
                store: Arc<MySqlStore>,
                _server: MySqlServer,
            }

            impl StoreHarness for Subject {
                type Store = MySqlStore;
                const LACKS: &'static [Capability] = &[Capability::LastPosition];

                async fn fresh() -> Self {
                    let server = $wish.shared().expect("it was there when it was asked for");
                    let url = server.fresh_database();
                    Self { store: open(&url).await, url, _server: server }
                }

                fn store(&self) -> Arc<MySqlStore> {
                    Arc::clone(&self.store)
                }

                async fn as_another_process(&self) -> Arc<MySqlStore> {
                    open(&self.url).await
                }

                async fn as_another_process_that_keeps_ids(&self, kept: Duration) -> Arc<MySqlStore> {
                    let mut options = MySqlOptions::default();
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

                async fn restore_parked(&self) {
                    restore_parked(&self.store).await;
                }

                async fn spoil_parked(&self, topic: &str) {
                    let spoil = sqlx::query("update outbox_parked set headers = 'x' where topic = ?")
                        .bind(topic.as_bytes());
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
                    $wish.shared().or_skip().is_none().then(|| "there is no such server".to_owned())
                }
            }

            outbox_testkit::store_conformance!(Subject);
        }
    };
}

on!(mysql, MySql::newest());
on!(mariadb, MariaDb::newest());
on!(mariadb_oldest, MariaDb::oldest());
on!(galera, OneNode);

/// A node of a cluster that takes all writes.
struct OneNode;

impl OneNode {
    fn shared(self) -> Result<MySqlServer, Missing> {
        Galera::newest().shared().map(|cluster| cluster.node(0).clone())
    }
}
