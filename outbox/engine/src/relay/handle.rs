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
use super::restart::has_ended;
use super::stats::RelayStats;
use super::supervisor::RouteMsg;

/// A running relay.
///
/// Call [`stop`](Self::stop) to end it in order. Dropping the handle ends the relay at once,
/// without a drain, as a crash would: the relay that takes over sends again what was in flight.
#[must_use = "dropping the handle ends the relay"]
pub struct RelayHandle {
    relay: RelayId,
    pub(super) routes: Vec<(Arc<Context>, ActorRef<RouteMsg>)>,
    pub(super) maintenance: ActorCell,
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
        Self { relay, routes, maintenance }
    }

    /// Returns the id of this run of the relay, as recorded in the store.
    #[must_use]
    pub fn id(&self) -> RelayId {
        self.relay
    }

    /// Stops the relay in order: reads nothing more, waits for what is in flight, removes it from
    /// the store, gives the leases back (promise P8).
    ///
    /// Returns true if all of that was done within the deadline. If not, the relay was ended as by
    /// a kill: the relay that takes over sends the rest again, within a lease and a heartbeat.
    ///
    /// # Cancellation
    ///
    /// Dropping the future ends the relay as by a kill, too.
    pub async fn stop(self, deadline: Duration) -> bool {
        let stops = self.routes.iter().map(|(_, route)| async move {
            let answer = route.call(RouteMsg::Stop, Some(deadline)).await;
            matches!(answer, Ok(ractor::rpc::CallResult::Success(true)))
        });
        // The maintenance jobs end when `self` is dropped.
        join_all(stops).await.into_iter().all(|drained| drained) && !has_ended(&self.maintenance)
    }

    /// Returns a read-only view of the relay, cheap to clone, for example for a handler of a web
    /// server.
    ///
    /// It outlives the relay, and reports then that nothing is published.
    #[must_use]
    pub fn observer(&self) -> RelayObserver {
        let routes = self.routes.iter().map(|(context, route)| (Arc::clone(context), route.get_cell()));
        RelayObserver::new(self.relay, routes.collect(), self.maintenance.clone())
    }

    /// Returns counters of what the relay has done since its start.
    #[must_use]
    pub fn stats(&self) -> RelayStats {
        self.observer().stats()
    }

    /// Returns the actors without a parent, with their names.
    pub(crate) fn roots(&self) -> Vec<(String, ActorCell)> {
        self.observer().roots()
    }

    /// Returns a function that tells what operators have paused of the first route, and when the
    /// heartbeat that reported it began.
    pub(crate) fn pauses(&self) -> impl Fn() -> (Paused, Duration) + Send + Sync + 'static {
        let route = self.routes.first().map(|(context, _)| Arc::clone(context));
        move || route.as_ref().map(|context| context.paused()).unwrap_or_default()
    }

    /// Returns the backlog of each route, as last measured.
    #[must_use]
    pub fn backlog(&self) -> Vec<(Route, Backlog)> {
        self.observer().backlog()
    }

    /// Returns routes of this store that no running relay serves. See [`RelayObserver::unserved`].
    #[must_use]
    pub fn unserved(&self) -> Vec<Unserved> {
        self.observer().unserved()
    }

    /// Returns the health of the relay (promise P9). It depends on the age of waiting messages and
    /// on the leases, not on errors alone.
    ///
    /// Use it for alerts, not for liveness or readiness probes: while the broker is unavailable,
    /// such a probe would take down all instances.
    #[must_use]
    pub fn health(&self) -> Health {
        self.observer().health()
    }
}

impl Drop for RelayHandle {
    fn drop(&mut self) {
        self.roots().iter().for_each(|(_, root)| root.kill());
    }
}
