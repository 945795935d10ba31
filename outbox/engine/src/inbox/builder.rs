//! Setup of an inbox.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use outbox_contract::backend::{Clock, OffsetReset, RelayId, SystemClock};
use outbox_contract::{Codec, DomainEvent, Json, Message, Outbox, RetryPolicy, Transactional, Transport};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::ForeignRecord;
use super::config::{HandlerOptions, InboxConfig, Mode, UnknownType};
use super::foreign::Mapper;
use super::handler::MessageHandler;
use super::handlers::Handlers;
#[cfg(feature = "test-util")]
use super::steps::Step;
use super::steps::Steps;
use crate::mediator::HandlerError;
use crate::settings::settings;

mod start;

/// Handles what a transport delivers, in transactions of a store: each message's effect is
/// committed once, in the order of its key.
///
/// ```no_run
/// # use std::time::Duration;
/// # mod outbox { pub use outbox_contract::*; pub use outbox_engine::*; }
/// # use outbox::{DomainEvent, HandlerContext, HandlerError, Inbox, Transactional, Transport};
/// # async fn run<S, E>(store: S, transport: impl Transport) -> Result<(), Box<dyn std::error::Error>>
/// # where S: Transactional, E: DomainEvent + serde::de::DeserializeOwned + Send + Sync + 'static {
/// async fn reserve<S: Transactional, E>(_event: E, _context: &mut HandlerContext<'_, S>) -> Result<(), HandlerError> {
///     Ok(()) // your queries, with `context.tx()`
/// }
///
/// let inbox = Inbox::builder(store, transport).consumer("inventory").on(reserve::<S, E>).start().await?;
/// // … until the process is asked to stop:
/// let drained = inbox.stop(Duration::from_secs(20)).await;
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Inbox;

impl Inbox {
    /// Returns the builder of an inbox in a store, which receives from a transport. Both are cheap to
    /// clone, or shared in an `Arc`.
    pub fn builder<S: Transactional>(store: S, transport: impl Transport) -> InboxBuilder<S> {
        let store = Arc::new(store);
        InboxBuilder {
            outbox: Outbox::new(Arc::clone(&store)),
            store,
            state: Arc::new(()),
            handlers: Handlers::new(),
            config: InboxConfig::default(),
            wiring: Wiring {
                transport: Arc::new(transport),
                consumer: String::new(),
                mapper: None,
                routes: Vec::new(),
                clock: Arc::new(SystemClock::new()),
                seed: None,
                id: None,
                steps: Steps::default(),
                own_store: false,
            },
        }
    }
}

/// Builder of an [`Inbox`]. Checks nothing before [`start`](Self::start), which reports everything
/// that is wrong at once.
#[must_use = "nothing runs before `start`"]
pub struct InboxBuilder<S: Transactional, A = (), C: Codec = Json> {
    store: Arc<S>,
    outbox: Outbox<Arc<S>, C>,
    state: Arc<A>,
    handlers: Handlers<S, C>,
    config: InboxConfig,
    wiring: Wiring,
}

/// Parts of an inbox that depend on no type of the program.
struct Wiring {
    transport: Arc<dyn Transport>,
    consumer: String,
    mapper: Option<Mapper>,
    routes: Vec<(String, String)>,
    clock: Arc<dyn Clock>,
    seed: Option<u64>,
    id: Option<RelayId>,
    steps: Steps,
    /// True if the store was replaced: its pool is another one.
    own_store: bool,
}

impl<S: Transactional, A, C: Codec> fmt::Debug for InboxBuilder<S, A, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("InboxBuilder")
            .field("store", &self.store.name())
            .field("transport", &self.wiring.transport.name())
            .field("consumer", &self.wiring.consumer)
            .field("handlers", &self.handlers)
            .field("config", &self.config)
            .finish_non_exhaustive()
    }
}

impl<S: Transactional, A: Send + Sync + 'static, C: Codec> InboxBuilder<S, A, C> {
    /// Sets the name of the consumer. The store keeps it with each handled id, and the broker uses
    /// it as the name of the group. Processes with the same name share the messages. Another name
    /// is another consumer: which earlier messages it gets depends on the broker. On Kafka these
    /// are all that the log still has, on Redis those that were not trimmed, on RabbitMQ and within
    /// a process none. Required.
    pub fn consumer(mut self, name: impl Into<String>) -> Self {
        self.wiring.consumer = name.into();
        self
    }

    /// Sets the state of the application, which handlers registered from here on find in
    /// [`HandlerContext::state`](super::HandlerContext::state). They name its type:
    /// `HandlerContext<'_, MyStore, App>`. Use an `Arc` to share it.
    pub fn state<B: Send + Sync + 'static>(self, state: B) -> InboxBuilder<S, B, C> {
        self.shared_state(Arc::new(state))
    }

    pub(crate) fn shared_state<B>(self, state: Arc<B>) -> InboxBuilder<S, B, C> {
        InboxBuilder {
            store: self.store,
            outbox: self.outbox,
            state,
            handlers: self.handlers,
            config: self.config,
            wiring: self.wiring,
        }
    }

    /// Replaces the transport that the inbox receives from.
    pub fn transport(mut self, transport: impl Transport) -> Self {
        self.wiring.transport = Arc::new(transport);
        self
    }

    /// Takes transactions from another store of the same database, on a connection pool of its own,
    /// so that handlers and requests do not wait for each other.
    pub fn store(mut self, store: S) -> Self {
        self.store = Arc::new(store);
        self.outbox = self.outbox.with_store(Arc::clone(&self.store));
        self.wiring.own_store = true;
        self
    }

    /// Handles events of the type that this handler takes. Subscribes to its topic.
    ///
    /// The payload is read by the codec of the [outbox](Self::outbox): as JSON, unless another was
    /// set. One that can't be read becomes a dead letter. One of a newer schema version than this
    /// program knows waits with its key for a newer program, at most for
    /// [`wait_for_upgrade`](Self::wait_for_upgrade).
    ///
    /// **Whatever else is on the topic waits in the same way**, and so do the later messages of its
    /// keys. A consumer that wants some of a topic's types says so with
    /// [`unknown_types`](Self::unknown_types)`(`[`UnknownType::Ignore`]`)`.
    pub fn on<E, H>(self, handler: H) -> Self
    where
        E: DomainEvent + DeserializeOwned + Send + 'static,
        H: for<'a> MessageHandler<'a, E, S, A, C>,
    {
        self.on_with(HandlerOptions::default(), handler)
    }

    /// Like [`on`](Self::on), with options for this handler.
    pub fn on_with<E, H>(mut self, options: HandlerOptions, handler: H) -> Self
    where
        E: DomainEvent + DeserializeOwned + Send + 'static,
        H: for<'a> MessageHandler<'a, E, S, A, C>,
    {
        self.handlers.typed(options, handler, Arc::clone(&self.state));
        self
    }

    /// Handles messages of one type without decoding them. Subscribes to the topic.
    pub fn on_message<H>(self, topic: impl AsRef<str>, event_type: impl AsRef<str>, handler: H) -> Self
    where
        H: for<'a> MessageHandler<'a, Message, S, A, C>,
    {
        self.on_message_with(topic, event_type, HandlerOptions::default(), handler)
    }

    /// Like [`on_message`](Self::on_message), with options for this handler.
    pub fn on_message_with<H>(
        mut self,
        topic: impl AsRef<str>,
        event_type: impl AsRef<str>,
        options: HandlerOptions,
        handler: H,
    ) -> Self
    where
        H: for<'a> MessageHandler<'a, Message, S, A, C>,
    {
        self.handlers.raw(options, topic.as_ref(), event_type.as_ref(), handler, Arc::clone(&self.state));
        self
    }

    /// Handles every message that no other handler takes, without decoding it. Topics are
    /// subscribed to by [`topic`](Self::topic) and by other handlers.
    pub fn on_any<H>(mut self, handler: H) -> Self
    where
        H: for<'a> MessageHandler<'a, Message, S, A, C>,
    {
        self.handlers.any(HandlerOptions::default(), handler, Arc::clone(&self.state));
        self
    }

    /// Subscribes to a topic.
    pub fn topic(mut self, name: impl AsRef<str>) -> Self {
        self.handlers.topic(name.as_ref());
        self
    }

    /// Sets the fate of messages of subscribed topics that have no handler. Default: they wait for
    /// a program that has one.
    pub fn unknown_types(mut self, unknown: UnknownType) -> Self {
        self.handlers.unknown = unknown;
        self
    }

    /// Makes messages of records that are no CloudEvents: of a change feed, of another framework.
    /// Handlers get them like others, once each, in the order of their keys.
    ///
    /// The mapper gets every record that can't be read as an event, of every topic. It returns a
    /// message, mostly that of [`ForeignRecord::message`] with a type; `None` for a record to
    /// acknowledge and forget; or an error, which makes a dead letter of the record, as without a
    /// mapper. It must be quick: it runs in the receiver. A panic counts as an error.
    pub fn map_records(
        mut self,
        mapper: impl Fn(&ForeignRecord<'_>) -> Result<Option<Message>, HandlerError> + Send + Sync + 'static,
    ) -> Self {
        self.wiring.mapper = Some(Arc::new(mapper));
        self
    }

    /// Reads version `from` of an event type as version `to`. Steps are chained, up to the version
    /// of the handler's type. Without a step, the handler's type itself must read the payload.
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

    /// Sets the outbox to which handlers publish: its codec, its routes, its limits. Events are
    /// read with the same codec. Published events go to the inbox's own store, in the handler's
    /// transaction, whatever store the outbox has. Default: JSON on the route `default`.
    ///
    /// Call it before handlers and upcasters are registered, because they read with that codec.
    /// Handlers name it in their [`HandlerContext`](super::HandlerContext): `HandlerContext<'_,
    /// MyStore, (), MyCodec>`.
    pub fn outbox<T: Transactional, D: Codec>(self, outbox: Outbox<T, D>) -> InboxBuilder<S, A, D> {
        InboxBuilder {
            outbox: outbox.with_store(Arc::clone(&self.store)),
            store: self.store,
            state: self.state,
            handlers: self.handlers.with_codec(),
            config: self.config,
            wiring: self.wiring,
        }
    }

    /// Sends the events that handlers publish to a topic by another route: in addition to the
    /// routes of its [outbox](Self::outbox), or instead of `default`.
    pub fn route_for(mut self, topic: impl Into<String>, route: impl Into<String>) -> Self {
        self.wiring.routes.push((topic.into(), route.into()));
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

    /// Maximum number of concurrent transactions. See [`InboxConfig::concurrency`].
    pub fn concurrency(mut self, concurrency: usize) -> Self {
        self.config.concurrency = Some(concurrency);
        self
    }

    settings! {
        /// Place where messages wait. See [`InboxConfig::mode`].
        mode: Mode,
        /// Maximum number of messages of one transaction. See [`InboxConfig::batch`].
        batch: usize,
        /// Maximum number of unacknowledged deliveries. See [`InboxConfig::prefetch`].
        prefetch: usize,
        /// Maximum number of their bytes. See [`InboxConfig::prefetch_bytes`].
        prefetch_bytes: usize,
        /// Position from which a unit is read if the broker has lost the consumer's. See
        /// [`InboxConfig::offset_reset`].
        offset_reset: OffsetReset,
        /// Maximum number of dead letters, above which undecodable records are dropped. See
        /// [`InboxConfig::max_undecodable`].
        max_undecodable: u64,
        /// Number of attempts of a message in memory. See [`InboxConfig::tries`].
        tries: u32,
        /// First wait between such attempts. See [`InboxConfig::first_delay`].
        first_delay: Duration,
        /// Longest such wait. See [`InboxConfig::max_delay`].
        max_delay: Duration,
        /// Maximum time of a call to the store. See [`InboxConfig::store_timeout`].
        store_timeout: Duration,
        /// Interval of the search for failing keys. See [`InboxConfig::due_poll`].
        due_poll: Duration,
        /// First wait for an unavailable store or broker. See [`InboxConfig::outage_first_delay`].
        outage_first_delay: Duration,
        /// Longest such wait. See [`InboxConfig::outage_max_delay`].
        outage_max_delay: Duration,
        /// Age of a stored message above which the inbox is unhealthy. See
        /// [`InboxConfig::unhealthy_age`].
        unhealthy_age: Duration,
        /// Maximum time that a message waits for a program that knows it. See
        /// [`InboxConfig::wait_for_upgrade`].
        wait_for_upgrade: Duration,
        /// Retry policy of stored messages that fail. See [`InboxConfig::retry`].
        retry: RetryPolicy,
    }

    /// Labels it with the name of a service, unless it has a label of its own.
    pub(crate) fn named(mut self, service: &str) -> Self {
        if self.config.label == InboxConfig::default().label {
            service.clone_into(&mut self.config.label);
        }
        self
    }

    pub(crate) fn consumer_name(&self) -> &str {
        &self.wiring.consumer
    }

    /// Returns true if it takes its transactions of the store that it was given first.
    pub(crate) const fn shares_store(&self) -> bool {
        !self.wiring.own_store
    }

    /// Returns the configured number of concurrent transactions.
    pub(crate) const fn configured_concurrency(&self) -> Option<usize> {
        self.config.concurrency
    }

    /// Sets the number of concurrent transactions, unless one is configured.
    pub(crate) fn share_pool(&mut self, share: usize) {
        self.config.concurrency.get_or_insert(share);
    }

    /// Sets the clock that leases and pauses are measured with. A seam for tests.
    #[cfg(feature = "test-util")]
    #[cfg_attr(docsrs, doc(cfg(feature = "test-util")))]
    pub fn clock(mut self, clock: Arc<dyn Clock>) -> Self {
        self.wiring.clock = clock;
        self
    }

    /// Sets the seed of all randomness (jitter). A seam for tests.
    #[cfg(feature = "test-util")]
    #[cfg_attr(docsrs, doc(cfg(feature = "test-util")))]
    pub fn seed(mut self, seed: u64) -> Self {
        self.wiring.seed = Some(seed);
        self
    }

    /// Sets the id of this life of the inbox in the store. A seam for tests.
    #[cfg(feature = "test-util")]
    #[cfg_attr(docsrs, doc(cfg(feature = "test-util")))]
    pub fn id(mut self, id: RelayId) -> Self {
        self.wiring.id = Some(id);
        self
    }

    /// Calls this after each completed step. A seam for tests, which end the process there.
    #[cfg(feature = "test-util")]
    #[cfg_attr(docsrs, doc(cfg(feature = "test-util")))]
    pub fn on_step(mut self, told: impl Fn(Step) + Send + Sync + 'static) -> Self {
        self.wiring.steps = Steps::new(told);
        self
    }
}
