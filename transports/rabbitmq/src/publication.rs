//! A batch on its way: which messages may go now, and what is known of those that went. Pure: it
//! sends nothing.
//!
//! Promises: one message in flight per key, so that behind a message that was not delivered none of
//! its key is (the key-prefix property); one outcome per message; *delivered* only for what the
//! broker confirmed and did not return.
//!
//! RabbitMQ sends an unroutable message back, and then confirms it all the same. It comes back
//! without its number, so it is known by its id and its position (two messages of one batch may
//! have one id: a copy for another topic). It always comes before its own confirmation.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use outbox_contract::backend::flow::{KeyChain, Reports};
use outbox_contract::backend::{Outcome, Position, Stored, Unavailable};
use outbox_contract::{Failure, MessageId};

use crate::error::Fault;

/// Answer of the broker about a message, named by its place in the batch.
#[derive(Clone, Debug)]
pub(crate) enum Answer {
    /// This one came back. Its confirmation follows.
    Returned(Returned),
    /// The broker took it, or it came back before.
    Confirmed(usize),
    /// The broker did not take it.
    Refused(usize),
    /// The channel broke: nothing more comes.
    Broken(Fault),
}

/// A message that came back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Returned {
    pub(crate) id: Option<MessageId>,
    pub(crate) position: Option<Position>,
    pub(crate) reason: String,
}

#[derive(Debug)]
pub(crate) struct Publication {
    chain: KeyChain,
    /// Id and position of each message.
    ids: Vec<(MessageId, Position)>,
    /// Messages that may be sent now, in the order of the batch.
    ready: VecDeque<usize>,
    /// Messages that were to be sent and may not go yet.
    held_up: Vec<usize>,
    /// Reasons of messages that came back, by index.
    returned: HashMap<usize, String>,
}

impl Publication {
    pub(crate) fn new(messages: &[Arc<Stored>]) -> Self {
        let chain = KeyChain::new(messages);
        Self {
            ready: chain.heads().collect(),
            chain,
            ids: messages.iter().map(|stored| (stored.message.id, stored.position)).collect(),
            held_up: Vec::new(),
            returned: HashMap::new(),
        }
    }

    /// Takes the next message to send. From now on it is under way.
    pub(crate) fn start(&mut self) -> Option<usize> {
        let index = self.ready.pop_front()?;
        self.chain.start(index);
        Some(index)
    }

    /// Puts back a message that was started: its topic takes no more for now.
    pub(crate) fn hold_up(&mut self, index: usize) {
        self.chain.put_back(index);
        self.held_up.push(index);
    }

    /// Returns true if something is held up.
    pub(crate) const fn holds_up(&self) -> bool {
        !self.held_up.is_empty()
    }

    /// Lets what was held up be tried again, before what was behind it.
    pub(crate) fn let_go(&mut self) {
        for index in self.held_up.drain(..).rev() {
            self.ready.push_front(index);
        }
    }

    /// Decides that nothing of these messages is to be sent: none of them is under way.
    pub(crate) fn shut_out(&mut self, is_one: impl Fn(usize) -> bool, outcome: &Outcome) -> Reports {
        let mut reports = Reports::new();
        let (shut_out, ready) = self.ready.drain(..).partition::<Vec<_>, _>(|index| is_one(*index));
        self.ready = ready.into();
        for index in shut_out {
            self.chain.fail(index, outcome.clone(), &mut reports);
        }
        reports
    }

    /// Returns the number of messages that may be sent now.
    pub(crate) fn ready(&self) -> usize {
        self.ready.len()
    }

    /// Returns true if something was said of every message.
    pub(crate) const fn is_complete(&self) -> bool {
        self.chain.is_complete()
    }

    /// Records that a message that was started is not sendable: nothing of it went out.
    pub(crate) fn unsendable(&mut self, index: usize, outcome: Outcome) -> Reports {
        let mut reports = Reports::new();
        self.chain.fail(index, outcome, &mut reports);
        reports
    }

    /// Takes in what the broker said, in the order in which it said it.
    pub(crate) fn answered(
        &mut self,
        answers: Vec<Answer>,
        topic_of: impl Fn(usize) -> String,
        refusal_of: impl Fn(usize) -> Failure,
    ) -> Reports {
        let mut reports = Reports::with_capacity(answers.len());
        for answer in answers {
            match answer {
                Answer::Returned(returned) => {
                    if let Err(returned) = self.note_return(returned) {
                        // Its confirmation would be taken for a delivery.
                        let fault = Fault::unknown_return(&returned.reason);
                        self.give_up(&fault.unknown(), &fault.unavailable(), &mut reports);
                    }
                }
                // Of what was given up nothing more is wanted.
                Answer::Confirmed(index) | Answer::Refused(index) if !self.chain.is_under_way(index) => {}
                Answer::Confirmed(index) => match self.returned.remove(&index) {
                    Some(reason) => {
                        let outcome = unroutable(&topic_of(index), &reason);
                        self.chain.fail(index, outcome, &mut reports);
                    }
                    None => self.ready.extend(self.chain.confirm(index, &mut reports)),
                },
                Answer::Refused(index) => {
                    let outcome = Outcome::Unavailable(Unavailable::Topic, refusal_of(index));
                    self.chain.fail(index, outcome, &mut reports);
                }
                Answer::Broken(fault) => {
                    let alone = self.chain.under_way() == 1;
                    self.give_up(&fault.of_messages_under_way(alone), &fault.unavailable(), &mut reports);
                }
            }
        }
        reports
    }

    /// Ends the batch: nothing more comes.
    fn give_up(&mut self, under_way: &Outcome, waiting: &Outcome, reports: &mut Reports) {
        self.chain.give_up(under_way, waiting, reports);
        self.ready.clear();
        self.held_up.clear();
    }

    fn note_return(&mut self, returned: Returned) -> Result<(), Returned> {
        let is_it = |(index, (id, position)): (usize, &(MessageId, Position))| {
            let is_it = (Some(*id), Some(*position)) == (returned.id, returned.position);
            (is_it && self.chain.is_under_way(index)).then_some(index)
        };
        match self.ids.iter().enumerate().find_map(is_it) {
            Some(index) => {
                self.returned.insert(index, returned.reason);
                Ok(())
            }
            None => Err(returned),
        }
    }
}

fn unroutable(topic: &str, reason: &str) -> Outcome {
    let why = format!(
        "unroutable: no queue is bound for topic {topic} ({reason}); bind one, or start its consumer"
    );
    Outcome::Unavailable(Unavailable::Topic, Failure::new("unroutable", why))
}

#[cfg(test)]
#[path = "publication_tests.rs"]
mod tests;
