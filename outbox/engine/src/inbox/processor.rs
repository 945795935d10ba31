//! The processor: messages through a transaction: begin, deduplicate, handle, append, commit; and what each error on that way means.

use std::collections::BTreeSet;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use async_trait::async_trait;
use futures_util::{FutureExt, TryFutureExt};
use outbox_contract::backend::{Blame, Dedup, Stored};
use outbox_contract::{
    AppendError, Codec, Consumer, Failure, KeyId, Message, MessageId, Outbox, Outgoing, Route, Transactional,
    inbox_route,
};
use tokio::time::{Instant, timeout};
use tracing::Instrument;

use super::handler::{Emitted, HandlerContext, HandlerFailure};
use super::handlers::{Action, Handlers};
use super::identity::as_written;
use super::overtaking::overtaking;
use super::pace::Pace;
use super::process::{Errand, Place, Process, Work};
use super::stats::Counters;
use super::steps::{Step, Steps};
use super::transaction_pool::spares::Open;
use super::transaction_pool::{PoolLimits, TransactionPool, Turn};
use super::undecodables::Undecodables;
use super::verdict::{Broken, Done, Trouble, Verdict};
use crate::telemetry::consume_span;
use crate::unit_of_work::blame;

/// How often a transaction is started again after a conflict, before others get their turn.
pub(crate) const CONFLICT_TRIES: u32 = 6;

pub(crate) struct Processor<S: Transactional, C: Codec> {
    pub(crate) store: Arc<S>,
    pub(crate) outbox: Outbox<Arc<S>, C>,
    pub(crate) consumer: Consumer,
    pub(crate) route: Route,
    pub(crate) handlers: Arc<Handlers<S::Tx<'static>, C>>,
    pub(crate) counters: Arc<Counters>,
    pub(crate) steps: Steps,
    pub(crate) pool: TransactionPool<S>,
    pub(crate) undecodables: Undecodables,
    pace: Pace,
}

impl<S: Transactional, C: Codec> Processor<S, C> {
    pub(crate) fn new(
        store: Arc<S>,
        outbox: Outbox<Arc<S>, C>,
        consumer: Consumer,
        handlers: Arc<Handlers<S::Tx<'static>, C>>,
        counters: Arc<Counters>,
        steps: Steps,
        limits: PoolLimits,
    ) -> Self {
        let route = inbox_route(&consumer);
        let pool = TransactionPool::new(Arc::clone(&store), consumer.clone(), Arc::clone(&counters), limits);
        let pace = Pace::new(handlers.longest());
        let undecodables = Undecodables::new(u64::MAX);
        Self { store, outbox, consumer, route, handlers, counters, steps, pool, undecodables, pace }
    }

    async fn append(&self, call: impl Future<Output = Result<(), AppendError>>) -> Result<(), Trouble> {
        self.pool.in_time("append", call, append_trouble).await
    }

    pub(crate) async fn begin(&self, turn: &Turn<'_>) -> Result<Open<S::Tx<'static>>, Trouble> {
        let open = self.pool.begin(turn).await?;
        self.steps.over(Step::Begun);
        Ok(open)
    }

    pub(crate) async fn commit(
        &self,
        open: Open<S::Tx<'static>>,
        only: Option<MessageId>,
    ) -> Result<(), Trouble> {
        self.pool.commit(open, only).await?;
        self.steps.over(Step::Committed);
        Ok(())
    }

    /// Runs messages through one transaction, started again after conflicts.
    async fn attempt(&self, turn: &Turn<'_>, works: &[Work<'_>]) -> Result<Vec<Option<Done>>, Trouble> {
        let mut tries = 1;
        loop {
            let trouble = match self.run(turn, works).await {
                Err(trouble @ (Trouble::Again(_) | Trouble::Outdated(_))) if tries < CONFLICT_TRIES => {
                    trouble
                }
                other => return other,
            };
            let pause = self.pool.next_pause(tries);
            if !turn.errand.place.has_time(pause.saturating_add(self.pace.call())) {
                return Err(trouble);
            }
            tracing::debug!(consumer = %self.consumer, ?trouble, ?pause, tries, "a transaction is started again");
            tokio::time::sleep(pause).await;
            tries += 1;
        }
    }

    /// One transaction. One answer per message; None: it stays where it is, behind others.
    async fn run(&self, turn: &Turn<'_>, works: &[Work<'_>]) -> Result<Vec<Option<Done>>, Trouble> {
        let mut open = self.begin(turn).await?;
        let begun = Instant::now();
        let done = match self.work(&mut open.tx, turn.errand.place, works, begun).await {
            Ok(worked) => worked,
            Err(trouble) => {
                self.pool.roll_back(open).await;
                return Err(trouble);
            }
        };
        if done.iter().all(|done| !matches!(done, Some(Done::Handled | Done::Stored))) {
            // Nothing was written: that they are duplicates is committed already.
            self.pool.roll_back(open).await;
            return Ok(done);
        }
        let only = match (works, &*done) {
            ([work], [Some(Done::Handled)]) => Some(work.message.id),
            _ => None,
        };
        self.commit(open, only).await?;
        Ok(done)
    }

    /// All that happens inside of the transaction.
    async fn work(
        &self,
        tx: &mut S::Tx<'static>,
        place: Place,
        works: &[Work<'_>],
        begun: Instant,
    ) -> Result<Vec<Option<Done>>, Trouble> {
        let waits = self.fence(tx, works).await?;
        let still_there = |at: &usize| waits.get(*at) != Some(&false);
        let messages: Vec<&Message> =
            (0..works.len()).filter(still_there).map(|at| works[at].message).collect();
        let handled_ids =
            self.pool.call("deduplicate", self.store.deduplicate(tx, &self.consumer, &messages)).await?;
        all_answered("deduplicate", messages.len(), handled_ids.len())?;
        self.steps.over(Step::Deduplicated);
        if let Some(id) = overtaking(&messages, &handled_ids) {
            let words = format!(
                "what the message {id} goes behind was finished while the others of its key were handled"
            );
            return Err(Trouble::Again(Failure::new("overtaken", words)));
        }
        let emitted = Emitted::default();
        let (mut done, mut behind) = (Vec::with_capacity(works.len()), Vec::new());
        let mut handled_ids = handled_ids.into_iter();
        for (at, work) in works.iter().enumerate() {
            if !still_there(&at) {
                done.push(Some(Done::Gone));
                continue;
            }
            let Some(deduplication) = handled_ids.next() else { break };
            let has_called = done.contains(&Some(Done::Handled));
            if place.is_store() && has_called && self.pace.is_too_slow(begun.elapsed()) {
                return Err(Trouble::Slow(done.len()));
            }
            done.push(match deduplication {
                Dedup::Duplicate => Some(Done::Duplicate),
                Dedup::OutOfTurn if place.is_store() => None,
                Dedup::OutOfTurn => {
                    behind.push(Outgoing::from(work.message.clone()).by(self.route.clone()));
                    Some(Done::Stored)
                }
                Dedup::New => {
                    self.handle(tx, work, &emitted).await?;
                    Some(Done::Handled)
                }
            });
        }
        self.steps.over(Step::Handled);
        if !behind.is_empty() {
            self.append(self.store.append(tx, &behind)).await?;
        }
        let emitted = emitted.take();
        if !emitted.is_empty() {
            self.append(self.outbox.append_messages(tx, emitted).map_ok(drop)).await?;
        }
        self.steps.over(Step::Appended);
        Ok(done)
    }

    /// Which of these, if they come from the store, still wait there: whoever read them may have slept since, and others have finished them. They wait
    /// until the transaction is over. Empty: they come from the broker.
    async fn fence(&self, tx: &mut S::Tx<'static>, works: &[Work<'_>]) -> Result<Vec<bool>, Trouble> {
        let stored: Vec<&Stored> = works.iter().filter_map(|work| work.stored).collect();
        if stored.is_empty() {
            return Ok(Vec::new());
        }
        let waits = self.pool.call("fence", self.store.fence(tx, &self.route, &stored)).await?;
        all_answered("fence", works.len(), waits.len())?;
        Ok(waits)
    }

    async fn handle(
        &self,
        tx: &mut S::Tx<'static>,
        work: &Work<'_>,
        emitted: &Emitted,
    ) -> Result<(), Trouble> {
        let at = self.handler_of(work.message);
        let Some(registered) = at.and_then(|at| self.handlers.get(at)) else {
            // `process` lets only messages with a handler come here.
            return Err(Trouble::Handler(Verdict::NotTried));
        };
        let written = as_written(work.message);
        let context = HandlerContext {
            message: &written,
            consumer: &self.consumer,
            attempt: work.attempt,
            emitted,
            codec: self.outbox.codec(),
        };
        // Called inside of the future, so that a handler that panics before its first await is caught too.
        let handled = AssertUnwindSafe(async {
            let call = registered.call.call(tx, context, &self.handlers.upcasters);
            call.instrument(consume_span(&written)).await
        })
        .catch_unwind();
        let failed = |class, words: String| Trouble::Handler(Verdict::Failed(Failure::new(class, words)));
        match timeout(registered.options.timeout, handled).await {
            Ok(Ok(Ok(()))) => Ok(()),
            Ok(Ok(Err(error))) => {
                match blame(&*error, |error| self.store.blame(error)) {
                    Blame::Conflict => return Err(Trouble::of_handler(error)),
                    Blame::Environment => return Err(Trouble::environment(error)),
                    Blame::Handler => {}
                }
                let said = HandlerFailure::of(&error);
                let rejected = said.is_rejected();
                let failure = said.into_failure();
                let verdict = if rejected { Verdict::Rejected(failure) } else { Verdict::Failed(failure) };
                Err(Trouble::Handler(verdict))
            }
            Ok(Err(_)) => Err(failed("panic", "the handler panicked; its message was printed".to_owned())),
            Err(_) => Err(failed(
                "timeout",
                format!(
                    "the handler was not done within {:?}; it was rolled back",
                    registered.options.timeout
                ),
            )),
        }
    }

    /// Several messages through each transaction, as long as that goes well. Returns those that are left, to go alone.
    async fn batches(
        &self,
        turn: &Turn<'_>,
        works: &[Work<'_>],
        to_do: &[usize],
        say: &mut (dyn FnMut(usize, Verdict) + Send),
    ) -> Result<Vec<usize>, Broken> {
        let (mut left, place) = (to_do, turn.errand.place);
        while left.len() > 1 && place.has_time(self.pace.calls()) {
            let most = if place.is_store() { self.pace.most().min(left.len()) } else { left.len() };
            if most < 2 {
                break;
            }
            let (some, others) = left.split_at(most);
            let batch: Vec<Work<'_>> = some.iter().map(|index| works[*index]).collect();
            let begun = Instant::now();
            match self.run(turn, &batch).await {
                Ok(done) => {
                    let mut behind = Vec::new();
                    for (index, done) in some.iter().zip(done) {
                        match done {
                            Some(done) => say(*index, Verdict::Done(done)),
                            None => behind.push(*index),
                        }
                    }
                    if !behind.is_empty() {
                        // The others of it are committed. What was in the way may be finished by now: each is asked about once more.
                        behind.extend(others);
                        return Ok(behind);
                    }
                    if place.is_store() {
                        self.pace.done(some.len(), begun.elapsed());
                    }
                    left = others;
                }
                Err(Trouble::Broken(broken)) => return Err(broken),
                Err(trouble @ (Trouble::Slow(_) | Trouble::NoTurn)) => {
                    if let Trouble::Slow(calls) = trouble {
                        self.pace.gave_up(calls);
                    }
                    left.iter().for_each(|index| say(*index, Verdict::NotTried));
                    return Ok(Vec::new());
                }
                // Something in it failed, and all of it is rolled back: who it was, shows when each goes alone.
                Err(
                    Trouble::Handler(_) | Trouble::Again(_) | Trouble::Outdated(_) | Trouble::Environment(_),
                ) => break,
            }
        }
        Ok(left.to_vec())
    }

    /// Each message through a transaction of its own. `first`: nothing was done before these.
    async fn singles(
        &self,
        turn: &Turn<'_>,
        works: impl Iterator<Item = (usize, Work<'_>)> + Send,
        mut first: bool,
        say: &mut (dyn FnMut(usize, Verdict) + Send),
    ) -> Result<(), Broken> {
        let (mut stopped, mut has_turn, place) = (BTreeSet::new(), true, turn.errand.place);
        for (index, work) in works {
            let key = work.message.key_id();
            let is_late = !std::mem::take(&mut first) && !place.has_time(self.pace.call());
            if !has_turn || is_late || stopped.contains(&key) {
                say(index, Verdict::NotTried);
                continue;
            }
            let begun = Instant::now();
            let verdict = match self.attempt(turn, &[work]).await {
                Ok(done) => done.first().copied().flatten().map_or(Verdict::NotTried, Verdict::Done),
                Err(Trouble::Handler(verdict)) => verdict,
                Err(Trouble::Again(failure)) => Verdict::Again(failure),
                Err(Trouble::Outdated(failure)) => Verdict::Outdated(failure),
                Err(Trouble::Environment(failure)) => Verdict::Environment(failure),
                // Only of several.
                Err(Trouble::Slow(_)) => Verdict::NotTried,
                Err(Trouble::NoTurn) => {
                    has_turn = false;
                    Verdict::NotTried
                }
                Err(Trouble::Broken(broken)) => return Err(broken),
            };
            if !matches!(verdict, Verdict::Done(_)) {
                stopped.insert(key);
            } else if place.is_store() {
                self.pace.done(1, begun.elapsed());
            }
            say(index, verdict);
        }
        Ok(())
    }
}

#[async_trait]
impl<S: Transactional, C: Codec> Process for Processor<S, C> {
    fn handler_of(&self, message: &Message) -> Option<usize> {
        match self.handlers.action(message) {
            Action::Handle(at) => Some(at),
            Action::Ignore | Action::Reject(_) | Action::Fail(_) => None,
        }
    }

    async fn process(
        &self,
        errand: &Errand<'_>,
        works: &[Work<'_>],
        said: &mut (dyn FnMut(usize, Verdict) + Send),
    ) -> Result<(), Broken> {
        let mut say = |index: usize, verdict: Verdict| {
            // What is rejected goes to the store, where it is rejected once more: it counts there.
            if errand.place != Place::Broker || !matches!(verdict, Verdict::Rejected(_)) {
                self.counters.count(&verdict);
            }
            said(index, verdict);
        };
        let mut stopped: BTreeSet<KeyId> = BTreeSet::new();
        let mut to_do = Vec::with_capacity(works.len());
        for (index, work) in works.iter().enumerate() {
            let key = work.message.key_id();
            let verdict = match self.handlers.action(work.message) {
                _ if stopped.contains(&key) => Verdict::NotTried,
                Action::Handle(_) => {
                    to_do.push(index);
                    continue;
                }
                Action::Ignore => Verdict::Done(Done::Ignored),
                Action::Reject(failure) => Verdict::Rejected(failure),
                Action::Fail(failure) => Verdict::Failed(failure),
            };
            if !matches!(verdict, Verdict::Done(_)) {
                stopped.insert(key);
            }
            say(index, verdict);
        }
        let messages = to_do.iter().map(|index| works[*index].message);
        let (_permits, missing) = self.permits(errand, messages).await;
        let mut waiting = BTreeSet::new();
        to_do.retain(|index| {
            let (message, key) = (works[*index].message, works[*index].message.key_id());
            let waits = self.handler_of(message).is_none_or(|at| missing.contains(&at));
            if waits || waiting.contains(&key) {
                waiting.insert(key);
                say(*index, Verdict::NotTried);
                return false;
            }
            true
        });
        if to_do.is_empty() {
            return Ok(());
        }
        // Behind the permits: nobody who has a turn waits for others.
        let Some(turn) = self.pool.turn(errand).await else {
            to_do.iter().for_each(|index| say(*index, Verdict::NotTried));
            return Ok(());
        };
        let left = self.batches(&turn, works, &to_do, &mut say).await?;
        let first = left.len() == to_do.len();
        self.singles(&turn, left.iter().map(|index| (*index, works[*index])), first, &mut say).await
    }

    async fn store(&self, errand: &Errand<'_>, messages: &[&Message]) -> Result<bool, Broken> {
        match self.store_all(errand, messages).await {
            Ok(()) => Ok(true),
            Err(Trouble::NoTurn) => Ok(false),
            Err(Trouble::Broken(broken)) => Err(broken),
            Err(trouble) => Err(Broken::Away(format!("{trouble:?}"))),
        }
    }
}

/// A store that does not answer for each message is broken.
fn all_answered(call: &str, asked: usize, got: usize) -> Result<(), Trouble> {
    if asked == got {
        return Ok(());
    }
    Err(Trouble::away(format!("{call}: {got} answers for {asked} messages; the store is broken")))
}

/// What it means that rows could not be appended.
fn append_trouble(error: &AppendError) -> Trouble {
    match error {
        AppendError::Conflict(error) | AppendError::Store(error) => Trouble::of_work("append", error),
        other => Trouble::Handler(Verdict::Failed(Failure::new("append", other.to_string()))),
    }
}

#[cfg(test)]
#[path = "processor_tests.rs"]
mod tests;
