//! When a failed message is tried again, as a pure function.

use std::borrow::Cow;
use std::time::Duration;

/// How often a failing message is tried, how long to wait in between, and what happens when it is exhausted.
///
/// The wait is exponential with *full jitter* (a uniform draw between nothing and the exponential bound; "Exponential
/// Backoff And Jitter", AWS Architecture Blog, 2015): of all the usual forms it spreads a crowd of failing keys best.
/// The policy holds no state and draws no randomness of its own: the attempts are stored with the key, so that the
/// schedule is the same whichever relay owns it, and the draw is an argument, so that a seed replays it.
///
/// ```
/// use std::time::Duration;
/// use outbox_contract::{Exhausted, RetryPolicy};
///
/// let policy = RetryPolicy { most_attempts: 5, exhausted: Exhausted::Hold, ..RetryPolicy::default() };
/// // After the third failure the bound is 4 s (1 s, doubled twice); a draw of one half waits half of it.
/// assert_eq!(policy.delay(3, 0.5), Duration::from_secs(2));
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct RetryPolicy {
    /// How many times a message is tried in all, from 1. Default 12. With the other defaults that is over after about nine minutes, for the waits are
    /// drawn, and after 18.5 minutes at most, what the attempts themselves take apart.
    pub most_attempts: u32,
    /// The bound of the first wait, at most 30 days. Default 1 s.
    pub first_delay: Duration,
    /// The bound that waits grow to, at most 30 days. Default 5 minutes.
    pub most_delay: Duration,
    /// What happens to a message whose attempts are used up. Default: dead letter.
    pub exhausted: Exhausted,
    /// Classes of failure that are tried fewer or more times than `most_attempts`.
    pub by_class: Vec<(Cow<'static, str>, u32)>,
}

/// The longest that a bound may be: far beyond what anybody waits for, and within the dates of every database.
const MOST_DELAY: Duration = Duration::from_secs(30 * 86_400);

/// What happens to a message whose attempts are used up, or which the broker rejected for good.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Exhausted {
    /// The message becomes a dead letter, and its key goes on with the next one: there is a gap.
    #[default]
    DeadLetter,
    /// The key waits, in order and without a gap, until an operator retries, skips or discards.
    Hold,
}

impl Default for RetryPolicy {
    fn default() -> Self {
        Self {
            most_attempts: 12,
            first_delay: Duration::from_secs(1),
            most_delay: Duration::from_secs(300),
            exhausted: Exhausted::default(),
            by_class: Vec::new(),
        }
    }
}

impl RetryPolicy {
    /// Whether a message that has failed `attempts` times, the last time with this class, is to be tried no more.
    #[must_use]
    pub fn is_exhausted(&self, attempts: u32, class: &str) -> bool {
        let by_class = self.by_class.iter().find(|(name, _)| name == class);
        attempts >= by_class.map_or(self.most_attempts, |(_, most)| *most)
    }

    /// How long to wait after the `attempts`-th failure (from 1), given a uniform draw from 0 (included) to 1.
    #[must_use]
    pub fn delay(&self, attempts: u32, draw: f64) -> Duration {
        let doublings = attempts.saturating_sub(1).min(31);
        let bound = self.first_delay.saturating_mul(1 << doublings).min(self.most_delay);
        // Of a bound that is longer than any clock, which `problems` refuses, the product may not be a duration.
        Duration::try_from_secs_f64(bound.as_secs_f64() * draw.clamp(0.0, 1.0)).unwrap_or(bound)
    }

    /// Everything that is wrong with this policy; empty when nothing is.
    #[must_use]
    pub fn problems(&self) -> Vec<String> {
        let mut problems = Vec::new();
        if self.most_attempts == 0 {
            problems.push("retry.most_attempts is 0; a message is tried at least once".to_owned());
        }
        if self.first_delay.is_zero() {
            problems
                .push("retry.first_delay is 0; a failing message would be tried without a pause".to_owned());
        }
        if self.most_delay < self.first_delay {
            problems.push(format!(
                "retry.most_delay ({:?}) is shorter than retry.first_delay ({:?}); make it at least as long",
                self.most_delay, self.first_delay
            ));
        }
        for (name, delay) in [("first_delay", self.first_delay), ("most_delay", self.most_delay)] {
            if delay > MOST_DELAY {
                problems.push(format!("retry.{name} is {delay:?}; give it at most 30 days ({MOST_DELAY:?})"));
            }
        }
        if let Some((class, _)) = self.by_class.iter().find(|(_, most)| *most == 0) {
            problems
                .push(format!("retry.by_class gives {class:?} 0 attempts; a message is tried at least once"));
        }
        problems
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn no_wait_exceeds_its_bound(attempts in 0..u32::MAX, draw in 0.0..1.0_f64) {
            let policy = RetryPolicy::default();
            let wait = policy.delay(attempts, draw);
            prop_assert!(wait <= policy.most_delay);
            prop_assert!(wait <= policy.delay(attempts, 1.0));
            prop_assert!(policy.delay(attempts, 1.0) <= policy.delay(attempts.saturating_add(1), 1.0));
        }
    }

    #[test]
    fn waits_of_any_length_are_refused_in_words_and_overflow_nothing() {
        let policy = RetryPolicy { most_delay: Duration::MAX, ..RetryPolicy::default() };
        let problems = policy.problems();
        assert!(problems.len() == 1 && problems[0].starts_with("retry.most_delay"), "{problems:?}");
        let policy = RetryPolicy { first_delay: Duration::MAX, ..policy };
        assert_eq!(policy.problems().len(), 2);
        for draw in [0.0, 0.5, 1.0, 2.0, f64::NAN, f64::INFINITY] {
            assert!(policy.delay(u32::MAX, draw) <= Duration::MAX);
        }
        let most = RetryPolicy { first_delay: MOST_DELAY, most_delay: MOST_DELAY, ..policy };
        assert_eq!((most.problems().len(), most.delay(9, 1.0)), (0, MOST_DELAY));
    }

    /// What the documentation says of the defaults.
    #[test]
    fn the_defaults_give_up_after_nine_minutes_or_nineteen_at_most() {
        let policy = RetryPolicy::default();
        let over = |draw| (1..policy.most_attempts).map(|attempts| policy.delay(attempts, draw)).sum();
        let (average, longest): (Duration, Duration) = (over(0.5), over(1.0));
        assert_eq!((average.as_secs() / 60, longest.as_secs()), (9, 1_111));
    }

    #[test]
    fn a_class_can_have_its_own_number_of_attempts() {
        let policy = RetryPolicy { by_class: vec![("schema".into(), 1)], ..RetryPolicy::default() };
        assert!(policy.is_exhausted(1, "schema"));
        assert!(!policy.is_exhausted(1, "timeout") && policy.is_exhausted(12, "timeout"));
    }

    #[test]
    fn every_problem_is_reported_at_once() {
        let policy = RetryPolicy {
            most_attempts: 0,
            first_delay: Duration::from_secs(9),
            most_delay: Duration::from_secs(1),
            by_class: vec![("timeout".into(), 0)],
            ..RetryPolicy::default()
        };
        assert_eq!(policy.problems().len(), 3);
        assert!(RetryPolicy::default().problems().is_empty());
    }
}
