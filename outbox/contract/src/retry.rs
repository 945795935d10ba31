//! Retry schedule of a failed message, as a pure function.

use std::borrow::Cow;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Retry policy: number of attempts, delays between them, and the action on exhaustion.
///
/// The delay is exponential with *full jitter*: a uniform draw between zero and the exponential
/// bound ("Exponential Backoff And Jitter", AWS Architecture Blog, 2015). Of the usual forms it
/// spreads a crowd of failing keys best. The policy holds no state and draws no randomness. The
/// store keeps the attempts with the key, so that the schedule is the same whichever relay owns the
/// key. The draw is an argument, so that a seed replays it.
///
/// ```
/// use std::time::Duration;
/// # extern crate outbox_contract as outbox;
/// use outbox::{Exhausted, RetryPolicy};
///
/// let policy = RetryPolicy { max_attempts: 5, exhausted: Exhausted::Hold, ..RetryPolicy::default() };
/// // After the third failure the bound is 4 s (1 s, doubled twice); a draw of one half waits half of it.
/// assert_eq!(policy.delay(3, 0.5), Duration::from_secs(2));
/// ```
///
/// In configuration files, a policy has the same names, and may leave out what has its default:
/// `{"max_attempts": 5, "max_delay": "1m", "exhausted": "hold", "by_class": {"timeout": 1}}`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RetryPolicy {
    /// Maximum number of attempts in total, from 1. Default 12. With the other defaults the
    /// attempts end after about nine minutes, because delays are drawn at random, and after 18.5
    /// minutes at most. Both exclude the duration of the attempts themselves.
    pub max_attempts: u32,
    /// Bound of the first delay, at most 30 days. Default 1 s.
    #[serde(with = "crate::duration")]
    pub first_delay: Duration,
    /// Bound to which delays grow, at most 30 days. Default 5 minutes.
    #[serde(with = "crate::duration")]
    pub max_delay: Duration,
    /// Action when the attempts are exhausted. Default: dead letter.
    pub exhausted: Exhausted,
    /// Failure classes with fewer or more attempts than `max_attempts`.
    #[serde(with = "by_class")]
    pub by_class: Vec<(Cow<'static, str>, u32)>,
}

/// Maximum bound of a delay: far beyond any useful wait, and within the date range of every
/// database.
const MAX_DELAY: Duration = Duration::from_secs(30 * 86_400);

/// Action for a message whose attempts are exhausted, or which the broker rejected permanently.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Exhausted {
    /// The message becomes a dead letter, and its key continues with the next one, which leaves a
    /// gap.
    #[default]
    DeadLetter,
    /// The key waits, in order and without a gap, until an operator retries, skips or discards.
    Hold,
}

/// Attempts by class, as a table in configuration.
mod by_class {
    use std::borrow::Cow;
    use std::collections::BTreeMap;

    use serde::{Deserialize, Deserializer, Serializer};

    type Classes = Vec<(Cow<'static, str>, u32)>;

    pub(super) fn serialize<S: Serializer>(classes: &Classes, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(classes.iter().map(|(class, attempts)| (class, attempts)))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Classes, D::Error> {
        let classes = BTreeMap::<String, u32>::deserialize(deserializer)?;
        Ok(classes.into_iter().map(|(class, attempts)| (class.into(), attempts)).collect())
    }
}

impl Default for RetryPolicy {
    fn default() -> Self {
        Self {
            max_attempts: 12,
            first_delay: Duration::from_secs(1),
            max_delay: Duration::from_secs(300),
            exhausted: Exhausted::default(),
            by_class: Vec::new(),
        }
    }
}

impl RetryPolicy {
    /// Returns true if the attempts are exhausted after `attempts` failures, the last of this
    /// class.
    #[must_use]
    pub fn is_exhausted(&self, attempts: u32, class: &str) -> bool {
        let by_class = self.by_class.iter().find(|(name, _)| name == class);
        attempts >= by_class.map_or(self.max_attempts, |(_, most)| *most)
    }

    /// Returns the delay after the `attempts`-th failure (from 1), given a uniform draw from 0
    /// (included) to 1.
    #[must_use]
    pub fn delay(&self, attempts: u32, draw: f64) -> Duration {
        let doublings = attempts.saturating_sub(1).min(31);
        let bound = self.first_delay.saturating_mul(1 << doublings).min(self.max_delay);
        // A bound longer than any clock, which `problems` rejects, may overflow a duration in this
        // product.
        Duration::try_from_secs_f64(bound.as_secs_f64() * draw.clamp(0.0, 1.0)).unwrap_or(bound)
    }

    /// Lists all faults of this policy; empty if it is valid.
    #[must_use]
    pub fn problems(&self) -> Vec<String> {
        let mut problems = Vec::new();
        if self.max_attempts == 0 {
            problems.push("retry.max_attempts is 0; a message is tried at least once".to_owned());
        }
        if self.first_delay.is_zero() {
            problems
                .push("retry.first_delay is 0; a failing message would be tried without a pause".to_owned());
        }
        if self.max_delay < self.first_delay {
            problems.push(format!(
                "retry.max_delay ({:?}) is shorter than retry.first_delay ({:?}); make it at least as long",
                self.max_delay, self.first_delay
            ));
        }
        for (name, delay) in [("first_delay", self.first_delay), ("max_delay", self.max_delay)] {
            if delay > MAX_DELAY {
                problems.push(format!("retry.{name} is {delay:?}; give it at most 30 days ({MAX_DELAY:?})"));
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
            prop_assert!(wait <= policy.max_delay);
            prop_assert!(wait <= policy.delay(attempts, 1.0));
            prop_assert!(policy.delay(attempts, 1.0) <= policy.delay(attempts.saturating_add(1), 1.0));
        }
    }

    #[test]
    fn waits_of_any_length_are_refused_in_words_and_overflow_nothing() {
        let policy = RetryPolicy { max_delay: Duration::MAX, ..RetryPolicy::default() };
        let problems = policy.problems();
        assert!(problems.len() == 1 && problems[0].starts_with("retry.max_delay"), "{problems:?}");
        let policy = RetryPolicy { first_delay: Duration::MAX, ..policy };
        assert_eq!(policy.problems().len(), 2);
        for draw in [0.0, 0.5, 1.0, 2.0, f64::NAN, f64::INFINITY] {
            assert!(policy.delay(u32::MAX, draw) <= Duration::MAX);
        }
        let most = RetryPolicy { first_delay: MAX_DELAY, max_delay: MAX_DELAY, ..policy };
        assert_eq!((most.problems().len(), most.delay(9, 1.0)), (0, MAX_DELAY));
    }

    /// The values that the documentation states for the defaults.
    #[test]
    fn the_defaults_give_up_after_nine_minutes_or_nineteen_at_most() {
        let policy = RetryPolicy::default();
        let over = |draw| (1..policy.max_attempts).map(|attempts| policy.delay(attempts, draw)).sum();
        let (average, longest): (Duration, Duration) = (over(0.5), over(1.0));
        assert_eq!((average.as_secs() / 60, longest.as_secs()), (9, 1_111));
    }

    #[test]
    fn a_class_can_have_its_own_number_of_attempts() {
        let policy = RetryPolicy { by_class: vec![("declined".into(), 1)], ..RetryPolicy::default() };
        assert!(policy.is_exhausted(1, "declined"));
        assert!(!policy.is_exhausted(1, "timeout") && policy.is_exhausted(12, "timeout"));
    }

    #[test]
    fn a_policy_in_a_file_has_the_same_names_and_what_it_leaves_out_has_its_default() {
        let text = r#"{"max_attempts":5,"max_delay":"1m","exhausted":"hold","by_class":{"timeout":1}}"#;
        let policy: RetryPolicy = serde_json::from_str(text).unwrap();
        let expected = RetryPolicy {
            max_attempts: 5,
            max_delay: Duration::from_secs(60),
            exhausted: Exhausted::Hold,
            by_class: vec![("timeout".into(), 1)],
            ..RetryPolicy::default()
        };
        assert_eq!(policy, expected);
        let again = serde_json::to_string(&policy).unwrap();
        assert_eq!(serde_json::from_str::<RetryPolicy>(&again).unwrap(), policy, "{again}");
        let error = serde_json::from_str::<RetryPolicy>(r#"{"attempts": 5}"#).unwrap_err().to_string();
        assert!(error.contains("`attempts`") && error.contains("`max_attempts`"), "{error}");
    }

    #[test]
    fn every_problem_is_reported_at_once() {
        let policy = RetryPolicy {
            max_attempts: 0,
            first_delay: Duration::from_secs(9),
            max_delay: Duration::from_secs(1),
            by_class: vec![("timeout".into(), 0)],
            ..RetryPolicy::default()
        };
        assert_eq!(policy.problems().len(), 3);
        assert!(RetryPolicy::default().problems().is_empty());
    }
}
