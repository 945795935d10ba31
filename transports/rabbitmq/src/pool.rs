//! The connections that publish.
//!
//! A chunk has a channel to itself while it is on its way: an error of the broker ends a channel and says nothing of which message it was.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::sync::watch;
use tokio::time::Instant;

use crate::channel::Channel;
use crate::config::Config;
use crate::error::Fault;
use crate::pauses::Pauses;
use crate::topology;
use crate::wire::Wire;

pub(crate) struct Pool {
    config: Arc<Config>,
    slots: Vec<tokio::sync::Mutex<Slot>>,
    /// Whose turn it is: chunks are spread evenly.
    turn: AtomicUsize,
    /// Whether the transport was closed.
    closed: watch::Receiver<bool>,
}

/// The place of one connection. Locked while it is connected anew, so that one does it and the others wait.
struct Slot {
    wire: Option<Arc<Wire>>,
    pauses: Pauses,
    /// Why there is no connection, and until when not to try again.
    trouble: Option<(Fault, Instant)>,
}

impl Pool {
    pub(crate) fn new(config: Arc<Config>, closed: watch::Receiver<bool>) -> Self {
        let slot =
            || Slot { wire: None, pauses: Pauses::new(config.first_pause, config.most_pause), trouble: None };
        let slots = (0..config.connections).map(|_| tokio::sync::Mutex::new(slot())).collect();
        Self { config, slots, turn: AtomicUsize::new(0), closed }
    }

    /// A channel for one chunk.
    ///
    /// Cancellation: safe.
    pub(crate) async fn borrow(&self) -> Result<Channel, Fault> {
        let wire = self.wire().await?;
        match wire.blocked_by() {
            Some(reason) => Err(Fault::blocked(&reason)),
            None => wire.confirming_channel().await,
        }
    }

    /// Looks whether publishing could go on.
    pub(crate) async fn check(&self) -> Result<(), Fault> {
        topology::check_publishing(&self.wire().await?, &self.config).await
    }

    pub(crate) async fn close(&self) {
        for slot in &self.slots {
            let wire = slot.lock().await.wire.take();
            if let Some(wire) = wire {
                wire.close().await;
            }
        }
    }

    /// A connection that lives: the one whose turn it is, or another one while that one is made anew.
    async fn wire(&self) -> Result<Arc<Wire>, Fault> {
        let turn = self.turn.fetch_add(1, Ordering::Relaxed);
        let place = |at: usize| &self.slots[turn.wrapping_add(at) % self.slots.len()];
        let mut first = place(0).lock().await;
        let fault = match self.living(&mut first).await {
            Ok(wire) => return Ok(wire),
            Err(fault) => fault,
        };
        drop(first);
        for other in (1..self.slots.len()).map(place) {
            if let Ok(slot) = other.try_lock()
                && let Some(wire) = slot.wire.as_ref().filter(|wire| wire.is_usable())
            {
                return Ok(Arc::clone(wire));
            }
        }
        Err(fault)
    }

    /// The connection of a slot, made anew if it has to be and may be.
    async fn living(&self, slot: &mut Slot) -> Result<Arc<Wire>, Fault> {
        if *self.closed.borrow() {
            return Err(Fault::closed());
        }
        if let Some(wire) = slot.wire.as_ref().filter(|wire| wire.is_usable()) {
            return Ok(Arc::clone(wire));
        }
        // What is still on its way over one that is no longer used comes to its end.
        slot.wire = None;
        if let Some((fault, until)) = &slot.trouble
            && Instant::now() < *until
        {
            return Err(fault.clone());
        }
        match self.connect().await {
            Ok(wire) => {
                slot.trouble = None;
                slot.pauses.reset();
                slot.wire = Some(Arc::clone(&wire));
                Ok(wire)
            }
            Err(fault) => {
                tracing::debug!(%fault, "no connection for publishing");
                slot.trouble = Some((fault.clone(), Instant::now() + slot.pauses.next()));
                Err(fault)
            }
        }
    }

    async fn connect(&self) -> Result<Arc<Wire>, Fault> {
        let wire = Wire::open(&self.config, "publishes").await?;
        topology::prepare_publishing(&wire, &self.config).await?;
        Ok(wire)
    }
}
