//! Sessions of clients: the transaction of each, and which of its commands were done.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::engine::Connection;

/// Idle lifetime of a session, as a handshake announces it (`logicalSessionTimeoutMinutes`).
pub(crate) const LIFETIME: Duration = Duration::from_secs(30 * 60);

/// Fate of the latest transaction or retryable command of a session.
#[derive(Debug, Default)]
pub(crate) enum State {
    /// Nothing is known here; the engine may know of a commit.
    #[default]
    Nothing,
    /// Open, on a connection of its own.
    Open {
        /// The connection of the transaction.
        connection: Box<Connection>,
        /// Time of its begin.
        since: Instant,
    },
    /// Committed.
    Committed,
    /// Aborted, by the client, by an error, or for its age.
    Aborted,
}

/// A client's session. Its commands run one after another.
#[derive(Debug)]
pub(crate) struct Session {
    /// The number of its newest transaction or command.
    pub(crate) number: i64,
    /// Fate of that.
    pub(crate) state: State,
}

/// A session that one command at a time may use.
pub(crate) type Shared = Arc<tokio::sync::Mutex<Session>>;

/// All sessions, each with the time of its last use.
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

    /// Forgets a session; this rolls its open transaction back.
    pub(crate) fn end(&self, id: &[u8]) {
        self.all().remove(id);
    }

    /// Aborts the transactions that have been open for too long, and forgets unused sessions.
    /// Returns the aborted transactions: session and number.
    pub(crate) fn end_old(&self, transaction_lifetime: Duration) -> Vec<(Vec<u8>, i64)> {
        let mut sessions = self.all();
        sessions.retain(|_, (_, used)| used.elapsed() < LIFETIME.max(transaction_lifetime));
        let mut aborted = Vec::new();
        for (id, (session, _)) in sessions.iter() {
            // A busy one is checked again in a moment.
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
