//! Hints: how an append in this process tells a relay in this process to look.

use std::pin::pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;

/// How long after an append a commit may be of its transaction. Longer than nearly all transactions that write are open.
const LATELY: Duration = Duration::from_secs(10);

/// A bell that `append` rings and relays of the same process listen to.
///
/// Only a wake-up: losing one costs a poll interval, never a message. Rings are coalesced. A plain `tx.commit()` can't be seen, so a
/// ring at append says only "soon": listeners look at once, and again at growing intervals. A ring at commit is exact.
///
/// ```
/// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
/// use outbox_contract::{Hints, hints::Wakeup};
///
/// let hints = Hints::new();
/// let mut listener = hints.listen();
/// hints.appended();
/// assert_eq!(listener.next().await, Wakeup::Soon);
/// # });
/// ```
#[derive(Clone, Debug, Default)]
pub struct Hints {
    bell: Arc<Bell>,
}

/// Counters, and not a channel of values: who listens is woken in the order of waiting, so that a run can be replayed.
#[derive(Debug, Default)]
struct Bell {
    appended: AtomicU64,
    committed: AtomicU64,
    // Held for a copy.
    appended_at: Mutex<Option<Instant>>,
    rung: Notify,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Rings {
    appended: u64,
    committed: u64,
}

impl Bell {
    fn rings(&self) -> Rings {
        let read = |counter: &AtomicU64| counter.load(Ordering::SeqCst);
        Rings { appended: read(&self.appended), committed: read(&self.committed) }
    }
}

/// What a wake-up says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Wakeup {
    /// Something was appended and may be committed soon.
    Soon,
    /// Something was committed.
    Now,
}

impl Hints {
    /// A bell that nobody has rung.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Says that something was appended and will be committed, if at all, soon.
    pub fn appended(&self) {
        *self.bell.appended_at.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
        self.bell.appended.fetch_add(1, Ordering::SeqCst);
        self.bell.rung.notify_waiters();
    }

    /// Says that something was committed.
    pub fn committed(&self) {
        self.bell.committed.fetch_add(1, Ordering::SeqCst);
        self.bell.rung.notify_waiters();
    }

    /// Says that a transaction was committed, for stores that can't see whether anything was appended in it: rings where something was appended here
    /// within the last 10 seconds. A consumer commits for each message, and mostly appends nothing: nobody has to look.
    ///
    /// What was appended longer ago is found by polling.
    pub fn transaction_committed(&self) {
        let appended_at = *self.bell.appended_at.lock().unwrap_or_else(PoisonError::into_inner);
        if appended_at.is_some_and(|at| at.elapsed() <= LATELY) {
            self.committed();
        }
    }

    /// Listens from now on.
    #[must_use]
    pub fn listen(&self) -> HintListener {
        HintListener { heard: self.bell.rings(), bell: Arc::clone(&self.bell) }
    }
}

/// Hears the rings of [`Hints`].
#[derive(Debug)]
pub struct HintListener {
    bell: Arc<Bell>,
    heard: Rings,
}

impl HintListener {
    /// Waits for the next ring, or several at once. Dropping the future loses nothing.
    pub async fn next(&mut self) -> Wakeup {
        loop {
            // Waiting begins before the look, so that no ring falls in between.
            let mut rung = pin!(self.bell.rung.notified());
            rung.as_mut().enable();
            let rings = self.bell.rings();
            if rings != self.heard {
                let wakeup = if rings.committed == self.heard.committed { Wakeup::Soon } else { Wakeup::Now };
                self.heard = rings;
                return wakeup;
            }
            rung.await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_commit_rings_for_ten_seconds_behind_an_append() {
        let hints = Hints::new();
        let mut listener = hints.listen();
        hints.transaction_committed();
        assert!(tokio::time::timeout(Duration::ZERO, listener.next()).await.is_err(), "nothing was appended");
        hints.appended();
        assert_eq!(listener.next().await, Wakeup::Soon);
        tokio::time::advance(LATELY).await;
        hints.transaction_committed();
        assert_eq!(listener.next().await, Wakeup::Now);
        tokio::time::advance(Duration::from_millis(1)).await;
        hints.transaction_committed();
        assert!(tokio::time::timeout(Duration::ZERO, listener.next()).await.is_err(), "it is too long ago");
    }
}
