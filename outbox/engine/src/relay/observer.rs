//! Read-only view of a running relay.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use outbox_contract::Route;
use outbox_contract::backend::{Backlog, Paused, RelayId, Unserved};
use ractor::{ActorCell, ActorRef};

use super::context::Context;
use super::stats::RelayStats;
use super::supervisor::RouteMsg;
use crate::health::{Health, ReasonKind, Status};
use crate::restart::{first_ended, has_ended};

/// Read-only view of a relay, cheap to clone. Made by
/// [`RelayHandle::observer`](super::RelayHandle::observer).
///
/// ```no_run
/// # async fn run(relay: outbox_engine::RelayHandle) {
/// let observer = relay.observer().clone();
/// // In a handler of a web server:
/// let ready = move || observer.health().status < outbox_engine::Status::Unhealthy;
/// # }
/// ```
#[derive(Clone)]
pub struct RelayObserver {
    relay: RelayId,
    pub(super) routes: Arc<[(Arc<Context>, ActorRef<RouteMsg>)]>,
    pub(super) maintenance: ActorCell,
}

impl fmt::Debug for RelayObserver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let routes = self.routes.len();
        f.debug_struct("RelayObserver").field("relay", &self.relay).field("routes", &routes).finish()
    }
}

impl RelayObserver {
    pub(crate) fn new(
        relay: RelayId,
        routes: Vec<(Arc<Context>, ActorRef<RouteMsg>)>,
        maintenance: ActorCell,
    ) -> Self {
        Self { relay, routes: routes.into(), maintenance }
    }

    /// Returns the id of this run of the relay, as recorded in the store.
    #[must_use]
    pub fn id(&self) -> RelayId {
        self.relay
    }

    /// Returns counters of what the relay has done since its start.
    #[must_use]
    pub fn stats(&self) -> RelayStats {
        let mut sum = RelayStats::default();
        for (context, _) in self.routes.iter() {
            sum += context.counters.snapshot(context.in_flight());
        }
        sum
    }

    /// Returns the backlog of each route, as last measured.
    #[must_use]
    pub fn backlog(&self) -> Vec<(Route, Backlog)> {
        let measured = |(context, _): &(Arc<Context>, ActorRef<RouteMsg>)| {
            Some((context.route.clone(), context.counters.backlog()?.1))
        };
        self.routes.iter().filter_map(measured).collect()
    }

    /// Returns routes of this store whose messages have been waiting for over a minute without a
    /// running relay in any process, the longest waiting first.
    ///
    /// Their names were changed or mistyped, or their relays were never started. Routes of this
    /// relay are not included. The relay checks once a minute. The list is empty while the checks
    /// fail, which [`health`](Self::health) reports.
    #[must_use]
    pub fn unserved(&self) -> Vec<Unserved> {
        self.routes.first().map(|(context, _)| context.unserved.routes(context.now())).unwrap_or_default()
    }

    /// Waits until a supervisor of the relay has ended, such as `route default` or `maintenance`.
    /// Returns its name.
    ///
    /// Everything below a supervisor is restarted, but a supervisor is not. It ends by a bug, or
    /// because the relay was stopped or dropped. A program that runs a relay without a
    /// [service](crate::Service) should wait for this beside its signals, and exit with an error:
    ///
    /// ```no_run
    /// # async fn run(relay: outbox_engine::RelayHandle) -> Result<(), Box<dyn std::error::Error>> {
    /// # async fn signal() {}
    /// let observer = relay.observer();
    /// let ended = tokio::select! {
    ///     () = signal() => None,
    ///     part = observer.ended() => Some(part),
    /// };
    /// let drained = relay.stop(std::time::Duration::from_secs(20)).await;
    /// if let Some(part) = ended {
    ///     return Err(format!("{part} of the relay has ended; start the program again").into());
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub async fn ended(&self) -> String {
        first_ended(self.roots()).await
    }

    /// Returns the actors without a parent, with their names.
    pub(crate) fn roots(&self) -> Vec<(String, ActorCell)> {
        let routes = self.routes.iter();
        let routes = routes.map(|(context, route)| (format!("route {}", context.route), route.get_cell()));
        routes.chain([("maintenance".to_owned(), self.maintenance.clone())]).collect()
    }

    /// Returns a function that tells what operators have paused of the first route, and when the
    /// heartbeat that reported it began.
    pub(crate) fn pauses(&self) -> impl Fn() -> (Paused, Duration) + Send + Sync + 'static {
        let route = self.routes.first().map(|(context, _)| Arc::clone(context));
        move || route.as_ref().map(|context| context.paused()).unwrap_or_default()
    }

    /// Returns the health of the relay. See [`RelayHandle::health`](super::RelayHandle::health).
    #[must_use]
    pub fn health(&self) -> Health {
        let mut health = Health::of(self.routes.iter().map(|(context, _)| &**context));
        for (context, _) in self.routes.iter().filter(|(_, supervisor)| has_ended(supervisor)) {
            let reason = "its supervisor has ended, and nothing is published; start the relay again";
            health.add(Status::Unhealthy, ReasonKind::Ended, format!("route {}: {reason}", context.route));
        }
        if has_ended(&self.maintenance) {
            let reason = "maintenance has ended, and scheduled messages wait; start the relay again";
            health.add(Status::Unhealthy, ReasonKind::Ended, reason.to_owned());
        }
        health
    }
}
