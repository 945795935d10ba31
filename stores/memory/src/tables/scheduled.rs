//! Scheduled messages: those that join their keys later.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use outbox_contract::admin::Filter;
use outbox_contract::backend::{Listed, Position, Stored};
use outbox_contract::{Message, MessageId, Route, Timestamp};

use super::archive::{covers, page};
use super::{Appendable, Tables};
use crate::locks::LockName;

/// Scheduled messages by due time, then by their scheduling.
#[derive(Debug, Default)]
pub(super) struct Scheduled {
    messages: BTreeMap<(Timestamp, u64), (Route, Message)>,
    by_route: BTreeMap<Route, u64>,
    count: u64,
}

impl Scheduled {
    pub(super) fn add(&mut self, due_at: Timestamp, route: Route, message: Message) {
        self.count += 1;
        *self.by_route.entry(route.clone()).or_default() += 1;
        self.messages.insert((due_at, self.count), (route, message));
    }

    pub(super) fn of(&self, route: &Route) -> u64 {
        self.by_route.get(route).copied().unwrap_or_default()
    }

    pub(super) fn len(&self) -> usize {
        self.messages.len()
    }

    pub(super) fn next_due(&self) -> Option<Timestamp> {
        self.messages.keys().next().map(|(due_at, _)| *due_at)
    }

    /// Returns the routes of these messages.
    pub(super) fn routes(&self) -> impl Iterator<Item = &Route> {
        self.by_route.iter().filter(|(_, count)| **count > 0).map(|(route, _)| route)
    }

    /// Returns the due time of the first message of a route.
    pub(super) fn first_of(&self, route: &Route) -> Option<Timestamp> {
        let mut all = self.messages.iter();
        all.find(|(_, (of, _))| of == route).map(|((due_at, _), _)| *due_at)
    }

    /// Returns due messages, the longest due first.
    pub(super) fn due(&self, now: Timestamp) -> impl Iterator<Item = (&(Timestamp, u64), &(Route, Message))> {
        self.messages.range(..=(now, u64::MAX))
    }

    fn remove(&mut self, when: &(Timestamp, u64)) -> Option<(Route, Message)> {
        let (route, message) = self.messages.remove(when)?;
        if let Some(count) = self.by_route.get_mut(&route) {
            *count -= 1;
        }
        Some((route, message))
    }
}

impl Tables {
    pub(crate) fn scheduled(&self, filter: &Filter) -> Vec<Listed> {
        let all = self.scheduled.messages.iter();
        let found = all.filter(|((due_at, _), (route, message))| covers(filter, route, message, *due_at));
        let listed = |((due_at, _), (route, message)): (&(Timestamp, u64), &(Route, Message))| {
            // It has no position yet, and was not appended.
            let stored = Stored::new(Position::START, *due_at, message.clone());
            Listed::new(route.clone(), Arc::new(stored), *due_at)
        };
        page(found.map(listed), filter)
    }

    /// Removes scheduled messages. Returns their ids.
    pub(crate) fn cancel_scheduled(&mut self, ids: &[MessageId]) -> Vec<MessageId> {
        let all = self.scheduled.messages.iter();
        let found: Vec<(Timestamp, u64)> =
            all.filter(|(_, (_, message))| ids.contains(&message.id)).map(|(when, _)| *when).collect();
        let removed = found.iter().filter_map(|when| self.scheduled.remove(when));
        removed.map(|(_, message)| message.id).collect()
    }

    /// The locks under which [`promote`](Self::promote) appends.
    pub(crate) fn due_locks(&self, limit: usize, now: Timestamp) -> BTreeSet<LockName> {
        let due = self.scheduled.due(now).take(limit);
        due.map(|(_, (route, message))| LockName::to_append(self.ordering, route, message)).collect()
    }

    /// Moves what is due into its route, in order. Says how many.
    pub(super) fn promote(&mut self, limit: usize, appendable: &Appendable, now: Timestamp) -> u64 {
        let due = self.scheduled.due(now).take(limit);
        let due: Vec<(Timestamp, u64)> = due
            .filter(|(_, (route, message))| appendable.covers(route, message))
            .map(|(when, _)| *when)
            .collect();
        for when in &due {
            if let Some((route, message)) = self.scheduled.remove(when) {
                self.append(&route, message, now);
            }
        }
        due.len() as u64
    }
}
