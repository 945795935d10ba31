//! Configuration of a Kafka transport, and of the clients that it makes of librdkafka.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use outbox_contract::{Failure, Message, Rejection, Topic, TransportError, TransportErrorKind};
use rdkafka::ClientConfig;
use rdkafka::config::RDKafkaLogLevel;
use rdkafka::error::KafkaError;

use crate::security::Security;

/// Protocol by which the members of a consumer divide the partitions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum GroupProtocol {
    /// The members agree among themselves, and only partitions that move are interrupted
    /// (`cooperative-sticky`). Every broker supports it.
    #[default]
    Cooperative,
    /// The broker decides (`group.protocol=consumer`). Kafka 4.0 or later.
    Consumer,
}

/// Bytes that a record may have beyond its batch limit before the client itself refuses it. High:
/// whether a message is too large is for the broker to say, which knows the limit of the topic.
const CLIENT_LIMIT: usize = 100_000_000;
/// Time after which the group gives the partitions of a member that was killed to others. The
/// client's default is 45 s, for programs that poll and handle in one thread; a member has a thread
/// that only polls.
const SESSION: Duration = Duration::from_secs(10);
/// Maximum time that a rebalance waits for a member: longer than one takes to finish what is in its
/// hands. The client's default is 5 min, for the same reason.
const MAX_POLL: Duration = Duration::from_secs(60);
/// Time that a large batch waits for more messages, unless it was set. What takes longer to hand over
/// is split, which costs the broker time.
const LINGER: Duration = Duration::from_micros(300);

#[derive(Clone)]
pub(crate) struct Config {
    pub(crate) brokers: String,
    pub(crate) properties: BTreeMap<String, String>,
    pub(crate) security: Security,
    pub(crate) max_message_bytes: usize,
    /// Time that every batch waits for more messages, as it was set. None: large ones wait a little.
    pub(crate) linger: Option<Duration>,
    pub(crate) group_protocol: GroupProtocol,
}

impl Config {
    pub(crate) fn new(brokers: String) -> Self {
        Self {
            brokers,
            properties: BTreeMap::new(),
            security: Security::default(),
            // The broker's own default (message.max.bytes).
            max_message_bytes: 1_048_588,
            linger: None,
            group_protocol: GroupProtocol::default(),
        }
    }

    /// Returns true if this message can ever be taken.
    pub(crate) fn validate(&self, message: &Message) -> Result<(), Rejection> {
        // A lower bound: the record has more than this.
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

    /// Returns true if Kafka can have a topic of this name.
    pub(crate) fn validate_topic(topic: &Topic) -> Result<(), Rejection> {
        let topic = topic.as_str();
        let legal = topic.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._-".contains(&byte));
        if !legal || topic == "." || topic == ".." {
            return Err(Rejection(Failure::new(
                "topic-not-valid",
                format!("invalid Kafka topic name {topic:?}: use ASCII letters, digits, '.', '_' and '-'"),
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
            // To ask for a topic would make it, where the broker makes topics: one that is
            // misspelt, or one that was just deleted.
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
            .set("linger.ms", (self.linger.unwrap_or(LINGER).as_secs_f64() * 1e3).to_string())
            .set("queue.buffering.max.kbytes", (256 * 1024).to_string());
        self.with_properties(&mut client, Kind::Producer);
        client
    }

    /// Size of a record batch, where the topic takes it: it is rejected as a whole, so no larger
    /// than what a topic takes.
    pub(crate) fn batch_bytes(&self) -> usize {
        self.max_message_bytes.clamp(1, 1_000_000)
    }

    /// Returns true if producers compress what they send.
    pub(crate) fn compresses(&self) -> bool {
        let codecs =
            ["compression.codec", "compression.type"].iter().filter_map(|name| self.properties.get(*name));
        codecs.into_iter().any(|codec| codec != "none")
    }

    /// Returns true if small batches are sent without waiting for more: unless it was set for how
    /// long all of them wait.
    pub(crate) fn sends_small_ones_at_once(&self) -> bool {
        self.linger.is_none() && !self.properties.contains_key("linger.ms")
    }

    /// Of the producer that leaves no gap, with batches of so many bytes. `lingers`: whether it waits
    /// for more messages.
    pub(crate) fn gapless(&self, batch_bytes: usize, lingers: bool) -> ClientConfig {
        let mut client = self.producer();
        if !lingers {
            client.set("linger.ms", "0");
        }
        if !self.properties.contains_key("batch.size") || batch_bytes < self.batch_bytes() {
            client.set("batch.size", batch_bytes.to_string());
        }
        client
            .set("enable.idempotence", "true")
            .set("enable.gapless.guarantee", "true")
            // The client's own timeout is outside of the guarantee. There is a deadline for each
            // batch instead.
            .set("message.timeout.ms", "0");
        client
    }

    /// Of the producer that sends single messages: one try each, since a second one may meet
    /// another answer than the first.
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
        // Bytes that the client fetches ahead for each member, beside the prefetch itself.
        let ahead = prefetch_bytes.div_ceil(1024).clamp(1024, 64 * 1024);
        client
            .set("group.id", group)
            // A consumer that is new begins with the first message there is: with the last, it
            // would miss what came while it joined.
            .set("auto.offset.reset", "earliest")
            .set("queued.max.messages.kbytes", ahead.to_string())
            // Measured: 1.6 times the rate of the default, which waits a second after its queue was
            // full.
            .set("fetch.queue.backoff.ms", "10")
            // So soon a topic is received from that was made after the member joined; the default
            // is five minutes.
            .set("topic.metadata.refresh.interval.ms", "10000")
            // Reports the backlog of each partition, without a request.
            .set("statistics.interval.ms", "5000")
            .set("max.poll.interval.ms", self.max_poll().as_millis().to_string());
        if self.group_protocol == GroupProtocol::Cooperative {
            // With the other protocol it is the broker's to say.
            client.set("session.timeout.ms", SESSION.as_millis().to_string());
        }
        self.with_properties(&mut client, Kind::Consumer);
        // Offsets are committed by what is finished, not by what was read.
        client.set("enable.auto.commit", "false").set("enable.auto.offset.store", "false");
        match self.group_protocol {
            GroupProtocol::Cooperative => client.set("partition.assignment.strategy", "cooperative-sticky"),
            GroupProtocol::Consumer => client.set("group.protocol", "consumer"),
        };
        client
    }

    /// Returns the maximum time between two polls: the client takes none that is shorter than a
    /// session.
    fn max_poll(&self) -> Duration {
        let session = self.properties.get("session.timeout.ms").and_then(|millis| millis.parse().ok());
        session.map_or(MAX_POLL, |millis| MAX_POLL.max(Duration::from_millis(millis)))
    }

    /// Returns true if a consumer that is new begins at the end of its partitions.
    pub(crate) fn begins_at_end(&self) -> bool {
        let reset = self.properties.get("auto.offset.reset");
        reset.is_some_and(|reset| matches!(reset.as_str(), "latest" | "largest" | "end"))
    }

    /// Of the client that looks at the topics of a member: it reads where the group is, and belongs
    /// to none.
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

/// Client that a property is for.
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

/// Returns the error for a configuration that the client rejected.
pub(crate) fn not_taken(operation: &'static str, error: KafkaError) -> TransportError {
    TransportError::new(TransportErrorKind::Invalid, operation, rejected(error))
}

/// Says what the client rejected of a configuration.
pub(crate) fn rejected(error: KafkaError) -> String {
    // The client's error is not kept: printed it shows the value, a password where the name of its
    // property was misspelt.
    let why = match error {
        KafkaError::ClientConfig(_, why, _, _) => why,
        error => error.to_string(),
    };
    // A wrong password is not always told as one: what it opens may just be no key.
    let locked = if why.contains("ssl.key.") || why.contains("ssl_key") {
        " (an encrypted private key needs its password in the property ssl.key.password)"
    } else {
        ""
    };
    format!("librdkafka rejected the configuration: {why}{locked}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_member_has_a_session_that_is_no_longer_than_its_polls() {
        let member = |property: Option<(&str, &str)>, group_protocol| {
            let mut config = Config::new("localhost:9092".to_owned());
            config.group_protocol = group_protocol;
            config.properties.extend(property.map(|(name, value)| (name.to_owned(), value.to_owned())));
            let client = config.member("group", 1);
            let of = |name| client.get(name).map(str::to_owned);
            let made: Result<rdkafka::consumer::BaseConsumer, _> = client.create();
            made.expect("the client takes it");
            (of("session.timeout.ms"), of("max.poll.interval.ms"))
        };
        let times = |session: &str, poll: &str| (Some(session.to_owned()), Some(poll.to_owned()));
        assert_eq!(member(None, GroupProtocol::Cooperative), times("10000", "60000"));
        let long = Some(("session.timeout.ms", "90000"));
        assert_eq!(member(long, GroupProtocol::Cooperative), times("90000", "90000"));
        let of_the_broker = (None, Some("60000".to_owned()));
        assert_eq!(member(None, GroupProtocol::Consumer), of_the_broker);
    }

    /// The client takes fractions of a millisecond, and the default is one.
    #[test]
    fn a_linger_below_a_millisecond_reaches_the_client() {
        let mut config = Config::new("localhost:9092".to_owned());
        let linger = |config: &Config| {
            let native = config.producer().create_native_config().unwrap();
            native.get("linger.ms").unwrap().trim_end_matches('\0').parse::<f64>().unwrap()
        };
        assert!((linger(&config) - 0.3).abs() < 1e-6, "{}", linger(&config));
        config.linger = Some(Duration::from_millis(25));
        assert!((linger(&config) - 25.0).abs() < 1e-6, "{}", linger(&config));
    }

    #[test]
    fn small_batches_wait_only_if_it_was_set_for_how_long() {
        let mut config = Config::new("localhost:9092".to_owned());
        assert!(config.sends_small_ones_at_once());
        assert_eq!(config.gapless(1, false).get("linger.ms"), Some("0"));
        assert_eq!(config.gapless(1, true).get("linger.ms"), Some("0.3"));
        config.linger = Some(Duration::from_millis(5));
        assert!(!config.sends_small_ones_at_once());
        let mut config = Config::new("localhost:9092".to_owned());
        config.properties.insert("linger.ms".to_owned(), "5".to_owned());
        assert!(!config.sends_small_ones_at_once());
        assert_eq!(config.gapless(1, true).get("linger.ms"), Some("5"));
    }
}
