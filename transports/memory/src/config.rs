//! Configuration of an in-process transport: its builder, with the default and the reason of each
//! value.

use std::collections::{BTreeMap, BTreeSet};

use outbox_contract::backend::BUCKETS;
use outbox_contract::backend::flow::Load;
use outbox_contract::{
    Consumer, Failure, Message, NameError, Rejection, Topic, TransportError, TransportErrorKind,
};

use crate::transport::MemoryTransport;

/// Point at which a message counts as delivered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Confirm {
    /// After every consumer of its topic has acknowledged it.
    Acknowledged,
    /// After it is in the buffer of every consumer of its topic.
    Enqueued,
}

#[derive(Clone, Debug)]
pub(crate) struct Config {
    pub(crate) confirm: Confirm,
    pub(crate) partitions: usize,
    pub(crate) buffer: Load,
    pub(crate) max_message_bytes: Option<usize>,
    pub(crate) declared: BTreeMap<Topic, BTreeSet<Consumer>>,
    pub(crate) problems: Vec<String>,
}

impl Config {
    /// Reports the settings that are invalid, all at once.
    pub(crate) fn check(&self) -> Result<(), TransportError> {
        if self.problems.is_empty() {
            return Ok(());
        }
        let words =
            format!("invalid configuration of the in-process transport: {}", self.problems.join("; "));
        Err(TransportError::new(TransportErrorKind::Invalid, "check", words))
    }

    /// Rejects a message that can never be delivered.
    pub(crate) fn validate(&self, message: &Message) -> Result<(), Rejection> {
        match self.max_message_bytes {
            Some(most) if message.bytes() > most => Err(Rejection(Failure::new(
                "message-too-large",
                format!(
                    "the message has {} bytes, over the limit of {most}; raise max_message_bytes, or send a reference",
                    message.bytes()
                ),
            ))),
            _ => Ok(()),
        }
    }
}

/// Builds a [`MemoryTransport`].
///
/// ```
/// # mod outbox { pub use outbox_contract::*; pub mod memory { pub use outbox_transport_memory::*; } }
/// use outbox::memory::MemoryTransport;
///
/// let transport = MemoryTransport::builder()
///     .consumer("orders", "inventory")
///     .partitions(4)
///     .build();
/// # Ok::<(), outbox::NameError>(())
/// ```
#[derive(Clone, Debug)]
#[must_use = "a builder does nothing until it is built"]
pub struct MemoryTransportBuilder {
    config: Config,
}

impl MemoryTransportBuilder {
    pub(crate) fn new() -> Self {
        Self {
            config: Config {
                confirm: Confirm::Acknowledged,
                partitions: 8,
                buffer: Load { messages: 10_000, bytes: 64 * 1024 * 1024 },
                max_message_bytes: None,
                declared: BTreeMap::new(),
                problems: Vec::new(),
            },
        }
    }

    /// Declares that this consumer belongs to this topic, before it subscribes for the first time.
    /// Names are text, or a [`Topic`] and a [`Consumer`]. An invalid one is reported by
    /// [`check`](outbox_contract::Transport::check), with which relays and inboxes start.
    ///
    /// An undeclared consumer receives messages published after its first subscription. With the
    /// declaration, no message of the topic is confirmed without this consumer, so the start order
    /// of the parts of a program does not matter.
    pub fn consumer(
        mut self,
        topic: impl TryInto<Topic, Error: Into<NameError>>,
        consumer: impl TryInto<Consumer, Error: Into<NameError>>,
    ) -> Self {
        let topic = topic.try_into().map_err(|error| self.config.problems.push(error.into().to_string()));
        let consumer =
            consumer.try_into().map_err(|error| self.config.problems.push(error.into().to_string()));
        if let (Ok(topic), Ok(consumer)) = (topic, consumer) {
            self.config.declared.entry(topic).or_default().insert(consumer);
        }
        self
    }

    /// Confirms a message as soon as it is in the buffer of every consumer of its topic, whether or
    /// not a member is connected. Default: after every consumer has acknowledged it.
    ///
    /// For tests and benchmarks that need the behavior of a broker. The content of the buffers is
    /// lost with the process.
    pub fn confirm_on_enqueue(mut self) -> Self {
        self.config.confirm = Confirm::Enqueued;
        self
    }

    /// Sets the number of partitions of a topic: the maximum number of members of a consumer that
    /// work in parallel. 1 to 256, default 8.
    pub fn partitions(mut self, partitions: usize) -> Self {
        self.config.partitions = partitions;
        self
    }

    /// Sets the maximum number of unacknowledged messages for one consumer of one topic. At least
    /// 1, default 10,000. Publishing waits for room.
    pub fn buffer_messages(mut self, messages: usize) -> Self {
        self.config.buffer.messages = messages;
        self
    }

    /// Sets the maximum bytes of unacknowledged messages for one consumer of one topic. Default 64
    /// MiB. A larger message waits alone.
    pub fn buffer_bytes(mut self, bytes: usize) -> Self {
        self.config.buffer.bytes = bytes;
        self
    }

    /// Sets the maximum size of a message in bytes, headers and names included. Default: no limit.
    pub fn max_message_bytes(mut self, bytes: usize) -> Self {
        self.config.max_message_bytes = Some(bytes);
        self
    }

    /// Returns the transport. What is wrong with its settings is reported by
    /// [`check`](outbox_contract::Transport::check), with which relays and inboxes start.
    #[must_use]
    pub fn build(self) -> MemoryTransport {
        let mut config = self.config;
        let given = [
            ("partitions", Some(config.partitions), BUCKETS),
            ("buffer_messages", Some(config.buffer.messages), usize::MAX),
            ("max_message_bytes", config.max_message_bytes, usize::MAX),
        ];
        for (what, value, most) in given {
            let Some(value) = value.filter(|value| !(1..=most).contains(value)) else { continue };
            let limit = if most == BUCKETS { format!("1 to {BUCKETS}") } else { "at least 1".to_owned() };
            config.problems.push(format!("{what} is {value}; make it {limit}"));
        }
        // Without the check, too, it must not wait for ever.
        config.partitions = config.partitions.clamp(1, BUCKETS);
        config.buffer.messages = config.buffer.messages.max(1);
        MemoryTransport::with_config(config)
    }
}
