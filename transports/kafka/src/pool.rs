//! The producer that is in use, and a spare: a new one needs up to a second until it can send, one
//! that was made ahead does not.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use outbox_contract::TransportError;

use crate::config::Config;
use crate::gapless::Gapless;
use crate::retired::Retired;

/// The producer in use and its spare.
#[derive(Debug)]
pub(crate) struct Pool {
    config: Arc<Config>,
    /// Size of their record batches.
    batch_bytes: usize,
    /// True if they wait for more messages.
    lingers: bool,
    retired: Arc<Retired>,
    seats: Mutex<Seats>,
}

#[derive(Debug)]
struct Seats {
    current: Option<Arc<Gapless>>,
    spare: Option<Arc<Gapless>>,
    closed: bool,
}

impl Pool {
    pub(crate) fn new(
        config: &Arc<Config>,
        batch_bytes: usize,
        lingers: bool,
        retired: &Arc<Retired>,
    ) -> Result<Arc<Self>, TransportError> {
        let current = Some(Arc::new(Gapless::new(config, batch_bytes, lingers)?));
        let spare = Some(Arc::new(Gapless::new(config, batch_bytes, lingers)?));
        let seats = Mutex::new(Seats { current, spare, closed: false });
        let (config, retired) = (Arc::clone(config), Arc::clone(retired));
        Ok(Arc::new(Self { config, batch_bytes, lingers, retired, seats }))
    }

    fn seats(&self) -> MutexGuard<'_, Seats> {
        self.seats.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The producer in use. None when the pool was closed.
    ///
    /// # Errors
    ///
    /// None could be made: no memory, no thread.
    pub(crate) fn current(&self) -> Result<Option<Arc<Gapless>>, TransportError> {
        let mut seats = self.seats();
        if seats.closed {
            return Ok(None);
        }
        if seats.current.as_ref().is_none_or(|current| current.is_broken()) {
            seats.current = None;
            let next = match seats.spare.take() {
                Some(spare) if !spare.is_broken() => spare,
                _ => Arc::new(Gapless::new(&self.config, self.batch_bytes, self.lingers)?),
            };
            seats.current = Some(next);
        }
        Ok(seats.current.as_ref().map(Arc::clone))
    }

    /// Retires a producer: it takes nothing more, what it has is given up and reported, and another
    /// takes its place. Repeat: harmless.
    pub(crate) fn retire(self: &Arc<Self>, producer: &Arc<Gapless>) {
        producer.close();
        let was_in_use = {
            let mut seats = self.seats();
            let is_in_use = seats.current.as_ref().is_some_and(|current| Arc::ptr_eq(current, producer));
            if is_in_use {
                seats.current = seats.spare.take();
            }
            is_in_use
        };
        if was_in_use {
            self.retired.one();
        }
        let (pool, failed) = (Arc::clone(self), Arc::clone(producer));
        let rest = move || {
            failed.purge();
            drop(failed);
            pool.make_spare();
        };
        // A thread, since both steps block, and there may be no runtime: a future is dropped
        // anywhere.
        let thread = std::thread::Builder::new().name("outbox-kafka-retire".to_owned());
        if thread.spawn(rest).is_err() {
            producer.purge();
        }
    }

    fn make_spare(&self) {
        let missing = || {
            let seats = self.seats();
            !seats.closed && seats.spare.is_none()
        };
        if !missing() {
            return;
        }
        match Gapless::new(&self.config, self.batch_bytes, self.lingers) {
            Ok(spare) => {
                let mut seats = self.seats();
                if !seats.closed && seats.spare.is_none() {
                    seats.spare = Some(Arc::new(spare));
                }
            }
            Err(error) => {
                tracing::warn!(%error, "could not create a spare producer; one is created when it is needed")
            }
        }
    }

    /// Lets go of all producers.
    pub(crate) fn close(self: &Arc<Self>) {
        let (current, spare) = {
            let mut seats = self.seats();
            seats.closed = true;
            (seats.current.take(), seats.spare.take())
        };
        for producer in [current, spare].into_iter().flatten() {
            self.retire(&producer);
        }
    }
}
