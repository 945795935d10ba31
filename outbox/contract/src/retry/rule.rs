//! Rules of a retry policy: exceptions for classes of failure and topics.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{Exhausted, attempts};
use crate::failure::Failure;
use crate::name::Topic;

/// Exception of a [`RetryPolicy`](super::RetryPolicy) for a class of failure, a topic, or both.
///
/// Both selectors are exact names, or prefixes that end in `*`: `timeout`, `orders.*`. A rule
/// without a selector matches everything. What a rule leaves out is as in the policy; a rule that
/// leaves out everything exempts what it matches from the rules behind it.
///
/// End a literal with `..RetryRule::default()`: a later version may add fields.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RetryRule {
    /// Class of failure ([`Failure::class`]) that it applies to. `None`: any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub class: Option<String>,
    /// Topic that it applies to. `None`: any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub topic: Option<String>,
    /// Maximum number of attempts. With 0 or 1, the first failure exhausts them. Does not change
    /// that a rejected message has no further attempt.
    #[serde(with = "attempts::option", skip_serializing_if = "Option::is_none")]
    pub max_attempts: Option<u32>,
    /// Bound of the first delay.
    #[serde(with = "crate::duration::option", skip_serializing_if = "Option::is_none")]
    pub first_delay: Option<Duration>,
    /// Factor by which the bound grows with each attempt.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub factor: Option<f64>,
    /// Bound to which delays grow.
    #[serde(with = "crate::duration::option", skip_serializing_if = "Option::is_none")]
    pub max_delay: Option<Duration>,
    /// Action when the attempts are exhausted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exhausted: Option<Exhausted>,
}

impl RetryRule {
    pub(super) fn matches(&self, topic: &Topic, class: &str) -> bool {
        matches(self.class.as_deref(), class) && matches(self.topic.as_deref(), topic.as_str())
    }

    /// Returns true if this rule matches all that the other one matches.
    pub(super) fn covers(&self, other: &Self) -> bool {
        covers(self.class.as_deref(), other.class.as_deref())
            && covers(self.topic.as_deref(), other.topic.as_deref())
    }

    /// Returns true if it has delays of its own.
    pub(super) const fn has_delays(&self) -> bool {
        self.first_delay.is_some() || self.factor.is_some() || self.max_delay.is_some()
    }

    /// Lists what is wrong with its selectors.
    pub(super) fn problems(&self) -> Vec<String> {
        let mut problems = Vec::new();
        if let Some(class) = self.class.as_deref() {
            let name = class.strip_suffix('*').unwrap_or(class);
            if class.is_empty() || name.contains('*') || name.len() > Failure::MAX_CLASS_BYTES {
                problems.push(format!(
                    "class {class:?} matches nothing; give it a class of at most {} bytes, or the beginning \
                     of one with a * at its end",
                    Failure::MAX_CLASS_BYTES
                ));
            }
        }
        if let Some(topic) = self.topic.as_deref() {
            let name = topic.strip_suffix('*').unwrap_or(topic);
            let is_name = name.is_empty() || Topic::new(name).is_ok();
            if topic.is_empty() || name.contains('*') || !is_name {
                problems.push(format!(
                    "topic {topic:?} matches nothing; give it the name of a topic, or the beginning of one \
                     with a * at its end"
                ));
            }
        }
        problems
    }
}

/// The selectors, as messages name a rule.
impl fmt::Display for RetryRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.class, &self.topic) {
            (Some(class), Some(topic)) => write!(f, "class {class}, topic {topic}"),
            (Some(class), None) => write!(f, "class {class}"),
            (None, Some(topic)) => write!(f, "topic {topic}"),
            (None, None) => f.write_str("everything"),
        }
    }
}

fn matches(selector: Option<&str>, name: &str) -> bool {
    selector.is_none_or(|selector| match selector.strip_suffix('*') {
        Some(prefix) => name.starts_with(prefix),
        None => name == selector,
    })
}

/// Returns true if the first selector matches all names that the second one matches.
fn covers(selector: Option<&str>, other: Option<&str>) -> bool {
    let Some(selector) = selector else { return true };
    match (selector.strip_suffix('*'), other) {
        // A prefix of a prefix matches more; `*` is no letter of a name.
        (Some(prefix), other) => other.unwrap_or_default().trim_end_matches('*').starts_with(prefix),
        (None, other) => other == Some(selector),
    }
}
