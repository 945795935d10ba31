//! The transport itself: a lock around the state machine, and futures that wait on its signals.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use outbox_contract::backend::{Deliveries, Outcomes, PublishBatch, Subscription, Transport};
use outbox_contract::{Message, Rejection, TransportError};

use crate::broker::Broker;
use crate::config::{Config, Confirm, MemoryTransportBuilder};
use crate::deliveries::MemoryDeliveries;
use crate::publication::PublicationId;

/// An in-process transport: topics, consumers and acknowledgments within one process.
///
/// Clones share everything.
#[derive(Clone, Debug)]
pub struct MemoryTransport {
    shared: Arc<SharedBroker>,
}

#[derive(Debug)]
pub(crate) struct SharedBroker {
    config: Config,
    // A plain mutex: held for one step of the machine, never across an await.
    broker: Mutex<Broker>,
}

impl SharedBroker {
    pub(crate) fn broker(&self) -> MutexGuard<'_, Broker> {
        // No step of the state machine runs foreign code, so only a bug in it could poison the
        // lock; what is there is still the best available.
        self.broker.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl MemoryTransport {
    /// Creates a transport with the defaults of its [builder](Self::builder).
    #[must_use]
    pub fn new() -> Self {
        Self::builder().build()
    }

    /// Returns the builder of a transport.
    pub fn builder() -> MemoryTransportBuilder {
        MemoryTransportBuilder::new()
    }

    pub(crate) fn with_config(config: Config) -> Self {
        let broker = Mutex::new(Broker::new(config.clone()));
        Self { shared: Arc::new(SharedBroker { config, broker }) }
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
        self.shared.config.check()?;
        self.shared.broker().check("check")
    }

    fn validate(&self, message: &Message) -> Result<(), Rejection> {
        self.shared.config.validate(message)
    }

    async fn publish(&self, batch: PublishBatch, outcomes: &Outcomes) {
        let (id, wake) = self.shared.broker().open(batch, outcomes.clone());
        let on_its_way = OnItsWay { shared: &self.shared, id };
        while !on_its_way.shared.broker().advance(id) {
            wake.notified().await;
        }
    }

    async fn subscribe(&self, subscription: Subscription) -> Result<Box<dyn Deliveries>, TransportError> {
        let (member, wake) = self.shared.broker().subscribe(subscription)?;
        Ok(Box::new(MemoryDeliveries::new(Arc::clone(&self.shared), member, wake)))
    }

    fn is_confirmed_by_consumers(&self) -> bool {
        self.shared.config.confirm == Confirm::Acknowledged
    }

    async fn close(&self) {
        self.shared.broker().close();
    }
}

/// Forgets a batch when its future ends or is dropped: from then on nothing more of it is enqueued.
struct OnItsWay<'a> {
    shared: &'a SharedBroker,
    id: PublicationId,
}

impl Drop for OnItsWay<'_> {
    fn drop(&mut self) {
        self.shared.broker().abandon(self.id);
    }
}
