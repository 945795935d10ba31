//! An inbox's transactions: turns, begin and end, timeouts of calls, and the result of a commit
//! without an answer.

use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::FutureExt;
use outbox_contract::backend::Committed;
use outbox_contract::{Consumer, Failure, MessageId, StoreError, StoreErrorKind, Transactional};
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::time::{Instant, timeout, timeout_at};

use super::process::{Errand, Origin};
use super::stats::Counters;
use super::verdict::{StoreFailure, TransactionError};
use crate::answer::answer;
use spares::{Open, Spares};

pub(crate) mod spares;

/// Number of questions about an unknown commit.
const QUESTIONS: u32 = 3;

/// The longest pause between two tries. Whoever pauses keeps its turn and its handler's place from
/// others, so what lasts longer is given back.
const MAX_PAUSE: Duration = Duration::from_secs(1);

/// Limits of a pool.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PoolLimits {
    /// Maximum number of open transactions.
    pub(crate) turns: usize,
    /// Maximum time of a call to the store.
    pub(crate) call: Duration,
    /// Maximum time of a handler.
    pub(crate) slowest: Duration,
    /// The first and the longest pause between two tries.
    pub(crate) delays: (Duration, Duration),
    pub(crate) seed: u64,
}

impl PoolLimits {
    /// Number of turns that suspects may have: each may last until its handler's time is over, and
    /// the other messages continue meanwhile. With one turn, waiters get it in the order of their
    /// arrival.
    pub(crate) fn suspects(&self) -> usize {
        (self.turns / 2).max(1)
    }
}

/// Every transaction of an inbox comes from here, whatever its messages come from: so there are
/// never more than there may be.
pub(crate) struct TransactionPool<S: Transactional> {
    store: Arc<S>,
    consumer: Consumer,
    counters: Arc<Counters>,
    limits: PoolLimits,
    turns: Semaphore,
    /// Suspects have one of these as well, and first.
    suspects: Semaphore,
    spares: Arc<Spares<S::Tx<'static>>>,
    // Draws for pauses; held for one draw.
    random: Mutex<fastrand::Rng>,
}

/// The right to have one transaction open, one after the other.
pub(crate) struct Turn<'p> {
    pub(crate) errand: &'p Errand<'p>,
    _permits: (SemaphorePermit<'p>, Option<SemaphorePermit<'p>>),
}

impl<S: Transactional> TransactionPool<S> {
    pub(crate) fn new(
        store: Arc<S>,
        consumer: Consumer,
        counters: Arc<Counters>,
        limits: PoolLimits,
    ) -> Self {
        let (ending, limit) = (Arc::clone(&store), limits.call);
        let spares = Spares::new(move |tx| {
            let store = Arc::clone(&ending);
            async move { _ = timeout(limit, store.rollback(tx)).await }.boxed()
        });
        let turns = Semaphore::new(limits.turns.min(Semaphore::MAX_PERMITS));
        let suspects = Semaphore::new(limits.suspects().min(Semaphore::MAX_PERMITS));
        let random = Mutex::new(fastrand::Rng::with_seed(limits.seed));
        Self { store, consumer, counters, limits, turns, suspects, spares, random }
    }

    /// Waits for a turn. What has to wait is not begun yet: what happens meanwhile concerns it as
    /// if it stood in line. None: it is not wanted any more, or there is no time left for it.
    pub(crate) async fn turn<'p>(&'p self, errand: &'p Errand<'p>) -> Option<Turn<'p>> {
        // Never closed.
        let wait = async {
            let suspect = if errand.is_suspect { Some(self.suspects.acquire().await.ok()?) } else { None };
            Some((self.turns.acquire().await.ok()?, suspect))
        };
        let permits = match self.latest(errand) {
            // A part of the time is for the beginning.
            Some(latest) => timeout_at(latest - self.limits.call / 2, wait).await.ok()?,
            None => wait.await,
        }?;
        (errand.is_wanted)().then_some(Turn { errand, _permits: permits })
    }

    /// Returns the latest time at which a transaction may begin, if there is one.
    fn latest(&self, errand: &Errand<'_>) -> Option<Instant> {
        match errand.origin {
            Origin::Broker => None,
            Origin::Store { until } => {
                Some(until.checked_sub(self.limits.slowest).unwrap_or_else(Instant::now))
            }
        }
    }

    /// Returns a transaction: one that was begun with the commit of another, or a new one. Waits if
    /// the user's pool has no free connection, or if another writer is active on a database with
    /// one writer.
    pub(crate) async fn begin(&self, turn: &Turn<'_>) -> Result<Open<S::Tx<'static>>, TransactionError> {
        if let Some(spare) = self.spares.take() {
            return Ok(spare);
        }
        let latest = self.latest(turn.errand);
        for tries in 1.. {
            let left = latest.map(|latest| latest.saturating_duration_since(Instant::now()));
            let limit =
                left.map_or(self.limits.call, |left| left.clamp(self.limits.call / 2, self.limits.call));
            let begin = AssertUnwindSafe(self.store.begin()).catch_unwind();
            let missing = match timeout(limit, begin).await {
                Ok(Ok(Ok(tx))) => {
                    self.counters.begun();
                    return Ok(Open::first(tx));
                }
                Ok(Ok(Err(error))) if error.kind() == StoreErrorKind::Busy => error.to_string(),
                Ok(Ok(Err(error))) => return Err(TransactionError::of(&error)),
                Ok(Err(_)) => {
                    return Err(TransactionError::unavailable(
                        "begin: panicked; the panic message is on standard error".to_owned(),
                    ));
                }
                // A driver says no sooner that its pool is empty, if it waits for longer.
                Err(_) => format!("begin: no answer within {limit:?}"),
            };
            self.counters.not_begun(&missing);
            let pause = self.next_pause(tries);
            let is_late = latest.is_some_and(|latest| Instant::now() + pause >= latest);
            if is_late || !(turn.errand.is_wanted)() {
                break;
            }
            tokio::time::sleep(pause).await;
        }
        Err(TransactionError::NoTurn)
    }

    pub(crate) async fn roll_back(&self, open: Open<S::Tx<'static>>) {
        // Dropping it does the same, later; whatever is said here, the transaction is over.
        let _ = self.call("rollback", self.store.rollback(open.tx)).await;
    }

    /// Commits, and keeps the transaction that was begun with it for the next messages, which are
    /// mostly there by now. `only`: the message that was noted as handled in it, if that is all
    /// that was done in it.
    pub(crate) async fn commit(
        &self,
        open: Open<S::Tx<'static>>,
        only: Option<MessageId>,
    ) -> Result<(), TransactionError> {
        let in_a_row = open.in_a_row();
        let commit = async {
            if !open.has_next() {
                return self.store.commit(open.tx).await;
            }
            let (committed, next) = self.store.commit_and_begin(open.tx).await;
            if let (Committed::Yes, Some(next)) = (&committed, next) {
                self.spares.put(next, in_a_row);
            }
            committed
        };
        let error = match answer(self.limits.call, commit).await {
            Ok(Committed::Yes) => return Ok(()),
            Ok(Committed::No(error)) => return Err(TransactionError::of_work("commit", &error)),
            Ok(Committed::Unknown(error)) => error.to_string(),
            Err(why) => format!("commit: {why}"),
        };
        self.find_out(only, error).await
    }

    /// Determines the result of a commit without an answer.
    ///
    /// Another process may have handled a message in the meantime. That settles this message, and
    /// says nothing of others: so only a transaction of one message is examined. Any other is
    /// repeated: committed messages are then recognized as duplicates, and one that was stored
    /// behind others may be stored twice, and is handled once.
    async fn find_out(&self, only: Option<MessageId>, error: String) -> Result<(), TransactionError> {
        let not_committed = || TransactionError::Again(Failure::new("not-committed", error.clone()));
        let Some(id) = only else { return Err(not_committed()) };
        for question in 1..=QUESTIONS {
            match self.call("is_handled", self.store.is_handled(&self.consumer, id)).await {
                Ok(true) => return Ok(()),
                // It may still be on its way: then the next transaction waits for it, and finds a
                // duplicate.
                Ok(false) => return Err(not_committed()),
                Err(_) if question < QUESTIONS => self.pause(question).await,
                Err(_) => {}
            }
        }
        Err(TransactionError::Store(StoreFailure::Unknown(error)))
    }

    /// Calls the store, with a timeout. A store that panics counts as unavailable.
    pub(crate) async fn call<T>(
        &self,
        what: &str,
        call: impl Future<Output = Result<T, StoreError>>,
    ) -> Result<T, TransactionError> {
        self.in_time(what, call, TransactionError::of).await
    }

    /// As [`call`](Self::call), for what has errors of its own.
    pub(crate) async fn in_time<T, E>(
        &self,
        what: &str,
        call: impl Future<Output = Result<T, E>>,
        meaning: impl Fn(&E) -> TransactionError,
    ) -> Result<T, TransactionError> {
        match answer(self.limits.call, call).await {
            Ok(done) => done.map_err(|error| meaning(&error)),
            Err(why) => Err(TransactionError::unavailable(format!("{what}: {why}"))),
        }
    }

    /// Returns the wait before something is tried once more: longer each time, and not as long as
    /// whoever else waits.
    pub(crate) fn next_pause(&self, tries: u32) -> Duration {
        let draw = self.random.lock().unwrap_or_else(PoisonError::into_inner).f64();
        let (first, most) = self.limits.delays;
        let bound = first.saturating_mul(1 << tries.min(6)).min(most).min(MAX_PAUSE);
        bound.mul_f64(0.1 + draw * 0.9)
    }

    /// Waits before something is tried once more.
    pub(crate) async fn pause(&self, tries: u32) {
        tokio::time::sleep(self.next_pause(tries)).await;
    }
}
