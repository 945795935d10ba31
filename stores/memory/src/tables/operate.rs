//! The verbs of operators on keys, and pauses.

use std::collections::BTreeMap;
use std::sync::Arc;

use outbox_contract::admin::{FailingKey, Filter};
use outbox_contract::backend::Listed;
use outbox_contract::backend::rules::failing_key::{self, KeyState};
use outbox_contract::{KeyId, MessageId, Route, Timestamp, Topic};

use super::Tables;
use super::archive::{Death, covers, is_within, page};
use super::keys::{KeyRow, Parked};

/// The key is neither held nor failing.
#[derive(Debug)]
pub(crate) struct Flowing;

impl Tables {
    pub(crate) fn failing_keys(&self, filter: &Filter) -> Vec<FailingKey> {
        let mut found: Vec<FailingKey> = Vec::new();
        for (route, tables) in &self.routes {
            if filter.route.as_ref().is_some_and(|wanted| wanted != route) {
                continue;
            }
            let means = |key: &KeyId, row: &KeyRow| {
                filter.topic.as_ref().is_none_or(|wanted| *wanted == key.topic)
                    && filter.key.as_ref().is_none_or(|wanted| *wanted == key.key)
                    && filter.ids.as_ref().is_none_or(|ids| {
                        row.parked.values().any(|parked| ids.contains(&parked.stored.message.id))
                    })
                    && is_within(filter, row.state.since)
            };
            let rows = tables.keys.rows().iter().filter(|(key, row)| means(key, row));
            found.extend(rows.map(|(key, row)| failing_key(route, key, row)));
        }
        found.sort_by_key(|key| key.since);
        page(found.into_iter(), filter)
    }

    pub(crate) fn parked(&self, filter: &Filter) -> Vec<Listed> {
        let rows = self.routes.iter().flat_map(|(route, tables)| {
            tables
                .keys
                .rows()
                .values()
                .flat_map(move |row| row.parked.values().map(move |parked| (route, parked)))
        });
        let found = rows.filter(|(route, parked)| covers(filter, route, &parked.stored.message, parked.at));
        let listed = |(route, parked): (&Route, &Parked)| {
            Listed::new(route.clone(), Arc::clone(&parked.stored), parked.at)
        };
        page(found.map(listed), filter)
    }

    pub(crate) fn hold(&mut self, route: &Route, key: &KeyId, now: Timestamp) {
        self.version += 1;
        let version = self.version;
        let keys = &mut self.route(route).keys;
        let (state, parked) = match keys.take(key) {
            Some(row) => (Some(row.state), row.parked),
            None => (None, BTreeMap::new()),
        };
        keys.put(key, KeyRow { state: failing_key::hold(state, version, now), parked });
    }

    pub(crate) fn release_key(&mut self, route: &Route, key: &KeyId, now: Timestamp) -> Result<(), Flowing> {
        let (mut row, version) = self.take_key(route, key)?;
        row.state = row.state.release(version, now);
        self.route(route).keys.put(key, row);
        Ok(())
    }

    pub(crate) fn skip(
        &mut self,
        route: &Route,
        key: &KeyId,
        now: Timestamp,
    ) -> Result<Option<MessageId>, Flowing> {
        let (mut row, version) = self.take_key(route, key)?;
        let skipped = row.parked.pop_first().map(|(_, parked)| {
            let id = parked.stored.message.id;
            self.archive.bury(route, parked.stored, death(&row.state, id, "skipped"), now);
            id
        });
        if skipped.is_some() {
            row.state = row.state.skip(version, now);
        }
        self.route(route).keys.put(key, row);
        Ok(skipped)
    }

    pub(crate) fn discard(
        &mut self,
        route: &Route,
        key: &KeyId,
        now: Timestamp,
    ) -> Result<Vec<MessageId>, Flowing> {
        let (row, _) = self.take_key(route, key)?;
        for parked in row.parked.values() {
            let death = death(&row.state, parked.stored.message.id, "discarded");
            self.archive.bury(route, Arc::clone(&parked.stored), death, now);
        }
        Ok(row.parked.values().map(|parked| parked.stored.message.id).collect())
    }

    /// Begins or ends a pause. Returns true if that changed something.
    pub(crate) fn set_paused(&mut self, route: &Route, topic: Option<&Topic>, paused: bool) -> bool {
        let tables = self.route(route);
        match topic {
            Some(topic) if paused => tables.paused_topics.insert(topic.clone()),
            Some(topic) => tables.paused_topics.remove(topic),
            None => std::mem::replace(&mut tables.paused, paused) != paused,
        }
    }

    /// Takes a failing key's row out, with the version that it is to have when it is put back
    /// changed.
    fn take_key(&mut self, route: &Route, key: &KeyId) -> Result<(KeyRow, i64), Flowing> {
        let row = self.routes.get_mut(route).and_then(|tables| tables.keys.take(key)).ok_or(Flowing)?;
        self.version += 1;
        Ok((row, self.version))
    }
}

/// The end of a message by an operator's decision: with the record of its attempts, if it is the
/// one that was tried.
fn death(state: &KeyState, id: MessageId, reason: &'static str) -> Death {
    if state.failing == Some(id) {
        let (first, last) = (state.first_failure.clone(), state.last_failure.clone());
        Death { reason, attempts: state.attempts, first, last }
    } else {
        Death { reason, attempts: 0, first: None, last: None }
    }
}

fn failing_key(route: &Route, key: &KeyId, row: &KeyRow) -> FailingKey {
    let mut failing = row.state.clone().failing_key(route.clone(), key.clone());
    failing.parked = row.parked.len() as u64;
    failing.first = row.first_parked();
    failing
}
