//! Brokers: as a benchmark starts them, and as children reach them.

use std::sync::Arc;
use std::time::Duration;

use outbox_contract::{Consumer, Topic, Transport};
use outbox_servers::{Kafka, KafkaServer, Missing, RabbitMq, RabbitMqServer, Redis, RedisServer, Server};
use outbox_transport_kafka::KafkaTransport;
use outbox_transport_rabbitmq::{RabbitMqTransport, Topology};
use outbox_transport_redis::RedisTransport;
use serde::{Deserialize, Serialize};

use super::database::within;
use super::pair::Broker;
use crate::fresh::{fresh_topic, make_kafka_topic, make_kafka_topic_anew};

/// A running broker.
#[derive(Debug)]
pub struct BrokerServer {
    running: Running,
    /// Topic of every destination. None: any name, on Kafka an unused one.
    topic: Option<&'static str>,
}

#[derive(Debug)]
enum Running {
    RabbitMq(RabbitMqServer),
    Kafka(KafkaServer),
    Redis(RedisServer),
}

/// An unused destination of messages and its consumer, as children reach them.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Address {
    /// Kind of the broker.
    pub broker: Broker,
    /// URL of the broker, with the virtual host.
    pub url: String,
    topic: String,
    /// Number of queues of RabbitMQ; members share them if there are several.
    pub queues: u32,
}

/// Number of partitions of a topic of Kafka.
const PARTITIONS: i32 = 4;

impl BrokerServer {
    /// Starts a broker, whose destinations have this topic, if one is given. Redis writes to its log
    /// on the disk, and syncs it every second.
    ///
    /// # Errors
    ///
    /// The server that is missing.
    pub fn start(broker: Broker, topic: Option<&'static str>) -> Result<Self, Missing> {
        let running = match broker {
            Broker::RabbitMq => Running::RabbitMq(RabbitMq::newest().as_shipped().start()?),
            Broker::Kafka => Running::Kafka(Kafka::newest().as_shipped().start()?),
            Broker::Redis => {
                let redis = Redis::newest().config("appendonly yes").config("appendfsync everysec");
                Running::Redis(redis.start()?)
            }
        };
        Ok(Self { running, topic })
    }

    /// Starts a RabbitMQ whose queues move between members.
    ///
    /// # Errors
    ///
    /// The server that is missing.
    pub fn moving() -> Result<Self, Missing> {
        Ok(Self { running: Running::RabbitMq(RabbitMq::oldest().as_shipped().start()?), topic: None })
    }

    fn server(&self) -> &Server {
        match &self.running {
            Running::RabbitMq(server) => server,
            Running::Kafka(server) => server,
            Running::Redis(server) => server,
        }
    }

    /// Returns its name and version, for the report.
    pub fn name(&self) -> &str {
        self.server().name()
    }

    /// Returns its processor time so far.
    pub fn cpu(&self) -> Duration {
        self.server().usage().cpu
    }

    /// Returns an unused destination.
    pub fn fresh(&self) -> Address {
        let topic = self.topic.unwrap_or("orders").to_owned();
        let (broker, url, topic) = match &self.running {
            Running::RabbitMq(server) => (Broker::RabbitMq, server.fresh_vhost(), topic),
            Running::Kafka(server) => {
                let url = server.url();
                let topic = match self.topic {
                    Some(topic) => {
                        let topic = Topic::new(topic).expect("a valid name");
                        within(make_kafka_topic_anew(&url, &topic, PARTITIONS)).expect("a topic is made");
                        topic
                    }
                    None => {
                        let topic = fresh_topic();
                        within(make_kafka_topic(&url, &topic, PARTITIONS)).expect("a topic is made");
                        topic
                    }
                };
                (Broker::Kafka, url, topic.to_string())
            }
            Running::Redis(server) => {
                server.cli(&["FLUSHALL"]);
                (Broker::Redis, server.url(), topic)
            }
        };
        Address { broker, url, topic, queues: 1 }
    }
}

impl Address {
    /// Returns the topic.
    pub fn topic(&self) -> Topic {
        Topic::new(&*self.topic).expect("a valid name")
    }

    /// Returns the consumer of this topic alone: a group of Kafka outlives a measurement.
    pub fn consumer(&self) -> Consumer {
        Consumer::new(format!("reader-{}", self.topic)).expect("a valid name")
    }

    /// Returns the transport, to RabbitMQ with quorum queues. All variants work through it, so that
    /// they differ by their shape alone, except the hand-written ones to RabbitMQ.
    pub fn transport(&self) -> Arc<dyn Transport> {
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
