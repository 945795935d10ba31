//! The transport itself: chunks go out over a pool of connections, each member that consumes has a connection of its own.

use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use outbox_contract::{
    Chunk, Deliveries, Message, Outcome, Outcomes, Rejection, Subscription, Transport, TransportError,
};
use tokio::sync::watch;

use crate::channel::{Channel, Word};
use crate::config::{Config, RabbitMqTransportBuilder};
use crate::deliveries::RabbitMqDeliveries;
use crate::error::Fault;
use crate::frames::Publish;
use crate::pool::Pool;
use crate::publication::{Publication, Reports};
use crate::record;

/// Publishes to an exchange of RabbitMQ, and consumes queues of it.
///
/// Clones share everything. Nothing is connected before the first use. Dropped without [`close`](Transport::close), its connections are cut.
#[derive(Clone)]
pub struct RabbitMqTransport {
    shared: Arc<Shared>,
}

struct Shared {
    config: Arc<Config>,
    pool: Pool,
    /// Whether it was closed: members watch it too.
    closed: watch::Sender<bool>,
}

impl RabbitMqTransport {
    /// Starts to build a transport to the broker at `amqp://user:password@host:port/vhost`, or `amqps://` for TLS.
    ///
    /// `?heartbeat=` (seconds) and `?frame_max=` (bytes) of the URL go before what the builder says.
    pub fn builder(url: impl Into<String>) -> RabbitMqTransportBuilder {
        RabbitMqTransportBuilder::new(url.into())
    }

    pub(crate) fn with_config(config: Config) -> Self {
        let config = Arc::new(config);
        let (closed, _) = watch::channel(false);
        let pool = Pool::new(Arc::clone(&config), closed.subscribe());
        Self { shared: Arc::new(Shared { config, pool, closed }) }
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

    fn validate(&self, message: &Message) -> Result<(), Rejection> {
        self.shared.config.validate(message)
    }

    async fn publish(&self, chunk: Chunk, outcomes: &Outcomes) {
        match self.shared.pool.borrow().await {
            Ok(channel) => {
                Publishing { config: &self.shared.config, channel, chunk: &chunk, outcomes }.run().await;
            }
            Err(fault) => outcomes.report_rest(&fault.unavailable()),
        }
    }

    async fn subscribe(&self, subscription: Subscription) -> Result<Box<dyn Deliveries>, TransportError> {
        let (config, closed) = (Arc::clone(&self.shared.config), self.shared.closed.subscribe());
        match RabbitMqDeliveries::join(config, subscription, closed).await {
            Ok(deliveries) => Ok(Box::new(deliveries)),
            Err(fault) => Err(fault.to_error("subscribe")),
        }
    }

    async fn close(&self) {
        self.shared.closed.send_replace(true);
        self.shared.pool.close().await;
    }
}

/// One chunk on its way over one channel.
///
/// Dropped half-way, it starts nothing more; what it has started goes on, one message per key.
struct Publishing<'c> {
    config: &'c Config,
    channel: Channel,
    chunk: &'c Chunk,
    outcomes: &'c Outcomes,
}

/// So many bytes are written at once, and one message.
const PIECE_BYTES: usize = 64 * 1024;

impl Publishing<'_> {
    async fn run(mut self) {
        let mut publication = Publication::new(&self.chunk.messages);
        loop {
            while publication.ready() > 0 && self.channel.has_room() {
                self.send(&mut publication);
            }
            if publication.is_complete() {
                return;
            }
            let topic_of = |index: usize| self.chunk.messages[index].message.topic.to_string();
            let reports = match self.channel.news(publication.ready() > 0).await {
                Word::Answers(answers) => publication.answered(answers, topic_of),
                Word::Blocked(reason) => {
                    let fault = Fault::blocked(&reason);
                    publication.given_up(&fault.unknown(), &fault.unavailable())
                }
                Word::Room => continue,
            };
            self.report(reports);
        }
    }

    /// Sends as many of the messages that may go as one piece holds.
    fn send(&mut self, publication: &mut Publication) {
        // About as much as small messages take: what waits to be written has no empty space in it.
        let expected = PIECE_BYTES.min(publication.ready() * 1_024);
        let (mut bytes, mut sent) = (Vec::with_capacity(expected), Vec::new());
        while bytes.len() < PIECE_BYTES
            && let Some(index) = publication.start()
        {
            match self.write(&mut bytes, index) {
                Ok(()) => sent.push(index),
                Err(Rejection(failure)) => {
                    self.report(publication.unsendable(index, Outcome::Rejected(failure)));
                }
            }
        }
        self.channel.send(bytes, sent);
    }

    fn write(&self, bytes: &mut Vec<u8>, index: usize) -> Result<(), Rejection> {
        let stored = &self.chunk.messages[index];
        self.config.validate(&stored.message)?;
        let partitions = self.config.partitions;
        let publish = Publish {
            channel: self.channel.id(),
            exchange: self.config.exchange.as_str(),
            routing_key: &partitions.routing_key(&stored.message.topic, partitions.of(stored.bucket)),
            payload: &stored.message.payload,
        };
        publish.write(bytes, self.channel.most_frame_bytes(), |bytes| {
            record::encode(bytes, stored, &self.chunk.source)
        })
    }

    fn report(&self, reports: Reports) {
        for (index, outcome) in reports {
            self.outcomes.report(index, outcome);
        }
    }
}
