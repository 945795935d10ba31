//! The broker of the model, and the judge of what arrives there.

use std::collections::{BTreeMap, BTreeSet};

use outbox_contract::backend::{Outcome, Unavailable};
use outbox_contract::{Failure, MessageId};

use super::cast::{Judged, KEYS, TOPICS, topic_of};
use super::store::Store;

/// What is wrong with the world.
#[derive(Debug, Default)]
pub(super) struct Broker {
    /// It says that it is away.
    pub(super) is_away: bool,
    /// It says nothing at all.
    pub(super) is_silent: bool,
    pub(super) broken_topics: [bool; TOPICS],
    pub(super) hanging_keys: [bool; KEYS],
    /// Never delivered: with whether the broker says that it never will.
    pub(super) poison: BTreeMap<MessageId, bool>,
    /// Part of a thousand of messages that fail, and of answers that are lost.
    pub(super) failing: u32,
    pub(super) losing: u32,
    pub(super) log: BTreeSet<MessageId>,
    /// Number of times that a message failed for a reason of its own.
    pub(super) failures: BTreeMap<MessageId, u32>,
}

impl Broker {
    /// Carries the messages of one key, in order, under the key-prefix property. Says what became of each.
    pub(super) fn carry(
        &mut self,
        ids: &[MessageId],
        of: usize,
        store: &Store,
        random: &mut fastrand::Rng,
    ) -> Result<Vec<Option<Outcome>>, String> {
        let mut outcomes = Vec::new();
        let mut stopped = false;
        for id in ids {
            if stopped {
                outcomes.push(Some(Outcome::Blocked));
                continue;
            }
            let outcome = self.outcome(*id, of, random);
            stopped = outcome != Some(Outcome::Delivered);
            // Whoever has not heard of it may have sent it all the same, and so for what stands behind it.
            let is_unknown = matches!(outcome, None | Some(Outcome::Unknown(_)));
            if !stopped || (is_unknown && random.bool()) {
                self.arrive(*id, of, store)?;
            }
            outcomes.push(outcome);
        }
        Ok(outcomes)
    }

    fn outcome(&mut self, id: MessageId, of: usize, random: &mut fastrand::Rng) -> Option<Outcome> {
        let failure = || Failure::new("model", "as the model has it");
        if self.is_silent || self.hanging_keys[of] {
            return None;
        }
        if self.is_away {
            return Some(Outcome::Unavailable(Unavailable::Route, failure()));
        }
        if self.broken_topics[topic_of(of)] {
            return Some(Outcome::Unavailable(Unavailable::Topic, failure()));
        }
        if random.u32(0..1_000) < self.losing {
            return Some(Outcome::Unknown(failure()));
        }
        let poison = self.poison.get(&id).copied();
        if poison.is_some() || random.u32(0..1_000) < self.failing {
            *self.failures.entry(id).or_default() += 1;
            let rejected = poison == Some(true);
            return Some(if rejected { Outcome::Rejected(failure()) } else { Outcome::Failed(failure()) });
        }
        Some(Outcome::Delivered)
    }

    /// A message arrives: each one before it of its key has arrived before, or is out.
    fn arrive(&mut self, id: MessageId, of: usize, store: &Store) -> Judged {
        if store.malformed.contains(&id) {
            return Err(format!("phantom: {id}, which is no message, arrived"));
        }
        if !self.log.insert(id) {
            return Ok(());
        }
        let Some(at) = store.committed[of].iter().position(|committed| *committed == id) else {
            return Err(format!("phantom: {id} of key {of} was never committed"));
        };
        let is_over = |other: &&MessageId| {
            self.log.contains(*other) || store.out.contains(*other) || store.malformed.contains(*other)
        };
        match store.committed[of][..at].iter().find(|other| !is_over(other)) {
            Some(first) => Err(format!("out of order: {id} of key {of} arrived before {first}")),
            None => Ok(()),
        }
    }

    /// Everything is well again but what is poison.
    pub(super) fn heal(&mut self) {
        (self.is_away, self.is_silent, self.failing, self.losing) = (false, false, 0, 0);
        (self.broken_topics, self.hanging_keys) = ([false; TOPICS], [false; KEYS]);
    }
}
