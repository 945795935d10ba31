//! Configuration of an inbox: every number with its unit, its default, and why.

use std::time::Duration;

use outbox_contract::RetryPolicy;
use outbox_contract::backend::OffsetReset;
use serde::{Deserialize, Serialize};

use super::pool_share::MAX_SHARE;
use crate::giving_way::GivingWay;
use crate::limits::{MAX_BYTES, MAX_MESSAGES, problem_of_count};
use crate::relay::RelayConfig;

/// Place where messages wait for their handler.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Mode {
    /// At the broker: a message is acknowledged after its handler's transaction has committed. Only
    /// failing keys wait in the store. The default: one transaction for each message, or batch.
    #[default]
    Direct,
    /// In the store: deliveries are written there in batches and acknowledged at once, and handled
    /// from there. For a broker that must not wait for slow handlers, or that loses what is not
    /// acknowledged soon.
    Stored,
    /// Like `Stored`, but this process only receives. Others handle.
    Receive,
    /// Like `Stored`, but this process only handles. Others receive.
    Handle,
}

impl Mode {
    pub(crate) const fn receives(self) -> bool {
        !matches!(self, Self::Handle)
    }

    pub(crate) const fn handles(self) -> bool {
        !matches!(self, Self::Receive)
    }
}

/// Fate of a message that has no handler.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum UnknownType {
    /// It waits with the later messages of its key for a program that has a handler, as during a
    /// rolling deploy. No attempt is counted. After [`InboxConfig::wait_for_upgrade`] it becomes a
    /// dead letter.
    #[default]
    Wait,
    /// It becomes a dead letter at once: nothing is lost, and it can be requeued when there is a
    /// handler. Its key goes on, without it.
    DeadLetter,
    /// It is acknowledged and ignored: for a consumer of a part of a topic.
    Ignore,
}

/// Limits of one handler.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct HandlerOptions {
    /// Maximum number of concurrent calls in this process, of different keys. Default: bounded by
    /// [`InboxConfig::concurrency`] only.
    pub concurrency: usize,
    /// Maximum time of one call, after which it is dropped, rolled back and counted as failed.
    /// Default 10 s. It must be shorter than a transaction may be idle: PostgreSQL and MySQL end
    /// one after the store's `transaction_idle_timeout`, 12 s by default.
    pub timeout: Duration,
}

impl Default for HandlerOptions {
    fn default() -> Self {
        Self { concurrency: usize::MAX, timeout: Duration::from_secs(10) }
    }
}

impl HandlerOptions {
    /// Sets the maximum number of concurrent calls.
    #[must_use]
    pub const fn concurrency(mut self, concurrency: usize) -> Self {
        self.concurrency = concurrency;
        self
    }

    /// Sets the maximum time of one call.
    #[must_use]
    pub const fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// Returns the problems, given the time that a transaction may be idle.
    pub(crate) fn problems(&self, max_idle: Option<Duration>) -> Vec<String> {
        let mut problems = Vec::new();
        if self.concurrency == 0 {
            problems.push("a handler's concurrency is 0; give it at least 1".to_owned());
        }
        if self.timeout.is_zero() || self.timeout > Duration::from_secs(3_600) {
            problems
                .push(format!("a handler's timeout is {:?}; give it more than 0, at most 1 h", self.timeout));
        }
        if let Some(idle) = max_idle
            && self.timeout >= idle
        {
            problems.push(format!(
                "a handler's timeout is {:?}, and the database ends a transaction that is idle for {idle:?}: it would be gone in the middle of a call; \
                 give the handler less time, or the store a longer transaction_idle_timeout",
                self.timeout
            ));
        }
        problems
    }
}

/// Interval in which leases of stored keys are renewed, and pauses of operators are noticed.
const HEARTBEAT: Duration = Duration::from_secs(5);

/// Time for which a member keeps its share after it gave way, where all messages wait in the store.
const GIVING_WAY_REST: Duration = Duration::from_secs(600);

/// Maximum number of concurrent transactions: more than a database has connections.
const MAX_CONCURRENCY: usize = 10_000;

/// The configuration of an inbox. [`InboxBuilder`](super::InboxBuilder) has a method of the same
/// name for each field.
///
/// [`prefetch`](Self::prefetch) and [`tries`](Self::tries) are at most 1,000,000, times at most a
/// day.
///
/// Configuration files hold it by the names of its fields. Durations are text with a unit
/// (`"30s"`), missing fields have their defaults, and an unknown name is an error that lists the
/// known ones.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct InboxConfig {
    /// Name of this process in logs and in the database. It has no effect. Default `inbox`.
    pub label: String,
    /// Place where messages wait. Default [`Mode::Direct`].
    pub mode: Mode,
    /// Maximum number of concurrent transactions, of different keys; each one takes a connection of
    /// the store. At most half of them are for retries, and in direct mode for messages that wait
    /// in the store. Default: 8, or less if the store's pool is small. Inboxes of a service that
    /// have none configured share its pool, and leave a fifth of it free. At most 10,000. On a
    /// store with one writer at a time it is always 1.
    pub concurrency: Option<usize>,
    /// Maximum number of messages of one transaction. Default 1. More is faster; a failing message
    /// makes its whole batch repeat one by one. Of stored messages it takes as many as are handled
    /// within twice the timeout of the slowest handler.
    pub batch: usize,
    /// Maximum number of unacknowledged deliveries, and so of deliveries in memory. Default 1,000.
    pub prefetch: usize,
    /// Maximum number of their bytes. Default 16 MiB; one delivery may exceed it.
    pub prefetch_bytes: usize,
    /// Position from which a unit (partition, stream) is read if the broker has lost the
    /// consumer's: offsets that expired or were deleted, a log that was trimmed past them, a group
    /// that is gone. A new consumer, which has handled nothing of the topic, begins where its
    /// transport says. Default [`OffsetReset::None`]: nothing is read of the unit until somebody
    /// decides.
    pub offset_reset: OffsetReset,
    /// Maximum number of dead letters of this consumer, above which further undecodable records are
    /// acknowledged and dropped. Default 10,000. Log and health report it: another program's topic
    /// must not fill the store. Failing messages still become dead letters.
    pub max_undecodable: u64,
    /// Number of attempts of a message in memory before it and its key's followers are written to
    /// the store and acknowledged. Default 3; fewer if [`retry`](Self::retry) has fewer for its
    /// failure.
    pub tries: u32,
    /// First wait between attempts in memory; it doubles. Default 50 ms. Short, because it blocks
    /// the key's part of the prefetch.
    #[serde(with = "outbox_contract::duration")]
    pub first_delay: Duration,
    /// Longest such wait. Default 1 s.
    #[serde(with = "outbox_contract::duration")]
    pub max_delay: Duration,
    /// Maximum time of a call to the store before it counts as failed. Default 5 s.
    #[serde(with = "outbox_contract::duration")]
    pub store_timeout: Duration,
    /// Duration of the leases of stored keys: after this process is killed, another one takes them
    /// over within a lease and a heartbeat. At least what two heartbeats of 5 s, two calls to the
    /// store and the slowest handler need, three times the slowest handler if
    /// [`batch`](Self::batch) is more than 1. Default: that, or 15 s if it is less.
    #[serde(with = "outbox_contract::duration::option")]
    pub lease: Option<Duration>,
    /// Interval of the search for failing keys that an operator released, or that another process
    /// left. Default 5 s.
    #[serde(with = "outbox_contract::duration")]
    pub due_poll: Duration,
    /// First wait when the store or the broker is unavailable. Default 200 ms.
    #[serde(with = "outbox_contract::duration")]
    pub outage_first_delay: Duration,
    /// Longest such wait. Default 5 s.
    #[serde(with = "outbox_contract::duration")]
    pub outage_max_delay: Duration,
    /// Age of the oldest stored message above which the inbox is unhealthy. Default 60 s.
    #[serde(with = "outbox_contract::duration")]
    pub unhealthy_age: Duration,
    /// Maximum time that a message waits in the store for a newer program when this one is too old
    /// for it: its type has no handler ([`UnknownType::Wait`]), its schema version is newer, or its
    /// handler says so ([`HandlerFailure::too_new`](super::HandlerFailure::too_new)). It begins
    /// with the first attempt of this process. Then the message becomes a dead letter. At most 30
    /// days. Default 1 hour.
    #[serde(with = "outbox_contract::duration")]
    pub wait_for_upgrade: Duration,
    /// Retry policy of stored messages that fail, with rules for classes of handlers' failures and
    /// for topics.
    pub retry: RetryPolicy,
}

impl Default for InboxConfig {
    fn default() -> Self {
        Self {
            label: "inbox".to_owned(),
            mode: Mode::Direct,
            concurrency: None,
            batch: 1,
            prefetch: 1_000,
            prefetch_bytes: 16 * 1024 * 1024,
            offset_reset: OffsetReset::None,
            max_undecodable: 10_000,
            tries: 3,
            first_delay: Duration::from_millis(50),
            max_delay: Duration::from_secs(1),
            store_timeout: Duration::from_secs(5),
            lease: None,
            due_poll: Duration::from_secs(5),
            outage_first_delay: Duration::from_millis(200),
            outage_max_delay: Duration::from_secs(5),
            unhealthy_age: Duration::from_secs(60),
            wait_for_upgrade: Duration::from_secs(3_600),
            retry: RetryPolicy::default(),
        }
    }
}

impl InboxConfig {
    /// Returns everything that is wrong, each problem with its value and the remedy.
    #[must_use]
    pub fn problems(&self) -> Vec<String> {
        let mut problems = Vec::new();
        let counts = [
            // Bounded below, with the reasons.
            ("concurrency", self.transactions(), usize::MAX),
            ("batch", self.batch, usize::MAX),
            ("prefetch", self.prefetch, MAX_MESSAGES),
            ("prefetch_bytes", self.prefetch_bytes, MAX_BYTES),
            ("tries", usize::try_from(self.tries).unwrap_or(usize::MAX), MAX_MESSAGES),
        ];
        problems
            .extend(counts.into_iter().filter_map(|(name, value, most)| problem_of_count(name, value, most)));
        if self.transactions() > MAX_CONCURRENCY {
            problems.push(format!(
                "concurrency is {}; each transaction takes a connection of the store, so give it at most {MAX_CONCURRENCY}",
                self.transactions()
            ));
        }
        if self.batch > 1_000 {
            problems.push(format!(
                "batch is {}; a transaction of over 1,000 messages holds locks for too long",
                self.batch
            ));
        }
        let (ms, hour, day) =
            (Duration::from_millis(1), Duration::from_secs(3_600), Duration::from_secs(86_400));
        let durations = [
            ("first_delay", self.first_delay, Duration::from_nanos(1), day),
            ("max_delay", self.max_delay, Duration::from_nanos(1), day),
            ("store_timeout", self.store_timeout, ms, hour),
            ("lease", self.lease.unwrap_or(ms), ms, day),
            ("due_poll", self.due_poll, ms, day),
            ("outage_first_delay", self.outage_first_delay, ms, day),
            ("outage_max_delay", self.outage_max_delay, ms, day),
            ("unhealthy_age", self.unhealthy_age, ms, day),
            ("wait_for_upgrade", self.wait_for_upgrade, Duration::ZERO, 30 * day),
        ];
        for (name, value, least, most) in durations {
            if value < least || value > most {
                problems.push(format!("{name} is {value:?}; give it {least:?} to {most:?}"));
            }
        }
        let pairs = [
            ("max_delay", self.max_delay, "first_delay", self.first_delay),
            ("outage_max_delay", self.outage_max_delay, "outage_first_delay", self.outage_first_delay),
        ];
        for (name, longer, other, shorter) in pairs {
            if longer < shorter {
                problems.push(format!(
                    "{name} ({longer:?}) is shorter than {other} ({shorter:?}); make it at least as long"
                ));
            }
        }
        problems
    }

    /// Returns the maximum number of concurrent transactions: the configured one, or else that of a
    /// large pool.
    pub(crate) fn transactions(&self) -> usize {
        self.concurrency.unwrap_or(MAX_SHARE)
    }

    /// Returns what is wrong beyond that for an inbox that handles, where the slowest handler may
    /// take this long.
    pub(crate) fn problems_of_drain(&self, slowest: Duration) -> Vec<String> {
        let (drain, needed) = (self.drain(slowest), self.least_lease(slowest));
        let mut problems = Vec::new();
        if drain.lease < needed {
            let calls =
                if self.batch > 1 { "three times the slowest handler" } else { "the slowest handler" };
            problems.push(format!(
                "lease is {:?}; two heartbeats of {HEARTBEAT:?}, two calls to the store of a store_timeout ({:?}) each and {calls} ({slowest:?}) \
                 need {needed:?}; leave it out, or shorten store_timeout or the timeout of the handler",
                drain.lease, self.store_timeout
            ));
        }
        problems.extend(RelayConfig { lease: drain.lease.max(needed), ..drain }.problems());
        problems
    }

    /// Maximum time of a transaction in which stored messages are handled.
    fn handling(&self, slowest: Duration) -> Duration {
        // The calls of a batch take no longer than two, as `Pace` has it; and if it fails at its
        // end, it is begun again with its first message alone.
        let calls = if self.batch > 1 { 3 } else { 1 };
        slowest.saturating_mul(calls).saturating_add(self.store_timeout.saturating_mul(2))
    }

    fn least_lease(&self, slowest: Duration) -> Duration {
        (HEARTBEAT * 2).saturating_add(self.handling(slowest))
    }

    /// Decision of a member to give way, where leases last this long.
    ///
    /// In direct mode only failing keys wait in the store, so a member gives way for as long as a
    /// message may wait. In the other modes all messages do, and a few new members can't handle
    /// them all for long: the old ones take their shares again after a lease without.
    pub(crate) fn giving_way(&self, lease: Duration) -> GivingWay {
        // It counts for a lease, then others take its buckets.
        let limit = lease.saturating_mul(3);
        match self.mode {
            Mode::Direct => GivingWay::new(limit.max(self.wait_for_upgrade), Duration::ZERO),
            Mode::Stored | Mode::Receive | Mode::Handle => GivingWay::new(limit, GIVING_WAY_REST),
        }
    }

    /// The relay that drains stored messages into handlers, of which the slowest may take this
    /// long.
    pub(crate) fn drain(&self, slowest: Duration) -> RelayConfig {
        let concurrency = self.transactions();
        let least = self.least_lease(slowest).max(Duration::from_secs(15));
        let fetch = concurrency.saturating_mul(self.batch).saturating_mul(4).clamp(100, 1_000);
        RelayConfig {
            label: self.label.clone(),
            // Handlers see the source that a message came with.
            source: Some("/inbox".to_owned()),
            lease: self.lease.unwrap_or(least),
            heartbeat: HEARTBEAT,
            publish_timeout: self.handling(slowest),
            store_timeout: self.store_timeout,
            fetch_batch: fetch,
            max_in_flight: fetch * 2,
            // As many keys as can be handled at once may be slow, and all that is in memory of them
            // leaves half of the credit free. The price: small fetches where few keys are deep.
            per_key: (fetch / concurrency.max(1)).clamp(1, 500),
            max_in_flight_bytes: self.prefetch_bytes,
            fetch_batch_bytes: self.prefetch_bytes.div_ceil(2),
            // A slow key holds up what rides in its batch: so a batch is no more than one
            // transaction.
            publish_batch: self.batch,
            max_unconfirmed_batches: concurrency,
            due_poll: self.due_poll,
            outage_first_delay: self.outage_first_delay,
            outage_max_delay: self.outage_max_delay,
            unhealthy_age: self.unhealthy_age,
            retry: self.retry.clone(),
            ..RelayConfig::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_defaults_are_consistent_with_a_handler_of_any_speed() {
        let config = InboxConfig::default();
        assert_eq!(config.problems(), Vec::<String>::new());
        for seconds in [1, 10, 600] {
            let drain = config.drain(Duration::from_secs(seconds));
            assert_eq!(drain.problems(), Vec::<String>::new());
            assert_eq!(config.problems_of_drain(Duration::from_secs(seconds)), Vec::<String>::new());
        }
    }

    #[test]
    fn slow_keys_leave_half_of_the_credit_to_the_others() {
        for (concurrency, batch) in [(1, 1), (8, 1), (8, 50), (500, 1), (10_000, 1_000)] {
            let config = InboxConfig { concurrency: Some(concurrency), batch, ..InboxConfig::default() };
            let drain = config.drain(Duration::from_secs(10));
            assert!(drain.per_key >= 1 && drain.per_key <= drain.max_in_flight / 2);
            assert!(drain.per_key == 1 || drain.per_key * concurrency <= drain.max_in_flight / 2);
        }
    }

    #[test]
    fn a_configuration_in_a_file_has_the_names_of_the_fields() {
        let text = r#"{"mode": "stored", "concurrency": 4, "lease": "1m", "retry": {"exhausted": "hold"}}"#;
        let config: InboxConfig = serde_json::from_str(text).unwrap();
        let mut expected = InboxConfig { mode: Mode::Stored, concurrency: Some(4), ..InboxConfig::default() };
        expected.lease = Some(Duration::from_secs(60));
        expected.retry.exhausted = outbox_contract::Exhausted::Hold;
        assert_eq!(config, expected);
        let again = serde_json::to_string(&InboxConfig::default()).unwrap();
        assert_eq!(serde_json::from_str::<InboxConfig>(&again).unwrap(), InboxConfig::default(), "{again}");
        let error = serde_json::from_str::<InboxConfig>(r#"{"prefetched": 4}"#).unwrap_err().to_string();
        assert!(error.contains("`prefetched`") && error.contains("`prefetch`"), "{error}");
    }

    #[test]
    fn all_problems_are_reported_at_once() {
        let config =
            InboxConfig { batch: 0, tries: 0, first_delay: Duration::ZERO, ..InboxConfig::default() };
        assert_eq!(config.problems().len(), 3);
    }
}
