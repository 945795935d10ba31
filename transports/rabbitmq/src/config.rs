//! Validated configuration of a transport.

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
    /// They must exist, created by another party. Each queue is checked before it is consumed: it
    /// must be a quorum queue with a single active consumer that drops nothing silently. AMQP can
    /// only check this by declaring the existing queue, for which RabbitMQ requires the permission
    /// *configure*.
    #[default]
    Checked,
    /// Declares missing parts; existing ones must be identical. Parts that are deleted later are
    /// declared again within seconds, by publishers and consumers.
    Declared,
    /// They must exist, and are used without a check: for users without the permission *configure*.
    /// You guarantee that the queues are suitable.
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
    pub(crate) share_queues: bool,
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
    /// Returns true if the message can be published at all.
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

/// Omits the password and the private key.
impl fmt::Debug for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Config")
            .field("address", &self.address)
            .field("name", &self.name)
            .field("exchange", &self.exchange.as_str())
            .field("topology", &self.topology)
            .field("partitions", &self.partitions.0)
            .field("share_queues", &self.share_queues)
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
