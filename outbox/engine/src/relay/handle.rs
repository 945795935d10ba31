//! The handle of a running relay.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures_util::future::join_all;
use outbox_contract::lease::Paused;
use outbox_contract::{Backlog, RelayId};
use ractor::{ActorCell, ActorRef};

use super::context::Context;
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
        janitor: ActorCell,
    ) -> Self {
        let mut cells: Vec<ActorCell> = routes.iter().map(|(_, route)| route.get_cell()).collect();
        cells.push(janitor);
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

    /// What the relay has done since it was started.
    #[must_use]
    pub fn stats(&self) -> RelayStats {
        let mut sum = RelayStats::default();
        for (context, _) in &self.routes {
            sum += context.counters.snapshot(context.credit.out());
        }
        sum
    }

    /// Tells what operators have paused of its first route, as of a heartbeat; and when that heartbeat had begun.
    pub(crate) fn pauses(&self) -> impl Fn() -> (Paused, Duration) + Send + Sync + 'static {
        let route = self.routes.first().map(|(context, _)| Arc::clone(context));
        move || route.as_ref().map(|context| context.paused()).unwrap_or_default()
    }

    /// What waits, as last measured, for each route.
    #[must_use]
    pub fn backlog(&self) -> Vec<(outbox_contract::Route, Backlog)> {
        let routes = self.routes.iter();
        routes
            .filter_map(|(context, _)| Some((context.route.clone(), context.counters.backlog()?.1)))
            .collect()
    }

    /// Whether the relay does its work (promise P9): it turns on the age of what waits and the state of the leases, not on errors alone.
    #[must_use]
    pub fn health(&self) -> Health {
        let mut health = Health { status: Status::Healthy, reasons: Vec::new() };
        for (context, _) in &self.routes {
            health.examine(context);
        }
        health
    }
}

impl Drop for RelayHandle {
    fn drop(&mut self) {
        for cell in &self.cells {
            cell.kill();
        }
    }
}

/// How a relay is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Status {
    /// It does its work.
    Healthy,
    /// It works, but something waits for somebody: a held key, a broken topic, a transport that is away for a moment.
    Degraded,
    /// Messages are not getting out.
    Unhealthy,
}

/// The health of a relay, with every reason in words.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Health {
    /// The worst of the reasons.
    pub status: Status,
    /// What is not as it should be. Empty when the relay is healthy.
    pub reasons: Vec<String>,
}

impl Health {
    fn examine(&mut self, context: &Context) {
        let (config, route, now) = (&context.config, &context.route, context.now());
        let counters = &context.counters;
        if !context.tenure.holds(now) {
            let since = now.saturating_sub(context.tenure.renewed());
            self.add(
                Status::Unhealthy,
                format!("route {route}: leases were last renewed {since:.1?} ago; nothing is published"),
            );
        }
        if counters.keeps_failing(now) {
            let error = counters.last_error().unwrap_or_default();
            self.add(Status::Unhealthy, format!("route {route}: the relay keeps failing: {error}"));
        }
        if let Some(since) = context.breaker().away_since() {
            let away = now.saturating_sub(since);
            let status = if away > config.lease { Status::Unhealthy } else { Status::Degraded };
            self.add(status, format!("route {route}: the transport has been unavailable for {away:.1?}"));
        }
        if context.paused.load(Ordering::Relaxed) {
            self.add(Status::Degraded, format!("route {route}: an operator paused it; nothing is published"));
        }
        for topic in counters.broken_topics() {
            self.add(
                Status::Degraded,
                format!("route {route}: topic {topic} is not published now: broken or paused"),
            );
        }
        if counters.disagreeing.load(Ordering::Relaxed) {
            let reason = "relays of this route are configured differently; deploy one configuration";
            self.add(Status::Degraded, format!("route {route}: {reason}"));
        }
        match counters.backlog() {
            Some((_, backlog)) => self.examine_backlog(context, &backlog),
            None => {
                self.add(Status::Degraded, format!("route {route}: the backlog has not been measured yet"))
            }
        }
        let is_long = |since, every| now.saturating_sub(since) > every * 3 + config.store_timeout;
        if let Some(trouble) = counters.unmeasured()
            && is_long(trouble.since, config.observe_every)
        {
            let (span, error) = (now.saturating_sub(trouble.since), trouble.error);
            let reason = format!("the backlog could not be measured for {span:.1?}: {error}");
            self.add(Status::Unhealthy, format!("route {route}: {reason}"));
        }
        if let Some(trouble) = counters.unmaintained()
            && is_long(trouble.since, config.maintain_every)
        {
            let (span, error) = (now.saturating_sub(trouble.since), trouble.error);
            let reason = format!(
                "maintenance has failed for {span:.1?}, scheduled messages and retention wait: {error}"
            );
            self.add(Status::Degraded, format!("route {route}: {reason}"));
        }
    }

    fn examine_backlog(&mut self, context: &Context, backlog: &Backlog) {
        let route = &context.route;
        if let Some(age) = backlog.oldest_age
            && age > context.config.unhealthy_age
        {
            self.add(
                Status::Unhealthy,
                format!("route {route}: the oldest message has waited for {age:.1?}"),
            );
        }
        if backlog.held_keys > 0 {
            let held = backlog.held_keys;
            self.add(Status::Degraded, format!("route {route}: {held} held keys wait for an operator"));
        }
        if backlog.unowned_buckets > 0 {
            let unowned = backlog.unowned_buckets;
            self.add(
                Status::Degraded,
                format!("route {route}: {unowned} buckets with messages have no owner"),
            );
        }
    }

    pub(crate) fn add(&mut self, status: Status, reason: String) {
        self.status = self.status.max(status);
        self.reasons.push(reason);
    }
}
