//! The mediator: passes the events of a unit of work to their handlers in this process, before the
//! commit.
//!
//! The program creates it once, at startup, from the outbox and the handlers; it begins the units
//! of work.

mod cascade;
mod handler;

use std::any::TypeId;
use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use outbox_contract::backend::Blame;
use outbox_contract::{Codec, DomainEvent, Json, Outbox, Transactional};

pub(crate) use cascade::{Cascade, Limits, Overrun};
pub(crate) use handler::Registered;
pub use handler::{EventHandler, EventHandlerFn, HandlerError};

use crate::unit_of_work::{UnitOfWork, WorkError, blame};

/// Begins units of work, and passes the events of each to their handlers before it commits.
///
/// Handlers are registered by the event's Rust type and run one after the other, in the order of
/// registration, in the unit's own transaction. The events that they publish go to handlers too, in
/// order. An error of any handler rolls everything back.
///
/// Cheap to clone: clones share the handlers.
///
/// ```
/// # extern crate outbox_contract as outbox;
/// # mod outbox { pub use outbox_contract::*; pub use outbox_engine::*; pub mod memory { pub use outbox_store_memory::*; } }
/// # use outbox_derive::DomainEvent;
/// use outbox::{HandlerError, Mediator, Outbox, UnitOfWork};
/// use outbox::memory::MemoryStore;
///
/// #[derive(serde::Serialize, DomainEvent)]
/// #[event(topic = "orders", type = "order.placed")]
/// struct OrderPlaced { #[event(key)] order_id: u64 }
///
/// #[derive(serde::Serialize, DomainEvent)]
/// #[event(topic = "stock", type = "stock.reserved")]
/// struct StockReserved { #[event(key)] order_id: u64 }
///
/// async fn reserve_stock(event: &OrderPlaced, work: &mut UnitOfWork<MemoryStore>) -> Result<(), HandlerError> {
///     // … queries on `work.tx()` …
///     work.publish(StockReserved { order_id: event.order_id })?;
///     Ok(())
/// }
///
/// # async fn run() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
/// let mediator = Mediator::new(Outbox::new(MemoryStore::new())).on(reserve_stock);
///
/// let mut work = mediator.begin().await?;
/// work.publish(OrderPlaced { order_id: 1 })?;
/// work.commit().await?; // both events, or neither
/// # Ok(())
/// # }
/// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(run()).unwrap();
/// ```
pub struct Mediator<S: Transactional, C: Codec = Json> {
    core: Arc<Core<S, C>>,
}

/// State shared by clones. Changed only while there is a single one.
struct Core<S: Transactional, C: Codec> {
    outbox: Outbox<S, C>,
    handlers: HashMap<TypeId, Vec<Arc<Registered<S, C>>>>,
    limits: Limits,
    attempts: u32,
}

impl<S: Transactional, C: Codec> Mediator<S, C> {
    /// Creates a mediator without handlers: its units of work only collect events and append them.
    #[must_use]
    pub fn new(outbox: Outbox<S, C>) -> Self {
        let core = Core { outbox, handlers: HashMap::new(), limits: Limits::default(), attempts: 10 };
        Self { core: Arc::new(core) }
    }

    /// Registers a handler of events of one type, after the type's existing handlers.
    ///
    /// An `async fn` or an async closure of the event and the unit of work is a handler; so is a
    /// value that implements [`EventHandler`]. The type is that of the published value: a handler
    /// of an enum receives all of its variants.
    #[must_use]
    pub fn on<E, H>(self, handler: H) -> Self
    where
        E: DomainEvent + Send + Sync + 'static,
        H: EventHandler<E, S, C>,
    {
        self.changed(|core| {
            let handlers = core.handlers.entry(TypeId::of::<E>()).or_default();
            handlers.push(Arc::new(Registered::new(handler)));
        })
    }

    /// Sets the maximum length of a chain of events that handlers publish because of one another.
    /// Default 16: chains of a domain are short, and a longer one is probably circular.
    #[must_use]
    pub fn max_depth(self, depth: usize) -> Self {
        self.changed(|core| core.limits.depth = depth)
    }

    /// Sets the maximum number of events in one unit of work. Default 10,000: they are in memory
    /// until the commit, and written at once.
    #[must_use]
    pub fn max_events(self, events: usize) -> Self {
        self.changed(|core| core.limits.events = events)
    }

    /// Sets the maximum number of attempts of [`run`](Self::run) on conflicts, from 1. Default 10:
    /// with pauses that grow to a second, a few seconds in total.
    #[must_use]
    pub fn max_attempts(self, attempts: u32) -> Self {
        self.changed(|core| core.attempts = attempts.max(1))
    }

    /// Returns the outbox to which events with a topic are appended.
    #[must_use]
    pub fn outbox(&self) -> &Outbox<S, C> {
        &self.core.outbox
    }

    /// Begins a unit of work in a transaction of the store's pool, which is yours if you gave the
    /// store one.
    ///
    /// *Cancellation*: no transaction began.
    ///
    /// # Errors
    ///
    /// [`WorkError::Store`] if the database is not available.
    pub async fn begin(&self) -> Result<UnitOfWork<S, C>, WorkError> {
        let begun = self.core.outbox.store().begin().await;
        begun.map(|tx| self.adopt(tx)).map_err(|error| self.classified(WorkError::Store(error)))
    }

    /// Creates a unit of work from a transaction that you have begun. [`UnitOfWork::commit`]
    /// commits it; [`UnitOfWork::finish`] returns it.
    #[must_use]
    pub fn adopt(&self, tx: S::Tx<'static>) -> UnitOfWork<S, C> {
        UnitOfWork::new(self.clone(), tx, self.core.limits)
    }

    /// Begins a unit of work, runs the closure in it, and commits. On a conflict with another
    /// transaction ([`WorkError::Conflict`], which includes a
    /// [`VersionMismatch`](crate::VersionMismatch)), it rolls everything back, pauses, and restarts
    /// everything, closure included. The closure's effects outside the transaction therefore
    /// repeat, and it must read the data for its decisions inside the transaction.
    ///
    /// On a task of its own (`tokio::spawn`, a handler of a web framework) the closure must own the
    /// values it uses: `async move |work| { … }`.
    ///
    /// *Cancellation*: rolled back, or unknown during the commit.
    ///
    /// ```
    /// # async fn run() -> Result<(), outbox_engine::WorkError> {
    /// # use {outbox_contract::Outbox, outbox_engine::Mediator, outbox_store_memory::MemoryStore};
    /// # let mediator = Mediator::new(Outbox::new(MemoryStore::new()));
    /// let stock = mediator.run(async |work| {
    ///     work.tx().on_commit(|| println!("taken")); // with SQL: queries
    ///     Ok(7)
    /// });
    /// assert_eq!(stock.await?, 7);
    /// # Ok(())
    /// # }
    /// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(run()).unwrap();
    /// ```
    ///
    /// # Errors
    ///
    /// [`WorkError::Failed`] with the closure's own error. [`WorkError::Unknown`], which is not
    /// retried, because the work may be committed. Any error of [`UnitOfWork::commit`]; a conflict
    /// only after [`max_attempts`](Self::max_attempts).
    pub async fn run<T, F>(&self, mut work: F) -> Result<T, WorkError>
    where
        F: AsyncFnMut(&mut UnitOfWork<S, C>) -> Result<T, HandlerError>,
    {
        let mut attempt = 1;
        loop {
            match self.run_once(&mut work).await {
                Err(WorkError::Conflict(error)) if attempt < self.core.attempts => {
                    let pause = pause_after(attempt, fastrand::f64());
                    tracing::debug!(%error, attempt, ?pause, "conflict with another transaction; retrying the unit of work");
                    tokio::time::sleep(pause).await;
                    attempt += 1;
                }
                done => return done,
            }
        }
    }

    async fn run_once<T, F>(&self, work: &mut F) -> Result<T, WorkError>
    where
        F: AsyncFnMut(&mut UnitOfWork<S, C>) -> Result<T, HandlerError>,
    {
        let mut unit = self.begin().await?;
        match work(&mut unit).await {
            Ok(value) => unit.commit().await.map(|()| value),
            Err(error) => {
                unit.rollback().await;
                Err(self.classified(WorkError::of_closure(error)))
            }
        }
    }

    pub(crate) fn handlers_of(&self, event: TypeId) -> &[Arc<Registered<S, C>>] {
        self.core.handlers.get(&event).map_or(&[], Vec::as_slice)
    }

    /// Converts an error that another transaction caused into the one variant that is retried.
    pub(crate) fn classified(&self, error: WorkError) -> WorkError {
        let store = self.core.outbox.store();
        match error {
            WorkError::Conflict(_) | WorkError::Unknown(_) => error,
            error if blame(&error, |error| store.blame(error)) == Blame::Conflict => {
                WorkError::Conflict(Box::new(error))
            }
            error => error,
        }
    }

    fn changed(mut self, change: impl FnOnce(&mut Core<S, C>)) -> Self {
        if Arc::get_mut(&mut self.core).is_none() {
            let Core { outbox, handlers, limits, attempts } = &*self.core;
            let (outbox, handlers) = (outbox.clone(), handlers.clone());
            self.core = Arc::new(Core { outbox, handlers, limits: *limits, attempts: *attempts });
        }
        if let Some(core) = Arc::get_mut(&mut self.core) {
            change(core);
        }
        self
    }
}

/// Returns the pause before a unit of work restarts: exponential with full jitter, from 10 ms to a
/// second. `draw` is uniform between 0 and 1.
fn pause_after(attempt: u32, draw: f64) -> Duration {
    const FIRST: Duration = Duration::from_millis(10);
    const MOST: Duration = Duration::from_secs(1);
    FIRST.saturating_mul(1 << attempt.saturating_sub(1).min(16)).min(MOST).mul_f64(draw.clamp(0.0, 1.0))
}

impl<S: Transactional, C: Codec> Clone for Mediator<S, C> {
    fn clone(&self) -> Self {
        Self { core: Arc::clone(&self.core) }
    }
}

impl<S: Transactional, C: Codec> fmt::Debug for Mediator<S, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut handlers: Vec<_> =
            self.core.handlers.values().flatten().map(|handler| handler.name).collect();
        handlers.sort_unstable();
        f.debug_struct("Mediator").field("handlers", &handlers).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_to_a_second_and_no_further() {
        let most: Vec<u128> = [1, 2, 3, 8, 40].map(|attempt| pause_after(attempt, 1.0).as_millis()).into();
        assert_eq!(most, [10, 20, 40, 1_000, 1_000]);
        assert!(pause_after(9, 0.0).is_zero());
    }
}
