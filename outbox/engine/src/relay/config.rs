//! Configuration of a relay: every value with its unit, its default, and the reason for it.

use std::time::Duration;

use outbox_contract::RetryPolicy;
use serde::{Deserialize, Serialize};

use crate::limits::{MAX_BYTES, MAX_MESSAGES, problem_of_count};

/// Maximum number of unconfirmed batches: each has an actor of its own.
const MAX_UNCONFIRMED: usize = 10_000;

/// Configuration of a relay.
///
/// [`RelayBuilder`](super::RelayBuilder) has a method of the same name for each field. Unless a
/// field says otherwise, durations are 1 ms to a day, and numbers of messages 1 to 1,000,000.
///
/// Configuration files hold it by the names of its fields. Durations are text with a unit
/// (`"30s"`), missing fields have their defaults, and an unknown name is an error that lists the
/// known ones.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct RelayConfig {
    /// Name of this relay in logs and in the database. It has no effect. Default `relay`.
    pub label: String,
    /// `source` attribute of CloudEvents: a URI reference that names this outbox. Default: its
    /// [identity](outbox_contract::Admin::identity), as `urn:uuid:…`, which no other outbox has.
    ///
    /// Others tell outboxes apart by it:
    ///
    /// - Inboxes know a message by source and id together.
    /// - Consumers compare positions only within a source. Positions are reused after a restore of
    ///   the database: [renew](outbox_contract::Admin::renew_identity) the identity then, or change
    ///   the source.
    /// - Redis refuses what a late relay sends, by the owners of the buckets of a source. Two
    ///   outboxes that are configured with one source block each other there (`fenced`).
    pub source: Option<String>,
    /// Duration of a lease. Default 15 s.
    ///
    /// After a relay was killed, another one takes over within a lease and a heartbeat; within 2 s
    /// where the store sees that its session has ended.
    #[serde(with = "outbox_contract::duration")]
    pub lease: Duration,
    /// Interval of heartbeats, which renew the leases. Default 5 s. A store
    /// that sees when other relays end asks for them sooner: PostgreSQL, MySQL and MariaDB every
    /// 1.5 s while a route has several relays.
    ///
    /// A failed heartbeat is retried until `publish_timeout` before the leases expire. Then
    /// publishing stops, and the relay drops everything in memory and reads it again.
    #[serde(with = "outbox_contract::duration")]
    pub heartbeat: Duration,
    /// Timeout of a publish batch, after which its unconfirmed messages count as unknown and are
    /// sent again. Default 5 s.
    ///
    /// It is up to twelve times as long for a batch that is being confirmed bit by bit, or that
    /// waits behind batches that are, or while the broker says that it takes nothing for now: a slow
    /// broker receives no message twice for being slow.
    #[serde(with = "outbox_contract::duration")]
    pub publish_timeout: Duration,
    /// Timeout of a call to the store. Default 5 s.
    ///
    /// As long as twice this timeout and a `publish_timeout` fit into the lease, a heartbeat that
    /// is answered as late as that still renews in time. With a longer timeout, publishing pauses
    /// while the database is that slow.
    #[serde(with = "outbox_contract::duration")]
    pub store_timeout: Duration,
    /// Maximum number of messages of one fetch. Default 2,000: half as many, with
    /// [`publish_batch`](Self::publish_batch) and [`max_in_flight`](Self::max_in_flight) halved,
    /// cost relay, database and broker a tenth to a sixth more per message of a backlog.
    pub fetch_batch: usize,
    /// Maximum number of bytes of one fetch. Default 8 MiB. A larger message is fetched alone.
    pub fetch_batch_bytes: usize,
    /// Maximum number of messages in memory. Default 4,000: one fetch is published while the next
    /// one is read. It bounds the number of repeats after a kill.
    ///
    /// A relay begins with half of it, of [`fetch_batch`](Self::fetch_batch) and of
    /// [`publish_batch`](Self::publish_batch), and takes the whole while the broker answers batches
    /// within a twentieth of the `publish_timeout`. It goes back to half when a batch takes half of
    /// the timeout or is not answered: a slow broker has fewer messages to confirm in time.
    pub max_in_flight: usize,
    /// Maximum number of bytes of messages in memory. Default 16 MiB; a single message may exceed
    /// it.
    pub max_in_flight_bytes: usize,
    /// Maximum number of messages of one key in memory, so that one key can't use up
    /// [`max_in_flight`](Self::max_in_flight). Default 500.
    ///
    /// It is never more than a quarter of `max_in_flight`: a relay begins with half of that, and
    /// fetches nothing before half of it is free. Until the first message of a key is delivered, the
    /// key gets an eighth of this limit: it may hang, and many such keys must fit.
    pub per_key: usize,
    /// Maximum number of unconfirmed batches of different keys, 1 to 10,000. Default 8.
    ///
    /// A quarter as many may be unconfirmed besides these, for keys whose last batch got no answer,
    /// so that no other key waits for those.
    pub max_unconfirmed_batches: usize,
    /// Maximum number of messages of a publish batch. Default 1,000.
    ///
    /// Waiting messages are divided into as many batches as a full fetch fills: two by default,
    /// since each batch costs the relay and the broker something, however many messages it has. A
    /// divisor of [`fetch_batch`](Self::fetch_batch) leaves no small rest, which would cost as much
    /// as a full batch.
    pub publish_batch: usize,
    /// Maximum number of bytes of a publish batch. Default 1 MiB, as in Kafka. A single message may
    /// exceed it.
    pub publish_batch_bytes: usize,
    /// Polling interval of an idle relay; wake-ups come in between. Default 1 s.
    #[serde(with = "outbox_contract::duration")]
    pub idle_poll: Duration,
    /// Polling interval for failing keys that an operator released or another relay left behind.
    /// Default 5 s. The relay retries its own failing keys when they are due.
    #[serde(with = "outbox_contract::duration")]
    pub due_poll: Duration,
    /// Polling interval for scheduled messages and expired rows. Default 5 s. Messages whose due
    /// time the relay knows are promoted at that time.
    #[serde(with = "outbox_contract::duration")]
    pub maintain_every: Duration,
    /// Interval at which the backlog is measured, for metrics and health. Default 5 s. A measurement
    /// that took long is followed by a rest of nine times as long, up to a minute.
    #[serde(with = "outbox_contract::duration")]
    pub observe_every: Duration,
    /// Age of the oldest waiting message from which the relay is unhealthy. Default 60 s.
    #[serde(with = "outbox_contract::duration")]
    pub unhealthy_age: Duration,
    /// First delay before a retry when a transport or topic is unavailable. Default 200 ms.
    #[serde(with = "outbox_contract::duration")]
    pub outage_first_delay: Duration,
    /// Maximum delay before such a retry. Default 5 s: the relay resumes at most this long after
    /// the transport.
    #[serde(with = "outbox_contract::duration")]
    pub outage_max_delay: Duration,
    /// Retry policy of failing messages, with rules for classes of failure and for topics.
    pub retry: RetryPolicy,
}

impl Default for RelayConfig {
    fn default() -> Self {
        let seconds = Duration::from_secs;
        Self {
            label: "relay".to_owned(),
            source: None,
            lease: seconds(15),
            heartbeat: seconds(5),
            publish_timeout: seconds(5),
            store_timeout: seconds(5),
            fetch_batch: 2_000,
            fetch_batch_bytes: 8 * 1024 * 1024,
            max_in_flight: 4_000,
            max_in_flight_bytes: 16 * 1024 * 1024,
            per_key: 500,
            max_unconfirmed_batches: 8,
            publish_batch: 1_000,
            publish_batch_bytes: 1024 * 1024,
            idle_poll: seconds(1),
            due_poll: seconds(5),
            maintain_every: seconds(5),
            observe_every: seconds(5),
            unhealthy_age: seconds(60),
            outage_first_delay: Duration::from_millis(200),
            outage_max_delay: seconds(5),
            retry: RetryPolicy::default(),
        }
    }
}

impl RelayConfig {
    /// Returns everything that is wrong, each problem with its value and the remedy.
    #[must_use]
    pub fn problems(&self) -> Vec<String> {
        let mut problems = self.problems_of_durations();
        problems.extend(self.problems_of_counts());
        problems.extend(self.problems_together());
        if self.label.is_empty() || self.label.len() > 255 {
            problems.push(format!("label has {} bytes; give it 1 to 255", self.label.len()));
        }
        // A database refuses some of them, at each heartbeat.
        if self.label.chars().any(char::is_control) {
            problems.push(format!("label is {:?}; remove its control characters", self.label));
        }
        if self
            .source
            .as_ref()
            .is_some_and(|source| source.is_empty() || source.chars().any(char::is_control))
        {
            problems.push(
                "source is empty or has control characters; give it a URI reference such as /orders-service"
                    .to_owned(),
            );
        }
        problems.extend(self.retry.problems());
        problems
    }

    fn problems_of_durations(&self) -> Vec<String> {
        let durations = [
            ("lease", self.lease),
            ("heartbeat", self.heartbeat),
            ("publish_timeout", self.publish_timeout),
            ("store_timeout", self.store_timeout),
            ("idle_poll", self.idle_poll),
            ("due_poll", self.due_poll),
            ("maintain_every", self.maintain_every),
            ("observe_every", self.observe_every),
            ("unhealthy_age", self.unhealthy_age),
            ("outage_first_delay", self.outage_first_delay),
            ("outage_max_delay", self.outage_max_delay),
        ];
        let problem = |(name, value): (&str, Duration)| {
            if value < Duration::from_millis(1) {
                Some(format!("{name} is {value:?}; give it at least 1 ms"))
            } else if value > Duration::from_secs(86_400) {
                Some(format!("{name} is {value:?}; give it at most a day"))
            } else {
                None
            }
        };
        durations.into_iter().filter_map(problem).collect()
    }

    fn problems_of_counts(&self) -> Vec<String> {
        let counts = [
            ("fetch_batch", self.fetch_batch, MAX_MESSAGES),
            ("fetch_batch_bytes", self.fetch_batch_bytes, MAX_BYTES),
            ("max_in_flight", self.max_in_flight, MAX_MESSAGES),
            ("max_in_flight_bytes", self.max_in_flight_bytes, MAX_BYTES),
            ("per_key", self.per_key, MAX_MESSAGES),
            ("max_unconfirmed_batches", self.max_unconfirmed_batches, MAX_UNCONFIRMED),
            ("publish_batch", self.publish_batch, MAX_MESSAGES),
            ("publish_batch_bytes", self.publish_batch_bytes, MAX_BYTES),
        ];
        counts.into_iter().filter_map(|(name, value, most)| problem_of_count(name, value, most)).collect()
    }

    /// Lists settings that do not fit together.
    fn problems_together(&self) -> Vec<String> {
        let mut problems = Vec::new();
        if self.heartbeat.saturating_mul(2).saturating_add(self.publish_timeout) > self.lease {
            problems.push(format!(
                "lease ({:?}) is too short for two heartbeats ({:?} each) and a publish_timeout ({:?}): \
                 one late heartbeat would stop the relay; lengthen the lease or shorten the others",
                self.lease, self.heartbeat, self.publish_timeout
            ));
        }
        if self.max_in_flight < self.fetch_batch {
            problems.push(format!(
                "max_in_flight ({}) is less than fetch_batch ({}): a full fetch would never fit; \
                 raise max_in_flight, best to twice fetch_batch",
                self.max_in_flight, self.fetch_batch
            ));
        }
        if self.outage_max_delay < self.outage_first_delay {
            problems.push(format!(
                "outage_max_delay ({:?}) is shorter than outage_first_delay ({:?}); make it at least as long",
                self.outage_max_delay, self.outage_first_delay
            ));
        }
        problems
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_configuration_in_a_file_has_the_names_of_the_fields() {
        let config: RelayConfig =
            serde_json::from_str(r#"{"lease": "30s", "max_unconfirmed_batches": 64}"#).unwrap();
        let lease = Duration::from_secs(30);
        assert_eq!(config, RelayConfig { lease, max_unconfirmed_batches: 64, ..RelayConfig::default() });
        let again = serde_json::to_string(&RelayConfig::default()).unwrap();
        assert_eq!(serde_json::from_str::<RelayConfig>(&again).unwrap(), RelayConfig::default(), "{again}");
        let error = serde_json::from_str::<RelayConfig>(r#"{"leese": "30s"}"#).unwrap_err().to_string();
        assert!(error.contains("`leese`") && error.contains("`heartbeat`"), "{error}");
    }

    #[test]
    fn the_defaults_are_consistent() {
        assert_eq!(RelayConfig::default().problems(), Vec::<String>::new());
    }

    #[test]
    fn durations_of_any_length_are_refused_in_words() {
        let config = RelayConfig {
            heartbeat: Duration::MAX,
            publish_timeout: Duration::MAX,
            ..RelayConfig::default()
        };
        assert_eq!(config.problems().len(), 3);
    }

    #[test]
    fn numbers_of_any_size_are_refused_by_name() {
        let most = usize::MAX;
        let of = |set: fn(&mut RelayConfig)| {
            let mut config = RelayConfig::default();
            set(&mut config);
            config.problems()
        };
        let wrong: [(&str, Vec<String>); 8] = [
            ("fetch_batch ", of(|it| (it.fetch_batch, it.max_in_flight) = (usize::MAX, MAX_MESSAGES))),
            ("fetch_batch_bytes", of(|it| it.fetch_batch_bytes = usize::MAX)),
            ("max_in_flight ", of(|it| it.max_in_flight = usize::MAX)),
            ("max_in_flight_bytes", of(|it| it.max_in_flight_bytes = usize::MAX)),
            ("per_key", of(|it| it.per_key = usize::MAX)),
            ("max_unconfirmed_batches", of(|it| it.max_unconfirmed_batches = usize::MAX)),
            ("publish_batch ", of(|it| it.publish_batch = usize::MAX)),
            ("publish_batch_bytes", of(|it| it.publish_batch_bytes = usize::MAX)),
        ];
        for (name, problems) in wrong {
            assert!(
                problems.first().is_some_and(|problem| problem.starts_with(name)),
                "{name}: {problems:?}"
            );
        }
        let retry = RetryPolicy { max_delay: Duration::MAX, ..RetryPolicy::default() };
        let config = RelayConfig { retry, max_unconfirmed_batches: most, ..RelayConfig::default() };
        assert_eq!(config.problems().len(), 2);
        assert_eq!(of(|it| it.max_unconfirmed_batches = 10_000), Vec::<String>::new());
    }

    #[test]
    fn a_label_that_a_database_does_not_take_is_refused() {
        for label in ["a\0b", "a\nb"] {
            let problems = RelayConfig { label: label.to_owned(), ..RelayConfig::default() }.problems();
            assert!(problems.len() == 1 && problems[0].starts_with("label is"), "{problems:?}");
        }
    }

    #[test]
    fn all_problems_are_reported_at_once_with_their_values() {
        let config = RelayConfig {
            lease: Duration::from_secs(4),
            fetch_batch: 0,
            publish_batch: 0,
            label: String::new(),
            ..RelayConfig::default()
        };
        let problems = config.problems();
        assert_eq!(problems.len(), 4, "{problems:#?}");
        assert!(problems.iter().any(|problem| problem.contains("lease (4s) is too short")), "{problems:#?}");
    }
}
