//! The store of the model: the hot table, failing keys with what is parked, and the steps, as the contract says.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use outbox_contract::divert::{Diversion, Diverted, Step, Then};
use outbox_contract::fetch::{DueKey, FetchedRow, RowId, Waiting};
use outbox_contract::{Epoch, Failure, Position, Stored};

use crate::relay::model_cast::{KEYS, bucket, number_of, stored, the_key};

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

#[derive(Debug, Default)]
pub(super) struct Table {
    pub(super) hot: BTreeMap<Position, (usize, Arc<Stored>)>,
    pub(super) malformed: BTreeSet<Position>,
    pub(super) keys: BTreeMap<usize, KeyRow>,
    pub(super) dead: BTreeSet<Position>,
    /// All that was ever committed of each key, in order.
    pub(super) committed: [Vec<Position>; KEYS],
    pub(super) epochs: [Epoch; KEYS],
    pub(super) leased: BTreeSet<usize>,
    /// What is no message and was parked all the same: it could never go out.
    pub(super) parked_nonsense: Option<Position>,
    last: i64,
    version: i64,
}

impl Table {
    pub(super) fn append(&mut self, of: usize, malformed: bool) {
        self.last += 1;
        let position = Position(self.last);
        self.hot.insert(position, (of, stored(position, of)));
        self.committed[of].push(position);
        if malformed {
            self.malformed.insert(position);
        }
    }

    /// Whether nothing waits for it: it is a dead letter, or will be, for it is no message.
    pub(super) fn is_out(&self, position: &Position) -> bool {
        self.dead.contains(position) || self.malformed.contains(position)
    }

    /// Everything of these keys but what is in flight, a few rows of it.
    pub(super) fn fetch(
        &self,
        asked: &BTreeSet<usize>,
        except: &BTreeSet<Position>,
        limit: usize,
    ) -> Vec<FetchedRow> {
        let rows = self.hot.iter().filter(|(position, (of, _))| {
            asked.contains(of) && self.leased.contains(of) && !except.contains(position)
        });
        let row = |(position, (of, stored)): (&Position, &(usize, Arc<Stored>))| {
            let waiting =
                Waiting { at: stored.row(), key: the_key(*of).clone(), bucket: bucket(*of), stripe: None };
            if self.malformed.contains(position) {
                FetchedRow::Malformed(waiting, "nonsense".to_owned())
            } else if self.keys.contains_key(of) {
                FetchedRow::Failing(waiting)
            } else {
                FetchedRow::Message(Arc::clone(stored))
            }
        };
        rows.take(limit).map(row).collect()
    }

    pub(super) fn due(&self, asked: &BTreeSet<usize>, messages: usize, now: Duration) -> Vec<DueKey> {
        let rows = self.keys.iter().filter(|(of, row)| {
            asked.contains(of) && self.leased.contains(of) && !row.held && row.due_at <= now
        });
        let due = |(of, row): (&usize, &KeyRow)| DueKey {
            key: the_key(*of).clone(),
            bucket: bucket(*of),
            version: row.version,
            failing: row.failing.filter(|failing| row.first_parked() == Some(*failing)).map(|row| row.id),
            attempts: row.attempts,
            first_failure: row.first.clone(),
            parked: row.parked.values().take(messages).cloned().collect(),
        };
        rows.map(due).collect()
    }

    pub(super) fn settle(&mut self, row: RowId) {
        self.hot.remove(&row.position);
    }

    pub(super) fn divert(&mut self, diversion: &Diversion, now: Duration) -> Diverted {
        let of = number_of(&diversion.key);
        if !self.leased.contains(&of) || self.epochs[of] != diversion.epoch {
            return Diverted::LeaseLost;
        }
        let version = self.keys.get(&of).map(|row| row.version);
        if diversion.version.is_some() && diversion.version != version {
            return Diverted::Stale;
        }
        self.step(of, &diversion.step, now).map_or(Diverted::Stale, Diverted::Done)
    }

    fn step(&mut self, of: usize, step: &Step, now: Duration) -> Option<Option<i64>> {
        self.version += 1;
        let version = self.version;
        match step {
            Step::Fail { row, attempts, first, then, behind, .. } => {
                let parked = self.keys.get(&of).is_some_and(|key| key.parked.contains_key(&row.position));
                if !parked && !self.hot.contains_key(&row.position) {
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
                parked.or_else(|| self.hot.remove(&row.position).map(|(_, stored)| stored))?;
                self.dead.insert(row.position);
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

    fn park<'r>(&mut self, of: usize, rows: impl IntoIterator<Item = &'r RowId>) {
        for row in rows {
            if let Some((_, stored)) = self.hot.remove(&row.position) {
                if self.malformed.contains(&row.position) {
                    self.parked_nonsense = Some(row.position);
                }
                self.keys.entry(of).or_default().parked.insert(row.position, stored);
            }
        }
    }

    /// An operator changes the key's row: releases it, or skips its first message.
    pub(super) fn operate(&mut self, of: usize, skip: bool, now: Duration) {
        self.version += 1;
        if let Some(key) = self.keys.get_mut(&of) {
            (key.version, key.held, key.due_at) = (self.version, false, now);
            if skip && let Some((position, _)) = key.parked.pop_first() {
                self.dead.insert(position);
                key.begin_anew(now);
            }
        }
    }

    /// An operator discards what is parked of a key, and it flows again.
    pub(super) fn discard(&mut self, of: usize) {
        if let Some(key) = self.keys.remove(&of) {
            self.dead.extend(key.parked.into_keys());
        }
    }

    /// An operator holds a key, failing or not.
    pub(super) fn hold(&mut self, of: usize) {
        self.version += 1;
        let key = self.keys.entry(of).or_default();
        (key.version, key.held) = (self.version, true);
    }

    /// What another relay would send next of a key.
    pub(super) fn take_first(&mut self, of: usize, now: Duration) -> Option<Position> {
        if let Some(key) = self.keys.get_mut(&of) {
            let first = key.parked.pop_first().map(|(position, _)| position);
            self.version += 1;
            key.version = self.version;
            key.begin_anew(now);
            if key.parked.is_empty() {
                self.keys.remove(&of);
            }
            return first;
        }
        let first = self.hot.iter().find(|(_, (other, _))| *other == of).map(|(position, _)| *position)?;
        self.hot.remove(&first);
        Some(first)
    }
}
