//! Subject of the measurement: a transport to a real broker.

use std::sync::Arc;

use outbox_contract::{Consumer, Topic, Transport};
use outbox_servers::{Kafka, KafkaServer, OrSkip, RabbitMq, RabbitMqServer, Redis, RedisServer};
use outbox_transport_kafka::KafkaTransport;
use outbox_transport_rabbitmq::{RabbitMqTransport, Topology};
use outbox_transport_redis::RedisTransport;
use rdkafka::ClientConfig;
use rdkafka::admin::{AdminClient, AdminOptions, NewTopic, TopicReplication};
use rdkafka::client::DefaultClientContext;

use crate::Broker;

/// Partitions of the topic in Kafka, all on one broker.
const PARTITIONS: i32 = 4;

/// A running broker.
pub(crate) enum Subject {
    Kafka(KafkaServer),
    RabbitMq(RabbitMqServer),
    Redis(RedisServer),
}

impl Subject {
    /// Starts it; reports if it is unavailable.
    pub(crate) async fn start(broker: Broker) -> Option<Self> {
        Some(match broker {
            Broker::Kafka => {
                let server = Kafka::newest().as_shipped().shared().or_skip()?;
                make_topic(&server.url()).await;
                Self::Kafka(server)
            }
            Broker::Rabbitmq => Self::RabbitMq(RabbitMq::newest().as_shipped().shared().or_skip()?),
            Broker::Redis => Self::Redis(Redis::newest().shared().or_skip()?),
        })
    }

    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::Kafka(_) => "kafka",
            Self::RabbitMq(_) => "rabbitmq",
            Self::Redis(_) => "redis",
        }
    }

    /// Returns a transport with an unused destination, and its default options.
    pub(crate) fn transport(&self, topic: &Topic) -> Arc<dyn Transport> {
        match self {
            Self::Kafka(server) => Arc::new(KafkaTransport::builder(server.url()).build().expect("valid")),
            Self::RabbitMq(server) => {
                let builder = RabbitMqTransport::builder(server.fresh_vhost()).topology(Topology::Declared);
                let nobody = Consumer::new("nobody").expect("a valid name");
                Arc::new(builder.consumer(topic.clone(), nobody).build().expect("valid"))
            }
            Self::Redis(server) => {
                let builder = RedisTransport::builder(server.url()).prefix(server.fresh_prefix());
                Arc::new(builder.build().expect("valid"))
            }
        }
    }
}

async fn make_topic(brokers: &str) {
    let admin: AdminClient<DefaultClientContext> =
        ClientConfig::new().set("bootstrap.servers", brokers).create().expect("a valid address");
    let topic = NewTopic::new("bench", PARTITIONS, TopicReplication::Fixed(1));
    // An existing one will do.
    let _ = admin.create_topics([&topic], &AdminOptions::new()).await.expect("the broker answers");
}
