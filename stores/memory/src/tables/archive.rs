//! Messages that have left their keys: dead letters, and delivered ones if a history is kept.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use outbox_contract::admin::{DeadLetter, Filter, Past};
use outbox_contract::backend::{Listed, Stored};
use outbox_contract::{Failure, Message, MessageId, Route, Timestamp};

use super::{Appendable, Tables};
use crate::locks::LockName;

/// Instant, and number among all: in the order of time, none at the same place as another.
type When = (Timestamp, u64);

/// Dead letters and history, each by when it came here.
#[derive(Debug)]
pub(super) struct Archive {
    pub(super) dead: BTreeMap<When, DeadLetter>,
    pub(super) history: BTreeMap<When, Past>,
    history_kept: Option<Duration>,
    dead_by_route: BTreeMap<Route, u64>,
    count: u64,
}

/// Reason and record of a message that became a dead letter.
pub(super) struct Death {
    pub(super) reason: &'static str,
    pub(super) attempts: u32,
    pub(super) first: Option<Failure>,
    pub(super) last: Option<Failure>,
}

impl Archive {
    pub(super) fn new(history_kept: Option<Duration>) -> Self {
        Self {
            dead: BTreeMap::new(),
            history: BTreeMap::new(),
            history_kept,
            dead_by_route: BTreeMap::new(),
            count: 0,
        }
    }

    pub(super) fn bury(&mut self, route: &Route, stored: Arc<Stored>, death: Death, now: Timestamp) {
        let mut letter = DeadLetter::new(route.clone(), stored, death.reason, now);
        letter.attempts = death.attempts;
        letter.first_failure = death.first;
        letter.last_failure = death.last;
        *self.dead_by_route.entry(route.clone()).or_default() += 1;
        let when = self.when(now);
        self.dead.insert(when, letter);
    }

    /// Keeps a delivered message, where a history is kept.
    pub(super) fn add_delivered(&mut self, route: &Route, stored: Arc<Stored>, now: Timestamp) {
        if self.history_kept.is_some() {
            let when = self.when(now);
            self.history.insert(when, Past::new(route.clone(), stored, now));
        }
    }

    /// Removes what is over its time, the oldest first. Says how many, and whether there is more.
    pub(super) fn expire(&mut self, limit: usize, now: Timestamp) -> (u64, bool) {
        let Some(kept) = self.history_kept else { return (0, false) };
        let is_over = |(at, _): &When| at.plus(kept) <= now;
        let mut removed = 0;
        while let Some(oldest) = self.history.first_entry().filter(|oldest| is_over(oldest.key())) {
            if removed == limit {
                return (removed as u64, true);
            }
            oldest.remove();
            removed += 1;
        }
        (removed as u64, false)
    }

    pub(super) fn dead_of(&self, route: &Route) -> u64 {
        self.dead_by_route.get(route).copied().unwrap_or_default()
    }

    /// Returns the routes of dead letters.
    pub(super) fn routes(&self) -> impl Iterator<Item = &Route> {
        self.dead_by_route.iter().filter(|(_, count)| **count > 0).map(|(route, _)| route)
    }

    pub(super) fn find_dead<'f>(
        &'f self,
        filter: &'f Filter,
    ) -> impl Iterator<Item = (&'f When, &'f DeadLetter)> {
        self.dead
            .iter()
            .filter(|(_, letter)| covers(filter, &letter.route, &letter.stored.message, letter.died_at))
    }

    pub(super) fn find_history<'f>(&'f self, filter: &'f Filter) -> impl Iterator<Item = &'f Past> {
        self.history
            .values()
            .filter(|past| covers(filter, &past.route, &past.message.message, past.delivered_at))
    }

    fn remove_dead(&mut self, when: &When) -> Option<DeadLetter> {
        let letter = self.dead.remove(when)?;
        if let Some(count) = self.dead_by_route.get_mut(&letter.route) {
            *count -= 1;
        }
        Some(letter)
    }

    fn when(&mut self, now: Timestamp) -> When {
        self.count += 1;
        (now, self.count)
    }
}

impl Tables {
    pub(crate) fn dead_letters(&self, filter: &Filter) -> Vec<Listed> {
        page(self.archive.find_dead(filter).map(|(_, letter)| listed(letter)), filter)
    }

    pub(crate) fn first_dead_letter(&self, filter: &Filter) -> Option<DeadLetter> {
        let mut found = self.archive.find_dead(filter).take(filter.limit());
        found.next().map(|(_, letter)| letter.clone())
    }

    pub(crate) fn history(&self, filter: &Filter) -> Vec<Listed> {
        let listed =
            |past: &Past| Listed::new(past.route.clone(), Arc::clone(&past.message), past.delivered_at);
        page(self.archive.find_history(filter).map(listed), filter)
    }

    /// The locks under which a requeue appends.
    pub(crate) fn dead_locks(&self, filter: &Filter) -> BTreeSet<LockName> {
        let found = self.archive.find_dead(filter).take(filter.limit());
        let lock =
            |letter: &DeadLetter| LockName::to_append(self.ordering, &letter.route, &letter.stored.message);
        found.map(|(_, letter)| lock(letter)).collect()
    }

    /// The locks under which a replay appends.
    pub(crate) fn history_locks(&self, filter: &Filter) -> BTreeSet<LockName> {
        let found = self.archive.find_history(filter).skip(filter.offset).take(filter.limit());
        let lock = |past: &Past| LockName::to_append(self.ordering, &past.route, &past.message.message);
        found.map(lock).collect()
    }

    /// Appends dead letters again. Returns their ids.
    pub(crate) fn requeue(
        &mut self,
        filter: &Filter,
        appendable: &Appendable,
        now: Timestamp,
    ) -> Vec<MessageId> {
        let found: Vec<When> = self
            .archive
            .find_dead(filter)
            .take(filter.limit())
            .filter(|(_, letter)| appendable.covers(&letter.route, &letter.stored.message))
            .map(|(when, _)| *when)
            .collect();
        let letters = found.iter().filter_map(|when| self.archive.remove_dead(when));
        let letters = letters.map(|letter| (letter.route, letter.stored)).collect();
        self.append_again(letters, now)
    }

    /// Appends what was made of a dead letter in its place; not where somebody else was faster.
    pub(crate) fn requeue_edited(&mut self, letter: &DeadLetter, message: Message, now: Timestamp) -> bool {
        let found = {
            let any = Filter::all_routes();
            let mut dead = self.archive.find_dead(&any);
            dead.find(|(_, there)| Arc::ptr_eq(&there.stored, &letter.stored)).map(|(when, _)| *when)
        };
        let Some(when) = found else { return false };
        self.archive.remove_dead(&when);
        self.append(&letter.route, message, now);
        true
    }

    /// Appends delivered messages again. Returns their ids.
    pub(crate) fn replay(
        &mut self,
        filter: &Filter,
        appendable: &Appendable,
        now: Timestamp,
    ) -> Vec<MessageId> {
        let found = self.archive.find_history(filter).skip(filter.offset).take(filter.limit());
        let found = found.filter(|past| appendable.covers(&past.route, &past.message.message));
        let delivered = found.map(|past| (past.route.clone(), Arc::clone(&past.message))).collect();
        self.append_again(delivered, now)
    }

    /// Removes dead letters. Returns their ids.
    pub(crate) fn purge(&mut self, filter: &Filter) -> Vec<MessageId> {
        let found: Vec<When> =
            self.archive.find_dead(filter).take(filter.limit()).map(|(when, _)| *when).collect();
        let removed = found.iter().filter_map(|when| self.archive.remove_dead(when));
        removed.map(|letter| letter.stored.message.id).collect()
    }

    /// Appends messages in the order in which they once stood.
    fn append_again(&mut self, mut messages: Vec<(Route, Arc<Stored>)>, now: Timestamp) -> Vec<MessageId> {
        messages.sort_by_key(|(_, stored)| stored.position);
        for (route, stored) in &messages {
            self.append(route, stored.message.clone(), now);
        }
        messages.into_iter().map(|(_, stored)| stored.message.id).collect()
    }
}

fn listed(letter: &DeadLetter) -> Listed {
    let listed = Listed::new(letter.route.clone(), Arc::clone(&letter.stored), letter.died_at);
    listed.with_death(outbox_contract::backend::Death::new(
        letter.reason.clone(),
        letter.attempts,
        letter.first_failure.clone(),
        letter.last_failure.clone(),
    ))
}

/// Returns true if a filter selects this message, set aside at this instant.
pub(super) fn covers(filter: &Filter, route: &Route, message: &Message, at: Timestamp) -> bool {
    filter.route.as_ref().is_none_or(|wanted| wanted == route)
        && filter.topic.as_ref().is_none_or(|wanted| *wanted == message.topic)
        && filter.key.as_ref().is_none_or(|wanted| *wanted == message.order_key())
        && filter.event_type.as_ref().is_none_or(|wanted| **wanted == *message.event_type)
        && filter.ids.as_ref().is_none_or(|ids| ids.contains(&message.id))
        && is_within(filter, at)
}

pub(super) fn is_within(filter: &Filter, at: Timestamp) -> bool {
    filter.since.is_none_or(|since| at >= since) && filter.before.is_none_or(|before| at < before)
}

/// One page of what was found, from the end that the filter names.
pub(super) fn page<T>(found: impl Iterator<Item = T>, filter: &Filter) -> Vec<T> {
    if filter.newest {
        let mut found: Vec<T> = found.collect();
        found.reverse();
        return found.into_iter().skip(filter.offset).take(filter.limit()).collect();
    }
    found.skip(filter.offset).take(filter.limit()).collect()
}
