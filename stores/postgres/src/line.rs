//! A connection of the store's own, for one kind of work.
//!
//! Not a pool: each kind of work has one connection, so that load can't starve heartbeats, nothing has to be asked of a connection
//! before it is used, and their number is known. Whoever has the line has it alone; others wait their turn.

use std::time::Duration;

use sqlx::postgres::{PgConnectOptions, PgConnection};
use sqlx::{Connection, SqlStr};
use tokio::sync::{Mutex, MutexGuard};

use crate::error::is_sound;

/// A connection, opened when it is first needed, and again after it broke.
pub(crate) struct Line {
    options: PgConnectOptions,
    connect_timeout: Duration,
    /// How each piece of work begins, behind a pooler: a statement is prepared and run in two steps, which must not reach two servers.
    begin: Option<SqlStr>,
    place: Mutex<Option<PgConnection>>,
}

/// The line, held. Dropped before it is finished (a cancelled call), the connection is closed: nobody knows what it was doing.
pub(crate) struct Held<'l> {
    place: MutexGuard<'l, Option<PgConnection>>,
    /// The connection.
    pub(crate) connection: PgConnection,
    begun: bool,
}

impl Line {
    pub(crate) fn new(options: PgConnectOptions, connect_timeout: Duration, begin: Option<SqlStr>) -> Self {
        Self { options, connect_timeout, begin, place: Mutex::new(None) }
    }

    /// Waits for the line, and for its connection.
    pub(crate) async fn hold(&self) -> Result<Held<'_>, sqlx::Error> {
        let mut place = self.place.lock().await;
        let connection = match place.take() {
            Some(connection) => connection,
            None => connect(&self.options, self.connect_timeout).await?,
        };
        let mut held = Held { place, connection, begun: false };
        if let Some(begin) = &self.begin {
            sqlx::raw_sql(begin.clone()).execute(&mut held.connection).await?;
            held.begun = true;
        }
        Ok(held)
    }
}

impl Held<'_> {
    /// Gives the line back with what came of the work. A connection that broke is not kept.
    pub(crate) async fn finish<T>(mut self, done: Result<T, sqlx::Error>) -> Result<T, sqlx::Error> {
        let done = match done {
            Ok(value) if self.begun => {
                sqlx::raw_sql("commit").execute(&mut self.connection).await.map(|_| value)
            }
            Err(error) if self.begun && is_sound(&error) => {
                sqlx::raw_sql("rollback").execute(&mut self.connection).await.and(Err(error))
            }
            done => done,
        };
        if done.as_ref().err().is_none_or(is_sound) {
            *self.place = Some(self.connection);
        }
        done
    }
}

/// Opens a connection, within a time.
pub(crate) async fn connect(
    options: &PgConnectOptions,
    timeout: Duration,
) -> Result<PgConnection, sqlx::Error> {
    match tokio::time::timeout(timeout, PgConnection::connect_with(options)).await {
        Ok(connected) => connected,
        Err(_) => Err(sqlx::Error::Io(std::io::ErrorKind::TimedOut.into())),
    }
}
