//! The builder of a transport: each setting with its default, its unit and its reason.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::time::Duration;

use lapin::tcp::{OwnedIdentity, OwnedTLSConfig};
use lapin::types::ShortString;
use outbox_contract::backend::BUCKETS;
use outbox_contract::{Consumer, NameError, Topic, TransportError, TransportErrorKind};

use crate::address::Address;
use crate::config::{Config, Topology};
use crate::routing::{MAX_NAME_BYTES, Partitions, problem_of};
use crate::transport::RabbitMqTransport;

/// Limit of times: no clock of a process counts further.
const LONGEST: Duration = Duration::from_secs(100 * 365 * 24 * 3_600);

/// Builds a [`RabbitMqTransport`]. Durations over a hundred years, such as `Duration::MAX`, count as
/// a hundred years.
///
/// ```
/// # mod outbox { pub use outbox_contract::*; pub mod rabbitmq { pub use outbox_transport_rabbitmq::*; } }
/// use outbox::rabbitmq::{RabbitMqTransport, Topology};
///
/// let transport = RabbitMqTransport::builder("amqp://shop:secret@127.0.0.1:5672/%2f")
///     .topology(Topology::Declared)
///     .partitions(4)
///     .consumer("orders", "inventory")
///     .build()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
#[must_use = "a builder does nothing until it is built"]
pub struct RabbitMqTransportBuilder {
    url: String,
    authorities: Option<String>,
    identity: Option<(Vec<u8>, Vec<u8>)>,
    name: String,
    exchange: String,
    topology: Topology,
    partitions: u32,
    share_queues: bool,
    consumers: BTreeMap<Topic, BTreeSet<Consumer>>,
    invalid_names: Vec<NameError>,
    dead_letters: Option<String>,
    delivery_limit: Option<u32>,
    max_waiting: Option<u32>,
    connections: usize,
    max_message_bytes: usize,
    timeout: Duration,
    heartbeat: Duration,
    first_pause: Duration,
    max_pause: Duration,
}

impl RabbitMqTransportBuilder {
    pub(crate) fn new(url: String) -> Self {
        Self {
            url,
            authorities: None,
            identity: None,
            name: "outbox".to_owned(),
            exchange: "outbox".to_owned(),
            topology: Topology::default(),
            partitions: 1,
            share_queues: false,
            consumers: BTreeMap::new(),
            invalid_names: Vec::new(),
            dead_letters: None,
            delivery_limit: None,
            max_waiting: None,
            connections: 2,
            max_message_bytes: 16 * 1024 * 1024,
            timeout: Duration::from_secs(3),
            heartbeat: Duration::from_secs(10),
            first_pause: Duration::from_millis(100),
            max_pause: Duration::from_secs(5),
        }
    }

    /// Adds authorities of the broker's certificate, in PEM, to the well-known ones. For `amqps://`
    /// only.
    pub fn authorities(mut self, pem: impl Into<String>) -> Self {
        self.authorities = Some(pem.into());
        self
    }

    /// Sets the client's certificate and its private key (PKCS #8), in PEM, for a broker that
    /// requires one. For `amqps://` only.
    pub fn identity(mut self, certificate: impl Into<Vec<u8>>, key: impl Into<Vec<u8>>) -> Self {
        self.identity = Some((certificate.into(), key.into()));
        self
    }

    /// Sets the name that the broker shows for connections. Default `outbox`.
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = name.into();
        self
    }

    /// Sets the exchange to which messages are published, a direct one if it is declared. Default
    /// `outbox`.
    pub fn exchange(mut self, exchange: impl Into<String>) -> Self {
        self.exchange = exchange.into();
        self
    }

    /// Sets the handling of exchanges, queues and bindings. Default: [`Topology::Checked`].
    pub fn topology(mut self, topology: Topology) -> Self {
        self.topology = topology;
        self
    }

    /// Sets the number of partitions of a topic: queues for each consumer, each with one member at
    /// a time. 1 to 256, default 1. Every program that publishes to a topic or consumes it must use
    /// the same number; change it only while the queues are empty and publishing is stopped.
    pub fn partitions(mut self, partitions: u32) -> Self {
        self.partitions = partitions;
        self
    }

    /// Sets the distribution of queues among the members of a consumer. Default: false, the first
    /// member that subscribes has all queues until it leaves, and the others stand by. True:
    /// members share them out by consumer priorities, on RabbitMQ 4.0 to 4.2; earlier ones ignore
    /// these.
    ///
    /// No effect on RabbitMQ 4.3 and later, with a warning in the log: a member that leaves with
    /// unacknowledged messages while a queue of it is about to move leaves a dead consumer in that
    /// queue. If it became the active one later, the queue would deliver nothing more.
    pub fn share_queues(mut self, share: bool) -> Self {
        self.share_queues = share;
        self
    }

    /// Registers a consumer of a topic: with [`Topology::Declared`] its queues are declared before
    /// anything is published, so that the start order of programs does not matter. Names are text,
    /// or a [`Topic`] and a [`Consumer`].
    pub fn consumer(
        mut self,
        topic: impl TryInto<Topic, Error: Into<NameError>>,
        consumer: impl TryInto<Consumer, Error: Into<NameError>>,
    ) -> Self {
        let topic = topic.try_into().map_err(|error| self.invalid_names.push(error.into()));
        let consumer = consumer.try_into().map_err(|error| self.invalid_names.push(error.into()));
        if let (Ok(topic), Ok(consumer)) = (topic, consumer) {
            self.consumers.entry(topic).or_default().insert(consumer);
        }
        self
    }

    /// Sets the exchange to which queues send dropped messages (`x-dead-letter-exchange`).
    /// Declared, it is a fanout exchange with a quorum queue of the same name. Default: none;
    /// queues drop nothing.
    pub fn dead_letters(mut self, exchange: impl Into<String>) -> Self {
        self.dead_letters = Some(exchange.into());
        self
    }

    /// Sets the number of times that a queue delivers a message before it dead-letters it
    /// (`x-delivery-limit`). Requires [`dead_letters`](Self::dead_letters). Default: no limit.
    /// RabbitMQ's own default is 20, and each lost connection counts.
    pub fn delivery_limit(mut self, deliveries: u32) -> Self {
        self.delivery_limit = Some(deliveries);
        self
    }

    /// Sets the maximum number of messages in a queue before it refuses more (`x-max-length` with
    /// `reject-publish`). Default: the broker's memory and disk. While one queue of a topic is full
    /// the topic is unavailable. The limit is soft: messages in flight when a queue becomes full
    /// are stored.
    pub fn max_waiting(mut self, messages: u32) -> Self {
        self.max_waiting = Some(messages);
        self
    }

    /// Sets the number of connections that publish. At least 1, default 2: one continues while the
    /// other reconnects. Each consuming member has an additional connection.
    pub fn connections(mut self, connections: usize) -> Self {
        self.connections = connections;
        self
    }

    /// Sets the maximum size of a payload in bytes. Default 16 MiB, RabbitMQ's own
    /// `max_message_size`; set both to the same value.
    pub fn max_message_bytes(mut self, bytes: usize) -> Self {
        self.max_message_bytes = bytes;
        self
    }

    /// Sets the time limit of connecting, and of each answer of the broker except confirmations.
    /// Default 3 s: below a relay's `publish_timeout` (5 s), so that the cause is known before the
    /// relay gives up. If the broker's name has several addresses, each gets an equal share of it.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// Sets the interval of AMQP heartbeats. Whole seconds from 1 to 65,535, default 10. A
    /// connection that is silent for twice as long is closed.
    pub fn heartbeat(mut self, heartbeat: Duration) -> Self {
        self.heartbeat = heartbeat;
        self
    }

    /// Sets the pauses between connection attempts: the first, and the maximum, reached by
    /// doubling. Default 100 ms and 5 s.
    pub fn pauses(mut self, first: Duration, most: Duration) -> Self {
        (self.first_pause, self.max_pause) = (first, most);
        self
    }

    /// Creates the transport. It does not connect yet.
    ///
    /// # Errors
    ///
    /// [`Invalid`](TransportErrorKind::Invalid), with all problems of the configuration. No password
    /// is shown.
    pub fn build(self) -> Result<RabbitMqTransport, TransportError> {
        self.config().map(RabbitMqTransport::with_config).map_err(|problems| {
            let words = format!("invalid configuration of the RabbitMQ transport: {}", problems.join("; "));
            TransportError::new(TransportErrorKind::Invalid, "build", words)
        })
    }

    /// Returns the configuration, or all of its problems.
    pub(crate) fn config(self) -> Result<Config, Vec<String>> {
        let mut problems = self.problems_of_values();
        let address = Address::parse(&self.url).map_err(|problem| problems.push(problem)).ok();
        let secures = [("authorities", self.authorities.is_some()), ("identity", self.identity.is_some())];
        for (what, _) in secures.iter().filter(|(_, is_set)| *is_set) {
            if address.as_ref().is_some_and(|address| !address.is_tls()) {
                problems.push(format!(
                    "{what} is set, which needs TLS, and the URL begins with amqp://; begin it with amqps://, or remove {what}"
                ));
            }
        }
        let mut name = |what: &str, name: String| {
            let short = ShortString::try_new(name.as_str());
            if name.is_empty() || short.is_err() {
                problems.push(format!("{what} is {name:?}; make it 1 to {MAX_NAME_BYTES} bytes"));
            }
            short.unwrap_or_default()
        };
        let exchange = name("exchange", self.exchange);
        let dead_letters = self.dead_letters.map(|exchange| name("dead_letters", exchange));
        problems.extend(self.invalid_names.iter().map(ToString::to_string));
        problems.extend(self.consumers.values().flatten().filter_map(problem_of));
        let (Some(address), true) = (address, problems.is_empty()) else {
            return Err(problems);
        };
        Ok(Config {
            address,
            tls: OwnedTLSConfig {
                identity: self.identity.map(|(pem, key)| OwnedIdentity::PKCS8 { pem, key }),
                cert_chain: self.authorities,
            },
            name: self.name,
            exchange,
            topology: self.topology,
            partitions: Partitions(self.partitions),
            share_queues: self.share_queues,
            consumers: self.consumers,
            dead_letters,
            delivery_limit: self.delivery_limit,
            max_waiting: self.max_waiting,
            connections: self.connections,
            max_message_bytes: self.max_message_bytes,
            timeout: self.timeout.min(LONGEST),
            heartbeat: self.heartbeat,
            first_pause: self.first_pause.min(LONGEST),
            max_pause: self.max_pause.min(LONGEST),
        })
    }

    /// Lists what is wrong with single settings.
    fn problems_of_values(&self) -> Vec<String> {
        let mut problems = Vec::new();
        if !(1..=u32::try_from(BUCKETS).unwrap_or(u32::MAX)).contains(&self.partitions) {
            problems.push(format!("partitions is {}; make it 1 to {BUCKETS}", self.partitions));
        }
        if self.delivery_limit.is_some() && self.dead_letters.is_none() {
            problems.push(
                "delivery_limit is set without dead_letters, so messages over the limit would be dropped silently; name an exchange in dead_letters"
                    .to_owned(),
            );
        }
        for (what, value) in [("delivery_limit", self.delivery_limit), ("max_waiting", self.max_waiting)] {
            if value == Some(0) || value.is_some_and(|value| i32::try_from(value).is_err()) {
                problems.push(format!("{what} is {}; make it 1 to {}", value.unwrap_or(0), i32::MAX));
            }
        }
        if self.connections == 0 {
            problems.push("connections is 0; make it at least 1".to_owned());
        }
        if self.max_message_bytes == 0 {
            problems.push("max_message_bytes is 0; make it at least 1".to_owned());
        }
        if !(1..=65_535).contains(&self.heartbeat.as_secs()) {
            problems.push(format!("heartbeat is {:?}; make it 1 s to 65,535 s", self.heartbeat));
        }
        for (what, time) in [("timeout", self.timeout), ("the first of pauses", self.first_pause)] {
            if time.is_zero() {
                problems.push(format!("{what} is {time:?}; make it at least 1 ms"));
            }
        }
        if self.max_pause < self.first_pause {
            problems.push(format!(
                "the longest of pauses is {:?}; make it at least the first ({:?})",
                self.max_pause, self.first_pause
            ));
        }
        problems
    }
}

/// Omits the URL, which contains a password.
impl fmt::Debug for RabbitMqTransportBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RabbitMqTransportBuilder")
            .field("exchange", &self.exchange)
            .field("topology", &self.topology)
            .field("partitions", &self.partitions)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use outbox_contract::{Message, Transport};

    use super::*;

    fn builder() -> RabbitMqTransportBuilder {
        RabbitMqTransport::builder("amqp://shop:s3cret@broker/%2f")
    }

    #[test]
    fn every_problem_is_reported_at_once_and_no_password() {
        let wrong = RabbitMqTransport::builder("nonsense:s3cret")
            .partitions(257)
            .connections(0)
            .heartbeat(Duration::from_millis(100))
            .exchange("")
            .delivery_limit(5)
            .consumer("", "a\nb")
            .timeout(Duration::ZERO);
        let problems = wrong.clone().config().unwrap_err();
        assert_eq!(problems.len(), 9, "{problems:?}");
        let error = wrong.build().unwrap_err();
        assert_eq!(error.kind(), TransportErrorKind::Invalid);
        let shown = error.to_string();
        for part in
            ["partitions is 257; make it 1 to 256", "connections is 0", "timeout is 0ns", "delivery_limit"]
        {
            assert!(shown.contains(part), "{part}: {shown}");
        }
        assert!(!shown.contains("s3cret"), "{shown}");
    }

    #[tokio::test]
    async fn times_without_end_are_beyond_no_clock() {
        let endless = Duration::MAX;
        let nobody = RabbitMqTransport::builder("amqp://127.0.0.1:1").timeout(endless);
        let error = nobody.pauses(endless, endless).build().unwrap().check().await.unwrap_err();
        assert!(error.to_string().to_lowercase().contains("refused"), "it has tried: {error}");
    }

    #[test]
    fn a_limit_of_deliveries_needs_a_place_for_dead_letters() {
        let error = builder().delivery_limit(5).build().unwrap_err();
        assert!(error.to_string().contains("dropped silently"), "{error}");
        assert!(builder().delivery_limit(5).dead_letters("dead").build().is_ok());
    }

    #[test]
    fn what_is_for_tls_is_refused_without_it() {
        let refused = [builder().authorities("pem"), builder().identity("certificate", "s3cret key")];
        for (builder, what) in refused.into_iter().zip(["authorities", "identity"]) {
            let problems = builder.config().unwrap_err();
            let [shown] = problems.as_slice() else { panic!("{problems:?}") };
            assert!(
                shown.contains(what) && shown.contains("amqps://") && !shown.contains("s3cret"),
                "{shown}"
            );
        }
        let tls = RabbitMqTransport::builder("amqps://shop:s3cret@broker/%2f");
        assert!(tls.authorities("pem").identity("certificate", "key").build().is_ok());
    }

    #[test]
    fn what_is_printed_has_no_secret() {
        let builder = RabbitMqTransport::builder("amqps://shop:s3cret@broker/%2f");
        let builder = builder.identity("certificate", "s3cret key");
        let shown = format!("{builder:?} {:?} {:?}", builder.clone().config(), builder.clone().build());
        assert!(!shown.contains("s3cret"), "{shown}");
    }

    #[test]
    fn what_can_never_be_sent_is_known_early() {
        let config = builder().max_message_bytes(10).partitions(256).config().unwrap();
        let message = |topic: String, bytes| Message::new(topic, "x").unwrap().with_payload(vec![0; bytes]);
        assert!(config.validate(&message("orders".into(), 10)).is_ok());
        let error = config.validate(&message("orders".into(), 11)).unwrap_err();
        assert_eq!(error.0.class, "message-too-large");
        assert!(config.validate(&message("t".repeat(249), 1)).is_ok());
    }
}
