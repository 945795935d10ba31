//! Context of a route: shared by all its actors.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use outbox_contract::backend::{Clock, Paused, RelayId};
use outbox_contract::{Route, Store, Timestamp, Transport};

use super::config::RelayConfig;
use super::core::Limits;
use super::core::breaker::Breaker;
use super::fingerprint::fingerprint;
use super::maintenance::UnservedRoutes;
use super::publish_timeout::UnconfirmedBatches;
use super::stats::Counters;
use super::tenure::Tenure;
use crate::answer::answer;
use crate::giving_way::GivingWay;
use crate::transport_check::TransportCheck;

/// One route of one relay.
pub(crate) struct Context {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) transport: Arc<dyn Transport>,
    pub(crate) route: Route,
    pub(crate) relay: RelayId,
    pub(crate) source: Arc<str>,
    pub(crate) fingerprint: i64,
    pub(crate) clock: Arc<dyn Clock>,
    /// Instant of the relay's start, on its own clock.
    pub(crate) started: Duration,
    pub(crate) seed: u64,
    pub(crate) config: RelayConfig,
    pub(crate) limits: Limits,
    pub(crate) counters: Counters,
    /// Routes that no running relay serves. Used only of the first route of a relay.
    pub(crate) unserved: UnservedRoutes,
    /// Settings of the broker.
    pub(crate) checked: TransportCheck,
    // Messages that were confirmed when the transport did not answer a check.
    confirmed_then: AtomicU64,
    pub(crate) tenure: Tenure,
    /// Decision to leave what is stored to newer members of a consumer.
    pub(crate) giving_way: Arc<GivingWay>,
    /// True while an operator pauses the route. Written by the route, read by the health check.
    pub(crate) paused: AtomicBool,
    // Messages and bytes in memory. Written by the route, read for metrics.
    in_flight: (AtomicUsize, AtomicUsize),
    // Operators' pauses, and the instant at which the heartbeat that reported them began. Written
    // by the route, read by an inbox that handles messages beside this relay. Locked only to copy.
    pauses: Mutex<(Paused, Duration)>,
    // The database's time at a heartbeat, and the relay's own at its answer. Locked only to copy.
    store_time: Mutex<(Timestamp, Duration)>,
    // The core's circuit breaker of the transport. Locked for a few instructions, never across an
    // await.
    breaker: Mutex<Breaker>,
    // Set when the transport answered a check. Written by the backlog job, taken by the route.
    transport_answers: AtomicBool,
    // Locked like the breaker, by publishers before and after each batch.
    out: Mutex<UnconfirmedBatches>,
}

impl Context {
    #[expect(clippy::too_many_arguments, reason = "the parts of a route, once, from the builder")]
    pub(crate) fn new(
        store: Arc<dyn Store>,
        transport: Arc<dyn Transport>,
        route: Route,
        relay: RelayId,
        source: Arc<str>,
        clock: Arc<dyn Clock>,
        seed: u64,
        config: RelayConfig,
    ) -> Self {
        let started = clock.elapsed();
        Self {
            fingerprint: fingerprint(&source, &config.retry, store.history_kept()),
            store,
            transport,
            source,
            relay,
            started,
            clock,
            seed,
            limits: Limits::of(&config),
            counters: Counters::new(route.clone()),
            unserved: UnservedRoutes::new(started, config.store_timeout),
            checked: TransportCheck::default(),
            confirmed_then: AtomicU64::new(0),
            tenure: Tenure::default(),
            giving_way: Arc::default(),
            paused: AtomicBool::new(false),
            in_flight: Default::default(),
            transport_answers: AtomicBool::new(false),
            pauses: Mutex::default(),
            store_time: Mutex::default(),
            breaker: Mutex::new(Breaker::new(config.outage_first_delay, config.outage_max_delay)),
            out: Mutex::default(),
            route,
            config,
        }
    }

    pub(crate) fn now(&self) -> Duration {
        self.clock.elapsed()
    }

    /// Notes the database's time, as a heartbeat has just returned it.
    pub(crate) fn store_says(&self, now: Timestamp) {
        *self.store_time.lock().unwrap_or_else(PoisonError::into_inner) = (now, self.now());
    }

    /// Returns the time by the database's clock, behind it by the time that the answer of the last
    /// heartbeat took. The wall clocks of two machines may be hours apart.
    pub(crate) fn store_now(&self) -> Timestamp {
        let (said, at) = *self.store_time.lock().unwrap_or_else(PoisonError::into_inner);
        said.plus(self.now().saturating_sub(at))
    }

    /// Returns what operators have paused, as of a heartbeat that began at this instant.
    ///
    /// [`Tenure::renewed`] may belong to a later heartbeat, which the route has not processed yet.
    pub(crate) fn paused(&self) -> (Paused, Duration) {
        self.pauses.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(crate) fn pause(&self, paused: &Paused, asked: Duration) {
        self.paused.store(paused.route, Ordering::Release);
        *self.pauses.lock().unwrap_or_else(PoisonError::into_inner) = (paused.clone(), asked);
    }

    pub(crate) fn breaker(&self) -> MutexGuard<'_, Breaker> {
        self.breaker.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Publishes the state of the core to the other actors.
    pub(crate) fn show(&self, breaker: Breaker, in_flight: (usize, usize)) {
        *self.breaker() = breaker;
        self.in_flight.0.store(in_flight.0, Ordering::Relaxed);
        self.in_flight.1.store(in_flight.1, Ordering::Relaxed);
    }

    /// Returns the number of messages and bytes in memory.
    pub(crate) fn in_flight(&self) -> (usize, usize) {
        (self.in_flight.0.load(Ordering::Relaxed), self.in_flight.1.load(Ordering::Relaxed))
    }

    /// Records that a transport that counted as unavailable answered a check. Returns false if that
    /// was known.
    pub(crate) fn transport_answers(&self) -> bool {
        self.transport_answers.store(true, Ordering::Release);
        self.breaker().heard()
    }

    /// Returns true if the transport answered a check since the last call.
    pub(crate) fn take_transport_answers(&self) -> bool {
        self.transport_answers.load(Ordering::Acquire) && self.transport_answers.swap(false, Ordering::AcqRel)
    }

    /// Checks the transport, as at the start.
    pub(crate) async fn check_transport(&self) {
        self.checked.look(&*self.transport, self.config.publish_timeout).await;
        if self.checked.unanswered().is_some() {
            self.confirmed_then.store(self.counters.delivered(), Ordering::Relaxed);
        }
    }

    /// Returns why the transport did not answer the last check, unless it has confirmed a message
    /// since.
    pub(crate) fn unanswered(&self) -> Option<String> {
        let is_last = self.counters.delivered() == self.confirmed_then.load(Ordering::Relaxed);
        self.checked.unanswered().filter(|_| is_last)
    }

    /// Returns the unconfirmed batches.
    pub(crate) fn out(&self) -> MutexGuard<'_, UnconfirmedBatches> {
        self.out.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the context of a member of a consumer, which may give way.
    pub(crate) fn of_inbox(self, giving_way: Arc<GivingWay>) -> Self {
        Self { limits: Limits::of_inbox(&self.config), giving_way, ..self }
    }

    /// Returns true if this relay is to have no bucket while another one is of use: its transport
    /// has been unavailable for longer than a lease, or its program is too old for what waits.
    pub(crate) fn is_of_no_use(&self) -> bool {
        let gives_way = self.giving_way.gives_way(&self.route, self.now());
        gives_way || self.is_cut_off()
    }

    /// Returns true if the transport has been unavailable for longer than a lease.
    fn is_cut_off(&self) -> bool {
        self.breaker().away_since().is_some_and(|since| self.now().saturating_sub(since) > self.config.lease)
    }
}

/// Failure of a part of a relay. It restarts the route: everything in memory is dropped and read
/// again.
#[derive(Debug)]
pub(crate) struct RouteFailure(pub(crate) String);

impl std::fmt::Display for RouteFailure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for RouteFailure {}

/// Waits for a call to a backend, at most for `limit`. A panic of the call is a failure.
pub(crate) async fn in_time<T, E: std::fmt::Display>(
    limit: Duration,
    what: &str,
    call: impl Future<Output = Result<T, E>>,
) -> Result<T, RouteFailure> {
    match answer(limit, call).await {
        Ok(done) => done.map_err(|error| RouteFailure(error.to_string())),
        Err(why) => Err(RouteFailure(format!("{what}: {why}"))),
    }
}
