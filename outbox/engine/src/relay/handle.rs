//! The handle of a running relay.

use std::time::Duration;

use futures_util::future::join_all;
use outbox_contract::backend::RelayId;

use super::observer::RelayObserver;
use super::stats::RelayStats;
use super::supervisor::RouteMsg;
use crate::health::Health;
use crate::restart::has_ended;

/// A running relay.
///
/// Call [`stop`](Self::stop) to end it in order. Dropping the handle ends the relay at once,
/// without a drain, as a crash would: the relay that takes over sends again what was in flight.
#[derive(Debug)]
#[must_use = "dropping the handle ends the relay"]
pub struct RelayHandle {
    observer: RelayObserver,
}

impl RelayHandle {
    pub(super) fn new(observer: RelayObserver) -> Self {
        Self { observer }
    }

    /// Returns the id of this run of the relay, as recorded in the store.
    #[must_use]
    pub fn id(&self) -> RelayId {
        self.observer.id()
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
        let stops = self.observer.routes.iter().map(|(_, route)| async move {
            let answer = route.call(RouteMsg::Stop, Some(deadline)).await;
            matches!(answer, Ok(ractor::rpc::CallResult::Success(true)))
        });
        // The maintenance jobs end when `self` is dropped.
        join_all(stops).await.into_iter().all(|drained| drained) && !has_ended(&self.observer.maintenance)
    }

    /// Returns the read-only view of the relay, cheap to clone, for example for a handler of a web
    /// server.
    ///
    /// It outlives the relay, and reports then that nothing is published.
    #[must_use]
    pub fn observer(&self) -> &RelayObserver {
        &self.observer
    }

    /// Returns counters of what the relay has done since its start.
    #[must_use]
    pub fn stats(&self) -> RelayStats {
        self.observer.stats()
    }

    /// Returns the health of the relay (promise P9). It depends on the age of waiting messages and
    /// on the leases, not on errors alone.
    ///
    /// Use it for alerts, not for liveness or readiness probes: while the broker is unavailable,
    /// such a probe would take down all instances.
    #[must_use]
    pub fn health(&self) -> Health {
        self.observer.health()
    }
}

impl Drop for RelayHandle {
    fn drop(&mut self) {
        self.observer.roots().iter().for_each(|(_, root)| root.kill());
    }
}
