//! Messages into transactions: several through each as long as that goes well, then each through
//! one of its own.

use std::collections::BTreeSet;

use outbox_contract::{Codec, Transactional};
use tokio::time::Instant;

use super::Processor;
use crate::inbox::process::Work;
use crate::inbox::transaction_pool::Turn;
use crate::inbox::verdict::{Broken, Trouble, Verdict};

impl<S: Transactional, C: Codec> Processor<S, C> {
    /// Several messages through each transaction, as long as that goes well. Returns those that are
    /// left, to go alone.
    pub(super) async fn batches(
        &self,
        turn: &Turn<'_>,
        works: &[Work<'_>],
        to_do: &[usize],
        say: &mut (dyn FnMut(usize, Verdict) + Send),
    ) -> Result<Vec<usize>, Broken> {
        let (mut left, place) = (to_do, turn.errand.place);
        while left.len() > 1 && place.has_time(self.batch_size.calls()) {
            let most = if place.is_store() { self.batch_size.most().min(left.len()) } else { left.len() };
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
                        // The others of it are committed. What was in the way may be finished by now: each is asked about once more.
                        behind.extend(others);
                        return Ok(behind);
                    }
                    if place.is_store() {
                        self.batch_size.done(some.len(), begun.elapsed());
                    }
                    left = others;
                }
                Err(Trouble::Broken(broken)) => return Err(broken),
                Err(trouble @ (Trouble::Slow(_) | Trouble::NoTurn)) => {
                    if let Trouble::Slow(calls) = trouble {
                        self.batch_size.gave_up(calls);
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
    pub(super) async fn singles(
        &self,
        turn: &Turn<'_>,
        works: impl Iterator<Item = (usize, Work<'_>)> + Send,
        mut first: bool,
        say: &mut (dyn FnMut(usize, Verdict) + Send),
    ) -> Result<(), Broken> {
        let (mut stopped, mut has_turn, place) = (BTreeSet::new(), true, turn.errand.place);
        for (index, work) in works {
            let key = work.message.key_id();
            let is_late = !std::mem::take(&mut first) && !place.has_time(self.batch_size.call());
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
                self.batch_size.done(1, begun.elapsed());
            }
            say(index, verdict);
        }
        Ok(())
    }
}
