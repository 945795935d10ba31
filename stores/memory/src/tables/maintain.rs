//! Maintenance and figures: what is due, what is over its time, what waits.

use std::time::Duration;

use outbox_contract::backend::{Backlog, Maintained, Unserved};
use outbox_contract::{Route, Timestamp};

use super::{Appendable, Tables};

/// Number of messages of an unserved route among which the oldest is looked for.
const LOOK: usize = 1_000;

impl Tables {
    pub(crate) fn maintain(&mut self, limit: usize, appendable: &Appendable, now: Timestamp) -> Maintained {
        let promoted = self.promote(limit, appendable, now);
        let next_due = self.scheduled.next_due();
        let (history_removed, more_history) = self.archive.expire(limit, now);
        let (handled_ids_removed, more_handled_ids) = self.handled_ids.expire(limit, now);
        let (audit_removed, more_audit) = self.audit.expire(limit, now);
        let relays_removed = self.remove_relays(limit, now);
        let mut maintained = Maintained::default();
        maintained.promoted = promoted;
        maintained.history_removed = history_removed;
        maintained.handled_ids_removed = handled_ids_removed;
        maintained.audit_removed = audit_removed;
        maintained.relays_removed = relays_removed;
        maintained.more =
            more_history || more_handled_ids || more_audit || next_due.is_some_and(|due_at| due_at <= now);
        maintained.next_due = next_due.map(|due_at| due_at.since(now));
        maintained
    }

    pub(crate) fn backlog(&self, route: &Route, now: Timestamp) -> Backlog {
        let mut backlog = self.routes.get(route).map(|tables| tables.backlog(now)).unwrap_or_default();
        backlog.dead = self.archive.dead_of(route);
        backlog.scheduled = self.scheduled.of(route);
        let overdue =
            self.scheduled.first_of(route).filter(|due_at| *due_at <= now).map(|due_at| now.since(due_at));
        backlog.oldest_age = backlog.oldest_age.max(overdue);
        backlog.oldest_pending_age = backlog.oldest_pending_age.max(overdue);
        backlog
    }

    /// Routes of which no relay lives, with what waits there.
    pub(crate) fn unserved(&self, after: Duration, now: Timestamp) -> Vec<Unserved> {
        let is_served = |route: &Route| self.routes.get(route).is_some_and(|tables| tables.is_served(now));
        let unserved = self.routes.iter().filter(|(route, _)| !is_served(route));
        let there = unserved.filter_map(|(route, tables)| Some((route, tables.oldest_of(LOOK)?)));
        let due = self.scheduled.due(now).take(LOOK).map(|((due_at, _), (route, _))| (route, *due_at));
        let found = there.chain(due.filter(|(route, _)| !is_served(route)));
        Unserved::gather(found.map(|(route, since)| (route.as_str(), now.since(since))), after)
    }

    fn remove_relays(&mut self, limit: usize, now: Timestamp) -> u64 {
        let mut removed = 0;
        for tables in self.routes.values_mut() {
            tables.relays.retain(|_, relay| {
                let remove = removed < limit && relay.is_long_gone(now);
                removed += usize::from(remove);
                !remove
            });
        }
        removed as u64
    }
}
