//! A batch on its way: which messages may go now, and what is known of those that went. Pure: it sends nothing.
//!
//! Promises: one message in flight per key, so that behind a message that was not delivered none of its key is (the key-prefix property); one
//! outcome per message; *delivered* only for what the broker confirmed and did not return.
//!
//! RabbitMQ sends an unroutable message back, and then confirms it all the same. It comes back without its number, so it is known by its id and its
//! position (two messages of one batch may have one id: a copy for another topic). It always comes before its own confirmation.

use std::collections::HashMap;
use std::sync::Arc;

use outbox_contract::backend::{Outcome, Position, Stored, Unavailable};
use outbox_contract::{Failure, MessageId};

use crate::error::Fault;

/// What the broker said of a message, named by its place in the batch.
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

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Waiting,
    InFlight,
    Decided,
}

#[derive(Debug)]
struct Slot {
    stage: Stage,
    id: MessageId,
    position: Position,
    /// The next message of the same key.
    follower: Option<usize>,
}

/// What is to be reported: which message, and what of it.
pub(crate) type Reports = Vec<(usize, Outcome)>;

#[derive(Debug)]
pub(crate) struct Publication {
    slots: Vec<Slot>,
    /// What may be sent now, in the order of the batch.
    ready: std::collections::VecDeque<usize>,
    in_flight: usize,
    left: usize,
    /// What was to be sent and may not go yet.
    held_up: Vec<usize>,
    /// What came back, by place.
    returned: HashMap<usize, String>,
}

impl Publication {
    pub(crate) fn new(messages: &[Arc<Stored>]) -> Self {
        let mut last_of_key: HashMap<(&str, &str), usize> = HashMap::with_capacity(messages.len());
        let mut slots: Vec<Slot> = Vec::with_capacity(messages.len());
        let mut ready = std::collections::VecDeque::with_capacity(messages.len());
        for (index, stored) in messages.iter().enumerate() {
            let message = &stored.message;
            slots.push(Slot {
                stage: Stage::Waiting,
                id: message.id,
                position: stored.position,
                follower: None,
            });
            // What has no key is ordered with nothing.
            let earlier = message
                .key
                .as_ref()
                .and_then(|key| last_of_key.insert((message.topic.as_str(), key.as_str()), index));
            match earlier {
                Some(earlier) => slots[earlier].follower = Some(index),
                None => ready.push_back(index),
            }
        }
        Self { left: slots.len(), slots, ready, in_flight: 0, held_up: Vec::new(), returned: HashMap::new() }
    }

    /// The next message to send. From now on it is in flight.
    pub(crate) fn start(&mut self) -> Option<usize> {
        let index = self.ready.pop_front()?;
        self.slots[index].stage = Stage::InFlight;
        self.in_flight += 1;
        Some(index)
    }

    /// A message that was started does not go yet: its topic takes no more for now.
    pub(crate) fn hold_up(&mut self, index: usize) {
        self.leave_flight(index);
        self.slots[index].stage = Stage::Waiting;
        self.held_up.push(index);
    }

    /// Whether something is held up.
    pub(crate) const fn holds_up(&self) -> bool {
        !self.held_up.is_empty()
    }

    /// What was held up may be tried again, before what was behind it.
    pub(crate) fn let_go(&mut self) {
        for index in self.held_up.drain(..).rev() {
            self.ready.push_front(index);
        }
    }

    /// Nothing of these messages is to be sent: none of them is in flight.
    pub(crate) fn shut_out(&mut self, is_one: impl Fn(usize) -> bool, outcome: &Outcome) -> Reports {
        let mut reports = Reports::new();
        let (shut_out, ready) = self.ready.drain(..).partition::<Vec<_>, _>(|index| is_one(*index));
        self.ready = ready.into();
        for index in shut_out {
            self.fail(index, outcome.clone(), &mut reports);
        }
        reports
    }

    /// How many messages may be sent now.
    pub(crate) fn ready(&self) -> usize {
        self.ready.len()
    }

    /// Whether something was said of every message.
    pub(crate) const fn is_complete(&self) -> bool {
        self.left == 0
    }

    /// A message that was started turned out not to be sendable: nothing of it went out.
    pub(crate) fn unsendable(&mut self, index: usize, outcome: Outcome) -> Reports {
        let mut reports = Reports::new();
        self.leave_flight(index);
        self.fail(index, outcome, &mut reports);
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
                Answer::Confirmed(index) | Answer::Refused(index)
                    if self.slots[index].stage != Stage::InFlight => {}
                Answer::Confirmed(index) => {
                    self.leave_flight(index);
                    self.decide(index, &topic_of, &mut reports);
                }
                Answer::Refused(index) => {
                    self.leave_flight(index);
                    let outcome = Outcome::Unavailable(Unavailable::Topic, refusal_of(index));
                    self.fail(index, outcome, &mut reports);
                }
                Answer::Broken(fault) => {
                    let alone = self.in_flight == 1;
                    self.give_up(&fault.of_messages_under_way(alone), &fault.unavailable(), &mut reports);
                }
            }
        }
        reports
    }

    /// Nothing more comes: what is in flight, and what was never sent.
    pub(crate) fn given_up(&mut self, in_flight: &Outcome, waiting: &Outcome) -> Reports {
        let mut reports = Reports::new();
        self.give_up(in_flight, waiting, &mut reports);
        reports
    }

    fn give_up(&mut self, in_flight: &Outcome, waiting: &Outcome, reports: &mut Reports) {
        for index in 0..self.slots.len() {
            match self.slots[index].stage {
                Stage::InFlight => {
                    self.leave_flight(index);
                    self.fail(index, in_flight.clone(), reports);
                }
                Stage::Waiting => self.fail(index, waiting.clone(), reports),
                Stage::Decided => {}
            }
        }
        self.ready.clear();
        self.held_up.clear();
    }

    fn note_return(&mut self, returned: Returned) -> Result<(), Returned> {
        let is_it = |slot: &Slot| {
            (Some(slot.id), Some(slot.position)) == (returned.id, returned.position)
                && slot.stage == Stage::InFlight
        };
        match self.slots.iter().position(is_it) {
            Some(place) => {
                self.returned.insert(place, returned.reason);
                Ok(())
            }
            None => Err(returned),
        }
    }

    fn decide(&mut self, index: usize, topic_of: &impl Fn(usize) -> String, reports: &mut Reports) {
        if let Some(reason) = self.returned.remove(&index) {
            let failure = Failure::new(
                "unroutable",
                format!(
                    "no queue gets messages of topic {} ({reason}); bind one, or start its consumer",
                    topic_of(index)
                ),
            );
            self.fail(index, Outcome::Unavailable(Unavailable::Topic, failure), reports);
            return;
        }
        self.slots[index].stage = Stage::Decided;
        self.left -= 1;
        reports.push((index, Outcome::Delivered));
        if let Some(follower) = self.slots[index].follower {
            self.ready.push_back(follower);
        }
    }

    /// Not delivered; and nothing behind it of its key is tried.
    fn fail(&mut self, index: usize, outcome: Outcome, reports: &mut Reports) {
        let mut next = Some((index, outcome));
        while let Some((index, outcome)) = next {
            debug_assert_ne!(self.slots[index].stage, Stage::Decided, "one outcome per message");
            self.slots[index].stage = Stage::Decided;
            self.left -= 1;
            reports.push((index, outcome));
            next = self.slots[index].follower.map(|follower| (follower, Outcome::Blocked));
        }
    }

    fn leave_flight(&mut self, index: usize) {
        debug_assert_eq!(self.slots[index].stage, Stage::InFlight, "only what was started comes back");
        self.in_flight -= 1;
    }
}

#[cfg(test)]
#[path = "publication_tests.rs"]
mod tests;
