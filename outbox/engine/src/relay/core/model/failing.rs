//! Failing keys in the store of the model, and what operators do with them.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use outbox_contract::backend::{
    Due, DueKey, DueRequest, KeyTransition, Position, RowId, Step, Stored, Then, Transitioned,
};
use outbox_contract::{Failure, MessageId};

use super::Sabotage;
use super::cast::{bucket, number_of, slot_of, the_key};
use super::store::Store;

/// The row of a failing key.
#[derive(Clone, Debug, Default)]
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

    /// Begins anew if the failed message is no longer first: its attempts count for no message.
    fn begin_anew(&mut self, now: Duration) {
        if self.failing != self.first_parked() {
            (self.failing, self.attempts, self.first, self.held) = (None, 0, None, false);
        }
        self.due_at = now;
    }
}

impl Store {
    pub(super) fn due(&self, request: &DueRequest, now: Duration) -> Due {
        let shows_held = self.sabotage == Some(Sabotage::HeldIsDue);
        let mut rows: Vec<(&usize, &KeyRow)> = self
            .tables
            .keys
            .iter()
            .filter(|(of, row)| {
                let key = the_key(**of);
                request.buckets.contains(bucket(**of))
                    && self.owns(request.relay, slot_of(**of), now)
                    && (!row.held || shows_held)
                    && !request.except.contains(key)
                    && !request.muted.iter().any(|muted| muted.covers(key))
            })
            .collect();
        rows.sort_by_key(|(of, row)| (row.due_at, **of));
        let (due, later): (Vec<_>, Vec<_>) = rows.into_iter().partition(|(_, row)| row.due_at <= now);
        let next = due.get(request.keys).or(later.first()).map(|(_, row)| row.due_at.saturating_sub(now));
        let due_key = |(of, row): (&usize, &KeyRow)| {
            let parked = row.parked.values().take(request.messages).cloned().collect();
            DueKey::new(the_key(*of).clone(), bucket(*of), row.version, parked).with_failing(
                row.failing.map(|row| row.id),
                row.attempts,
                row.first.clone(),
            )
        };
        Due::new(due.into_iter().take(request.keys).map(due_key).collect(), next)
    }

    /// Returns true if the first message of a key has failed.
    pub(super) fn has_failed(&self, of: usize) -> bool {
        self.tables.keys.get(&of).is_some_and(|row| row.failing.is_some())
    }

    /// Returns true if an operator holds a key.
    pub(super) fn is_held(&self, of: usize) -> bool {
        self.tables.keys.get(&of).is_some_and(|row| row.held)
    }

    pub(super) fn transition(&mut self, transition: &KeyTransition, now: Duration) -> Transitioned {
        let of = number_of(&transition.key);
        let is_owner = self.owns(transition.relay, slot_of(of), now)
            && self.leases[slot_of(of)].epoch == transition.epoch;
        if !is_owner {
            return Transitioned::LeaseLost;
        }
        let version = self.tables.keys.get(&of).map(|row| row.version);
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
                let parked =
                    self.tables.keys.get(&of).is_some_and(|key| key.parked.contains_key(&row.position));
                if !parked && !self.is_hot(row) {
                    return None;
                }
                self.park(of, std::iter::once(row).chain(behind));
                let key = self.tables.keys.get_mut(&of)?;
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
                let version = self.tables.keys.get(&of)?.version;
                self.park(of, rows);
                Some(Some(version))
            }
            Step::Bury { row, discard, .. } => self.bury(of, row, *discard, (version, now)),
            Step::Resume { delivered } => {
                let Some(key) = self.tables.keys.get_mut(&of) else { return Some(None) };
                for row in delivered {
                    key.parked.remove(&row.position);
                }
                if key.parked.is_empty() && !key.held {
                    self.tables.keys.remove(&of);
                    return Some(None);
                }
                key.begin_anew(now);
                key.version = version;
                Some(Some(version))
            }
        }
    }

    fn bury(
        &mut self,
        of: usize,
        row: &RowId,
        discard: bool,
        (version, now): (i64, Duration),
    ) -> Option<Option<i64>> {
        let parked = self.tables.keys.get_mut(&of).and_then(|key| key.parked.remove(&row.position));
        let stored = match parked {
            Some(stored) => stored,
            None if self.is_hot(row) => self.take_hot(row.position)?.1,
            None => return None,
        };
        if discard {
            self.ledger.fate_mut(stored.message.id).out = true;
        } else {
            self.die(of, stored);
        }
        Some(self.tables.keys.get_mut(&of).map(|key| {
            key.begin_anew(now);
            key.version = version;
            version
        }))
    }

    fn die(&mut self, of: usize, stored: Arc<Stored>) {
        self.ledger.fate_mut(stored.message.id).out = true;
        self.tables.dead.push((of, stored));
    }

    fn is_hot(&self, row: &RowId) -> bool {
        self.tables.hot.get(&row.position).is_some_and(|(_, stored)| stored.message.id == row.id)
    }

    fn park<'r>(&mut self, of: usize, rows: impl IntoIterator<Item = &'r RowId>) {
        for row in rows {
            if self.is_hot(row)
                && let Some((_, stored)) = self.take_hot(row.position)
            {
                self.tables.keys.entry(of).or_default().parked.insert(row.position, stored);
            }
        }
    }

    /// An operator lets a key go on, with its attempts at zero.
    pub(super) fn release(&mut self, of: usize, now: Duration) {
        self.version += 1;
        if let Some(key) = self.tables.keys.get_mut(&of) {
            (key.version, key.held, key.due_at, key.attempts) = (self.version, false, now, 0);
        }
    }

    /// An operator makes the first parked message a dead letter. The next one is tried at once.
    pub(super) fn skip(&mut self, of: usize, now: Duration) {
        self.release(of, now);
        let Some(key) = self.tables.keys.get_mut(&of) else { return };
        if let Some((_, stored)) = key.parked.pop_first() {
            key.begin_anew(now);
            self.die(of, stored);
        }
    }

    /// An operator makes all parked messages dead letters. The key flows again.
    pub(super) fn discard(&mut self, of: usize) {
        let Some(key) = self.tables.keys.remove(&of) else { return };
        key.parked.into_values().for_each(|stored| self.die(of, stored));
    }

    /// An operator holds a key, failing or not.
    pub(super) fn hold(&mut self, of: usize) {
        self.version += 1;
        let key = self.tables.keys.entry(of).or_default();
        (key.version, key.held) = (self.version, true);
    }

    /// Dead letters of a key that are messages. They are taken out.
    pub(super) fn take_dead(&mut self, of: usize) -> Vec<MessageId> {
        let dead = std::mem::take(&mut self.tables.dead);
        let is_asked = |(other, stored): &(usize, Arc<Stored>)| {
            *other == of && !self.ledger.fate(stored.message.id).malformed
        };
        let (taken, kept): (Vec<_>, Vec<_>) = dead.into_iter().partition(is_asked);
        self.tables.dead = kept;
        taken.into_iter().map(|(_, stored)| stored.message.id).collect()
    }

    /// An operator removes all dead letters.
    pub(super) fn purge(&mut self) {
        self.tables.dead.clear();
    }
}
