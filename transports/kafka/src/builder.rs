//! The builder of a Kafka transport: each setting with its default and its reason.

use std::time::Duration;

use outbox_contract::{TransportError, TransportErrorKind};
use rdkafka::ClientConfig;

use crate::config::{Config, GroupProtocol, rejected};
use crate::security::Mechanism;
use crate::transport::KafkaTransport;

/// Properties that the transport's guarantees depend on: users can't set them.
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
    // A connection on which a request has timed out is given up: its answers would be taken for
    // those of others.
    "socket.max.fails",
    "transactional.id",
];

/// Builds a [`KafkaTransport`].
///
/// ```no_run
/// # mod outbox { pub mod kafka { pub use outbox_transport_kafka::*; } }
/// use outbox::kafka::{KafkaTransport, Mechanism};
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
        Self { config: Config::new(brokers) }
    }

    /// Connects by TLS. The brokers' certificates must come from an authority that the system trusts,
    /// and match the broker's name. Needs the feature `tls` (`kafka-tls` of the crate `outbox`).
    /// Default: no TLS.
    pub fn tls(mut self) -> Self {
        self.config.security.tls();
        self
    }

    /// Sets the authorities of the brokers' certificates, in PEM, in place of those that the system
    /// trusts. Implies [`tls`](Self::tls).
    pub fn authorities(mut self, pem: impl Into<String>) -> Self {
        self.config.security.authorities(pem.into());
        self
    }

    /// Sets the client's certificate with its chain, and its private key, in PEM, for brokers that
    /// require one. Implies [`tls`](Self::tls). Password of the key: property `ssl.key.password`.
    pub fn identity(mut self, certificate: impl Into<String>, key: impl Into<String>) -> Self {
        self.config.security.identity(certificate.into(), key.into());
        self
    }

    /// Sets user, password and SASL mechanism. Use it with [`tls`](Self::tls): without it, traffic
    /// is readable on the network.
    pub fn credentials(
        mut self,
        mechanism: Mechanism,
        user: impl Into<String>,
        password: impl Into<String>,
    ) -> Self {
        self.config.security.credentials(mechanism, user.into(), password.into());
        self
    }

    /// Sets a property of librdkafka: compression, timeouts of groups, other ways to log in.
    /// `build` refuses those that the transport's guarantees depend on. Producers get no properties
    /// of consumers, and consumers none of producers.
    pub fn property(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.config.properties.insert(name.into(), value.into());
        self
    }

    /// Sets the maximum number of bytes of a record batch, and of a message. Default 1,048,588, as
    /// the broker's. Larger messages are rejected before they are sent. If a topic's
    /// `max.message.bytes` is lower, its batches are smaller, and messages above it are rejected
    /// before they are sent; this requires `DescribeConfigs` on the topic.
    pub fn max_message_bytes(mut self, bytes: usize) -> Self {
        self.config.max_message_bytes = bytes;
        self
    }

    /// Sets the time for which the client waits for more messages before it sends a batch. By
    /// default, a batch of up to 32 messages is sent at once, and a larger one waits for 0.3 ms: it
    /// comes from a backlog, and would be split otherwise, which costs the broker time.
    ///
    /// Once set, the time holds for all batches. Zero sends everything at once.
    pub fn linger(mut self, linger: Duration) -> Self {
        self.config.linger = Some(linger);
        self
    }

    /// Sets the protocol by which the members of a consumer divide the partitions. Default
    /// [`GroupProtocol::Cooperative`].
    pub fn group_protocol(mut self, protocol: GroupProtocol) -> Self {
        self.config.group_protocol = protocol;
        self
    }

    /// Creates the transport. It connects in the background:
    /// [`check`](outbox_contract::backend::Transport::check) reports whether it can.
    ///
    /// # Errors
    ///
    /// [`Invalid`](TransportErrorKind::Invalid), with all problems of the configuration: brokers that
    /// are not `host:port`, separated by commas; a property that is the transport's own, or that
    /// librdkafka rejects; contradictory settings; TLS and SCRAM without the feature `tls`. A
    /// certificate or key that can't be read is reported when nothing else is wrong. No password is
    /// shown.
    pub fn build(self) -> Result<KafkaTransport, TransportError> {
        let problems = problems(&self.config);
        if problems.is_empty() {
            return KafkaTransport::with_config(self.config);
        }
        let words = format!("invalid configuration of the Kafka transport: {}", problems.join("; "));
        Err(TransportError::new(TransportErrorKind::Invalid, "build", words))
    }
}

/// Lists what is wrong with a configuration.
fn problems(config: &Config) -> Vec<String> {
    let mut problems: Vec<String> = problem_of_brokers(&config.brokers).into_iter().collect();
    if config.max_message_bytes == 0 {
        problems.push("max_message_bytes is 0; make it at least 1".to_owned());
    }
    for (name, value) in &config.properties {
        if OURS.contains(&name.as_str()) {
            problems.push(format!(
                "the property {name} is set by the transport, whose guarantees depend on it; remove it"
            ));
        } else if let Err(error) = ClientConfig::new().set(name, value).create_native_config() {
            problems.push(rejected(error));
        }
    }
    let built_with = ClientConfig::new().create_native_config().and_then(|it| it.get("builtin.features"));
    match built_with {
        Ok(built_with) => problems.extend(config.security.problems(&config.properties, &built_with)),
        Err(error) => problems.push(rejected(error)),
    }
    problems
}

/// Returns the problem of a list of brokers. librdkafka takes any, and then waits for a broker that
/// no name leads to. Pure.
fn problem_of_brokers(brokers: &str) -> Option<String> {
    /// Protocols that librdkafka knows in front of a broker.
    const PROTOCOLS: [&str; 4] = ["plaintext", "ssl", "sasl_plaintext", "sasl_ssl"];
    let expected = "write host:port, several separated by commas";
    let mut brokers = brokers.split(',').map(str::trim).filter(|broker| !broker.is_empty()).peekable();
    if brokers.peek().is_none() {
        return Some(format!("the list of brokers is empty; {expected}"));
    }
    let is_wrong = |broker: &str| {
        broker
            .split_once("://")
            .is_some_and(|(protocol, _)| !PROTOCOLS.iter().any(|known| protocol.eq_ignore_ascii_case(known)))
    };
    let wrong = brokers.find(|broker| is_wrong(broker))?;
    Some(format!("the broker {wrong:?} is a URL; {expected}"))
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
            assert!(words.contains(name) && words.contains("remove it"), "{words}");
        }
    }

    #[test]
    fn every_wrong_value_is_named_at_once_and_no_password() {
        let wrong = KafkaTransportBuilder::new("kafka://localhost:9092".to_owned()).max_message_bytes(0);
        let wrong = wrong.property("acks", "1").property("retries", "1");
        let wrong = wrong.property("session.timeout.ms", "soon").property("sasl.passwort", "s3cret");
        let error = wrong.build().expect_err("nothing of it is right");
        assert_eq!(error.kind(), TransportErrorKind::Invalid);
        let shown = error.to_string();
        for problem in [
            "the broker \"kafka://localhost:9092\" is a URL; write host:port",
            "max_message_bytes is 0; make it at least 1",
            "the property acks",
            "the property retries",
            "session.timeout.ms",
            "sasl.passwort",
        ] {
            assert!(shown.contains(problem), "{problem}: {shown}");
        }
        assert!(!shown.contains("s3cret"), "{shown}");
    }

    #[test]
    fn brokers_that_can_never_answer_are_refused_with_the_form_that_is_right() {
        for brokers in ["", " , ", "kafka://localhost:9092", "one:9092,http://two:9092"] {
            let error = KafkaTransportBuilder::new(brokers.to_owned()).build().expect_err(brokers);
            assert_eq!(error.kind(), TransportErrorKind::Invalid, "{error}");
            assert!(error.to_string().contains("write host:port"), "{error}");
        }
        for brokers in ["localhost", "localhost:9092", "one:9092, two:9092", "PLAINTEXT://[::1]:9092"] {
            assert_eq!(problem_of_brokers(brokers), None);
        }
    }
}
