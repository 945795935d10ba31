//! Construction and start of a service.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{BoxFuture, FutureExt, join_all, try_join_all};
use outbox_contract::backend::Ordering;
use outbox_contract::{Codec, Json, Outbox, Route, Transactional, Transport};

use super::handle::ServiceHandle;
use crate::inbox::{Inbox, InboxBuilder, InboxHandle, InboxObserver, share};
use crate::relay::{Relay, RelayBuilder};
use crate::start::StartError;

/// The messaging of a program: an outbox to append to, a relay that publishes, and inboxes that
/// handle what others publish.
///
/// ```no_run
/// # extern crate outbox_contract as outbox;
/// # use std::future::Future;
/// # use std::time::Duration;
/// # use outbox_contract::{Transactional, Transport};
/// # use outbox_derive::DomainEvent;
/// use outbox_engine::{HandlerContext, HandlerError, Service};
///
/// #[derive(serde::Serialize, serde::Deserialize, DomainEvent)]
/// #[event(topic = "orders", type = "order.placed")]
/// struct OrderPlaced { #[event(key)] order_id: u64 }
///
/// async fn send_invoice<S: Transactional>(order: OrderPlaced, context: &mut HandlerContext<'_, S>) -> Result<(), HandlerError> {
///     Ok(()) // your queries, with `context.tx()`
/// }
///
/// # async fn run<S: Transactional + Clone>(store: S, transport: impl Transport, ctrl_c: impl Future) -> Result<(), Box<dyn std::error::Error>> {
/// let service = Service::builder("shop", store, transport)
///     .inbox("billing", |inbox| inbox.on(send_invoice::<S>))
///     .start()
///     .await?;
/// let outbox = service.outbox(); // append to it in your transactions
/// service.run_until(ctrl_c).await?; // then drains, and stops
/// # Ok(())
/// # }
/// ```
///
/// A relay alone is a [`Relay`], an inbox alone an [`Inbox`]. A program that only writes needs no
/// more than [`Outbox::new`].
#[derive(Debug)]
pub struct Service;

impl Service {
    /// Begins a service with this name, store and transport.
    ///
    /// The name is the label of relay and inboxes in logs and in the database.
    pub fn builder<S: Transactional + Clone>(
        name: impl Into<String>,
        store: S,
        transport: impl Transport,
    ) -> ServiceBuilder<S> {
        let (name, transport): (String, Arc<dyn Transport>) = (name.into(), Arc::new(transport));
        let relay = Relay::of_route(&Route::default(), Arc::new(store.clone()), Arc::clone(&transport));
        ServiceBuilder {
            outbox: Outbox::new(store),
            state: Arc::new(()),
            wiring: Wiring {
                relay: Some(relay.named(&name)),
                name,
                transport,
                inboxes: Vec::new(),
                problems: Vec::new(),
                shutdown_within: Duration::from_secs(20),
            },
        }
    }
}

/// Builder of a [`Service`]. Nothing is checked before [`start`](Self::start), which reports all
/// problems at once.
#[must_use = "nothing runs before `start`"]
pub struct ServiceBuilder<S: Transactional, A = (), C: Codec = Json> {
    outbox: Outbox<S, C>,
    state: Arc<A>,
    wiring: Wiring,
}

/// Parts of a service that depend on no type of the program.
struct Wiring {
    name: String,
    transport: Arc<dyn Transport>,
    relay: Option<RelayBuilder>,
    inboxes: Vec<Box<dyn Wired>>,
    problems: Vec<String>,
    shutdown_within: Duration,
}

impl<S: Transactional, A, C: Codec> fmt::Debug for ServiceBuilder<S, A, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let inboxes: Vec<_> = self.wiring.inboxes.iter().map(|inbox| inbox.consumer()).collect();
        f.debug_struct("ServiceBuilder")
            .field("name", &self.wiring.name)
            .field("relay", &self.wiring.relay)
            .field("inboxes", &inboxes)
            .finish_non_exhaustive()
    }
}

impl<S: Transactional + Clone, A: Send + Sync + 'static, C: Codec> ServiceBuilder<S, A, C> {
    /// Sets the state of the application, which handlers of the inboxes named from here on find in
    /// [`HandlerContext::state`](crate::HandlerContext::state).
    pub fn state<B: Send + Sync + 'static>(self, state: B) -> ServiceBuilder<S, B, C> {
        ServiceBuilder { outbox: self.outbox, state: Arc::new(state), wiring: self.wiring }
    }

    /// Sets the outbox: its codec, its routes, its limits. Default: JSON on the route `default`.
    /// Call it before [`inbox`](Self::inbox), because inboxes publish and read as the outbox does.
    pub fn outbox<D: Codec>(mut self, outbox: Outbox<S, D>) -> ServiceBuilder<S, A, D> {
        if !self.wiring.inboxes.is_empty() {
            self.wiring.problems.push("`outbox` is called after `inbox`; call it first".to_owned());
        }
        ServiceBuilder { outbox, state: self.state, wiring: self.wiring }
    }

    /// Adds an inbox: the name of its consumer, and its handlers.
    ///
    /// ```ignore
    /// .inbox("billing", |inbox| inbox.on(send_invoice).on(cancel_invoice).concurrency(4))
    /// ```
    pub fn inbox<B: Send + Sync + 'static>(
        mut self,
        consumer: impl Into<String>,
        build: impl FnOnce(InboxBuilder<S, A, C>) -> InboxBuilder<S, B, C>,
    ) -> Self {
        let store = self.outbox.store().clone();
        let inbox = Inbox::builder(store, Arc::clone(&self.wiring.transport)).outbox(self.outbox.clone());
        let inbox = inbox.shared_state(Arc::clone(&self.state)).consumer(consumer);
        self.wiring.inboxes.push(Box::new(build(inbox).named(&self.wiring.name)));
        self
    }

    /// Configures the relay: `.relay(|relay| relay.lease(Duration::from_secs(30)))`.
    pub fn relay(mut self, build: impl FnOnce(RelayBuilder) -> RelayBuilder) -> Self {
        match self.wiring.relay.take() {
            // A configuration from a file replaces the name, unless it has one.
            Some(relay) => self.wiring.relay = Some(build(relay).named(&self.wiring.name)),
            None => {
                self.wiring.problems.push("`relay` is called after `without_relay`; remove one".to_owned())
            }
        }
        self
    }

    /// Publishes another route of the outbox to a transport of its own.
    pub fn route(self, name: impl Into<String>, transport: impl Transport) -> Self {
        self.relay(|relay| relay.route(name, transport))
    }

    /// Runs no relay in this program. Another one publishes what is appended here, and what
    /// handlers publish.
    pub fn without_relay(mut self) -> Self {
        self.wiring.relay = None;
        self
    }

    /// Sets the deadline of the shutdown that ends [`run_until`](ServiceHandle::run_until). Default
    /// 20 s: shorter than the time that a process manager grants before it kills.
    pub fn shutdown_within(mut self, deadline: Duration) -> Self {
        self.wiring.shutdown_within = deadline;
        self
    }

    /// Checks everything, then starts inboxes and relay on the current Tokio runtime.
    ///
    /// A broker that can't be reached now is waited for.
    ///
    /// # Errors
    ///
    /// [`StartError::Config`] with all problems of all parts. [`StartError::Store`] if the database
    /// can't be reached or was not migrated, and [`StartError::Transport`] if a broker reports that
    /// it will never work as configured. Nothing runs then.
    pub async fn start(mut self) -> Result<ServiceHandle<S, C>, StartError> {
        self.divide_pool();
        let problems = self.all_problems();
        if !problems.is_empty() {
            return Err(StartError::Config(problems));
        }
        // At once: each waits for a broker that does not answer.
        let inboxes = try_join_all(self.wiring.inboxes.into_iter().map(|inbox| inbox.start())).await?;
        // Within a process nothing is kept for consumers that have not subscribed yet.
        let in_process = inboxes.iter().map(InboxHandle::observer).filter(|inbox| inbox.is_in_process());
        join_all(in_process.map(InboxObserver::subscribed)).await;
        let relay = match self.wiring.relay {
            Some(relay) => Some(relay.start().await?),
            None => None,
        };
        Ok(ServiceHandle::new(self.outbox, relay, inboxes, self.wiring.shutdown_within))
    }

    /// Lists the problems of all parts, each with the part that has it.
    fn all_problems(&self) -> Vec<String> {
        let mut problems = self.wiring.problems.clone();
        if !is_name(&self.wiring.name) {
            problems.push(format!(
                "the name of the service is {:?}; use letters, digits, `-`, `_` and `.`, 100 at most",
                self.wiring.name
            ));
        }
        if self.wiring.relay.is_none() && self.wiring.inboxes.is_empty() {
            problems.push("the service has neither a relay nor an inbox; remove `without_relay`".to_owned());
        }
        let of_relay = self.wiring.relay.iter().flat_map(RelayBuilder::problems);
        problems.extend(of_relay.map(|problem| format!("relay: {problem}")));
        let mut consumers: BTreeMap<&str, usize> = BTreeMap::new();
        for inbox in &self.wiring.inboxes {
            let consumer = inbox.consumer();
            *consumers.entry(consumer).or_default() += 1;
            problems
                .extend(inbox.problems().into_iter().map(|problem| format!("inbox {consumer}: {problem}")));
        }
        let twice = consumers.iter().filter(|(_, inboxes)| **inboxes > 1);
        problems.extend(twice.map(|(consumer, inboxes)| {
            format!(
                "{inboxes} inboxes are named {consumer}; give each its own name, or register all handlers with one inbox"
            )
        }));
        problems.extend(self.problem_of_pool());
        problems
    }

    /// Returns the size of the pool that inboxes take their transactions of. `None` if it has no
    /// limit, or if one transaction writes at a time, whatever the size.
    fn pool(&self) -> Option<usize> {
        let store = self.outbox.store();
        if store.frontier().ordering() == Ordering::Single { None } else { store.max_transactions() }
    }

    /// Divides the pool among the inboxes that have no `concurrency` configured.
    fn divide_pool(&mut self) {
        let pool = self.pool();
        let of_pool = self.wiring.inboxes.iter().filter(|inbox| inbox.shares_store());
        let configured: Vec<_> = of_pool.map(|inbox| inbox.configured_concurrency()).collect();
        let inboxes = configured.iter().filter(|concurrency| concurrency.is_none()).count();
        let share = share(pool, configured.into_iter().flatten().sum(), inboxes);
        self.wiring
            .inboxes
            .iter_mut()
            .filter(|inbox| inbox.shares_store())
            .for_each(|inbox| inbox.share_pool(share));
    }

    /// Returns the problem of a pool that is smaller than what the inboxes take of it at once.
    fn problem_of_pool(&self) -> Option<String> {
        let there = self.pool()?;
        let of_pool = self.wiring.inboxes.iter().filter(|inbox| inbox.shares_store());
        let taken: Vec<_> = of_pool.filter_map(|inbox| inbox.configured_concurrency()).collect();
        let sum: usize = taken.iter().sum();
        (sum > there).then(|| {
            let each: Vec<_> = taken.iter().map(usize::to_string).collect();
            let each = if each.len() > 1 { format!("{} = ", each.join(" + ")) } else { String::new() };
            // Each takes one at least.
            let share = if taken.len() > there { "" } else { "leave `concurrency` out so that the inboxes share the pool, " };
            format!(
                "the inboxes take {each}{sum} connections at once, and the pool of the store has {there}; set the pool's max_connections \
                 to {} or more (a fifth is for your own queries), {share}or give an inbox a pool of its own with `store`",
                sum.saturating_add(sum.div_ceil(4))
            )
        })
    }
}

/// Returns true if a name is plain enough for logs, metrics and the database.
fn is_name(name: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    (1..=100).contains(&name.len()) && name.bytes().all(plain)
}

/// An inbox that is ready to start, whatever the state of its handlers.
trait Wired: Send {
    fn consumer(&self) -> &str;

    fn problems(&self) -> Vec<String>;

    /// Returns true if it takes its transactions from the store of the service.
    fn shares_store(&self) -> bool;

    fn configured_concurrency(&self) -> Option<usize>;

    /// Sets the number of concurrent transactions, unless one is configured.
    fn share_pool(&mut self, share: usize);

    fn start(self: Box<Self>) -> BoxFuture<'static, Result<InboxHandle, StartError>>;
}

impl<S: Transactional, A: Send + Sync + 'static, C: Codec> Wired for InboxBuilder<S, A, C> {
    fn consumer(&self) -> &str {
        self.consumer_name()
    }

    fn problems(&self) -> Vec<String> {
        self.problems()
    }

    fn shares_store(&self) -> bool {
        self.shares_store()
    }

    fn configured_concurrency(&self) -> Option<usize> {
        self.configured_concurrency()
    }

    fn share_pool(&mut self, share: usize) {
        self.share_pool(share);
    }

    fn start(self: Box<Self>) -> BoxFuture<'static, Result<InboxHandle, StartError>> {
        (*self).start().boxed()
    }
}
