//! What all actors of a route share.

use std::panic::AssertUnwindSafe;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::FutureExt;
use outbox_contract::lease::Paused;
use outbox_contract::{Clock, RelayId, Route, Store, StoreError, StoreErrorKind, Transport};

use super::breaker::Breaker;
use super::config::RelayConfig;
use super::credit::Credit;
use super::patience::Out;
use super::policies::Policies;
use super::stats::Counters;
use super::tenure::Tenure;
use super::unserved::UnservedRoutes;

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
    pub(crate) credit: Arc<Credit>,
    /// How many fetches have begun. Written by the poller, read by lanes when a key begins to fail.
    pub(crate) fetches: AtomicU64,
    /// Whether an operator paused the route. Written by the poller, read by lanes before each chunk.
    pub(crate) paused: AtomicBool,
    // What operators paused, and when the heartbeat began that told of it. Written by the poller, read by who handles beside this relay; held
    // while it is copied.
    told_of_pauses: Mutex<(Paused, Duration)>,
    // Locked for a few instructions, never across an await; asked by lanes before each chunk.
    breaker: Mutex<Breaker>,
    // As the breaker; asked by publishers before and behind each chunk.
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
            credit: Credit::new(config.credit, config.credit_bytes),
            fetches: AtomicU64::new(0),
            paused: AtomicBool::new(false),
            told_of_pauses: Mutex::default(),
            breaker: Mutex::new(Breaker::new(config.outage_first_delay, config.outage_most_delay)),
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

    /// The chunks that are out.
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
