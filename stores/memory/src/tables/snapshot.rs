//! A look at all tables at once, and what a restore of one of them leaves behind, for tests.

use std::sync::Arc;

use outbox_contract::Route;
use outbox_contract::backend::{RelayId, Stored};

use super::Tables;

/// Contents of a store at one instant. For tests: it shows what no admin operation does.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Snapshot {
    /// Messages to be published, by route and position.
    pub hot: Vec<(Route, Arc<Stored>)>,
    /// Messages parked behind failing keys, by route, key and position.
    pub parked: Vec<(Route, Arc<Stored>)>,
    /// Number of failing and held keys.
    pub failing_keys: usize,
    /// Number of dead letters.
    pub dead: usize,
    /// Number of scheduled messages.
    pub scheduled: usize,
    /// Number of delivered messages in the history.
    pub history: usize,
    /// Number of ids of handled messages.
    pub handled_ids: usize,
    /// Every relay that is known, live or not, with its label.
    pub relays: Vec<(Route, RelayId, String)>,
}

impl Tables {
    pub(crate) fn snapshot(&self) -> Snapshot {
        let routes = || self.routes.iter();
        let hot = routes().flat_map(|(route, tables)| tables.hot.values().map(move |stored| (route, stored)));
        let parked = routes().flat_map(|(route, tables)| {
            let rows = tables.keys.rows().values();
            rows.flat_map(|row| row.parked.values()).map(move |parked| (route, &parked.stored))
        });
        let relays = routes().flat_map(|(route, tables)| {
            tables.relays.iter().map(move |(id, relay)| (route.clone(), *id, relay.label.clone()))
        });
        Snapshot {
            hot: hot.map(|(route, stored)| (route.clone(), Arc::clone(stored))).collect(),
            parked: parked.map(|(route, stored)| (route.clone(), Arc::clone(stored))).collect(),
            failing_keys: routes().map(|(_, tables)| tables.keys.rows().len()).sum(),
            dead: self.archive.dead.len(),
            scheduled: self.scheduled.len(),
            history: self.archive.history.len(),
            handled_ids: self.handled_ids.len(),
            relays: relays.collect(),
        }
    }

    /// Puts rows into the hot table where they stood, and changes nothing else.
    pub(crate) fn put_back(&mut self, rows: impl IntoIterator<Item = (Route, Arc<Stored>)>) {
        for (route, stored) in rows {
            let tables = self.route(&route);
            if !tables.hot.contains_key(&stored.position) {
                tables.insert_hot(stored);
            }
        }
    }

    /// As if nothing had ever been committed in any stripe of a route.
    pub(crate) fn forget_stripes(&mut self, route: &Route) {
        if let Some(tables) = self.routes.get_mut(route) {
            tables.stripes.clear();
        }
    }
}
