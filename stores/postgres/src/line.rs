//! A connection of the store's own, for one kind of work.
//!
//! Not a pool: each kind of work has one connection, so that load can't starve heartbeats, a busy
//! connection is never needed for other work, and their number is known. One task at a time holds
//! the line; others wait their turn.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use sqlx::postgres::{PgConnectOptions, PgConnection};
use sqlx::{Connection, SqlStr};
use tokio::sync::{Mutex, MutexGuard};

use crate::error::{is_sound, takes_no_writes};
use crate::lines::Door;

/// Time limit for an idle connection to answer. A connection without an answer by then is dropped,
/// and another one opened: the limit is shorter than the timeouts of the work that waits for it.
const ANSWER: Duration = Duration::from_secs(1);

/// A connection, opened when it is first needed, and again after it broke.
pub(crate) struct Line {
    door: Door,
    /// Statement that begins each piece of work behind a pooler: a statement is prepared and run in
    /// two steps, which must not reach two servers.
    begin: Option<SqlStr>,
    /// True if its connection has no maximum age.
    of_any_age: bool,
    place: Mutex<Option<Idle>>,
    /// Number of connections that were opened so far.
    opened: AtomicU64,
}

/// A connection that is not in use.
pub(crate) struct Idle {
    connection: PgConnection,
    /// Time of its last use.
    since: Instant,
    origin: Origin,
}

/// Time at which a connection was opened.
#[derive(Clone, Copy)]
struct Origin {
    opened: Instant,
    generation: u64,
}

/// The line, held. If it is dropped before it is finished (a canceled call), the connection is
/// closed: its state is unknown.
pub(crate) struct Held<'l> {
    place: MutexGuard<'l, Option<Idle>>,
    /// The connection.
    pub(crate) connection: PgConnection,
    /// True if it was idle before, and may have been ended meanwhile.
    pub(crate) was_idle: bool,
    origin: Origin,
    door: &'l Door,
    begun: bool,
}

impl Line {
    pub(crate) fn new(door: Door, begin: Option<SqlStr>) -> Self {
        Self { door, begin, of_any_age: false, place: Mutex::new(None), opened: AtomicU64::new(0) }
    }

    /// Exempts the connection from the maximum age.
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
                // Before it is opened: discoveries made meanwhile may apply to it.
                let origin = Origin { opened: Instant::now(), generation: self.door.generation() };
                let connection = self.door.open().await?;
                self.opened.fetch_add(1, Ordering::Relaxed);
                (connection, origin)
            }
        };
        let mut held = Held { place, connection, was_idle, origin, door: &self.door, begun: false };
        if let Some(begin) = &self.begin {
            sqlx::raw_sql(begin.clone()).execute(&mut held.connection).await?;
            held.begun = true;
        }
        Ok(held)
    }

    /// Returns the number of connections that were opened so far.
    pub(crate) fn opened(&self) -> u64 {
        self.opened.load(Ordering::Relaxed)
    }

    /// Returns true if the connection is open and answers. Waits for whoever holds the line.
    pub(crate) async fn answers(&self) -> bool {
        let mut place = self.place.lock().await;
        let Some(idle) = place.take().filter(|idle| self.may_be_used(idle.origin)) else { return false };
        let (since, origin) = (idle.since, idle.origin);
        *place =
            idle.if_it_answers(Duration::ZERO).await.map(|connection| Idle { connection, since, origin });
        place.is_some()
    }

    fn may_be_used(&self, origin: Origin) -> bool {
        let is_young = self.of_any_age || origin.opened.elapsed() < self.door.max_age();
        is_young && origin.generation == self.door.generation()
    }
}

impl Idle {
    /// Returns the connection; None if it was idle for longer than this and does not answer. A
    /// network that forgets a connection gives no notice: sent data is lost, and no answer ever
    /// arrives.
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
    /// Returns the line with the result of the work. A connection that broke is not kept.
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

/// Opens a connection, within a time limit.
pub(crate) async fn connect(
    options: &PgConnectOptions,
    timeout: Duration,
) -> Result<PgConnection, sqlx::Error> {
    match tokio::time::timeout(timeout, PgConnection::connect_with(options)).await {
        Ok(connected) => connected,
        Err(_) => Err(sqlx::Error::Io(std::io::ErrorKind::TimedOut.into())),
    }
}
