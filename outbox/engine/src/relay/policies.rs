//! Retry policies, by topic.

use std::collections::BTreeMap;

use outbox_contract::{RetryPolicy, Topic};

/// Retry policy of a route, and those of topics that have their own.
#[derive(Clone, Debug, Default)]
pub(crate) struct Policies {
    pub(crate) default: RetryPolicy,
    pub(crate) by_topic: BTreeMap<Topic, RetryPolicy>,
}

impl Policies {
    /// Returns the policy of a topic.
    pub(crate) fn of(&self, topic: &Topic) -> &RetryPolicy {
        self.by_topic.get(topic).unwrap_or(&self.default)
    }
}
