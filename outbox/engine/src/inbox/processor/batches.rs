//! Messages into transactions: several through each as long as that goes well, then each through
//! one of its own.

use std::collections::BTreeSet;

use outbox_contract::{Codec, Transactional};
use tokio::time::Instant;

use super::Processor;
use crate::inbox::process::Work;
use crate::inbox::transaction_pool::Turn;
use crate::inbox::verdict::{StoreFailure, TransactionError, Verdict};

impl<S: Transactional, C: Codec> Processor<S, C> {
    /// Several messages through each transaction, as long as that goes well. Returns those that are
    /// left, to go alone.
    pub(super) async fn batches(
        &self,
        turn: &Turn<'_>,
        works: &[Work<'_>],
        to_do: &[usize],
        say: &mut (dyn FnMut(usize, Verdict) + Send),
    ) -> Result<Vec<usize>, StoreFailure> {
        let (mut left, origin) = (to_do, turn.errand.origin);
        while left.len() > 1 && origin.has_time(self.batch_size.calls()) {
            let most = if origin.is_store() { self.batch_size.most().min(left.len()) } else { left.len() };
            if most < 2 {
                break;
            }
            let (some, others) = left.split_at(most);
            let batch: Vec<Work<'_>> = some.iter().map(|index| works[*index]).collect();
            let begun = Instant::now();
            match self.transact(turn, &batch).await {
                Ok(done) => {
                    let mut behind = Vec::new();
                    for (index, done) in some.iter().zip(done) {
                        match done {
                            Some(done) => say(*index, Verdict::Done(done)),
                            None => behind.push(*index),
                        }
                    }
                    if !behind.is_empty() {
                        // The others of it are committed. What was in the way may be finished by
                        // now: each is asked about once more.
                        behind.extend(others);
                        return Ok(behind);
                    }
                    if origin.is_store() {
                        self.batch_size.done(some.len(), begun.elapsed());
                    }
                    left = others;
                }
                Err(TransactionError::Store(failure)) => return Err(failure),
                Err(error @ (TransactionError::Slow(_) | TransactionError::NoTurn)) => {
                    if let TransactionError::Slow(calls) = error {
                        self.batch_size.gave_up(calls);
                    }
                    left.iter().for_each(|index| say(*index, Verdict::NotTried));
                    return Ok(Vec::new());
                }
                // Something in it failed, and all of it is rolled back: who it was, shows when each
                // goes alone.
                Err(
                    TransactionError::Handler(_)
                    | TransactionError::Again(_)
                    | TransactionError::Outdated(_)
                    | TransactionError::Environment(_),
                ) => break,
            }
        }
        Ok(left.to_vec())
    }

    /// Each message through a transaction of its own. `first`: nothing was done before these.
    pub(super) async fn singles(
        &self,
        turn: &Turn<'_>,
        works: impl Iterator<Item = (usize, Work<'_>)> + Send,
        mut first: bool,
        say: &mut (dyn FnMut(usize, Verdict) + Send),
    ) -> Result<(), StoreFailure> {
        let (mut stopped, mut has_turn, origin) = (BTreeSet::new(), true, turn.errand.origin);
        for (index, work) in works {
            let key = work.message.key_id();
            let is_late = !std::mem::take(&mut first) && !origin.has_time(self.batch_size.call());
            if !has_turn || is_late || stopped.contains(&key) {
                say(index, Verdict::NotTried);
                continue;
            }
            let begun = Instant::now();
            let verdict = match self.attempt(turn, &[work]).await {
                Ok(done) => done.first().copied().flatten().map_or(Verdict::NotTried, Verdict::Done),
                Err(TransactionError::Handler(verdict)) => verdict,
                Err(TransactionError::Again(failure)) => Verdict::Again(failure),
                Err(TransactionError::Outdated(failure)) => Verdict::Outdated(failure),
                Err(TransactionError::Environment(failure)) => Verdict::Environment(failure),
                // Only of several.
                Err(TransactionError::Slow(_)) => Verdict::NotTried,
                Err(TransactionError::NoTurn) => {
                    has_turn = false;
                    Verdict::NotTried
                }
                Err(TransactionError::Store(failure)) => return Err(failure),
            };
            if !matches!(verdict, Verdict::Done(_)) {
                stopped.insert(key);
            } else if origin.is_store() {
                self.batch_size.done(1, begun.elapsed());
            }
            say(index, verdict);
        }
        Ok(())
    }
}
