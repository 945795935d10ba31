//! Outcomes: the result for each message of a publish batch.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::failure::Failure;

/// Result for one message of a publish batch. Only [`Delivered`](Self::Delivered) settles it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The broker confirmed the message. Nothing else counts as confirmation: neither a timeout nor
    /// a socket write.
    Delivered,
    /// This message can never be delivered: too large, malformed. Its attempts are exhausted
    /// immediately.
    Rejected(Failure),
    /// Not delivered, for a reason of the message itself; a retry may succeed. Counts as an
    /// attempt.
    Failed(Failure),
    /// Not delivered, because this program can't deliver it and another may: no attempt is counted.
    /// The key waits with its later messages, and the message is tried again after this time.
    Postponed(Duration, Failure),
    /// Not delivered, for a reason outside the message: no attempt is counted, and the circuit
    /// breaker opens.
    Unavailable(Unavailable, Failure),
    /// The message may or may not have been delivered: a timeout, a lost connection. Never counts
    /// as an attempt, never lets a later message of its key pass; the relay resends the message.
    Unknown(Failure),
    /// Not attempted, because an earlier message of its key in the batch was not delivered.
    Blocked,
}

impl Outcome {
    /// Returns true if the broker itself gave this outcome, which shows that it is reachable.
    #[must_use]
    pub const fn is_answer(&self) -> bool {
        match self {
            Self::Delivered
            | Self::Rejected(_)
            | Self::Failed(_)
            | Self::Postponed(..)
            | Self::Unavailable(Unavailable::Topic, _) => true,
            Self::Unavailable(Unavailable::Route, _) | Self::Unknown(_) | Self::Blocked => false,
        }
    }
}

/// Scope of an outage.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Unavailable {
    /// The broker, or this whole route.
    Route,
    /// Only this topic: unknown, unroutable, not authorized, too few replicas.
    ///
    /// Or only this bucket, with the class [`Failure::FENCED`]: the broker knows a newer epoch than
    /// that of the batch. A relay that owns the bucket by its next heartbeat nevertheless takes it
    /// anew, under the next epoch: its store lost the newer one.
    Topic,
}

/// Collects the outcomes of a publish batch: one slot per message, without a future for each.
///
/// Clones share the slots. An empty slot counts as unknown. The first report for a slot wins; later
/// ones are ignored. A transport that gives up may therefore fill all slots with `Unknown`.
///
/// ```
/// # extern crate outbox_contract as outbox;
/// use outbox::backend::{Outcome, Outcomes};
///
/// let outcomes = Outcomes::new(2);
/// outcomes.report(0, Outcome::Delivered);
/// let taken = outcomes.take();
/// assert_eq!(taken[0], Some(Outcome::Delivered));
/// assert_eq!(taken[1], None);
/// ```
#[derive(Clone, Debug)]
pub struct Outcomes {
    // Plain mutexes: held for a store into a slot, never across an await. The transport writes it
    // (often from a thread of the client library), and the publisher reads it once.
    slots: Arc<Mutex<Vec<Option<Outcome>>>>,
    stop: Arc<Mutex<Option<Failure>>>,
}

impl Outcomes {
    /// Creates empty slots for a batch of `len` messages.
    #[must_use]
    pub fn new(len: usize) -> Self {
        Self { slots: Arc::new(Mutex::new(vec![None; len])), stop: Arc::default() }
    }

    /// Reports the outcome of the message at `index` of the batch. Ignored if the slot is already
    /// filled, if the outcomes were taken, or if the index is beyond the batch.
    pub fn report(&self, index: usize, outcome: Outcome) {
        if let Some(slot) = self.slots().get_mut(index)
            && slot.is_none()
        {
            *slot = Some(outcome);
        }
    }

    /// Reports the same outcome for every message without one.
    pub fn report_rest(&self, outcome: &Outcome) {
        for slot in self.slots().iter_mut().filter(|slot| slot.is_none()) {
            *slot = Some(outcome.clone());
        }
    }

    /// Reports that the broker has stopped taking messages for now, for a reason that it told, such
    /// as an alarm; or, with `None`, that it takes them again.
    ///
    /// The relay tells its operators, and waits longer for the batch, because the broker still takes
    /// what is under way once the reason is gone. For a missing answer alone this is wrong.
    pub fn stopped(&self, reason: Option<Failure>) {
        *self.stop() = reason;
    }

    /// Returns the reason for which the broker takes no messages for now.
    #[must_use]
    pub fn stop_reason(&self) -> Option<Failure> {
        self.stop().clone()
    }

    /// Returns true if every message has an outcome.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.slots().iter().all(Option::is_some)
    }

    /// Returns the number of messages for which the broker itself has answered so far. Excludes
    /// unknown and blocked messages, and outages.
    #[must_use]
    pub fn answered(&self) -> usize {
        self.slots().iter().flatten().filter(|outcome| outcome.is_answer()).count()
    }

    /// Returns one flag per message of the batch: true if it was delivered so far. Empty after the
    /// outcomes were taken.
    #[must_use]
    pub fn delivered(&self) -> Vec<bool> {
        self.slots().iter().map(|slot| *slot == Some(Outcome::Delivered)).collect()
    }

    /// Takes the outcomes; later reports have no effect.
    #[must_use]
    pub fn take(&self) -> Vec<Option<Outcome>> {
        std::mem::take(&mut *self.slots())
    }

    fn stop(&self) -> MutexGuard<'_, Option<Failure>> {
        self.stop.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn slots(&self) -> MutexGuard<'_, Vec<Option<Outcome>>> {
        // A panic between lock and unlock leaves the slots valid: one assignment writes each slot.
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
