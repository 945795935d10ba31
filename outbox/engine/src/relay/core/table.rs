//! Table of keys: everything in memory of a route, with an index by position.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};

use hashbrown::HashTable;
use outbox_contract::KeyId;
use outbox_contract::backend::{Bucket, BucketSet, Epoch, Position, Scope};

use super::credit::Credit;
use super::key::{Held, KeyState};

/// Reference to one stay of a key in the table. A *stay* lasts from the creation of the key's state
/// to its removal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct KeyRef {
    pub(super) slot: usize,
    pub(super) stay: u64,
}

/// Row of the hot table that was read and is not yet removed from the store.
#[derive(Clone, Copy, Debug)]
pub(super) struct Row {
    /// Slot of the key; `None` for a malformed row, which has this stay of its own.
    slot: Option<usize>,
    stay: u64,
    pub(super) bucket: Bucket,
    /// True if it is to be parked or buried. Then its content is not in memory, and it takes no
    /// credit.
    waits: bool,
}

/// Key and bucket of its rows. The bucket is mostly the key's own, but a program may use its own
/// hash function.
#[derive(Debug)]
pub(super) struct Name {
    pub(super) key: KeyId,
    pub(super) bucket: Bucket,
    /// Computed once for a row: it takes longer than all look-ups.
    pub(super) hash: u64,
}

impl Name {
    pub(super) fn new(key: KeyId, bucket: Bucket) -> Self {
        let mut hasher = DefaultHasher::new();
        (&key, bucket).hash(&mut hasher);
        Self { key, bucket, hash: hasher.finish() }
    }
}

/// All keys, and all rows in flight.
#[derive(Debug)]
pub(super) struct Table {
    slots: Vec<Option<KeyState>>,
    free: Vec<usize>,
    /// Slots, by the hashes of their keys' names.
    names: HashTable<usize>,
    rows: BTreeMap<Position, Row>,
    waiting: usize,
    stays: u64,
    pub(super) credit: Credit,
}

impl Table {
    pub(super) fn new(credit: Credit) -> Self {
        Self {
            slots: Vec::new(),
            free: Vec::new(),
            names: HashTable::new(),
            rows: BTreeMap::new(),
            waiting: 0,
            stays: 0,
            credit,
        }
    }

    pub(super) fn get(&self, key: KeyRef) -> Option<&KeyState> {
        self.slots.get(key.slot)?.as_ref().filter(|state| state.stay == key.stay)
    }

    pub(super) fn get_mut(&mut self, key: KeyRef) -> Option<&mut KeyState> {
        self.slots.get_mut(key.slot)?.as_mut().filter(|state| state.stay == key.stay)
    }

    pub(super) fn find(&self, name: &Name) -> Option<KeyRef> {
        let is_it = |slot: &usize| {
            self.slots[*slot].as_ref().is_some_and(|state| {
                state.hash == name.hash && state.bucket == name.bucket && state.name == name.key
            })
        };
        let slot = *self.names.find(name.hash, is_it)?;
        self.slots[slot].as_ref().map(|state| KeyRef { slot, stay: state.stay })
    }

    /// Returns the key of this name, created if missing.
    pub(super) fn entry(&mut self, name: Name, epoch: Epoch) -> KeyRef {
        let found = self.find(&name);
        found.unwrap_or_else(|| self.add(name, epoch))
    }

    /// Creates a key that is not in the table.
    pub(super) fn add(&mut self, name: Name, epoch: Epoch) -> KeyRef {
        let stay = self.next_stay();
        let hash = name.hash;
        let state = Some(KeyState::new(name, epoch, stay));
        let slot = if let Some(slot) = self.free.pop() {
            self.slots[slot] = state;
            slot
        } else {
            self.slots.push(state);
            self.slots.len() - 1
        };
        let slots = &self.slots;
        self.names.insert_unique(hash, slot, |slot| slots[*slot].as_ref().map_or(0, |state| state.hash));
        KeyRef { slot, stay }
    }

    pub(super) fn next_stay(&mut self) -> u64 {
        self.stays += 1;
        self.stays
    }

    /// Removes a key. The caller removes its rows from the index.
    pub(super) fn remove(&mut self, key: KeyRef) -> Option<KeyState> {
        self.get(key)?;
        let state = self.slots[key.slot].take()?;
        if let Ok(entry) = self.names.find_entry(state.hash, |slot| *slot == key.slot) {
            entry.remove();
        }
        self.free.push(key.slot);
        Some(state)
    }

    /// Iterates over all keys, in the order of their slots.
    pub(super) fn iter(&self) -> impl Iterator<Item = (KeyRef, &KeyState)> {
        self.slots.iter().enumerate().filter_map(|(slot, state)| {
            let state = state.as_ref()?;
            Some((KeyRef { slot, stay: state.stay }, state))
        })
    }

    /// Returns the keys for which `which` holds.
    pub(super) fn select(&self, which: impl Fn(&KeyState) -> bool) -> Vec<KeyRef> {
        self.iter().filter(|(_, state)| which(state)).map(|(key, _)| key).collect()
    }

    /// Returns the keys with windows of their own, first those whose rows come with content.
    pub(super) fn muted(&self) -> impl Iterator<Item = Scope> {
        let of = |failing| {
            self.iter().filter(move |(_, state)| state.window.is_some() && state.is_failing == failing)
        };
        let apart = of(false).chain(of(true));
        apart.map(|(_, state)| Scope::Key(state.name.clone()))
    }

    pub(super) fn has_row(&self, position: Position) -> bool {
        self.rows.contains_key(&position)
    }

    pub(super) fn lowest_row(&self) -> Option<Position> {
        self.rows.keys().next().copied()
    }

    /// Returns the positions in flight behind this one, in ascending order.
    pub(super) fn rows_behind(&self, position: Position) -> impl Iterator<Item = Position> {
        use std::ops::Bound::{Excluded, Unbounded};
        self.rows.range((Excluded(position), Unbounded)).map(|(at, _)| *at)
    }

    /// Returns the positions in flight of one key behind this position.
    pub(super) fn rows_of(&self, key: KeyRef, after: Position) -> Vec<Position> {
        use std::ops::Bound::{Excluded, Unbounded};
        let behind = self.rows.range((Excluded(after), Unbounded));
        behind
            .filter(|(_, row)| row.slot == Some(key.slot) && row.stay == key.stay)
            .map(|(at, _)| *at)
            .collect()
    }

    /// Returns the number of rows that wait to be parked or buried.
    pub(super) fn waiting(&self) -> usize {
        self.waiting
    }

    /// Adds a new row.
    pub(super) fn insert_row(&mut self, position: Position, key: KeyRef, bucket: Bucket, waits: bool) {
        self.rows.insert(position, Row { slot: Some(key.slot), stay: key.stay, bucket, waits });
        self.waiting += usize::from(waits);
        if let Some(state) = self.get_mut(key) {
            state.rows += 1;
        }
    }

    /// Adds a malformed row.
    pub(super) fn insert_malformed(&mut self, position: Position, bucket: Bucket) -> u64 {
        let stay = self.next_stay();
        self.rows.insert(position, Row { slot: None, stay, bucket, waits: true });
        self.waiting += 1;
        stay
    }

    /// Marks the row of a message as to be parked or buried.
    pub(super) fn row_waits(&mut self, position: Position) {
        if let Some(row) = self.rows.get_mut(&position)
            && !std::mem::replace(&mut row.waits, true)
        {
            self.waiting += 1;
        }
    }

    /// Removes a row if it was read in this stay: a restore of the database may reuse positions.
    pub(super) fn remove_row(&mut self, position: Position, stay: u64) -> bool {
        let Some(row) = self.rows.get(&position).copied().filter(|row| row.stay == stay) else {
            return false;
        };
        self.rows.remove(&position);
        self.waiting -= usize::from(row.waits);
        let key = row.slot.map(|slot| KeyRef { slot, stay });
        if let Some(state) = key.and_then(|key| self.get_mut(key)) {
            state.rows -= 1;
        }
        true
    }

    /// Removes all rows of these buckets.
    pub(super) fn remove_rows_of(&mut self, buckets: &BucketSet) {
        let of_buckets = self.rows.iter().filter(|(_, row)| buckets.contains(row.bucket));
        for (position, stay) in of_buckets.map(|(at, row)| (*at, row.stay)).collect::<Vec<_>>() {
            self.remove_row(position, stay);
        }
    }

    /// Drops the content of messages, and returns their credit.
    pub(super) fn drop_content<'h>(&mut self, messages: impl IntoIterator<Item = &'h Held>) {
        for held in messages {
            self.credit.give(1, held.bytes);
        }
    }

    #[cfg(any(test, feature = "_simulation"))]
    pub(super) fn counted_rows(&self) -> usize {
        self.rows.len()
    }

    /// Number of rows that wait, counted anew.
    #[cfg(any(test, feature = "_simulation"))]
    pub(super) fn counted_waiting(&self) -> usize {
        self.rows.values().filter(|row| row.waits).count()
    }

    #[cfg(any(test, feature = "_simulation"))]
    pub(super) fn waits_more(&mut self, rows: usize) {
        self.waiting += rows;
    }

    /// The stay of whatever key has this place now.
    #[cfg(any(test, feature = "_simulation"))]
    pub(super) fn any_stay(&self, key: KeyRef) -> KeyRef {
        let state = self.slots.get(key.slot).and_then(Option::as_ref);
        state.map_or(key, |state| KeyRef { slot: key.slot, stay: state.stay })
    }
}
