//! Parts of what a relay owns that are read apart from the rest.

use outbox_contract::fetch::Scope;
use outbox_contract::{KeyId, Topic};

/// A part of the buckets and keys that this relay owns.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Part {
    /// One key.
    Key(KeyId),
    /// One topic.
    Topic(Topic),
    /// Buckets that were taken over, by the number of the gap; their set is in the gap.
    Buckets(u64),
    /// Failing keys whose rows there was no room for, all of them together: which they are is said beside the gaps.
    Failing,
}

impl Part {
    pub(super) fn scope(&self) -> Option<Scope> {
        match self {
            Self::Key(key) => Some(Scope::Key(key.clone())),
            Self::Topic(topic) => Some(Scope::Topic(topic.clone())),
            Self::Buckets(_) | Self::Failing => None,
        }
    }
}
