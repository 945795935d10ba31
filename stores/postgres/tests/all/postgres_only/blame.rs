//! The cause of errors that the server really raises, as a handler's transaction meets them.

use std::time::Duration;

use outbox_contract::backend::Blame;
use outbox_contract::{Store, Transactional};
use outbox_servers::{OrSkip, Postgres};
use outbox_store_postgres::PostgresStore;
use sqlx::postgres::{PgConnectOptions, PgConnection, PgPool, PgPoolOptions};
use sqlx::{AssertSqlSafe, Connection};

use super::support::{LONG, number, open, options, run};

/// Runs statements one by one on a connection of their own; returns the error of the first that
/// fails.
async fn error_of(url: &str, statements: &[&str]) -> sqlx::Error {
    // The statement before may have filled the server's lock table, which is emptied after its
    // answer.
    let connecting = async {
        loop {
            if let Ok(connection) = PgConnection::connect(url).await {
                return connection;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    let mut connection = tokio::time::timeout(LONG, connecting).await.unwrap();
    for statement in statements {
        if let Some(pause) = statement.strip_prefix("pause ") {
            tokio::time::sleep(Duration::from_millis(pause.parse().unwrap())).await;
            continue;
        }
        let done = sqlx::raw_sql(AssertSqlSafe((*statement).to_owned())).execute(&mut connection).await;
        if let Err(error) = done {
            return error;
        }
    }
    panic!("no error of {statements:?}");
}

fn code(error: &sqlx::Error) -> String {
    error.as_database_error().and_then(|error| error.code()).map(|code| code.into_owned()).unwrap_or_default()
}

#[tokio::test]
async fn the_server_says_whose_fault_an_error_is() {
    let Some(server) = Postgres::newest().start().or_skip() else { return };
    let (url, store) = (server.url(), open(&server.url(), options()).await);
    store.migrate().await.unwrap();
    let mut admin = PgConnection::connect(&url).await.unwrap();
    run(
        &mut admin,
        "create table t (n integer primary key check (n >= 0)); create role guest; create table u (a text)",
    )
    .await;
    let deferred = "create table d (n integer references t deferrable initially deferred)";
    run(&mut admin, deferred).await;

    for (expected, blamed, statements) in [
        // Limits of the server and of the role.
        (
            "25P04",
            Blame::Environment,
            &["set transaction_timeout = '200ms'", "begin", "select pg_sleep(10)"][..],
        ),
        (
            "25P04",
            Blame::Environment,
            &["set transaction_timeout = '200ms'", "begin", "pause 600", "select 1"],
        ),
        ("57014", Blame::Environment, &["set statement_timeout = '100ms'", "select pg_sleep(10)"]),
        ("57P05", Blame::Environment, &["set idle_session_timeout = '100ms'", "pause 600", "select 1"]),
        (
            "53200",
            Blame::Environment,
            &["select count(pg_advisory_xact_lock(n)::text) from generate_series(1, 10000000) n"],
        ),
        (
            "53400",
            Blame::Environment,
            &[
                "set temp_file_limit = '64kB'; set work_mem = '64kB'",
                "select * from generate_series(1, 1000000) n order by n desc",
            ],
        ),
        // Operators, and servers with a changed role.
        ("57P01", Blame::Environment, &["select pg_terminate_backend(pg_backend_pid())"]),
        ("57014", Blame::Environment, &["select pg_cancel_backend(pg_backend_pid()), pg_sleep(10)"]),
        (
            "25006",
            Blame::Environment,
            &["set default_transaction_read_only = on", "insert into t values (1)"],
        ),
        // Sessions that change under prepared statements.
        ("26000", Blame::Environment, &["execute nothing"]),
        ("42P05", Blame::Environment, &["prepare p as select 1", "prepare p as select 2"]),
        (
            "0A000",
            Blame::Environment,
            &["prepare p as select * from u", "alter table u add column b text", "execute p"],
        ),
        // Other transactions.
        (
            "25P03",
            Blame::Conflict,
            &["set idle_in_transaction_session_timeout = '100ms'", "begin", "pause 600", "select 1"],
        ),
        // The statement itself.
        ("0A000", Blame::Handler, &["select distinct n from t for update"]),
        ("22012", Blame::Handler, &["select 1 / 0"]),
        ("23505", Blame::Handler, &["insert into t values (7), (7)"]),
        ("23514", Blame::Handler, &["insert into t values (-1)"]),
        ("23503", Blame::Handler, &["begin", "insert into d values (99)", "commit"]),
        ("42501", Blame::Handler, &["set role guest", "select * from t"]),
        ("42601", Blame::Handler, &["nonsense 1"]),
        ("42P01", Blame::Handler, &["select * from nothing"]),
        ("54000", Blame::Handler, &["select repeat('x', 1073741823 ) || 'xx'"]),
        ("P0001", Blame::Handler, &["do $$ begin raise 'no'; end $$"]),
    ] {
        let error = error_of(&url, statements).await;
        assert_eq!(code(&error), expected, "{statements:?}: {error}");
        assert_eq!(store.blame(&error), blamed, "{expected}: {error}");
    }
    of_two(&store, &url, &mut admin).await;
    of_the_way(&store, &url).await;
}

/// Two transactions that block each other.
async fn of_two(store: &PostgresStore, url: &str, admin: &mut PgConnection) {
    run(admin, "truncate t, d; insert into t values (1), (2)").await;
    run(admin, "begin; update t set n = n where n = 1").await;
    let lock = ["set lock_timeout = '100ms'", "update t set n = n where n = 1"];
    let serial = [
        "begin isolation level repeatable read",
        "select * from t",
        "pause 1",
        "update t set n = n where n = 2",
    ];
    let error = error_of(url, &lock).await;
    assert_eq!((code(&error).as_str(), store.blame(&error)), ("55P03", Blame::Conflict), "{error}");
    run(admin, "commit").await;

    let mut reader = PgConnection::connect(url).await.unwrap();
    for statement in &serial[..2] {
        run(&mut reader, statement).await;
    }
    run(admin, "update t set n = n where n = 2").await;
    let error = sqlx::raw_sql(serial[3]).execute(&mut reader).await.unwrap_err();
    assert_eq!((code(&error).as_str(), store.blame(&error)), ("40001", Blame::Conflict), "{error}");
    assert_eq!(number(admin, "select count(*) from t").await, 2);
}

/// No server, no session, no connection.
async fn of_the_way(store: &PostgresStore, url: &str) {
    let address: PgConnectOptions = url.parse().unwrap();
    let refused = PgConnection::connect_with(&address.clone().port(1)).await.unwrap_err();
    assert_eq!(store.blame(&refused), Blame::Environment, "{refused}");
    let unknown = PgConnection::connect_with(&address.clone().database("nothing")).await.unwrap_err();
    assert_eq!((code(&unknown).as_str(), store.blame(&unknown)), ("3D000", Blame::Environment));
    let stranger = PgConnection::connect_with(&address.clone().username("stranger")).await.unwrap_err();
    assert_eq!((code(&stranger).as_str(), store.blame(&stranger)), ("28000", Blame::Environment));

    let small = PgPoolOptions::new().max_connections(1).acquire_timeout(Duration::from_millis(100));
    let small = small.connect_with(address.clone()).await.unwrap();
    let _taken = small.acquire().await.unwrap();
    let full = small.acquire().await.unwrap_err();
    assert_eq!(store.blame(&full), Blame::Environment, "{full}");
    let row =
        sqlx::query("select 1 where false").fetch_one(&PgPool::connect_with(address).await.unwrap()).await;
    assert_eq!(store.blame(&row.unwrap_err()), Blame::Handler, "a row that is missing is the handler's");
    assert_eq!(store.blame(&std::fmt::Error), Blame::Handler);
    tokio::time::timeout(LONG, store.check()).await.unwrap().unwrap();
}
