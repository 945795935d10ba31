//! Polling of conditions that programs do not report.

use std::time::{Duration, Instant};

/// Interval of polling.
const EVERY: Duration = Duration::from_millis(50);

/// Polls until the condition is true, or the time is over; returns the result.
pub(crate) fn until(within: Duration, done: impl Fn() -> bool) -> bool {
    let start = Instant::now();
    while !done() {
        if start.elapsed() > within {
            return false;
        }
        std::thread::sleep(EVERY);
    }
    true
}
