//! Builder of a relay: collects the settings, checks them, starts the relay.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use outbox_contract::backend::{Clock, RelayId, SystemClock};
use outbox_contract::{RetryPolicy, Route, Store, StoreError, Transport};
use ractor::{Actor, ActorRef};

use super::config::RelayConfig;
use super::context::Context;
use super::handle::RelayHandle;
use super::maintenance::Maintenance;
use super::observer::RelayObserver;
use super::supervisor::{RouteMsg, RouteSupervisor};
use crate::giving_way::GivingWay;
use crate::settings::settings;
use crate::start::{StartError, answered_in_time, reached_in_time, warn_of_abort};
use crate::telemetry::describe_metrics;

/// Moves committed messages from a store to a transport: in the order of their commits, key by key,
/// at least once.
///
/// ```no_run
/// # async fn run(store: impl outbox_contract::Store, transport: impl outbox_contract::Transport)
/// # -> Result<(), Box<dyn std::error::Error>> {
/// # mod outbox { pub use outbox_contract::*; pub use outbox_engine::*; }
/// use outbox::Relay;
/// use std::time::Duration;
///
/// let relay = Relay::builder(store, transport).label("orders-relay").start().await?;
/// // … until the process is asked to stop:
/// let drained = relay.stop(Duration::from_secs(20)).await;
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Relay;

impl Relay {
    /// Returns the builder of a relay that sends the route `default` of a store to a transport.
    ///
    /// Both are cheap to clone, or shared in an `Arc`.
    pub fn builder(store: impl Store, transport: impl Transport) -> RelayBuilder {
        Self::of_route(&Route::default(), Arc::new(store), Arc::new(transport))
    }

    /// Returns the builder of a relay of one route.
    pub(crate) fn of_route(
        route: &Route,
        store: Arc<dyn Store>,
        transport: Arc<dyn Transport>,
    ) -> RelayBuilder {
        RelayBuilder {
            store,
            routes: vec![(route.to_string(), transport)],
            config: RelayConfig::default(),
            clock: Arc::new(SystemClock::new()),
            seed: None,
            id: None,
            giving_way: None,
        }
    }
}

/// Routes, each with its transport.
type Transports = Vec<(Route, Arc<dyn Transport>)>;

/// Builder of a [`Relay`].
///
/// Checks nothing before [`start`](Self::start), which reports everything that is wrong at once.
#[must_use = "nothing runs before `start`"]
pub struct RelayBuilder {
    store: Arc<dyn Store>,
    routes: Vec<(String, Arc<dyn Transport>)>,
    config: RelayConfig,
    clock: Arc<dyn Clock>,
    seed: Option<u64>,
    id: Option<RelayId>,
    /// Decision of a member of a consumer to give way. None: it is no relay of an inbox.
    giving_way: Option<Arc<GivingWay>>,
}

impl fmt::Debug for RelayBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let routes: Vec<_> = self.routes.iter().map(|(route, transport)| (route, transport.name())).collect();
        f.debug_struct("RelayBuilder")
            .field("store", &self.store.name())
            .field("routes", &routes)
            .field("config", &self.config)
            .finish_non_exhaustive()
    }
}

impl RelayBuilder {
    /// Adds another route of the store, with a transport of its own.
    pub fn route(mut self, name: impl Into<String>, transport: impl Transport) -> Self {
        self.routes.push((name.into(), Arc::new(transport)));
        self
    }

    /// Replaces the whole configuration.
    pub fn config(mut self, config: RelayConfig) -> Self {
        self.config = config;
        self
    }

    /// Name of this relay in logs and in the database. See [`RelayConfig::label`].
    pub fn label(mut self, label: impl Into<String>) -> Self {
        self.config.label = label.into();
        self
    }

    /// `source` attribute of CloudEvents. See [`RelayConfig::source`].
    pub fn source(mut self, source: impl Into<String>) -> Self {
        self.config.source = Some(source.into());
        self
    }

    settings! {
        /// Duration of a lease. See [`RelayConfig::lease`].
        lease: Duration,
        /// Interval of heartbeats, which renew the leases. See [`RelayConfig::heartbeat`].
        heartbeat: Duration,
        /// Timeout of a publish batch. See [`RelayConfig::publish_timeout`].
        publish_timeout: Duration,
        /// Timeout of a call to the store. See [`RelayConfig::store_timeout`].
        store_timeout: Duration,
        /// Maximum number of messages of one fetch. See [`RelayConfig::fetch_batch`].
        fetch_batch: usize,
        /// Maximum number of bytes of one fetch. See [`RelayConfig::fetch_batch_bytes`].
        fetch_batch_bytes: usize,
        /// Maximum number of messages in memory. See [`RelayConfig::max_in_flight`].
        max_in_flight: usize,
        /// Maximum number of bytes of messages in memory. See [`RelayConfig::max_in_flight_bytes`].
        max_in_flight_bytes: usize,
        /// Maximum number of messages of one key in memory. See [`RelayConfig::per_key`].
        per_key: usize,
        /// Maximum number of unconfirmed batches. See [`RelayConfig::max_unconfirmed_batches`].
        max_unconfirmed_batches: usize,
        /// Maximum number of messages of a publish batch. See [`RelayConfig::publish_batch`].
        publish_batch: usize,
        /// Maximum number of bytes of a publish batch. See [`RelayConfig::publish_batch_bytes`].
        publish_batch_bytes: usize,
        /// Polling interval of an idle relay. See [`RelayConfig::idle_poll`].
        idle_poll: Duration,
        /// Polling interval for failing keys. See [`RelayConfig::due_poll`].
        due_poll: Duration,
        /// Polling interval for scheduled messages and expired rows. See
        /// [`RelayConfig::maintain_every`].
        maintain_every: Duration,
        /// Interval at which the backlog is measured. See [`RelayConfig::observe_every`].
        observe_every: Duration,
        /// First delay while a transport is unavailable. See [`RelayConfig::outage_first_delay`].
        outage_first_delay: Duration,
        /// Maximum delay while a transport is unavailable. See [`RelayConfig::outage_max_delay`].
        outage_max_delay: Duration,
        /// Age of the oldest waiting message from which the relay is unhealthy. See
        /// [`RelayConfig::unhealthy_age`].
        unhealthy_age: Duration,
        /// Retry policy of failing messages. See [`RelayConfig::retry`].
        retry: RetryPolicy,
    }

    /// Sets what an inbox has set for the relay that it runs.
    pub(crate) fn of_inbox(
        self,
        clock: Arc<dyn Clock>,
        seed: Option<u64>,
        id: Option<RelayId>,
        giving_way: Arc<GivingWay>,
    ) -> Self {
        Self { clock, seed, id, giving_way: Some(giving_way), ..self }
    }

    /// Clock that leases are measured with. A seam for tests.
    #[cfg(feature = "test-util")]
    #[cfg_attr(docsrs, doc(cfg(feature = "test-util")))]
    pub fn clock(mut self, clock: Arc<dyn Clock>) -> Self {
        self.clock = clock;
        self
    }

    /// Seed of all randomness (jitter). A seam for tests.
    ///
    /// With a seed, an id, a controlled clock, the memory backends and one thread, a run is
    /// reproducible to the last step.
    #[cfg(feature = "test-util")]
    #[cfg_attr(docsrs, doc(cfg(feature = "test-util")))]
    pub fn seed(mut self, seed: u64) -> Self {
        self.seed = Some(seed);
        self
    }

    /// Id of this run of the relay. A seam for tests: with the id of an earlier run, the store
    /// takes the relay for that one, still running.
    #[cfg(feature = "test-util")]
    #[cfg_attr(docsrs, doc(cfg(feature = "test-util")))]
    pub fn id(mut self, id: RelayId) -> Self {
        self.id = Some(id);
        self
    }

    /// Checks the configuration and the store, then starts the relay on the current Tokio runtime.
    ///
    /// A transport that is unreachable now does not prevent the start: the relay keeps retrying.
    ///
    /// # Errors
    ///
    /// - [`StartError::Config`] with everything that is wrong;
    /// - [`StartError::Store`] when the store is unreachable, does not answer within
    ///   [`store_timeout`](Self::store_timeout), or was not migrated;
    /// - [`StartError::Transport`] when the transport reports an error that no retry can cure.
    pub async fn start(self) -> Result<RelayHandle, StartError> {
        let routes = self.checked()?;
        warn_of_abort();
        describe_metrics();
        answered_in_time(self.config.store_timeout, "check", self.store.check())
            .await
            .map_err(StartError::Store)?;
        let mut unanswered = Vec::with_capacity(routes.len());
        for (route, transport) in &routes {
            let mut why = None;
            if let Err(error) = reached_in_time(self.config.publish_timeout, transport.check()).await {
                if !error.is_retryable() {
                    return Err(StartError::Transport(route.clone(), error));
                }
                tracing::warn!(%route, %error, "transport unreachable; starting anyway, will keep retrying");
                why = Some(error.to_string());
            }
            unanswered.push(why);
        }
        let source: Arc<str> = self.source_in_force().await.map_err(StartError::Store)?.into();
        let relay = self.id.unwrap_or_else(RelayId::new);
        let seed = self.seed.unwrap_or_else(|| fastrand::u64(..));
        let mut contexts = Vec::new();
        let mut supervisors: Vec<(Arc<Context>, ActorRef<RouteMsg>)> = Vec::new();
        for ((number, (route, transport)), unanswered) in (0u64..).zip(routes).zip(unanswered) {
            let context = Context::new(
                Arc::clone(&self.store),
                transport,
                route,
                relay,
                Arc::clone(&source),
                Arc::clone(&self.clock),
                seed.wrapping_add(number << 32),
                self.config.clone(),
            );
            let context = Arc::new(match &self.giving_way {
                Some(giving_way) => context.of_inbox(Arc::clone(giving_way)),
                None => context,
            });
            if let Some(why) = unanswered {
                context.checked.is_unanswered(why);
            }
            contexts.push(Arc::clone(&context));
            let supervisor = RouteSupervisor { context: Arc::clone(&context) };
            let (supervisor, _) = Actor::spawn(None, supervisor, ())
                .await
                .map_err(|error| StartError::Runtime(error.to_string()))?;
            supervisors.push((context, supervisor));
        }
        if let Some(first) = contexts.first() {
            first.counters.is_to_maintain();
        }
        let (maintenance, _) = Actor::spawn(None, Maintenance { routes: contexts }, ())
            .await
            .map_err(|error| StartError::Runtime(error.to_string()))?;
        Ok(RelayHandle::new(RelayObserver::new(relay, supervisors, maintenance.get_cell())))
    }

    /// Returns the `source` of what it publishes: the configured one, or else the identity of the
    /// outbox.
    async fn source_in_force(&self) -> Result<String, StoreError> {
        match &self.config.source {
            Some(source) => Ok(source.clone()),
            None => {
                let identity = self.store.identity();
                Ok(answered_in_time(self.config.store_timeout, "identity", identity).await?.source())
            }
        }
    }

    /// Labels it with the name of a service, unless it has a label of its own.
    pub(crate) fn named(mut self, service: &str) -> Self {
        if self.config.label == RelayConfig::default().label {
            service.clone_into(&mut self.config.label);
        }
        self
    }

    /// Lists everything that is wrong.
    pub(crate) fn problems(&self) -> Vec<String> {
        match self.checked() {
            Err(StartError::Config(problems)) => problems,
            _ => Vec::new(),
        }
    }

    fn checked(&self) -> Result<Transports, StartError> {
        let mut problems = self.config.problems();
        let mut routes: BTreeMap<Route, Arc<dyn Transport>> = BTreeMap::new();
        for (name, transport) in &self.routes {
            match Route::new(name) {
                Ok(route) if routes.contains_key(&route) => {
                    problems.push(format!("route {route} is configured twice; give it one transport"));
                }
                Ok(route) => {
                    routes.insert(route, Arc::clone(transport));
                }
                Err(error) => problems.push(error.to_string()),
            }
        }
        if problems.is_empty() { Ok(routes.into_iter().collect()) } else { Err(StartError::Config(problems)) }
    }
}
