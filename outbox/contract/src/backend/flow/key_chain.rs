//! Order of keys within a publish batch: the messages that may be under way, and what a failure
//! blocks.
//!
//! Promise (the key-prefix property): a message is reported delivered only behind the delivered
//! ones of its key. Behind one that is not delivered, every other of its key is blocked, and those
//! of other keys continue.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use crate::backend::Outcome;
use crate::backend::Stored;
use crate::failure::Failure;
use crate::message::Message;
use crate::name::KeyId;

/// Keys of a batch of which a message was not delivered. What follows of them is blocked.
///
/// For transports that plan a batch in one pass, and for brokers that keep the order of what they
/// are sent. Costs nothing while everything is delivered.
#[derive(Debug, Default)]
pub struct CutKeys(BTreeSet<KeyId>);

impl CutKeys {
    /// Returns true if an earlier message of its key was not delivered.
    #[must_use]
    pub fn blocks(&self, message: &Message) -> bool {
        !self.0.is_empty() && self.0.contains(&message.key_id())
    }

    /// Records that a message was not delivered.
    pub fn cut(&mut self, message: &Message) {
        self.0.insert(message.key_id());
    }
}

/// Outcomes to report: index in the batch, and outcome.
pub type Reports = Vec<(usize, Outcome)>;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// Not sent.
    Waiting,
    /// Sent, and not confirmed.
    UnderWay,
    /// Confirmed, and an earlier one of its key is not.
    Confirmed,
    /// Reported.
    Decided,
}

#[derive(Debug)]
struct Link {
    stage: Stage,
    /// The next message of the same key.
    follower: Option<usize>,
    /// An earlier message of the same key was not delivered yet.
    is_behind: bool,
}

/// Progress of each message of a batch, key by key.
///
/// For brokers that confirm messages one by one, in any order. A transport either sends the
/// [heads](Self::heads) and then each follower that [`confirm`](Self::confirm) returns, one under
/// way for each key; or, where the broker keeps the order, all that are
/// [waiting](Self::is_waiting).
#[derive(Debug)]
pub struct KeyChain {
    links: Vec<Link>,
    under_way: usize,
    open: usize,
}

impl KeyChain {
    /// Creates the chain of these messages. A message without a key is ordered with no other.
    #[must_use]
    pub fn new(messages: &[Arc<Stored>]) -> Self {
        let mut last_of_key: HashMap<(&str, &str), usize> = HashMap::with_capacity(messages.len());
        let mut links: Vec<Link> = Vec::with_capacity(messages.len());
        for (index, stored) in messages.iter().enumerate() {
            let Message { topic, key, .. } = &stored.message;
            let key = key.as_ref().map(|key| (topic.as_str(), key.as_str()));
            let earlier = key.and_then(|key| last_of_key.insert(key, index));
            if let Some(earlier) = earlier {
                links[earlier].follower = Some(index);
            }
            links.push(Link { stage: Stage::Waiting, follower: None, is_behind: earlier.is_some() });
        }
        Self { under_way: 0, open: links.len(), links }
    }

    /// Returns the messages without an earlier one of their key.
    pub fn heads(&self) -> impl Iterator<Item = usize> {
        (0..).zip(&self.links).filter(|(_, link)| !link.is_behind).map(|(index, _)| index)
    }

    /// Returns true if the message was not sent, and may be.
    #[must_use]
    pub fn is_waiting(&self, index: usize) -> bool {
        self.stage(index) == Some(Stage::Waiting)
    }

    /// Returns true if the message was sent, and the broker has not answered.
    #[must_use]
    pub fn is_under_way(&self, index: usize) -> bool {
        self.stage(index) == Some(Stage::UnderWay)
    }

    /// Returns the number of messages under way.
    #[must_use]
    pub const fn under_way(&self) -> usize {
        self.under_way
    }

    /// Returns true if every message was reported.
    #[must_use]
    pub const fn is_complete(&self) -> bool {
        self.open == 0
    }

    /// Records that a waiting message is sent.
    pub fn start(&mut self, index: usize) {
        debug_assert!(self.is_waiting(index), "only a waiting message is sent");
        self.enter(index, Stage::UnderWay);
    }

    /// Records that a message was not sent after all, and waits again.
    pub fn put_back(&mut self, index: usize) {
        debug_assert!(self.is_under_way(index), "only what was sent is put back");
        self.enter(index, Stage::Waiting);
    }

    /// Records that the broker confirmed a message: reports it, and what was confirmed behind it of
    /// its key, once all before it are delivered. Returns the next message of the key, if it waits.
    ///
    /// A later message that was reported first would be settled first, and after a crash the relay
    /// would resend the earlier one alone.
    pub fn confirm(&mut self, index: usize, reports: &mut Reports) -> Option<usize> {
        if !self.is_under_way(index) {
            return None;
        }
        self.enter(index, Stage::Confirmed);
        let mut next = Some(index);
        while let Some(index) = next {
            if self.links[index].is_behind || self.links[index].stage != Stage::Confirmed {
                return Some(index).filter(|index| self.is_waiting(*index));
            }
            self.decide(index, Outcome::Delivered, reports);
            next = self.links[index].follower;
            if let Some(follower) = next {
                self.links[follower].is_behind = false;
            }
        }
        None
    }

    /// Records that a message is not delivered. What waits behind it of its key is blocked; what is
    /// under way behind it is unknown.
    pub fn fail(&mut self, index: usize, outcome: Outcome, reports: &mut Reports) {
        let mut next = Some((index, outcome));
        while let Some((index, outcome)) = next {
            if self.stage(index).is_none_or(|stage| stage == Stage::Decided) {
                return;
            }
            self.decide(index, outcome, reports);
            next = self.links[index].follower.map(|follower| (follower, self.behind_a_failure(follower)));
        }
    }

    fn behind_a_failure(&self, index: usize) -> Outcome {
        if self.is_waiting(index) {
            return Outcome::Blocked;
        }
        let why = "sent behind a message of its key that was not delivered";
        Outcome::Unknown(Failure::new("unconfirmed", why))
    }

    /// Ends the batch: messages under way get the first outcome, waiting ones the second; what
    /// waits behind a message of its key is blocked.
    pub fn give_up(&mut self, under_way: &Outcome, waiting: &Outcome, reports: &mut Reports) {
        for index in 0..self.links.len() {
            match self.links[index].stage {
                Stage::Waiting => self.fail(index, waiting.clone(), reports),
                Stage::UnderWay | Stage::Confirmed => {
                    self.decide(index, under_way.clone(), reports);
                    let follower = self.links[index].follower;
                    if let Some(follower) = follower.filter(|follower| self.is_waiting(*follower)) {
                        self.fail(follower, Outcome::Blocked, reports);
                    }
                }
                Stage::Decided => {}
            }
        }
    }

    fn stage(&self, index: usize) -> Option<Stage> {
        self.links.get(index).map(|link| link.stage)
    }

    fn decide(&mut self, index: usize, outcome: Outcome, reports: &mut Reports) {
        self.enter(index, Stage::Decided);
        self.open -= 1;
        reports.push((index, outcome));
    }

    fn enter(&mut self, index: usize, stage: Stage) {
        if let Some(link) = self.links.get_mut(index) {
            self.under_way -= usize::from(link.stage == Stage::UnderWay);
            self.under_way += usize::from(stage == Stage::UnderWay);
            link.stage = stage;
        }
    }
}

#[cfg(test)]
#[path = "key_chain_tests.rs"]
mod tests;
