//! The clock of the database: the wall clock at its start, carried on by tokio's time.
//!
//! Leases and retries live on it. Under paused time it stands still with the rest of the program
//! and jumps with it, so that a simulation sees a lease run out after exactly as long as it lasts.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use outbox_contract::Timestamp;
use outbox_contract::backend::Clock;
use tokio::time::Instant;

/// A clock that starts at an instant and follows tokio's time from there. Never goes back.
#[derive(Debug)]
pub(crate) struct RuntimeClock {
    start: Timestamp,
    /// The last reading. Time is summed up from reading to reading, not counted from the first one:
    /// a store may outlive its runtime (a crash in a simulation), and the next runtime's paused
    /// time begins before the instants of the last one.
    reading: Mutex<Reading>,
}

#[derive(Debug)]
struct Reading {
    at: Instant,
    elapsed: Duration,
}

impl RuntimeClock {
    pub(crate) fn starting_at(start: Timestamp) -> Self {
        Self { start, reading: Mutex::new(Reading { at: Instant::now(), elapsed: Duration::ZERO }) }
    }
}

impl Clock for RuntimeClock {
    fn elapsed(&self) -> Duration {
        let mut reading = self.reading.lock().unwrap_or_else(PoisonError::into_inner);
        let at = Instant::now();
        let elapsed = reading.elapsed + at.saturating_duration_since(reading.at);
        *reading = Reading { at, elapsed };
        elapsed
    }

    fn now(&self) -> Timestamp {
        self.start.plus(self.elapsed())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn paused() -> tokio::runtime::Runtime {
        tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap()
    }

    #[test]
    fn time_goes_on_in_the_next_runtime_without_going_back() {
        let clock = RuntimeClock::starting_at(Timestamp::from_micros(5));
        paused().block_on(async {
            clock.now();
            tokio::time::sleep(Duration::from_secs(3600)).await;
        });
        let before = paused().block_on(async {
            let before = clock.now();
            tokio::time::sleep(Duration::from_secs(60)).await;
            assert_eq!(clock.now(), before.plus(Duration::from_secs(60)));
            before
        });
        assert!(clock.now() >= before.plus(Duration::from_secs(60)));
    }
}
