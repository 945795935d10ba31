//! View of a running inbox.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use outbox_contract::backend::{Backlog, Lag, Problem};
use outbox_contract::{AdminExt, Consumer, Route, Store, StoreError};
use ractor::{ActorCell, ActorRef};

use super::context::Context;
use super::stats::InboxStats;
use super::supervisor::InboxMsg;
use crate::health::{Health, ReasonKind, Status};
use crate::relay::RelayObserver;
use crate::restart::{first_ended, has_ended};

/// An inbox that could begin no transaction for so long is unhealthy.
const STARVED: Duration = Duration::from_secs(60);

/// View of an inbox, cheap to clone, which also pauses it and ends the pause. Made by
/// [`InboxHandle::observer`](super::InboxHandle::observer) and
/// [`ServiceHandle::inbox`](crate::ServiceHandle::inbox).
///
/// It outlives the inbox, and reports then that nothing is received.
#[derive(Clone)]
pub struct InboxObserver {
    pub(super) context: Arc<Context>,
    pub(super) store: Arc<dyn Store>,
    pub(super) route: Route,
    pub(super) supervisor: Option<ActorRef<InboxMsg>>,
    pub(super) drain: Option<RelayObserver>,
}

impl fmt::Debug for InboxObserver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("InboxObserver")
            .field("consumer", &self.consumer().as_str())
            .field("mode", &self.context.config.mode)
            .finish_non_exhaustive()
    }
}

impl InboxObserver {
    /// Returns the consumer.
    #[must_use]
    pub fn consumer(&self) -> &Consumer {
        &self.context.subscription.consumer
    }

    /// Returns the route under which messages wait in the store for this consumer, for admin
    /// operations.
    #[must_use]
    pub fn route(&self) -> &Route {
        &self.route
    }

    /// Pauses this consumer in every process: here at once, elsewhere and for stored messages from
    /// the next heartbeat on. Running handlers finish. Receiving continues up to the prefetch, or
    /// in stored mode into the store. The store keeps the pause until [`resume`](Self::resume) or
    /// an operator ends it.
    ///
    /// # Errors
    ///
    /// `Unavailable`: it is paused here, and possibly elsewhere. Call again.
    pub async fn pause(&self) -> Result<(), StoreError> {
        self.context.pausing().ask();
        self.look();
        self.store.pause(&self.route, None).await?;
        self.context.pausing().stored(self.context.now());
        Ok(())
    }

    /// Ends the pause, everywhere within a heartbeat (5 s).
    ///
    /// # Errors
    ///
    /// `Unavailable`: call again.
    pub async fn resume(&self) -> Result<(), StoreError> {
        self.store.resume(&self.route, None).await?;
        self.context.pausing().end();
        self.look();
        Ok(())
    }

    /// Returns counters since the start of the inbox, and its deliveries in memory.
    #[must_use]
    pub fn stats(&self) -> InboxStats {
        self.context.stats()
    }

    /// Returns topics and units that deliver nothing while others do. Updated once a second.
    #[must_use]
    pub fn problems(&self) -> Vec<Problem> {
        self.context.problems.all()
    }

    /// Returns what waits at the broker for this consumer, in the units of this process: as last
    /// measured, at most a few seconds ago. Empty if the broker does not tell.
    #[must_use]
    pub fn lags(&self) -> Vec<Lag> {
        self.context.lags.all()
    }

    /// Returns the backlog in the store of this consumer, as last measured. None: not measured yet,
    /// or not by this process.
    #[must_use]
    pub fn backlog(&self) -> Option<Backlog> {
        self.drain.as_ref()?.backlog().pop().map(|(_, backlog)| backlog)
    }

    /// Returns the health of the inbox (promise P9).
    #[must_use]
    pub fn health(&self) -> Health {
        let mut health = self.drain.as_ref().map_or_else(Health::good, |drain| drain.health());
        self.examine(&mut health);
        let (context, consumer) = (&self.context, self.consumer());
        let of_broker = [
            (ReasonKind::Unreceivable, context.problems.reasons()),
            (ReasonKind::Stuck, context.lags.reasons()),
            (ReasonKind::Loss, context.losses.reasons(tokio::time::Instant::now())),
        ];
        for (kind, reasons) in of_broker {
            reasons.into_iter().for_each(|reason| health.add(Status::Degraded, kind, reason));
        }
        if let Some(reason) = context.checked.reason() {
            health.add(
                Status::Degraded,
                ReasonKind::BrokerSettings,
                format!("consumer {consumer}: {reason}"),
            );
        }
        if context.paused().route {
            let reason = format!("consumer {consumer}: paused; nothing is handled");
            health.add(Status::Degraded, ReasonKind::Paused, reason);
        }
        health
    }

    /// Examines what this process does.
    fn examine(&self, health: &mut Health) {
        let (context, consumer, counters) = (&self.context, self.consumer(), &self.context.counters);
        let now = tokio::time::Instant::now();
        let mut add = |status, kind, words: &str| {
            health.add(status, kind, format!("consumer {consumer}: {words}"));
        };
        if self.supervisor.as_ref().is_some_and(|supervisor| has_ended(&supervisor.get_cell())) {
            let words = "the inbox has ended, and receives no messages; restart it, and report the error in the log, unless it was stopped";
            add(Status::Unhealthy, ReasonKind::Ended, words);
        } else if counters.keeps_failing(context.now()) {
            let error = counters.last_error().unwrap_or_default();
            add(Status::Unhealthy, ReasonKind::Failing, &format!("the inbox keeps failing: {error}"));
        } else if self.supervisor.is_some() && !context.subscribed.load(Ordering::Acquire) {
            add(Status::Degraded, ReasonKind::NotSubscribed, "not subscribed to the broker now");
        } else if context.untold.load(Ordering::Acquire) {
            let words = "could not acknowledge finished messages to the broker; retrying";
            add(Status::Degraded, ReasonKind::Unacknowledged, words);
        }
        if let Some((lasts, error)) = context.outage.lasting(context.now()) {
            let words = format!("the broker has returned only errors for {lasts:.1?}: {error}");
            add(Status::Degraded, ReasonKind::Outage, &words);
        }
        if let Some((count, span, error)) = counters.interruptions.lately(now) {
            let words = format!("the database has interrupted handlers {count} times in {span:.1?}: {error}");
            add(Status::Degraded, ReasonKind::Interrupted, &words);
        }
        if let Some((_, span, reason)) = counters.postponements.lately(now) {
            let words = format!(
                "messages wait for a newer program, and later messages of their keys behind them, for {span:.1?}; deploy it; the last one: {reason}"
            );
            add(Status::Degraded, ReasonKind::Postponed, &words);
        }
        if let Some((count, span, error)) = counters.shortages.lately(now) {
            let words = format!(
                "could not begin a transaction {count} times in {span:.1?}, so messages wait: {error}"
            );
            let starves = counters.starved_for().is_some_and(|starved| starved >= STARVED);
            let status = if starves { Status::Unhealthy } else { Status::Degraded };
            add(status, ReasonKind::NoTransaction, &words);
        }
        if let Some((count, span, why)) = counters.drops.lately(now) {
            let words = format!(
                "{count} undecodable records were dropped in {span:.1?}, since there are too many dead letters; {why}"
            );
            add(Status::Degraded, ReasonKind::Dropped, &words);
        }
    }

    /// Waits until a supervisor of the inbox has ended, such as `inbox billing: receiving`. Returns
    /// its name.
    ///
    /// Everything below a supervisor is restarted, but a supervisor is not. It ends by a bug, or
    /// because the inbox was stopped or dropped. A program that runs an inbox without a
    /// [service](crate::Service) should wait for this beside its signals, and exit with an error, as
    /// [`RelayObserver::ended`](crate::RelayObserver::ended) shows.
    pub async fn ended(&self) -> String {
        first_ended(self.roots()).await
    }

    /// Returns the actors without a parent, with their names.
    pub(crate) fn roots(&self) -> Vec<(String, ActorCell)> {
        let supervisor =
            self.supervisor.iter().map(|supervisor| ("receiving".to_owned(), supervisor.get_cell()));
        let drain = self.drain.iter().flat_map(RelayObserver::roots);
        let consumer = self.consumer();
        supervisor.chain(drain).map(|(name, root)| (format!("inbox {consumer}: {name}"), root)).collect()
    }

    /// Returns true if its transport confirms a message only when this inbox has acknowledged it.
    pub(crate) fn is_in_process(&self) -> bool {
        self.context.transport.is_confirmed_by_consumers()
    }

    /// Waits until it is subscribed, but not for long.
    pub(crate) async fn subscribed(&self) {
        const LIMIT: Duration = Duration::from_secs(5);
        let subscribed = async {
            while self.supervisor.is_some() && !self.context.subscribed.load(Ordering::Acquire) {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        if tokio::time::timeout(LIMIT, subscribed).await.is_err() {
            tracing::warn!(consumer = %self.consumer(), "still not subscribed; starting anyway");
        }
    }

    fn look(&self) {
        if let Some(supervisor) = &self.supervisor {
            // Gone only when the runtime is.
            let _ = supervisor.cast(InboxMsg::Look);
        }
    }
}
