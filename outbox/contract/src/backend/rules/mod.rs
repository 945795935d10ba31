//! Rules that every store follows, as pure functions: a store loads, asks the rule, and stores the
//! result, in one transaction.
//!
//! A store whose database has functions may repeat a rule there, to save round trips. The
//! conformance suite compares its answers with the rule's.

pub mod failing_key;
pub mod leases;
pub mod options;
pub mod retention;
pub mod sessions;

use std::time::Duration;

use crate::clock::Timestamp;

/// Returns a duration in microseconds, the unit of every store's tables: at most an eighth of their
/// range, so that several durations can be added to an instant.
#[must_use]
pub fn micros(span: Duration) -> i64 {
    i64::try_from(span.as_micros()).unwrap_or(i64::MAX).min(i64::MAX / 8)
}

/// Returns the instant this long after another one.
pub(crate) fn later(now: Timestamp, span: Duration) -> Timestamp {
    Timestamp::from_micros(now.as_micros().saturating_add(micros(span)))
}
