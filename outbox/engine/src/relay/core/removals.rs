//! Removals: rows that were delivered and are not gone from the store yet.

use std::collections::BTreeMap;

use outbox_contract::backend::{BucketSet, Position, RowId};

use super::Core;
use super::event::Command;
use super::key::Held;
use super::sabotaged;
use super::table::KeyRef;

/// Removals that are under way, by number. Their messages keep their share of the credit, so that what could be repeated after a
/// crash stays bounded too.
#[derive(Debug, Default)]
pub(super) struct Removals {
    under_way: BTreeMap<u64, Removal>,
    /// What was delivered while this event is taken.
    next: Removal,
    /// Messages and bytes that the settler holds of an earlier incarnation.
    owed: (usize, usize),
}

#[derive(Debug, Default)]
struct Removal {
    rows: Vec<RowId>,
    keys: Vec<(KeyRef, Position)>,
    buckets: BucketSet,
    messages: usize,
    bytes: usize,
}

impl Removals {
    /// Number of messages that are delivered and not gone yet.
    pub(super) fn messages(&self) -> usize {
        self.owed.0
            + self.next.messages
            + self.under_way.values().map(|removal| removal.messages).sum::<usize>()
    }

    /// Whether nothing of these buckets is still to be removed.
    pub(super) fn is_settled(&self, buckets: &BucketSet) -> bool {
        let is_apart = |removal: &Removal| removal.buckets.intersection(buckets).is_empty();
        is_apart(&self.next) && self.under_way.values().all(is_apart)
    }

    #[cfg(test)]
    pub(super) fn bytes(&self) -> usize {
        self.owed.1 + self.next.bytes + self.under_way.values().map(|removal| removal.bytes).sum::<usize>()
    }
}

impl Core {
    /// A message of the hot table was delivered.
    pub(super) fn remove(&mut self, key: KeyRef, held: &Held) {
        let next = &mut self.removals.next;
        next.rows.push(held.stored.row());
        next.keys.push((key, held.stored.position));
        next.buckets.insert(held.stored.bucket);
        next.messages += 1;
        next.bytes += held.bytes;
    }

    /// Has everything removed that was delivered while this event was taken: many keys of a batch are one command.
    pub(super) fn begin_removal(&mut self) {
        if self.removals.next.rows.is_empty() {
            return;
        }
        let mut removal = std::mem::take(&mut self.removals.next);
        let number = self.next_number();
        let rows = std::mem::take(&mut removal.rows);
        let (messages, bytes) = (removal.messages, removal.bytes);
        self.removals.under_way.insert(number, removal);
        self.commands.push(Command::Remove { number, rows, messages, bytes });
    }

    /// Rows are gone from the hot table. No fetch shows them again: one that begins from now on can't see them, and one that is under way was
    /// asked to leave them out.
    pub(super) fn removed(&mut self, number: u64) {
        let Some(removal) = self.removals.under_way.remove(&number) else { return };
        if !sabotaged!(self, CreditLeaks) {
            self.table.credit.give(removal.messages, removal.bytes);
        }
        for (key, position) in removal.keys {
            self.table.remove_row(position, key.stay);
            if let Some(state) = self.table.get_mut(key) {
                state.moves = true;
            }
            self.place(key);
        }
    }

    /// The settler holds so much of an earlier incarnation.
    pub(super) fn owed(&mut self, messages: usize, bytes: usize) {
        let (before, bytes_before) = std::mem::replace(&mut self.removals.owed, (messages, bytes));
        self.table.credit.give(before, bytes_before);
        self.table.credit.take(messages, bytes);
    }
}
