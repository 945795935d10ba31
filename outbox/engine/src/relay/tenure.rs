//! The tenure: until when this relay may publish, and what; shared with every publisher.

use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

use outbox_contract::backend::{BUCKETS, Bucket, Epoch, Lease};

/// An instant on the relay's own clock that lies well before the leases run out. The lease keeper moves it on, publishers look at it before
/// each batch: a relay that slept, or could not renew, stops by itself (promise P7).
///
/// A relay that slept may have lost some of its buckets and renewed the others. So publishers look here too under which epoch a bucket is owned:
/// the poller, which drops what was lost, may still be waiting for a fetch of before.
#[derive(Debug)]
pub(crate) struct Tenure {
    until_micros: AtomicU64,
    renewed_micros: AtomicU64,
    /// Whether there ever was one.
    begun: AtomicBool,
    // By bucket; 0, which no lease has, for what is not owned.
    epochs: [AtomicI64; BUCKETS],
}

impl Default for Tenure {
    fn default() -> Self {
        Self {
            until_micros: AtomicU64::default(),
            renewed_micros: AtomicU64::default(),
            begun: AtomicBool::default(),
            epochs: [const { AtomicI64::new(0) }; BUCKETS],
        }
    }
}

impl Tenure {
    /// These leases are what this relay owns, and no others.
    pub(crate) fn own(&self, leases: &[Lease]) {
        let mut epochs = [0; BUCKETS];
        for lease in leases {
            epochs[usize::from(lease.bucket.0)] = lease.epoch.0;
        }
        for (owned, epoch) in self.epochs.iter().zip(epochs) {
            owned.store(epoch, Ordering::Release);
        }
    }

    /// Whether this relay owns a bucket under this epoch, as far as the database has told.
    pub(crate) fn owns(&self, bucket: Bucket, epoch: Epoch) -> bool {
        self.epochs[usize::from(bucket.0)].load(Ordering::Acquire) == epoch.0
    }

    /// Leases were renewed by a request that was sent at `now`: publishing may start until `until`.
    pub(crate) fn renew(&self, now: Duration, until: Duration) {
        self.renewed_micros.store(micros(now), Ordering::Release);
        self.until_micros.store(micros(until), Ordering::Release);
        self.begun.store(true, Ordering::Release);
    }

    /// Whether leases were ever taken.
    pub(crate) fn has_begun(&self) -> bool {
        self.begun.load(Ordering::Acquire)
    }

    /// Nothing may be published until leases are renewed.
    pub(crate) fn end(&self) {
        self.until_micros.store(0, Ordering::Release);
    }

    /// Whether a batch may be started.
    pub(crate) fn holds(&self, now: Duration) -> bool {
        micros(now) < self.until_micros.load(Ordering::Acquire)
    }

    /// For how long batches may still be started.
    pub(crate) fn left(&self, now: Duration) -> Duration {
        Duration::from_micros(self.until_micros.load(Ordering::Acquire)).saturating_sub(now)
    }

    /// When leases were renewed last.
    pub(crate) fn renewed(&self) -> Duration {
        Duration::from_micros(self.renewed_micros.load(Ordering::Acquire))
    }
}

fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use outbox_contract::backend::Position;

    use super::*;

    #[test]
    fn a_bucket_is_owned_under_the_epoch_that_was_told_last() {
        let tenure = Tenure::default();
        let lease =
            |bucket, epoch| Lease { bucket: Bucket(bucket), epoch: Epoch(epoch), low_water: Position::START };
        assert!(!tenure.owns(Bucket(3), Epoch(1)));
        tenure.own(&[lease(3, 1), lease(255, 4)]);
        assert!(tenure.owns(Bucket(3), Epoch(1)) && tenure.owns(Bucket(255), Epoch(4)));
        tenure.own(&[lease(3, 2)]);
        assert!(!tenure.owns(Bucket(3), Epoch(1)) && tenure.owns(Bucket(3), Epoch(2)));
        assert!(!tenure.owns(Bucket(255), Epoch(4)));
    }
}
