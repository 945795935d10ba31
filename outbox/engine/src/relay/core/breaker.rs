//! The breaker: whether a route may be used, or waits for its transport to come back.
//!
//! An unavailable transport burns no attempts (promise P5): while the breaker is open nothing is sent, and then one batch at a time tries whether the
//! transport is back.

use std::collections::BTreeSet;
use std::time::Duration;

use outbox_contract::backend::Outcome;

/// What a batch that is back says of the transport.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Word {
    /// It answered: it is there.
    Heard,
    /// Nothing was heard of what was sent.
    Silence,
    /// Nothing was sent.
    NotAsked,
}

impl Word {
    /// `refused`: messages that the broker was not asked about.
    pub(crate) fn of(outcomes: &[Option<Outcome>], refused: &BTreeSet<usize>) -> Self {
        let mut word = Self::NotAsked;
        for (slot, outcome) in outcomes.iter().enumerate() {
            match outcome {
                _ if refused.contains(&slot) => {}
                Some(outcome) if outcome.is_answer() => return Self::Heard,
                Some(Outcome::Blocked) => {}
                Some(_) | None => word = Self::Silence,
            }
        }
        word
    }
}

/// Opens on the first sign that the transport is away, or after several batchs of which nothing was heard; pure.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Breaker {
    state: State,
    silent_batchs: u32,
    failures: u32,
    first_delay: Duration,
    max_delay: Duration,
    since: Option<Duration>,
    /// Whether it is open because nothing was heard, and not because the transport said anything.
    by_silence: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Closed,
    /// Nothing is sent before this instant.
    Open(Duration),
    /// One batch is out to try; if nothing is heard of it by this instant, another may.
    Trying(Duration),
}

/// Whether a batch may be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Permission {
    /// It may.
    Granted,
    /// It may not; ask again at this instant.
    Later(Duration),
}

/// How many batchs in a row may end without a word before the transport counts as unavailable.
const SILENT_BATCHS: u32 = 3;

impl Breaker {
    pub(crate) fn new(first_delay: Duration, max_delay: Duration) -> Self {
        Self {
            state: State::Closed,
            silent_batchs: 0,
            failures: 0,
            first_delay,
            max_delay,
            since: None,
            by_silence: false,
        }
    }

    /// Whether a batch may be sent now.
    pub(crate) fn permission(&self, now: Duration) -> Permission {
        match self.state {
            State::Closed => Permission::Granted,
            State::Open(until) | State::Trying(until) if now >= until => Permission::Granted,
            State::Open(until) | State::Trying(until) => Permission::Later(until),
        }
    }

    /// Whether a batch of which nothing was heard before may be sent now. It is no try: silence is what is known of it, and others are asked whether there is
    /// more of that.
    pub(crate) fn permission_of_silent(&self, now: Duration) -> Permission {
        if self.by_silence { Permission::Granted } else { self.permission(now) }
    }

    /// A batch was sent of which nothing was heard before.
    pub(crate) fn began_silent(&mut self, now: Duration) {
        if !self.by_silence {
            self.began(now);
        }
    }

    /// Again nothing was heard of it. That is news of the transport only if that had said that it is away.
    pub(crate) fn silent_again(&mut self, now: Duration, draw: f64) {
        if matches!(self.state, State::Trying(_)) && !self.by_silence {
            self.silent(now, draw);
        }
    }

    /// A batch was sent.
    pub(crate) fn began(&mut self, now: Duration) {
        if self.state != State::Closed {
            self.state = State::Trying(now + self.max_delay);
        }
    }

    /// Something was delivered, or refused for reasons of its own: the transport is there. Says whether it was thought away.
    pub(crate) fn heard(&mut self) -> bool {
        let was_open = self.state != State::Closed;
        self.state = State::Closed;
        self.silent_batchs = 0;
        self.failures = 0;
        self.since = None;
        self.by_silence = false;
        was_open
    }

    /// The transport said that it is away. Says whether that is news.
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
        // Between half the bound and all of it: relays of one broker should not come back in step, nor at once.
        self.state = State::Open(now + bound.mul_f64(0.5 + draw.clamp(0.0, 1.0) / 2.0));
        self.since.get_or_insert(now);
        news
    }

    /// A batch ended and nothing was heard of any of its messages. Says whether the transport now counts as away, and that is news.
    pub(crate) fn silent(&mut self, now: Duration, draw: f64) -> bool {
        self.silent_batchs = self.silent_batchs.saturating_add(1);
        if matches!(self.state, State::Trying(_)) || self.silent_batchs >= SILENT_BATCHS {
            self.by_silence = true;
            return self.opens(now, draw);
        }
        false
    }

    /// A batch ended without having been sent: whoever is next may try in its place.
    pub(crate) fn not_asked(&mut self, now: Duration) {
        if let State::Trying(_) = self.state {
            self.state = State::Open(now);
        }
    }

    /// Whether the transport itself has said that it is away. Of silence nobody knows whose it is before others are asked.
    pub(crate) fn is_said_to_be_away(&self) -> bool {
        self.since.is_some() && !self.by_silence
    }

    /// Since when the transport has been away.
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
    fn batchs_without_a_word_open_it_after_a_few() {
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
    fn only_what_the_broker_said_is_heard() {
        let failure = || outbox_contract::Failure::new("test", "as the test has it");
        let rejected = || Some(Outcome::Rejected(failure()));
        let of = |outcomes: &[_], refused: &[usize]| Word::of(outcomes, &refused.iter().copied().collect());
        assert_eq!(of(&[rejected(), Some(Outcome::Blocked)], &[0]), Word::NotAsked);
        assert_eq!(of(&[rejected(), rejected()], &[0]), Word::Heard);
        assert_eq!(of(&[rejected(), None], &[0]), Word::Silence);
        assert_eq!(of(&[None, Some(Outcome::Delivered)], &[]), Word::Heard);
    }

    #[test]
    fn a_late_report_does_not_lengthen_the_wait() {
        let mut breaker = breaker();
        breaker.unavailable(S, 1.0);
        assert!(!breaker.unavailable(S + S / 2, 1.0));
        assert_eq!(breaker.permission(S * 2), Permission::Granted);
    }
}
