//! A transaction of the memory store: its writes, which others do not see before the commit, and
//! its locks.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use outbox_contract::backend::{Ordering, Position, Stored, StripeId, StripeMark};
use outbox_contract::{
    Consumer, Key, Message, MessageId, Outgoing, Route, StoreError, StoreErrorKind, Timestamp, Topic,
};

use crate::locks::{LockName, Requested, TxId};
use crate::store::Shared;

type Effect = Box<dyn FnOnce() + Send>;

/// A transaction of a [`MemoryStore`](crate::MemoryStore). Dropping it rolls it back.
///
/// It owns what it needs, so it can be kept and passed on freely.
pub struct MemoryTx {
    pub(crate) shared: Arc<Shared>,
    pub(crate) id: TxId,
    pub(crate) written: Written,
    effects: Vec<Effect>,
    over: bool,
    terminated: bool,
}

/// The error of a transaction whose session was terminated: see [`MemoryTx::terminate`]. The store
/// blames the environment for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SessionTerminated;

impl std::fmt::Display for SessionTerminated {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("the session was terminated by the server; the transaction is rolled back")
    }
}

impl std::error::Error for SessionTerminated {}

/// Writes of a transaction: they join the tables at the commit.
#[derive(Debug, Default)]
pub(crate) struct Written {
    /// Messages, with their positions where those are taken at append.
    pub(crate) rows: Vec<(Route, Stored)>,
    /// Marks of its stripes.
    pub(crate) marks: BTreeMap<(Route, StripeId), StripeMark>,
    pub(crate) scheduled: Vec<(Timestamp, Route, Message)>,
    pub(crate) handled: BTreeMap<(Consumer, MessageId), (Topic, Option<Key>)>,
    /// Messages that have to wait on their route until the commit.
    pub(crate) fenced: Vec<(Route, Stored)>,
}

impl MemoryTx {
    pub(crate) fn begin(shared: Arc<Shared>) -> Self {
        let id = shared.state().next_tx();
        Self { shared, id, written: Written::default(), effects: Vec::new(), over: false, terminated: false }
    }

    /// Attaches an effect that happens at the very instant of the commit: both become visible at
    /// once. It replaces the business write that a real database would have in the same
    /// transaction.
    ///
    /// It runs while the tables are locked, so it must not call the store. A rolled back
    /// transaction never runs it.
    pub fn on_commit(&mut self, effect: impl FnOnce() + Send + 'static) {
        self.effects.push(Box::new(effect));
    }

    /// Ends the transaction as a database server ends a session: at its shutdown, by an
    /// administrator, or at a limit such as PostgreSQL's `transaction_timeout`. It is rolled back,
    /// and whatever is done with it from here on fails.
    ///
    /// Returns the error that a driver would report. For tests of handlers and of what an inbox
    /// does with their errors.
    pub fn terminate(&mut self) -> SessionTerminated {
        self.end();
        self.terminated = true;
        SessionTerminated
    }

    /// Takes locks and keeps them until the end. Waits for other transactions; a deadlock ends this
    /// one.
    pub(crate) async fn lock(
        &mut self,
        names: BTreeSet<LockName>,
        operation: &'static str,
    ) -> Result<(), StoreError> {
        for name in names {
            let requested = self.shared.state().locks.request(self.id, name.clone());
            match requested {
                Requested::Held => {}
                Requested::Wait(granted) => {
                    let _request = Request { shared: &self.shared, tx: self.id };
                    granted.notified().await;
                }
                Requested::Deadlock => {
                    self.end();
                    return Err(StoreError::new(
                        StoreErrorKind::Conflict,
                        operation,
                        format!(
                            "deadlock: {name} is locked by a transaction that waits for this one; this one is rolled \
                             back, start it again from its beginning"
                        ),
                    ));
                }
            }
        }
        Ok(())
    }

    /// Writes messages, whose locks are held.
    pub(crate) fn append(&mut self, messages: &[Outgoing]) {
        let now = self.shared.clock.now();
        let first = self.written.rows.len();
        for outgoing in messages {
            let (route, message) = (outgoing.route.clone(), outgoing.message.clone());
            match outgoing.due {
                Some(due) => self.written.scheduled.push((due.at(now), route, message)),
                None => self.written.rows.push((route, Stored::new(Position::START, now, message))),
            }
        }
        match self.shared.ordering {
            Ordering::Single => {}
            Ordering::Stripes => self.shared.state().tables.take_numbers(&mut self.written, first),
            _ => self.shared.state().tables.take_positions(self.id, &mut self.written.rows[first..]),
        }
    }

    /// Commits: effects first, so that one that panics leaves nothing behind.
    pub(crate) fn commit(mut self) -> Result<(), StoreError> {
        let shared = Arc::clone(&self.shared);
        let now = shared.clock.now();
        let mut state = shared.state();
        if let Some((_, gone)) =
            self.written.fenced.iter().find(|(route, stored)| !state.tables.waits(route, stored))
        {
            let words = format!(
                "another transaction has finished the message {} meanwhile; start this one again",
                gone.message.id
            );
            return Err(StoreError::new(StoreErrorKind::Conflict, "commit", words));
        }
        for effect in std::mem::take(&mut self.effects) {
            effect();
        }
        state.tables.commit(self.id, std::mem::take(&mut self.written), now);
        state.locks.release_all(self.id);
        self.over = true;
        Ok(())
    }

    /// Refuses a transaction that is over, or another store's.
    pub(crate) fn check(&self, shared: &Arc<Shared>, operation: &'static str) -> Result<(), StoreError> {
        if !Arc::ptr_eq(&self.shared, shared) {
            return Err(StoreError::new(
                StoreErrorKind::NotInTransaction,
                operation,
                "the transaction belongs to another memory store; begin it on the store that is written to",
            ));
        }
        if self.terminated {
            let error = StoreError::new(StoreErrorKind::Unavailable, operation, "the connection was lost");
            return Err(error.with_source(SessionTerminated));
        }
        if self.over {
            return Err(StoreError::new(
                StoreErrorKind::Conflict,
                operation,
                "a conflict has already ended this transaction; start it again from its beginning",
            ));
        }
        Ok(())
    }

    fn end(&mut self) {
        if !std::mem::replace(&mut self.over, true) {
            self.written = Written::default();
            let mut state = self.shared.state();
            state.tables.forget_writer(self.id);
            state.locks.release_all(self.id);
        }
    }
}

impl Drop for MemoryTx {
    fn drop(&mut self) {
        self.end();
    }
}

impl std::fmt::Debug for MemoryTx {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MemoryTx")
            .field("id", &self.id)
            .field("rows", &self.written.rows.len())
            .field("scheduled", &self.written.scheduled.len())
            .field("is_handled", &self.written.handled.len())
            .field("over", &self.over)
            .finish_non_exhaustive()
    }
}

/// A request for a lock that is taken back when its future is dropped.
struct Request<'s> {
    shared: &'s Shared,
    tx: TxId,
}

impl Drop for Request<'_> {
    fn drop(&mut self) {
        self.shared.state().locks.cancel(self.tx);
    }
}
