//! The suite that an inbox on every store must pass, on the newest and on the oldest available
//! server. A fresh database for each test.

use std::sync::Arc;
use std::time::Duration;

use outbox_servers::{OrSkip, Postgres, PostgresServer};
use outbox_store_postgres::{PostgresOptions, PostgresStore};
use outbox_testkit::inbox_suite::{Effect, EffectError, Effects, InboxHarness};
use outbox_testkit::store_suite::{Capability, StoreHarness};
use sqlx::{PgConnection, PgPool};

async fn open(url: &str) -> Arc<PostgresStore> {
    let mut options = PostgresOptions::default();
    options.history = Some(Duration::from_secs(3_600));
    // A test runs as long as it has to, even on a slow machine.
    options.lock_timeout = Duration::from_secs(60);
    options.transaction_idle_timeout = Duration::from_secs(120);
    options.connect_timeout = Duration::from_secs(60);
    Arc::new(PostgresStore::connect_with(url, options).await.expect("the server takes connections"))
}

/// A table of effects, in the same database.
#[derive(Clone)]
struct Table(PgPool);

impl Effects<PostgresStore> for Table {
    async fn write(&self, tx: &mut PgConnection, effect: Effect) -> Result<(), EffectError> {
        let insert = sqlx::query("insert into effects (key, message) values ($1, $2)");
        insert.bind(effect.key).bind(effect.message.to_string()).execute(tx).await?;
        Ok(())
    }

    async fn read(&self) -> Result<Vec<Effect>, EffectError> {
        let select = sqlx::query_as::<_, (String, String)>("select key, message from effects order by place");
        let rows = select.fetch_all(&self.0).await?;
        rows.into_iter().map(|(key, message)| Ok(Effect { key, message: message.parse()? })).collect()
    }
}

macro_rules! on {
    ($module:ident, $wish:expr) => {
        mod $module {
            use super::*;

            struct Subject {
                store: Arc<PostgresStore>,
                _server: PostgresServer,
            }

            impl StoreHarness for Subject {
                type Store = PostgresStore;
                const LACKS: &'static [Capability] = &[Capability::ExpiredIds];

                async fn fresh() -> Self {
                    let server = $wish.shared().expect("it was there when it was asked for");
                    Self { store: open(&server.fresh_database()).await, _server: server }
                }

                fn store(&self) -> Arc<PostgresStore> {
                    Arc::clone(&self.store)
                }

                fn skipped() -> Option<String> {
                    let server = $wish.shared().or_skip();
                    server.is_none().then(|| "there is no PostgreSQL".to_owned())
                }
            }

            impl InboxHarness for Subject {
                type Effects = Table;

                async fn effects(&self) -> Table {
                    let pool = self.store.pool().clone();
                    let table = "create table effects (place bigint generated always as identity primary key, key text not null,
                                                       message text not null)";
                    sqlx::query(table).execute(&pool).await.expect("a table can be made");
                    Table(pool)
                }
            }

            outbox_testkit::inbox_conformance!(Subject);
        }
    };
}

on!(newest, Postgres::newest());
on!(oldest, Postgres::oldest());
