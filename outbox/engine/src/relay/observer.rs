//! What can be seen of a relay from beside it.

use std::fmt;
use std::sync::Arc;

use outbox_contract::Route;
use outbox_contract::backend::{Backlog, RelayId, Unserved};

use super::context::Context;
use super::health::Health;
use super::stats::RelayStats;

/// Sees a relay, and can do nothing to it; cheap to clone. Made by [`RelayHandle::observer`](super::RelayHandle::observer).
///
/// ```no_run
/// # async fn run(relay: outbox_engine::RelayHandle) {
/// let observer = relay.observer();
/// let ready = move || observer.health().status < outbox_engine::Status::Unhealthy; // in a handler of a web server
/// # }
/// ```
#[derive(Clone)]
pub struct RelayObserver {
    relay: RelayId,
    routes: Arc<[Arc<Context>]>,
}

impl fmt::Debug for RelayObserver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let routes = self.routes.len();
        f.debug_struct("RelayObserver").field("relay", &self.relay).field("routes", &routes).finish()
    }
}

impl RelayObserver {
    pub(crate) fn new(relay: RelayId, routes: Vec<Arc<Context>>) -> Self {
        Self { relay, routes: routes.into() }
    }

    /// The id of this life of the relay, as it stands in the store.
    #[must_use]
    pub fn id(&self) -> RelayId {
        self.relay
    }

    /// What the relay has done since it was started.
    #[must_use]
    pub fn stats(&self) -> RelayStats {
        let mut sum = RelayStats::default();
        for context in self.routes.iter() {
            sum += context.counters.snapshot(context.in_flight());
        }
        sum
    }

    /// What waits, as last measured, for each route.
    #[must_use]
    pub fn backlog(&self) -> Vec<(Route, Backlog)> {
        let measured = |context: &Arc<Context>| Some((context.route.clone(), context.counters.backlog()?.1));
        self.routes.iter().filter_map(measured).collect()
    }

    /// Routes of this store with messages that have waited for over a minute, and no live relay in any program, the longest waiting first: their names
    /// were changed or mistyped, or nobody has started their relays. Of routes of this relay the others tell. Looked for once a minute; empty when
    /// nothing is known, which [`health`](Self::health) says.
    #[must_use]
    pub fn unserved(&self) -> Vec<Unserved> {
        self.routes.first().map(|context| context.unserved.routes(context.now())).unwrap_or_default()
    }

    /// Whether the relay does its work. See [`RelayHandle::health`](super::RelayHandle::health).
    #[must_use]
    pub fn health(&self) -> Health {
        Health::of(self.routes.iter().map(|context| &**context))
    }
}
