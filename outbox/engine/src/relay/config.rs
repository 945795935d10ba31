//! How a relay is set up: every number with its unit, its default, and why.

use std::time::Duration;

use outbox_contract::RetryPolicy;

/// The most that may be asked for where messages are counted: a typing error is more, and nobody's memory is.
pub(crate) const MAX_MESSAGES: usize = 1_000_000;
/// The same, where bytes are.
pub(crate) const MAX_BYTES: usize = usize::MAX >> 2;
/// Maximum number of unconfirmed batches: each has an actor of its own.
const MAX_CHUNKS: usize = 10_000;

/// What is wrong with a number: none at all, or more than there can be.
pub(crate) fn problem_of_count(name: &str, value: usize, most: usize) -> Option<String> {
    match value {
        0 => Some(format!("{name} is 0; give it at least 1")),
        _ if value > most => Some(format!("{name} is {value}; give it at most {most}")),
        _ => None,
    }
}

/// The configuration of a relay. [`RelayBuilder`](super::RelayBuilder) has a method of the same name for each field. Times are 1 ms to a
/// day, numbers of messages 1 to 1,000,000, if nothing else is said.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct RelayConfig {
    /// What people call this relay, in logs and in the database. It decides nothing. Default `relay`.
    pub label: String,
    /// The `source` attribute of CloudEvents: a URI reference that names this service. Default `/outbox`. Give each outbox its own: consumers tell
    /// positions apart by it (so give it another one after a restore of its database, as positions come back then), and Redis, which refuses what a late relay sends, owners of buckets. Under the default, Redis refuses nothing of
    /// that kind; two outboxes under another one that they share hold each other up there (`fenced`).
    pub source: String,
    /// How long leases last. Another relay takes over at most this long, and a heartbeat, after this one was killed. Default 15 s.
    pub lease: Duration,
    /// How often leases are renewed. Default 5 s. A renewal that fails is tried again until `publish_timeout` before the leases run out; then publishing
    /// stops, and everything in memory is dropped and read again.
    pub heartbeat: Duration,
    /// How long a batch may take before its messages count as unknown and are sent again. Default 5 s. It is up to twelve times as long for a batch that
    /// is being confirmed bit by bit, or whose turn has not come while those before it are: a slow broker gets nothing twice for being slow.
    pub publish_timeout: Duration,
    /// How long a call to the store may take before it counts as failed. Default 5 s: as long as twice this and a `publish_timeout` fit into the lease,
    /// heartbeats that are answered so late still come in time. With more, publishing pauses while the database is as slow as that.
    pub store_timeout: Duration,
    /// The most messages of one fetch. Default 1,000: from 500 to 2,000 the cost per message is flat.
    pub fetch_batch: usize,
    /// The most bytes of one fetch. Default 8 MiB. A message that has more is fetched alone.
    pub fetch_batch_bytes: usize,
    /// The most messages in memory. Default 2,000: one batch is published while the next is fetched. It bounds what can be repeated after a kill.
    pub max_in_flight: usize,
    /// The most bytes of messages in memory. Default 16 MiB; one message may exceed it.
    pub max_in_flight_bytes: usize,
    /// The most messages of one key in memory, so that one key can't take all credit. Default 500; whatever is set, no more than half of
    /// [`max_in_flight`](Self::max_in_flight), since nothing is fetched before the other half is free. A key has an eighth of it until the first of its messages has gone: it
    /// may hang, and many such must fit.
    pub per_key: usize,
    /// Number of batches that a full fetch is divided into. Default 4.
    pub lanes: usize,
    /// Number of unconfirmed batches in times of [`lanes`](Self::lanes), of different keys. Default 2. At most 10,000 batches in all. Besides these, `lanes` batches
    /// may be out of keys of which nothing was heard the last time: for those no other waits.
    pub max_unconfirmed_batches: usize,
    /// The most messages of a batch. Default 500: twice a full fetch divided by `lanes`, so that a share goes out in one piece; a small rest would
    /// cost brokers as much as a full batch.
    pub publish_batch: usize,
    /// The most bytes of a batch. Default 1 MiB, Kafka's own default for a batch. One message may have more.
    pub publish_batch_bytes: usize,
    /// How often an idle relay looks by itself; wake-ups come in between. Default 1 s.
    pub idle_poll: Duration,
    /// How often failing keys are looked for that an operator released, or that another relay left. Those of its own it looks for when they are due. Default 5 s.
    pub due_poll: Duration,
    /// How often the relay looks for scheduled messages, and for what is over its time. Default 5 s; what it knows to be due it moves when it is.
    pub maintain_every: Duration,
    /// How often the backlog is measured, for metrics and health. Default 5 s.
    pub observe_every: Duration,
    /// The age of the oldest waiting message from which on the relay is unhealthy. Default 60 s.
    pub unhealthy_age: Duration,
    /// How long to wait first when a transport or topic is unavailable. Default 200 ms.
    pub outage_first_delay: Duration,
    /// The longest such wait. Default 5 s: the relay is back at most this long after the transport.
    pub outage_max_delay: Duration,
    /// How failing messages are tried again, where their topic has no policy of its own.
    pub retry: RetryPolicy,
}

impl Default for RelayConfig {
    fn default() -> Self {
        let seconds = Duration::from_secs;
        Self {
            label: "relay".to_owned(),
            source: outbox_contract::backend::cloudevents::DEFAULT_SOURCE.to_owned(),
            lease: seconds(15),
            heartbeat: seconds(5),
            publish_timeout: seconds(5),
            store_timeout: seconds(5),
            fetch_batch: 1_000,
            fetch_batch_bytes: 8 * 1024 * 1024,
            max_in_flight: 2_000,
            max_in_flight_bytes: 16 * 1024 * 1024,
            per_key: 500,
            lanes: 4,
            max_unconfirmed_batches: 2,
            publish_batch: 500,
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
    /// How many messages of one key may be in memory.
    pub(crate) fn max_per_key(&self) -> usize {
        self.per_key.min((self.max_in_flight / 2).max(1))
    }

    /// Everything that is wrong, each with its value and the remedy; empty when nothing is.
    #[must_use]
    pub fn problems(&self) -> Vec<String> {
        let mut problems = Vec::new();
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
        for (name, value) in durations {
            if value < Duration::from_millis(1) {
                problems.push(format!("{name} is {value:?}; give it at least 1 ms"));
            } else if value > Duration::from_secs(86_400) {
                problems.push(format!("{name} is {value:?}; give it at most a day"));
            }
        }
        let counts = [
            ("fetch_batch", self.fetch_batch, MAX_MESSAGES),
            ("fetch_batch_bytes", self.fetch_batch_bytes, MAX_BYTES),
            ("max_in_flight", self.max_in_flight, MAX_MESSAGES),
            ("max_in_flight_bytes", self.max_in_flight_bytes, MAX_BYTES),
            ("per_key", self.per_key, MAX_MESSAGES),
            // One for each bucket.
            ("lanes", self.lanes, 256),
            ("max_unconfirmed_batches", self.max_unconfirmed_batches, MAX_CHUNKS),
            ("publish_batch", self.publish_batch, MAX_MESSAGES),
            ("publish_batch_bytes", self.publish_batch_bytes, MAX_BYTES),
        ];
        problems
            .extend(counts.into_iter().filter_map(|(name, value, most)| problem_of_count(name, value, most)));
        if self.lanes <= 256
            && self.max_unconfirmed_batches <= MAX_CHUNKS
            && self.lanes * self.max_unconfirmed_batches > MAX_CHUNKS
        {
            problems.push(format!(
                "max_unconfirmed_batches is {}, for each of {} lanes; give all together at most {MAX_CHUNKS}",
                self.max_unconfirmed_batches, self.lanes
            ));
        }
        if self.heartbeat.saturating_mul(2).saturating_add(self.publish_timeout) > self.lease {
            problems.push(format!(
                "lease ({:?}) is too short for two heartbeats ({:?} each) and a publish_timeout ({:?}): one late heartbeat would stop \
                 the relay; lengthen the lease or shorten the others",
                self.lease, self.heartbeat, self.publish_timeout
            ));
        }
        if self.max_in_flight < self.fetch_batch {
            problems.push(format!(
                "max_in_flight ({}) is less than fetch_batch ({}): a full batch would never fit; raise max_in_flight, best to twice the batch",
                self.max_in_flight, self.fetch_batch
            ));
        }
        if self.outage_max_delay < self.outage_first_delay {
            problems.push(format!(
                "outage_max_delay ({:?}) is shorter than outage_first_delay ({:?}); make it at least as long",
                self.outage_max_delay, self.outage_first_delay
            ));
        }
        if self.label.is_empty() || self.label.len() > 255 {
            problems.push(format!("label has {} bytes; give it 1 to 255", self.label.len()));
        }
        if self.source.is_empty() || self.source.chars().any(char::is_control) {
            problems.push(
                "source is empty or has control characters; give it a URI reference such as /orders-service"
                    .to_owned(),
            );
        }
        problems.extend(self.retry.problems());
        problems
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_defaults_are_consistent() {
        assert_eq!(RelayConfig::default().problems(), Vec::<String>::new());
    }

    #[test]
    fn one_key_never_has_more_than_half_of_the_credit() {
        let most = |max_in_flight, per_key| {
            RelayConfig { max_in_flight, per_key, ..RelayConfig::default() }.max_per_key()
        };
        assert_eq!((most(2_000, 500), most(200, 500), most(1, 500)), (500, 100, 1));
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
        let wrong: [(&str, Vec<String>); 10] = [
            ("fetch_batch ", of(|it| (it.fetch_batch, it.max_in_flight) = (usize::MAX, MAX_MESSAGES))),
            ("fetch_batch_bytes", of(|it| it.fetch_batch_bytes = usize::MAX)),
            ("max_in_flight ", of(|it| it.max_in_flight = usize::MAX)),
            ("max_in_flight_bytes", of(|it| it.max_in_flight_bytes = usize::MAX)),
            ("per_key", of(|it| it.per_key = usize::MAX)),
            ("lanes", of(|it| it.lanes = usize::MAX)),
            ("max_unconfirmed_batches", of(|it| it.max_unconfirmed_batches = usize::MAX)),
            ("max_unconfirmed_batches", of(|it| (it.lanes, it.max_unconfirmed_batches) = (256, 40))),
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
        assert_eq!(of(|it| (it.lanes, it.max_unconfirmed_batches) = (4, 2_500)), Vec::<String>::new());
    }

    #[test]
    fn all_problems_are_reported_at_once_with_their_values() {
        let config = RelayConfig {
            lease: Duration::from_secs(4),
            fetch_batch: 0,
            lanes: 300,
            label: String::new(),
            ..RelayConfig::default()
        };
        let problems = config.problems();
        assert_eq!(problems.len(), 4, "{problems:#?}");
        assert!(problems.iter().any(|problem| problem.contains("lease (4s) is too short")), "{problems:#?}");
    }
}
