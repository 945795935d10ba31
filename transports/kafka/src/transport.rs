//! The transport itself: what its parts share, and the trait.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use outbox_contract::admin::Diagnosis;
use outbox_contract::backend::{
    Deliveries, Outcomes, Problem, PublishBatch, Subscription, Transport, Unavailable,
};
use outbox_contract::{Message, Rejection, Topic, TransportError, TransportErrorKind};
use tokio::time::{Instant, sleep, timeout_at};

use crate::builder::KafkaTransportBuilder;
use crate::config::Config;
use crate::connection_error::kind_of;
use crate::consumer_error::not_readable;
use crate::deliveries::KafkaDeliveries;
use crate::diagnose;
use crate::dispatch::Dispatch;
use crate::flight::{Flight, Heard};
use crate::gapless::Gapless;
use crate::limits::TopicLimits;
use crate::pools::Pools;
use crate::record::Record;
use crate::topics::Topics;

/// Time limit for the broker to answer a question.
const ANSWER: Duration = Duration::from_secs(10);
/// Time that the broker has to answer before anything is started. Whoever starts waits for 5 s, and
/// would not hear why there is no answer.
const BEFORE_START: Duration = Duration::from_secs(4);
/// Time to ask for one of many topics, when the others have used the time up.
const AT_LEAST: Duration = Duration::from_millis(250);
/// Interval of looks whether a single message that was given up is gone from the client.
const LOOK: Duration = Duration::from_millis(20);

/// Publishes to and consumes from Apache Kafka.
///
/// Clones share everything. The connections end with the last clone, or with
/// [`close`](Transport::close).
#[derive(Clone, Debug)]
pub struct KafkaTransport {
    shared: Arc<SharedTransport>,
}

/// State that the parts of a transport share.
#[derive(Debug)]
pub(crate) struct SharedTransport {
    config: Arc<Config>,
    pools: Pools,
    topics: Topics,
    limits: TopicLimits,
    /// Sends single messages, and asks about topics.
    alone: Arc<Gapless>,
    /// Held while a single message is under way.
    turn: tokio::sync::Mutex<()>,
    closed: AtomicBool,
}

impl SharedTransport {
    pub(crate) fn config(&self) -> &Config {
        &self.config
    }

    pub(crate) fn pools(&self) -> &Pools {
        &self.pools
    }

    pub(crate) fn limits(&self) -> &TopicLimits {
        &self.limits
    }

    pub(crate) fn topics(&self) -> &Topics {
        &self.topics
    }

    /// Sends a message while no other one is under way on the same producer, so that no other one
    /// is in its record batch.
    pub(crate) async fn send_alone(&self, record: &Record, deadline: Instant) -> Heard {
        let alone = async {
            let _turn = self.turn.lock().await;
            // One whose future was dropped may still be there.
            while !self.alone.is_idle() {
                sleep(LOOK).await;
            }
            let flight = Flight::new(record.partition(), vec![0]);
            let sent = self.alone.send(&[record], &flight);
            // Within a few seconds the client itself gives it up.
            sent.done().await;
            flight.all().first().map_or(Heard::NotSent, |(_, heard)| *heard)
        };
        // Given up while it waits for its turn, it was not sent; afterwards that is unknown.
        timeout_at(deadline.max(Instant::now() + LOOK), alone).await.unwrap_or(Heard::Nothing)
    }

    fn open(&self, operation: &'static str) -> Result<(), TransportError> {
        if self.closed.load(Ordering::Acquire) {
            return Err(TransportError::new(
                TransportErrorKind::Closed,
                operation,
                "the transport is closed",
            ));
        }
        Ok(())
    }
}

impl Drop for SharedTransport {
    fn drop(&mut self) {
        self.pools.close();
    }
}

impl KafkaTransport {
    /// Returns the builder of a transport to the brokers at these addresses, such as
    /// `kafka-1:9092,kafka-2:9092`. A few are enough: they name the others.
    pub fn builder(brokers: impl Into<String>) -> KafkaTransportBuilder {
        KafkaTransportBuilder::new(brokers.into())
    }

    pub(crate) fn with_config(config: Config) -> Result<Self, TransportError> {
        let config = Arc::new(config);
        let alone = Arc::new(Gapless::for_single_messages(&config)?);
        let shared = SharedTransport {
            pools: Pools::new(&config)?,
            limits: TopicLimits::new(&config),
            topics: Topics::new(&config, &alone),
            alone,
            turn: tokio::sync::Mutex::default(),
            closed: AtomicBool::new(false),
            config,
        };
        Ok(Self { shared: Arc::new(shared) })
    }

    /// Returns the number of producers that were given up and replaced since the transport was
    /// built. For the tests of this crate; a warning tells operators while it grows.
    #[doc(hidden)]
    #[must_use]
    pub fn retired_producers(&self) -> u64 {
        self.shared.pools.retired()
    }
}

#[async_trait]
impl Transport for KafkaTransport {
    fn name(&self) -> &'static str {
        "kafka"
    }

    async fn check(&self) -> Result<(), TransportError> {
        self.shared.open("check")?;
        self.shared.topics.check("check", BEFORE_START).await?;
        self.shared.topics.look_at_settings(ANSWER).await;
        Ok(())
    }

    async fn diagnose(&self, topics: &[Topic]) -> Result<Vec<Diagnosis>, TransportError> {
        self.shared.open("diagnose")?;
        let sent = self.shared.config.max_message_bytes;
        diagnose::find(&self.shared.topics, topics, sent, ANSWER).await
    }

    fn validate(&self, message: &Message) -> Result<(), Rejection> {
        self.shared.config.validate(message)
    }

    async fn publish(&self, batch: PublishBatch, outcomes: &Outcomes) {
        crate::publication::publish(&self.shared, batch, outcomes).await;
    }

    async fn subscribe(&self, subscription: Subscription) -> Result<Box<dyn Deliveries>, TransportError> {
        self.shared.open("subscribe")?;
        let dispatch = Dispatch::new(&subscription)?;
        let (mut problems, mut hidden, mut first) = (Vec::new(), Vec::new(), None);
        let deadline = Instant::now() + BEFORE_START;
        for topic in &subscription.topics {
            // Not what was known before: a right may have been taken since.
            self.shared.topics.forget(topic);
            let limit = deadline.saturating_duration_since(Instant::now()).max(AT_LEAST);
            let Err((what, mut failure)) = self.shared.topics.partitions(topic, limit).await else {
                continue;
            };
            let kind = kind_of(&failure.class);
            if what == Unavailable::Topic && kind == TransportErrorKind::NotPermitted {
                failure.message = not_readable();
                hidden.push(topic.clone());
            }
            let error = TransportError::new(kind, "subscribe", failure.message.clone());
            if what == Unavailable::Route {
                return Err(error);
            }
            problems.push(Problem::new(topic.clone(), None, failure.message));
            first = first.or(Some(error));
        }
        match first {
            // Nothing at all can be received.
            Some(error) if problems.len() == subscription.topics.len() => Err(error),
            _ => {
                let config = &self.shared.config;
                Ok(Box::new(KafkaDeliveries::join(config, &subscription, dispatch, problems, hidden)?))
            }
        }
    }

    async fn close(&self) {
        self.shared.closed.store(true, Ordering::Release);
        self.shared.pools.close();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn whoever_starts_hears_why_a_broker_does_not_answer() {
        let transport = KafkaTransport::builder("127.0.0.1:1").build().expect("an address");
        let subscription = Subscription::new("billing", ["orders"]).expect("valid names");
        let asked = Instant::now();
        let (checked, subscribed) = tokio::join!(transport.check(), transport.subscribe(subscription));
        // Relays and inboxes wait for 5 s.
        assert!(asked.elapsed() < Duration::from_secs(5), "{:?}", asked.elapsed());
        for error in [checked.err(), subscribed.err()] {
            let error = error.expect("no broker is there").to_string();
            assert!(error.contains("Connection refused"), "{error}");
        }
    }
}
