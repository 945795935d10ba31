//! Count of producers that were given up, and the warning while it grows.
//!
//! One batch that is not confirmed whole takes its producer along, as a broker that restarts does
//! to several at once. Only what lasts tells of a topic or a broker with a problem.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Time for which producers have to be given up before there is a warning, and between two of them.
const LASTS: Duration = Duration::from_secs(60);

/// Producers that the pools of a transport have given up.
#[derive(Debug, Default)]
pub(crate) struct Retired(Mutex<Count>);

impl Retired {
    fn count(&self) -> MutexGuard<'_, Count> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts one more.
    pub(crate) fn one(&self) {
        let lately = self.count().one(Instant::now());
        if let Some(producers) = lately {
            tracing::warn!(
                producers,
                "producers are given up and replaced for more than a minute, one for each batch that was not confirmed \
                 whole: a topic or a broker has a problem"
            );
        }
    }

    /// Returns the number since the transport was built.
    pub(crate) fn all(&self) -> u64 {
        self.count().all
    }
}

#[derive(Debug, Default)]
struct Count {
    all: u64,
    /// Number that the next warning tells, and when that began to grow.
    lately: Option<(Instant, u64)>,
    last: Option<Instant>,
}

impl Count {
    /// Counts one more. Returns the number to warn of, if it is time to.
    fn one(&mut self, now: Instant) -> Option<u64> {
        self.all += 1;
        let lasts = self.last.replace(now).is_some_and(|last| now.duration_since(last) <= LASTS);
        let (since, number) = self.lately.filter(|_| lasts).unwrap_or((now, 0));
        let is_due = now.duration_since(since) >= LASTS;
        self.lately = Some(if is_due { (now, 0) } else { (since, number + 1) });
        is_due.then_some(number + 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Warnings of a transport that gives a producer up at each of these seconds.
    fn warnings(seconds: impl IntoIterator<Item = u64>) -> Vec<(u64, u64)> {
        let (start, mut count) = (Instant::now(), Count::default());
        let mut at = |second| Some((second, count.one(start + Duration::from_secs(second))?));
        seconds.into_iter().filter_map(&mut at).collect()
    }

    #[test]
    fn producers_that_are_given_up_for_minutes_are_told_once_a_minute() {
        assert_eq!(warnings((0..=180).step_by(20)), [(60, 4), (120, 3), (180, 3)]);
    }

    #[test]
    fn a_broker_that_restarts_now_and_then_is_no_warning() {
        assert!(warnings([0; 100]).is_empty());
        assert!(warnings([0, 0, 1, 2, 600, 600, 601, 1_200]).is_empty());
    }
}
