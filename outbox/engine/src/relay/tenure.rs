//! The tenure: until when this relay may publish, shared with every publisher.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// An instant on the relay's own clock that lies well before the leases run out. The lease keeper moves it on, publishers look at it before
/// each chunk: a relay that slept, or could not renew, stops by itself (promise P7).
#[derive(Debug, Default)]
pub(crate) struct Tenure {
    until_micros: AtomicU64,
    renewed_micros: AtomicU64,
}

impl Tenure {
    /// Leases were renewed by a request that was sent at `now`: publishing may start until `until`.
    pub(crate) fn renew(&self, now: Duration, until: Duration) {
        self.renewed_micros.store(micros(now), Ordering::Release);
        self.until_micros.store(micros(until), Ordering::Release);
    }

    /// Nothing may be published until leases are renewed.
    pub(crate) fn end(&self) {
        self.until_micros.store(0, Ordering::Release);
    }

    /// Whether a chunk may be started.
    pub(crate) fn holds(&self, now: Duration) -> bool {
        micros(now) < self.until_micros.load(Ordering::Acquire)
    }

    /// When leases were renewed last.
    pub(crate) fn renewed(&self) -> Duration {
        Duration::from_micros(self.renewed_micros.load(Ordering::Acquire))
    }
}

fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}
