//! Cursors: results that a client reads page by page.

use std::collections::HashMap;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::engine::Connection;

/// A result that was not read completely.
#[derive(Debug)]
pub(crate) struct Cursor {
    /// Position from which the engine continues, in its own form.
    pub(crate) continuation: Vec<u8>,
    /// The connection that holds the result, where the engine keeps it open rather than finding its
    /// place again.
    pub(crate) pinned: Option<Connection>,
    /// The session it belongs to; empty if the client named none.
    pub(crate) session: Vec<u8>,
    /// The transaction it was opened in, which it ends with.
    pub(crate) transaction: Option<i64>,
    used: Instant,
}

impl Cursor {
    pub(crate) fn new(
        continuation: Vec<u8>,
        pinned: Option<Connection>,
        session: Vec<u8>,
        transaction: Option<i64>,
    ) -> Self {
        Self { continuation, pinned, session, transaction, used: Instant::now() }
    }
}

/// The open cursors. A cursor is removed while it is read, so that it can't have two readers at
/// once.
#[derive(Debug)]
pub(crate) struct Cursors {
    open: Mutex<HashMap<i64, Cursor>>,
    next: AtomicI64,
}

impl Default for Cursors {
    fn default() -> Self {
        // Numbers of an earlier start must not be reused, or a client would read another's result.
        let start = std::time::UNIX_EPOCH.elapsed().unwrap_or_default().as_micros();
        Self { open: Mutex::default(), next: AtomicI64::new(i64::try_from(start).unwrap_or(1)) }
    }
}

impl Cursors {
    /// Returns the number of a new cursor.
    pub(crate) fn number(&self) -> i64 {
        self.next.fetch_add(1, Ordering::Relaxed)
    }

    pub(crate) fn put(&self, number: i64, cursor: Cursor) {
        self.open().insert(number, Cursor { used: Instant::now(), ..cursor });
    }

    pub(crate) fn take(&self, number: i64) -> Option<Cursor> {
        self.open().remove(&number)
    }

    /// Ends the cursors of a session: those of one transaction, or all.
    pub(crate) fn end(&self, session: &[u8], transaction: Option<i64>) {
        let ends = |cursor: &Cursor| {
            cursor.session == session && (transaction.is_none() || cursor.transaction == transaction)
        };
        self.open().retain(|_, cursor| !ends(cursor));
    }

    /// Ends the cursors that were not read for this long.
    pub(crate) fn end_idle(&self, lifetime: Duration) {
        self.open().retain(|_, cursor| cursor.used.elapsed() < lifetime);
    }

    fn open(&self) -> MutexGuard<'_, HashMap<i64, Cursor>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
