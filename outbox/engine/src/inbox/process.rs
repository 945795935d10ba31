//! Messages through a transaction: begin, admit, handle, append, commit; and what each error on that way means.

use std::collections::{BTreeMap, BTreeSet};
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::{FutureExt, TryFutureExt};
use outbox_contract::transactional::{Admission, inbox_route};
use outbox_contract::{
    AppendError, Consumer, Failure, KeyId, Message, MessageId, Outbox, Outgoing, Route, Transactional,
};
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::timeout;
use tracing::Instrument;

use super::handler::{Emitted, HandlerContext, HandlerFailure};
use super::handlers::{Action, Handlers};
use super::spares::Open;
use super::stats::Counters;
use super::steps::{Step, Steps};
use super::transactions::Transactions;
use super::verdict::{Broken, Done, Trouble, Verdict};
use crate::observe::consume_span;
use crate::unit_of_work::is_conflict;

/// A message that is to be handled.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Work<'a> {
    pub(crate) message: &'a Message,
    /// Which attempt this is, from 1.
    pub(crate) attempt: u32,
}

/// Where a message comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// From the broker: one that is behind others is written behind them.
    Broker,
    /// From the store: one that is behind others stays where it is.
    Store,
}

/// Handles messages, whatever the store and the handlers are.
#[async_trait]
pub(crate) trait Process: Send + Sync + 'static {
    /// Which handler a message goes to, if any.
    fn handler_of(&self, message: &Message) -> Option<usize>;

    /// Handles messages: those of one key in the order given. Several go through one transaction; if that comes to nothing, each through
    /// one of its own. Says what became of each as soon as it is known; behind one that is not finished, no other of its key is tried.
    ///
    /// Cancellation: what is open is rolled back; a commit on its way may or may not happen.
    async fn process(
        &self,
        place: Place,
        works: &[Work<'_>],
        said: &mut (dyn FnMut(usize, Verdict) + Send),
    ) -> Result<(), Broken>;

    /// Writes messages behind those that wait in the store for this consumer, in this order, in one transaction.
    ///
    /// When nobody knows whether it was committed it is done again: the messages are there twice then, and are handled once.
    async fn store(&self, messages: &[&Message]) -> Result<(), Broken>;
}

/// How often a transaction is started again after a conflict, before others get their turn.
const CONFLICT_TRIES: u32 = 6;

pub(crate) struct Processor<S: Transactional> {
    pub(crate) store: Arc<S>,
    pub(crate) outbox: Outbox<Arc<S>>,
    pub(crate) consumer: Consumer,
    pub(crate) route: Route,
    pub(crate) handlers: Arc<Handlers<S::Tx<'static>>>,
    pub(crate) counters: Arc<Counters>,
    pub(crate) steps: Steps,
    pub(crate) transactions: Transactions<S>,
}

impl<S: Transactional> Processor<S> {
    #[expect(clippy::too_many_arguments, reason = "the parts of an inbox, once, from the builder")]
    pub(crate) fn new(
        store: Arc<S>,
        outbox: Outbox<Arc<S>>,
        consumer: Consumer,
        handlers: Arc<Handlers<S::Tx<'static>>>,
        counters: Arc<Counters>,
        steps: Steps,
        store_timeout: Duration,
        first_delay: Duration,
        seed: u64,
    ) -> Self {
        let route = inbox_route(&consumer);
        let transactions =
            Transactions::new(Arc::clone(&store), consumer.clone(), store_timeout, first_delay, seed);
        Self { store, outbox, consumer, route, handlers, counters, steps, transactions }
    }

    async fn append(&self, call: impl Future<Output = Result<(), AppendError>>) -> Result<(), Trouble> {
        self.transactions.in_time("append", call, append_trouble).await
    }

    async fn begin(&self) -> Result<Open<S::Tx<'static>>, Trouble> {
        let open = self.transactions.begin().await?;
        self.steps.over(Step::Begun);
        Ok(open)
    }

    async fn commit(&self, open: Open<S::Tx<'static>>, only: Option<MessageId>) -> Result<(), Trouble> {
        self.transactions.commit(open, only).await?;
        self.steps.over(Step::Committed);
        Ok(())
    }

    /// Runs messages through one transaction, started again after conflicts.
    async fn attempt(&self, place: Place, works: &[Work<'_>]) -> Result<Vec<Option<Done>>, Trouble> {
        let mut tries = 1;
        loop {
            match self.run(place, works).await {
                Err(Trouble::Again(failure)) if tries < CONFLICT_TRIES => {
                    tracing::debug!(consumer = %self.consumer, %failure, tries, "a transaction is started again");
                    self.transactions.pause(tries).await;
                    tries += 1;
                }
                other => return other,
            }
        }
    }

    /// One transaction. One answer per message; None: it stays where it is, behind others.
    async fn run(&self, place: Place, works: &[Work<'_>]) -> Result<Vec<Option<Done>>, Trouble> {
        let _permits = self.permits(works).await;
        let mut open = self.begin().await?;
        let done = match self.work(&mut open.tx, place, works).await {
            Ok(worked) => worked,
            Err(trouble) => {
                self.transactions.roll_back(open).await;
                return Err(trouble);
            }
        };
        if done.iter().all(|done| !matches!(done, Some(Done::Handled | Done::Stored))) {
            // Nothing was written: that they are duplicates is committed already.
            self.transactions.roll_back(open).await;
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
    ) -> Result<Vec<Option<Done>>, Trouble> {
        let messages: Vec<&Message> = works.iter().map(|work| work.message).collect();
        let admissions =
            self.transactions.call("admit", self.store.admit(tx, &self.consumer, &messages)).await?;
        if admissions.len() != works.len() {
            let (asked, got) = (works.len(), admissions.len());
            return Err(Trouble::away(format!(
                "admit: {got} answers for {asked} messages; the store is broken"
            )));
        }
        self.steps.over(Step::Admitted);
        if let Some(id) = overtaking(&messages, &admissions) {
            let words = format!(
                "what the message {id} goes behind was finished while the others of its key were admitted"
            );
            return Err(Trouble::Again(Failure::new("overtaken", words)));
        }
        let emitted = Emitted::default();
        let (mut done, mut behind) = (Vec::with_capacity(works.len()), Vec::new());
        for (work, admission) in works.iter().zip(admissions) {
            done.push(match admission {
                Admission::Duplicate => Some(Done::Duplicate),
                Admission::Behind if place == Place::Store => None,
                Admission::Behind => {
                    behind.push(Outgoing::from(work.message.clone()).by(self.route.clone()));
                    Some(Done::Stored)
                }
                Admission::New => {
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
        let context = HandlerContext {
            message: work.message,
            consumer: &self.consumer,
            attempt: work.attempt,
            emitted,
        };
        // Called inside of the future, so that a handler that panics before its first await is caught too.
        let handled = AssertUnwindSafe(async {
            let call = registered.call.call(tx, context, &self.handlers.upcasters);
            call.instrument(consume_span(work.message)).await
        })
        .catch_unwind();
        let failed = |class, words: String| Trouble::Handler(Verdict::Failed(Failure::new(class, words)));
        match timeout(registered.options.timeout, handled).await {
            Ok(Ok(Ok(()))) => Ok(()),
            Ok(Ok(Err(error))) => {
                if is_conflict(&*error, |error| self.store.is_conflict(error)) {
                    return Err(Trouble::conflict(error));
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

    /// The permits of all handlers of a transaction, always in the same order, so that two transactions never wait for each other.
    async fn permits(&self, works: &[Work<'_>]) -> Vec<OwnedSemaphorePermit> {
        let wanted: BTreeSet<usize> = works.iter().filter_map(|work| self.handler_of(work.message)).collect();
        let mut permits = Vec::with_capacity(wanted.len());
        for registered in wanted.into_iter().filter_map(|at| self.handlers.get(at)) {
            // Never closed.
            permits.extend(Arc::clone(&registered.permits).acquire_owned().await.ok());
        }
        permits
    }

    async fn store_once(&self, rows: &[Outgoing]) -> Result<(), Trouble> {
        let mut open = self.begin().await?;
        if let Err(trouble) = self.append(self.store.append(&mut open.tx, rows)).await {
            self.transactions.roll_back(open).await;
            return Err(trouble);
        }
        self.steps.over(Step::Appended);
        self.commit(open, None).await
    }
}

#[async_trait]
impl<S: Transactional> Process for Processor<S> {
    fn handler_of(&self, message: &Message) -> Option<usize> {
        match self.handlers.action(message) {
            Action::Handle(at) => Some(at),
            Action::Ignore | Action::Reject(_) | Action::Fail(_) => None,
        }
    }

    async fn process(
        &self,
        place: Place,
        works: &[Work<'_>],
        said: &mut (dyn FnMut(usize, Verdict) + Send),
    ) -> Result<(), Broken> {
        let mut say = |index: usize, verdict: Verdict| {
            self.counters.count(&verdict);
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
        // Only what stands in front of what was not tried: a key is cut once, at its first.
        if to_do.len() > 1 {
            let batch: Vec<Work<'_>> = to_do.iter().map(|index| works[*index]).collect();
            match self.run(place, &batch).await {
                Ok(done) if done.iter().all(Option::is_some) => {
                    for (index, done) in to_do.into_iter().zip(done) {
                        say(index, done.map_or(Verdict::NotTried, Verdict::Done));
                    }
                    return Ok(());
                }
                Err(Trouble::Broken(broken)) => return Err(broken),
                // Something in it failed, and all of it is rolled back: who it was, shows when each goes alone.
                Ok(_) | Err(Trouble::Handler(_) | Trouble::Again(_)) => {}
            }
        }
        let mut stopped = BTreeSet::new();
        for index in to_do {
            let work = works[index];
            let key = work.message.key_id();
            if stopped.contains(&key) {
                say(index, Verdict::NotTried);
                continue;
            }
            let verdict = match self.attempt(place, &[work]).await {
                Ok(done) => done.first().copied().flatten().map_or(Verdict::NotTried, Verdict::Done),
                Err(Trouble::Handler(verdict)) => verdict,
                Err(Trouble::Again(failure)) => Verdict::Again(failure),
                Err(Trouble::Broken(broken)) => return Err(broken),
            };
            if !matches!(verdict, Verdict::Done(_)) {
                stopped.insert(key);
            }
            say(index, verdict);
        }
        Ok(())
    }

    async fn store(&self, messages: &[&Message]) -> Result<(), Broken> {
        let rows: Vec<Outgoing> = messages
            .iter()
            .map(|message| Outgoing::from((*message).clone()).by(self.route.clone()))
            .collect();
        let mut tries = 1;
        loop {
            match self.store_once(&rows).await {
                Ok(()) => return Ok(()),
                Err(Trouble::Broken(broken)) => return Err(broken),
                Err(_) if tries < CONFLICT_TRIES => {
                    self.transactions.pause(tries).await;
                    tries += 1;
                }
                Err(trouble) => return Err(Broken::Away(format!("{trouble:?}"))),
            }
        }
    }
}

/// The first message that is behind others while a later one of its key is not: each is asked about with what is committed by then, and what was
/// in the way of the first may be finished when the second is asked about. The second must not be handled before the first (P4).
fn overtaking(messages: &[&Message], admissions: &[Admission]) -> Option<MessageId> {
    let mut behind: BTreeMap<KeyId, MessageId> = BTreeMap::new();
    for (message, admission) in messages.iter().zip(admissions) {
        match admission {
            Admission::Behind => _ = behind.entry(message.key_id()).or_insert(message.id),
            Admission::New if !behind.is_empty() => {
                if let Some(id) = behind.get(&message.key_id()) {
                    return Some(*id);
                }
            }
            Admission::New | Admission::Duplicate => {}
        }
    }
    None
}

/// What it means that rows could not be appended.
fn append_trouble(error: &AppendError) -> Trouble {
    match error {
        AppendError::Conflict(error) | AppendError::Store(error) => Trouble::of_work("append", error),
        other => Trouble::Handler(Verdict::Failed(Failure::new("append", other.to_string()))),
    }
}

#[cfg(test)]
mod tests {
    use outbox_contract::Topic;

    use super::*;

    #[test]
    fn nothing_is_handled_in_front_of_what_is_behind_others() {
        use Admission::{Behind, Duplicate, New};
        let message =
            |key: &str| Message::new(Topic::new("orders").unwrap(), "placed").with_key(key).unwrap();
        let (first, second, other) = (message("a"), message("a"), message("b"));
        let overtaking = |admissions: [Admission; 3]| overtaking(&[&first, &other, &second], &admissions);
        assert_eq!(overtaking([Behind, New, New]), Some(first.id));
        for good in
            [[New, Behind, New], [Behind, New, Behind], [Behind, Duplicate, Duplicate], [New, New, Behind]]
        {
            assert_eq!(overtaking(good), None, "{good:?}");
        }
    }
}
