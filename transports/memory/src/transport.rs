//! The transport itself: a lock around the state machine, and futures that wait on its signals.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use outbox_contract::backend::{Deliveries, Outcomes, PublishBatch, Subscription};
use outbox_contract::{Message, Rejection, Transport, TransportError};

use crate::config::{Config, MemoryTransportBuilder};
use crate::deliveries::MemoryDeliveries;
use crate::publication::PublicationId;
use crate::state::State;

/// An in-process transport: topics, consumers and acknowledgments within one process.
///
/// Clones share everything.
#[derive(Clone, Debug)]
pub struct MemoryTransport {
    shared: Arc<Shared>,
}

#[derive(Debug)]
pub(crate) struct Shared {
    config: Config,
    // A plain mutex: held for one step of the machine, never across an await.
    state: Mutex<State>,
}

impl Shared {
    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        // No step of the state machine runs foreign code, so only a bug in it could poison the
        // lock; its state is still the best available.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl MemoryTransport {
    /// Creates a transport with the defaults of its [builder](Self::builder).
    #[must_use]
    pub fn new() -> Self {
        Self::builder().build()
    }

    /// Starts to build a transport.
    pub fn builder() -> MemoryTransportBuilder {
        MemoryTransportBuilder::new()
    }

    pub(crate) fn with_config(config: Config) -> Self {
        let state = Mutex::new(State::new(config.clone()));
        Self { shared: Arc::new(Shared { config, state }) }
    }
}

impl Default for MemoryTransport {
    fn default() -> Self {
        Self::new()
    }
}

#[async_trait]
impl Transport for MemoryTransport {
    fn name(&self) -> &'static str {
        "memory"
    }

    async fn check(&self) -> Result<(), TransportError> {
        self.shared.state().check("check")
    }

    fn validate(&self, message: &Message) -> Result<(), Rejection> {
        self.shared.config.validate(message)
    }

    async fn publish(&self, chunk: PublishBatch, outcomes: &Outcomes) {
        let (id, wake) = self.shared.state().open(chunk, outcomes.clone());
        let on_its_way = OnItsWay { shared: &self.shared, id };
        while !on_its_way.shared.state().advance(id) {
            wake.notified().await;
        }
    }

    async fn subscribe(&self, subscription: Subscription) -> Result<Box<dyn Deliveries>, TransportError> {
        let (member, wake) = self.shared.state().subscribe(subscription)?;
        Ok(Box::new(MemoryDeliveries::new(Arc::clone(&self.shared), member, wake)))
    }

    async fn close(&self) {
        self.shared.state().close();
    }
}

/// Forgets a batch when its future ends or is dropped: from then on nothing more of it is enqueued.
struct OnItsWay<'a> {
    shared: &'a Shared,
    id: PublicationId,
}

impl Drop for OnItsWay<'_> {
    fn drop(&mut self) {
        self.shared.state().abandon(self.id);
    }
}
