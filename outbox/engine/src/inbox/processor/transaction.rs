//! One transaction: begin, fence, deduplicate, handle, append, commit; and what each error on that
//! way means.

use std::panic::AssertUnwindSafe;

use futures_util::{FutureExt, TryFutureExt};
use outbox_contract::backend::{Blame, Dedup, Stored};
use outbox_contract::{AppendError, Codec, Failure, Message, MessageId, Outgoing, Transactional};
use tokio::time::{Instant, timeout};
use tracing::Instrument;

use super::overtaking::overtaking;
use super::{CONFLICT_TRIES, Processor};
use crate::error_text::{of_panic, with_causes};
use crate::inbox::handler::HandlerFailure;
use crate::inbox::handler_context::HandlerContext;
use crate::inbox::identity::as_written;
use crate::inbox::process::{Origin, Process, Work};
use crate::inbox::steps::Step;
use crate::inbox::transaction_pool::Turn;
use crate::inbox::transaction_pool::spares::Open;
use crate::inbox::verdict::{Done, TransactionError, Verdict};
use crate::mediator::HandlerError;
use crate::telemetry::consume_span;
use crate::unit_of_work::blame;

impl<S: Transactional, C: Codec> Processor<S, C> {
    pub(crate) async fn begin(&self, turn: &Turn<'_>) -> Result<Open<S::Tx<'static>>, TransactionError> {
        let open = self.pool.begin(turn).await?;
        self.steps.over(Step::Begun);
        Ok(open)
    }

    pub(crate) async fn commit(
        &self,
        open: Open<S::Tx<'static>>,
        only: Option<MessageId>,
    ) -> Result<(), TransactionError> {
        self.pool.commit(open, only).await?;
        self.steps.over(Step::Committed);
        Ok(())
    }

    /// Runs messages through one transaction, started again after conflicts.
    pub(super) async fn attempt(
        &self,
        turn: &Turn<'_>,
        works: &[Work<'_>],
    ) -> Result<Vec<Option<Done>>, TransactionError> {
        let mut tries = 1;
        loop {
            let error = match self.transact(turn, works).await {
                Err(error @ (TransactionError::Again(_) | TransactionError::Outdated(_)))
                    if tries < CONFLICT_TRIES =>
                {
                    error
                }
                other => return other,
            };
            let pause = self.pool.next_pause(tries);
            if !turn.errand.origin.has_time(pause.saturating_add(self.batch_size.call())) {
                return Err(error);
            }
            tracing::debug!(consumer = %self.consumer, ?error, ?pause, tries, "retrying a transaction of the inbox");
            tokio::time::sleep(pause).await;
            tries += 1;
        }
    }

    /// One transaction. One answer per message; None: it stays where it is, behind others.
    pub(super) async fn transact(
        &self,
        turn: &Turn<'_>,
        works: &[Work<'_>],
    ) -> Result<Vec<Option<Done>>, TransactionError> {
        let mut open = self.begin(turn).await?;
        let begun = Instant::now();
        let done = match self.work(&mut open.tx, turn.errand.origin, works, begun).await {
            Ok(worked) => worked,
            Err(error) => {
                self.pool.roll_back(open).await;
                return Err(error);
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
        origin: Origin,
        works: &[Work<'_>],
        begun: Instant,
    ) -> Result<Vec<Option<Done>>, TransactionError> {
        let waits = self.fence(tx, works).await?;
        let there = works.iter().enumerate().filter(|(at, _)| waits.get(*at) != Some(&false));
        let there: Vec<&Work<'_>> = there.map(|(_, work)| work).collect();
        let keyless: Vec<Option<Message>> = there.iter().map(|work| work.without_turn()).collect();
        let messages = there.iter().zip(&keyless);
        let messages: Vec<&Message> =
            messages.map(|(work, own)| own.as_ref().unwrap_or(work.message)).collect();
        let dedups = self.deduplicate(tx, &messages).await?;
        let mut published = Vec::new();
        let (mut done, mut behind, mut has_called) = (Vec::with_capacity(works.len()), Vec::new(), false);
        let mut dedups = dedups.into_iter();
        for (at, work) in works.iter().enumerate() {
            if waits.get(at) == Some(&false) {
                done.push(Some(Done::Gone));
                continue;
            }
            let Some(dedup) = dedups.next() else { break };
            if origin.is_store() && has_called && self.batch_size.is_too_slow(begun.elapsed()) {
                return Err(TransactionError::Slow(done.len()));
            }
            done.push(match dedup {
                Dedup::Duplicate => Some(Done::Duplicate),
                Dedup::OutOfTurn if origin.is_store() => None,
                Dedup::OutOfTurn => {
                    behind.push(Outgoing::from(work.message.clone()).by(self.route.clone()));
                    Some(Done::Stored)
                }
                Dedup::New => {
                    self.handle(tx, work, &mut published).await?;
                    has_called = true;
                    Some(Done::Handled)
                }
            });
        }
        self.steps.over(Step::Handled);
        if !behind.is_empty() {
            self.append(self.store.append(tx, &behind)).await?;
        }
        if !published.is_empty() {
            self.append(self.outbox.append_messages(tx, published).map_ok(drop)).await?;
        }
        self.steps.over(Step::Appended);
        Ok(done)
    }

    /// Notes messages as handled, and learns which were so before, and which are behind others.
    async fn deduplicate(
        &self,
        tx: &mut S::Tx<'static>,
        messages: &[&Message],
    ) -> Result<Vec<Dedup>, TransactionError> {
        let dedups =
            self.pool.call("deduplicate", self.store.deduplicate(tx, &self.consumer, messages)).await?;
        all_answered("deduplicate", messages.len(), dedups.len())?;
        self.steps.over(Step::Deduplicated);
        if let Some(id) = overtaking(messages, &dedups) {
            let words = format!(
                "the messages before {id} were finished by another transaction meanwhile; trying again"
            );
            return Err(TransactionError::Again(Failure::new("overtaken", words)));
        }
        Ok(dedups)
    }

    /// Asks which of these, if they come from the store, still wait there: whoever read them may
    /// have slept since, and others have finished them. They wait until the transaction is over.
    /// Empty: they come from the broker.
    async fn fence(
        &self,
        tx: &mut S::Tx<'static>,
        works: &[Work<'_>],
    ) -> Result<Vec<bool>, TransactionError> {
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
        published: &mut Vec<Outgoing>,
    ) -> Result<(), TransactionError> {
        let at = self.handler_of(work.message);
        let Some(registered) = at.and_then(|at| self.handlers.get(at)) else {
            // `process` lets only messages with a handler come here.
            return Err(TransactionError::Handler(Verdict::NotTried));
        };
        let written = as_written(work.message);
        let context = HandlerContext {
            tx,
            message: &written,
            consumer: &self.consumer,
            attempt: work.attempt,
            state: &(),
            outbox: &self.outbox,
            published,
        };
        // Called inside of the future, so that a handler that panics before its first await is
        // caught too.
        let handled = AssertUnwindSafe(async {
            let call = registered.call.call(context, &self.handlers.upcasters);
            call.instrument(consume_span(&written)).await
        })
        .catch_unwind();
        let limit = registered.options.timeout;
        let failed =
            |class, words: String| TransactionError::Handler(Verdict::Failed(Failure::new(class, words)));
        match timeout(limit, handled).await {
            Ok(Ok(Ok(()))) => Ok(()),
            Ok(Ok(Err(error))) => Err(self.handler_error(error)),
            Ok(Err(panic)) => Err(failed("panic", format!("the handler {}", of_panic(&*panic)))),
            Err(_) => Err(failed(
                "timeout",
                format!("timeout: the handler did not finish within {limit:?}; it was rolled back"),
            )),
        }
    }

    fn handler_error(&self, error: HandlerError) -> TransactionError {
        match blame(&*error, |error| self.store.blame(error)) {
            Blame::Conflict => TransactionError::of_handler(error),
            Blame::Environment => TransactionError::environment(with_causes(&*error)),
            Blame::Handler => TransactionError::Handler(HandlerFailure::of(&error).into_verdict()),
        }
    }

    async fn append(
        &self,
        call: impl Future<Output = Result<(), AppendError>>,
    ) -> Result<(), TransactionError> {
        self.pool.in_time("append", call, append_error).await
    }
}

/// A store that does not answer for each message is broken.
fn all_answered(call: &str, asked: usize, got: usize) -> Result<(), TransactionError> {
    if asked == got {
        return Ok(());
    }
    Err(TransactionError::unavailable(format!(
        "{call}: {got} answers for {asked} messages; this is a defect of the store"
    )))
}

/// Translates an error of an append.
fn append_error(error: &AppendError) -> TransactionError {
    match error {
        AppendError::Conflict(error) | AppendError::Store(error) => {
            TransactionError::of_work("append", error)
        }
        other => TransactionError::Handler(Verdict::Failed(Failure::new("append", other.to_string()))),
    }
}
