//! A partition of a topic, as one consumer sees it: its unacknowledged messages, in order, and its
//! owner.
//!
//! Promises: numbers grow along the partition; a new owner starts at the first unacknowledged
//! message; an acknowledgment of an earlier ownership changes nothing.

use std::collections::BTreeMap;
use std::sync::Arc;

use outbox_contract::MessageId;
use outbox_contract::backend::Stored;

use crate::load::Load;
use crate::publication::PublicationId;
use crate::state::MemberId;

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
}

/// One ownership of a partition: its owner, and the dispatch progress.
#[derive(Debug)]
pub(crate) struct Partition {
    /// Unacknowledged messages, by number. Acknowledgments arrive in any order, so there may be
    /// gaps.
    entries: BTreeMap<u64, Entry>,
    /// Number of each message, so that a resent one is not added twice.
    places: BTreeMap<MessageId, u64>,
    /// Number of the next message to arrive.
    end: u64,
    /// Everything below was dispatched to the owner.
    dispatched_to: u64,
    /// Load of the messages dispatched to the owner and not acknowledged.
    dispatched: Load,
    owner: Option<MemberId>,
    incarnation: u64,
}

impl Partition {
    pub(crate) fn new() -> Self {
        Self {
            entries: BTreeMap::new(),
            places: BTreeMap::new(),
            end: 0,
            dispatched_to: 0,
            dispatched: Load::default(),
            owner: None,
            incarnation: 0,
        }
    }

    pub(crate) const fn owner(&self) -> Option<MemberId> {
        self.owner
    }

    pub(crate) const fn incarnation(&self) -> u64 {
        self.incarnation
    }

    pub(crate) const fn dispatched(&self) -> Load {
        self.dispatched
    }

    /// Returns the unacknowledged entry of this message.
    pub(crate) fn find(&mut self, id: MessageId) -> Option<&mut Entry> {
        self.entries.get_mut(self.places.get(&id)?)
    }

    pub(crate) fn contains(&self, id: MessageId) -> bool {
        self.places.contains_key(&id)
    }

    /// Adds a message after all others.
    pub(crate) fn push(&mut self, entry: Entry) {
        debug_assert!(!self.contains(entry.stored.message.id), "a message waits once");
        self.places.insert(entry.stored.message.id, self.end);
        self.entries.insert(self.end, entry);
        self.end += 1;
    }

    /// Assigns the partition to another owner, or to none: it starts at the first unacknowledged
    /// message.
    pub(crate) fn assign(&mut self, owner: Option<MemberId>) {
        self.owner = owner;
        self.incarnation += 1;
        self.dispatched_to = 0;
        self.dispatched = Load::default();
    }

    /// Returns the next message that was not dispatched to the owner.
    pub(crate) fn peek(&self) -> Option<&Entry> {
        self.entries.range(self.dispatched_to..).next().map(|(_, entry)| entry)
    }

    /// Dispatches the next message to the owner.
    pub(crate) fn dispatch(&mut self) -> Option<(u64, &Entry)> {
        let (number, entry) = self.entries.range(self.dispatched_to..).next()?;
        self.dispatched_to = number + 1;
        self.dispatched.add(entry.load());
        Some((*number, entry))
    }

    /// Removes a message that the owner finished. Does nothing if the ownership has changed, or if
    /// the message was finished before.
    pub(crate) fn acknowledge(&mut self, by: MemberId, incarnation: u64, number: u64) -> Option<Entry> {
        if self.owner != Some(by) || self.incarnation != incarnation || number >= self.dispatched_to {
            return None;
        }
        let entry = self.entries.remove(&number)?;
        self.places.remove(&entry.stored.message.id);
        self.dispatched.remove(entry.load());
        Some(entry)
    }
}

#[cfg(test)]
mod tests {
    use outbox_contract::backend::Position;
    use outbox_contract::{Message, Timestamp, Topic};

    use super::*;

    const FIRST: MemberId = MemberId(1);
    const SECOND: MemberId = MemberId(2);

    fn entry() -> Entry {
        let message = Message::new(Topic::new("orders").unwrap(), "order.placed");
        let stored = Arc::new(Stored::new(Position(1), Timestamp::default(), message));
        Entry { stored, source: "/shop".into(), waiters: Vec::new() }
    }

    fn partition_of(len: usize, owner: MemberId) -> Partition {
        let mut partition = Partition::new();
        (0..len).for_each(|_| partition.push(entry()));
        partition.assign(Some(owner));
        partition
    }

    fn dispatch_all(partition: &mut Partition) -> Vec<u64> {
        std::iter::from_fn(|| partition.dispatch().map(|(number, _)| number)).collect()
    }

    #[test]
    fn a_new_owner_starts_at_the_first_unacknowledged_and_skips_what_is_finished() {
        let mut partition = partition_of(4, FIRST);
        assert_eq!(dispatch_all(&mut partition), [0, 1, 2, 3]);
        let incarnation = partition.incarnation();
        for finished in [0, 2] {
            assert!(partition.acknowledge(FIRST, incarnation, finished).is_some());
        }
        partition.assign(Some(SECOND));
        assert_eq!(dispatch_all(&mut partition), [1, 3]);
    }

    #[test]
    fn an_acknowledgement_of_an_earlier_ownership_changes_nothing() {
        let mut partition = partition_of(2, FIRST);
        dispatch_all(&mut partition);
        let stale = partition.incarnation();
        partition.assign(Some(SECOND));
        partition.assign(Some(FIRST));
        dispatch_all(&mut partition);
        assert!(partition.acknowledge(FIRST, stale, 0).is_none());
        assert!(partition.acknowledge(SECOND, partition.incarnation(), 0).is_none());
        assert!(partition.acknowledge(FIRST, partition.incarnation(), 0).is_some());
        assert!(partition.acknowledge(FIRST, partition.incarnation(), 0).is_none(), "once");
    }

    #[test]
    fn what_was_not_dispatched_can_not_be_acknowledged() {
        let mut partition = partition_of(2, FIRST);
        partition.dispatch();
        assert!(partition.acknowledge(FIRST, partition.incarnation(), 1).is_none());
    }

    #[test]
    fn the_dispatched_load_is_that_of_the_present_owner() {
        let mut partition = partition_of(3, FIRST);
        dispatch_all(&mut partition);
        partition.acknowledge(FIRST, partition.incarnation(), 1);
        assert_eq!(partition.dispatched().messages, 2);
        partition.assign(Some(SECOND));
        assert_eq!(partition.dispatched(), Load::default());
    }
}
