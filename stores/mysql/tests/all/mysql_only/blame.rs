//! The cause of errors that the servers really raise, as a handler's transaction meets them.

use std::time::Duration;

use outbox_contract::backend::Blame;
use outbox_contract::{Store, Transactional};
use outbox_servers::{MariaDb, MySql, OrSkip};
use outbox_store_mysql::MySqlStore;
use sqlx::mysql::{MySqlConnection, MySqlDatabaseError, MySqlPoolOptions};
use sqlx::{AssertSqlSafe, Connection};

use super::support::{Fixture, LONG, keep_to_no_snapshot, options, run};

/// Runs statements one by one on a connection of their own; the error of the first that fails.
async fn error_of(url: &str, statements: &[&str]) -> sqlx::Error {
    let mut connection = tokio::time::timeout(LONG, MySqlConnection::connect(url)).await.unwrap().unwrap();
    for statement in statements {
        if let Some(pause) = statement.strip_prefix("pause ") {
            tokio::time::sleep(Duration::from_millis(pause.parse().unwrap())).await;
        } else if let Err(error) = tried(&mut connection, statement).await {
            return error;
        }
    }
    panic!("no error of {statements:?}");
}

async fn tried(connection: &mut MySqlConnection, statement: &str) -> Result<(), sqlx::Error> {
    sqlx::raw_sql(AssertSqlSafe(statement.to_owned())).execute(connection).await.map(|_| ())
}

/// The number of an error; 0 where it is not the server's.
fn number(error: &sqlx::Error) -> u16 {
    let database = error.as_database_error().and_then(|error| error.try_downcast_ref::<MySqlDatabaseError>());
    database.map_or(0, MySqlDatabaseError::number)
}

#[track_caller]
fn assert_blames(store: &MySqlStore, error: &sqlx::Error, numbers: &[u16], blame: Blame) {
    assert!(numbers.contains(&number(error)), "not of {numbers:?}: {error}");
    assert_eq!(store.blame(error), blame, "{numbers:?}: {error}");
}

/// Statements that fail, the numbers with which servers say so (0: the connection is gone), and who
/// is to blame.
const CASES: &[(&[u16], Blame, &[&str])] = &[
    // Limits of the server and of the session. Each kind of server takes the limit in a comment
    // that the other one passes over.
    (
        &[1969, 3024],
        Blame::Environment,
        &[
            "set session /*!80000 max_execution_time = 100 */ /*M!100600 max_statement_time = 0.1 */",
            "select n, sleep(30) from t",
        ],
    ),
    (
        &[1114],
        Blame::Environment,
        &[
            "set session max_heap_table_size = 16384",
            "create temporary table m (a char(250)) engine = memory",
            "insert into m with recursive s as (select 1 n union all select n + 1 from s where n < 900) select 'x' from s",
        ],
    ),
    (&[1461], Blame::Environment, &["set global max_prepared_stmt_count = 0", "prepare p from 'select 1'"]),
    // Operators, and servers that changed their part.
    (&[1317], Blame::Environment, &["kill query connection_id()"]),
    (&[0, 1317, 1927, 4031], Blame::Environment, &["kill connection_id()", "pause 200", "select 1"]),
    (&[1792], Blame::Environment, &["start transaction read only", "insert into t values (9)"]),
    (&[0, 4031], Blame::Environment, &["set session wait_timeout = 1", "pause 2500", "select 1"]),
    // Other transactions.
    (
        &[1205],
        Blame::Conflict,
        &["set session innodb_lock_wait_timeout = 1", "update t set n = n where n = 1"],
    ),
    (&[1205, 3572], Blame::Conflict, &["select n from t where n = 1 for update nowait"]),
    // Errors of the statement itself.
    (&[1062], Blame::Handler, &["insert into t values (7), (7)"]),
    (&[3819, 4025], Blame::Handler, &["insert into t values (-1)"]),
    (&[1048], Blame::Handler, &["insert into t values (null)"]),
    (&[1452], Blame::Handler, &["insert into d values (99)"]),
    (&[1064], Blame::Handler, &["nonsense 1"]),
    (&[1146], Blame::Handler, &["select * from nothing"]),
    (&[1054], Blame::Handler, &["select nothing from t"]),
    (&[1305], Blame::Handler, &["call nothing()"]),
    (&[1644], Blame::Handler, &["signal sqlstate '45000'"]),
];

#[tokio::test]
async fn the_server_says_whose_fault_an_error_is() {
    for wish in [MySql::newest(), MariaDb::newest()] {
        let Some(server) = wish.start().or_skip() else { continue };
        let fixture = Fixture::on(server, options()).await;
        let (url, store) = (&fixture.url, &fixture.store);
        fixture
            .run(
                "create table t (n int primary key check (n >= 0)); insert into t values (1), (2), (3); \
                 create table d (n int, foreign key (n) references t (n))",
            )
            .await;
        let mut other = fixture.connection().await;
        run(&mut other, "begin; update t set n = n where n = 1").await;
        for (numbers, blame, statements) in CASES {
            let error = error_of(url, statements).await;
            assert_blames(store, &error, numbers, *blame);
            fixture.server.query(&fixture.server.url(), "set global max_prepared_stmt_count = 16382");
        }
        run(&mut other, "rollback").await;
        of_two(&fixture).await;
        of_the_way(&fixture).await;
        read_only(&fixture).await;
        tokio::time::timeout(LONG, store.check()).await.unwrap().unwrap();
    }
}

/// Two transactions that are in each other's way.
async fn of_two(fixture: &Fixture) {
    let (mut one, mut two) = (fixture.connection().await, fixture.connection().await);
    for (connection, n) in [(&mut one, 1), (&mut two, 2)] {
        run(connection, &format!("begin; update t set n = n where n = {n}")).await;
    }
    let (first, second) = tokio::join!(
        tried(&mut one, "update t set n = n where n = 2"),
        tried(&mut two, "update t set n = n where n = 1")
    );
    let deadlock = first.and(second).unwrap_err();
    assert_blames(&fixture.store, &deadlock, &[1213], Blame::Conflict);
    run(&mut one, "rollback").await;
    run(&mut two, "rollback").await;

    // A table that is altered under a transaction that has a snapshot.
    run(&mut one, "create table altered (n int)").await;
    keep_to_no_snapshot(&mut one).await;
    run(&mut one, "set session transaction isolation level repeatable read; begin; select n from t").await;
    run(&mut two, "alter table altered add index (n), algorithm = copy").await;
    let altered = tried(&mut one, "select n from altered").await.unwrap_err();
    assert_blames(&fixture.store, &altered, &[1412], Blame::Conflict);
}

/// No server, no session, no connection.
async fn of_the_way(fixture: &Fixture) {
    let (store, server) = (&fixture.store, &fixture.server);
    let nobody = fixture.url.replace(&format!(":{}/", server.tcp_port()), ":1/");
    assert_ne!(nobody, fixture.url);
    let refused = MySqlConnection::connect(&nobody).await.unwrap_err();
    assert_blames(store, &refused, &[0], Blame::Environment);
    server.query(
        &server.url(),
        "create user few@'127.0.0.1' with max_user_connections 1; grant all on *.* to few@'127.0.0.1'",
    );
    let as_user = |user: &str| format!("mysql://{user}@127.0.0.1:{}/mysql", server.tcp_port());
    let first = MySqlConnection::connect(&as_user("few")).await.unwrap();
    let second = MySqlConnection::connect(&as_user("few")).await.unwrap_err();
    assert_blames(store, &second, &[1203, 1226], Blame::Environment);
    drop(first);
    let stranger = MySqlConnection::connect(&as_user("stranger:guessed")).await.unwrap_err();
    assert_blames(store, &stranger, &[0, 1045], Blame::Environment);

    let small = MySqlPoolOptions::new().max_connections(1).acquire_timeout(Duration::from_millis(100));
    let small = small.connect_lazy(&fixture.url).unwrap();
    let _taken = loop {
        // A slow machine needs longer than that to connect.
        if let Ok(connection) = small.acquire().await {
            break connection;
        }
    };
    assert_blames(store, &small.acquire().await.unwrap_err(), &[0], Blame::Environment);
    let mut connection = fixture.connection().await;
    let row = sqlx::query("select 1 from t where n = 99").fetch_one(&mut connection).await.unwrap_err();
    assert_eq!(store.blame(&row), Blame::Handler, "a row that is missing is the handler's");
    assert_eq!(store.blame(&std::fmt::Error), Blame::Handler);
}

/// A server that has become a replica, and a user who is no administrator.
async fn read_only(fixture: &Fixture) {
    let (store, server) = (&fixture.store, &fixture.server);
    server.query(
        &fixture.url,
        "create user guest@'127.0.0.1'; grant select, insert on t to guest@'127.0.0.1'; set global read_only = 1",
    );
    let database = fixture.url.rsplit('/').next().unwrap();
    let guest = format!("mysql://guest@127.0.0.1:{}/{database}", server.tcp_port());
    let error = error_of(&guest, &["insert into t values (50)"]).await;
    assert_blames(store, &error, &[1290, 1836], Blame::Environment);
    server.query(&server.url(), "set global read_only = 0");
    let denied = error_of(&guest, &["delete from t"]).await;
    assert_blames(store, &denied, &[1142], Blame::Handler);
}
