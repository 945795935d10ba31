//! A connection of the store's own, for one kind of work.
//!
//! Not a pool: each kind of work has one connection, so that load can't starve heartbeats, nothing has to be asked of a connection
//! that is in use, and their number is known. Whoever has the line has it alone; others wait their turn.

use std::time::{Duration, Instant};

use sqlx::postgres::{PgConnectOptions, PgConnection};
use sqlx::{Connection, SqlStr};
use tokio::sync::{Mutex, MutexGuard};

use crate::error::{is_sound, takes_no_writes};
use crate::lines::Door;

/// How long a connection that was idle has for saying that it is still there. One that has no answer by then is left, and another one opened: less
/// than what waits for it would wait.
const ANSWER: Duration = Duration::from_secs(1);

/// A connection, opened when it is first needed, and again after it broke.
pub(crate) struct Line {
    door: Door,
    /// How each piece of work begins, behind a pooler: a statement is prepared and run in two steps, which must not reach two servers.
    begin: Option<SqlStr>,
    /// Whether its connection is kept however old it is.
    of_any_age: bool,
    place: Mutex<Option<Idle>>,
}

/// A connection that nobody uses.
pub(crate) struct Idle {
    connection: PgConnection,
    /// When it was used last.
    since: Instant,
    origin: Origin,
}

/// When a connection was opened.
#[derive(Clone, Copy)]
struct Origin {
    opened: Instant,
    generation: u64,
}

/// The line, held. Dropped before it is finished (a cancelled call), the connection is closed: nobody knows what it was doing.
pub(crate) struct Held<'l> {
    place: MutexGuard<'l, Option<Idle>>,
    /// The connection.
    pub(crate) connection: PgConnection,
    /// Whether it was idle before, and may have been ended meanwhile.
    pub(crate) was_idle: bool,
    origin: Origin,
    door: &'l Door,
    begun: bool,
}

impl Line {
    pub(crate) fn new(door: Door, begin: Option<SqlStr>) -> Self {
        Self { door, begin, of_any_age: false, place: Mutex::new(None) }
    }

    /// One whose connection is kept however old it is.
    pub(crate) fn of_any_age(mut self) -> Self {
        self.of_any_age = true;
        self
    }

    /// Waits for the line, and for its connection.
    pub(crate) async fn hold(&self) -> Result<Held<'_>, sqlx::Error> {
        let mut place = self.place.lock().await;
        let idle = match place.take().filter(|idle| self.may_be_used(idle.origin)) {
            Some(idle) => {
                let origin = idle.origin;
                idle.if_it_answers(self.door.idle_check()).await.map(|connection| (connection, origin))
            }
            None => None,
        };
        let was_idle = idle.is_some();
        let (connection, origin) = match idle {
            Some(idle) => idle,
            None => {
                // Before it is opened: what is found out meanwhile may be true of it.
                let origin = Origin { opened: Instant::now(), generation: self.door.generation() };
                (self.door.open().await?, origin)
            }
        };
        let mut held = Held { place, connection, was_idle, origin, door: &self.door, begun: false };
        if let Some(begin) = &self.begin {
            sqlx::raw_sql(begin.clone()).execute(&mut held.connection).await?;
            held.begun = true;
        }
        Ok(held)
    }

    fn may_be_used(&self, origin: Origin) -> bool {
        let is_young = self.of_any_age || origin.opened.elapsed() < self.door.max_age();
        is_young && origin.generation == self.door.generation()
    }
}

impl Idle {
    /// The connection; none if it was idle for longer than this and does not answer. A network that forgets a connection tells nobody: what is
    /// sent on it is lost, and no answer ever comes.
    async fn if_it_answers(mut self, idle_check: Duration) -> Option<PgConnection> {
        if self.since.elapsed() < idle_check {
            return Some(self.connection);
        }
        match tokio::time::timeout(ANSWER, self.connection.ping()).await {
            Ok(Ok(())) => Some(self.connection),
            _ => None,
        }
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
        let error = done.as_ref().err();
        if error.is_some_and(takes_no_writes) {
            self.door.renew();
        } else if error.is_none_or(is_sound) {
            *self.place =
                Some(Idle { connection: self.connection, since: Instant::now(), origin: self.origin });
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
