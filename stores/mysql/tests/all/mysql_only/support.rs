//! Helpers shared by the tests: a store in a database of its own, messages, a relay that owns
//! everything, and waiting for a condition.

#[allow(dead_code, reason = "some are of other stores' tests")]
#[path = "../../../../sql/testing/steps.rs"]
mod steps;

use std::sync::Arc;
use std::time::Duration;

use outbox_contract::backend::{Epoch, KeyTransition, RelayId, RowId, Step, Stored, Then};
use outbox_contract::{Failure, Message, Route, Store, Transactional};
use outbox_servers::{MariaDb, MySql, MySqlServer, OrSkip};
use outbox_store_mysql::{MySqlOptions, MySqlStore};
use sqlx::mysql::MySqlConnection;
use sqlx::{AssertSqlSafe, Connection, Row};

pub(crate) use steps::{append, dead, fetch, lease_request as heartbeat, messages, relay, waiting};

/// Longer than anything takes that a test waits for, on however slow a machine.
pub(crate) const LONG: Duration = Duration::from_secs(120);

/// A migrated store in a database of its own, on a server that the tests share.
pub(crate) struct Fixture {
    pub(crate) server: MySqlServer,
    pub(crate) url: String,
    pub(crate) store: MySqlStore,
}

/// Returns one fixture on MySQL and one on each MariaDB, as far as they are installed.
pub(crate) async fn both() -> Vec<Fixture> {
    both_with(options()).await
}

pub(crate) async fn both_with(options: MySqlOptions) -> Vec<Fixture> {
    let mut fixtures = Vec::new();
    for wish in [MySql::newest(), MariaDb::newest(), MariaDb::oldest()] {
        if let Some(server) = wish.shared().or_skip() {
            fixtures.push(Fixture::on(server, options.clone()).await);
        }
    }
    fixtures
}

impl Fixture {
    pub(crate) async fn on(server: MySqlServer, options: MySqlOptions) -> Self {
        let url = server.fresh_database();
        let store = open(&url, options).await;
        store.migrate().await.unwrap();
        Self { server, url, store }
    }

    /// A connection of its own to the database.
    pub(crate) async fn connection(&self) -> MySqlConnection {
        MySqlConnection::connect(&self.url).await.unwrap()
    }

    /// The store as another program sees it.
    pub(crate) async fn another(&self) -> MySqlStore {
        open(&self.url, self.store.options().clone()).await
    }

    /// Runs statements without values.
    pub(crate) async fn run(&self, statements: &str) {
        run(&mut self.connection().await, statements).await;
    }

    /// The number of sessions that a statement counts. MySQL refuses to show any while a statement
    /// of anybody has bytes in it that are no text (3854): none, then.
    pub(crate) async fn sessions(&self, statement: &str) -> i64 {
        let row =
            sqlx::raw_sql(AssertSqlSafe(statement.to_owned())).fetch_one(&mut self.connection().await).await;
        row.map_or(0, |row| row.try_get_unchecked(0).unwrap())
    }

    /// The one number that a statement gives.
    pub(crate) async fn number(&self, statement: &str) -> i64 {
        number(&mut self.connection().await, statement).await
    }

    /// Waits until a transaction of some session of this database waits for a lock in a statement
    /// that begins so.
    pub(crate) async fn until_waiting(&self, begins: &str) {
        self.until_waiting_for(Duration::ZERO, begins).await;
    }

    /// Waits until such a statement has waited for a lock for so long, by the server's clock in whole
    /// seconds.
    pub(crate) async fn until_waiting_for(&self, time: Duration, begins: &str) {
        let seconds = time.as_secs();
        let statement = format!(
            "select count(*) from information_schema.innodb_trx t join information_schema.processlist p on p.id = t.trx_mysql_thread_id \
             where p.db = database() and t.trx_state = 'LOCK WAIT' and t.trx_query like '{begins}%' and p.time >= {seconds}"
        );
        let waiting = async {
            while self.sessions(&statement).await == 0 {
                // It looks again only after a tenth of a second without a request.
                tokio::time::sleep(Duration::from_millis(250)).await;
            }
        };
        tokio::time::timeout(LONG, waiting).await.unwrap_or_else(|_| panic!("never waited: {begins}"));
    }
}

/// A table for a deadlock.
pub(crate) async fn make_stock(fixture: &Fixture) {
    fixture
        .run("create table stock (id int primary key, n int); insert into stock values (1, 0), (2, 0), (1000, 0)")
        .await;
}

/// Lets a transaction be rolled back by a real deadlock in two statements of the user's.
pub(crate) async fn deadlock(fixture: &Fixture, victim: &mut MySqlConnection) {
    sqlx::query("update stock set n = 1 where id = 1").execute(&mut *victim).await.unwrap();
    // The server rolls back the one that has written less.
    let mut other = fixture.connection().await;
    let mut other = other.begin().await.unwrap();
    for id in 3..103 {
        let insert = format!("insert into stock values ({id}, 0)");
        sqlx::raw_sql(AssertSqlSafe(insert)).execute(&mut *other).await.unwrap();
    }
    sqlx::query("update stock set n = 2 where id = 2").execute(&mut *other).await.unwrap();
    let second = sqlx::raw_sql("update stock set n = 2 where id = 1").execute(&mut *other);
    let first = async {
        fixture.until_waiting("update stock set n = 2 where id = 1").await;
        sqlx::query("update stock set n = 1 where id = 2").execute(&mut *victim).await.unwrap_err()
    };
    let (second, error) = tokio::join!(second, first);
    second.unwrap();
    assert!(fixture.store.is_conflict(&error), "{error}");
    other.commit().await.unwrap();
}

/// Options under which no slow machine changes what comes of a test.
pub(crate) fn options() -> MySqlOptions {
    let mut options = MySqlOptions::default();
    options.lock_timeout = LONG;
    options.transaction_idle_timeout = LONG * 2;
    options.statement_timeout = LONG;
    options.connect_timeout = LONG;
    options.connections = 4;
    options
}

pub(crate) async fn open(url: &str, options: MySqlOptions) -> MySqlStore {
    MySqlStore::connect_with(url, options).await.unwrap()
}

pub(crate) async fn run(connection: &mut MySqlConnection, statements: &str) {
    sqlx::raw_sql(AssertSqlSafe(statements.to_owned())).execute(connection).await.unwrap();
}

/// As servers are but MariaDB from 11.6.2 on. MySQL has no such setting.
pub(crate) async fn keep_to_no_snapshot(connection: &mut MySqlConnection) {
    let _ = sqlx::raw_sql("set session innodb_snapshot_isolation = 0").execute(connection).await;
}

pub(crate) async fn number(connection: &mut MySqlConnection, statement: &str) -> i64 {
    let row = sqlx::raw_sql(AssertSqlSafe(statement.to_owned())).fetch_one(connection).await;
    row.unwrap().try_get_unchecked(0).unwrap()
}

pub(crate) fn message(key: &str) -> Message {
    Message::new("orders", "order.placed").unwrap().with_key(key).unwrap().with_payload("{}")
}

/// A step in which the first of these messages of a key fails and is due again at once, with the
/// others behind it.
pub(crate) fn fails(relay: RelayId, of_a_key: &[Arc<Stored>]) -> KeyTransition {
    let failure = Failure::new("refused", "no");
    let rows: Vec<RowId> = of_a_key.iter().map(|stored| stored.row()).collect();
    KeyTransition::new(
        Route::default(),
        relay,
        (of_a_key[0].bucket, Epoch(1)),
        of_a_key[0].message.key_id(),
        None,
        Step::Fail {
            row: rows[0],
            attempts: 1,
            first: failure.clone(),
            last: failure,
            then: Then::RetryAfter(Duration::ZERO),
            behind: rows[1..].to_vec(),
        },
    )
}
