//! Retry policy: decides what follows a failure of a message, as a pure function.

mod rule;
#[cfg(test)]
mod tests;

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::failure::Failure;
use crate::name::Topic;

pub use rule::RetryRule;

/// Retry policy: number of attempts, delays between them, and the action on exhaustion; with rules
/// for single classes of failure and topics.
///
/// The delay is exponential with *full jitter*: a uniform draw between zero and the exponential
/// bound ("Exponential Backoff And Jitter", AWS Architecture Blog, 2015). Of the usual forms it
/// spreads a crowd of failing keys best. The policy holds no state and draws no randomness. The
/// store keeps the attempts with the key, so that the schedule is the same whichever relay owns the
/// key. The draw is an argument, so that a seed replays it.
///
/// ```
/// # extern crate outbox_contract as outbox;
/// use std::time::Duration;
/// use outbox::retry::{Decision, RetryRule, Tried};
/// use outbox::{Exhausted, RetryPolicy};
/// # use outbox::{Failure, Topic};
///
/// let too_large = RetryRule {
///     class: Some("message-too-large".into()),
///     topic: Some("metrics.*".into()),
///     exhausted: Some(Exhausted::Discard),
///     ..RetryRule::default()
/// };
/// let policy = RetryPolicy { max_attempts: 5, rules: vec![too_large], ..RetryPolicy::default() };
///
/// let orders: Topic = "orders".parse()?;
/// let timeout = Failure::new("timeout", "no answer");
/// // After the third failure the bound is 4 s (1 s, doubled twice); a draw of one half waits half of it.
/// let decision = policy.decide(&orders, &timeout, Tried::Times(3), 0.5);
/// assert_eq!(decision, Decision::Retry(Duration::from_secs(2)));
///
/// let metrics: Topic = "metrics.cpu".parse()?;
/// let failure = Failure::new("message-too-large", "2 MB");
/// assert_eq!(policy.decide(&metrics, &failure, Tried::Rejected, 0.5), Decision::Discard);
/// assert_eq!(policy.decide(&orders, &failure, Tried::Rejected, 0.5), Decision::DeadLetter);
/// # Ok::<(), outbox::NameError>(())
/// ```
///
/// End a literal with `..RetryPolicy::default()`, as above: a later version may add fields. In
/// configuration files, a policy has the same names, and may leave out what has its default:
/// `{"max_attempts": 5, "max_delay": "1m", "exhausted": "hold", "rules": [{"class": "timeout",
/// "max_attempts": "unlimited"}]}`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RetryPolicy {
    /// Maximum number of attempts in total, from 1, or [`UNLIMITED`](Self::UNLIMITED), which files
    /// write as `"unlimited"`. Default 12. With the other defaults the attempts end after about
    /// nine minutes, because delays are drawn at random, and after 18.5 minutes at most. Both
    /// exclude the duration of the attempts themselves.
    #[serde(with = "attempts")]
    pub max_attempts: u32,
    /// Bound of the first delay, at most 30 days. Default 1 s.
    #[serde(with = "crate::duration")]
    pub first_delay: Duration,
    /// Factor by which the bound grows with each attempt, from 1 to 100. Default 2.
    pub factor: f64,
    /// Bound to which delays grow, at most 30 days. Default 5 minutes.
    #[serde(with = "crate::duration")]
    pub max_delay: Duration,
    /// Action when the attempts are exhausted. Default: dead letter.
    pub exhausted: Exhausted,
    /// Exceptions for classes of failure and topics. The first rule that matches a failure applies
    /// to it, and what that rule leaves out is as above.
    pub rules: Vec<RetryRule>,
}

/// Maximum bound of a delay: far beyond any useful wait, and within the date range of every
/// database.
const MAX_DELAY: Duration = Duration::from_secs(30 * 86_400);
/// Maximum growth of delays: more is a typing error.
const MAX_FACTOR: f64 = 100.0;

/// Action for a message whose attempts are exhausted, or which was rejected permanently.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Exhausted {
    /// The message becomes a dead letter, and its key continues with the next one, which leaves a
    /// gap.
    #[default]
    DeadLetter,
    /// The message is deleted, and its key continues with the next one. It can't be requeued: the
    /// audit and the log name its id, and a metric counts it.
    Discard,
    /// The key waits, in order and without a gap, until an operator retries, skips or discards.
    Hold,
    /// The topic is paused on all relays, as by an operator, until an operator resumes it. The
    /// message keeps its attempts, and is tried again then: if it fails, the topic is paused again.
    PauseTopic,
}

impl Exhausted {
    /// Returns the name, as configuration has it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::DeadLetter => "dead_letter",
            Self::Discard => "discard",
            Self::Hold => "hold",
            Self::PauseTopic => "pause_topic",
        }
    }
}

/// Number of failures of a message, as the argument of a decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tried {
    /// It failed this many times, from 1, and a retry may succeed.
    Times(u32),
    /// It was rejected: no retry can succeed, so its attempts are exhausted.
    Rejected,
}

/// Decision of a policy on a failed message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    /// It is tried again after this delay.
    Retry(Duration),
    /// It becomes a dead letter.
    DeadLetter,
    /// It is deleted.
    Discard,
    /// Its key is held.
    Hold,
    /// Its topic is paused. It is tried again once the topic is resumed, and this delay is over.
    PauseTopic(Duration),
}

/// Settings in force for a class of failure in a topic.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Terms {
    max_attempts: u32,
    first_delay: Duration,
    factor: f64,
    max_delay: Duration,
    exhausted: Exhausted,
}

impl Default for RetryPolicy {
    fn default() -> Self {
        Self {
            max_attempts: 12,
            first_delay: Duration::from_secs(1),
            factor: 2.0,
            max_delay: Duration::from_secs(300),
            exhausted: Exhausted::default(),
            rules: Vec::new(),
        }
    }
}

impl RetryPolicy {
    /// Number of attempts that are never exhausted.
    pub const UNLIMITED: u32 = u32::MAX;

    /// Decides what follows a failure of a message of this topic, given a uniform draw from 0
    /// (included) to 1.
    #[must_use]
    pub fn decide(&self, topic: &Topic, failure: &Failure, tried: Tried, draw: f64) -> Decision {
        let terms = self.terms(topic, &failure.class);
        match tried {
            Tried::Times(attempts) if !terms.is_exhausted(attempts) => {
                Decision::Retry(terms.delay(attempts, draw))
            }
            Tried::Times(_) | Tried::Rejected => match terms.exhausted {
                Exhausted::DeadLetter => Decision::DeadLetter,
                Exhausted::Discard => Decision::Discard,
                Exhausted::Hold => Decision::Hold,
                // The shortest delay: whoever resumes the topic waits for its retry.
                Exhausted::PauseTopic => Decision::PauseTopic(terms.delay(1, draw)),
            },
        }
    }

    /// Returns the maximum number of attempts of messages of this topic that fail with this class.
    #[must_use]
    pub fn attempts_of(&self, topic: &Topic, class: &str) -> u32 {
        self.terms(topic, class).max_attempts
    }

    fn terms(&self, topic: &Topic, class: &str) -> Terms {
        let rule = self.rules.iter().find(|rule| rule.matches(topic, class));
        rule.map_or_else(|| self.own_terms(), |rule| self.terms_of(rule))
    }

    fn own_terms(&self) -> Terms {
        let Self { max_attempts, first_delay, factor, max_delay, exhausted, rules: _ } = *self;
        Terms { max_attempts, first_delay, factor, max_delay, exhausted }
    }

    fn terms_of(&self, rule: &RetryRule) -> Terms {
        Terms {
            max_attempts: rule.max_attempts.unwrap_or(self.max_attempts),
            first_delay: rule.first_delay.unwrap_or(self.first_delay),
            factor: rule.factor.unwrap_or(self.factor),
            max_delay: rule.max_delay.unwrap_or(self.max_delay),
            exhausted: rule.exhausted.unwrap_or(self.exhausted),
        }
    }

    /// Lists all faults of this policy; empty if it is valid.
    #[must_use]
    pub fn problems(&self) -> Vec<String> {
        let mut problems = self.own_terms().problems("retry.", self.max_attempts == 0);
        for (index, rule) in self.rules.iter().enumerate() {
            let place = format!("retry.rules[{index}] ({rule}): ");
            problems.extend(rule.problems().into_iter().map(|problem| format!("{place}{problem}")));
            if rule.has_delays() {
                problems.extend(self.terms_of(rule).problems(&place, false));
            }
            let covering = self.rules[..index].iter().position(|earlier| earlier.covers(rule));
            if let Some(earlier) = covering {
                problems.push(format!(
                    "{place}it never applies, because retry.rules[{earlier}] ({}) comes first and matches \
                     all that it matches; put it before that rule, or remove it",
                    self.rules[earlier]
                ));
            }
        }
        problems
    }
}

impl Terms {
    const fn is_exhausted(&self, attempts: u32) -> bool {
        self.max_attempts != RetryPolicy::UNLIMITED && attempts >= self.max_attempts
    }

    /// Returns the delay after the `attempts`-th failure.
    fn delay(&self, attempts: u32, draw: f64) -> Duration {
        // A growth beyond any number is infinite, and stays above the bound.
        let growth = self.factor.powi(i32::try_from(attempts.saturating_sub(1)).unwrap_or(i32::MAX));
        let max = self.max_delay.as_secs_f64();
        let bound = (self.first_delay.as_secs_f64() * growth).min(max);
        // A delay longer than any clock, which `problems` rejects, may overflow a duration.
        Duration::try_from_secs_f64(bound * draw.clamp(0.0, 1.0))
            .unwrap_or(self.max_delay)
            .min(self.max_delay)
    }

    /// Lists what is wrong with these settings, each named behind `place`.
    fn problems(&self, place: &str, is_never_tried: bool) -> Vec<String> {
        let mut problems = Vec::new();
        if is_never_tried {
            problems.push(format!("{place}max_attempts is 0; a message is tried at least once"));
        }
        if self.first_delay.is_zero() {
            problems
                .push(format!("{place}first_delay is 0; a failing message would be tried without a pause"));
        }
        if !(1.0..=MAX_FACTOR).contains(&self.factor) {
            problems.push(format!("{place}factor is {}; give it 1 to {MAX_FACTOR}", self.factor));
        }
        if self.max_delay < self.first_delay {
            problems.push(format!(
                "{place}max_delay ({:?}) is shorter than first_delay ({:?}); make it at least as long",
                self.max_delay, self.first_delay
            ));
        }
        for (name, delay) in [("first_delay", self.first_delay), ("max_delay", self.max_delay)] {
            if delay > MAX_DELAY {
                problems.push(format!("{place}{name} is {delay:?}; give it at most 30 days ({MAX_DELAY:?})"));
            }
        }
        problems
    }
}

/// A number of attempts, or `"unlimited"`.
mod attempts {
    use serde::de::{Deserializer, Error};
    use serde::{Deserialize, Serialize, Serializer};

    use super::RetryPolicy;

    const WORD: &str = "unlimited";

    #[derive(Serialize, Deserialize)]
    #[serde(untagged, expecting = "invalid number of attempts: give it a number, or \"unlimited\"")]
    enum Text {
        Number(u32),
        Word(String),
    }

    #[expect(clippy::trivially_copy_pass_by_ref, reason = "the signature that serde calls")]
    pub(super) fn serialize<S: Serializer>(attempts: &u32, serializer: S) -> Result<S::Ok, S::Error> {
        match *attempts {
            RetryPolicy::UNLIMITED => WORD.serialize(serializer),
            number => number.serialize(serializer),
        }
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u32, D::Error> {
        match Text::deserialize(deserializer)? {
            Text::Number(number) => Ok(number),
            Text::Word(word) if word == WORD => Ok(RetryPolicy::UNLIMITED),
            Text::Word(word) => Err(D::Error::custom(format!(
                "invalid number of attempts {word:?}: give it a number, or {WORD:?}"
            ))),
        }
    }

    /// The same where it may be missing.
    pub(super) mod option {
        use serde::{Deserialize, Deserializer, Serialize, Serializer};

        #[derive(Serialize, Deserialize)]
        struct Attempts(#[serde(with = "super")] u32);

        #[expect(clippy::ref_option, reason = "the signature that serde calls")]
        pub(in crate::retry) fn serialize<S: Serializer>(
            attempts: &Option<u32>,
            serializer: S,
        ) -> Result<S::Ok, S::Error> {
            attempts.map(Attempts).serialize(serializer)
        }

        pub(in crate::retry) fn deserialize<'de, D: Deserializer<'de>>(
            deserializer: D,
        ) -> Result<Option<u32>, D::Error> {
            Ok(Option::<Attempts>::deserialize(deserializer)?.map(|attempts| attempts.0))
        }
    }
}
