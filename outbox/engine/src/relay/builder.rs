//! How a relay is put together and started.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use outbox_contract::backend::{Clock, RelayId, SystemClock};
use outbox_contract::{RetryPolicy, Route, Store, StoreError, Topic, Transport, TransportError};
use ractor::{Actor, ActorRef};

use super::config::RelayConfig;
use super::context::{Context, checked_in_time};
use super::handle::RelayHandle;
use super::maintenance::Maintenance;
use super::policies::Policies;
use super::supervisor::{RouteMsg, RouteSupervisor};
use crate::telemetry::describe_metrics;

/// Moves committed messages from a store to a transport: in the order of their commits, key by key, at least once.
///
/// ```no_run
/// # async fn run(store: impl outbox_contract::Store, transport: impl outbox_contract::Transport)
/// # -> Result<(), Box<dyn std::error::Error>> {
/// use outbox_engine::Relay;
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
    /// A relay that sends the route `default` of a store to a transport. Both are cheap to clone, or shared in an `Arc`.
    pub fn builder(store: impl Store, transport: impl Transport) -> RelayBuilder {
        Self::of_route(&Route::default(), Arc::new(store), Arc::new(transport))
    }

    /// A relay of one route.
    pub(crate) fn of_route(
        route: &Route,
        store: Arc<dyn Store>,
        transport: Arc<dyn Transport>,
    ) -> RelayBuilder {
        RelayBuilder {
            store,
            routes: vec![(route.to_string(), transport)],
            config: RelayConfig::default(),
            policies: Vec::new(),
            clock: Arc::new(SystemClock::new()),
            seed: None,
            id: None,
        }
    }
}

/// Sets a relay up. Nothing is checked before [`start`](Self::start), which then reports everything that is wrong at once.
#[must_use = "nothing runs before `start`"]
pub struct RelayBuilder {
    store: Arc<dyn Store>,
    routes: Vec<(String, Arc<dyn Transport>)>,
    config: RelayConfig,
    policies: Vec<(String, RetryPolicy)>,
    clock: Arc<dyn Clock>,
    seed: Option<u64>,
    id: Option<RelayId>,
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

macro_rules! settings {
    ($($(#[$doc:meta])* $name:ident: $type:ty),* $(,)?) => {
        $($(#[$doc])*
        pub fn $name(mut self, $name: $type) -> Self {
            self.config.$name = $name;
            self
        })*
    };
}

impl RelayBuilder {
    /// Sends another route of the store to a transport of its own.
    pub fn route(mut self, name: impl Into<String>, transport: impl Transport) -> Self {
        self.routes.push((name.into(), Arc::new(transport)));
        self
    }

    /// Replaces the whole configuration.
    pub fn config(mut self, config: RelayConfig) -> Self {
        self.config = config;
        self
    }

    /// What people call this relay. See [`RelayConfig::label`].
    pub fn label(mut self, label: impl Into<String>) -> Self {
        self.config.label = label.into();
        self
    }

    /// The `source` of CloudEvents. See [`RelayConfig::source`].
    pub fn source(mut self, source: impl Into<String>) -> Self {
        self.config.source = source.into();
        self
    }

    /// Retries failing messages of a topic by a policy of its own.
    pub fn topic_retry(mut self, topic: impl Into<String>, retry: RetryPolicy) -> Self {
        self.policies.push((topic.into(), retry));
        self
    }

    settings! {
        /// How long leases last. See [`RelayConfig::lease`].
        lease: Duration,
        /// How often leases are renewed. See [`RelayConfig::heartbeat`].
        heartbeat: Duration,
        /// How long a batch may take. See [`RelayConfig::publish_timeout`].
        publish_timeout: Duration,
        /// How long a call to the store may take. See [`RelayConfig::store_timeout`].
        store_timeout: Duration,
        /// The most messages of one fetch. See [`RelayConfig::fetch_batch`].
        fetch_batch: usize,
        /// The most bytes of one fetch. See [`RelayConfig::fetch_batch_bytes`].
        fetch_batch_bytes: usize,
        /// The most messages in memory. See [`RelayConfig::max_in_flight`].
        max_in_flight: usize,
        /// The most bytes of messages in memory. See [`RelayConfig::max_in_flight_bytes`].
        max_in_flight_bytes: usize,
        /// The most messages of one key in memory. See [`RelayConfig::per_key`].
        per_key: usize,
        /// Number of batches that a full fetch is divided into. See [`RelayConfig::lanes`].
        lanes: usize,
        /// Number of unconfirmed batches in times of `lanes`. See [`RelayConfig::max_unconfirmed_batches`].
        max_unconfirmed_batches: usize,
        /// The most messages of a batch. See [`RelayConfig::publish_batch`].
        publish_batch: usize,
        /// The most bytes of a batch. See [`RelayConfig::publish_batch_bytes`].
        publish_batch_bytes: usize,
        /// How often an idle relay looks by itself. See [`RelayConfig::idle_poll`].
        idle_poll: Duration,
        /// How often failing keys are looked for. See [`RelayConfig::due_poll`].
        due_poll: Duration,
        /// How often scheduled messages are looked for. See [`RelayConfig::maintain_every`].
        maintain_every: Duration,
        /// How often the backlog is measured. See [`RelayConfig::observe_every`].
        observe_every: Duration,
        /// The first wait for an unavailable transport. See [`RelayConfig::outage_first_delay`].
        outage_first_delay: Duration,
        /// The longest such wait. See [`RelayConfig::outage_max_delay`].
        outage_max_delay: Duration,
        /// The age of the oldest waiting message from which on the relay is unhealthy. See [`RelayConfig::unhealthy_age`].
        unhealthy_age: Duration,
        /// How failing messages are tried again. See [`RelayConfig::retry`].
        retry: RetryPolicy,
    }

    /// Sets what an inbox has set for the relay that it runs.
    pub(crate) fn of_inbox(mut self, clock: Arc<dyn Clock>, seed: u64, id: Option<RelayId>) -> Self {
        (self.clock, self.seed, self.id) = (clock, Some(seed), id);
        self
    }

    /// Sets the clock that leases are measured with. A seam for tests.
    #[cfg(feature = "test-util")]
    #[cfg_attr(docsrs, doc(cfg(feature = "test-util")))]
    pub fn clock(mut self, clock: Arc<dyn Clock>) -> Self {
        self.clock = clock;
        self
    }

    /// Sets the seed of all randomness (jitter). A seam for tests: with a seed, an id, a clock under control, the memory backends and one thread, a run is
    /// the same again to the last step.
    #[cfg(feature = "test-util")]
    #[cfg_attr(docsrs, doc(cfg(feature = "test-util")))]
    pub fn seed(mut self, seed: u64) -> Self {
        self.seed = Some(seed);
        self
    }

    /// Sets the id of this life of the relay. A seam for tests: an id that was used before is a relay that was never gone.
    #[cfg(feature = "test-util")]
    #[cfg_attr(docsrs, doc(cfg(feature = "test-util")))]
    pub fn id(mut self, id: RelayId) -> Self {
        self.id = Some(id);
        self
    }

    /// Checks everything, then starts the relay on the current Tokio runtime.
    ///
    /// A transport that can't be reached now does not keep the relay from starting: it waits for it.
    ///
    /// # Errors
    ///
    /// [`StartError::Config`] with everything that is wrong; [`StartError::Store`] when the store can't be reached, does not answer within
    /// [`store_timeout`](Self::store_timeout), or was not migrated; [`StartError::Transport`] when the transport says that it will never work as
    /// it is.
    pub async fn start(self) -> Result<RelayHandle, StartError> {
        let (routes, policies) = self.checked()?;
        warn_of_abort();
        describe_metrics();
        checked_in_time(self.config.store_timeout, &*self.store).await.map_err(StartError::Store)?;
        for (route, transport) in &routes {
            if let Err(error) = transport.check().await {
                if !error.is_retryable() {
                    return Err(StartError::Transport(route.clone(), error));
                }
                tracing::warn!(%route, %error, "the transport is not to be had yet; starting all the same");
            }
        }
        let relay = self.id.unwrap_or_else(RelayId::new);
        let seed = self.seed.unwrap_or_else(|| fastrand::u64(..));
        let policies = Arc::new(policies);
        let fingerprint = fingerprint(&policies);
        let mut contexts = Vec::new();
        let mut supervisors: Vec<(Arc<Context>, ActorRef<RouteMsg>)> = Vec::new();
        for (number, (route, transport)) in (0u64..).zip(routes) {
            let context = Arc::new(Context::new(
                Arc::clone(&self.store),
                transport,
                route,
                relay,
                Arc::clone(&self.clock),
                seed.wrapping_add(number << 32),
                self.config.clone(),
                Arc::clone(&policies),
                fingerprint,
            ));
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
        Ok(RelayHandle::new(relay, supervisors, maintenance.get_cell()))
    }

    #[expect(clippy::type_complexity, reason = "two lists, taken apart at once")]
    fn checked(&self) -> Result<(Vec<(Route, Arc<dyn Transport>)>, Policies), StartError> {
        let mut problems = self.config.problems();
        let mut routes: BTreeMap<Route, Arc<dyn Transport>> = BTreeMap::new();
        for (name, transport) in &self.routes {
            match Route::new(name) {
                Ok(route) if routes.contains_key(&route) => {
                    problems.push(format!("there are two routes named {route}; give each a name of its own"));
                }
                Ok(route) => {
                    routes.insert(route, Arc::clone(transport));
                }
                Err(error) => problems.push(error.to_string()),
            }
        }
        let mut policies = Policies { default: self.config.retry.clone(), by_topic: BTreeMap::new() };
        for (name, policy) in &self.policies {
            problems.extend(policy.problems().into_iter().map(|problem| format!("topic {name}: {problem}")));
            match Topic::new(name) {
                Ok(topic) => {
                    if policies.by_topic.insert(topic, policy.clone()).is_some() {
                        problems.push(format!("topic {name} has two policies; give it one"));
                    }
                }
                Err(error) => problems.push(error.to_string()),
            }
        }
        if problems.is_empty() {
            Ok((routes.into_iter().collect(), policies))
        } else {
            Err(StartError::Config(problems))
        }
    }
}

/// Says that a panic anywhere ends the whole process, where it was built so.
pub(crate) fn warn_of_abort() {
    if cfg!(panic = "abort") {
        tracing::warn!(
            "built with panic = \"abort\": a panic of a transport or a handler ends the process, and does so again with the same message"
        );
    }
}

/// A number that two relays share if they treat failing messages alike.
fn fingerprint(policies: &Policies) -> i64 {
    use std::hash::{DefaultHasher, Hash, Hasher};
    let mut hasher = DefaultHasher::new();
    format!("{policies:?}").hash(&mut hasher);
    hasher.finish().cast_signed()
}

/// Why a relay or an inbox was not started. Nothing runs.
#[derive(Debug)]
#[non_exhaustive]
pub enum StartError {
    /// The configuration makes no sense: everything that is wrong with it.
    Config(Vec<String>),
    /// The store can't be reached, or is not ready.
    Store(StoreError),
    /// The transport of a route will never work as it is.
    Transport(Route, TransportError),
    /// The parts of it could not be started.
    Runtime(String),
}

impl fmt::Display for StartError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Config(problems) => {
                f.write_str("nothing was started, since the configuration makes no sense:")?;
                problems.iter().try_for_each(|problem| write!(f, "\n- {problem}"))
            }
            Self::Store(error) => write!(f, "nothing was started: {error}"),
            Self::Transport(route, error) => write!(f, "nothing was started: route {route}: {error}"),
            Self::Runtime(error) => write!(f, "nothing was started: {error}"),
        }
    }
}

impl std::error::Error for StartError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Store(error) => Some(error),
            Self::Transport(_, error) => Some(error),
            Self::Config(_) | Self::Runtime(_) => None,
        }
    }
}
