//! What all actors of a route share.

use std::panic::AssertUnwindSafe;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::FutureExt;
use outbox_contract::backend::{Clock, Paused, RelayId};
use outbox_contract::{Route, Store, StoreError, StoreErrorKind, Transport};

use super::config::RelayConfig;
use super::core::breaker::Breaker;
use super::maintenance::UnservedRoutes;
use super::policies::Policies;
use super::publish_timeout::Out;
use super::stats::Counters;
use super::tenure::Tenure;

/// One route of one relay.
pub(crate) struct Context {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) transport: Arc<dyn Transport>,
    pub(crate) route: Route,
    pub(crate) relay: RelayId,
    pub(crate) source: Arc<str>,
    pub(crate) fingerprint: i64,
    pub(crate) clock: Arc<dyn Clock>,
    /// When the relay was started, on its own clock.
    pub(crate) started: Duration,
    pub(crate) seed: u64,
    pub(crate) config: RelayConfig,
    pub(crate) policies: Arc<Policies>,
    pub(crate) counters: Counters,
    /// Routes that no relay serves. Used of the first route of a relay alone.
    pub(crate) unserved: UnservedRoutes,
    pub(crate) tenure: Tenure,
    /// Whether an operator paused the route. Written by the route, read by the health check.
    pub(crate) paused: AtomicBool,
    // Messages and bytes in memory. Written by the route, read as numbers.
    in_flight: (AtomicUsize, AtomicUsize),
    // What operators paused, and when the heartbeat began that told of it. Written by the route, read by who handles beside this relay; held
    // while it is copied.
    told_of_pauses: Mutex<(Paused, Duration)>,
    // Whether the transport is there, as the core has it. Locked for a few instructions, never across an await.
    breaker: Mutex<Breaker>,
    // The transport answered a check. Written by the backlog job, taken by the route.
    transport_answers: AtomicBool,
    // As the breaker; asked by publishers before and behind each batch.
    out: Mutex<Out>,
}

impl Context {
    #[expect(clippy::too_many_arguments, reason = "the parts of a route, once, from the builder")]
    pub(crate) fn new(
        store: Arc<dyn Store>,
        transport: Arc<dyn Transport>,
        route: Route,
        relay: RelayId,
        clock: Arc<dyn Clock>,
        seed: u64,
        config: RelayConfig,
        policies: Arc<Policies>,
        fingerprint: i64,
    ) -> Self {
        let started = clock.elapsed();
        Self {
            store,
            transport,
            source: config.source.as_str().into(),
            fingerprint,
            relay,
            started,
            clock,
            seed,
            policies,
            counters: Counters::new(route.clone()),
            unserved: UnservedRoutes::new(started, config.store_timeout),
            tenure: Tenure::default(),
            paused: AtomicBool::new(false),
            in_flight: Default::default(),
            transport_answers: AtomicBool::new(false),
            told_of_pauses: Mutex::default(),
            breaker: Mutex::new(Breaker::new(config.outage_first_delay, config.outage_max_delay)),
            out: Mutex::default(),
            route,
            config,
        }
    }

    pub(crate) fn now(&self) -> Duration {
        self.clock.elapsed()
    }

    /// What operators have paused, as of a heartbeat that began at this instant. The tenure's instant may be of a later heartbeat than the poller has heard of.
    pub(crate) fn paused(&self) -> (Paused, Duration) {
        self.told_of_pauses.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(crate) fn pause(&self, paused: &Paused, asked: Duration) {
        self.paused.store(paused.route, Ordering::Release);
        *self.told_of_pauses.lock().unwrap_or_else(PoisonError::into_inner) = (paused.clone(), asked);
    }

    pub(crate) fn breaker(&self) -> MutexGuard<'_, Breaker> {
        self.breaker.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Shows what the core has.
    pub(crate) fn show(&self, breaker: Breaker, in_flight: (usize, usize)) {
        *self.breaker() = breaker;
        self.in_flight.0.store(in_flight.0, Ordering::Relaxed);
        self.in_flight.1.store(in_flight.1, Ordering::Relaxed);
    }

    /// Messages and bytes in memory.
    pub(crate) fn in_flight(&self) -> (usize, usize) {
        (self.in_flight.0.load(Ordering::Relaxed), self.in_flight.1.load(Ordering::Relaxed))
    }

    /// The transport, which was thought away, answered a check. Says whether that is news.
    pub(crate) fn transport_answers(&self) -> bool {
        self.transport_answers.store(true, Ordering::Release);
        self.breaker().heard()
    }

    /// Whether the transport answered a check since this was asked last.
    pub(crate) fn take_transport_answers(&self) -> bool {
        self.transport_answers.load(Ordering::Acquire) && self.transport_answers.swap(false, Ordering::AcqRel)
    }

    /// The batches that are out.
    pub(crate) fn out(&self) -> MutexGuard<'_, Out> {
        self.out.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the transport has been away for longer than a lease.
    pub(crate) fn is_cut_off(&self) -> bool {
        self.breaker().away_since().is_some_and(|since| self.now().saturating_sub(since) > self.config.lease)
    }
}

/// Why a part of a relay stopped: everything known is dropped and read again.
#[derive(Debug)]
pub(crate) struct Broken(pub(crate) String);

impl std::fmt::Display for Broken {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Broken {}

/// Asks a store, before anything is started on it, whether it can be worked with.
pub(crate) async fn checked_in_time(limit: Duration, store: &dyn Store) -> Result<(), StoreError> {
    tokio::time::timeout(limit, store.check()).await.unwrap_or_else(|_| {
        let words = format!("no answer within {limit:?}; start again, or give store_timeout more time");
        Err(StoreError::new(StoreErrorKind::Unavailable, "check", words))
    })
}

/// Waits for a call to a backend, but no longer than the configuration allows. One that panics has failed.
pub(crate) async fn in_time<T, E: std::fmt::Display>(
    limit: Duration,
    what: &str,
    call: impl Future<Output = Result<T, E>>,
) -> Result<T, Broken> {
    // Nothing of the engine is touched by the call, so nothing can be left half done by a panic.
    match tokio::time::timeout(limit, AssertUnwindSafe(call).catch_unwind()).await {
        Ok(Ok(Ok(value))) => Ok(value),
        Ok(Ok(Err(error))) => Err(Broken(error.to_string())),
        Ok(Err(_)) => Err(Broken(format!("{what}: it panicked; its message was printed"))),
        Err(_) => Err(Broken(format!("{what}: no answer within {limit:?}"))),
    }
}
