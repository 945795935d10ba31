//! The processor: the only way into a handler, for what comes from the broker and for what waits in
//! the store. It waits for the permits of the handlers, then for a turn, and passes messages
//! through transactions.

use std::collections::BTreeSet;
use std::sync::Arc;

use async_trait::async_trait;
use outbox_contract::{
    Codec, Consumer, KeyId, Message, Outbox, Route, Timestamp, Topic, Transactional, inbox_route,
};

use super::handlers::{Action, Handlers};
use super::process::{Errand, Origin, Process, Work};
use super::stats::Counters;
use super::steps::Steps;
use super::transaction_pool::{PoolLimits, TransactionPool};
use super::undecodable::Undecodables;
use super::verdict::{Done, StoreFailure, TransactionError, Verdict};
use batch_size::BatchSize;

mod batch_size;
mod batches;
mod consumed;
mod overtaking;
mod permits;
mod storing;
mod transaction;

/// Tries of a transaction that meets conflicts, before others get their turn.
const CONFLICT_TRIES: u32 = 6;

pub(crate) struct Processor<S: Transactional, C: Codec> {
    store: Arc<S>,
    outbox: Outbox<Arc<S>, C>,
    consumer: Consumer,
    route: Route,
    handlers: Arc<Handlers<S, C>>,
    counters: Arc<Counters>,
    steps: Steps,
    pool: TransactionPool<S>,
    undecodables: Undecodables,
    batch_size: BatchSize,
}

impl<S: Transactional, C: Codec> Processor<S, C> {
    pub(crate) fn new(
        store: Arc<S>,
        outbox: Outbox<Arc<S>, C>,
        consumer: Consumer,
        handlers: Arc<Handlers<S, C>>,
        counters: Arc<Counters>,
        steps: Steps,
        limits: PoolLimits,
    ) -> Self {
        let route = inbox_route(&consumer);
        let pool = TransactionPool::new(Arc::clone(&store), consumer.clone(), Arc::clone(&counters), limits);
        let batch_size = BatchSize::new(handlers.longest());
        let undecodables = Undecodables::new(u64::MAX);
        Self { store, outbox, consumer, route, handlers, counters, steps, pool, undecodables, batch_size }
    }

    /// Bounds the dead letters beside which a record that is no message becomes another one.
    pub(crate) fn with_max_undecodable(self, max: u64) -> Self {
        Self { undecodables: Undecodables::new(max), ..self }
    }

    /// Returns the messages that handlers want, by their places. Says of the others what becomes of
    /// them.
    fn to_handle(&self, works: &[Work<'_>], say: &mut impl FnMut(usize, Verdict)) -> Vec<usize> {
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
                Action::Wait(failure) => Verdict::TooNew(failure),
            };
            if !matches!(verdict, Verdict::Done(_)) {
                stopped.insert(key);
            }
            say(index, verdict);
        }
        to_do
    }
}

#[async_trait]
impl<S: Transactional, C: Codec> Process for Processor<S, C> {
    fn handler_of(&self, message: &Message) -> Option<usize> {
        match self.handlers.action(message) {
            Action::Handle(at) => Some(at),
            Action::Ignore | Action::Reject(_) | Action::Wait(_) => None,
        }
    }

    async fn process(
        &self,
        errand: &Errand<'_>,
        works: &[Work<'_>],
        said: &mut (dyn FnMut(usize, Verdict) + Send),
    ) -> Result<(), StoreFailure> {
        let mut say = |index: usize, verdict: Verdict| {
            // A message that is rejected or too new goes to the store, is handled once more from
            // there, and counts then.
            if errand.origin != Origin::Broker
                || !matches!(verdict, Verdict::Rejected(_) | Verdict::TooNew(_))
            {
                self.counters.count(&verdict);
            }
            if let Verdict::Failed(failure) = &verdict {
                self.counters.warn_of_failure(works[index].message, failure);
            }
            said(index, verdict);
        };
        let mut to_do = self.to_handle(works, &mut say);
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
        // After the permits: a transaction that has its turn waits for no other.
        let Some(turn) = self.pool.turn(errand).await else {
            to_do.iter().for_each(|index| say(*index, Verdict::NotTried));
            return Ok(());
        };
        let left = self.batches(&turn, works, &to_do, &mut say).await?;
        let first = left.len() == to_do.len();
        self.singles(&turn, left.iter().map(|index| (*index, works[*index])), first, &mut say).await
    }

    async fn store(&self, errand: &Errand<'_>, messages: &[&Message]) -> Result<bool, StoreFailure> {
        match self.store_all(errand, messages).await {
            Ok(()) => Ok(true),
            Err(TransactionError::NoTurn) => Ok(false),
            Err(TransactionError::Store(failure)) => Err(failure),
            Err(error) => Err(StoreFailure::Unavailable(format!("{error:?}"))),
        }
    }

    async fn last_handled(
        &self,
        topic: &Topic,
        now: Timestamp,
    ) -> Result<Option<Timestamp>, TransactionError> {
        self.find_mark(topic, now).await
    }

    async fn note_handled(&self, topics: &[Topic], now: Timestamp) -> Result<(), TransactionError> {
        self.note_marks(topics, now).await
    }
}

#[cfg(test)]
mod tests;
