//! The broker of the model, and the transport before it.

use std::time::Duration;

use outbox_contract::backend::{Outcome, Position, Stored, Unavailable};
use outbox_contract::{Failure, MessageId};

use super::cast::{KEYS, TOPICS, topic_of};
use super::judge::{Fate, Judged, Ledger};

/// Faults of the broker.
#[derive(Debug, Default)]
pub(super) struct Broker {
    /// It says that it is away.
    pub(super) is_away: bool,
    /// It says nothing at all.
    pub(super) is_silent: bool,
    pub(super) broken_topics: [bool; TOPICS],
    pub(super) hanging_keys: [bool; KEYS],
    /// It is too old for the messages of these keys.
    pub(super) postponed_keys: [bool; KEYS],
    /// It does not attempt the messages of these keys.
    pub(super) blocked_keys: [bool; KEYS],
    /// Part of a thousand of messages that fail, and of answers that are lost.
    pub(super) failing: u32,
    pub(super) losing: u32,
    /// Messages on their way that arrive after the timeout.
    pub(super) late: Vec<Late>,
}

/// Messages of one key that arrive in the end, in order.
#[derive(Clone, Debug)]
pub(super) struct Late {
    at: Duration,
    of: usize,
    pub(super) messages: Vec<(MessageId, Position)>,
}

pub(super) fn failure() -> Failure {
    Failure::new("model", "as the model has it")
}

impl Broker {
    /// Carries messages of one key, in order, under the key-prefix property. Says what became of
    /// each.
    pub(super) fn carry(
        &mut self,
        run: &[std::sync::Arc<Stored>],
        of: usize,
        ledger: &mut Ledger,
        (now, random): (Duration, &mut fastrand::Rng),
    ) -> Result<Vec<Option<Outcome>>, super::judge::Violation> {
        let mut outcomes = Vec::with_capacity(run.len());
        let mut stopped = false;
        for stored in run {
            if stopped {
                outcomes.push(Some(Outcome::Blocked));
                continue;
            }
            let id = stored.message.id;
            let outcome = self.outcome(ledger.fate_mut(id), random);
            stopped = outcome != Some(Outcome::Delivered);
            // Whoever has not heard of it may have sent it all the same, and what stands behind it.
            let is_unknown = matches!(outcome, None | Some(Outcome::Unknown(_)));
            let arrives = is_unknown && random.bool();
            if arrives && random.bool() {
                self.send_late(&run[outcomes.len()..], of, now, random);
            } else if !stopped || arrives {
                ledger.arrive(id, of, stored.position)?;
            }
            outcomes.push(outcome);
        }
        Ok(outcomes)
    }

    /// Some of these messages of one key, from the first on, arrive after anybody waited for them.
    pub(super) fn send_late(
        &mut self,
        run: &[std::sync::Arc<Stored>],
        of: usize,
        now: Duration,
        random: &mut fastrand::Rng,
    ) {
        let count = random.usize(..=run.len());
        if count > 0 {
            let messages = run[..count].iter().map(|stored| (stored.message.id, stored.position)).collect();
            self.late.push(Late { at: now + Duration::from_millis(random.u64(0..4_000)), of, messages });
        }
    }

    /// Lets messages arrive that were on their way long enough. Returns them.
    pub(super) fn arrive_late(
        &mut self,
        now: Duration,
        ledger: &mut Ledger,
    ) -> Result<Vec<Late>, super::judge::Violation> {
        let mut arrived = Vec::new();
        while let Some(at) = self.late.iter().position(|late| late.at <= now) {
            let late = self.late.swap_remove(at);
            let mut judged: Judged = Ok(());
            for (id, position) in &late.messages {
                judged = judged.and_then(|()| ledger.arrive(*id, late.of, *position));
            }
            arrived.push(late);
            judged?;
        }
        Ok(arrived)
    }

    pub(super) fn next_late(&self) -> Option<Duration> {
        self.late.iter().map(|late| late.at).min()
    }

    fn outcome(&mut self, fate: &mut Fate, random: &mut fastrand::Rng) -> Option<Outcome> {
        if self.is_silent || self.hanging_keys[fate.of] {
            return None;
        }
        if self.is_away {
            return Some(Outcome::Unavailable(Unavailable::Route, failure()));
        }
        if self.broken_topics[topic_of(fate.of)] {
            return Some(Outcome::Unavailable(Unavailable::Topic, failure()));
        }
        if self.postponed_keys[fate.of] {
            return Some(Outcome::Postponed(Duration::from_millis(random.u64(0..2_000)), failure()));
        }
        if self.blocked_keys[fate.of] {
            return Some(Outcome::Blocked);
        }
        if random.u32(0..1_000) < self.losing {
            return Some(Outcome::Unknown(failure()));
        }
        if fate.poison.is_some() || random.u32(0..1_000) < self.failing {
            fate.failures += 1;
            let rejected = fate.poison == Some(true);
            return Some(if rejected { Outcome::Rejected(failure()) } else { Outcome::Failed(failure()) });
        }
        Some(Outcome::Delivered)
    }

    /// Everything is well again but what is poison.
    pub(super) fn heal(&mut self) {
        (self.is_away, self.is_silent, self.failing, self.losing) = (false, false, 0, 0);
        (self.broken_topics, self.hanging_keys) = ([false; TOPICS], [false; KEYS]);
        (self.postponed_keys, self.blocked_keys) = ([false; KEYS], [false; KEYS]);
    }
}
