//! A relay's line to the broker: it stands still while the relay does, and what is on it may arrive
//! long after the relay gave it up.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use fastrand::Rng;
use outbox_contract::backend::{Outcomes, PublishBatch, Stored, TransportLayer};
use outbox_contract::{Transport, TransportError};
use tokio::sync::Notify;

use super::tally::Tally;
use super::trace::Trace;

/// Gate that lets a relay run; else it stands still, like a process that was sent SIGSTOP.
pub(crate) struct Gate {
    open: AtomicBool,
    // Not a watch channel: that wakes those who wait in a random order.
    opened: Notify,
}

impl Gate {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self { open: AtomicBool::new(true), opened: Notify::new() })
    }

    pub(crate) fn set_open(&self, open: bool) {
        self.open.store(open, Ordering::SeqCst);
        if open {
            self.opened.notify_waiters();
        }
    }

    /// Waits until the relay goes on.
    pub(crate) async fn passed(&self) {
        while !self.open.load(Ordering::SeqCst) {
            self.opened.notified().await;
        }
    }
}

/// Late effects: how often something that was given up happens anyway, and how much later.
#[derive(Clone, Copy, Default)]
pub(crate) struct Late {
    pub(crate) rate: f64,
    pub(crate) most: Duration,
    /// The longest that an answer, of the store or the broker, is under way from its effect.
    pub(crate) answer: Duration,
    /// Rate at which a call to the store panics.
    pub(crate) panics: f64,
}

/// Chance, and how much of it there is now.
pub(crate) struct Luck(Mutex<(Rng, Late)>);

impl Luck {
    pub(crate) fn new(seed: u64, late: Late) -> Arc<Self> {
        Arc::new(Self(Mutex::new((Rng::with_seed(seed), late))))
    }

    pub(crate) fn set(&self, late: Late) {
        self.0.lock().unwrap().1 = late;
    }

    /// Panics, if it is time for that.
    pub(crate) fn panic(&self, tally: &Tally) {
        let panics = {
            let (rng, late) = &mut *self.0.lock().unwrap();
            rng.f64() < late.panics
        };
        tally.add("panics of the store", u64::from(panics));
        assert!(!panics, "a panic of the store was injected");
    }

    /// Returns the time that this answer takes.
    pub(crate) fn answer(&self) -> Duration {
        let (rng, late) = &mut *self.0.lock().unwrap();
        late.answer.mul_f64(rng.f64())
    }

    /// Returns the delay of this effect, if it is late at all.
    pub(crate) fn late_by(&self) -> Option<Duration> {
        let (rng, late) = &mut *self.0.lock().unwrap();
        let (is_late, part) = (rng.f64() < late.rate, rng.f64());
        is_late.then(|| late.most.mul_f64(part))
    }
}

/// The line, below the faults of the test kit.
pub(crate) struct Line {
    pub(crate) broker: Arc<dyn Transport>,
    pub(crate) gate: Arc<Gate>,
    pub(crate) luck: Arc<Luck>,
    pub(crate) tally: Arc<Tally>,
}

/// The bytes of a batch that is on the line and of no relay's memory any more.
fn on_the_line(mut batch: PublishBatch) -> PublishBatch {
    for stored in &mut batch.messages {
        let mut copy = Stored::clone(stored);
        copy.message.payload = Bytes::copy_from_slice(&copy.message.payload);
        *stored = Arc::new(copy);
    }
    batch
}

impl TransportLayer for Line {
    type Inner = dyn Transport;

    fn inner(&self) -> &dyn Transport {
        &*self.broker
    }

    async fn check(&self) -> Result<(), TransportError> {
        self.gate.passed().await;
        self.broker.check().await
    }

    async fn publish(&self, batch: PublishBatch, outcomes: &Outcomes) {
        self.gate.passed().await;
        if let Some(late) = self.luck.late_by() {
            self.tally.add("late publishes", 1);
            let (broker, late_batch) = (Arc::clone(&self.broker), on_the_line(batch.clone()));
            tokio::spawn(async move {
                tokio::time::sleep(late).await;
                let unheard = Outcomes::new(late_batch.messages.len());
                broker.publish(late_batch, &unheard).await;
            });
            // The relay holds what it sends until it gives it up.
            let _held = batch;
            return std::future::pending().await;
        }
        self.broker.publish(batch, outcomes).await;
        // The confirmation is under way for a while.
        tokio::time::sleep(self.luck.answer()).await;
    }

    async fn close(&self) {}
}

/// Writes down what a relay sends and hears, above all faults.
pub(crate) struct Witness {
    pub(crate) inner: Arc<dyn Transport>,
    pub(crate) relay: usize,
    pub(crate) trace: Arc<Trace>,
}

impl TransportLayer for Witness {
    type Inner = dyn Transport;

    fn inner(&self) -> &dyn Transport {
        &*self.inner
    }

    async fn publish(&self, batch: PublishBatch, outcomes: &Outcomes) {
        let positions: Vec<i64> = batch.messages.iter().map(|stored| stored.position.0).collect();
        self.trace.say(format!("relay {} sends {positions:?}", self.relay));
        let heard = Heard {
            inner: Outcomes::new(positions.len()),
            outcomes,
            relay: self.relay,
            positions,
            trace: &self.trace,
        };
        self.inner.publish(batch, &heard.inner).await;
    }

    async fn close(&self) {}
}

/// Passes on what was heard, whether the publishing ended, panicked or was given up.
struct Heard<'a> {
    inner: Outcomes,
    outcomes: &'a Outcomes,
    relay: usize,
    positions: Vec<i64>,
    trace: &'a Trace,
}

impl Drop for Heard<'_> {
    fn drop(&mut self) {
        for (index, outcome) in self.inner.take().into_iter().enumerate() {
            let position = self.positions[index];
            match outcome {
                Some(outcome) => {
                    let word = format!("{outcome:?}");
                    let word = word.split('(').next().unwrap_or_default();
                    self.trace.say(format!("relay {} hears {position} {word}", self.relay));
                    self.outcomes.report(index, outcome);
                }
                None => self.trace.say(format!("relay {} hears {position} nothing", self.relay)),
            }
        }
    }
}
