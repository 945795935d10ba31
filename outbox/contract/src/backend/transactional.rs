//! The writing side of a store: operations inside the user's transaction.

use std::time::Duration;

use async_trait::async_trait;

use crate::Store;
use crate::backend::Stored;
use crate::error::{AppendError, StoreError};
use crate::id::MessageId;
use crate::message::{Message, Outgoing};
use crate::name::{Consumer, Route};

/// A store that can append to a transaction.
///
/// `Tx` is the driver's own *transaction* type, so that an append outside of one does not compile.
/// Where the driver hands out a bare connection or session, the store rejects one that is not in a
/// transaction with [`NotInTransaction`](crate::StoreErrorKind::NotInTransaction).
#[async_trait]
pub trait Transactional: Store {
    /// The driver's transaction. Methods that take one name it `&mut Self::Tx<'_>`, also where the
    /// type has no lifetime of its own: with its name instead, the compiler says that lifetime
    /// parameters do not match (E0195).
    type Tx<'t>: Send;

    /// The connection that runs statements in a transaction: what the driver's queries take. The
    /// same type as [`Tx`](Self::Tx) where a driver has only one.
    type Connection: Send;

    /// Returns the connection of a transaction.
    fn connection<'c>(tx: &'c mut Self::Tx<'_>) -> &'c mut Self::Connection;

    /// Begins a transaction that can write.
    ///
    /// For the inbox and the unit of work; with `append` alone, begin your own. *Errors*: `Busy` if
    /// no connection came free in time, or if another transaction wrote for too long where one
    /// writes at a time; else `Unavailable`. *Cancellation*: no transaction began.
    async fn begin(&self) -> Result<Self::Tx<'static>, StoreError>;

    /// Commits, and signals [`wakeup_signal`](Store::wakeup_signal) with
    /// [`committed`](crate::backend::WakeupSignal::committed).
    ///
    /// - *Cancellation*: unknown. Ask with [`is_handled`](Self::is_handled).
    async fn commit(&self, tx: Self::Tx<'static>) -> Committed;

    /// Commits as [`commit`](Self::commit) does, and begins the next transaction on the same
    /// connection, if the driver can do both in one round trip. This saves returning the connection
    /// to the pool and acquiring it again.
    ///
    /// For an inbox with more to handle. *Begun*: as by [`begin`](Self::begin), and only after a
    /// successful commit. Use it soon: the pool lacks the connection meanwhile. `None`, the
    /// default, is equally valid: the caller then begins its own.
    ///
    /// - *Cancellation*: unknown, as of a commit. No transaction stays open.
    async fn commit_and_begin(&self, tx: Self::Tx<'static>) -> (Committed, Option<Self::Tx<'static>>) {
        (self.commit(tx).await, None)
    }

    /// Rolls back, and returns when the database has. *Errors*: `Unavailable`; the transaction is
    /// rolled back anyway.
    ///
    /// The provided method drops the transaction, which rolls back too, but with most drivers
    /// later: its locks stay until then.
    async fn rollback(&self, tx: Self::Tx<'static>) -> Result<(), StoreError> {
        drop(tx);
        Ok(())
    }

    /// Writes messages in the user's transaction.
    ///
    /// - *Effect*: the messages exist if and only if the transaction commits (promise P1). Messages
    ///   with a due time are scheduled; the others join their keys. Signals
    ///   [`wakeup_signal`](Store::wakeup_signal) with
    ///   [`appended`](crate::backend::WakeupSignal::appended).
    /// - *Ordering*: messages of one key take positions in the order given, under a lock on the key
    ///   that is held until the transaction ends. Position order is therefore commit order, also
    ///   against writers that take no lock of their own.
    /// - *Units and limits*: any number; one round trip where the driver can. All are validated
    ///   before the first is written.
    /// - *Errors*: see [`AppendError`]. Never retries: a conflict has ended the user's transaction,
    ///   and only the user can restart it. After any error, except an invalid message, roll back:
    ///   some servers would commit the rest. A store does not roll back for its caller: the
    ///   caller's next writes would be committed alone, and the caller's savepoint would be lost.
    /// - *Cancellation*: the transaction's state is unknown; roll it back. *Concurrency*: the
    ///   transaction is borrowed.
    /// - *Repeat*: writes the messages twice, under the same ids; an inbox handles them once.
    async fn append(&self, tx: &mut Self::Tx<'_>, messages: &[Outgoing]) -> Result<(), AppendError>;

    /// Fences the handling of stored messages (promise P7): returns whether these messages still
    /// wait on a route, hot or parked, each at its position. A process may have slept since it
    /// read them, and others may have finished them meanwhile.
    ///
    /// - *Effect*: none that stays. One answer per message, in order. Waiting messages keep waiting
    ///   until this transaction ends: a step or an operation that removes one from the route
    ///   commits after it, or this transaction fails with `Conflict`, here or at its commit.
    /// - *Ordering*: call it before [`deduplicate`](Self::deduplicate) for the same messages, whose
    ///   answers then include what is committed by that time.
    /// - *Units and limits*: one round trip where the driver can.
    /// - *Errors*: those of `deduplicate`. *Cancellation*: roll back. *Concurrency*: others may
    ///   wait for this transaction. *Repeat*: harmless.
    async fn fence(
        &self,
        tx: &mut Self::Tx<'_>,
        route: &Route,
        stored: &[&Stored],
    ) -> Result<Vec<bool>, StoreError>;

    /// Records, in a handler's transaction, that a consumer now handles these messages.
    ///
    /// - *Effect*: each id is kept with the consumer if and only if the transaction commits
    ///   (promise P4). One answer per message, in order. An id given twice in one call is `New` the
    ///   first time.
    /// - *Ordering*: the answers equal those of one call per message, in the order given. A message
    ///   stays `OutOfTurn` one that waits, even if a duplicate of the waiting one is `New` later in
    ///   the same call; messages after that may be `New` as well. The caller must not let a message
    ///   pass a waiting one.
    /// - *Units and limits*: one round trip where the driver can; the id is kept for the store's
    ///   retention, 7 days by default, by the rule of [`retention`](super::rules::retention).
    /// - *Errors*: `Conflict` if another transaction handles one of them now, or if the database
    ///   reports one: retry from the beginning. A conflict is never reported as a duplicate: only
    ///   committed evidence is one.
    /// - *Cancellation*: roll back. *Concurrency*: of two transactions with one id, one waits for
    ///   the other, or conflicts. *Repeat*: `Duplicate`.
    async fn deduplicate(
        &self,
        tx: &mut Self::Tx<'_>,
        consumer: &Consumer,
        messages: &[&Message],
    ) -> Result<Vec<Dedup>, StoreError>;

    /// Returns true if a consumer's handling of a message was committed, which resolves a commit
    /// with an unknown result. Reads committed, current data. *Errors*: `Unavailable`.
    /// *Cancellation*, *Concurrency*, *Repeat*: harmless.
    async fn is_handled(&self, consumer: &Consumer, id: MessageId) -> Result<bool, StoreError>;

    /// Classifies an error of a user's statement in a transaction: caused by another transaction,
    /// the environment, or the statement.
    ///
    /// For the unit of work and the inbox, whose handlers return the driver's errors unchanged.
    /// Called with one error, not with its sources. Pure. An error that the store does not know, or
    /// can't classify with certainty, is [`Blame::Handler`], the default.
    fn blame(&self, error: &(dyn std::error::Error + 'static)) -> Blame {
        let _ = error;
        Blame::Handler
    }

    /// Returns true if a deadlock or a conflict with another transaction caused an error, so that
    /// the whole transaction can be retried from its beginning: [`blame`](Self::blame) returns
    /// [`Blame::Conflict`]. Do not implement it.
    fn is_conflict(&self, error: &(dyn std::error::Error + 'static)) -> bool {
        self.blame(error) == Blame::Conflict
    }

    /// Returns the idle time after which the database ends a transaction of [`begin`](Self::begin).
    /// `None`, the default: the database never does.
    ///
    /// For the inbox, which rejects handlers with a longer timeout: the database would undo such a
    /// handler's writes midway. Pure.
    fn max_idle(&self) -> Option<Duration> {
        None
    }

    /// Returns the maximum number of transactions that can be open at once, if there is one: the
    /// size of the connection pool.
    fn max_transactions(&self) -> Option<usize> {
        None
    }
}

/// Result of deduplication: whether a consumer has handled a message before.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Dedup {
    /// Not handled yet: handle it in this transaction.
    New,
    /// Handled and committed before: acknowledge and continue.
    Duplicate,
    /// Not handled yet, but earlier messages of its key wait in the store for this consumer
    /// ([`inbox_route`]), or the key is held: it must go behind them. It was not recorded, so
    /// acknowledging it now would lose it. Roll back and retry later, or write it behind them. The
    /// first waiting message is not behind itself: when its turn comes, it is `New`.
    OutOfTurn,
}

/// Cause of an error in a handler's transaction. It decides how the inbox treats the message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Blame {
    /// Another transaction: a deadlock, a serialization failure, a lock timeout. The inbox restarts
    /// the transaction immediately, and counts no attempt.
    Conflict,
    /// The environment: the database or the connection to it, so that any other statement could
    /// fail the same way. The server ended the session or the transaction (shutdown, failover, an
    /// administrator, `transaction_timeout`); the connection was lost; the server is out of memory,
    /// disk, connections, locks or prepared statements; or it has become read-only. The inbox
    /// waits, retries the message, reports this in its health, and counts no attempt. Exception:
    /// one message meets this each time while others succeed.
    Environment,
    /// The statement, or its input: a constraint, a syntax error, a missing table, a permission.
    /// Counts as an attempt.
    Handler,
}

/// Result of a commit.
#[derive(Debug)]
#[must_use = "a commit may have failed, or its result may be unknown"]
pub enum Committed {
    /// Committed.
    Yes,
    /// Not committed, and never will be.
    No(StoreError),
    /// The connection was lost during the commit: it may or may not have happened.
    Unknown(StoreError),
}

impl Committed {
    /// Converts to a result, for callers that treat an unknown commit as a failed one.
    ///
    /// # Errors
    ///
    /// The error of a commit that failed or whose result is unknown.
    pub fn into_result(self) -> Result<(), StoreError> {
        match self {
            Self::Yes => Ok(()),
            Self::No(error) | Self::Unknown(error) => Err(error),
        }
    }
}

/// Returns the route under which messages wait in the store for a consumer's handler: in an inbox
/// that stores first, or behind a key whose handler fails. The relay's engine drains it into the
/// handler, and the admin operations work on it as on any other route.
///
/// ```
/// # extern crate outbox_contract as outbox;
/// use outbox::{Consumer, inbox_route};
///
/// assert_eq!(inbox_route(&Consumer::new("billing")?), "inbox/billing");
/// # Ok::<(), outbox::NameError>(())
/// ```
///
/// # Panics
///
/// Never: a consumer's name is short enough.
#[must_use]
pub fn inbox_route(consumer: &Consumer) -> Route {
    // A route has 64 bytes. A longer consumer name keeps its readable beginning and gets a hash
    // that distinguishes it.
    const PREFIX: &str = "inbox/";
    let name = consumer.as_str();
    let whole = format!("{PREFIX}{name}");
    let text = if whole.len() <= Route::MAX_BYTES {
        whole
    } else {
        use sha2::{Digest, Sha256};
        let hash: String =
            Sha256::digest(name.as_bytes())[..8].iter().map(|byte| format!("{byte:02x}")).collect();
        let room = Route::MAX_BYTES - PREFIX.len() - 1 - hash.len();
        let end = (0..=room).rev().find(|at| name.is_char_boundary(*at)).unwrap_or(0);
        format!("{PREFIX}{}~{hash}", &name[..end])
    };
    Route::new(text).unwrap_or_else(|_| unreachable!("checked characters, bounded length"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_consumer_has_a_route_of_its_own() {
        let route = |name: &str| inbox_route(&Consumer::new(name).unwrap());
        assert_eq!(route("inventory"), "inbox/inventory");
        let (long, other) = ("é".repeat(60) + "a", "é".repeat(60) + "b");
        assert!(route(&long).as_str().len() <= Route::MAX_BYTES);
        assert_ne!(route(&long), route(&other));
    }
}
