//! A key that does not flow.

use crate::clock::Timestamp;
use crate::failure::Failure;
use crate::id::MessageId;
use crate::name::{KeyId, Route};

/// A failing or held key, as operators see it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct FailingKey {
    /// The route.
    pub route: Route,
    /// The key.
    pub key: KeyId,
    /// True if the key waits for an operator; false if the relay retries it automatically.
    pub held: bool,
    /// Time of the next attempt, unless the key is held.
    pub next_attempt_at: Option<Timestamp>,
    /// Number of attempts for its first message.
    pub attempts: u32,
    /// First failure of that message.
    pub first_failure: Option<Failure>,
    /// Last failure of that message.
    pub last_failure: Option<Failure>,
    /// Number of its parked messages.
    pub parked: u64,
    /// Its first parked message.
    pub first: Option<MessageId>,
    /// Time since which the key has been failing or held.
    pub since: Timestamp,
}

impl FailingKey {
    /// Creates a failing key of which only the name and the start of the failure are known.
    #[must_use]
    pub fn new(route: Route, key: KeyId, since: Timestamp) -> Self {
        Self {
            route,
            key,
            held: false,
            next_attempt_at: None,
            attempts: 0,
            first_failure: None,
            last_failure: None,
            parked: 0,
            first: None,
            since,
        }
    }
}
