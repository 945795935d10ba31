//! An inbox's transactions: how they begin and end, how long a call may take, and what became of a commit that nobody answered.

use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::FutureExt;
use outbox_contract::transactional::Committed;
use outbox_contract::{Consumer, Failure, MessageId, StoreError, Transactional};
use tokio::time::timeout;

use super::spares::{Open, Spares};
use super::verdict::{Broken, Trouble};

/// How often it is asked what became of a commit.
const QUESTIONS: u32 = 3;

/// The longest pause between two tries. Whoever pauses keeps its turn and its handler's place from others, so what lasts longer is given back.
const MOST_PAUSE: Duration = Duration::from_secs(1);

pub(crate) struct Transactions<S: Transactional> {
    store: Arc<S>,
    consumer: Consumer,
    /// How long a call to the store may take.
    limit: Duration,
    first_delay: Duration,
    most_delay: Duration,
    spares: Arc<Spares<S::Tx<'static>>>,
    // Draws for pauses; held for one draw.
    random: Mutex<fastrand::Rng>,
}

impl<S: Transactional> Transactions<S> {
    pub(crate) fn new(
        store: Arc<S>,
        consumer: Consumer,
        limit: Duration,
        (first_delay, most_delay): (Duration, Duration),
        seed: u64,
    ) -> Self {
        let ending = Arc::clone(&store);
        let spares = Spares::new(move |tx| {
            let store = Arc::clone(&ending);
            async move { _ = timeout(limit, store.rollback(tx)).await }.boxed()
        });
        let random = Mutex::new(fastrand::Rng::with_seed(seed));
        Self { store, consumer, limit, first_delay, most_delay, spares, random }
    }

    /// A transaction: one that was begun with the commit of another, or a new one.
    pub(crate) async fn begin(&self) -> Result<Open<S::Tx<'static>>, Trouble> {
        match self.spares.take() {
            Some(spare) => Ok(spare),
            None => Ok(Open::first(self.call("begin", self.store.begin()).await?)),
        }
    }

    pub(crate) async fn roll_back(&self, open: Open<S::Tx<'static>>) {
        // Dropping it does the same, later; whatever is said here, the transaction is over.
        let _ = self.call("rollback", self.store.rollback(open.tx)).await;
    }

    /// Commits, and keeps the transaction that was begun with it for the next messages, which are mostly there by now. `only`: the message that was
    /// noted as handled in it, if that is all that was done in it.
    pub(crate) async fn commit(
        &self,
        open: Open<S::Tx<'static>>,
        only: Option<MessageId>,
    ) -> Result<(), Trouble> {
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
        let error = match timeout(self.limit, AssertUnwindSafe(commit).catch_unwind()).await {
            Ok(Ok(Committed::Yes)) => return Ok(()),
            Ok(Ok(Committed::No(error))) => return Err(Trouble::of_work("commit", &error)),
            Ok(Ok(Committed::Unknown(error))) => error.to_string(),
            Ok(Err(_)) => "commit: it panicked; its message was printed".to_owned(),
            Err(_) => format!("commit: no answer within {:?}", self.limit),
        };
        self.find_out(only, error).await
    }

    /// What became of a commit whose result is unknown.
    ///
    /// Somebody else may have handled a message by the time that it is asked about. That is as good for this message, and tells nothing of others: so
    /// only a transaction of one message is found out. Any other is done again: each that was committed is found to be a duplicate then, and one that
    /// went behind others may be there twice, and is handled once.
    async fn find_out(&self, only: Option<MessageId>, error: String) -> Result<(), Trouble> {
        let not_committed = || Trouble::Again(Failure::new("not-committed", error.clone()));
        let Some(id) = only else { return Err(not_committed()) };
        for question in 1..=QUESTIONS {
            match self.call("admitted", self.store.admitted(&self.consumer, id)).await {
                Ok(true) => return Ok(()),
                // It may still be on its way: then the next transaction waits for it, and finds a duplicate.
                Ok(false) => return Err(not_committed()),
                Err(_) if question < QUESTIONS => self.pause(question).await,
                Err(_) => {}
            }
        }
        Err(Trouble::Broken(Broken::Unknown(error)))
    }

    /// One call to the store, no longer than it may take. A store that panics is not to be had.
    pub(crate) async fn call<T>(
        &self,
        what: &str,
        call: impl Future<Output = Result<T, StoreError>>,
    ) -> Result<T, Trouble> {
        self.in_time(what, call, Trouble::of).await
    }

    /// As [`call`](Self::call), for what has errors of its own.
    pub(crate) async fn in_time<T, E>(
        &self,
        what: &str,
        call: impl Future<Output = Result<T, E>>,
        trouble: impl Fn(&E) -> Trouble,
    ) -> Result<T, Trouble> {
        // Nothing of the inbox is touched by the call, so nothing can be left half done by a panic.
        match timeout(self.limit, AssertUnwindSafe(call).catch_unwind()).await {
            Ok(Ok(done)) => done.map_err(|error| trouble(&error)),
            Ok(Err(_)) => Err(Trouble::away(format!("{what}: it panicked; its message was printed"))),
            Err(_) => Err(Trouble::away(format!("{what}: no answer within {:?}", self.limit))),
        }
    }

    /// How long to wait before something is tried once more: longer each time, and not as long as whoever else waits.
    pub(crate) fn next_pause(&self, tries: u32) -> Duration {
        let draw = self.random.lock().unwrap_or_else(PoisonError::into_inner).f64();
        let bound = self.first_delay.saturating_mul(1 << tries.min(6)).min(self.most_delay).min(MOST_PAUSE);
        bound.mul_f64(0.1 + draw * 0.9)
    }

    /// Waits before something is tried once more.
    pub(crate) async fn pause(&self, tries: u32) {
        tokio::time::sleep(self.next_pause(tries)).await;
    }
}
