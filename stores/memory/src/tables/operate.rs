//! The verbs of operators on keys, and pauses.

use std::sync::Arc;

use outbox_contract::admin::{FailingKey, Filter};
use outbox_contract::backend::Listed;
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
                    && is_within(filter, row.since)
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
        let version = self.version + 1;
        let tables = self.route(route);
        if tables.keys.get(key).is_none_or(|row| !row.held) {
            tables.change(key, now, |row| {
                row.held = true;
                row.version = version;
            });
            self.version = version;
        }
    }

    pub(crate) fn release_key(&mut self, route: &Route, key: &KeyId, now: Timestamp) -> Result<(), Flowing> {
        let (mut row, version) = self.take_key(route, key)?;
        row.version = version;
        row.held = false;
        row.next_attempt_at = now;
        row.attempts = 0;
        row.first = None;
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
        let first = row.first_parked();
        let skipped = first
            .and_then(|first| row.unpark(first).map(|stored| (death(&row, first.id, "skipped"), stored)));
        if skipped.is_some() {
            row.forget_departed();
            row.version = version;
            row.held = false;
            row.next_attempt_at = now;
        }
        self.route(route).keys.put(key, row);
        Ok(skipped.map(|(death, stored)| {
            let id = stored.message.id;
            self.archive.bury(route, stored, death, now);
            id
        }))
    }

    pub(crate) fn discard(&mut self, route: &Route, key: &KeyId, now: Timestamp) -> Result<u64, Flowing> {
        let (row, _) = self.take_key(route, key)?;
        for parked in row.parked.values() {
            let death = death(&row, parked.stored.message.id, "discarded");
            self.archive.bury(route, Arc::clone(&parked.stored), death, now);
        }
        Ok(row.parked.len() as u64)
    }

    pub(crate) fn set_paused(&mut self, route: &Route, topic: Option<&Topic>, paused: bool) {
        let tables = self.route(route);
        match topic {
            Some(topic) if paused => drop(tables.paused_topics.insert(topic.clone())),
            Some(topic) => drop(tables.paused_topics.remove(topic)),
            None => tables.paused = paused,
        }
    }

    /// Takes a failing key's row out, with the version that it is to have when it is put back changed.
    fn take_key(&mut self, route: &Route, key: &KeyId) -> Result<(KeyRow, i64), Flowing> {
        let row = self.routes.get_mut(route).and_then(|tables| tables.keys.take(key)).ok_or(Flowing)?;
        self.version += 1;
        Ok((row, self.version))
    }
}

/// How an operator's decision ends a message: with the record of its attempts, if it is the one that was tried.
fn death(row: &KeyRow, id: MessageId, reason: &'static str) -> Death {
    if row.failing.is_some_and(|failing| failing.id == id) {
        Death { reason, attempts: row.attempts, first: row.first.clone(), last: row.last.clone() }
    } else {
        Death { reason, attempts: 0, first: None, last: None }
    }
}

fn failing_key(route: &Route, key: &KeyId, row: &KeyRow) -> FailingKey {
    let mut failing = FailingKey::new(route.clone(), key.clone(), row.since);
    failing.held = row.held;
    failing.next_attempt_at = (!row.held).then_some(row.next_attempt_at);
    failing.attempts = row.attempts;
    failing.first_failure = row.first.clone();
    failing.last_failure = row.last.clone();
    failing.parked = row.parked.len() as u64;
    failing.first = row.first_parked().map(|first| first.id);
    failing
}
