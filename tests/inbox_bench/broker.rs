//! Brokers: as this program starts them, and as children reach them.

use std::sync::Arc;
use std::time::Duration;

use outbox_contract::{Consumer, Topic, Transport};
use outbox_servers::{Kafka, KafkaServer, Missing, RabbitMq, RabbitMqServer, Redis, RedisServer, Server};
use outbox_tests::fresh::{fresh_topic, make_kafka_topic};
use outbox_transport_kafka::KafkaTransport;
use outbox_transport_rabbitmq::{RabbitMqTransport, Topology};
use outbox_transport_redis::RedisTransport;
use serde::{Deserialize, Serialize};

use crate::database::within;
use crate::pair::Broker;

/// A running broker.
pub(crate) enum BrokerServer {
    RabbitMq(RabbitMqServer),
    Kafka(KafkaServer),
    Redis(RedisServer),
}

/// An unused destination of messages and its consumer, as children reach them.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Address {
    broker: Broker,
    url: String,
    topic: String,
    /// Number of queues of RabbitMQ; members share them if there are several.
    pub(crate) queues: u32,
}

/// Number of partitions of a topic of Kafka.
const PARTITIONS: i32 = 4;

impl BrokerServer {
    /// Starts a broker. Redis writes to its log on the disk, and syncs it every second.
    pub(crate) fn start(broker: Broker) -> Result<Self, Missing> {
        Ok(match broker {
            Broker::RabbitMq => Self::RabbitMq(RabbitMq::newest().start()?),
            Broker::Kafka => Self::Kafka(Kafka::newest().as_shipped().start()?),
            Broker::Redis => {
                let redis = Redis::newest().config("appendonly yes").config("appendfsync everysec");
                Self::Redis(redis.start()?)
            }
        })
    }

    /// Starts a RabbitMQ whose queues move between members.
    pub(crate) fn moving() -> Result<Self, Missing> {
        Ok(Self::RabbitMq(RabbitMq::oldest().start()?))
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
        let (broker, url, topic) = match self {
            Self::RabbitMq(server) => (Broker::RabbitMq, server.fresh_vhost(), "orders".to_owned()),
            Self::Kafka(server) => {
                let topic = fresh_topic();
                within(make_kafka_topic(&server.url(), &topic, PARTITIONS)).expect("a topic is made");
                (Broker::Kafka, server.url(), topic.to_string())
            }
            Self::Redis(server) => {
                server.cli(&["FLUSHALL"]);
                (Broker::Redis, server.url(), "orders".to_owned())
            }
        };
        Address { broker, url, topic, queues: 1 }
    }
}

impl Address {
    pub(crate) fn topic(&self) -> Topic {
        Topic::new(&*self.topic).expect("a valid name")
    }

    /// Returns the consumer of this topic alone: a group of Kafka outlives a measurement.
    pub(crate) fn consumer(&self) -> Consumer {
        Consumer::new(format!("inventory-{}", self.topic)).expect("a valid name")
    }

    /// Returns the transport, to RabbitMQ with quorum queues. All variants consume through it, so
    /// that they differ by their shape alone.
    pub(crate) fn transport(&self) -> Arc<dyn Transport> {
        match self.broker {
            Broker::RabbitMq => {
                let builder = RabbitMqTransport::builder(&self.url).topology(Topology::Declared);
                let builder = builder.partitions(self.queues).share_queues(self.queues > 1);
                let builder = builder.consumer(self.topic(), self.consumer());
                Arc::new(builder.build().expect("a valid configuration"))
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
