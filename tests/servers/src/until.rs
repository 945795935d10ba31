//! Waiting for programs that say nothing when something is so.

use std::time::{Duration, Instant};

/// How often is asked.
const EVERY: Duration = Duration::from_millis(50);

/// Asks until it is so, or the time is over; says whether it is.
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
