//! The cause of errors that SQLite really raises, as a handler's transaction meets them.

use std::path::Path;
use std::time::Duration;

use outbox_contract::Transactional;
use outbox_contract::backend::Blame;
use outbox_store_sqlite::SqliteStore;
use sqlx::sqlite::{SqliteConnectOptions, SqliteConnection, SqlitePoolOptions};
use sqlx::{AssertSqlSafe, ConnectOptions, Connection};

use super::support::Fixture;

/// Writes a megabyte.
const FILLS: &str = "create table filled as select zeroblob(1000000)";

/// A connection that does not wait for locks.
async fn connect(path: &Path) -> Result<SqliteConnection, sqlx::Error> {
    SqliteConnectOptions::new().filename(path).busy_timeout(Duration::ZERO).connect().await
}

async fn tried(connection: &mut SqliteConnection, statement: &str) -> Result<(), sqlx::Error> {
    sqlx::raw_sql(AssertSqlSafe(statement.to_owned())).execute(connection).await.map(|_| ())
}

/// Runs statements one by one; returns the error of the first that fails.
async fn error_of(connection: &mut SqliteConnection, statements: &[&str]) -> sqlx::Error {
    for statement in statements {
        if let Err(error) = tried(connection, statement).await {
            return error;
        }
    }
    panic!("no error of {statements:?}");
}

/// The primary result code.
fn code(error: &sqlx::Error) -> i32 {
    let extended = error.as_database_error().and_then(|error| error.code()).expect("an error of SQLite's");
    extended.parse::<i32>().unwrap() & 0xff
}

#[track_caller]
fn assert_blames(store: &SqliteStore, error: &sqlx::Error, expected: i32, blame: Blame) {
    assert_eq!(code(error), expected, "{error}");
    assert_eq!(store.blame(error), blame, "{expected}: {error}");
}

#[tokio::test]
async fn the_database_says_whose_fault_an_error_is() {
    let fixture = Fixture::new().await;
    let (store, path) = (&fixture.store, fixture.path());
    let tables = "create table t (n integer primary key check (n >= 0), m integer not null default 0);
                  create table d (n integer references t deferrable initially deferred); insert into t values (1, 0)";
    sqlx::raw_sql(tables).execute(store.pool()).await.unwrap();

    for (expected, blame, statements) in [
        // The machine, and an operator's limits: a full disk, a file that can only be read or can't
        // be opened, memory.
        (13, Blame::Environment, &["pragma max_page_count = 1", "begin", FILLS][..]),
        (8, Blame::Environment, &["pragma query_only = 1", "insert into t values (2, 0)"]),
        (14, Blame::Environment, &["attach 'no/such/directory/file.db' as other"]),
        // The statement itself.
        (19, Blame::Handler, &["insert into t values (1, 0)"]),
        (19, Blame::Handler, &["insert into t values (-1, 0)"]),
        (19, Blame::Handler, &["insert into t values (5, null)"]),
        (19, Blame::Handler, &["begin", "insert into d values (99)", "commit"]),
        (1, Blame::Handler, &["nonsense 1"]),
        (1, Blame::Handler, &["select * from nothing"]),
        (18, Blame::Handler, &["select zeroblob(2000000000)"]),
        (20, Blame::Handler, &["insert into t (n) values ('text')"]),
    ] {
        let mut connection = connect(&path).await.unwrap();
        let error = error_of(&mut connection, statements).await;
        assert_blames(store, &error, expected, blame);
    }
    of_two(store, &path).await;
    of_the_file(&fixture).await;
    of_the_pool(store, &path).await;
}

/// Two connections that block each other.
async fn of_two(store: &SqliteStore, path: &Path) {
    let (mut one, mut two) = (connect(path).await.unwrap(), connect(path).await.unwrap());
    tried(&mut two, "begin; select * from t").await.unwrap();
    tried(&mut one, "begin immediate; update t set m = m + 1").await.unwrap();
    let busy = tried(&mut two, "update t set m = 0").await.unwrap_err();
    assert_blames(store, &busy, 5, Blame::Conflict);
    tried(&mut one, "commit").await.unwrap();
    let stale = tried(&mut two, "update t set m = 0").await.unwrap_err();
    assert_blames(store, &stale, 5, Blame::Conflict);
    tried(&mut two, "rollback").await.unwrap();
}

/// Files that are no database, or a damaged one.
async fn of_the_file(fixture: &Fixture) {
    let path = fixture.directory.path().join("letter.txt");
    std::fs::write(&path, "Dear Sir or Madam, this is not a database. ".repeat(100)).unwrap();
    let error = match connect(&path).await {
        Ok(mut connection) => tried(&mut connection, "select * from sqlite_schema").await.unwrap_err(),
        Err(error) => error,
    };
    assert_blames(&fixture.store, &error, 26, Blame::Environment);
    let missing = connect(&fixture.directory.path().join("missing.db")).await.unwrap_err();
    assert_blames(&fixture.store, &missing, 14, Blame::Environment);

    let damaged = fixture.directory.path().join("damaged.db");
    let mut connection =
        SqliteConnectOptions::new().filename(&damaged).create_if_missing(true).connect().await.unwrap();
    tried(&mut connection, "create table t (a); insert into t select zeroblob(500000)").await.unwrap();
    connection.close().await.unwrap();
    let mut bytes = std::fs::read(&damaged).unwrap();
    bytes[4096..].fill(0xff);
    std::fs::write(&damaged, bytes).unwrap();
    let mut connection = connect(&damaged).await.unwrap();
    let error = tried(&mut connection, "select sum(length(a)) from t").await.unwrap_err();
    assert_blames(&fixture.store, &error, 11, Blame::Environment);
}

/// No connection, and the driver's own errors.
async fn of_the_pool(store: &SqliteStore, path: &Path) {
    let options = SqliteConnectOptions::new().filename(path);
    let small = SqlitePoolOptions::new().max_connections(1).acquire_timeout(Duration::from_millis(100));
    let small = small.connect_lazy_with(options);
    let _taken = loop {
        // A slow machine needs longer than that to open the file.
        if let Ok(connection) = small.acquire().await {
            break connection;
        }
    };
    assert_eq!(store.blame(&small.acquire().await.unwrap_err()), Blame::Environment);
    let row = sqlx::query("select 1 where false").fetch_one(store.pool()).await.unwrap_err();
    assert_eq!(store.blame(&row), Blame::Handler, "a row that is missing is the handler's");
    assert_eq!(store.blame(&std::fmt::Error), Blame::Handler);
}
