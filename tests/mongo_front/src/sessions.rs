//! Sessions of clients: which transaction each has, and which of its commands were done.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::engine::Connection;

/// How long a session lives that nobody uses: what a handshake announces (`logicalSessionTimeoutMinutes`).
pub(crate) const LIFETIME: Duration = Duration::from_secs(30 * 60);

/// What became of the transaction, or of the command to be done once, that a session began last.
#[derive(Debug, Default)]
pub(crate) enum State {
    /// Nothing is known here; the engine may know of a commit.
    #[default]
    Nothing,
    /// Open, on a connection of its own.
    Open {
        /// Where the transaction is open.
        connection: Box<Connection>,
        /// When it began.
        since: Instant,
    },
    /// Committed.
    Committed,
    /// Aborted, by the client, by an error, or for its age.
    Aborted,
}

/// A client's session. Its commands are done one after another.
#[derive(Debug)]
pub(crate) struct Session {
    /// The number of its newest transaction or command.
    pub(crate) number: i64,
    /// What became of that.
    pub(crate) state: State,
}

/// A session that one command at a time may use.
pub(crate) type Shared = Arc<tokio::sync::Mutex<Session>>;

/// All sessions, each with when it was last asked for.
#[derive(Debug, Default)]
pub(crate) struct Sessions(Mutex<HashMap<Vec<u8>, (Shared, Instant)>>);

impl Sessions {
    pub(crate) fn of(&self, id: &[u8]) -> Shared {
        let mut sessions = self.all();
        let new = || {
            (Arc::new(tokio::sync::Mutex::new(Session { number: -1, state: State::Nothing })), Instant::now())
        };
        let (session, used) = sessions.entry(id.to_owned()).or_insert_with(new);
        *used = Instant::now();
        Arc::clone(session)
    }

    /// Forgets a session; a transaction that it had open is rolled back by that.
    pub(crate) fn end(&self, id: &[u8]) {
        self.all().remove(id);
    }

    /// Aborts the transactions that have been open for too long, and forgets the sessions that nobody uses. Gives what was aborted: session
    /// and number.
    pub(crate) fn end_old(&self, transaction_lifetime: Duration) -> Vec<(Vec<u8>, i64)> {
        let mut sessions = self.all();
        sessions.retain(|_, (_, used)| used.elapsed() < LIFETIME.max(transaction_lifetime));
        let mut aborted = Vec::new();
        for (id, (session, _)) in sessions.iter() {
            // One that is busy is looked at again in a moment.
            let Ok(mut session) = session.try_lock() else { continue };
            if matches!(session.state, State::Open { since, .. } if since.elapsed() >= transaction_lifetime) {
                session.state = State::Aborted;
                aborted.push((id.clone(), session.number));
            }
        }
        aborted
    }

    fn all(&self) -> MutexGuard<'_, HashMap<Vec<u8>, (Shared, Instant)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
