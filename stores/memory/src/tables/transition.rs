//! Key transitions: the steps of failing keys, each checked against the lease and the version, then
//! done whole.

use std::collections::BTreeMap;
use std::sync::Arc;

use outbox_contract::admin::Actor;
use outbox_contract::backend::rules::failing_key;
use outbox_contract::backend::{AuditNote, KeyTransition, Position, RowId, Step, Stored, Transitioned};
use outbox_contract::{KeyId, Timestamp};

use super::Tables;
use super::archive::Death;
use super::keys::{KeyRow, Parked, unpark};
use super::route::RouteTables;

impl Tables {
    pub(crate) fn transition(
        &mut self,
        transition: &KeyTransition,
        actor: &Actor,
        now: Timestamp,
    ) -> Transitioned {
        let KeyTransition { route, relay, bucket, epoch, key, step, .. } = transition;
        let Some(tables) = self.routes.get_mut(route) else { return Transitioned::LeaseLost };
        if !tables.holds(*relay, *bucket, *epoch, now) {
            return Transitioned::LeaseLost;
        }
        let (state, mut parked) = match tables.keys.take(key) {
            Some(row) => (Some(row.state), row.parked),
            None => (None, BTreeMap::new()),
        };
        let gone = if failing_key::is_stale(state.as_ref(), transition) {
            None
        } else {
            tables.move_messages(key, &mut parked, step, now)
        };
        let next = match gone {
            Some(_) => {
                self.version += 1;
                let first = parked.values().next().map(|parked| parked.stored.message.id);
                failing_key::after(state, step, first, self.version, now)
            }
            None => state,
        };
        let version = next.as_ref().map(|state| state.version);
        if let Some(state) = next {
            tables.keys.put(key, KeyRow { state, parked });
        }
        let Some(gone) = gone else { return Transitioned::Stale };
        if let Some((note, id)) = AuditNote::discarded(actor, transition) {
            self.note(&note, &[id], now);
        }
        for stored in gone {
            match step {
                Step::Bury { discard: true, .. } => {}
                Step::Bury { reason, attempts, first, last, .. } => {
                    let (first, last) = (Some(first.clone()), Some(last.clone()));
                    self.archive.bury(route, stored, Death { reason, attempts: *attempts, first, last }, now);
                }
                _ => self.archive.add_delivered(route, stored, now),
            }
        }
        Transitioned::Done(version)
    }
}

impl RouteTables {
    /// Moves the messages of a step. Returns those that have left the route for good; none if the
    /// step's own message is not there, and nothing has changed.
    fn move_messages(
        &mut self,
        key: &KeyId,
        parked: &mut BTreeMap<Position, Parked>,
        step: &Step,
        now: Timestamp,
    ) -> Option<Vec<Arc<Stored>>> {
        match step {
            Step::Fail { row, behind, .. } => {
                // One that is parked may stand there too, as after a restore of the hot table alone.
                let hot = self.take_hot(key, *row);
                let is_parked = parked.get(&row.position).is_some_and(|at| at.stored.message.id == row.id);
                if !is_parked {
                    parked.insert(row.position, Parked { stored: hot?, at: now });
                }
                self.park(key, parked, behind, now);
                Some(Vec::new())
            }
            Step::Park { rows } => {
                self.park(key, parked, rows, now);
                Some(Vec::new())
            }
            Step::Bury { row, .. } => {
                unpark(parked, *row).or_else(|| self.take_hot(key, *row)).map(|stored| vec![stored])
            }
            Step::Resume { delivered } => {
                Some(delivered.iter().filter_map(|row| unpark(parked, *row)).collect())
            }
        }
    }

    /// Removes a hot row, if it is there and of this key.
    fn take_hot(&mut self, key: &KeyId, row: RowId) -> Option<Arc<Stored>> {
        self.hot.get(&row.position).filter(|stored| stored.message.key_id() == *key)?;
        self.remove_hot(row)
    }

    /// Moves hot rows behind those parked. Skips missing ones.
    fn park(&mut self, key: &KeyId, parked: &mut BTreeMap<Position, Parked>, rows: &[RowId], now: Timestamp) {
        for row in rows {
            if let Some(stored) = self.take_hot(key, *row) {
                parked.insert(row.position, Parked { stored, at: now });
            }
        }
    }
}
