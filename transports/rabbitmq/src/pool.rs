//! The connections that publish, and their channels.
//!
//! A chunk has a channel to itself while it is on its way: an error of the broker ends a channel and says nothing of which message it was. A
//! channel whose chunk was given up stays open until everything on it is confirmed: the client library would send its end ahead of
//! what is still to be written on it, and the broker ends the whole connection when something comes on a channel that is closed.

use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use lapin::Channel;
use tokio::sync::watch;
use tokio::time::Instant;

use crate::config::Config;
use crate::confirms::Confirms;
use crate::connection::Connection;
use crate::error::Fault;
use crate::pauses::Pauses;
use crate::publication::Answer;
use crate::topology;

/// So many channels of a connection may wait for what was given up on them. One more, and the connection is made anew.
const MOST_GIVEN_UP: usize = 64;

/// What becomes of one message: its place in the chunk, and the answer.
pub(crate) type Confirm = Pin<Box<dyn Future<Output = (usize, Answer)> + Send>>;

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
    link: Option<Arc<Link>>,
    pauses: Pauses,
    /// Why there is no connection, and until when not to try again.
    trouble: Option<(Fault, Instant)>,
}

/// A connection with its channels.
struct Link {
    connection: Connection,
    // Plain mutexes: held for a push or a pop, never across an await.
    idle: Mutex<Vec<Arc<Channel>>>,
    given_up: Mutex<Vec<(Arc<Channel>, Confirms<Confirm>)>>,
}

impl Pool {
    pub(crate) fn new(config: Arc<Config>, closed: watch::Receiver<bool>) -> Self {
        let slot =
            || Slot { link: None, pauses: Pauses::new(config.first_pause, config.most_pause), trouble: None };
        let slots = (0..config.connections).map(|_| tokio::sync::Mutex::new(slot())).collect();
        Self { config, slots, turn: AtomicUsize::new(0), closed }
    }

    /// A channel for one chunk.
    ///
    /// Cancellation: safe.
    pub(crate) async fn borrow(&self) -> Result<Borrowed, Fault> {
        let link = self.link().await?;
        if let Some(reason) = link.connection.blocked_by() {
            return Err(Fault::blocked(&reason));
        }
        let idle = link.take_idle();
        let channel = match idle {
            Some(channel) => channel,
            None => Arc::new(link.connection.confirming_channel().await?),
        };
        Ok(Borrowed { link, channel, confirms: Confirms::new() })
    }

    /// Looks whether publishing could go on.
    pub(crate) async fn check(&self) -> Result<(), Fault> {
        let link = self.link().await?;
        topology::check_publishing(&link.connection, &self.config).await
    }

    pub(crate) async fn close(&self) {
        for slot in &self.slots {
            let link = slot.lock().await.link.take();
            if let Some(link) = link {
                link.connection.close().await;
            }
        }
    }

    /// A connection that lives: the one whose turn it is, or another one while that one is made anew.
    async fn link(&self) -> Result<Arc<Link>, Fault> {
        let turn = self.turn.fetch_add(1, Ordering::Relaxed);
        let place = |at: usize| &self.slots[turn.wrapping_add(at) % self.slots.len()];
        let mut first = place(0).lock().await;
        let fault = match self.living(&mut first).await {
            Ok(link) => return Ok(link),
            Err(fault) => fault,
        };
        drop(first);
        for other in (1..self.slots.len()).map(place) {
            if let Ok(slot) = other.try_lock()
                && let Some(link) = slot.link.as_ref().filter(|link| link.is_usable())
            {
                return Ok(Arc::clone(link));
            }
        }
        Err(fault)
    }

    /// The connection of a slot, made anew if it has to be and may be.
    async fn living(&self, slot: &mut Slot) -> Result<Arc<Link>, Fault> {
        if *self.closed.borrow() {
            return Err(Fault::closed());
        }
        if let Some(link) = slot.link.as_ref().filter(|link| link.is_usable()) {
            return Ok(Arc::clone(link));
        }
        slot.link = None;
        if let Some((fault, until)) = &slot.trouble
            && Instant::now() < *until
        {
            return Err(fault.clone());
        }
        match self.connect().await {
            Ok(link) => {
                slot.trouble = None;
                slot.pauses.reset();
                slot.link = Some(Arc::clone(&link));
                Ok(link)
            }
            Err(fault) => {
                tracing::debug!(%fault, "no connection for publishing");
                slot.trouble = Some((fault.clone(), Instant::now() + slot.pauses.next()));
                Err(fault)
            }
        }
    }

    async fn connect(&self) -> Result<Arc<Link>, Fault> {
        let connection = Connection::open(&self.config, "publishes").await?;
        topology::prepare_publishing(&connection, &self.config).await?;
        Ok(Arc::new(Link { connection, idle: Mutex::default(), given_up: Mutex::default() }))
    }
}

impl Link {
    /// Whether chunks may go over it. Also tidies up what was given up on it and came to an end since.
    fn is_usable(&self) -> bool {
        let mut given_up = lock(&self.given_up);
        given_up.retain_mut(|(channel, confirms)| {
            confirms.ready_now();
            channel.status().connected() && !confirms.is_empty()
        });
        if given_up.len() > MOST_GIVEN_UP {
            self.connection.cut();
        }
        given_up.len() <= MOST_GIVEN_UP && self.connection.is_alive()
    }

    fn take_idle(&self) -> Option<Arc<Channel>> {
        let mut idle = lock(&self.idle);
        std::iter::from_fn(|| idle.pop()).find(|channel| channel.status().connected())
    }
}

/// A channel, for as long as a chunk is on its way. Dropped, it goes back: at once if everything on it is confirmed, else when it is.
pub(crate) struct Borrowed {
    link: Arc<Link>,
    pub(crate) channel: Arc<Channel>,
    pub(crate) confirms: Confirms<Confirm>,
}

impl Borrowed {
    /// Waits until the broker takes nothing any more, and says why.
    pub(crate) fn blocked(&self) -> impl Future<Output = String> + use<> {
        self.link.connection.blocked()
    }
}

impl Drop for Borrowed {
    fn drop(&mut self) {
        if !self.channel.status().connected() {
            return;
        }
        let channel = Arc::clone(&self.channel);
        let confirms = std::mem::replace(&mut self.confirms, Confirms::new());
        if confirms.is_empty() {
            lock(&self.link.idle).push(channel);
        } else {
            lock(&self.link.given_up).push((channel, confirms));
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // What is held is pushed or popped in one step: a panic leaves it whole.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
