//! The backlog: number of waiting messages and the age of the oldest.

use std::time::Duration;

/// Backlog of a store.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Backlog {
    /// Number of messages to publish in the hot table; parked ones are counted separately. Exact up
    /// to the store's counting limit (at least 10,000), a lower bound beyond it.
    pub pending: u64,
    /// True if `pending` is only a lower bound.
    pub pending_is_at_least: bool,
    /// Age of the oldest hot or parked message, or the time since a scheduled one became due, by
    /// the database's clock. `None`: no message waits.
    pub oldest_age: Option<Duration>,
    /// The same without the parked messages of failing and held keys: age of the oldest message that
    /// a relay may publish.
    pub oldest_pending_age: Option<Duration>,
    /// Number of parked messages of failing keys, the failing ones included. This figure and the
    /// following ones stop at the counting limit: see [`is_at_least`](Self::is_at_least).
    pub parked: u64,
    /// Number of failing keys that the relay will retry.
    pub retrying_keys: u64,
    /// Number of keys that wait for an operator.
    pub held_keys: u64,
    /// Number of dead letters.
    pub dead: u64,
    /// Number of scheduled messages that are not due yet, or are due and not moved yet.
    pub scheduled: u64,
    /// Number of buckets that have waiting messages and no live owner.
    pub unowned_buckets: u64,
    /// Number of rows of each kind that the store counts. `None`: it counts all.
    pub counting_limit: Option<u64>,
}

impl Backlog {
    /// Returns true if a figure of this backlog has reached the counting limit: it is a lower
    /// bound. For [`pending`](Self::pending) see
    /// [`pending_is_at_least`](Self::pending_is_at_least).
    #[must_use]
    pub fn is_at_least(&self, figure: u64) -> bool {
        self.counting_limit.is_some_and(|limit| figure >= limit)
    }
}
