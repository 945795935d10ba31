//! A database and a broker as the programs of the suite `pairs` use them.

use std::error::Error;
use std::time::Duration;

use outbox_contract::{Consumer, NameError, RetryPolicy, Topic};
use outbox_engine::{Relay, RelayBuilder};
use outbox_store_postgres::PostgresStore;
use outbox_transport_rabbitmq::{RabbitMqTransport, Topology};

/// What a test and the relays and inboxes that it starts agree on. It goes to them through the environment.
#[derive(Clone, Debug, Default)]
pub struct Pair {
    /// The URL of the database.
    pub database: String,
    /// The URL of the broker.
    pub broker: String,
    /// How many messages may wait in a queue; none for any number.
    pub most_waiting: Option<u32>,
    /// The most bytes of a payload that the broker takes; none for the transport's default.
    pub most_bytes: Option<usize>,
}

const DATABASE: &str = "OUTBOX_PAIR_DATABASE";
const BROKER: &str = "OUTBOX_PAIR_BROKER";
const MOST_WAITING: &str = "OUTBOX_PAIR_MOST_WAITING";
const MOST_BYTES: &str = "OUTBOX_PAIR_MOST_BYTES";

impl Pair {
    /// The lease of every relay: how long another needs to take over. It bounds how long the tests wait, and no test relies on it being kept.
    pub const LEASE: Duration = Duration::from_secs(4);

    /// The topic that everything is sent to.
    ///
    /// # Errors
    ///
    /// None: the name is one.
    pub fn topic() -> Result<Topic, NameError> {
        Topic::new("orders")
    }

    /// The consumer that receives it.
    ///
    /// # Errors
    ///
    /// None: the name is one.
    pub fn consumer() -> Result<Consumer, NameError> {
        Consumer::new("warehouse")
    }

    /// The variables of the environment that tell a program of this pair.
    #[must_use]
    pub fn variables(&self) -> Vec<(&'static str, String)> {
        let text = |number: Option<u64>| number.map(|number| number.to_string()).unwrap_or_default();
        vec![
            (DATABASE, self.database.clone()),
            (BROKER, self.broker.clone()),
            (MOST_WAITING, text(self.most_waiting.map(u64::from))),
            (MOST_BYTES, text(self.most_bytes.map(|bytes| bytes as u64))),
        ]
    }

    /// The pair that the environment tells of.
    ///
    /// # Errors
    ///
    /// A variable that is not there.
    pub fn from_environment() -> Result<Self, std::env::VarError> {
        let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
        Ok(Self {
            database: std::env::var(DATABASE)?,
            broker: std::env::var(BROKER)?,
            most_waiting: number(MOST_WAITING).and_then(|number| u32::try_from(number).ok()),
            most_bytes: number(MOST_BYTES).and_then(|number| usize::try_from(number).ok()),
        })
    }

    /// A transport to the broker, or to another address of it.
    ///
    /// # Errors
    ///
    /// What is wrong with the configuration.
    pub fn transport(&self, broker: &str) -> Result<RabbitMqTransport, Box<dyn Error>> {
        let mut builder = RabbitMqTransport::builder(broker)
            .topology(Topology::Declared)
            .partitions(4)
            .consumer(Self::topic()?, Self::consumer()?)
            .pauses(Duration::from_millis(50), Duration::from_millis(500));
        if let Some(messages) = self.most_waiting {
            builder = builder.most_waiting(messages);
        }
        if let Some(bytes) = self.most_bytes {
            builder = builder.max_message_bytes(bytes);
        }
        Ok(builder.build()?)
    }

    /// A relay from the database to the broker, with leases that end soon and pauses that are short.
    ///
    /// # Errors
    ///
    /// The store can't be reached, or the configuration is wrong.
    pub async fn relay(&self) -> Result<RelayBuilder, Box<dyn Error>> {
        let store = PostgresStore::connect(&self.database).await?;
        let retry = RetryPolicy {
            most_attempts: 3,
            first_delay: Duration::from_millis(50),
            most_delay: Duration::from_millis(500),
            ..RetryPolicy::default()
        };
        Ok(Relay::builder(store, self.transport(&self.broker)?)
            .lease(Self::LEASE)
            .heartbeat(Duration::from_millis(500))
            .publish_timeout(Duration::from_millis(2_500))
            .outage_most_delay(Duration::from_secs(1))
            .retry(retry))
    }
}
