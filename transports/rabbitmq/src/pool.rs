//! The connections that publish.
//!
//! A batch has a channel to itself while it is on its way: an error of the broker ends a channel
//! and says nothing of which message it was.
//!
//! A connection that was lost is made anew in a task of its own, while batches go over those that
//! live: how long that takes, or whether somebody stops waiting for it, changes nothing for them.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use outbox_contract::admin::Diagnosis;
use outbox_contract::{Topic, TransportErrorKind};
use tokio::sync::watch;
use tokio::time::Instant;

use crate::channel::Channel;
use crate::config::Config;
use crate::diagnose;
use crate::error::Fault;
use crate::pauses::Pauses;
use crate::topology;
use crate::upkeep::{Due, Upkeep};
use crate::wire::Wire;

pub(crate) struct Pool {
    shared: Arc<SharedPool>,
    /// Whose turn it is: batches are spread evenly.
    turn: AtomicUsize,
}

/// State that batches and attempts to connect share.
struct SharedPool {
    config: Arc<Config>,
    // A plain mutex: held for a look, never across an await.
    slots: Mutex<Vec<Slot>>,
    upkeep: Mutex<Upkeep>,
    started: Instant,
    /// Tells who waits for a connection that an attempt is over.
    over: watch::Sender<()>,
    /// True if the transport was closed.
    closed: watch::Receiver<bool>,
}

/// The place of one connection.
struct Slot {
    wire: Option<Arc<Wire>>,
    pauses: Pauses,
    /// Why there is no connection, and until when not to try again.
    trouble: Option<(Fault, Instant)>,
    /// True if an attempt is under way.
    is_connecting: bool,
}

/// Choice for a batch.
enum Look {
    Wire(Arc<Wire>),
    /// No connection is usable, and the one whose turn it is is being made.
    Wait,
    No(Fault),
}

impl Pool {
    pub(crate) fn new(config: Arc<Config>, closed: watch::Receiver<bool>) -> Self {
        let pauses = || Pauses::new(config.first_pause, config.max_pause);
        let slot = || Slot { wire: None, pauses: pauses(), trouble: None, is_connecting: false };
        let slots = Mutex::new((0..config.connections).map(|_| slot()).collect());
        let over = watch::Sender::new(());
        let (upkeep, started) = (Mutex::new(Upkeep::new(&config)), Instant::now());
        let shared = Arc::new(SharedPool { config, slots, upkeep, started, over, closed });
        Self { shared, turn: AtomicUsize::new(0) }
    }

    /// A channel for one batch.
    ///
    /// Cancellation: safe. A connection that is being made is made all the same, for the next one.
    pub(crate) async fn borrow(&self) -> Result<Channel, Fault> {
        let wire = self.wire().await?;
        match wire.blocked_by() {
            Some(reason) => Err(Fault::blocked(&reason)),
            None => {
                self.look_after(&wire).await?;
                wire.confirming_channel().await
            }
        }
    }

    /// Something that publishing needs is not there: it is made before the next batch, if it is
    /// ours to make.
    pub(crate) fn found_missing(&self) {
        self.shared.upkeep().found_missing();
    }

    /// Declares what is missing, or may be.
    async fn look_after(&self, wire: &Arc<Wire>) -> Result<(), Fault> {
        let due = self.shared.begin_upkeep();
        if due == Due::Nothing {
            return Ok(());
        }
        let declaring = Declaring { shared: Arc::clone(&self.shared), went_well: false };
        let declaring = tokio::spawn(declaring.run(Arc::clone(wire)));
        match due {
            // A runtime that ends tells of no task.
            Due::First => declaring.await.unwrap_or_else(|_| Err(Fault::lost_again())),
            Due::Nothing | Due::Beside => Ok(()),
        }
    }

    /// Looks whether publishing could go on.
    pub(crate) async fn check(&self) -> Result<(), Fault> {
        let wire = self.wire().await?;
        let checked = topology::check_publishing(&wire, &self.shared.config).await;
        if !checked.as_ref().is_err_and(|fault| fault.kind == TransportErrorKind::Missing) {
            return checked;
        }
        self.found_missing();
        self.look_after(&wire).await?;
        topology::check_publishing(&wire, &self.shared.config).await
    }

    /// Examines the broker, and the queues of these topics.
    pub(crate) async fn diagnose(&self, topics: &[Topic]) -> Result<Vec<Diagnosis>, Fault> {
        let wire = self.wire().await?;
        diagnose::find(&wire, &self.shared.config, topics).await
    }

    pub(crate) async fn close(&self) {
        let wires: Vec<_> = self.shared.slots().iter_mut().filter_map(|slot| slot.wire.take()).collect();
        for wire in wires {
            wire.close().await;
        }
    }

    /// A connection that lives: the one whose turn it is, or another one while that one is made
    /// anew.
    async fn wire(&self) -> Result<Arc<Wire>, Fault> {
        let turn = self.turn.fetch_add(1, Ordering::Relaxed);
        let place = turn % self.shared.config.connections;
        let mut over = self.shared.over.subscribe();
        if self.shared.begins(place) {
            let attempt = Attempt { shared: Arc::clone(&self.shared), place };
            tokio::spawn(attempt.run());
        }
        // One attempt is enough to know.
        loop {
            match self.shared.look(turn) {
                Look::Wire(wire) => return Ok(wire),
                Look::No(fault) => return Err(fault),
                // The sender lives as long as this pool.
                Look::Wait => drop(over.changed().await),
            }
        }
    }
}

impl SharedPool {
    fn slots(&self) -> MutexGuard<'_, Vec<Slot>> {
        // A change is made in one step, or panics before it: what is there is whole.
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn upkeep(&self) -> MutexGuard<'_, Upkeep> {
        self.upkeep.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn begin_upkeep(&self) -> Due {
        self.upkeep().begin(self.started.elapsed())
    }

    fn is_closed(&self) -> bool {
        *self.closed.borrow()
    }

    /// Returns true if the connection of a slot is to be made anew, and may be: then it counts as
    /// being made.
    fn begins(&self, place: usize) -> bool {
        let slot = &mut self.slots()[place];
        if slot.wire.as_ref().is_some_and(|wire| wire.is_usable()) {
            return false;
        }
        // Frames on their way over a connection that is no longer used are finished.
        slot.wire = None;
        let pauses = slot.trouble.as_ref().is_some_and(|(_, until)| Instant::now() < *until);
        let begins = !slot.is_connecting && !pauses && !self.is_closed();
        slot.is_connecting |= begins;
        begins
    }

    /// Returns the choice for a batch of this turn.
    fn look(&self, turn: usize) -> Look {
        if self.is_closed() {
            return Look::No(Fault::closed());
        }
        let slots = self.slots();
        let (until_turn, from_turn) = slots.split_at(turn % slots.len());
        let mut in_turn = from_turn.iter().chain(until_turn);
        let usable = |slot: &Slot| slot.wire.as_ref().filter(|wire| wire.is_usable()).map(Arc::clone);
        let Some(first) = in_turn.next() else { return Look::No(Fault::lost_again()) };
        match usable(first).or_else(|| in_turn.find_map(usable)) {
            Some(wire) => Look::Wire(wire),
            None if first.is_connecting => Look::Wait,
            None => {
                Look::No(first.trouble.as_ref().map_or_else(Fault::lost_again, |(fault, _)| fault.clone()))
            }
        }
    }
}

/// Declares again what publishing needs. However it ends, the next one can begin.
struct Declaring {
    shared: Arc<SharedPool>,
    went_well: bool,
}

impl Declaring {
    async fn run(mut self, wire: Arc<Wire>) -> Result<(), Fault> {
        let declared = topology::prepare_publishing(&wire, &self.shared.config).await;
        if let Err(fault) = &declared {
            tracing::debug!(%fault, "could not redeclare the exchange for publishing; will retry");
        }
        self.went_well = declared.is_ok();
        declared
    }
}

impl Drop for Declaring {
    fn drop(&mut self) {
        self.shared.upkeep().over(self.went_well, self.shared.started.elapsed());
    }
}

/// Makes the connection of a slot. However it ends, who waits for it hears so.
struct Attempt {
    shared: Arc<SharedPool>,
    place: usize,
}

impl Attempt {
    async fn run(self) {
        let connected = self.connect().await;
        let mut slots = self.shared.slots();
        let slot = &mut slots[self.place];
        match connected {
            // It came too late, and would never be closed.
            Ok(_) if self.shared.is_closed() => {}
            Ok(wire) => {
                slot.trouble = None;
                slot.pauses.reset();
                slot.wire = Some(wire);
            }
            Err(fault) => {
                tracing::debug!(%fault, "no connection to the broker for publishing; will retry");
                slot.trouble = Some((fault, Instant::now() + slot.pauses.next()));
            }
        }
    }

    async fn connect(&self) -> Result<Arc<Wire>, Fault> {
        let config = &self.shared.config;
        let mut closed = self.shared.closed.clone();
        let connecting = async {
            let wire = Wire::open(config, "publishes").await?;
            topology::prepare_publishing(&wire, config).await?;
            self.shared.upkeep().over(true, self.shared.started.elapsed());
            Ok(wire)
        };
        tokio::select! {
            biased;
            _ = closed.wait_for(|closed| *closed) => Err(Fault::closed()),
            connected = connecting => connected,
        }
    }
}

impl Drop for Attempt {
    fn drop(&mut self) {
        self.shared.slots()[self.place].is_connecting = false;
        self.shared.over.send_replace(());
    }
}
