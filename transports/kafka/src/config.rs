//! What can be set of a Kafka transport: its builder, with the default and the reason of each value.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use outbox_contract::{Failure, Message, Rejection, Topic, TransportError, TransportErrorKind};
use rdkafka::ClientConfig;
use rdkafka::config::RDKafkaLogLevel;
use rdkafka::error::KafkaError;

use crate::security::{Mechanism, Security};
use crate::transport::KafkaTransport;

/// How the members of a consumer share out partitions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum GroupProtocol {
    /// The members agree among themselves, and only what moves is interrupted (`cooperative-sticky`). Every broker can do it.
    #[default]
    Cooperative,
    /// The broker decides (`group.protocol=consumer`). Kafka 4.0 or later.
    Consumer,
}

/// Properties that the promises of the transport rest on: nobody sets them but it.
const OURS: &[&str] = &[
    "acks",
    // Who publishes makes no topics.
    "allow.auto.create.topics",
    "auto.commit.enable",
    "bootstrap.servers",
    // With it no message would ever be said to be delivered.
    "delivery.report.only.error",
    "delivery.timeout.ms",
    "enable.auto.commit",
    "enable.auto.offset.store",
    "enable.gapless.guarantee",
    "enable.idempotence",
    "enable.partition.eof",
    "group.id",
    "group.protocol",
    "max.in.flight",
    "max.in.flight.requests.per.connection",
    "message.send.max.retries",
    "message.timeout.ms",
    "metadata.broker.list",
    // Offsets belong on the broker: the next member goes on from there.
    "offset.store.method",
    "partition.assignment.strategy",
    "partitioner",
    "queuing.strategy",
    "request.required.acks",
    "retries",
    // A connection on which a request has timed out is given up: its answers would be taken for those of others.
    "socket.max.fails",
    "transactional.id",
];

/// How many bytes a record may have beyond its batch limit before the client itself refuses it. High: whether a message is too large is
/// for the broker to say, which knows the limit of the topic.
const CLIENT_LIMIT: usize = 100_000_000;

#[derive(Clone)]
pub(crate) struct Config {
    brokers: String,
    properties: BTreeMap<String, String>,
    security: Security,
    pub(crate) max_message_bytes: usize,
    linger: Duration,
    group_protocol: GroupProtocol,
}

impl Config {
    /// Whether this message can ever be taken.
    pub(crate) fn validate(&self, message: &Message) -> Result<(), Rejection> {
        // What is certain alone: the record has more than this.
        let headers = message.headers.iter().map(|(name, value)| name.len() + value.len()).sum::<usize>();
        let bytes = message.payload.len() + headers;
        if bytes > self.max_message_bytes {
            return Err(Rejection(Failure::new(
                "message-too-large",
                format!(
                    "payload and headers have {bytes} bytes, over the limit of {}: raise max.message.bytes of the topic and \
                     max_message_bytes of the transport, or send a reference",
                    self.max_message_bytes
                ),
            )));
        }
        Self::validate_topic(&message.topic)
    }

    /// Whether Kafka can have a topic of this name.
    pub(crate) fn validate_topic(topic: &Topic) -> Result<(), Rejection> {
        let topic = topic.as_str();
        let legal = topic.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._-".contains(&byte));
        if !legal || topic == "." || topic == ".." {
            return Err(Rejection(Failure::new(
                "topic-not-valid",
                format!(
                    "Kafka has no topic called {topic:?}: use letters of ASCII, digits, '.', '_' and '-'"
                ),
            )));
        }
        Ok(())
    }

    fn client(&self) -> ClientConfig {
        let mut client = ClientConfig::new();
        // Why a broker ended a connection is told in the log alone.
        client.set_log_level(RDKafkaLogLevel::Info);
        client
            .set("bootstrap.servers", &self.brokers)
            .set("client.id", "outbox")
            .set("socket.keepalive.enable", "true")
            // To ask for a topic would make it, where the broker makes topics: one that is misspelt, or one that was just deleted.
            .set("allow.auto.create.topics", "false")
            // A broker that comes back is found within a second; the default is ten.
            .set("reconnect.backoff.max.ms", "1000");
        client.extend(
            self.security.properties().into_iter().map(|(name, value)| (name.to_owned(), value.to_owned())),
        );
        client
    }

    fn with_properties(&self, client: &mut ClientConfig, kind: Kind) {
        for (name, value) in &self.properties {
            if kind.takes(name) {
                client.set(name, value);
            }
        }
    }

    fn producer(&self) -> ClientConfig {
        let mut client = self.client();
        client
            .set("acks", "all")
            // A topic that is missing is reported after a second; the default is thirty.
            .set("topic.metadata.propagation.max.ms", "1000")
            .set("message.max.bytes", CLIENT_LIMIT.to_string())
            .set("linger.ms", self.linger.as_millis().to_string())
            .set("queue.buffering.max.kbytes", (256 * 1024).to_string());
        self.with_properties(&mut client, Kind::Producer);
        client
    }

    /// How large a record batch is made, where the topic takes it: it is rejected as a whole, so no larger than what a topic takes.
    pub(crate) fn batch_bytes(&self) -> usize {
        self.max_message_bytes.clamp(1, 1_000_000)
    }

    /// Whether producers compress what they send.
    pub(crate) fn compresses(&self) -> bool {
        let codecs =
            ["compression.codec", "compression.type"].iter().filter_map(|name| self.properties.get(*name));
        codecs.into_iter().any(|codec| codec != "none")
    }

    /// Of the producer that leaves no gap, with batches of so many bytes.
    pub(crate) fn gapless(&self, batch_bytes: usize) -> ClientConfig {
        let mut client = self.producer();
        if !self.properties.contains_key("batch.size") || batch_bytes < self.batch_bytes() {
            client.set("batch.size", batch_bytes.to_string());
        }
        client
            .set("enable.idempotence", "true")
            .set("enable.gapless.guarantee", "true")
            // The client's own timeout is outside of the guarantee. There is a deadline for each chunk instead.
            .set("message.timeout.ms", "0");
        client
    }

    /// Of the producer that sends single messages: one try each, since a second one may meet another answer than the first.
    pub(crate) fn alone(&self) -> ClientConfig {
        let mut client = self.producer();
        client.set("linger.ms", "0").set("retries", "0").set("message.timeout.ms", "5000");
        client
    }

    /// Of the client that asks for the configuration of topics.
    pub(crate) fn admin(&self) -> ClientConfig {
        let mut client = self.client();
        self.with_properties(&mut client, Kind::Any);
        client
    }

    /// Of a member of a consumer.
    pub(crate) fn member(&self, group: &str, prefetch_bytes: usize) -> ClientConfig {
        let mut client = self.client();
        // What the client fetches ahead for each member, beside the prefetch itself.
        let ahead = prefetch_bytes.div_ceil(1024).clamp(1024, 64 * 1024);
        client
            .set("group.id", group)
            // A consumer that is new begins with the first message there is: with the last, it would miss what came while it joined.
            .set("auto.offset.reset", "earliest")
            .set("queued.max.messages.kbytes", ahead.to_string())
            // Measured: 1.6 times the rate of the default, which waits a second after its queue was full.
            .set("fetch.queue.backoff.ms", "10")
            // So soon a topic is received from that was made after the member joined; the default is five minutes.
            .set("topic.metadata.refresh.interval.ms", "10000");
        self.with_properties(&mut client, Kind::Consumer);
        // Offsets are committed by what is finished, not by what was read.
        client.set("enable.auto.commit", "false").set("enable.auto.offset.store", "false");
        match self.group_protocol {
            GroupProtocol::Cooperative => client.set("partition.assignment.strategy", "cooperative-sticky"),
            GroupProtocol::Consumer => client.set("group.protocol", "consumer"),
        };
        client
    }
}

impl Config {
    /// Of the client that looks at the topics of a member: it reads where the group is, and belongs to none.
    pub(crate) fn probe(&self, group: &str) -> ClientConfig {
        let mut client = self.client();
        client.set("group.id", group).set("auto.offset.reset", "earliest");
        self.with_properties(&mut client, Kind::Consumer);
        client
            .set("enable.auto.commit", "false")
            .set("enable.auto.offset.store", "false")
            .set("enable.partition.eof", "true")
            // It reads one record of each partition.
            .set("fetch.wait.max.ms", "10")
            .set("queued.min.messages", "1");
        for name in ["group.instance.id", "group.remote.assignor"] {
            client.remove(name);
        }
        client
    }
}

impl fmt::Debug for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The values of properties are left out: passwords are among them.
        f.debug_struct("Config")
            .field("brokers", &self.brokers)
            .field("properties", &self.properties.keys())
            .field("security", &self.security)
            .field("max_message_bytes", &self.max_message_bytes)
            .field("linger", &self.linger)
            .field("group_protocol", &self.group_protocol)
            .finish()
    }
}

/// Which client a property is for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Any,
    Producer,
    Consumer,
}

impl Kind {
    /// Properties of one kind of client make the other complain.
    fn takes(self, property: &str) -> bool {
        let starts = |prefixes: &[&str]| prefixes.iter().any(|prefix| property.starts_with(prefix));
        let producers =
            starts(&["queue.buffering.", "batch.", "linger.", "compression.", "sticky.", "retry."])
                || matches!(property, "request.timeout.ms");
        let consumers =
            starts(&["auto.offset.", "fetch.", "group.", "heartbeat.", "isolation.", "queued.", "session."])
                || matches!(property, "max.poll.interval.ms" | "check.crcs" | "client.rack");
        match self {
            Self::Any => !producers && !consumers,
            Self::Producer => !consumers,
            Self::Consumer => !producers,
        }
    }
}

/// Builds a [`KafkaTransport`].
///
/// ```no_run
/// use outbox_transport_kafka::{KafkaTransport, Mechanism};
///
/// let transport = KafkaTransport::builder("kafka-1:9093,kafka-2:9093")
///     .tls()
///     .credentials(Mechanism::ScramSha512, "orders", std::env::var("KAFKA_PASSWORD")?)
///     .build()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
#[must_use = "a builder does nothing until it is built"]
pub struct KafkaTransportBuilder {
    pub(crate) config: Config,
}

impl KafkaTransportBuilder {
    pub(crate) fn new(brokers: String) -> Self {
        Self {
            config: Config {
                brokers,
                properties: BTreeMap::new(),
                security: Security::default(),
                // The broker's own default (message.max.bytes).
                max_message_bytes: 1_048_588,
                linger: Duration::from_millis(1),
                group_protocol: GroupProtocol::default(),
            },
        }
    }

    /// Speaks TLS with the brokers, whose certificates must come from an authority that the system trusts, and have the name that they are
    /// reached by. Needs the feature `tls`. Default: no TLS.
    pub fn tls(mut self) -> Self {
        self.config.security.tls();
        self
    }

    /// The authorities, in PEM, that certificates of brokers must come from, in place of those that the system trusts. With it goes
    /// [`tls`](Self::tls).
    pub fn authorities(mut self, pem: impl Into<String>) -> Self {
        self.config.security.authorities(pem.into());
        self
    }

    /// Our own certificate, with those between it and its authority, and its private key, in PEM, for brokers that ask for one. With it goes
    /// [`tls`](Self::tls). The password of a key that has one: property `ssl.key.password`.
    pub fn identity(mut self, certificate: impl Into<String>, key: impl Into<String>) -> Self {
        self.config.security.identity(certificate.into(), key.into());
        self
    }

    /// A user of the brokers and its password, and how it is shown (SASL). With [`tls`](Self::tls), or else everybody on the way sees what passes.
    pub fn credentials(
        mut self,
        mechanism: Mechanism,
        user: impl Into<String>,
        password: impl Into<String>,
    ) -> Self {
        self.config.security.credentials(mechanism, user.into(), password.into());
        self
    }

    /// Sets a property of librdkafka: compression, timeouts of groups, other ways to log in. `build` refuses those that the promises of the
    /// transport rest on. Properties of producers alone do not reach consumers, nor the other way round.
    pub fn property(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.config.properties.insert(name.into(), value.into());
        self
    }

    /// The most bytes of a record batch, and of a message. Default 1,048,588, as the broker's. What is larger is rejected before it is sent. Where
    /// a topic takes less (its `max.message.bytes`), its batches are made smaller, and what it can't take is rejected before it is sent; for that the
    /// user needs `DescribeConfigs` on the topic.
    pub fn max_message_bytes(mut self, bytes: usize) -> Self {
        self.config.max_message_bytes = bytes.max(1);
        self
    }

    /// How long the client waits for more messages before it sends a batch. Default 1 millisecond: longer costs latency, shorter the
    /// broker's time.
    pub fn linger(mut self, linger: Duration) -> Self {
        self.config.linger = linger;
        self
    }

    /// How the members of a consumer share out partitions. Default [`GroupProtocol::Cooperative`].
    pub fn group_protocol(mut self, protocol: GroupProtocol) -> Self {
        self.config.group_protocol = protocol;
        self
    }

    /// The transport. Connects by itself, in the background: [`check`](outbox_contract::Transport::check) tells whether it can.
    ///
    /// # Errors
    ///
    /// [`Invalid`](TransportErrorKind::Invalid) for a property that is the transport's own, or that librdkafka does not take; for what is said twice;
    /// for TLS and SCRAM without the feature `tls`; for a certificate or key that can't be read.
    pub fn build(self) -> Result<KafkaTransport, TransportError> {
        let invalid = |words: String| TransportError::new(TransportErrorKind::Invalid, "build", words);
        let ours = self.config.properties.keys().find(|name| OURS.contains(&name.as_str()));
        if let Some(name) = ours {
            return Err(invalid(format!(
                "the property {name} is set by the transport, as its promises rest on it: leave it out"
            )));
        }
        let built_with = ClientConfig::new().create_native_config().and_then(|it| it.get("builtin.features"));
        let built_with = built_with.map_err(|error| not_taken("build", error))?;
        match self.config.security.problem(&self.config.properties, &built_with) {
            Some(problem) => Err(invalid(problem)),
            None => KafkaTransport::with_config(self.config),
        }
    }
}

/// What the client says of a configuration that it does not take.
pub(crate) fn not_taken(operation: &'static str, error: KafkaError) -> TransportError {
    // The client's error is not kept: printed it shows the value, a password where the name of its property was misspelt.
    let why = match error {
        KafkaError::ClientConfig(_, why, _, _) => why,
        error => error.to_string(),
    };
    // A wrong password is not always told as one: what it opens may just be no key.
    let locked = if why.contains("ssl.key.") || why.contains("ssl_key") {
        " (a key that is locked with a password needs it, and no other, in the property ssl.key.password)"
    } else {
        ""
    };
    let words = format!("the client takes not this configuration: {why}{locked}");
    TransportError::new(TransportErrorKind::Invalid, operation, words)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_promises_rest_on_is_refused_by_name() {
        let broken = [
            ("delivery.report.only.error", "true"),
            ("allow.auto.create.topics", "true"),
            ("enable.idempotence", "false"),
            ("enable.gapless.guarantee", "false"),
            ("acks", "1"),
            ("request.required.acks", "1"),
            ("message.timeout.ms", "1000"),
            ("delivery.timeout.ms", "1000"),
            ("socket.max.fails", "0"),
            ("offset.store.method", "none"),
            ("auto.commit.enable", "true"),
            ("enable.auto.commit", "true"),
        ];
        for (name, value) in broken {
            let built = KafkaTransportBuilder::new("127.0.0.1:1".to_owned()).property(name, value).build();
            let error = built.err().unwrap_or_else(|| panic!("{name} was taken"));
            assert_eq!(error.kind(), TransportErrorKind::Invalid, "{error}");
            let words = error.to_string();
            assert!(words.contains(name) && words.contains("leave it out"), "{words}");
        }
    }
}
