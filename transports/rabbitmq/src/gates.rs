//! Topics of which the broker refused a message: how many may be sent at once until it takes them
//! again. Pure.
//!
//! A full queue makes the broker refuse a message that other queues of the topic have stored
//! already. Sent again in full, everything under way would be repeated in those queues with each
//! attempt. So after a refusal one message goes first, as a probe; each confirmation lets two more
//! go, and the next refusal begins again. What is repeated is then at most as much as what got
//! through, and one message for each probe.

use std::collections::HashMap;
use std::time::Duration;

use outbox_contract::{Failure, Topic};

use crate::pauses::Pauses;

/// A topic that had so many messages under way without a refusal is as free as any other.
const FREE_FROM: usize = 1_024;

/// The topics of which something was refused.
#[derive(Debug)]
pub(crate) struct Gates {
    first_pause: Duration,
    max_pause: Duration,
    narrow: HashMap<Topic, Gate>,
    /// Counts refusals, so that a batch knows which of them came after it began.
    refusals: u64,
}

#[derive(Debug)]
struct Gate {
    /// Maximum number of messages under way.
    window: usize,
    under_way: usize,
    /// Between one probe and the next, while the room is unknown.
    pauses: Pauses,
    probe_at: Duration,
    refused_at: u64,
    why: Failure,
}

/// Permission of a message to go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Pass {
    /// Nothing was refused.
    Free,
    /// It may go, and [`Gates::confirmed`], [`Gates::refused`] or [`Gates::left`] has to say what
    /// became of it.
    Counted,
    /// Not before others of its topic are decided.
    Wait,
    /// The topic takes nothing now, and why.
    No(Failure),
}

impl Gates {
    pub(crate) fn new(first_pause: Duration, max_pause: Duration) -> Self {
        Self { first_pause, max_pause, narrow: HashMap::new(), refusals: 0 }
    }

    /// The number of the last refusal: what a batch remembers when it begins.
    pub(crate) const fn last_refusal(&self) -> u64 {
        self.refusals
    }

    /// Returns true if nothing is under way of a topic whose last message was refused: then the
    /// next one is a probe.
    pub(crate) fn wants_probe(&self, topic: &Topic) -> bool {
        self.narrow.get(topic).is_some_and(|gate| gate.window == 0)
    }

    /// A probe of this topic has room: it need not wait for the end of a pause.
    pub(crate) fn has_room(&mut self, topic: &Topic) {
        if let Some(gate) = self.narrow.get_mut(topic) {
            gate.probe_at = Duration::ZERO;
        }
    }

    /// Returns true if a message of this topic may go, for a batch that began after the refusal
    /// `since`.
    pub(crate) fn pass(&mut self, topic: &Topic, since: u64, now: Duration) -> Pass {
        let Some(gate) = self.narrow.get_mut(topic) else { return Pass::Free };
        if gate.refused_at > since {
            return Pass::No(gate.why.clone());
        }
        if gate.window == 0 {
            if now < gate.probe_at {
                return Pass::No(gate.why.clone());
            }
            gate.window = 1;
        }
        if gate.under_way >= gate.window {
            return Pass::Wait;
        }
        gate.under_way += 1;
        Pass::Counted
    }

    /// The broker took a message that was counted.
    pub(crate) fn confirmed(&mut self, topic: &Topic) {
        if let Some(gate) = self.narrow.get_mut(topic) {
            gate.under_way = gate.under_way.saturating_sub(1);
            // A message taken before the refusal does not undo it.
            if gate.window > 0 {
                gate.window += 1;
            }
            if gate.window >= FREE_FROM {
                self.narrow.remove(topic);
            }
        }
    }

    /// The broker refused a message. Others that it refuses of the same flight change nothing: says
    /// whether this one did.
    pub(crate) fn refused(&mut self, topic: &Topic, was_counted: bool, why: Failure, now: Duration) -> bool {
        let is_new = !self.narrow.contains_key(topic);
        let gate = self.narrow.entry(topic.clone()).or_insert_with(|| Gate {
            window: 0,
            under_way: 0,
            pauses: Pauses::new(self.first_pause, self.max_pause),
            probe_at: Duration::ZERO,
            refused_at: 0,
            why: why.clone(),
        });
        if was_counted {
            gate.under_way = gate.under_way.saturating_sub(1);
        }
        let changes = is_new || (was_counted && gate.window > 0);
        if changes {
            if gate.window > 1 {
                gate.pauses.reset();
            }
            self.refusals += 1;
            gate.window = 0;
            gate.probe_at = now + gate.pauses.next();
            gate.refused_at = self.refusals;
            gate.why = why;
        }
        changes
    }

    /// Why a topic takes nothing, now that more is known of it.
    pub(crate) fn explained(&mut self, topic: &Topic, why: Failure) {
        if let Some(gate) = self.narrow.get_mut(topic) {
            gate.why = why;
        }
    }

    /// Why a topic takes nothing.
    pub(crate) fn why(&self, topic: &Topic) -> Option<&Failure> {
        self.narrow.get(topic).map(|gate| &gate.why)
    }

    /// The result of a message that was counted is unknown.
    pub(crate) fn left(&mut self, topic: &Topic) {
        if let Some(gate) = self.narrow.get_mut(topic) {
            gate.under_way = gate.under_way.saturating_sub(1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: Duration = Duration::from_secs(1);

    fn topic() -> Topic {
        Topic::new("orders").unwrap()
    }

    fn why() -> Failure {
        Failure::new("refused", "full")
    }

    fn refusing() -> Gates {
        let mut gates = Gates::new(S, S * 8);
        gates.refused(&topic(), false, why(), S);
        gates
    }

    #[test]
    fn one_message_goes_first_and_each_confirmation_lets_two_go() {
        let mut gates = refusing();
        let since = gates.last_refusal();
        assert_eq!(gates.pass(&topic(), since - 1, S * 9), Pass::No(why()), "the batch began before");
        assert_eq!(gates.pass(&topic(), since, S), Pass::No(why()), "too early");
        assert_eq!(gates.pass(&topic(), since, S * 3), Pass::Counted);
        assert_eq!(gates.pass(&topic(), since, S * 3), Pass::Wait);
        gates.confirmed(&topic());
        let passes: Vec<_> = (0..3).map(|_| gates.pass(&topic(), since, S * 3)).collect();
        assert_eq!(passes, [Pass::Counted, Pass::Counted, Pass::Wait]);
        gates.left(&topic());
        assert_eq!(gates.pass(&topic(), since, S * 3), Pass::Counted, "a lost one makes room");
    }

    #[test]
    fn a_refused_probe_closes_the_gate_for_longer_unless_there_is_known_to_be_room() {
        let mut gates = refusing();
        for pause in [2, 4, 8, 8] {
            let (since, now) = (gates.last_refusal(), S * 1_000);
            gates.has_room(&topic());
            assert_eq!(gates.pass(&topic(), since, now), Pass::Counted);
            gates.refused(&topic(), true, why(), now);
            gates.refused(&topic(), false, why(), now);
            assert_eq!(gates.last_refusal(), since + 1, "one refusal of one flight counts");
            assert!(gates.wants_probe(&topic()));
            // Each pause is cut by up to a half.
            assert_eq!(gates.pass(&topic(), since + 1, now + S * pause / 2 - S / 100), Pass::No(why()));
        }
    }

    #[test]
    fn a_topic_that_is_taken_again_is_free() {
        let mut gates = refusing();
        let since = gates.last_refusal();
        for _ in 0..FREE_FROM {
            assert_ne!(gates.pass(&topic(), since, S * 9), Pass::Wait);
            gates.confirmed(&topic());
        }
        assert_eq!(gates.pass(&topic(), since, S * 9), Pass::Free);
        gates.confirmed(&topic());
        gates.left(&topic());
        assert_eq!(gates.pass(&topic(), since, S * 9), Pass::Free, "late news changes nothing");
    }
}
