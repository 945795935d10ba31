//! Configuration of a transport, once it was found to make sense.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::time::Duration;

use lapin::tcp::OwnedTLSConfig;
use lapin::types::ShortString;
use outbox_contract::{Consumer, Failure, Message, Rejection, Topic};

use crate::address::Address;
use crate::routing::Partitions;

/// Handling of exchanges, queues and bindings.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Topology {
    /// They must be there, made by somebody else. Queues are looked at before they are consumed: a
    /// quorum queue with a single active consumer, which drops nothing in silence. AMQP can be
    /// asked that only by declaring a queue that is there already, for which RabbitMQ wants the
    /// permission *configure*.
    #[default]
    Checked,
    /// Declares what is missing; what is there must be the same. What is deleted later is made
    /// again within seconds, by who publishes and by who consumes.
    Declared,
    /// They must be there, and are used as they are: for users without the permission *configure*.
    /// That queues are as they should be is your promise.
    Trusted,
}

#[derive(Clone)]
pub(crate) struct Config {
    pub(crate) address: Address,
    pub(crate) tls: OwnedTLSConfig,
    pub(crate) name: String,
    pub(crate) exchange: ShortString,
    pub(crate) topology: Topology,
    pub(crate) partitions: Partitions,
    pub(crate) consumers: BTreeMap<Topic, BTreeSet<Consumer>>,
    pub(crate) dead_letters: Option<ShortString>,
    pub(crate) delivery_limit: Option<u32>,
    pub(crate) max_waiting: Option<u32>,
    pub(crate) connections: usize,
    pub(crate) max_message_bytes: usize,
    pub(crate) timeout: Duration,
    pub(crate) heartbeat: Duration,
    pub(crate) first_pause: Duration,
    pub(crate) max_pause: Duration,
}

impl Config {
    /// Returns true if this message can ever be taken.
    pub(crate) fn validate(&self, message: &Message) -> Result<(), Rejection> {
        let bytes = message.payload.len();
        if bytes > self.max_message_bytes {
            return Err(Rejection(Failure::new(
                "message-too-large",
                format!(
                    "the payload has {bytes} bytes, over the limit of {}; raise max_message_size of the broker and \
                     max_message_bytes of the transport, or store the data elsewhere and send a reference",
                    self.max_message_bytes
                ),
            )));
        }
        Ok(())
    }
}

/// Without the password and the private key.
impl fmt::Debug for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Config")
            .field("address", &self.address)
            .field("name", &self.name)
            .field("exchange", &self.exchange.as_str())
            .field("topology", &self.topology)
            .field("partitions", &self.partitions.0)
            .field("dead_letters", &self.dead_letters.as_ref().map(ShortString::as_str))
            .field("delivery_limit", &self.delivery_limit)
            .field("max_waiting", &self.max_waiting)
            .field("connections", &self.connections)
            .field("max_message_bytes", &self.max_message_bytes)
            .field("timeout", &self.timeout)
            .field("heartbeat", &self.heartbeat)
            .finish_non_exhaustive()
    }
}

/// A configuration that makes no sense: everything that is wrong with it, at once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigError {
    pub(crate) problems: Vec<String>,
}

impl ConfigError {
    /// Returns what is wrong, with the value and the remedy of each.
    #[must_use]
    pub fn problems(&self) -> &[String] {
        &self.problems
    }
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the transport to RabbitMQ can't be built: {}", self.problems.join("; "))
    }
}

impl std::error::Error for ConfigError {}
