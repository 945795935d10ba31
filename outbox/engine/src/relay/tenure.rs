//! Tenure: the permission to publish that the leases grant, shared with every publisher.

use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

use outbox_contract::backend::{BUCKETS, Bucket, Epoch, Lease};

/// Permission to publish: a deadline on the relay's own clock, well before the leases expire, and
/// the epochs of the owned buckets.
///
/// The lease keeper extends the deadline. Publishers check it before each batch, so a relay that
/// slept or could not renew stops by itself (promise P7).
///
/// A relay that slept may have lost some buckets and renewed the others. So publishers also check
/// the epoch of each bucket here. The core drops what was lost, but it may not have processed the
/// answer to the heartbeat yet.
#[derive(Debug)]
pub(crate) struct Tenure {
    until_micros: AtomicU64,
    renewed_micros: AtomicU64,
    /// True once leases were acquired for the first time.
    begun: AtomicBool,
    // By bucket. 0, which no lease has, stands for a bucket that is not owned.
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
    /// Sets the owned leases. No others are owned.
    pub(crate) fn own(&self, leases: &[Lease]) {
        let mut epochs = [0; BUCKETS];
        for lease in leases {
            epochs[usize::from(lease.bucket.0)] = lease.epoch.0;
        }
        for (owned, epoch) in self.epochs.iter().zip(epochs) {
            owned.store(epoch, Ordering::Release);
        }
    }

    /// Returns true if this relay owns a bucket under this epoch, according to the last heartbeat.
    pub(crate) fn owns(&self, bucket: Bucket, epoch: Epoch) -> bool {
        self.epochs[usize::from(bucket.0)].load(Ordering::Acquire) == epoch.0
    }

    /// Records that a request sent at `now` renewed the leases: batches may start before `until`.
    pub(crate) fn renew(&self, now: Duration, until: Duration) {
        self.renewed_micros.store(micros(now), Ordering::Release);
        self.until_micros.store(micros(until), Ordering::Release);
        self.begun.store(true, Ordering::Release);
    }

    /// Returns true if leases were ever acquired.
    pub(crate) fn has_begun(&self) -> bool {
        self.begun.load(Ordering::Acquire)
    }

    /// Forbids publishing until leases are renewed.
    pub(crate) fn end(&self) {
        self.until_micros.store(0, Ordering::Release);
    }

    /// Returns true if a batch may start.
    pub(crate) fn holds(&self, now: Duration) -> bool {
        micros(now) < self.until_micros.load(Ordering::Acquire)
    }

    /// Returns the time left in which batches may start.
    pub(crate) fn left(&self, now: Duration) -> Duration {
        Duration::from_micros(self.until_micros.load(Ordering::Acquire)).saturating_sub(now)
    }

    /// Returns the instant of the last renewal.
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
