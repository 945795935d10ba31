//! Hints: how an append in this process tells a relay in this process to look.

use std::sync::Arc;

use tokio::sync::watch;

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
#[derive(Clone, Debug)]
pub struct Hints {
    rings: Arc<watch::Sender<Rings>>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Rings {
    appended: u64,
    committed: u64,
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
        Self { rings: Arc::new(watch::Sender::new(Rings::default())) }
    }

    /// Says that something was appended and will be committed, if at all, soon.
    pub fn appended(&self) {
        self.rings.send_modify(|rings| rings.appended += 1);
    }

    /// Says that something was committed.
    pub fn committed(&self) {
        self.rings.send_modify(|rings| rings.committed += 1);
    }

    /// Listens from now on.
    #[must_use]
    pub fn listen(&self) -> HintListener {
        let mut rings = self.rings.subscribe();
        let heard = *rings.borrow_and_update();
        HintListener { rings, heard, _bell: self.clone() }
    }
}

impl Default for Hints {
    fn default() -> Self {
        Self::new()
    }
}

/// Hears the rings of [`Hints`].
#[derive(Debug)]
pub struct HintListener {
    rings: watch::Receiver<Rings>,
    heard: Rings,
    // Keeps the sender alive: a listener never hears that the bell is gone.
    _bell: Hints,
}

impl HintListener {
    /// Waits for the next ring, or several at once. Dropping the future loses nothing.
    pub async fn next(&mut self) -> Wakeup {
        loop {
            let rings = *self.rings.borrow_and_update();
            if rings != self.heard {
                let wakeup = if rings.committed == self.heard.committed { Wakeup::Soon } else { Wakeup::Now };
                self.heard = rings;
                return wakeup;
            }
            if self.rings.changed().await.is_err() {
                std::future::pending::<()>().await;
            }
        }
    }
}
