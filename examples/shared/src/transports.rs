//! A broker by its URL. Which of them there are is for the features of this crate to say, so that nobody builds the client of one that they don't
//! have.

use std::error::Error;
use std::sync::Arc;

use outbox::Transport;
use outbox::prelude::*;

/// What went wrong, in words.
pub type Failed = Box<dyn Error + Send + Sync>;

/// The transport of a URL: `amqp://` (RabbitMQ), `kafka://host:port`, `redis://`, or `memory:`, within the process and another one each time.
///
/// `consumers` says who must be able to receive which topic: where queues have to be made, they are made for these.
///
/// # Errors
///
/// The URL is none of these, its feature is off, or what is wrong with it. A broker that is not there is no error: it is waited for.
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

/// What a scheme that is not known means: a mistake, or a feature that is off.
#[must_use]
pub fn unknown(scheme: &str, features: &[&str]) -> Failed {
    let features = features.join(", ");
    format!("nothing here is reached by {scheme:?}; if it should be, switch its feature on: cargo run --features … ({features})").into()
}

fn memory(consumers: &[(&str, &str)]) -> Result<Arc<dyn Transport>, Failed> {
    let mut builder = MemoryTransport::builder();
    for (topic, consumer) in consumers {
        // What is published before they have subscribed is kept for them.
        builder = builder.consumer(topic.parse()?, consumer.parse()?);
    }
    Ok(Arc::new(builder.build()))
}

#[cfg(feature = "rabbitmq")]
fn rabbitmq(url: &str, consumers: &[(&str, &str)]) -> Result<Arc<dyn Transport>, Failed> {
    let mut builder = RabbitMqTransport::builder(url).topology(outbox::rabbitmq::Topology::Declared);
    for (topic, consumer) in consumers {
        builder = builder.consumer(topic.parse()?, consumer.parse()?);
    }
    Ok(Arc::new(builder.build()?))
}

/// Its topics must be there: how many partitions they have is for their owner to say.
#[cfg(feature = "kafka")]
fn kafka(url: &str) -> Result<Arc<dyn Transport>, Failed> {
    let brokers = url.strip_prefix("kafka://").unwrap_or(url);
    Ok(Arc::new(outbox::kafka::KafkaTransport::builder(brokers).build()?))
}
