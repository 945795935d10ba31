//! Number of stored messages that go into one transaction: as many as are handled in time. Pure,
//! but for being shared.
//!
//! The drain of stored messages has a time for each batch, and what is not done by then is broken
//! off. Handlers may be too slow for a whole batch, which is not known before. So a batch that
//! takes too long is given up between two calls, and from then on as many are taken as were done.
//! With a timeout for whole batches, leases would have to last as long as the slowest batch.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

/// The most messages of a transaction, as it turned out.
#[derive(Debug)]
pub(crate) struct BatchSize {
    /// The longest time that one call may take, and what a transaction has until its last call
    /// begins.
    time: Duration,
    // A number that several read and write as they go: which of them comes last does not matter.
    most: AtomicUsize,
}

impl BatchSize {
    pub(crate) fn new(time: Duration) -> Self {
        Self { time, most: AtomicUsize::new(usize::MAX) }
    }

    /// The longest that one call may take.
    pub(crate) fn call(&self) -> Duration {
        self.time
    }

    /// The longest that all calls of one transaction may take.
    pub(crate) fn calls(&self) -> Duration {
        self.time * 2
    }

    /// Maximum number of messages of one transaction.
    pub(crate) fn most(&self) -> usize {
        self.most.load(Ordering::Relaxed)
    }

    /// Returns true if a transaction that has taken this long is to be given up before its next
    /// call.
    pub(crate) fn is_too_slow(&self, took: Duration) -> bool {
        took >= self.time
    }

    /// A transaction was given up after so many calls.
    pub(crate) fn gave_up(&self, calls: usize) {
        self.most.store(calls.max(1), Ordering::Relaxed);
    }

    /// A transaction of so many messages was done in this time.
    pub(crate) fn done(&self, messages: usize, took: Duration) {
        let most = self.most();
        if messages >= most && took < self.time / 2 {
            self.most.store(most.saturating_mul(2), Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_many_are_taken_as_are_handled_in_time() {
        let time = Duration::from_secs(10);
        let size = BatchSize::new(time);
        assert_eq!(size.most(), usize::MAX);
        assert!(!size.is_too_slow(time / 2) && size.is_too_slow(time));
        size.gave_up(4);
        size.done(4, time);
        assert_eq!(size.most(), 4);
        // Faster ones may be more, but only those that were tried.
        size.done(3, time / 10);
        assert_eq!(size.most(), 4);
        size.done(4, time / 10);
        assert_eq!(size.most(), 8);
        size.gave_up(0);
        assert_eq!(size.most(), 1);
        (0..200).for_each(|_| size.done(size.most(), Duration::ZERO));
        assert_eq!(size.most(), usize::MAX);
    }
}
