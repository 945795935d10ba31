//! A connection of the store's own, for one kind of work.
//!
//! Not a pool: each kind of work has one connection, so that load can't starve heartbeats, nothing has to be asked of a connection
//! before it is used, and their number is known. Whoever has the line has it alone; others wait their turn.

use std::sync::Arc;
use std::time::Duration;

use sqlx::mysql::{MySqlConnectOptions, MySqlConnection};
use sqlx::{AssertSqlSafe, ConnectOptions, Connection};
use tokio::sync::{Mutex, MutexGuard};

use crate::config::{MySqlOptions, seconds};
use crate::error::is_sound;

/// How long a line may be idle that is in no transaction, in seconds: the most that the server takes on every system, and more, is a year.
const AT_EASE: u32 = 31_536_000;

/// How the store's own connections are opened.
#[derive(Clone)]
pub(crate) struct Way {
    options: MySqlConnectOptions,
    connect_timeout: Duration,
    /// What is set on a connection before it is used.
    setup: Arc<str>,
}

impl Way {
    pub(crate) fn new(users: &MySqlConnectOptions, options: &MySqlOptions) -> Self {
        // Of a transaction. Whoever waits for its locks waits for no longer than `lock_timeout`: it is over by then, or at work.
        let idle = options.lock_timeout.min(options.transaction_idle_timeout);
        // READ COMMITTED: under the server's default, statements that look for rows also lock the gaps between them, and whoever appends
        // waits for the relay. A line may be idle for long, and is not closed for it.
        let setup = format!(
            "set session transaction isolation level read committed; \
             set session sql_mode = 'STRICT_TRANS_TABLES,NO_ENGINE_SUBSTITUTION', autocommit = 1, wait_timeout = {AT_EASE}, \
             net_read_timeout = {idle}, @outbox_idle = {idle}, @outbox_locks = {locks}, innodb_lock_wait_timeout = {locks}, lock_wait_timeout = {locks} \
             /*!80000 , max_execution_time = {milliseconds} */ /*M!100600 , max_statement_time = {seconds} */",
            idle = seconds(idle),
            locks = seconds(options.lock_timeout),
            milliseconds = seconds(options.statement_timeout) * 1_000,
            seconds = seconds(options.statement_timeout),
        );
        Self {
            options: users.clone().disable_statement_logging(),
            connect_timeout: options.connect_timeout,
            setup: setup.into(),
        }
    }

    /// Opens a connection, within a time.
    pub(crate) async fn open(&self) -> Result<MySqlConnection, sqlx::Error> {
        let opening = async {
            let mut connection = MySqlConnection::connect_with(&self.options).await?;
            run(&mut connection, self.setup.to_string()).await?;
            Ok(connection)
        };
        match tokio::time::timeout(self.connect_timeout, opening).await {
            Ok(connected) => connected,
            Err(_) => Err(sqlx::Error::Io(std::io::ErrorKind::TimedOut.into())),
        }
    }
}

/// A connection, opened when it is first needed, and again after it broke.
pub(crate) struct Line {
    way: Way,
    place: Mutex<Option<MySqlConnection>>,
}

/// The line, held. Dropped before it is finished (a cancelled call), the connection is closed: nobody knows what it was doing.
pub(crate) struct Held<'l> {
    place: MutexGuard<'l, Option<MySqlConnection>>,
    /// The connection.
    pub(crate) connection: MySqlConnection,
}

impl Line {
    pub(crate) fn new(way: Way) -> Self {
        Self { way, place: Mutex::new(None) }
    }

    /// Waits for the line, and for its connection.
    pub(crate) async fn hold(&self) -> Result<Held<'_>, sqlx::Error> {
        let mut place = self.place.lock().await;
        let connection = match place.take() {
            Some(connection) => connection,
            None => self.way.open().await?,
        };
        Ok(Held { place, connection })
    }
}

impl Held<'_> {
    /// Gives the line back with what came of the work. A connection that broke is not kept.
    pub(crate) fn finish<T>(mut self, done: Result<T, sqlx::Error>) -> Result<T, sqlx::Error> {
        if done.as_ref().err().is_none_or(is_sound) {
            *self.place = Some(self.connection);
        }
        done
    }
}

/// Runs statements without values, in one round trip.
pub(crate) async fn run(
    connection: &mut MySqlConnection,
    statements: impl Into<String>,
) -> Result<(), sqlx::Error> {
    sqlx::raw_sql(AssertSqlSafe(statements.into())).execute(connection).await.map(|_| ())
}

/// Runs work in a transaction of the store's own, and ends the transaction with what came of the work.
///
/// The server closes a connection that is quiet for too long in it: a relay that is stopped, or cut off without a word, would hold its locks for as
/// long as TCP takes to notice, and every other one waits. The bound is set and put back in the round trips of BEGIN and COMMIT.
pub(crate) async fn in_transaction<T>(
    connection: &mut MySqlConnection,
    work: impl AsyncFnOnce(&mut MySqlConnection) -> Result<T, sqlx::Error>,
) -> Result<T, sqlx::Error> {
    within(connection, "start transaction", work).await
}

/// Runs work that only reads, all of it in one snapshot.
pub(crate) async fn in_snapshot<T>(
    connection: &mut MySqlConnection,
    work: impl AsyncFnOnce(&mut MySqlConnection) -> Result<T, sqlx::Error>,
) -> Result<T, sqlx::Error> {
    const BEGIN: &str = "set transaction isolation level repeatable read; start transaction read only";
    within(connection, BEGIN, work).await
}

async fn within<T>(
    connection: &mut MySqlConnection,
    begin: &str,
    work: impl AsyncFnOnce(&mut MySqlConnection) -> Result<T, sqlx::Error>,
) -> Result<T, sqlx::Error> {
    let begun = run(connection, format!("set session wait_timeout = @outbox_idle; {begin}")).await;
    let done = match begun {
        Ok(()) => work(connection).await,
        Err(error) => Err(error),
    };
    let end = async |connection: &mut MySqlConnection, how: &str| {
        run(connection, format!("{how}; set session wait_timeout = {AT_EASE}")).await
    };
    let ended = match done {
        Ok(value) => end(connection, "commit").await.map(|()| value),
        Err(error) => Err(error),
    };
    if ended.is_err() {
        // On a connection that is broken there is nothing to roll back, and the cause is the error before.
        let _ = end(connection, "rollback").await;
    }
    ended
}
