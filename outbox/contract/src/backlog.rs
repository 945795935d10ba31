//! The backlog: what waits, and for how long.

use std::time::Duration;

/// What waits in a store.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Backlog {
    /// Messages to be published that are in the hot table; parked ones are counted apart. Exact up to the store's counting limit (at least 10,000), beyond it a lower bound.
    pub pending: u64,
    /// Whether `pending` is only a lower bound.
    pub pending_is_at_least: bool,
    /// How long the oldest message that waits to be published, hot or parked, has been there, or a scheduled one has been due, by the database's
    /// clock. None: none waits.
    pub oldest_age: Option<Duration>,
    /// Messages of failing keys that are set aside, the failing ones included.
    pub parked: u64,
    /// Keys that are failing and will be tried again.
    pub retrying_keys: u64,
    /// Keys that wait for an operator.
    pub held_keys: u64,
    /// Dead letters.
    pub dead: u64,
    /// Scheduled messages that are not due yet, or due and not yet moved.
    pub scheduled: u64,
    /// Buckets that have messages waiting and no live owner.
    pub unowned_buckets: u64,
}
