//! Failing keys in the store of the model.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use outbox_contract::Failure;
use outbox_contract::backend::{
    Due, DueKey, DueRequest, KeyTransition, Position, RowId, Step, Stored, Then, Transitioned,
};

use super::cast::{bucket, number_of, the_key};
use super::store::Store;

/// The row of a failing key.
#[derive(Debug, Default)]
pub(super) struct KeyRow {
    pub(super) version: i64,
    pub(super) parked: BTreeMap<Position, Arc<Stored>>,
    failing: Option<RowId>,
    attempts: u32,
    first: Option<Failure>,
    pub(super) due_at: Duration,
    pub(super) held: bool,
}

impl KeyRow {
    fn first_parked(&self) -> Option<RowId> {
        self.parked.values().next().map(|stored| stored.row())
    }

    /// What failed is no longer first: its attempts are nobody's.
    fn begin_anew(&mut self, now: Duration) {
        if self.failing != self.first_parked() {
            (self.failing, self.attempts, self.first, self.held) = (None, 0, None, false);
        }
        self.due_at = now;
    }
}

impl Store {
    pub(super) fn due(&self, request: &DueRequest, now: Duration) -> Due {
        let mut rows: Vec<(&usize, &KeyRow)> = self
            .keys
            .iter()
            .filter(|(of, row)| {
                let key = the_key(**of);
                request.buckets.contains(bucket(**of))
                    && self.owns(request.relay, **of, now)
                    && !row.held
                    && !request.except.contains(key)
                    && !request.muted.iter().any(|muted| muted.covers(key))
            })
            .collect();
        rows.sort_by_key(|(of, row)| (row.due_at, **of));
        let (due, later): (Vec<_>, Vec<_>) = rows.into_iter().partition(|(_, row)| row.due_at <= now);
        let next = due.get(request.keys).or(later.first()).map(|(_, row)| row.due_at.saturating_sub(now));
        let due_key = |(of, row): (&usize, &KeyRow)| DueKey {
            key: the_key(*of).clone(),
            bucket: bucket(*of),
            version: row.version,
            failing: row.failing.filter(|failing| row.first_parked() == Some(*failing)).map(|row| row.id),
            attempts: row.attempts,
            first_failure: row.first.clone(),
            parked: row.parked.values().take(request.messages).cloned().collect(),
        };
        Due { keys: due.into_iter().take(request.keys).map(due_key).collect(), next }
    }

    pub(super) fn transition(&mut self, transition: &KeyTransition, now: Duration) -> Transitioned {
        let of = number_of(&transition.key);
        let lease = &self.leases[of];
        let is_owner = self.owns(transition.relay, of, now) && lease.epoch == transition.epoch;
        if !is_owner {
            return Transitioned::LeaseLost;
        }
        let version = self.keys.get(&of).map(|row| row.version);
        if transition.version.is_some() && transition.version != version {
            return Transitioned::Stale;
        }
        self.step(of, &transition.step, now).map_or(Transitioned::Stale, Transitioned::Done)
    }

    fn step(&mut self, of: usize, step: &Step, now: Duration) -> Option<Option<i64>> {
        self.version += 1;
        let version = self.version;
        match step {
            Step::Fail { row, attempts, first, then, behind, .. } => {
                let parked = self.keys.get(&of).is_some_and(|key| key.parked.contains_key(&row.position));
                if !parked && !self.is_hot(row) {
                    return None;
                }
                self.park(of, std::iter::once(row).chain(behind));
                let key = self.keys.get_mut(&of)?;
                key.version = version;
                if key.first_parked() == Some(*row) {
                    (key.failing, key.attempts, key.first) = (Some(*row), *attempts, Some(first.clone()));
                    match then {
                        Then::RetryAfter(delay) => key.due_at = now + *delay,
                        Then::Hold => key.held = true,
                    }
                }
                Some(Some(version))
            }
            Step::Park { rows } => {
                let version = self.keys.get(&of)?.version;
                self.park(of, rows);
                Some(Some(version))
            }
            Step::Bury { row, .. } => {
                let parked = self.keys.get_mut(&of).and_then(|key| key.parked.remove(&row.position));
                let is_hot = self.is_hot(row);
                parked.or_else(|| {
                    is_hot.then(|| self.hot.remove(&row.position).map(|(_, stored)| stored))?
                })?;
                self.out.insert(row.id);
                Some(self.keys.get_mut(&of).map(|key| {
                    key.begin_anew(now);
                    key.version = version;
                    version
                }))
            }
            Step::Resume { delivered } => {
                let Some(key) = self.keys.get_mut(&of) else { return Some(None) };
                for row in delivered {
                    key.parked.remove(&row.position);
                }
                if key.parked.is_empty() && !key.held {
                    self.keys.remove(&of);
                    return Some(None);
                }
                key.begin_anew(now);
                key.version = version;
                Some(Some(version))
            }
        }
    }

    fn is_hot(&self, row: &RowId) -> bool {
        self.hot.get(&row.position).is_some_and(|(_, stored)| stored.message.id == row.id)
    }

    fn park<'r>(&mut self, of: usize, rows: impl IntoIterator<Item = &'r RowId>) {
        for row in rows {
            if self.is_hot(row)
                && let Some((_, stored)) = self.hot.remove(&row.position)
            {
                self.keys.entry(of).or_default().parked.insert(row.position, stored);
            }
        }
    }

    /// An operator changes the key's row: releases it, or skips its first message.
    pub(super) fn operate(&mut self, of: usize, skip: bool, now: Duration) {
        self.version += 1;
        if let Some(key) = self.keys.get_mut(&of) {
            (key.version, key.held, key.due_at) = (self.version, false, now);
            if skip && let Some((_, stored)) = key.parked.pop_first() {
                self.out.insert(stored.message.id);
                key.begin_anew(now);
            }
        }
    }

    /// An operator holds a key, failing or not.
    pub(super) fn hold(&mut self, of: usize) {
        self.version += 1;
        let key = self.keys.entry(of).or_default();
        (key.version, key.held) = (self.version, true);
    }
}
