//! The transport itself: batches go out over a pool of connections, each member that consumes has a
//! connection of its own.

use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use outbox_contract::admin::Diagnosis;
use outbox_contract::backend::flow::Window;
use outbox_contract::backend::{Deliveries, Outcomes, PublishBatch, Subscription, Transport};
use outbox_contract::{Message, Rejection, Topic, TransportError};
use tokio::sync::watch;

use crate::builder::RabbitMqTransportBuilder;
use crate::config::Config;
use crate::deliveries::RabbitMqDeliveries;
use crate::pool::Pool;
use crate::publishing::Publishing;
use crate::refusals::Refusals;

/// Publishes to an exchange of RabbitMQ, and consumes queues of it.
///
/// Clones share everything. Nothing is connected before the first use. Dropped without
/// [`close`](Transport::close), its connections are cut.
#[derive(Clone)]
pub struct RabbitMqTransport {
    shared: Arc<SharedTransport>,
}

struct SharedTransport {
    config: Arc<Config>,
    pool: Pool,
    refusals: Refusals,
    /// True if it was closed: members watch it too.
    closed: watch::Sender<bool>,
}

impl RabbitMqTransport {
    /// Returns the builder of a transport to the broker at `amqp://user:password@host:port/vhost`, or
    /// `amqps://` for TLS.
    ///
    /// `?heartbeat=` (seconds) and `?frame_max=` (bytes) of the URL take precedence over the builder.
    pub fn builder(url: impl Into<String>) -> RabbitMqTransportBuilder {
        RabbitMqTransportBuilder::new(url.into())
    }

    pub(crate) fn with_config(config: Config) -> Self {
        let config = Arc::new(config);
        let (closed, _) = watch::channel(false);
        let pool = Pool::new(Arc::clone(&config), closed.subscribe());
        let refusals = Refusals::new(&config);
        Self { shared: Arc::new(SharedTransport { config, pool, refusals, closed }) }
    }
}

/// Without a password.
impl fmt::Debug for RabbitMqTransport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("RabbitMqTransport").field(&self.shared.config).finish()
    }
}

#[async_trait]
impl Transport for RabbitMqTransport {
    fn name(&self) -> &'static str {
        "rabbitmq"
    }

    async fn check(&self) -> Result<(), TransportError> {
        self.shared.pool.check().await.map_err(|fault| fault.to_error("check"))
    }

    async fn diagnose(&self, topics: &[Topic]) -> Result<Vec<Diagnosis>, TransportError> {
        self.shared.pool.diagnose(topics).await.map_err(|fault| fault.to_error("diagnose"))
    }

    fn validate(&self, message: &Message) -> Result<(), Rejection> {
        self.shared.config.validate(message)
    }

    async fn publish(&self, batch: PublishBatch, outcomes: &Outcomes) {
        let SharedTransport { config, pool, refusals, .. } = &*self.shared;
        match pool.borrow().await {
            Ok(channel) => {
                if Publishing::new(config, refusals, channel, &batch, outcomes).run().await {
                    pool.found_missing();
                }
            }
            Err(fault) => outcomes.report_rest(&fault.unavailable()),
        }
    }

    async fn subscribe(&self, subscription: Subscription) -> Result<Box<dyn Deliveries>, TransportError> {
        let (config, closed) = (Arc::clone(&self.shared.config), self.shared.closed.subscribe());
        let window = Window::new(&subscription)?;
        match RabbitMqDeliveries::join(config, subscription, window, closed).await {
            Ok(deliveries) => Ok(Box::new(deliveries)),
            Err(fault) => Err(fault.to_error("subscribe")),
        }
    }

    async fn close(&self) {
        self.shared.closed.send_replace(true);
        self.shared.pool.close().await;
    }
}
