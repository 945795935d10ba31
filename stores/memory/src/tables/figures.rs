//! Figures for operators: what waits, and who works on it.

use std::collections::BTreeMap;
use std::sync::Arc;

use outbox_contract::admin::{Filter, Ownership, RouteStatus, TopicFigures};
use outbox_contract::backend::rules::leases;
use outbox_contract::backend::{Figure, Listed, Paused, Stored, TopicTally};
use outbox_contract::{Route, Timestamp};

use super::Tables;
use super::archive::{covers, page};

impl Tables {
    pub(crate) fn waiting(&self, filter: &Filter) -> Vec<Listed> {
        let hot = self
            .routes
            .iter()
            .filter(|(route, _)| filter.route.as_ref().is_none_or(|wanted| wanted == *route))
            .flat_map(|(route, tables)| tables.hot.values().map(move |stored| (route, stored)));
        let found = hot.filter(|(route, stored)| covers(filter, route, &stored.message, stored.appended_at));
        let mut found: Vec<(&Route, &Arc<Stored>)> = found.collect();
        found.sort_by_key(|(_, stored)| stored.position);
        let listed = |(route, stored): (&Route, &Arc<Stored>)| {
            Listed::new(route.clone(), Arc::clone(stored), stored.appended_at)
        };
        page(found.into_iter().map(listed), filter)
    }

    pub(crate) fn ownership(&self, route: &Route, now: Timestamp) -> Ownership {
        let Some(tables) = self.routes.get(route) else {
            return leases::ownership([], [], Paused::default(), now);
        };
        let relays = tables.relays.values().map(|relay| (relay.label.clone(), relay.row));
        leases::ownership(relays, tables.owners.values().copied(), tables.pauses(), now)
    }

    pub(crate) fn routes(&self, now: Timestamp) -> Vec<RouteStatus> {
        let known = self.routes.keys().chain(self.scheduled.routes()).chain(self.archive.routes());
        let mut routes: BTreeMap<&Route, RouteStatus> =
            known.map(|route| (route, RouteStatus::new(route.clone()))).collect();
        for (route, tables) in &self.routes {
            if let Some(status) = routes.get_mut(route) {
                status.paused = tables.pauses();
                status.relays = tables.relays.values().filter(|relay| relay.is_live(now)).count();
            }
        }
        routes.into_values().take(RouteStatus::MAX).collect()
    }

    pub(crate) fn topics(&self, route: &Route, now: Timestamp) -> Vec<TopicFigures> {
        let mut tally = TopicTally::new(now, u64::MAX);
        for letter in self.archive.dead.values().filter(|letter| letter.route == *route) {
            tally.add(Figure::Dead, letter.stored.message.topic.as_str(), 1, None);
        }
        let Some(tables) = self.routes.get(route) else { return tally.finish() };
        for stored in tables.hot.values() {
            tally.add(Figure::Waiting, stored.message.topic.as_str(), 1, Some(stored.appended_at));
        }
        for (key, row) in tables.keys.rows() {
            let topic = key.topic.as_str();
            tally.add(if row.state.held { Figure::Held } else { Figure::Retrying }, topic, 1, None);
            for parked in row.parked.values() {
                tally.add(Figure::Parked, topic, 1, Some(parked.stored.appended_at));
            }
        }
        tally.finish()
    }
}
