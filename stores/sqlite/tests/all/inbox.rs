//! The suite that an inbox on every store must pass, on a file.

use std::sync::Arc;
use std::time::Duration;

use outbox_store_sqlite::{SqliteOptions, SqliteStore};
use outbox_testkit::inbox_suite::{Effect, EffectError, Effects, InboxHarness};
use outbox_testkit::store_suite::{Capability, StoreHarness};
use sqlx::{SqliteConnection, SqlitePool};
use tempfile::TempDir;

struct File {
    store: Arc<SqliteStore>,
    _directory: TempDir,
}

/// A table of effects, in the same file.
#[derive(Clone)]
struct Table(SqlitePool);

impl StoreHarness for File {
    type Store = SqliteStore;
    const LACKS: &'static [Capability] = &[Capability::ExpiredIds];

    async fn fresh() -> Self {
        let directory = tempfile::tempdir().expect("a directory can be made");
        let mut options = SqliteOptions::default();
        options.history = Some(Duration::from_secs(3_600));
        let store = SqliteStore::open_with(directory.path().join("outbox.db"), options).await;
        Self { store: Arc::new(store.expect("the file can be opened")), _directory: directory }
    }

    fn store(&self) -> Arc<SqliteStore> {
        Arc::clone(&self.store)
    }
}

impl InboxHarness for File {
    type Effects = Table;

    async fn effects(&self) -> Table {
        let pool = self.store.pool().clone();
        let table = "create table effects (place integer primary key autoincrement, key text not null, message text not null)";
        sqlx::query(table).execute(&pool).await.expect("a table can be made");
        Table(pool)
    }
}

impl Effects<SqliteStore> for Table {
    async fn write(&self, tx: &mut SqliteConnection, effect: Effect) -> Result<(), EffectError> {
        let insert = sqlx::query("insert into effects (key, message) values (?, ?)");
        insert.bind(effect.key).bind(effect.message.to_string()).execute(tx).await?;
        Ok(())
    }

    async fn read(&self) -> Result<Vec<Effect>, EffectError> {
        let select = sqlx::query_as::<_, (String, String)>("select key, message from effects order by place");
        let rows = select.fetch_all(&self.0).await?;
        rows.into_iter().map(|(key, message)| Ok(Effect { key, message: message.parse()? })).collect()
    }
}

outbox_testkit::inbox_conformance!(File);
