//! Outcomes: what became of each message of a chunk.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::failure::Failure;

/// What became of one message of a chunk. Only [`Delivered`](Self::Delivered) settles it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The broker confirmed it. Nothing else counts as this: not a timeout, not a written socket.
    Delivered,
    /// This message can never be delivered: too large, malformed. Exhausted at once.
    Rejected(Failure),
    /// This message was not delivered, for a reason of its own; it may be next time. Counts as an attempt.
    Failed(Failure),
    /// Not delivered, for a reason that is not the message's: nothing is counted, the breaker opens.
    Unavailable(Unavailable, Failure),
    /// It may or may not have been delivered: a timeout, a lost connection. Never counts, never lets a follower pass; is
    /// sent again.
    Unknown(Failure),
    /// Not tried, because an earlier message of its key in the chunk was not delivered.
    Blocked,
}

impl Outcome {
    /// Whether the broker itself has said so: it is there.
    #[must_use]
    pub const fn is_answer(&self) -> bool {
        match self {
            Self::Delivered
            | Self::Rejected(_)
            | Self::Failed(_)
            | Self::Unavailable(Unavailable::Topic, _) => true,
            Self::Unavailable(Unavailable::Route, _) | Self::Unknown(_) | Self::Blocked => false,
        }
    }
}

/// What is not to be had.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Unavailable {
    /// The broker, or all of this route.
    Route,
    /// This topic alone: unknown, unroutable, not authorised, not enough replicas.
    Topic,
}

/// Where a transport reports what became of a chunk: one slot per message, no future for each.
///
/// Clones share the slots. A slot that nobody filled counts as unknown. The first report of a slot stands: a later one
/// is ignored, so a transport may sweep over all slots with `Unknown` when it gives up.
///
/// ```
/// use outbox_contract::{Outcome, Outcomes};
///
/// let outcomes = Outcomes::new(2);
/// outcomes.report(0, Outcome::Delivered);
/// let taken = outcomes.take();
/// assert_eq!(taken[0], Some(Outcome::Delivered));
/// assert_eq!(taken[1], None);
/// ```
#[derive(Clone, Debug)]
pub struct Outcomes {
    // A plain mutex: held for a store into a slot, never across an await. Written by the transport (often from a
    // thread of the client library), read once by the publisher.
    slots: Arc<Mutex<Vec<Option<Outcome>>>>,
}

impl Outcomes {
    /// Empty slots for a chunk of `len` messages.
    #[must_use]
    pub fn new(len: usize) -> Self {
        Self { slots: Arc::new(Mutex::new(vec![None; len])) }
    }

    /// Says what became of the message at `index` of the chunk. Ignored when it was said before, or after the outcomes
    /// were taken, or for an index beyond the chunk.
    pub fn report(&self, index: usize, outcome: Outcome) {
        if let Some(slot) = self.slots().get_mut(index)
            && slot.is_none()
        {
            *slot = Some(outcome);
        }
    }

    /// Says the same of every message that nothing was said of yet.
    pub fn report_rest(&self, outcome: &Outcome) {
        for slot in self.slots().iter_mut().filter(|slot| slot.is_none()) {
            *slot = Some(outcome.clone());
        }
    }

    /// Whether something was said of every message.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.slots().iter().all(Option::is_some)
    }

    /// Of how many messages the broker itself has spoken so far: not of those that are unknown or blocked, nor where it was away.
    #[must_use]
    pub fn answered(&self) -> usize {
        self.slots().iter().flatten().filter(|outcome| outcome.is_answer()).count()
    }

    /// Which messages were delivered so far, one answer for each message of the chunk; empty once the outcomes were taken.
    #[must_use]
    pub fn delivered(&self) -> Vec<bool> {
        self.slots().iter().map(|slot| *slot == Some(Outcome::Delivered)).collect()
    }

    /// Takes what was said; later reports go nowhere.
    #[must_use]
    pub fn take(&self) -> Vec<Option<Outcome>> {
        std::mem::take(&mut *self.slots())
    }

    fn slots(&self) -> MutexGuard<'_, Vec<Option<Outcome>>> {
        // A panic between lock and unlock leaves the slots valid: each is written in one assignment.
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
