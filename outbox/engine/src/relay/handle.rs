//! The handle of a running relay.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use outbox_contract::Route;
use outbox_contract::backend::{Backlog, Paused, RelayId, Unserved};
use ractor::{ActorCell, ActorRef};

use super::context::Context;
use super::health::Health;
use super::observer::RelayObserver;
use super::stats::RelayStats;
use super::supervisor::RouteMsg;

/// A running relay. Dropping it ends the relay at once, without a drain, as a crash would: what was in flight is sent again by
/// whoever takes over. Call [`stop`](Self::stop) to end it in order.
#[must_use = "dropping the handle ends the relay"]
pub struct RelayHandle {
    relay: RelayId,
    routes: Vec<(Arc<Context>, ActorRef<RouteMsg>)>,
    cells: Vec<ActorCell>,
}

impl fmt::Debug for RelayHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RelayHandle").field("relay", &self.relay).field("routes", &self.routes.len()).finish()
    }
}

impl RelayHandle {
    pub(crate) fn new(
        relay: RelayId,
        routes: Vec<(Arc<Context>, ActorRef<RouteMsg>)>,
        maintenance: ActorCell,
    ) -> Self {
        let mut cells: Vec<ActorCell> = routes.iter().map(|(_, route)| route.get_cell()).collect();
        cells.push(maintenance);
        Self { relay, routes, cells }
    }

    /// The id of this life of the relay, as it stands in the store.
    #[must_use]
    pub fn id(&self) -> RelayId {
        self.relay
    }

    /// Takes no more, finishes what is in flight, removes it from the store, gives the leases back, then stops (promise P8).
    ///
    /// Returns whether all of that was done within the deadline. If not, the relay was ended as by a kill: what is left is sent again by whoever
    /// takes over, within a lease and a heartbeat. Dropping the future half-way does the same.
    pub async fn stop(self, deadline: Duration) -> bool {
        let stops = self.routes.iter().map(|(_, route)| async move {
            let answer = route.call(RouteMsg::Stop, Some(deadline)).await;
            matches!(answer, Ok(ractor::rpc::CallResult::Success(true)))
        });
        // What remains of the relay ends with `self`.
        join_all(stops).await.into_iter().all(|drained| drained)
    }

    /// Sees the relay, and can do nothing to it: cheap to clone, for a handler of a web server, say. It outlives the relay, and says then that
    /// nothing is published.
    #[must_use]
    pub fn observer(&self) -> RelayObserver {
        RelayObserver::new(self.relay, self.routes.iter().map(|(context, _)| Arc::clone(context)).collect())
    }

    /// What the relay has done since it was started.
    #[must_use]
    pub fn stats(&self) -> RelayStats {
        self.observer().stats()
    }

    /// Tells what operators have paused of its first route, as of a heartbeat; and when that heartbeat had begun.
    pub(crate) fn pauses(&self) -> impl Fn() -> (Paused, Duration) + Send + Sync + 'static {
        let route = self.routes.first().map(|(context, _)| Arc::clone(context));
        move || route.as_ref().map(|context| context.paused()).unwrap_or_default()
    }

    /// What waits, as last measured, for each route.
    #[must_use]
    pub fn backlog(&self) -> Vec<(Route, Backlog)> {
        self.observer().backlog()
    }

    /// Routes of this store that no relay serves. See [`RelayObserver::unserved`].
    #[must_use]
    pub fn unserved(&self) -> Vec<Unserved> {
        self.observer().unserved()
    }

    /// Whether the relay does its work (promise P9): it turns on the age of what waits and the state of the leases, not on errors alone.
    ///
    /// For alarms, not for probes: when the broker is away, a probe that asks this takes down all instances.
    #[must_use]
    pub fn health(&self) -> Health {
        self.observer().health()
    }
}

impl Drop for RelayHandle {
    fn drop(&mut self) {
        for cell in &self.cells {
            cell.kill();
        }
    }
}
