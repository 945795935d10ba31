//! Turns: how many transactions may be open, and what becomes of whoever waits for one.

use std::sync::atomic::{AtomicU64, Ordering};

use tokio::sync::{Semaphore, SemaphorePermit};

/// One turn for each transaction that may be open. There are more workers than turns, so that none is left unused while a worker waits for its next
/// job. A job that has to wait is not begun yet: what happens meanwhile concerns it as if it stood in line.
pub(crate) struct Turns {
    permits: Semaphore,
    /// How often units were taken away.
    revocations: AtomicU64,
}

impl Turns {
    pub(crate) fn new(concurrency: usize) -> Self {
        Self {
            permits: Semaphore::new(concurrency.min(Semaphore::MAX_PERMITS)),
            revocations: AtomicU64::new(0),
        }
    }

    /// Waits for a turn. None: nothing is to begin any more, units were taken away while it waited, or the job is paused by now.
    pub(crate) async fn take(&self, is_paused: impl FnOnce() -> bool) -> Option<SemaphorePermit<'_>> {
        if let Ok(turn) = self.permits.try_acquire() {
            return Some(turn);
        }
        let before = self.revocations.load(Ordering::Acquire);
        let turn = self.permits.acquire().await.ok()?;
        let is_revoked = self.revocations.load(Ordering::Acquire) != before;
        (!is_revoked && !is_paused()).then_some(turn)
    }

    /// Units belong to this member no more: who waits gives its job back, and the dispatcher knows what is left of it.
    pub(crate) fn revoke(&self) {
        self.revocations.fetch_add(1, Ordering::AcqRel);
    }

    /// Nothing begins any more.
    pub(crate) fn close(&self) {
        self.permits.close();
    }
}
