//! Wake-up signals: an append in this process wakes a relay in this process.

use std::fmt;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use futures_core::Stream;
use tokio::sync::Notify;
use tokio::time::Instant;

/// Maximum time from an append to a commit that counts as its own. Nearly all writing transactions
/// are shorter.
const LATELY: Duration = Duration::from_secs(10);

/// A wake-up signal that `append` sends to the relays of the same process.
///
/// A lost signal costs a poll interval, never a message. Signals are coalesced. A plain
/// `tx.commit()` is invisible, so a signal at append means only "soon": listeners look immediately,
/// and again at growing intervals. A signal at commit is exact.
///
/// ```
/// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
/// # extern crate outbox_contract as outbox;
/// use outbox::backend::{Wakeup, WakeupSignal};
///
/// let wakeup_signal = WakeupSignal::new();
/// let mut listener = wakeup_signal.listen();
/// wakeup_signal.appended();
/// assert_eq!(listener.next().await, Wakeup::Soon);
/// # });
/// ```
#[derive(Clone, Debug, Default)]
pub struct WakeupSignal {
    bell: Arc<Bell>,
}

/// Counters instead of a channel of values: listeners wake in the order in which they wait, so that
/// a run can be replayed.
#[derive(Debug, Default)]
struct Bell {
    appended: AtomicU64,
    committed: AtomicU64,
    // Locked only for a copy.
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

/// Meaning of a wake-up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Wakeup {
    /// A message was appended and may be committed soon.
    Soon,
    /// A transaction was committed.
    Now,
}

impl WakeupSignal {
    /// Creates a signal that has not been sent.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Signals that a message was appended and will be committed, if at all, soon.
    pub fn appended(&self) {
        *self.bell.appended_at.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
        self.bell.appended.fetch_add(1, Ordering::SeqCst);
        self.bell.rung.notify_waiters();
    }

    /// Signals a commit.
    pub fn committed(&self) {
        self.bell.committed.fetch_add(1, Ordering::SeqCst);
        self.bell.rung.notify_waiters();
    }

    /// Signals a committed transaction, for stores that can't see whether it appended anything:
    /// wakes listeners if this process appended within the last 10 seconds. A consumer commits for
    /// each message, and mostly appends nothing, so most of its commits need no wake-up.
    ///
    /// Polling finds messages that were appended longer ago.
    pub fn transaction_committed(&self) {
        let appended_at = *self.bell.appended_at.lock().unwrap_or_else(PoisonError::into_inner);
        if appended_at.is_some_and(|at| at.elapsed() <= LATELY) {
            self.committed();
        }
    }

    /// Listens from now on.
    #[must_use]
    pub fn listen(&self) -> WakeupListener {
        WakeupListener { heard: self.bell.rings(), bell: Arc::clone(&self.bell) }
    }
}

/// Receives the signals of [`WakeupSignal`].
#[derive(Debug)]
pub struct WakeupListener {
    bell: Arc<Bell>,
    heard: Rings,
}

impl WakeupListener {
    /// Waits for the next signal, or several coalesced ones. Cancel safe: dropping the future loses
    /// nothing.
    pub async fn next(&mut self) -> Wakeup {
        loop {
            // Waiting begins before the check, so that no signal falls in between.
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

    /// Converts to a stream of wake-ups, which never ends.
    #[must_use]
    pub fn into_stream(self) -> Wakeups {
        Wakeups { next: Box::pin(self.into_next()) }
    }

    async fn into_next(mut self) -> (Wakeup, Self) {
        (self.next().await, self)
    }
}

/// Stream of the wake-ups that a [`WakeupListener`] receives.
pub struct Wakeups {
    next: Pin<Box<dyn Future<Output = (Wakeup, WakeupListener)> + Send>>,
}

impl Stream for Wakeups {
    type Item = Wakeup;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Wakeup>> {
        let (wakeup, listener) = ready!(self.next.as_mut().poll(context));
        self.next = Box::pin(listener.into_next());
        Poll::Ready(Some(wakeup))
    }
}

impl fmt::Debug for Wakeups {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Wakeups").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_commit_rings_for_ten_seconds_behind_an_append() {
        let wakeup_signal = WakeupSignal::new();
        let mut listener = wakeup_signal.listen();
        wakeup_signal.transaction_committed();
        assert!(tokio::time::timeout(Duration::ZERO, listener.next()).await.is_err(), "nothing was appended");
        wakeup_signal.appended();
        assert_eq!(listener.next().await, Wakeup::Soon);
        tokio::time::advance(LATELY).await;
        wakeup_signal.transaction_committed();
        assert_eq!(listener.next().await, Wakeup::Now);
        tokio::time::advance(Duration::from_millis(1)).await;
        wakeup_signal.transaction_committed();
        assert!(tokio::time::timeout(Duration::ZERO, listener.next()).await.is_err(), "it is too long ago");
    }
}
