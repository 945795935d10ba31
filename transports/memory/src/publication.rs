//! A batch in flight: its enqueued, acknowledged and reported messages.
//!
//! Promises: one outcome per message; a message is reported delivered only after the earlier ones
//! of its key were, and never after one of them failed.

use std::collections::BTreeMap;
use std::sync::Arc;

use outbox_contract::KeyId;
use outbox_contract::backend::{Outcome, Outcomes, PublishBatch, Stored};
use tokio::sync::Notify;

/// Identifies a publication during its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct PublicationId(pub(crate) u64);

/// Progress of one message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// It is in no buffer.
    Waiting,
    /// It is in the buffers, and this many consumers have yet to acknowledge it.
    Enqueued(usize),
    Delivered,
    /// Not delivered, and no later message of its key will be.
    Failed,
}

#[derive(Debug)]
struct Slot {
    stage: Stage,
    /// The next message of the same key in the batch.
    follower: Option<usize>,
    /// True if there is an earlier message of the same key whose delivery was not reported yet.
    follows: bool,
}

#[derive(Debug)]
pub(crate) struct Publication {
    messages: Vec<Arc<Stored>>,
    source: Arc<str>,
    outcomes: Outcomes,
    slots: Vec<Slot>,
    /// No message before this index waits.
    next: usize,
    unreported: usize,
    /// True if it waits for room in a buffer. Set when it is blocked, cleared when it tries again.
    pub(crate) waits_for_room: bool,
    /// Wakes the future that publishes.
    pub(crate) wake: Arc<Notify>,
}

impl Publication {
    pub(crate) fn new(chunk: PublishBatch, outcomes: Outcomes) -> Self {
        let mut last_of_key: BTreeMap<KeyId, usize> = BTreeMap::new();
        let mut slots: Vec<Slot> = Vec::with_capacity(chunk.messages.len());
        for (index, stored) in chunk.messages.iter().enumerate() {
            let earlier = last_of_key.insert(stored.message.key_id(), index);
            if let Some(earlier) = earlier {
                slots[earlier].follower = Some(index);
            }
            slots.push(Slot { stage: Stage::Waiting, follower: None, follows: earlier.is_some() });
        }
        Self {
            unreported: chunk.messages.len(),
            messages: chunk.messages,
            source: chunk.source,
            outcomes,
            slots,
            next: 0,
            waits_for_room: false,
            wake: Arc::new(Notify::new()),
        }
    }

    pub(crate) fn is_complete(&self) -> bool {
        self.unreported == 0
    }

    pub(crate) fn source(&self) -> &Arc<str> {
        &self.source
    }

    /// Returns the first message to enqueue at or after this index of the batch, and its index.
    pub(crate) fn next(&mut self, from: usize) -> Option<(usize, Arc<Stored>)> {
        while self.slots.get(self.next)?.stage != Stage::Waiting {
            self.next += 1;
        }
        let waits = |index: &usize| self.slots[*index].stage == Stage::Waiting;
        let index = (from.max(self.next)..self.slots.len()).find(waits)?;
        Some((index, Arc::clone(self.messages.get(index)?)))
    }

    /// Records that the message is in the buffers, and that this many consumers must acknowledge
    /// it.
    pub(crate) fn enqueued(&mut self, index: usize, consumers: usize) {
        self.slots[index].stage = Stage::Enqueued(consumers);
        self.report_delivered(index);
    }

    /// Records that one consumer has acknowledged the message.
    pub(crate) fn acknowledged(&mut self, index: usize) {
        if let Stage::Enqueued(left) = &mut self.slots[index].stage {
            *left = left.saturating_sub(1);
            self.report_delivered(index);
        }
    }

    /// Records that the message is not delivered; later ones of its key are not tried.
    pub(crate) fn failed(&mut self, index: usize, outcome: Outcome) {
        self.fail_one(index, outcome);
        let mut at = self.slots[index].follower;
        while let Some(follower) = at {
            self.fail_one(follower, Outcome::Blocked);
            at = self.slots[follower].follower;
        }
        self.wake_if_complete();
    }

    /// Ends the publication: buffered messages get the first outcome (unknown), the rest the second
    /// (not delivered).
    pub(crate) fn give_up(&mut self, enqueued: &Outcome, waiting: &Outcome) {
        for index in 0..self.slots.len() {
            match self.slots[index].stage {
                Stage::Enqueued(_) => self.fail_one(index, enqueued.clone()),
                Stage::Waiting => self.fail_one(index, waiting.clone()),
                Stage::Delivered | Stage::Failed => {}
            }
        }
        self.wake_if_complete();
    }

    fn fail_one(&mut self, index: usize, outcome: Outcome) {
        debug_assert!(!matches!(self.slots[index].stage, Stage::Delivered | Stage::Failed), "reported once");
        self.slots[index].stage = Stage::Failed;
        self.unreported -= 1;
        self.outcomes.report(index, outcome);
    }

    /// Reports acknowledged messages, from this message on along its key.
    ///
    /// A consumer may acknowledge a later message first. Reporting it then would settle it before
    /// its predecessor, and after a crash the relay would resend the predecessor alone.
    fn report_delivered(&mut self, index: usize) {
        let mut at = Some(index);
        while let Some(index) = at {
            let slot = &mut self.slots[index];
            if slot.follows || slot.stage != Stage::Enqueued(0) {
                break;
            }
            slot.stage = Stage::Delivered;
            at = slot.follower;
            self.unreported -= 1;
            self.outcomes.report(index, Outcome::Delivered);
            if let Some(follower) = at {
                self.slots[follower].follows = false;
            }
        }
        self.wake_if_complete();
    }

    fn wake_if_complete(&self) {
        if self.is_complete() {
            self.wake.notify_one();
        }
    }
}
