//! Due failing keys: limits how many are retried at once.

use std::collections::BTreeMap;
use std::time::Duration;

use outbox_contract::KeyId;
use outbox_contract::backend::{Bucket, BucketSet, Due, DueKey, DueRequest};

use super::event::Question;
use super::key::{Doing, Held, Retry};
use super::limits::Limits;
use super::outcomes::Silence;
use super::table::Name;
use super::{Core, sabotaged};
use crate::mailbox::Mailbox;

/// Failing keys that were taken from the store and are being retried.
///
/// Each waits for a publisher, and some keep it until the publish timeout. Meanwhile no other key
/// can use their share of the credit. So their number is limited, however many are due. Silent keys
/// (those whose last attempt got no answer) have only a part of that limit, so that keys that do
/// get answers need not wait behind them.
#[derive(Debug)]
pub(super) struct DueKeys {
    keys: BTreeMap<KeyId, Share>,
    bytes: usize,
    max_keys: usize,
    max_silent: usize,
    max_bytes: usize,
    /// Instant at which a failing key is known to be due.
    next: Option<Duration>,
    /// Instant of the next query in any case: an operator may have released a key.
    ask_at: Duration,
    /// True if the last query excluded silent keys.
    left_silent_out: bool,
    /// Number of keys to ask for: few while their backlogs are long.
    wanted: usize,
    /// Maximum number of keys of the last query, and of messages of each.
    asked: (usize, usize),
    /// Instant up to which the backlog is read first, because the last query found keys.
    gives_way_until: Duration,
}

/// Share of the credit that a key holds while it is retried.
#[derive(Clone, Copy, Debug)]
struct Share {
    bucket: Bucket,
    bytes: usize,
    is_silent: bool,
}

/// Fraction of the credit that failing keys may hold.
const PART: usize = 8;
/// Number of keys of a first query, and the maximum. They share the free credit: of few keys, long
/// backlogs are read in large portions, so that these keys flow again soon.
const FEW_KEYS: usize = 4;
const MAX_KEYS: usize = 100;
/// Maximum number of parked messages of each while no key recovers: of a key that fails again, all
/// but one are read in vain.
const MAX_MESSAGES: usize = 100;
/// Maximum time for which due keys wait for the backlog to be read: their messages take credit that
/// it would never find half free.
const GIVES_WAY: Duration = Duration::from_millis(100);
/// Minimum interval of queries.
pub(super) const PAUSE: Duration = Duration::from_millis(5);

impl DueKeys {
    pub(super) fn of(limits: &Limits) -> Self {
        // Enough to keep all publishers busy, but never so many that nothing else could be fetched.
        let busy = limits.publishers.saturating_mul(2);
        let credit = limits.max_in_flight;
        let max_keys = (credit / PART).max(busy).min(credit / 2).max(1);
        Self {
            keys: BTreeMap::new(),
            bytes: 0,
            max_keys,
            max_silent: (max_keys / 2).max(1),
            max_bytes: (limits.max_in_flight_bytes / PART).max(1),
            next: None,
            ask_at: Duration::ZERO,
            left_silent_out: false,
            wanted: FEW_KEYS,
            asked: (0, 0),
            gives_way_until: Duration::ZERO,
        }
    }

    /// Adjusts the number of keys to an answer: twice as many after one that has short backlogs and
    /// leaves keys out, half as many after one with long backlogs.
    fn adjust(&mut self, due: &Due) {
        let (keys, messages) = self.asked;
        let leaves_out = due.keys.len() == keys && due.next == Some(Duration::ZERO);
        let is_long = |key: &&DueKey| key.failing.is_none() && key.parked.len() >= messages;
        let long = due.keys.iter().filter(is_long).count();
        self.wanted = match () {
            () if !leaves_out => FEW_KEYS,
            () if long * 2 > due.keys.len() => (self.wanted / 2).max(FEW_KEYS),
            () => (self.wanted * 2).min(MAX_KEYS),
        };
    }

    /// Returns true if the backlog is to be read first.
    pub(super) fn gives_way(&self, now: Duration) -> bool {
        now < self.gives_way_until
    }

    /// Ends that: the backlog is being read.
    pub(super) fn gave_way(&mut self) {
        self.gives_way_until = Duration::ZERO;
    }

    /// Returns how many further keys and bytes may be taken. `None`: wait until some are done.
    pub(super) fn room(&self) -> Option<(usize, usize)> {
        let keys = self.max_keys.saturating_sub(self.keys.len());
        let bytes = self.max_bytes.saturating_sub(self.bytes);
        (keys > 0 && bytes > 0).then_some((keys, bytes))
    }

    fn has_room_for_silent(&self) -> bool {
        self.silent() < self.max_silent
    }

    fn silent(&self) -> usize {
        self.keys.values().filter(|share| share.is_silent).count()
    }

    fn take(&mut self, key: KeyId, share: Share) {
        self.back(&key);
        self.bytes = self.bytes.saturating_add(share.bytes);
        self.keys.insert(key, share);
    }

    /// Releases the share of a key.
    fn back(&mut self, key: &KeyId) {
        if let Some(share) = self.keys.remove(key) {
            self.bytes = self.bytes.saturating_sub(share.bytes);
        }
    }

    /// Releases the shares of buckets that this relay lost.
    pub(super) fn lose(&mut self, buckets: &BucketSet) {
        self.keys.retain(|_, share| !buckets.contains(share.bucket));
        self.bytes = self.keys.values().fold(0, |sum, share| sum.saturating_add(share.bytes));
    }

    /// Records that a key is due at this instant.
    fn at(&mut self, at: Duration) {
        self.next = Some(self.next.map_or(at, |next| next.min(at)));
    }

    /// Returns true if there is room again for due keys that found none.
    fn has_room_again(&self) -> bool {
        let for_silent = self.left_silent_out && self.silent() <= self.max_silent / 2;
        for_silent || self.keys.len() + 1 == self.max_keys
    }

    /// Requests a query: there may be new failing keys.
    pub(super) fn ask(&mut self) {
        self.ask_at = Duration::ZERO;
    }

    /// Returns when the next key is known to be due.
    pub(super) fn next(&self) -> Option<Duration> {
        self.next
    }

    fn is_time(&self, now: Duration) -> bool {
        let has_room_again = self.left_silent_out && self.silent() <= self.max_silent / 2;
        now >= self.ask_at || self.next.is_some_and(|at| now >= at) || has_room_again
    }
}

impl Core {
    /// Schedules the retry of a failing key.
    pub(super) fn due_at(&mut self, at: Duration) {
        self.due.at(at);
        self.look_at(at);
    }

    /// Ends the retry of a failing key.
    pub(super) fn due_back(&mut self, key: &KeyId) {
        self.due.back(key);
        if self.due.has_room_again() {
            self.look_soon();
        }
    }

    /// Returns the query for due failing keys, if it is time for one.
    pub(super) fn ask_for_due(&mut self) -> Option<Question> {
        let is_told = sabotaged!(self, ReleaseUnseen) && self.due.next().is_none();
        if !self.due.is_time(self.now) || self.reading.owned.is_empty() || is_told {
            return None;
        }
        let (messages, bytes) = self.table.credit.room_for_content();
        // The end of a retry triggers the next query.
        let Some((max_keys, max_bytes)) = self.due.room() else {
            self.postpone_blocked();
            return None;
        };
        if self.table.credit.room().0 == 0 {
            self.looking.starved = true;
            return None;
        }
        let mut except: Vec<KeyId> = self.due.keys.keys().cloned().collect();
        self.due.left_silent_out = !self.due.has_room_for_silent();
        if self.due.left_silent_out {
            except.extend(self.silent.keys().filter(|key| !self.due.keys.contains_key(*key)).cloned());
        }
        let is_recovering = self.table.iter().any(|(_, state)| state.recovering);
        let keys = self.due.wanted.min(max_keys).min(messages).max(1);
        let max_messages = if is_recovering { self.limits.max_per_key } else { MAX_MESSAGES };
        let each = (messages / keys).clamp(1, max_messages);
        self.due.asked = (keys, each);
        self.due.next = None;
        let mut request = DueRequest::new(self.route.clone(), self.relay, self.reading.owned);
        (request.except, request.muted) = (except, self.reading.closed());
        (request.keys, request.messages) = (keys, each);
        request.bytes = bytes.min(self.limits.fetch_bytes).min(max_bytes);
        Some(Question::Due(request))
    }

    /// Takes due failing keys from an answer of the store.
    pub(super) fn take_due(&mut self, due: Due) {
        self.due.adjust(&due);
        if !due.keys.is_empty() {
            self.due.gives_way_until = self.now + GIVES_WAY;
        }
        self.due.ask_at = self.now + self.limits.due_poll;
        let mut pause = if due.keys.is_empty() { self.limits.first_delay } else { PAUSE };
        let mut next = due.next;
        for key in due.keys {
            if !self.take_due_key(key) {
                // Otherwise the next query would return it again at once.
                pause = self.limits.first_delay;
                next.get_or_insert(pause);
            }
        }
        let wait = |next: Duration| if next.is_zero() { pause } else { next.max(PAUSE) };
        // A key announced while the query was running may be missing in its answer.
        if let Some(next) = next {
            self.due.at(self.now + wait(next));
        }
    }

    /// Takes one due key. Returns false if it must wait.
    fn take_due_key(&mut self, mut due: DueKey) -> bool {
        // A topic may have been closed while the question was under way. It is asked for again when
        // that is open.
        if !self.reading.owned.contains(due.bucket) || self.reading.is_closed(&due.key.topic) {
            return true;
        }
        // The first failure of a key that never got an answer has this class. A postponed message,
        // too, has no counted attempts, and it got an answer.
        let class = due.first_failure.as_ref().map(|first| first.class.as_ref());
        let was_silent = matches!(class, Some("silent" | "breaks"));
        let is_silent = due.failing.is_some() && (was_silent || self.silent.contains_key(&due.key));
        if is_silent {
            if !self.silent.contains_key(&due.key) {
                let delivered = self.delivered;
                self.remember_silence(due.key.clone(), Silence { delivered, ..Silence::default() });
            }
            if !self.due.has_room_for_silent() {
                // The next query excludes all keys that are known to be silent.
                self.due.left_silent_out = true;
                return true;
            }
        }
        let mut parked = std::mem::take(&mut due.parked);
        if due.failing.is_some() {
            // It is retried alone. The messages behind it would hold credit, perhaps for long; they
            // are read again after this one was delivered.
            parked.truncate(1);
        }
        let key = self.table.entry(Name::new(due.key.clone(), due.bucket), self.leases.epoch(due.bucket));
        let Some(state) = self.table.get(key) else { return true };
        // Messages in memory were read before the key began to fail, so they precede everything
        // parked.
        let is_before = !state.mailbox.is_empty() && !sabotaged!(self, RetryOvertakes);
        if state.retry.is_some() || is_before || matches!(state.doing, Doing::Batch(_)) {
            return false;
        }
        self.forget_rows_to_park(key);
        let parked: Vec<Held> = parked.into_iter().map(Held::from).collect();
        let bytes = parked.iter().map(|held| held.bytes).sum();
        self.table.credit.take(parked.len(), bytes);
        // Only a failing message may keep its share for long.
        let bytes = due.failing.and(parked.first()).map_or(0, |held| held.bytes);
        self.due.take(due.key, Share { bucket: due.bucket, bytes, is_silent });
        if let Some(state) = self.table.get_mut(key) {
            let mut retry = Retry {
                version: due.version,
                failing: due.failing,
                attempts: due.attempts,
                first_failure: due.first_failure,
                parked: Mailbox::default(),
                delivered: Vec::new(),
                failed: None,
            };
            retry.parked.give_back(parked);
            state.retry = Some(Box::new(retry));
            state.recovering = false;
            state.is_failing = true;
        }
        self.place(key);
        true
    }
}

#[cfg(test)]
mod tests {

    use super::*;
    use crate::relay::config::RelayConfig;

    fn key(number: usize) -> KeyId {
        KeyId::new("t", number.to_string()).unwrap()
    }

    fn due(max_in_flight: usize, max_in_flight_bytes: usize) -> DueKeys {
        DueKeys::of(&Limits::of(&RelayConfig {
            max_in_flight,
            max_in_flight_bytes,
            ..RelayConfig::default()
        }))
    }

    fn share(bucket: u8, bytes: usize) -> Share {
        Share { bucket: Bucket(bucket), bytes, is_silent: false }
    }

    #[test]
    fn most_of_the_credit_stays_free_however_many_keys_are_taken() {
        for (credit, max) in [(2_000, 250), (100, 16), (20, 10), (2, 1), (1, 1)] {
            let mut due = due(credit, 1 << 20);
            let mut taken = 0;
            while due.room().is_some() {
                due.take(key(taken), share(1, 1));
                taken += 1;
            }
            assert_eq!(taken, max, "of a credit of {credit}");
        }
    }

    #[test]
    fn silent_keys_leave_room_to_others() {
        let mut due = due(2_000, 1 << 20);
        let mut taken = 0;
        while due.has_room_for_silent() {
            due.take(key(taken), Share { is_silent: true, ..share(1, 1) });
            taken += 1;
        }
        assert_eq!((taken, due.room().map(|(keys, _)| keys)), (125, Some(125)));
    }

    #[test]
    fn large_messages_are_few() {
        let mut due = due(2_000, 8_000);
        due.take(key(0), share(1, 600));
        assert_eq!(due.room(), Some((249, 400)));
        due.take(key(1), share(2, 600));
        assert_eq!(due.room(), None);
        due.back(&key(0));
        assert_eq!(due.room(), Some((249, 400)));
        due.lose(&[Bucket(2)].into_iter().collect());
        assert_eq!(due.room(), Some((250, 1_000)));
    }
}
