//! Maintenance and figures: what is due, what is over its time, what waits.

use outbox_contract::maintain::Maintained;
use outbox_contract::{Backlog, Route, Timestamp};

use super::{Appendable, Tables};

impl Tables {
    pub(crate) fn maintain(&mut self, limit: usize, appendable: &Appendable, now: Timestamp) -> Maintained {
        let promoted = self.promote(limit, appendable, now);
        let next_due = self.scheduled.next_due();
        let (history_removed, more_history) = self.archive.expire(limit, now);
        let (admissions_removed, more_admissions) = self.admissions.expire(limit, now);
        let relays_removed = self.remove_relays(limit, now);
        Maintained {
            promoted,
            history_removed,
            admissions_removed,
            relays_removed,
            more: more_history || more_admissions || next_due.is_some_and(|due_at| due_at <= now),
            next_due: next_due.map(|due_at| due_at.since(now)),
        }
    }

    pub(crate) fn backlog(&self, route: &Route, now: Timestamp) -> Backlog {
        let mut backlog = self.routes.get(route).map(|tables| tables.backlog(now)).unwrap_or_default();
        backlog.dead = self.archive.dead_of(route);
        backlog.scheduled = self.scheduled.of(route);
        let overdue =
            self.scheduled.first_of(route).filter(|due_at| *due_at <= now).map(|due_at| now.since(due_at));
        backlog.oldest_age = backlog.oldest_age.max(overdue);
        backlog
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
