//! A partition of a topic, as one consumer sees it: its unacknowledged messages, in order, and its
//! owner.
//!
//! Promise: numbers grow along the partition, and stay when it changes its owner.

use std::collections::BTreeMap;
use std::sync::Arc;

use outbox_contract::MessageId;
use outbox_contract::backend::flow::Load;
use outbox_contract::backend::{Delivery, Origin, Stored, Tag};

use crate::broker::MemberId;
use crate::publication::PublicationId;

/// A publication that waits for the acknowledgment of a message, and the message's index in its
/// batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Waiter {
    pub(crate) publication: PublicationId,
    pub(crate) index: usize,
}

/// An unacknowledged message.
#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) stored: Arc<Stored>,
    pub(crate) source: Arc<str>,
    pub(crate) waiters: Vec<Waiter>,
}

impl Entry {
    pub(crate) fn load(&self) -> Load {
        Load::one(self.stored.message.bytes())
    }

    pub(crate) fn delivery(&self, tag: Tag) -> Delivery {
        let origin = Origin { source: Arc::clone(&self.source), sequence: self.stored.position.0 };
        Delivery::new(tag, Ok(self.stored.message.clone()), Some(origin))
    }
}

/// Unacknowledged messages of a partition.
#[derive(Debug, Default)]
pub(crate) struct Partition {
    /// By number. Acknowledgments arrive in any order, so there may be gaps.
    entries: BTreeMap<u64, Entry>,
    /// Number of each message, so that a resent one is not added twice.
    numbers: BTreeMap<MessageId, u64>,
    /// Number of the next message to arrive.
    end: u64,
    /// The member whose window has them.
    pub(crate) owner: Option<MemberId>,
}

impl Partition {
    /// Returns the unacknowledged entry of this message.
    pub(crate) fn find(&mut self, id: MessageId) -> Option<&mut Entry> {
        self.entries.get_mut(self.numbers.get(&id)?)
    }

    pub(crate) fn contains(&self, id: MessageId) -> bool {
        self.numbers.contains_key(&id)
    }

    /// Returns the unacknowledged entries, by number.
    pub(crate) fn entries(&self) -> impl Iterator<Item = (&u64, &Entry)> {
        self.entries.iter()
    }

    /// Returns the number of unacknowledged entries.
    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Adds a message after all others; returns its number.
    pub(crate) fn push(&mut self, entry: Entry) -> (u64, &Entry) {
        debug_assert!(!self.contains(entry.stored.message.id), "a message waits once");
        let number = self.end;
        self.end += 1;
        self.numbers.insert(entry.stored.message.id, number);
        (number, self.entries.entry(number).or_insert(entry))
    }

    /// Removes a message that the owner finished.
    pub(crate) fn remove(&mut self, number: u64) -> Option<Entry> {
        let entry = self.entries.remove(&number)?;
        self.numbers.remove(&entry.stored.message.id);
        Some(entry)
    }
}
