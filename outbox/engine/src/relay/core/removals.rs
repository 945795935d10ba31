//! Removals: delivered rows that are not yet removed from the store.

use std::collections::BTreeMap;

use outbox_contract::backend::{BucketSet, Position, RowId};

use super::Core;
use super::event::Command;
use super::key::Held;
use super::sabotaged;
use super::table::KeyRef;

/// Running removals, by number. Their messages keep their credit, so that the number of possible
/// repeats after a crash is bounded, too.
#[derive(Debug, Default)]
pub(super) struct Removals {
    under_way: BTreeMap<u64, Removal>,
    /// Messages delivered during the current event.
    next: Removal,
    /// Messages and bytes of earlier incarnations that the settler has yet to remove.
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
    /// Returns the number of delivered messages that are not yet removed.
    pub(super) fn messages(&self) -> usize {
        self.owed.0
            + self.next.messages
            + self.under_way.values().map(|removal| removal.messages).sum::<usize>()
    }

    /// Returns true if no row of these buckets is still to be removed.
    pub(super) fn is_settled(&self, buckets: &BucketSet) -> bool {
        let is_apart = |removal: &Removal| removal.buckets.intersection(buckets).is_empty();
        is_apart(&self.next) && self.under_way.values().all(is_apart)
    }

    /// A row that the model has removed besides.
    #[cfg(any(test, feature = "_simulation"))]
    pub(super) fn remove_too(&mut self, row: RowId) {
        self.next.rows.push(row);
    }

    #[cfg(any(test, feature = "_simulation"))]
    pub(super) fn bytes(&self) -> usize {
        self.owed.1 + self.next.bytes + self.under_way.values().map(|removal| removal.bytes).sum::<usize>()
    }
}

impl Core {
    /// Adds a delivered message of the hot table.
    pub(super) fn remove(&mut self, key: KeyRef, held: &Held) {
        let next = &mut self.removals.next;
        next.rows.push(held.stored.row());
        next.keys.push((key, held.stored.position));
        next.buckets.insert(held.stored.bucket);
        next.messages += 1;
        next.bytes += held.bytes;
        if sabotaged!(self, MarkBeforeGone) {
            self.table.remove_row(held.stored.position, key.stay);
        }
    }

    /// Sends one command to remove everything delivered during this event, of however many keys.
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

    /// Handles a finished removal. No fetch returns these rows again: a later one can't see them,
    /// and a running one excludes them.
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

    /// Records the messages of earlier incarnations that the settler has yet to remove.
    pub(super) fn owed(&mut self, messages: usize, bytes: usize) {
        let (before, bytes_before) = std::mem::replace(&mut self.removals.owed, (messages, bytes));
        self.table.credit.give(before, bytes_before);
        if !sabotaged!(self, OwedForgotten) {
            self.table.credit.take(messages, bytes);
        }
    }
}
