//! The suite that an inbox on every store must pass, on MySQL and on MariaDB. A fresh database for
//! each test.

use std::sync::Arc;
use std::time::Duration;

use outbox_servers::{MariaDb, MySql, MySqlServer, OrSkip};
use outbox_store_mysql::{MySqlOptions, MySqlStore};
use outbox_testkit::inbox_suite::{Effect, EffectError, Effects, InboxHarness};
use outbox_testkit::store_suite::{Capability, StoreHarness};
use sqlx::{MySqlConnection, MySqlPool};

/// A test runs as long as it has to, on however slow a machine.
async fn open(url: &str) -> Arc<MySqlStore> {
    let mut options = MySqlOptions::default();
    options.history = Some(Duration::from_secs(3_600));
    options.lock_timeout = Duration::from_secs(60);
    options.transaction_idle_timeout = Duration::from_secs(120);
    options.statement_timeout = Duration::from_secs(120);
    options.connect_timeout = Duration::from_secs(60);
    Arc::new(MySqlStore::connect_with(url, options).await.expect("the server takes connections"))
}

/// A table of effects, in the same database.
#[derive(Clone)]
struct Table(MySqlPool);

impl Effects<MySqlStore> for Table {
    async fn write(&self, tx: &mut MySqlConnection, effect: Effect) -> Result<(), EffectError> {
        let insert = sqlx::query("insert into effects (of_key, message) values (?, ?)");
        insert.bind(effect.key).bind(effect.message.to_string()).execute(tx).await?;
        Ok(())
    }

    async fn read(&self) -> Result<Vec<Effect>, EffectError> {
        let select =
            sqlx::query_as::<_, (String, String)>("select of_key, message from effects order by place");
        let rows = select.fetch_all(&self.0).await?;
        rows.into_iter().map(|(key, message)| Ok(Effect { key, message: message.parse()? })).collect()
    }
}

macro_rules! on {
    ($module:ident, $wish:expr) => {
        mod $module {
            use super::*;

            struct Subject {
                store: Arc<MySqlStore>,
                _server: MySqlServer,
            }

            impl StoreHarness for Subject {
                type Store = MySqlStore;
                const LACKS: &'static [Capability] = &[Capability::ExpiredIds];

                async fn fresh() -> Self {
                    let server = $wish.shared().expect("it was there when it was asked for");
                    Self { store: open(&server.fresh_database()).await, _server: server }
                }

                fn store(&self) -> Arc<MySqlStore> {
                    Arc::clone(&self.store)
                }

                fn skipped() -> Option<String> {
                    $wish.shared().or_skip().is_none().then(|| "there is no such server".to_owned())
                }
            }

            impl InboxHarness for Subject {
                type Effects = Table;

                async fn effects(&self) -> Table {
                    let pool = self.store.pool().clone();
                    let table = "create table effects (place bigint auto_increment primary key, of_key varchar(255) not null,
                                                       message varchar(36) not null)";
                    sqlx::query(table).execute(&pool).await.expect("a table can be made");
                    Table(pool)
                }
            }

            outbox_testkit::inbox_conformance!(Subject);
        }
    };
}

on!(mysql, MySql::newest());
on!(mariadb, MariaDb::newest());
on!(mariadb_oldest, MariaDb::oldest());
