//! Circuit breaker of a route: decides whether its transport may be used.
//!
//! An unavailable transport uses up no attempts (promise P5). While the breaker is open nothing is
//! sent, and then one batch at a time probes whether the transport is back.

use std::collections::BTreeSet;
use std::time::Duration;

use outbox_contract::backend::Outcome;

/// Evidence of a finished batch about the transport.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Evidence {
    /// The transport answered, so it is available.
    Answered,
    /// No message that was sent got an answer.
    NoAnswer,
    /// No message was sent.
    NotSent,
}

impl Evidence {
    /// Derives the evidence from the outcomes of a batch. `refused`: messages that were never sent.
    pub(crate) fn of(outcomes: &[Option<Outcome>], refused: &BTreeSet<usize>) -> Self {
        let mut evidence = Self::NotSent;
        for (slot, outcome) in outcomes.iter().enumerate() {
            match outcome {
                _ if refused.contains(&slot) => {}
                Some(outcome) if outcome.is_answer() => return Self::Answered,
                Some(Outcome::Blocked) => {}
                Some(_) | None => evidence = Self::NoAnswer,
            }
        }
        evidence
    }
}

/// Circuit breaker. Opens when the transport reports that it is unavailable, or after several
/// consecutive batches without an answer. Pure.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Breaker {
    state: State,
    silent_batches: u32,
    failures: u32,
    first_delay: Duration,
    max_delay: Duration,
    since: Option<Duration>,
    /// True if missing answers opened it, and not an error of the transport.
    by_silence: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Closed,
    /// Nothing is sent before this instant (open).
    Open(Duration),
    /// One batch is a probe (half-open). If it has no answer by this instant, another may follow.
    Trying(Duration),
}

/// Permission to send a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Permission {
    /// Granted now.
    Granted,
    /// Denied; ask again at this instant.
    Later(Duration),
}

/// Number of consecutive batches without an answer after which the transport counts as unavailable.
const SILENT_BATCHES: u32 = 3;

impl Breaker {
    pub(crate) fn new(first_delay: Duration, max_delay: Duration) -> Self {
        Self {
            state: State::Closed,
            silent_batches: 0,
            failures: 0,
            first_delay,
            max_delay,
            since: None,
            by_silence: false,
        }
    }

    /// Decides whether a batch may be sent now.
    pub(crate) fn permission(&self, now: Duration) -> Permission {
        match self.state {
            State::Closed => Permission::Granted,
            State::Open(until) | State::Trying(until) if now >= until => Permission::Granted,
            State::Open(until) | State::Trying(until) => Permission::Later(until),
        }
    }

    /// Decides whether a batch of keys that got no answer before may be sent now.
    ///
    /// Such a batch is no probe. Its missing answer is known already; other batches must show
    /// whether it is the rule.
    pub(crate) fn permission_of_silent(&self, now: Duration) -> Permission {
        if self.by_silence { Permission::Granted } else { self.permission(now) }
    }

    /// Records that a batch of such keys was sent.
    pub(crate) fn began_silent(&mut self, now: Duration) {
        if !self.by_silence {
            self.began(now);
        }
    }

    /// Records that such a batch got no answer again. That matters only as a probe after the
    /// transport had reported that it is unavailable.
    pub(crate) fn silent_again(&mut self, now: Duration, draw: f64) {
        if matches!(self.state, State::Trying(_)) && !self.by_silence {
            self.silent(now, draw);
        }
    }

    /// Records that a batch was sent.
    pub(crate) fn began(&mut self, now: Duration) {
        if self.state != State::Closed {
            self.state = State::Trying(now + self.max_delay);
        }
    }

    /// Records an answer: a delivery, or a rejection for a reason of the message itself. Returns
    /// true if the transport counted as unavailable.
    pub(crate) fn heard(&mut self) -> bool {
        let was_open = self.state != State::Closed;
        self.state = State::Closed;
        self.silent_batches = 0;
        self.failures = 0;
        self.since = None;
        self.by_silence = false;
        was_open
    }

    /// Records that the transport reported itself unavailable. Returns true if that is news.
    pub(crate) fn unavailable(&mut self, now: Duration, draw: f64) -> bool {
        self.by_silence = false;
        self.opens(now, draw)
    }

    fn opens(&mut self, now: Duration, draw: f64) -> bool {
        let news = self.state == State::Closed;
        if let State::Open(until) = self.state
            && now < until
        {
            return false;
        }
        self.failures = self.failures.saturating_add(1);
        let bound =
            self.first_delay.saturating_mul(1 << self.failures.saturating_sub(1).min(16)).min(self.max_delay);
        // Between half the bound and all of it, so that relays of one broker neither retry in step
        // nor at once.
        self.state = State::Open(now + bound.mul_f64(0.5 + draw.clamp(0.0, 1.0) / 2.0));
        self.since.get_or_insert(now);
        news
    }

    /// Records a batch without any answer. Returns true if this made the transport count as
    /// unavailable.
    pub(crate) fn silent(&mut self, now: Duration, draw: f64) -> bool {
        self.silent_batches = self.silent_batches.saturating_add(1);
        if matches!(self.state, State::Trying(_)) || self.silent_batches >= SILENT_BATCHES {
            self.by_silence = true;
            return self.opens(now, draw);
        }
        false
    }

    /// Records a batch that ended without being sent. The next one may probe in its place.
    pub(crate) fn not_asked(&mut self, now: Duration) {
        if let State::Trying(_) = self.state {
            self.state = State::Open(now);
        }
    }

    /// Returns true if the transport itself reported that it is unavailable. A missing answer may
    /// be the fault of the message.
    pub(crate) fn is_said_to_be_away(&self) -> bool {
        self.since.is_some() && !self.by_silence
    }

    /// Returns since when the transport has been unavailable.
    pub(crate) fn away_since(&self) -> Option<Duration> {
        self.since
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: Duration = Duration::from_secs(1);

    fn breaker() -> Breaker {
        Breaker::new(S, S * 8)
    }

    #[test]
    fn while_open_nothing_passes_and_then_one_batch_tries() {
        let mut breaker = breaker();
        assert!(breaker.unavailable(S, 1.0), "it is news");
        assert_eq!(breaker.permission(S), Permission::Later(S * 2));
        assert_eq!(breaker.permission(S * 2), Permission::Granted);
        breaker.began(S * 2);
        assert_eq!(breaker.permission(S * 2), Permission::Later(S * 10), "one at a time");
        assert_eq!(breaker.permission(S * 10), Permission::Granted, "the one that tried was lost");
        assert!(breaker.heard());
        assert_eq!(breaker.permission(S * 2), Permission::Granted);
        assert_eq!(breaker.away_since(), None);
    }

    #[test]
    fn waits_grow_to_their_bound_and_start_again() {
        let mut breaker = breaker();
        let mut now = S;
        let mut waits = Vec::new();
        for _ in 0..6 {
            breaker.unavailable(now, 1.0);
            let Permission::Later(until) = breaker.permission(now) else { panic!("open") };
            waits.push((until - now).as_secs());
            now = until;
            breaker.began(now);
        }
        assert_eq!(waits, [1, 2, 4, 8, 8, 8]);
        assert_eq!(breaker.away_since(), Some(S), "since the first failure");
    }

    #[test]
    fn batches_without_an_answer_open_it_after_a_few() {
        let mut breaker = breaker();
        assert!(!breaker.silent(S, 0.0) && !breaker.silent(S, 0.0));
        assert_eq!(breaker.permission(S), Permission::Granted);
        assert!(breaker.silent(S, 0.0), "the third");
        assert!(matches!(breaker.permission(S), Permission::Later(_)));
    }

    #[test]
    fn a_batch_that_was_not_sent_leaves_its_turn_to_the_next() {
        let mut breaker = breaker();
        breaker.unavailable(S, 1.0);
        breaker.began(S * 2);
        breaker.not_asked(S * 2);
        assert_eq!(breaker.permission(S * 2), Permission::Granted);
        assert_eq!(breaker.away_since(), Some(S), "nothing was heard");
    }

    #[test]
    fn what_is_silent_anyway_waits_for_no_try_and_takes_none_where_nothing_else_was_heard_either() {
        let mut breaker = breaker();
        assert!((0..3).any(|_| breaker.silent(S, 1.0)));
        assert_eq!(breaker.permission(S), Permission::Later(S * 2));
        assert_eq!(breaker.permission_of_silent(S), Permission::Granted);
        breaker.began_silent(S * 2);
        assert_eq!(breaker.permission(S * 2), Permission::Granted, "the try is for others");
        breaker.began(S * 2);
        breaker.silent_again(S * 3, 1.0);
        assert_eq!(breaker.permission(S * 3), Permission::Later(S * 10), "their try is still out");
    }

    #[test]
    fn what_is_silent_is_a_try_as_any_other_where_the_transport_said_that_it_is_away() {
        let mut breaker = breaker();
        breaker.unavailable(S, 1.0);
        assert_eq!(breaker.permission_of_silent(S), Permission::Later(S * 2));
        breaker.began_silent(S * 2);
        assert_eq!(breaker.permission(S * 2), Permission::Later(S * 10));
        breaker.silent_again(S * 3, 1.0);
        assert_eq!(breaker.permission(S * 3), Permission::Later(S * 5), "the next wait is longer");
    }

    #[test]
    fn only_answers_of_the_broker_are_evidence_of_it() {
        let failure = || outbox_contract::Failure::new("test", "as the test has it");
        let rejected = || Some(Outcome::Rejected(failure()));
        let of =
            |outcomes: &[_], refused: &[usize]| Evidence::of(outcomes, &refused.iter().copied().collect());
        assert_eq!(of(&[rejected(), Some(Outcome::Blocked)], &[0]), Evidence::NotSent);
        assert_eq!(of(&[rejected(), rejected()], &[0]), Evidence::Answered);
        assert_eq!(of(&[rejected(), None], &[0]), Evidence::NoAnswer);
        assert_eq!(of(&[None, Some(Outcome::Delivered)], &[]), Evidence::Answered);
    }

    #[test]
    fn a_late_report_does_not_lengthen_the_wait() {
        let mut breaker = breaker();
        breaker.unavailable(S, 1.0);
        assert!(!breaker.unavailable(S + S / 2, 1.0));
        assert_eq!(breaker.permission(S * 2), Permission::Granted);
    }
}
