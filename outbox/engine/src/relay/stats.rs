//! Counters of a relay.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Mutex;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use outbox_contract::admin::TopicFigures;
use outbox_contract::backend::{Backlog, Outcome};
use outbox_contract::{Failure, KeyId, MessageId, Route, Topic, metric};
use tokio::time::Instant;

use super::core::{Cause, Counts};
use super::sent::{Sent, Topics};
use super::topic_ages::TopicAges;
use crate::recent::Recent;
use crate::telemetry::register_counters;

/// Counters of one route, shared by its actors. Updated with relaxed ordering, because each is read
/// on its own.
#[derive(Debug)]
pub(crate) struct Counters {
    route: Route,
    delivered: AtomicU64,
    settled: AtomicU64,
    failed: AtomicU64,
    unknown: AtomicU64,
    buried: AtomicU64,
    discarded: AtomicU64,
    parked: AtomicU64,
    refused: AtomicU64,
    resets: AtomicU64,
    restarts: AtomicU64,
    fetches: AtomicU64,
    batches: AtomicU64,
    waited_micros: AtomicU64,
    pub(crate) buckets: AtomicUsize,
    pub(crate) disagreeing: AtomicBool,
    // End of the time for which the relay counts as failing repeatedly, in microseconds of its own
    // clock.
    failing_until: AtomicU64,
    observed: Mutex<Observed>,
    sent: Mutex<Sent>,
    topics: Mutex<TopicAges>,
    dead_letters: Recent,
    held_keys: Recent,
}

#[derive(Clone, Debug, Default)]
struct Observed {
    backlog: Option<(Duration, Backlog)>,
    /// Instant of the next measurement, or any later one.
    measure_at: Duration,
    unmeasured: Option<FailingSince>,
    /// True if the backlog was measured after this relay had acquired leases.
    owned: bool,
    /// Instant of the last successful maintenance, on the relay's own clock; initially zero.
    /// `None`: not reported with this route.
    maintained: Option<Duration>,
    unmaintained: Option<String>,
    last_error: Option<String>,
    /// Latest failure for which the transport counts as unavailable.
    away: Option<String>,
    broken: Vec<String>,
    /// Latest failure of each unavailable topic.
    why_broken: BTreeMap<String, String>,
    below: Option<FoundBelow>,
}

/// Checks that found messages below the read position, on the relay's own clock.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FoundBelow {
    pub(crate) first: Duration,
    pub(crate) last: Duration,
    pub(crate) looks: u64,
    pub(crate) cause: Cause,
}

impl FoundBelow {
    /// Time for which findings are reported: long enough for an operator who looks now and then.
    const REMEMBERED: Duration = Duration::from_secs(15 * 60);

    fn is_remembered(&self, now: Duration) -> bool {
        now.saturating_sub(self.last) < Self::REMEMBERED
    }
}

/// Ongoing failure, since an instant of the relay's own clock.
#[derive(Clone, Debug)]
struct FailingSince {
    since: Duration,
    /// Latest error.
    error: String,
}

impl FailingSince {
    /// Returns the failure with a newer error, ongoing since before if there was one.
    fn continued(before: Option<Self>, now: Duration, error: String) -> Self {
        Self { since: before.map_or(now, |before| before.since), error }
    }
}

impl Counters {
    pub(crate) fn new(route: Route) -> Self {
        register_counters("route", route.as_str());
        Self {
            sent: Mutex::new(Sent::new(&route)),
            topics: Mutex::new(TopicAges::new(&route)),
            dead_letters: Recent::default(),
            held_keys: Recent::default(),
            route,
            delivered: AtomicU64::new(0),
            settled: AtomicU64::new(0),
            failed: AtomicU64::new(0),
            unknown: AtomicU64::new(0),
            buried: AtomicU64::new(0),
            discarded: AtomicU64::new(0),
            parked: AtomicU64::new(0),
            refused: AtomicU64::new(0),
            resets: AtomicU64::new(0),
            restarts: AtomicU64::new(0),
            fetches: AtomicU64::new(0),
            batches: AtomicU64::new(0),
            waited_micros: AtomicU64::new(0),
            buckets: AtomicUsize::new(0),
            disagreeing: AtomicBool::new(false),
            failing_until: AtomicU64::new(0),
            observed: Mutex::new(Observed::default()),
        }
    }

    pub(crate) fn add(&self, counts: &Counts) {
        let pairs = [
            (&self.delivered, counts.delivered, metric::DELIVERED),
            (&self.failed, counts.failed, metric::FAILED),
            (&self.unknown, counts.unknown, metric::UNKNOWN),
            (&self.buried, counts.buried, metric::DEAD_LETTERED),
            (&self.discarded, counts.discarded, metric::DISCARDED),
            (&self.parked, counts.parked, metric::PARKED),
            (&self.refused, counts.refused, metric::REFUSED),
        ];
        for (counter, count, name) in pairs {
            self.count(counter, count, name);
        }
        self.fetches.fetch_add(counts.fetches, Ordering::Relaxed);
    }

    /// Warns of a dead letter, at most once a minute.
    pub(crate) fn warn_of_dead_letter(&self, topic: &Topic, message: MessageId, failure: &Failure) {
        if let Some(dead_letters) = self.dead_letters.met(Instant::now(), &failure.message) {
            tracing::warn!(
                route = %self.route, %topic, %message, %failure, dead_letters,
                "message became a dead letter, and its key continues; requeue or purge it once the cause is gone"
            );
        }
    }

    /// Warns of a key that the retry policy holds, at most once a minute.
    pub(crate) fn warn_of_held_key(&self, key: &KeyId, failure: &Failure) {
        if let Some(keys) = self.held_keys.met(Instant::now(), &failure.message) {
            tracing::warn!(
                route = %self.route, topic = %key.topic, key = %key.key, %failure, keys,
                "key held by the retry policy; release it once the cause is gone, or skip or discard its messages"
            );
        }
    }

    pub(crate) fn settled(&self, count: usize) {
        self.settled.fetch_add(count as u64, Ordering::Relaxed);
    }

    pub(crate) fn reset(&self, cause: &str) {
        self.count(&self.resets, 1, metric::RESETS);
        self.observed().last_error = Some(cause.to_owned());
    }

    pub(crate) fn keeps_failing_until(&self, until: Duration) {
        self.failing_until.store(u64::try_from(until.as_micros()).unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    pub(crate) fn keeps_failing(&self, now: Duration) -> bool {
        now < Duration::from_micros(self.failing_until.load(Ordering::Relaxed))
    }

    pub(crate) fn restarted(&self) {
        self.count(&self.restarts, 1, metric::RESTARTS);
    }

    /// Records the attempts of a batch. The broker has never seen the `refused` messages.
    pub(crate) fn sent(&self, topics: &Topics, outcomes: &[Option<Outcome>], refused: &BTreeSet<usize>) {
        self.sent.lock().unwrap_or_else(PoisonError::into_inner).count(topics, outcomes, refused);
    }

    /// Records that this relay took over buckets.
    pub(crate) fn took_over(&self, buckets: usize) {
        self.export(metric::TAKEOVERS, buckets as u64);
    }

    /// Records how long the oldest message of a confirmed batch had been waiting since it was
    /// appended.
    pub(crate) fn latency(&self, waited: Duration) {
        self.batches.fetch_add(1, Ordering::Relaxed);
        let micros = u64::try_from(waited.as_micros()).unwrap_or(u64::MAX);
        self.waited_micros.fetch_add(micros, Ordering::Relaxed);
        let route = self.route.as_str().to_owned();
        metrics::histogram!(metric::LATENCY, "route" => route).record(waited.as_secs_f64());
    }

    /// Records a measurement, and the rest after it.
    pub(crate) fn observe(
        &self,
        now: Duration,
        rest: Duration,
        backlog: Backlog,
        in_flight: (usize, usize),
        breaker_open: bool,
    ) {
        let gauge = |name: &'static str, value: f64| {
            metrics::gauge!(name, "route" => self.route.as_str().to_owned()).set(value);
        };
        #[expect(
            clippy::cast_precision_loss,
            reason = "a gauge is a float, and no backlog has 2^52 messages"
        )]
        let number = |value: u64| value as f64;
        gauge(metric::PENDING, number(backlog.pending));
        gauge(metric::PARKED_NOW, number(backlog.parked));
        gauge(metric::HELD_KEYS, number(backlog.held_keys));
        gauge(metric::RETRYING_KEYS, number(backlog.retrying_keys));
        gauge(metric::DEAD, number(backlog.dead));
        gauge(metric::OLDEST_AGE, backlog.oldest_age.map_or(0.0, |age| age.as_secs_f64()));
        gauge(metric::BUCKETS, number(self.buckets.load(Ordering::Relaxed) as u64));
        gauge(metric::IN_FLIGHT, number(in_flight.0 as u64));
        gauge(metric::IN_FLIGHT_BYTES, number(in_flight.1 as u64));
        gauge(metric::BREAKER_OPEN, f64::from(u8::from(breaker_open)));
        gauge(metric::UNMEASURED, 0.0);
        let mut observed = self.observed();
        observed.backlog = Some((now, backlog));
        (observed.measure_at, observed.unmeasured) = (now + rest, None);
    }

    /// Returns the instant before which the backlog need not be measured again.
    pub(crate) fn measure_at(&self) -> Duration {
        self.observed().measure_at
    }

    /// Exports the age of the oldest message of each topic.
    pub(crate) fn observe_topics(&self, figures: &[TopicFigures]) {
        self.topics.lock().unwrap_or_else(PoisonError::into_inner).export(figures);
    }

    /// Records whether the current measurement began after this relay had acquired leases.
    pub(crate) fn owned(&self, owned: bool) {
        self.observed().owned = owned;
    }

    /// Returns true if buckets without an owner in the last measurement really have none.
    pub(crate) fn is_owned(&self) -> bool {
        self.observed().owned
    }

    /// Returns the number of messages that the broker confirmed.
    pub(crate) fn delivered(&self) -> u64 {
        self.delivered.load(Ordering::Relaxed)
    }

    /// Returns the number of messages that this relay turned into dead letters.
    pub(crate) fn buried(&self) -> u64 {
        self.buried.load(Ordering::Relaxed)
    }

    /// Records a failed measurement. The figures stay those of the last one, and the age metric
    /// grows as if nothing had moved since.
    pub(crate) fn failed_to_observe(&self, now: Duration, error: String) {
        let mut observed = self.observed();
        let failing = FailingSince::continued(observed.unmeasured.take(), now, error);
        let (measured, age) = match &observed.backlog {
            Some((measured, backlog)) => (*measured, backlog.oldest_age.unwrap_or_default()),
            None => (failing.since, Duration::ZERO),
        };
        observed.unmeasured = Some(failing);
        let unmeasured = now.saturating_sub(measured);
        let gauge = |name: &'static str, span: Duration| {
            metrics::gauge!(name, "route" => self.route.as_str().to_owned()).set(span.as_secs_f64());
        };
        gauge(metric::UNMEASURED, unmeasured);
        gauge(metric::OLDEST_AGE, age + unmeasured);
    }

    /// Returns the error of the last measurement of the backlog.
    pub(crate) fn unmeasured(&self) -> Option<String> {
        self.observed().unmeasured.as_ref().map(|failing| failing.error.clone())
    }

    pub(crate) fn maintained(&self, now: Duration) {
        let mut observed = self.observed();
        (observed.maintained, observed.unmaintained) = (Some(now), None);
    }

    /// Makes this the route that maintenance is reported with.
    pub(crate) fn is_to_maintain(&self) {
        self.observed().maintained.get_or_insert_default();
    }

    pub(crate) fn failed_to_maintain(&self, error: String) {
        self.observed().unmaintained = Some(error);
    }

    /// Returns the instant of the last successful maintenance, if it is reported with this route.
    pub(crate) fn last_maintained(&self) -> Option<Duration> {
        self.observed().maintained
    }

    /// Returns the error of the last maintenance.
    pub(crate) fn unmaintained(&self) -> Option<String> {
        self.observed().unmaintained.clone()
    }

    pub(crate) fn broken(&self, topics: Vec<String>) {
        let mut observed = self.observed();
        observed.why_broken.retain(|topic, _| topics.contains(topic));
        observed.broken = topics;
    }

    /// Records the failure of a topic.
    pub(crate) fn broke(&self, topic: String, failure: String) {
        self.observed().why_broken.insert(topic, failure);
    }

    /// Records that a check found messages below the read position.
    pub(crate) fn found_below(&self, now: Duration, cause: Cause) {
        self.export(metric::BELOW_CURSOR, 1);
        let mut observed = self.observed();
        let before = observed.below.filter(|before| before.is_remembered(now));
        let before = before.unwrap_or(FoundBelow { first: now, last: now, looks: 0, cause });
        observed.below =
            Some(FoundBelow { last: now, looks: before.looks.saturating_add(1), cause, ..before });
    }

    /// Returns the recent findings below the read position.
    pub(crate) fn below(&self, now: Duration) -> Option<FoundBelow> {
        self.observed().below.filter(|found| found.is_remembered(now))
    }

    pub(crate) fn transport_is_away(&self, reason: Option<String>) {
        self.observed().away = reason;
    }

    /// Returns the latest failure for which the transport counted as unavailable.
    pub(crate) fn why_away(&self) -> Option<String> {
        self.observed().away.clone()
    }

    pub(crate) fn last_error(&self) -> Option<String> {
        self.observed().last_error.clone()
    }

    /// Returns the topics that are not published now, each with its latest failure, or none if an
    /// operator paused it.
    pub(crate) fn broken_topics(&self) -> Vec<(String, Option<String>)> {
        let observed = self.observed();
        observed.broken.iter().map(|topic| (topic.clone(), observed.why_broken.get(topic).cloned())).collect()
    }

    pub(crate) fn backlog(&self) -> Option<(Duration, Backlog)> {
        self.observed().backlog.clone()
    }

    pub(crate) fn snapshot(&self, in_flight: (usize, usize)) -> RelayStats {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        RelayStats {
            delivered: read(&self.delivered),
            settled: read(&self.settled),
            failed: read(&self.failed),
            unknown: read(&self.unknown),
            dead_lettered: read(&self.buried),
            discarded: read(&self.discarded),
            parked: read(&self.parked),
            refused: read(&self.refused),
            resets: read(&self.resets),
            restarts: read(&self.restarts),
            fetches: read(&self.fetches),
            batches: read(&self.batches),
            waited: Duration::from_micros(read(&self.waited_micros)),
            buckets: self.buckets.load(Ordering::Relaxed),
            in_flight: in_flight.0,
            in_flight_bytes: in_flight.1,
        }
    }

    fn count(&self, counter: &AtomicU64, count: u64, name: &'static str) {
        if count > 0 {
            counter.fetch_add(count, Ordering::Relaxed);
            self.export(name, count);
        }
    }

    fn export(&self, name: &'static str, count: u64) {
        metrics::counter!(name, "route" => self.route.as_str().to_owned()).increment(count);
    }

    fn observed(&self) -> std::sync::MutexGuard<'_, Observed> {
        self.observed.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Counters of a relay since its start, summed over its routes, and what it has in memory now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct RelayStats {
    /// Messages that the broker confirmed, repeats included.
    pub delivered: u64,
    /// Delivered messages that were removed from the store.
    pub settled: u64,
    /// Attempts that failed because of the message itself.
    pub failed: u64,
    /// Attempts whose outcome is unknown. They are repeated.
    pub unknown: u64,
    /// Messages that became dead letters.
    pub dead_lettered: u64,
    /// Messages that the retry policy deleted.
    pub discarded: u64,
    /// Messages that were parked behind a failing key.
    pub parked: u64,
    /// Transitions of failing keys that the store refused, because a lease was lost or an operator
    /// was faster.
    pub refused: u64,
    /// Restarts of a route, with everything in memory dropped and read again.
    pub resets: u64,
    /// Publishers and maintenance jobs that failed and were restarted.
    pub restarts: u64,
    /// Fetches from the store.
    pub fetches: u64,
    /// Batches with a confirmed message.
    pub batches: u64,
    /// Time from append to confirmation, summed over the oldest message of each of these batches.
    /// Two readings tell the mean between them.
    pub waited: Duration,
    /// Buckets owned now.
    pub buckets: usize,
    /// Messages in memory now, including delivered ones that are not yet removed from the store.
    pub in_flight: usize,
    /// Bytes that these messages count for.
    pub in_flight_bytes: usize,
}

impl std::ops::AddAssign for RelayStats {
    fn add_assign(&mut self, other: Self) {
        self.delivered += other.delivered;
        self.settled += other.settled;
        self.failed += other.failed;
        self.unknown += other.unknown;
        self.dead_lettered += other.dead_lettered;
        self.discarded += other.discarded;
        self.parked += other.parked;
        self.refused += other.refused;
        self.resets += other.resets;
        self.restarts += other.restarts;
        self.fetches += other.fetches;
        self.batches += other.batches;
        self.waited += other.waited;
        self.buckets += other.buckets;
        self.in_flight += other.in_flight;
        self.in_flight_bytes += other.in_flight_bytes;
    }
}
