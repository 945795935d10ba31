//! Handlers of events inside a unit of work.

use std::any::Any;
use std::future::Future;

use async_trait::async_trait;
use outbox_contract::{Codec, Json, Transactional};

use crate::unit_of_work::UnitOfWork;

/// Error of a handler: any error that `?` converts. It rolls back the unit of work.
pub type HandlerError = Box<dyn std::error::Error + Send + Sync>;

/// Handles events of one type, in the unit of work that recorded them, before it commits.
///
/// An `async fn` of the event and the unit of work is a handler. So is an async closure, which is
/// cloned for each call, and a value that implements this trait:
///
/// ```
/// # mod outbox { pub use outbox_contract::*; pub use outbox_engine::*; pub mod memory { pub use outbox_store_memory::*; } }
/// use outbox::{EventHandler, HandlerError, UnitOfWork, async_trait};
/// use outbox::memory::MemoryStore;
///
/// struct OrderPlaced { total_cents: i64 }
/// struct Limit { most_cents: i64 }
///
/// #[async_trait]
/// impl EventHandler<OrderPlaced, MemoryStore> for Limit {
///     async fn handle(&self, event: &OrderPlaced, _work: &mut UnitOfWork<MemoryStore>) -> Result<(), HandlerError> {
///         if event.total_cents > self.most_cents {
///             return Err(format!("an order of {} cents is over the limit of {}", event.total_cents, self.most_cents).into());
///         }
///         Ok(())
///     }
/// }
/// ```
///
/// It names its store, because it uses the transaction through that store's driver.
#[async_trait]
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a handler of `{E}`",
    label = "not a handler",
    note = "a handler is an `async fn(event: &{E}, work: &mut UnitOfWork<…>) -> Result<(), HandlerError>` whose future is `Send`, or a value that implements `EventHandler`",
    note = "a closure names its types: `async |event: &{E}, work: &mut UnitOfWork<{S}>| {{ … }}`"
)]
pub trait EventHandler<E, S: Transactional, C: Codec = Json>: Send + Sync + 'static {
    /// Handles one event. Runs in the unit's transaction: [`UnitOfWork::tx`] runs queries in it.
    /// The mediator also handles the events that it [publishes](UnitOfWork::publish).
    ///
    /// A rollback does not undo effects outside the transaction: publish an event for them instead.
    ///
    /// # Errors
    ///
    /// Any: the unit of work rolls back and returns it in
    /// [`WorkError::Handler`](crate::WorkError::Handler).
    async fn handle(&self, event: &E, work: &mut UnitOfWork<S, C>) -> Result<(), HandlerError>;
}

/// A function or an async closure that can be an [`EventHandler`]. Implemented for all of them; not
/// for implementing yourself.
pub trait EventHandlerFn<'a, E, S: Transactional, C: Codec>: Clone + Send + Sync + 'static {
    /// Its future.
    type Handling: Future<Output = Result<(), HandlerError>> + Send + 'a;

    /// Calls it.
    fn call(self, event: &'a E, work: &'a mut UnitOfWork<S, C>) -> Self::Handling;
}

impl<'a, F, Handling, E, S, C> EventHandlerFn<'a, E, S, C> for F
where
    F: FnOnce(&'a E, &'a mut UnitOfWork<S, C>) -> Handling + Clone + Send + Sync + 'static,
    Handling: Future<Output = Result<(), HandlerError>> + Send + 'a,
    E: 'a,
    S: Transactional,
    C: Codec,
{
    type Handling = Handling;

    fn call(self, event: &'a E, work: &'a mut UnitOfWork<S, C>) -> Handling {
        self(event, work)
    }
}

#[async_trait]
impl<F, E, S, C> EventHandler<E, S, C> for F
where
    F: for<'a> EventHandlerFn<'a, E, S, C>,
    E: Sync,
    S: Transactional,
    C: Codec,
{
    async fn handle(&self, event: &E, work: &mut UnitOfWork<S, C>) -> Result<(), HandlerError> {
        self.clone().call(event, work).await
    }
}

/// A handler with its event type erased.
pub(crate) struct Registered<S: Transactional, C: Codec> {
    /// Its Rust name, for errors and spans.
    pub(crate) name: &'static str,
    handler: Box<dyn Erased<S, C>>,
}

impl<S: Transactional, C: Codec> Registered<S, C> {
    pub(crate) fn new<E: Send + Sync + 'static, H: EventHandler<E, S, C>>(handler: H) -> Self {
        let handler = Typed { handler, event: std::marker::PhantomData::<fn(E)> };
        Self { name: std::any::type_name::<H>(), handler: Box::new(handler) }
    }

    /// Handles an event of the type for which it was registered; ignores other types.
    pub(crate) async fn handle(
        &self,
        event: &(dyn Any + Send + Sync),
        work: &mut UnitOfWork<S, C>,
    ) -> Result<(), HandlerError> {
        self.handler.handle(event, work).await
    }
}

#[async_trait]
trait Erased<S: Transactional, C: Codec>: Send + Sync {
    async fn handle(
        &self,
        event: &(dyn Any + Send + Sync),
        work: &mut UnitOfWork<S, C>,
    ) -> Result<(), HandlerError>;
}

struct Typed<H, E> {
    handler: H,
    event: std::marker::PhantomData<fn(E)>,
}

#[async_trait]
impl<H, E, S, C> Erased<S, C> for Typed<H, E>
where
    H: EventHandler<E, S, C>,
    E: Send + Sync + 'static,
    S: Transactional,
    C: Codec,
{
    async fn handle(
        &self,
        event: &(dyn Any + Send + Sync),
        work: &mut UnitOfWork<S, C>,
    ) -> Result<(), HandlerError> {
        match event.downcast_ref::<E>() {
            Some(event) => self.handler.handle(event, work).await,
            None => Ok(()),
        }
    }
}
