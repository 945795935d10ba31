//! Counters of an inbox.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use outbox_contract::{Consumer, Failure, Message, metric};

use tokio::time::Instant;

use super::verdict::{Done, Verdict};
use crate::recent::Recent;
use crate::telemetry::register_counters;

/// Counters of one inbox, shared by its parts. Written with relaxed order: each is only ever read
/// as a number.
#[derive(Debug)]
pub(crate) struct Counters {
    consumer: Consumer,
    received: AtomicU64,
    handled: AtomicU64,
    duplicates: AtomicU64,
    ignored: AtomicU64,
    failed: AtomicU64,
    conflicts: AtomicU64,
    interrupted: AtomicU64,
    postponed: AtomicU64,
    stored: AtomicU64,
    dropped: AtomicU64,
    resets: AtomicU64,
    // Until when the inbox counts as failing again and again, in microseconds of its own clock.
    failing_until: AtomicU64,
    last_error: Mutex<Option<String>>,
    // Since when no transaction could be begun. Held for a few instructions.
    starved_since: Mutex<Option<Instant>>,
    /// Handlers that the database cut short.
    pub(crate) interruptions: Recent,
    /// Messages that this program is too old for.
    pub(crate) postponements: Recent,
    /// Failures of handlers.
    failures: Recent,
    /// Failed attempts to subscribe.
    unsubscribed: Recent,
    /// Transactions that could not be begun, for want of a connection or of the right to write.
    pub(crate) shortages: Recent,
    /// Records that were no messages and were not kept.
    pub(crate) drops: Recent,
}

impl Counters {
    pub(crate) fn new(consumer: Consumer) -> Self {
        register_counters("consumer", consumer.as_str());
        Self {
            consumer,
            received: AtomicU64::new(0),
            handled: AtomicU64::new(0),
            duplicates: AtomicU64::new(0),
            ignored: AtomicU64::new(0),
            failed: AtomicU64::new(0),
            conflicts: AtomicU64::new(0),
            interrupted: AtomicU64::new(0),
            postponed: AtomicU64::new(0),
            stored: AtomicU64::new(0),
            dropped: AtomicU64::new(0),
            resets: AtomicU64::new(0),
            failing_until: AtomicU64::new(0),
            last_error: Mutex::new(None),
            starved_since: Mutex::new(None),
            failures: Recent::default(),
            unsubscribed: Recent::default(),
            shortages: Recent::default(),
            interruptions: Recent::default(),
            postponements: Recent::default(),
            drops: Recent::default(),
        }
    }

    pub(crate) fn received(&self, count: usize) {
        self.add(&self.received, count as u64, metric::INBOX_RECEIVED);
    }

    pub(crate) fn stored(&self, count: usize) {
        self.add(&self.stored, count as u64, metric::INBOX_STORED);
    }

    pub(crate) fn count(&self, verdict: &Verdict) {
        match verdict {
            Verdict::Done(Done::Handled) => self.add(&self.handled, 1, metric::INBOX_HANDLED),
            Verdict::Done(Done::Duplicate) => self.add(&self.duplicates, 1, metric::INBOX_DUPLICATES),
            Verdict::Done(Done::Stored) => self.stored(1),
            Verdict::Done(Done::Ignored) => self.add(&self.ignored, 1, metric::INBOX_IGNORED),
            Verdict::Failed(_) | Verdict::Rejected(_) => self.add(&self.failed, 1, metric::INBOX_FAILED),
            Verdict::Again(_) | Verdict::Outdated(_) => self.add(&self.conflicts, 1, metric::INBOX_CONFLICTS),
            Verdict::Environment(failure) => {
                self.add(&self.interrupted, 1, metric::INBOX_INTERRUPTED);
                if let Some(interruptions) = self.interruptions.met(Instant::now(), &failure.message) {
                    tracing::warn!(
                        consumer = %self.consumer, error = %failure, interruptions,
                        "the database interrupts handlers; their messages are retried, and no attempt is counted"
                    );
                }
            }
            Verdict::TooNew(failure) => {
                self.add(&self.postponed, 1, metric::INBOX_POSTPONED);
                if let Some(attempts) = self.postponements.met(Instant::now(), &failure.message) {
                    tracing::warn!(
                        consumer = %self.consumer, reason = %failure, attempts,
                        "a message needs a newer version of this program; its key waits, and no attempt is counted"
                    );
                }
            }
            Verdict::NotTried | Verdict::Done(Done::Gone) => {}
        }
    }

    /// Warns of a handler that failed, at most once a minute. Its message is tried again.
    pub(crate) fn warn_of_failure(&self, message: &Message, failure: &Failure) {
        if let Some(failures) = self.failures.met(Instant::now(), &failure.message) {
            tracing::warn!(
                consumer = %self.consumer, topic = %message.topic, event_type = %message.event_type,
                message = %message.id, %failure, failures,
                "a handler failed; its message is tried again"
            );
        }
    }

    /// Warns that the inbox could not subscribe, at most once a minute.
    pub(crate) fn warn_of_subscribing(&self, cause: &str) {
        if let Some(times) = self.unsubscribed.met(Instant::now(), cause) {
            tracing::warn!(
                consumer = %self.consumer, cause, times,
                "could not subscribe to the broker; will keep retrying"
            );
        }
    }

    /// A transaction was begun.
    pub(crate) fn begun(&self) {
        self.starved().take();
    }

    /// Records that no transaction could be begun.
    pub(crate) fn not_begun(&self, error: &str) {
        let now = Instant::now();
        self.starved().get_or_insert(now);
        if let Some(times) = self.shortages.met(now, error) {
            tracing::warn!(
                consumer = %self.consumer, error, times,
                "could not begin a transaction; will retry, and no attempt is counted"
            );
        }
    }

    /// For how long none could be begun.
    pub(crate) fn starved_for(&self) -> Option<Duration> {
        self.starved().map(|since| since.elapsed())
    }

    fn starved(&self) -> MutexGuard<'_, Option<Instant>> {
        self.starved_since.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A record that is no message was dropped, since there are this many dead letters.
    pub(crate) fn dropped(&self, dead: u64, place: &str, reason: &str) {
        self.add(&self.dropped, 1, metric::INBOX_DROPPED);
        let words = format!("the last one at {place}: {reason}");
        if let Some(records) = self.drops.met(Instant::now(), &words) {
            tracing::error!(
                consumer = %self.consumer, dead, records, place, reason,
                "undecodable records are dropped: the consumer has reached its maximum of dead letters; purge them, or raise max_undecodable"
            );
        }
    }

    /// Number of messages that have gone through their handlers.
    pub(crate) fn handled(&self) -> u64 {
        self.handled.load(Ordering::Relaxed)
    }

    pub(crate) fn reset(&self, cause: &str) {
        self.add(&self.resets, 1, metric::INBOX_RESETS);
        *self.error() = Some(cause.to_owned());
    }

    pub(crate) fn keeps_failing_until(&self, until: Duration) {
        self.failing_until.store(u64::try_from(until.as_micros()).unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    pub(crate) fn keeps_failing(&self, now: Duration) -> bool {
        now < Duration::from_micros(self.failing_until.load(Ordering::Relaxed))
    }

    pub(crate) fn last_error(&self) -> Option<String> {
        self.error().clone()
    }

    pub(crate) fn snapshot(&self, in_flight: (usize, usize), problems: usize) -> InboxStats {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        InboxStats {
            received: read(&self.received),
            handled: read(&self.handled),
            duplicates: read(&self.duplicates),
            ignored: read(&self.ignored),
            failed: read(&self.failed),
            conflicts: read(&self.conflicts),
            interrupted: read(&self.interrupted),
            postponed: read(&self.postponed),
            stored: read(&self.stored),
            dropped: read(&self.dropped),
            resets: read(&self.resets),
            in_flight: in_flight.0,
            in_flight_bytes: in_flight.1,
            problems,
            ..InboxStats::default()
        }
    }

    fn add(&self, counter: &AtomicU64, count: u64, name: &'static str) {
        if count > 0 {
            counter.fetch_add(count, Ordering::Relaxed);
            metrics::counter!(name, "consumer" => self.consumer.as_str().to_owned()).increment(count);
        }
    }

    fn error(&self) -> MutexGuard<'_, Option<String>> {
        self.last_error.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Counters of an inbox since its start, and its deliveries in memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct InboxStats {
    /// Deliveries received, repeats included.
    pub received: u64,
    /// Messages whose handler's transaction was committed.
    pub handled: u64,
    /// Messages that had been handled before.
    pub duplicates: u64,
    /// Messages without a handler, ignored by configuration.
    pub ignored: u64,
    /// Attempts that failed, in memory and from the store, and messages that were rejected, each
    /// once.
    pub failed: u64,
    /// Attempts that conflicted with other transactions. If a message keeps conflicting, some of
    /// its attempts also count as failed.
    pub conflicts: u64,
    /// Attempts interrupted by the database or the connection to it. If a message is interrupted
    /// each time while others go through, some of its attempts also count as failed.
    pub interrupted: u64,
    /// Attempts of messages that this program is too old for. They wait in the store, and are tried
    /// again from time to time.
    pub postponed: u64,
    /// Messages that were written to the store, to wait there.
    pub stored: u64,
    /// Undecodable records that were dropped, because the maximum number of dead letters was
    /// reached.
    pub dropped: u64,
    /// Resets: everything in memory was dropped, and is delivered again.
    pub resets: u64,
    /// Deliveries in memory.
    pub in_flight: usize,
    /// Bytes of the deliveries in memory.
    pub in_flight_bytes: usize,
    /// Topics and units that deliver nothing while others do.
    pub problems: usize,
    /// Messages that wait at the broker for this consumer, in the units of this process, as last
    /// measured. 0 as well if the broker does not tell.
    pub lag: u64,
    /// Age of the oldest of them, if the broker tells it.
    pub lag_age: Option<Duration>,
    /// Findings that the broker has lost something: a position, messages, a queue.
    pub losses: u64,
    /// Messages that the broker removed before the consumer had them, as far as it can count them.
    pub missing: u64,
}
