//! A broker by its URL. This crate's features select the available brokers, so that users build
//! only the clients they need.

use std::error::Error;
use std::sync::Arc;

use outbox::Transport;
use outbox::prelude::*;

/// Error with a text.
pub type Failed = Box<dyn Error + Send + Sync>;

/// Returns the transport of a URL: `amqp://` (RabbitMQ), `kafka://host:port`, `redis://`, or
/// `memory:`, in-process and a new one each time.
///
/// `consumers` lists which consumer must be able to receive which topic: brokers that need declared
/// queues declare them for these.
///
/// # Errors
///
/// If the URL is none of these, its feature is off, or the URL is invalid. An unreachable broker is
/// not an error: the transport waits for it.
pub fn open(url: &str, consumers: &[(&str, &str)]) -> Result<Arc<dyn Transport>, Failed> {
    match url.split(':').next().unwrap_or_default() {
        "memory" => memory(consumers),
        #[cfg(feature = "rabbitmq")]
        "amqp" | "amqps" => rabbitmq(url, consumers),
        #[cfg(feature = "kafka")]
        "kafka" => kafka(url),
        #[cfg(feature = "redis")]
        "redis" | "rediss" => Ok(Arc::new(outbox::redis::RedisTransport::builder(url).build()?)),
        scheme => Err(unknown(scheme, &["rabbitmq", "kafka", "redis"])),
    }
}

/// Error for an unknown scheme: a mistake, or a feature that is off.
#[must_use]
pub fn unknown(scheme: &str, features: &[&str]) -> Failed {
    let features = features.join(", ");
    format!("unsupported URL scheme {scheme:?}; if it is a known one, enable its feature: cargo run --features … ({features})").into()
}

fn memory(consumers: &[(&str, &str)]) -> Result<Arc<dyn Transport>, Failed> {
    let mut builder = MemoryTransport::builder();
    for (topic, consumer) in consumers {
        // Messages published before they have subscribed are kept for them.
        builder = builder.consumer(*topic, *consumer);
    }
    Ok(Arc::new(builder.build()))
}

#[cfg(feature = "rabbitmq")]
fn rabbitmq(url: &str, consumers: &[(&str, &str)]) -> Result<Arc<dyn Transport>, Failed> {
    let mut builder = RabbitMqTransport::builder(url).topology(outbox::rabbitmq::Topology::Declared);
    for (topic, consumer) in consumers {
        builder = builder.consumer(*topic, *consumer);
    }
    Ok(Arc::new(builder.build()?))
}

/// Its topics must exist: their owner decides the number of partitions.
#[cfg(feature = "kafka")]
fn kafka(url: &str) -> Result<Arc<dyn Transport>, Failed> {
    let brokers = url.strip_prefix("kafka://").unwrap_or(url);
    Ok(Arc::new(outbox::kafka::KafkaTransport::builder(brokers).build()?))
}
