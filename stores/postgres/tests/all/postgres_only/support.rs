//! Shared parts of the tests: a store in a database of its own, messages, a relay that owns
//! everything, and waits for a condition.

#[path = "../../../../sql/testing/steps.rs"]
mod steps;

use std::time::Duration;

use outbox_contract::{Message, Store};
use outbox_servers::{OrSkip, Postgres, PostgresServer};
use outbox_store_postgres::{PostgresOptions, PostgresStore};
use sqlx::postgres::{PgConnection, PgPool};
use sqlx::{AssertSqlSafe, Connection, Row};

pub(crate) use steps::*;

/// Longer than any wait of a test, even on a slow machine.
pub(crate) const LONG: Duration = Duration::from_secs(120);

/// A migrated store in a database of its own, on the server that the tests share.
pub(crate) struct Fixture {
    pub(crate) server: PostgresServer,
    pub(crate) url: String,
    pub(crate) store: PostgresStore,
}

impl Fixture {
    /// None: there is no server, and the test skips.
    pub(crate) async fn new() -> Option<Self> {
        Self::with(options()).await
    }

    pub(crate) async fn with(options: PostgresOptions) -> Option<Self> {
        Some(Self::on(Postgres::newest().shared().or_skip()?, options).await)
    }

    pub(crate) async fn on(server: PostgresServer, options: PostgresOptions) -> Self {
        let url = server.fresh_database();
        let store = open(&url, options).await;
        store.migrate().await.unwrap();
        Self { server, url, store }
    }

    /// Opens a connection of its own to the database.
    pub(crate) async fn connection(&self) -> PgConnection {
        PgConnection::connect(&self.url).await.unwrap()
    }

    /// Returns the store as another program sees it.
    pub(crate) async fn another(&self) -> PostgresStore {
        open(&self.url, self.store.options().clone()).await
    }

    /// Runs statements without values.
    pub(crate) async fn run(&self, statements: &str) {
        run(&mut self.connection().await, statements).await;
    }

    /// Returns the one value of a statement.
    pub(crate) async fn number(&self, statement: &str) -> i64 {
        number(&mut self.connection().await, statement).await
    }

    /// Waits until a statement returns at least this value.
    pub(crate) async fn until(&self, statement: &str, at_least: i64) {
        let mut connection = self.connection().await;
        let waiting = async {
            while number(&mut connection, statement).await < at_least {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        tokio::time::timeout(LONG, waiting).await.unwrap_or_else(|_| panic!("never came true: {statement}"));
    }

    /// Waits until this many sessions of this database wait for a lock.
    pub(crate) async fn until_waiting(&self, sessions: i64) {
        self.until(WAITING, sessions).await;
    }
}

/// Number of sessions of this database that wait for a lock.
pub(crate) const WAITING: &str = "select count(distinct l.pid) from pg_locks l join pg_stat_activity a on a.pid = l.pid and a.datname = current_database() where not l.granted";

/// The last assigned position.
pub(crate) const LAST_POSITION: &str =
    "select case when is_called then last_value else 0 end from outbox_message_position";

/// Options under which a slow machine does not change the result of a test.
pub(crate) fn options() -> PostgresOptions {
    let mut options = PostgresOptions::default();
    options.lock_timeout = LONG;
    options.transaction_idle_timeout = LONG * 2;
    options.connect_timeout = LONG;
    options
}

pub(crate) async fn open(url: &str, options: PostgresOptions) -> PostgresStore {
    PostgresStore::connect_with(url, options).await.unwrap()
}

pub(crate) async fn run(connection: &mut PgConnection, statements: &str) {
    sqlx::raw_sql(AssertSqlSafe(statements.to_owned())).execute(connection).await.unwrap();
}

pub(crate) async fn number(connection: &mut PgConnection, statement: &str) -> i64 {
    let row = sqlx::query(AssertSqlSafe(statement.to_owned())).persistent(false).fetch_one(connection).await;
    row.unwrap().try_get(0).unwrap()
}

pub(crate) async fn text(pool: &PgPool, statement: &str) -> String {
    let row = sqlx::query(AssertSqlSafe(statement.to_owned())).persistent(false).fetch_one(pool).await;
    row.unwrap().try_get(0).unwrap()
}

pub(crate) fn message(key: &str) -> Message {
    Message::new("orders", "order.placed").unwrap().with_key(key).unwrap().with_payload("{}")
}
