//! Failing keys: each with its row and what is parked behind it, and an index by due time.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use outbox_contract::backend::rules::failing_key::KeyState;
use outbox_contract::backend::{Position, RowId, Stored};
use outbox_contract::{KeyId, MessageId, Timestamp};

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
    pub(super) state: KeyState,
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
        if let Some(at) = row.state.next_attempt_at {
            self.due.remove(&(at, key.clone()));
        }
        Some(row)
    }

    pub(super) fn put(&mut self, key: &KeyId, row: KeyRow) {
        if let Some(at) = row.state.next_attempt_at {
            self.due.insert((at, key.clone()));
        }
        self.rows.insert(key.clone(), row);
    }
}

impl KeyRow {
    pub(super) fn first_parked(&self) -> Option<MessageId> {
        self.parked.values().next().map(|parked| parked.stored.message.id)
    }
}

/// Removes a parked message, if exactly it is there.
pub(super) fn unpark(parked: &mut BTreeMap<Position, Parked>, row: RowId) -> Option<Arc<Stored>> {
    parked.get(&row.position).filter(|parked| parked.stored.message.id == row.id)?;
    parked.remove(&row.position).map(|parked| parked.stored)
}
