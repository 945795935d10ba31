//! The transport itself: chunks go out over a pool of connections, each member that consumes has a connection of its own.

use std::fmt;
use std::pin::pin;
use std::sync::Arc;

use async_trait::async_trait;
use lapin::message::BasicReturnMessage;
use lapin::options::BasicPublishOptions;
use lapin::types::ShortString;
use lapin::{BasicProperties, Channel, Confirmation};
use outbox_contract::{
    Chunk, Deliveries, Message, Outcome, Outcomes, Rejection, Stored, Subscription, Transport, TransportError,
};
use tokio::sync::watch;

use crate::config::{Config, RabbitMqTransportBuilder};
use crate::deliveries::RabbitMqDeliveries;
use crate::error::Fault;
use crate::pool::{Borrowed, Pool};
use crate::publication::{Answer, Publication, Reports, Returned};
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
            Ok(borrowed) => {
                Publishing { config: &self.shared.config, borrowed, chunk: &chunk, outcomes }.run().await
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
    borrowed: Borrowed,
    chunk: &'c Chunk,
    outcomes: &'c Outcomes,
}

impl Publishing<'_> {
    async fn run(mut self) {
        let mut publication = Publication::new(&self.chunk.messages);
        let mut blocked = pin!(self.borrowed.blocked());
        loop {
            while let Some(index) = publication.start() {
                if let Err(Rejection(failure)) = self.send(index) {
                    self.report(publication.unsendable(index, Outcome::Rejected(failure)));
                }
            }
            if publication.is_complete() {
                return;
            }
            let topic_of = |index: usize| self.chunk.messages[index].message.topic.to_string();
            let reports = tokio::select! {
                // What is confirmed is confirmed, whatever else happens.
                biased;
                answers = self.borrowed.confirms.ready() => publication.answered(answers, topic_of),
                reason = &mut blocked => {
                    let fault = Fault::blocked(&reason);
                    publication.given_up(&fault.unknown(), &fault.unavailable())
                }
            };
            self.report(reports);
        }
    }

    /// Hands a message to the client library. None of the futures is awaited by itself.
    fn send(&mut self, index: usize) -> Result<(), Rejection> {
        let stored = &self.chunk.messages[index];
        self.config.validate(&stored.message)?;
        let properties = record::encode(stored, &self.chunk.source)?;
        let partitions = self.config.partitions;
        let routing_key = record::short(
            "routing key",
            partitions.routing_key(&stored.message.topic, partitions.of(stored.bucket)),
        )?;
        let (channel, exchange) = (Arc::clone(&self.borrowed.channel), self.config.exchange.clone());
        let sent = send(channel, exchange, routing_key, Arc::clone(stored), properties);
        self.borrowed.confirms.push(Box::pin(async move { (index, sent.await) }));
        Ok(())
    }

    fn report(&self, reports: Reports) {
        for (index, outcome) in reports {
            self.outcomes.report(index, outcome);
        }
    }
}

async fn send(
    channel: Arc<Channel>,
    exchange: ShortString,
    routing_key: ShortString,
    stored: Arc<Stored>,
    properties: BasicProperties,
) -> Answer {
    // Mandatory: what reaches no queue comes back, instead of being confirmed and dropped.
    let options = BasicPublishOptions { mandatory: true, immediate: false };
    let payload = &stored.message.payload;
    let confirmed = match channel.basic_publish(exchange, routing_key, options, payload, properties).await {
        Ok(confirm) => confirm.await,
        Err(error) => Err(error),
    };
    match confirmed {
        Ok(Confirmation::Ack(carried)) => Answer::Confirmed(carried.as_ref().map(returned)),
        Ok(Confirmation::Nack(carried)) => Answer::Refused(carried.as_ref().map(returned)),
        // The channel was opened with confirmations; without one nothing is known.
        Ok(Confirmation::NotRequested) => {
            Answer::Broken(Fault::asking("publishing", lapin::ErrorKind::FutureCompleted.into()))
        }
        Err(error) => Answer::Broken(Fault::asking("publishing", error)),
    }
}

fn returned(message: &BasicReturnMessage) -> Returned {
    let reason = format!("{} {}", message.reply_code, message.reply_text);
    Returned { id: record::id_of(&message.delivery.properties), reason }
}
