//! The suite of all transports, on a RabbitMQ: with topics of four queues each, and with one.

#![allow(clippy::unwrap_used, reason = "a panic in a test is a failed test")]

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use outbox_contract::Topic;
use outbox_contract::backend::Transport;
use outbox_servers::{OrSkip, RabbitMq};
use outbox_testkit::transport_suite::{Capability, TransportHarness};
use outbox_transport_rabbitmq::{RabbitMqTransport, Topology};

const LIMIT: usize = 1024 * 1024;

struct Rabbit<const PARTITIONS: u32> {
    url: String,
    transport: Arc<dyn Transport>,
    topics: AtomicUsize,
}

fn transport(url: &str, partitions: u32) -> Arc<dyn Transport> {
    let builder = RabbitMqTransport::builder(url).topology(Topology::Declared).partitions(partitions);
    // A server that other test programs use too may be busy for seconds.
    let builder = builder.timeout(Duration::from_secs(30));
    Arc::new(builder.max_message_bytes(LIMIT - 1).build().unwrap())
}

impl<const PARTITIONS: u32> TransportHarness for Rabbit<PARTITIONS> {
    const LACKS: &'static [Capability] = if PARTITIONS > 1 {
        &[Capability::MovingUnits]
    } else {
        &[Capability::MovingUnits, Capability::Units]
    };

    async fn fresh() -> Self {
        let server = tokio::task::spawn_blocking(|| RabbitMq::newest().shared().unwrap().fresh_vhost());
        let url = server.await.unwrap();
        Self { transport: transport(&url, PARTITIONS), url, topics: AtomicUsize::new(0) }
    }

    fn transport(&self) -> Arc<dyn Transport> {
        Arc::clone(&self.transport)
    }

    async fn topic(&self) -> Topic {
        Topic::new(format!("topic-{}", self.topics.fetch_add(1, Ordering::Relaxed))).unwrap()
    }

    async fn as_another_process(&self) -> Arc<dyn Transport> {
        transport(&self.url, PARTITIONS)
    }

    fn unroutable_topic(&self) -> Topic {
        Topic::new("nobody-subscribes-to-this").unwrap()
    }

    fn too_large(&self) -> usize {
        LIMIT
    }

    fn skipped() -> Option<String> {
        RabbitMq::newest().shared().or_skip().is_none().then(|| "there is no RabbitMQ".to_owned())
    }
}

mod with_four_partitions {
    use super::*;
    outbox_testkit::transport_conformance!(Rabbit<4>);
}

mod with_one_queue {
    use super::*;
    outbox_testkit::transport_conformance!(Rabbit<1>);
}
