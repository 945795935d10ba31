//! The writing side of a store: what happens inside the user's transaction.

use std::time::Duration;

use async_trait::async_trait;

use crate::error::{AppendError, StoreError};
use crate::hints::Hints;
use crate::id::MessageId;
use crate::message::{Message, Outgoing};
use crate::name::{Consumer, Route};
use crate::store::Store;

/// A store whose transactions can be appended to.
///
/// `Tx` is the driver's own *transaction* type, so that appending outside of one does not compile. Where the driver hands out a bare
/// connection or session, one that is not in a transaction is refused with [`NotInTransaction`](crate::StoreErrorKind::NotInTransaction).
#[async_trait]
pub trait Transactional: Store {
    /// The driver's transaction.
    type Tx<'t>: Send;

    /// Begins a transaction that can write.
    ///
    /// For the inbox and the unit of work; with `append` alone, begin your own. *Errors*: `Unavailable`. *Cancellation*: nothing began.
    async fn begin(&self) -> Result<Self::Tx<'static>, StoreError>;

    /// Commits, and rings [`hints`](Self::hints) with [`committed`](Hints::committed).
    ///
    /// - *Cancellation*: unknown. Ask with [`admitted`](Self::admitted).
    async fn commit(&self, tx: Self::Tx<'static>) -> Committed;

    /// Commits as [`commit`](Self::commit) does, and begins the next transaction on the same connection where the driver can do both in one round
    /// trip: what a pool asks of a connection that comes back and goes out again is saved.
    ///
    /// For an inbox with more to handle. *Begun*: as by [`begin`](Self::begin), and only where it was committed. It is to be used soon: the
    /// connection is missing elsewhere. None, which is the default, is as good: then the caller begins its own.
    ///
    /// - *Cancellation*: unknown, as of a commit. Nothing stays begun.
    async fn commit_and_begin(&self, tx: Self::Tx<'static>) -> (Committed, Option<Self::Tx<'static>>) {
        (self.commit(tx).await, None)
    }

    /// Rolls back. Dropping the transaction does the same, later. *Errors*: `Unavailable`; it is rolled back all the same.
    async fn rollback(&self, tx: Self::Tx<'static>) -> Result<(), StoreError>;

    /// Writes messages in the user's transaction.
    ///
    /// - *Effect*: the messages exist if and only if the transaction commits (promise P1). Those with a due time are scheduled; the others join
    ///   their keys. Rings [`hints`](Self::hints) with [`appended`](Hints::appended).
    /// - *Ordering*: messages of one key take positions in the order given, under a lock on the key that is held until the transaction ends:
    ///   position order is commit order, also against writers that lock nothing of their own.
    /// - *Units and limits*: any number; one round trip where the driver can. All are validated before the first is written.
    /// - *Errors*: see [`AppendError`]. Never retries: a conflict has ended the user's transaction, and only the user can start it again. Whatever
    ///   the error, but for one of a message, roll back: some servers would commit the rest. A store does not roll back for its caller: what the
    ///   caller writes next would be committed alone, and a savepoint of theirs would be gone.
    /// - *Cancellation*: the transaction's state is unknown; roll it back. *Concurrency*: the transaction is borrowed.
    /// - *Repeat*: the messages are there twice, under the same ids; an inbox handles them once.
    async fn append(&self, tx: &mut Self::Tx<'_>, messages: &[Outgoing]) -> Result<(), AppendError>;

    /// Notes, in a handler's transaction, that a consumer handles these messages now.
    ///
    /// - *Effect*: each id is kept with the consumer if and only if the transaction commits (promise P4). One answer per message, in order.
    ///   An id that is given twice in one call is `New` the first time.
    /// - *Ordering*: the answers are those of a call for each, in the order given. So a message stays `Behind` one that waits, though a repeat of
    ///   that one is `New` further back in the same call; what is asked about after it may be `New` as well. The caller must not let it pass.
    /// - *Units and limits*: one round trip where the driver can; the id is kept for the store's retention, 7 days by default.
    /// - *Errors*: `Conflict` when another transaction handles one of them now, or the database says so: start again from the beginning. It is
    ///   never reported as a duplicate: only committed evidence is one.
    /// - *Cancellation*: roll back. *Concurrency*: two transactions with one id: one waits for the other, or conflicts. *Repeat*: `Duplicate`.
    async fn admit(
        &self,
        tx: &mut Self::Tx<'_>,
        consumer: &Consumer,
        messages: &[&Message],
    ) -> Result<Vec<Admission>, StoreError>;

    /// Whether a consumer's handling of a message was committed: the answer to a commit whose result is unknown. Reads committed, current
    /// data. *Errors*: `Unavailable`. *Cancellation*, *Concurrency*, *Repeat*: harmless.
    async fn admitted(&self, consumer: &Consumer, id: MessageId) -> Result<bool, StoreError>;

    /// The cause of an error that a statement of the user's own met in a transaction: another transaction, the environment, or the statement.
    ///
    /// For the unit of work and the inbox, whose handlers return the driver's errors as they are. Asked about one error, not about its
    /// sources. Pure. An error that the store does not know, or is not certain about, is [`Blame::Handler`], which is the default.
    fn blame(&self, error: &(dyn std::error::Error + 'static)) -> Blame {
        let _ = error;
        Blame::Handler
    }

    /// Whether a deadlock or a conflict with another transaction caused an error, so that the whole transaction can be started again from its
    /// beginning: [`blame`](Self::blame) says [`Blame::Conflict`]. Not to be implemented.
    fn is_conflict(&self, error: &(dyn std::error::Error + 'static)) -> bool {
        self.blame(error) == Blame::Conflict
    }

    /// How long a transaction that [`begin`](Self::begin) has begun may be idle before the database ends it. None, which is the default: it
    /// does not.
    ///
    /// For the inbox, which refuses handlers that may take longer: what such a handler has written would be gone in the middle of it. Pure.
    fn most_idle(&self) -> Option<Duration> {
        None
    }

    /// The bell that this store's appends ring.
    fn hints(&self) -> &Hints;
}

/// Whether a consumer has handled a message before.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Admission {
    /// It has not: handle it in this transaction.
    New,
    /// It has, and that is committed: acknowledge and go on.
    Duplicate,
    /// It has not, but earlier messages of its key wait in the store for this consumer ([`inbox_route`]), or the key is held: it must go
    /// behind them. It was not noted, so to acknowledge it now is to lose it: roll back and try again later, or write it behind them. The first of
    /// those that wait is not behind itself: once its turn comes, it is `New`.
    Behind,
}

/// The cause of an error in a handler's transaction. It decides what the inbox does with the message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Blame {
    /// Another transaction: a deadlock, a serialization failure, a lock that did not come in time. The inbox starts the transaction again at once,
    /// and counts no attempt.
    Conflict,
    /// The environment: the database or the way to it, so that any other statement could have met the same. The server ended the session or the
    /// transaction (shutdown, failover, an administrator, `transaction_timeout`), the connection was lost, the server is out of memory, disk,
    /// connections, locks or prepared statements, it has become read-only. The inbox waits, tries the message again, says so in its health, and
    /// counts no attempt; unless one message meets this each time while others go through.
    Environment,
    /// The statement, or what it was given: a constraint, a syntax error, a missing table, a permission. Counts as an attempt.
    Handler,
}

/// What became of a commit.
#[derive(Debug)]
#[must_use = "a commit may have failed, or its result may be unknown"]
pub enum Committed {
    /// It is committed.
    Yes,
    /// It is not, and never will be.
    No(StoreError),
    /// The connection was lost on the way: it may be or not.
    Unknown(StoreError),
}

impl Committed {
    /// As a result, for callers to whom not known is as bad as not done.
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

/// The route under which messages wait in the store for a consumer's handler: an inbox that stores first, or a key whose handler fails.
/// The relay's engine drains it into the handler, and the verbs of operators work on it as on any other.
///
/// # Panics
///
/// Never: a consumer's name is short enough.
#[must_use]
pub fn inbox_route(consumer: &Consumer) -> Route {
    // A route has 64 bytes. A longer consumer keeps its readable beginning and gets the hash that tells it apart.
    const PREFIX: &str = "inbox/";
    let name = consumer.as_str();
    let whole = format!("{PREFIX}{name}");
    let text = if whole.len() <= Route::MOST_BYTES {
        whole
    } else {
        use sha2::{Digest, Sha256};
        let hash: String =
            Sha256::digest(name.as_bytes())[..8].iter().map(|byte| format!("{byte:02x}")).collect();
        let room = Route::MOST_BYTES - PREFIX.len() - 1 - hash.len();
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
        assert!(route(&long).as_str().len() <= Route::MOST_BYTES);
        assert_ne!(route(&long), route(&other));
    }
}
