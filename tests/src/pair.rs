//! A database and a broker, as the suites and the programs that they start use them.

use std::sync::Arc;
use std::time::Duration;

use outbox_contract::{Consumer, NameError, RetryPolicy, Store, Topic, Transport};
use outbox_engine::{Relay, RelayBuilder};
use outbox_transport_kafka::KafkaTransport;
use outbox_transport_memory::MemoryTransport;
use outbox_transport_rabbitmq::{RabbitMqTransport, Topology};
use outbox_transport_redis::RedisTransport;

use crate::kind::TransportKind;
use crate::ledger::Failed;

/// Settings shared by a test and the relays and inboxes that it starts. A process receives them
/// through the environment.
#[derive(Clone, Debug)]
pub struct Pair {
    /// The URL of the database.
    pub database: String,
    /// The URL of the broker; of Kafka its address, behind `kafka://`.
    pub broker: String,
    /// The topic of all messages: no other test's.
    pub topic: Topic,
    /// Maximum number of messages that wait in a queue of RabbitMQ; None for any number.
    pub max_waiting: Option<u32>,
    /// Maximum size of a payload that the broker accepts, in bytes; None for the transport's
    /// default.
    pub max_bytes: Option<usize>,
    /// Time after which Kafka gives the partitions of a silent member to another; None for the
    /// client's default.
    pub session: Option<Duration>,
}

const DATABASE: &str = "OUTBOX_PAIR_DATABASE";
const BROKER: &str = "OUTBOX_PAIR_BROKER";
const TOPIC: &str = "OUTBOX_PAIR_TOPIC";
const MAX_WAITING: &str = "OUTBOX_PAIR_MAX_WAITING";
const MAX_BYTES: &str = "OUTBOX_PAIR_MAX_BYTES";
const SESSION: &str = "OUTBOX_PAIR_SESSION";

impl Pair {
    /// The lease of every relay: the time until another takes over. It bounds how long the tests
    /// wait, and no test relies on it being kept.
    pub const LEASE: Duration = Duration::from_secs(4);

    /// Interval of every relay's heartbeats.
    pub const HEARTBEAT: Duration = Duration::from_millis(500);

    /// Creates a pair of a database and a broker, by their URLs.
    #[must_use]
    pub fn new(database: String, broker: String, topic: Topic) -> Self {
        Self { database, broker, topic, max_waiting: None, max_bytes: None, session: None }
    }

    /// Returns the consumer that receives the topic. It has the topic's name, so that it is no
    /// other test's either.
    ///
    /// # Errors
    ///
    /// The topic is too long for a consumer.
    pub fn consumer(&self) -> Result<Consumer, NameError> {
        Consumer::new(self.topic.as_str())
    }

    /// Returns the environment variables that pass this pair to a program.
    #[must_use]
    pub fn variables(&self) -> Vec<(&'static str, String)> {
        let text = |number: Option<u64>| number.map(|number| number.to_string()).unwrap_or_default();
        vec![
            (DATABASE, self.database.clone()),
            (BROKER, self.broker.clone()),
            (TOPIC, self.topic.to_string()),
            (MAX_WAITING, text(self.max_waiting.map(u64::from))),
            (MAX_BYTES, text(self.max_bytes.map(|bytes| bytes as u64))),
            (SESSION, text(self.session.map(|session| session.as_secs()))),
        ]
    }

    /// Returns the pair in the environment.
    ///
    /// # Errors
    ///
    /// A variable that is missing or invalid.
    pub fn from_environment() -> Result<Self, Failed> {
        let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
        Ok(Self {
            database: std::env::var(DATABASE)?,
            broker: std::env::var(BROKER)?,
            topic: std::env::var(TOPIC)?.parse()?,
            max_waiting: number(MAX_WAITING).and_then(|number| u32::try_from(number).ok()),
            max_bytes: number(MAX_BYTES).and_then(|number| usize::try_from(number).ok()),
            session: number(SESSION).map(Duration::from_secs),
        })
    }

    /// Creates a transport to the broker. One in memory is another one each time.
    ///
    /// # Errors
    ///
    /// The error in the configuration.
    pub fn transport(&self) -> Result<Arc<dyn Transport>, Failed> {
        self.transport_to(&self.broker, None)
    }

    /// Creates a transport to another address of the broker.
    ///
    /// On Kafka a consumer of a name replaces the last one of that name at once. Without a name it
    /// has to wait until the broker declares a killed one dead.
    ///
    /// # Errors
    ///
    /// The error in the configuration.
    pub fn transport_to(&self, broker: &str, name: Option<&str>) -> Result<Arc<dyn Transport>, Failed> {
        Ok(match TransportKind::of_url(broker)? {
            TransportKind::Memory => {
                Arc::new(MemoryTransport::builder().consumer(self.topic.clone(), self.consumer()?).build())
            }
            TransportKind::RabbitMq => {
                let mut builder = RabbitMqTransport::builder(broker)
                    .topology(Topology::Declared)
                    .partitions(4)
                    .consumer(self.topic.clone(), self.consumer()?)
                    .pauses(Duration::from_millis(50), Duration::from_millis(500));
                if let Some(messages) = self.max_waiting {
                    builder = builder.max_waiting(messages);
                }
                if let Some(bytes) = self.max_bytes {
                    builder = builder.max_message_bytes(bytes);
                }
                Arc::new(builder.build()?)
            }
            TransportKind::Kafka => {
                let address = broker.strip_prefix("kafka://").unwrap_or(broker);
                // Members learn of a newcomer at their next heartbeat: by default after three
                // seconds.
                let mut builder = KafkaTransport::builder(address).property("heartbeat.interval.ms", "300");
                if let Some(name) = name {
                    builder = builder.property("group.instance.id", name);
                }
                if let Some(session) = self.session {
                    builder = builder.property("session.timeout.ms", session.as_millis().to_string());
                }
                if let Some(bytes) = self.max_bytes {
                    builder = builder.max_message_bytes(bytes);
                }
                Arc::new(builder.build()?)
            }
            TransportKind::Redis => {
                // Time that the units of a killed consumer wait for the next one.
                let mut builder = RedisTransport::builder(broker)
                    .units(4)
                    .lease(Duration::from_secs(4))
                    .heartbeat(Duration::from_millis(300));
                if let Some(bytes) = self.max_bytes {
                    builder = builder.max_message_bytes(bytes);
                }
                Arc::new(builder.build()?)
            }
        })
    }

    /// Returns a relay with short leases and short pauses.
    pub fn relay(store: Arc<dyn Store>, transport: Arc<dyn Transport>) -> RelayBuilder {
        let retry = RetryPolicy {
            // However many relays die, a temporary failure must not make a dead letter.
            max_attempts: 10_000,
            first_delay: Duration::from_millis(50),
            max_delay: Duration::from_millis(500),
            ..RetryPolicy::default()
        };
        Relay::builder(store, transport)
            .lease(Self::LEASE)
            .heartbeat(Self::HEARTBEAT)
            .publish_timeout(Duration::from_millis(2_500))
            .outage_max_delay(Duration::from_secs(1))
            .retry(retry)
    }
}
