//! Maintenance, figures of the backlog, and routes without a relay.

use super::*;

impl Tables {
    /// Messages that a consumer has handled, the oldest first.
    pub(super) fn selected(&self, filter: &HandledFilter) -> Vec<(Consumer, MessageId)> {
        let of = |((consumer, _), handled): &(&(Consumer, MessageId), &Handled)| {
            *consumer == filter.consumer && filter.selects(&handled.topic, handled.key.as_ref(), handled.at)
        };
        let mut selected: Vec<_> = self.handled.iter().filter(of).collect();
        selected.sort_by_key(|(_, handled)| handled.at);
        selected.into_iter().map(|(id, _)| id.clone()).collect()
    }

    /// The instants up to which each consumer needs its ids no longer.
    pub(super) fn handled_cuts(&self, now: Timestamp) -> BTreeMap<Consumer, Timestamp> {
        let mut of: BTreeMap<Consumer, Vec<Timestamp>> = BTreeMap::new();
        for ((consumer, _), handled) in &self.handled {
            of.entry(consumer.clone()).or_default().push(handled.at);
        }
        let options = StoreOptions::default();
        let cut = |(consumer, handled): (Consumer, Vec<Timestamp>)| {
            let mut cut = HandledIdsCut::new(now, options.handled_ids_kept, options.handled_ids_max_age);
            while let Some(at) = cut.look() {
                cut.found(handled.iter().copied().filter(|handled| *handled <= at).max());
            }
            (consumer, cut.cut())
        };
        of.into_iter().map(cut).collect()
    }

    pub(super) fn maintain(&mut self, limit: usize, now: Timestamp) -> Maintained {
        let mut done = Maintained::default();
        let due: Vec<_> =
            self.scheduled.range(..=(now, i64::MAX)).take(limit).map(|(when, _)| *when).collect();
        for when in due {
            if let Some((route, message)) = self.scheduled.remove(&when) {
                self.append(&route, message, now);
                done.promoted += 1;
            }
        }
        let next_due = self.scheduled.keys().next().map(|(due_at, _)| *due_at);
        done.next_due = next_due.map(|due_at| due_at.since(now));
        let mut left = limit;
        let mut is_removed = |is_over: bool| {
            let is_removed = is_over && left > 0;
            left -= usize::from(is_removed);
            is_removed
        };
        let before = self.handled.len();
        let cuts = self.handled_cuts(now);
        self.handled.retain(|(consumer, _), handled| !is_removed(handled.at <= cuts[consumer]));
        done.handled_ids_removed = (before - self.handled.len()) as u64;
        let before = self.audit.len();
        let audit_kept = StoreOptions::default().audit_kept;
        self.audit.retain(|entry| !is_removed(entry.at.plus(audit_kept) <= now));
        done.audit_removed = (before - self.audit.len()) as u64;
        for tables in self.routes.values_mut() {
            let before = tables.relays.len();
            tables.relays.retain(|_, (_, relay)| {
                let gone_for = now.since(relay.expires_at);
                !is_removed(!relay.is_live(now) && gone_for > relay.lasts.saturating_mul(10))
            });
            done.relays_removed += (before - tables.relays.len()) as u64;
        }
        done.more = left == 0 || next_due.is_some_and(|due_at| due_at <= now);
        done
    }

    pub(super) fn backlog(&mut self, route: &Route, now: Timestamp) -> Backlog {
        let mut backlog = Backlog::default();
        backlog.dead = self.dead.iter().filter(|letter| letter.route == *route).count() as u64;
        let of_route = self.scheduled.iter().filter(|(_, (of, _))| of == route);
        let due_times: Vec<Timestamp> = of_route.map(|((due_at, _), _)| *due_at).collect();
        backlog.scheduled = due_times.len() as u64;
        let tables = self.route(route);
        let parked = || tables.keys.values().flat_map(|row| row.parked.values().map(|(_, stored)| stored));
        backlog.pending = tables.hot.len() as u64;
        backlog.parked = parked().count() as u64;
        backlog.held_keys = tables.keys.values().filter(|row| row.state.held).count() as u64;
        backlog.retrying_keys = tables.keys.len() as u64 - backlog.held_keys;
        let waiting = || tables.hot.values().chain(parked());
        let buckets: BTreeSet<Bucket> = waiting().map(|stored| stored.bucket).collect();
        let unowned = buckets.iter().filter(|bucket| tables.owner(**bucket, now).is_none());
        backlog.unowned_buckets = unowned.count() as u64;
        let overdue = due_times.into_iter().filter(|due_at| *due_at <= now);
        let pending = tables.hot.values().map(|stored| stored.appended_at).chain(overdue).min();
        backlog.oldest_pending_age = pending.map(|oldest| now.since(oldest));
        let oldest = pending.into_iter().chain(parked().map(|stored| stored.appended_at)).min();
        backlog.oldest_age = oldest.map(|oldest| now.since(oldest));
        backlog
    }

    pub(super) fn unserved(&self, after: Duration, now: Timestamp) -> Vec<Unserved> {
        let is_served = |route: &Route| {
            let relays = self.routes.get(route).into_iter().flat_map(|tables| tables.relays.values());
            relays.into_iter().any(|(_, relay)| relay.is_live(now))
        };
        let due = self.scheduled.range(..=(now, i64::MAX)).map(|((due_at, _), (route, _))| (route, *due_at));
        let there = self.routes.iter().flat_map(|(route, tables)| {
            let parked = tables.keys.values().flat_map(|row| row.parked.values().map(|(_, stored)| stored));
            tables.hot.values().chain(parked).map(move |stored| (route, stored.appended_at))
        });
        let found = there.chain(due).filter(|(route, _)| !is_served(route));
        Unserved::gather(found.map(|(route, since)| (route.as_str(), now.since(since))), after)
    }
}
