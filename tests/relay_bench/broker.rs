//! Brokers: as this program starts them, and as children reach them.

use std::sync::Arc;
use std::time::Duration;

use outbox_contract::Transport;
use outbox_servers::{Kafka, KafkaServer, Missing, RabbitMq, RabbitMqServer, Redis, RedisServer, Server};
use outbox_transport_kafka::KafkaTransport;
use outbox_transport_rabbitmq::{RabbitMqTransport, Topology};
use outbox_transport_redis::RedisTransport;
use serde::{Deserialize, Serialize};

use crate::child::{Role, run};
use crate::ours::{consumer, topic};
use crate::pair::Broker;
use crate::publish::Publish;

/// A running broker.
pub(crate) enum BrokerServer {
    RabbitMq(RabbitMqServer),
    Kafka(KafkaServer),
    Redis(RedisServer),
}

/// A broker as a child reaches it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Address {
    pub(crate) broker: Broker,
    pub(crate) url: String,
}

/// Number of messages sent before a measurement to a broker that compiles its program while it
/// runs. With a tenth of it, the compiler takes as much as the messages of a short run.
const WARMING: u64 = 1_000_000;

impl BrokerServer {
    /// Starts a broker. Redis writes to its log on the disk, and syncs it every second.
    pub(crate) fn start(broker: Broker) -> Result<Self, Missing> {
        Ok(match broker {
            Broker::RabbitMq => Self::RabbitMq(RabbitMq::newest().start()?),
            Broker::Kafka => {
                let server = Self::Kafka(Kafka::newest().as_shipped().start()?);
                let publish = Publish { broker: server.fresh(), messages: WARMING, by_hand: false };
                run::<crate::child::Done>(&Role::Publish(publish));
                server
            }
            Broker::Redis => {
                let redis = Redis::newest().config("appendonly yes").config("appendfsync everysec");
                Self::Redis(redis.start()?)
            }
        })
    }

    fn server(&self) -> &Server {
        match self {
            Self::RabbitMq(server) => server,
            Self::Kafka(server) => server,
            Self::Redis(server) => server,
        }
    }

    pub(crate) fn name(&self) -> &str {
        self.server().name()
    }

    /// Returns its processor time so far.
    pub(crate) fn cpu(&self) -> Duration {
        self.server().usage().cpu
    }

    /// Returns an unused destination.
    pub(crate) fn fresh(&self) -> Address {
        match self {
            Self::RabbitMq(server) => Address { broker: Broker::RabbitMq, url: server.fresh_vhost() },
            Self::Kafka(server) => {
                let address = Address { broker: Broker::Kafka, url: server.url() };
                run::<()>(&Role::Topic(address.clone()));
                address
            }
            Self::Redis(server) => {
                server.cli(&["FLUSHALL"]);
                Address { broker: Broker::Redis, url: server.url() }
            }
        }
    }
}

impl Address {
    /// Returns the transport to it. All variants publish through it, except the hand-written ones
    /// to RabbitMQ.
    pub(crate) fn transport(&self) -> Arc<dyn Transport> {
        match self.broker {
            // One quorum queue.
            Broker::RabbitMq => {
                let builder = RabbitMqTransport::builder(&self.url).topology(Topology::Declared);
                Arc::new(builder.consumer(topic(), consumer()).build().expect("a valid configuration"))
            }
            Broker::Kafka => {
                Arc::new(KafkaTransport::builder(&self.url).build().expect("a valid configuration"))
            }
            Broker::Redis => {
                Arc::new(RedisTransport::builder(&self.url).build().expect("a valid configuration"))
            }
        }
    }
}
