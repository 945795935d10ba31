//! Failing keys: each with its row and what is parked behind it, and an index by due time.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use outbox_contract::backend::{Position, RowId, Stored};
use outbox_contract::{Failure, KeyId, Timestamp};

/// The failing keys of a route.
#[derive(Debug, Default)]
pub(super) struct FailingKeys {
    rows: BTreeMap<KeyId, KeyRow>,
    /// The rows that are tried again by themselves, by when.
    due: BTreeSet<(Timestamp, KeyId)>,
}

/// A failing or held key.
#[derive(Clone, Debug)]
pub(super) struct KeyRow {
    pub(super) version: i64,
    pub(super) held: bool,
    pub(super) next_attempt_at: Timestamp,
    /// The message that `attempts` and the failures are about. They are cleared when it is first no more.
    pub(super) failing: Option<RowId>,
    pub(super) attempts: u32,
    pub(super) first: Option<Failure>,
    pub(super) last: Option<Failure>,
    pub(super) since: Timestamp,
    /// In order: within a key, what is appended later stands at a higher position.
    pub(super) parked: BTreeMap<Position, Parked>,
}

/// A message that is set aside behind a failing one of its key.
#[derive(Clone, Debug)]
pub(super) struct Parked {
    pub(super) stored: Arc<Stored>,
    pub(super) at: Timestamp,
}

impl FailingKeys {
    pub(super) fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    pub(super) fn contains(&self, key: &KeyId) -> bool {
        self.rows.contains_key(key)
    }

    pub(super) fn get(&self, key: &KeyId) -> Option<&KeyRow> {
        self.rows.get(key)
    }

    pub(super) fn rows(&self) -> &BTreeMap<KeyId, KeyRow> {
        &self.rows
    }

    /// The keys that are tried again by themselves, the longest due first.
    pub(super) fn by_due_time(&self) -> impl Iterator<Item = (Timestamp, &KeyId, &KeyRow)> {
        self.due.iter().filter_map(|(at, key)| Some((*at, key, self.rows.get(key)?)))
    }

    /// Takes a row out, to be changed and put back.
    pub(super) fn take(&mut self, key: &KeyId) -> Option<KeyRow> {
        let row = self.rows.remove(key)?;
        self.due.remove(&(row.next_attempt_at, key.clone()));
        Some(row)
    }

    pub(super) fn put(&mut self, key: &KeyId, row: KeyRow) {
        if !row.held {
            self.due.insert((row.next_attempt_at, key.clone()));
        }
        self.rows.insert(key.clone(), row);
    }
}

impl KeyRow {
    /// The row of a key that begins to fail, or to be held, now.
    pub(super) fn opened(now: Timestamp) -> Self {
        Self {
            version: 0,
            held: false,
            next_attempt_at: now,
            failing: None,
            attempts: 0,
            first: None,
            last: None,
            since: now,
            parked: BTreeMap::new(),
        }
    }

    pub(super) fn first_parked(&self) -> Option<RowId> {
        self.parked.values().next().map(|parked| parked.stored.row())
    }

    pub(super) fn park(&mut self, stored: Arc<Stored>, now: Timestamp) {
        self.parked.insert(stored.position, Parked { stored, at: now });
    }

    /// Removes a parked message, if exactly it is there.
    pub(super) fn unpark(&mut self, row: RowId) -> Option<Arc<Stored>> {
        self.parked.get(&row.position).filter(|parked| parked.stored.message.id == row.id)?;
        self.parked.remove(&row.position).map(|parked| parked.stored)
    }

    /// Forgets the attempts of a message that is first no more. Says whether another one, or none, is first now.
    pub(super) fn forget_departed(&mut self) -> bool {
        let departed = self.failing.is_some() && self.failing != self.first_parked();
        if departed {
            self.failing = None;
            self.attempts = 0;
            self.first = None;
            self.last = None;
        }
        departed
    }
}
