//! Messages that are not sent any more: dead letters, and the history.

use std::sync::Arc;

use crate::backend::Stored;
use crate::clock::Timestamp;
use crate::failure::Failure;
use crate::name::Route;

/// A message that exhausted its policy, or was skipped or discarded.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DeadLetter {
    /// The route.
    pub route: Route,
    /// The message in its last state.
    pub stored: Arc<Stored>,
    /// The reason: `exhausted`, `rejected`, `malformed`, `skipped`, `discarded`.
    pub reason: String,
    /// Number of attempts.
    pub attempts: u32,
    /// First failure.
    pub first_failure: Option<Failure>,
    /// Last failure.
    pub last_failure: Option<Failure>,
    /// Time at which it became a dead letter, by the database's clock.
    pub died_at: Timestamp,
}

impl DeadLetter {
    /// Creates a dead letter without a record of attempts.
    #[must_use]
    pub fn new(route: Route, stored: Arc<Stored>, reason: impl Into<String>, died_at: Timestamp) -> Self {
        let reason = reason.into();
        Self { route, stored, reason, attempts: 0, first_failure: None, last_failure: None, died_at }
    }
}

/// A delivered message, on stores that keep a history.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Past {
    /// The route.
    pub route: Route,
    /// The message, with its former position.
    pub message: Arc<Stored>,
    /// Time at which its delivery was settled, by the database's clock.
    pub delivered_at: Timestamp,
}

impl Past {
    /// Creates a delivered message.
    #[must_use]
    pub fn new(route: Route, message: Arc<Stored>, delivered_at: Timestamp) -> Self {
        Self { route, message, delivered_at }
    }
}
