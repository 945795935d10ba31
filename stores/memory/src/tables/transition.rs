//! KeyTransitions: the steps of failing keys, each checked against the lease and the version, then done whole.

use std::sync::Arc;

use outbox_contract::backend::{KeyTransition, RowId, Step, Stored, Then, Transitioned};
use outbox_contract::{KeyId, Timestamp};

use super::Tables;
use super::archive::Death;
use super::keys::KeyRow;
use super::route::RouteTables;

/// What a step did: the state of the key's row, and what has left the route for good.
struct Done {
    version: Option<i64>,
    dead: Option<(Arc<Stored>, Death)>,
    delivered: Vec<Arc<Stored>>,
}

impl Done {
    fn leaving(version: Option<i64>) -> Self {
        Self { version, dead: None, delivered: Vec::new() }
    }
}

impl Tables {
    pub(crate) fn transition(&mut self, transition: &KeyTransition, now: Timestamp) -> Transitioned {
        let KeyTransition { route, relay, bucket, epoch, key, version, step } = transition;
        let Some(tables) = self.routes.get_mut(route) else { return Transitioned::LeaseLost };
        if !tables.holds(*relay, *bucket, *epoch, now) {
            return Transitioned::LeaseLost;
        }
        let row = tables.keys.get(key).map(|row| row.version);
        if version.is_some() && *version != row {
            return Transitioned::Stale;
        }
        let next = self.version + 1;
        let Some(done) = tables.step(key, step, next, now) else { return Transitioned::Stale };
        self.version = next;
        if let Some((stored, death)) = done.dead {
            self.archive.bury(route, stored, death, now);
        }
        for stored in done.delivered {
            self.archive.add_delivered(route, stored, now);
        }
        Transitioned::Done(done.version)
    }
}

impl RouteTables {
    /// Does a step; none: it starts from something that is no more.
    fn step(&mut self, key: &KeyId, step: &Step, next: i64, now: Timestamp) -> Option<Done> {
        match step {
            Step::Fail { row, attempts, first, last, then, behind } => {
                if !self.is_parked(key, *row) {
                    let stored = self.take_hot(key, *row)?;
                    self.change(key, now, |opened| opened.park(stored, now));
                }
                self.park(key, behind, now);
                self.change(key, now, |failing| {
                    failing.version = next;
                    // What is first decides the key's state; a later one that failed too just waits behind it.
                    if failing.first_parked() == Some(*row) {
                        failing.failing = Some(*row);
                        failing.attempts = *attempts;
                        failing.first = Some(first.clone());
                        failing.last = Some(last.clone());
                        match then {
                            Then::RetryAfter(delay) => failing.next_attempt_at = now.plus(*delay),
                            Then::Hold => failing.held = true,
                        }
                    }
                });
                Some(Done::leaving(Some(next)))
            }
            Step::Park { rows } => {
                let version = self.keys.get(key)?.version;
                self.park(key, rows, now);
                // The same state: a retry that is under way need not start again because more has come behind it.
                Some(Done::leaving(Some(version)))
            }
            Step::Bury { row, reason, attempts, first, last } => {
                let stored = self.take_parked(key, *row).or_else(|| self.take_hot(key, *row))?;
                let death = Death {
                    reason,
                    attempts: *attempts,
                    first: Some(first.clone()),
                    last: Some(last.clone()),
                };
                let version = self.keys.contains(key).then(|| {
                    self.change(key, now, |left| {
                        left.version = next;
                        if left.forget_departed() {
                            left.next_attempt_at = now;
                        }
                    });
                    next
                });
                Some(Done { version, dead: Some((stored, death)), delivered: Vec::new() })
            }
            Step::Resume { delivered } => {
                let Some(mut row) = self.keys.take(key) else { return Some(Done::leaving(None)) };
                let delivered = delivered.iter().filter_map(|delivered| row.unpark(*delivered)).collect();
                let version = if row.parked.is_empty() && !row.held {
                    None
                } else {
                    row.version = next;
                    row.forget_departed();
                    row.next_attempt_at = now;
                    self.keys.put(key, row);
                    Some(next)
                };
                Some(Done { version, dead: None, delivered })
            }
        }
    }

    fn is_parked(&self, key: &KeyId, row: RowId) -> bool {
        let at = self.keys.get(key).and_then(|failing| failing.parked.get(&row.position));
        at.is_some_and(|parked| parked.stored.message.id == row.id)
    }

    fn take_parked(&mut self, key: &KeyId, row: RowId) -> Option<Arc<Stored>> {
        if !self.is_parked(key, row) {
            return None;
        }
        let mut failing = self.keys.take(key)?;
        let stored = failing.unpark(row);
        self.keys.put(key, failing);
        stored
    }

    /// Removes a hot row, if it is there and of this key.
    fn take_hot(&mut self, key: &KeyId, row: RowId) -> Option<Arc<Stored>> {
        self.hot.get(&row.position).filter(|stored| stored.message.key_id() == *key)?;
        self.remove_hot(row)
    }

    /// Moves hot rows behind those parked. Those that are not there are passed over.
    fn park(&mut self, key: &KeyId, rows: &[RowId], now: Timestamp) {
        for row in rows {
            if let Some(stored) = self.take_hot(key, *row) {
                self.change(key, now, |failing| failing.park(stored, now));
            }
        }
    }

    /// Changes the row of a key, which is opened if it is not there.
    pub(super) fn change(&mut self, key: &KeyId, now: Timestamp, change: impl FnOnce(&mut KeyRow)) {
        let mut row = self.keys.take(key).unwrap_or_else(|| KeyRow::opened(now));
        change(&mut row);
        self.keys.put(key, row);
    }
}
