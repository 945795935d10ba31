//! The suite of all transports, on Apache Kafka, under both of its group protocols.

#![allow(clippy::unwrap_used, reason = "a panic in a test is a failed test")]

use std::sync::Arc;

use outbox_contract::Topic;
use outbox_contract::backend::Transport;
use outbox_servers::{Kafka as Server, KafkaServer, Missing};
use outbox_testkit::transport_suite::{Capability, TransportHarness};
use outbox_transport_kafka::{GroupProtocol, KafkaTransport};

struct Kafka<const CONSUMER: bool> {
    broker: KafkaServer,
    transport: KafkaTransport,
}

impl<const CONSUMER: bool> Kafka<CONSUMER> {
    fn build(broker: &KafkaServer) -> KafkaTransport {
        let builder = KafkaTransport::builder(broker.url());
        if CONSUMER {
            builder.group_protocol(GroupProtocol::Consumer).build().unwrap()
        } else {
            // Members learn of a newcomer at their next heartbeat: by default after three seconds.
            builder.property("heartbeat.interval.ms", "300").build().unwrap()
        }
    }
}

impl<const CONSUMER: bool> TransportHarness for Kafka<CONSUMER> {
    const LACKS: &'static [Capability] = &[Capability::BatchesInParts];

    async fn fresh() -> Self {
        let broker = Server::newest().shared().unwrap();
        let transport = Self::build(&broker);
        Self { broker, transport }
    }

    fn transport(&self) -> Arc<dyn Transport> {
        Arc::new(self.transport.clone())
    }

    async fn as_another_process(&self) -> Arc<dyn Transport> {
        Arc::new(Self::build(&self.broker))
    }

    async fn topic(&self) -> Topic {
        crate::support::fresh_topic(&self.broker.url(), 4, &[]).await
    }

    fn unroutable_topic(&self) -> Topic {
        Topic::new("not-on-the-broker").unwrap()
    }

    fn too_large(&self) -> usize {
        1_100_000
    }

    fn skipped() -> Option<String> {
        match Server::newest().shared() {
            Err(missing @ Missing::Absent { .. }) => {
                outbox_servers::skip(&missing.to_string());
                Some(missing.to_string())
            }
            _ => None,
        }
    }
}

mod cooperative {
    use super::*;
    outbox_testkit::transport_conformance!(Kafka<false>);
}

mod decided_by_the_broker {
    use super::*;
    outbox_testkit::transport_conformance!(Kafka<true>);
}
