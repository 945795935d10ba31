//! Setup of an inbox.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use outbox_contract::backend::{Clock, RelayId, SystemClock};
use outbox_contract::{Codec, DomainEvent, Json, Message, Outbox, RetryPolicy, Transactional, Transport};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::config::{HandlerOptions, InboxConfig, Mode, UnknownType};
use super::handler::MessageHandler;
use super::handlers::Handlers;
use super::steps::{Step, Steps};

mod start;

/// Handles what a transport delivers, in transactions of a store: each message's effect is committed once, in the order of its key.
///
/// ```no_run
/// # use std::time::Duration;
/// # mod outbox { pub use outbox_contract::*; pub use outbox_engine::*; }
/// # use outbox::{DomainEvent, HandlerContext, HandlerError, Inbox, Transactional, Transport};
/// # async fn run<S, E>(store: S, transport: impl Transport) -> Result<(), Box<dyn std::error::Error>>
/// # where S: Transactional, E: DomainEvent + serde::de::DeserializeOwned + Send + Sync + 'static {
/// async fn reserve<Tx, E>(_tx: &mut Tx, _event: E, _context: HandlerContext<'_>) -> Result<(), HandlerError> {
///     Ok(()) // your queries, with `tx`
/// }
///
/// let inbox = Inbox::builder(store, transport).consumer("inventory").on::<E, _>(reserve).start().await?;
/// // … until the process is asked to stop:
/// let drained = inbox.stop(Duration::from_secs(20)).await;
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Inbox;

impl Inbox {
    /// An inbox in a store, which receives from a transport. Both are cheap to clone, or shared in an `Arc`.
    pub fn builder<S: Transactional>(store: S, transport: impl Transport) -> InboxBuilder<S> {
        let store = Arc::new(store);
        InboxBuilder {
            outbox: Outbox::new(Arc::clone(&store)),
            store,
            transport: Arc::new(transport),
            consumer: String::new(),
            handlers: Handlers::new(),
            routes: Vec::new(),
            policies: Vec::new(),
            config: InboxConfig::default(),
            clock: Arc::new(SystemClock::new()),
            seed: None,
            id: None,
            steps: Steps::default(),
        }
    }
}

/// Sets an inbox up. Nothing is checked before [`start`](Self::start), which then reports everything that is wrong at once.
#[must_use = "nothing runs before `start`"]
pub struct InboxBuilder<S: Transactional, C: Codec = Json> {
    store: Arc<S>,
    outbox: Outbox<Arc<S>, C>,
    transport: Arc<dyn Transport>,
    consumer: String,
    handlers: Handlers<S::Tx<'static>, C>,
    routes: Vec<(String, String)>,
    policies: Vec<(String, RetryPolicy)>,
    config: InboxConfig,
    clock: Arc<dyn Clock>,
    seed: Option<u64>,
    id: Option<RelayId>,
    steps: Steps,
}

impl<S: Transactional, C: Codec> fmt::Debug for InboxBuilder<S, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("InboxBuilder")
            .field("store", &self.store.name())
            .field("transport", &self.transport.name())
            .field("consumer", &self.consumer)
            .field("handlers", &self.handlers)
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

impl<S: Transactional, C: Codec> InboxBuilder<S, C> {
    /// The name of the consumer: it stands in the store with each handled id, and names the group at the broker. Processes with one name
    /// share the messages. Another name is another consumer. What it gets of earlier messages is the broker's to say: on Kafka what the log still has,
    /// on Redis what was not trimmed, on RabbitMQ and within a process only what comes from then on. Needed.
    pub fn consumer(mut self, name: impl Into<String>) -> Self {
        self.consumer = name.into();
        self
    }

    /// Handles an event type with this function. Subscribes to its topic.
    ///
    /// The payload is read by the codec of the [outbox](Self::outbox): as JSON, unless another was set. One that can't be read becomes a dead letter.
    /// One of a newer schema version than this program knows fails, is tried
    /// again by the retry policy ([`retry`](Self::retry), [`topic_retry`](Self::topic_retry)), and is a dead letter when its attempts are used up:
    /// a policy that ends in [`Exhausted::Hold`](outbox_contract::Exhausted::Hold) has its key wait for a program that knows it.
    ///
    /// **Whatever else is on the topic becomes dead letters**, in the order of its keys. A consumer that wants some of a topic's types says so with
    /// [`unknown_types`](Self::unknown_types)`(`[`UnknownType::Ignore`]`)`.
    pub fn on<E, H>(self, handler: H) -> Self
    where
        E: DomainEvent + DeserializeOwned + Send + 'static,
        H: for<'a> MessageHandler<'a, S::Tx<'static>, E, C>,
    {
        self.on_with::<E, H>(HandlerOptions::default(), handler)
    }

    /// As [`on`](Self::on), with bounds of its own.
    pub fn on_with<E, H>(mut self, options: HandlerOptions, handler: H) -> Self
    where
        E: DomainEvent + DeserializeOwned + Send + 'static,
        H: for<'a> MessageHandler<'a, S::Tx<'static>, E, C>,
    {
        self.handlers.typed::<E, H>(options, handler);
        self
    }

    /// Handles messages of one type as they are, whatever is in them. Subscribes to the topic.
    pub fn on_message<H>(
        mut self,
        topic: impl AsRef<str>,
        event_type: impl AsRef<str>,
        options: HandlerOptions,
        handler: H,
    ) -> Self
    where
        H: for<'a> MessageHandler<'a, S::Tx<'static>, Message, C>,
    {
        self.handlers.raw(options, topic.as_ref(), event_type.as_ref(), handler);
        self
    }

    /// Handles every message that no other handler wants, as it is. Topics are subscribed to by [`topic`](Self::topic) and by other handlers.
    pub fn on_any<H>(mut self, handler: H) -> Self
    where
        H: for<'a> MessageHandler<'a, S::Tx<'static>, Message, C>,
    {
        self.handlers.any(HandlerOptions::default(), handler);
        self
    }

    /// Subscribes to a topic.
    pub fn topic(mut self, name: impl AsRef<str>) -> Self {
        self.handlers.topic(name.as_ref());
        self
    }

    /// Sets the fate of messages of subscribed topics that have no handler. Default: they become dead letters.
    pub fn unknown_types(mut self, unknown: UnknownType) -> Self {
        self.handlers.unknown = unknown;
        self
    }

    /// Reads version `from` of an event type as version `to`. Several steps are taken one after the other, up to the version that the
    /// handler's type has. Of a version without a step the handler's type itself must read the payload.
    pub fn upcast<Old, New>(
        mut self,
        event_type: impl AsRef<str>,
        from: u32,
        to: u32,
        upcast: impl Fn(Old) -> New + Send + Sync + 'static,
    ) -> Self
    where
        Old: DeserializeOwned + 'static,
        New: Serialize + 'static,
    {
        if let Err(problem) = self.handlers.upcasters.add(event_type.as_ref(), from, to, upcast) {
            self.handlers.problem(problem);
        }
        self
    }

    /// Emits as this outbox appends: by its codec, on its routes, within its limits. Events are read by the same codec. What is emitted goes to the
    /// inbox's own store, in the handler's transaction, whatever the outbox has. Default: JSON on the route `default`.
    ///
    /// Called before handlers and upcasters are registered, which read by that codec. Handlers take a [`HandlerContext`](super::HandlerContext) of it:
    /// `HandlerContext<'_, MyCodec>`.
    pub fn outbox<T: Transactional, D: Codec>(self, outbox: Outbox<T, D>) -> InboxBuilder<S, D> {
        InboxBuilder {
            outbox: outbox.with_store(Arc::clone(&self.store)),
            store: self.store,
            transport: self.transport,
            consumer: self.consumer,
            handlers: self.handlers.with_codec(),
            routes: self.routes,
            policies: self.policies,
            config: self.config,
            clock: self.clock,
            seed: self.seed,
            id: self.id,
            steps: self.steps,
        }
    }

    /// Sends what handlers emit of a topic by a route of its own: in addition to the routes of its [outbox](Self::outbox), or instead of `default`.
    pub fn route_for(mut self, topic: impl Into<String>, route: impl Into<String>) -> Self {
        self.routes.push((topic.into(), route.into()));
        self
    }

    /// Retries stored messages of a topic by a policy of its own.
    pub fn topic_retry(mut self, topic: impl Into<String>, retry: RetryPolicy) -> Self {
        self.policies.push((topic.into(), retry));
        self
    }

    /// Replaces the whole configuration.
    pub fn config(mut self, config: InboxConfig) -> Self {
        self.config = config;
        self
    }

    /// Name of this process for people. See [`InboxConfig::label`].
    pub fn label(mut self, label: impl Into<String>) -> Self {
        self.config.label = label.into();
        self
    }

    /// Duration of the leases of stored keys. See [`InboxConfig::lease`].
    pub fn lease(mut self, lease: Duration) -> Self {
        self.config.lease = Some(lease);
        self
    }

    settings! {
        /// Place where messages wait. See [`InboxConfig::mode`].
        mode: Mode,
        /// Maximum number of concurrent transactions. See [`InboxConfig::concurrency`].
        concurrency: usize,
        /// The most messages of one transaction. See [`InboxConfig::batch`].
        batch: usize,
        /// The most unacknowledged deliveries. See [`InboxConfig::prefetch`].
        prefetch: usize,
        /// The most bytes of them. See [`InboxConfig::prefetch_bytes`].
        prefetch_bytes: usize,
        /// The most dead letters beside which a record that is no message becomes one. See [`InboxConfig::max_undecodable`].
        max_undecodable: u64,
        /// Number of tries of a message in memory. See [`InboxConfig::tries`].
        tries: u32,
        /// The first wait between such tries. See [`InboxConfig::first_delay`].
        first_delay: Duration,
        /// The longest such wait. See [`InboxConfig::max_delay`].
        max_delay: Duration,
        /// Maximum time of a call to the store. See [`InboxConfig::store_timeout`].
        store_timeout: Duration,
        /// Interval of the look for failing keys. See [`InboxConfig::due_poll`].
        due_poll: Duration,
        /// The first wait for what is not to be had. See [`InboxConfig::outage_first_delay`].
        outage_first_delay: Duration,
        /// The longest such wait. See [`InboxConfig::outage_max_delay`].
        outage_max_delay: Duration,
        /// The age of a stored message from which on the inbox is unhealthy. See [`InboxConfig::unhealthy_age`].
        unhealthy_age: Duration,
        /// Retry policy of stored messages that fail. See [`InboxConfig::retry`].
        retry: RetryPolicy,
    }

    /// Sets the clock that leases and pauses are measured with. A seam for tests.
    #[cfg(feature = "test-util")]
    #[cfg_attr(docsrs, doc(cfg(feature = "test-util")))]
    pub fn clock(mut self, clock: Arc<dyn Clock>) -> Self {
        self.clock = clock;
        self
    }

    /// Sets the seed of all randomness (jitter). A seam for tests.
    #[cfg(feature = "test-util")]
    #[cfg_attr(docsrs, doc(cfg(feature = "test-util")))]
    pub fn seed(mut self, seed: u64) -> Self {
        self.seed = Some(seed);
        self
    }

    /// Sets the id of this life of the inbox in the store. A seam for tests.
    #[cfg(feature = "test-util")]
    #[cfg_attr(docsrs, doc(cfg(feature = "test-util")))]
    pub fn id(mut self, id: RelayId) -> Self {
        self.id = Some(id);
        self
    }

    /// Calls this after each step that is over. A seam for tests, which end the process there.
    #[cfg(feature = "test-util")]
    #[cfg_attr(docsrs, doc(cfg(feature = "test-util")))]
    pub fn on_step(mut self, told: impl Fn(Step) + Send + Sync + 'static) -> Self {
        self.steps = Steps::new(told);
        self
    }
}
