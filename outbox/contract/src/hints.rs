//! Hints: how an append in this process tells a relay in this process to look.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::sync::Notify;

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
        self.bell.appended.fetch_add(1, Ordering::SeqCst);
        self.bell.rung.notify_waiters();
    }

    /// Says that something was committed.
    pub fn committed(&self) {
        self.bell.committed.fetch_add(1, Ordering::SeqCst);
        self.bell.rung.notify_waiters();
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
