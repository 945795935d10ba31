//! Handlers: the trait behind `on`, and the failures that a handler reports.

use std::borrow::Cow;
use std::fmt;

use outbox_contract::{Codec, Failure, Json, Transactional};

use super::handler_context::HandlerContext;
use super::verdict::Verdict;
use crate::error_text::{causes, with_causes};
use crate::mediator::HandlerError;

/// Handles events of one type: an `async fn` of the event and a [`HandlerContext`].
///
/// ```
/// # use outbox_contract::Transactional;
/// # use outbox_engine::{HandlerContext, HandlerError};
/// # type PostgresStore = outbox_store_memory::MemoryStore;
/// # struct OrderPlaced;
/// async fn reserve_stock(order: OrderPlaced, context: &mut HandlerContext<'_, PostgresStore>) -> Result<(), HandlerError> {
///     // sqlx::query("update stock …").execute(context.tx()).await?;
///     // context.publish(&StockReserved { … })?;
///     Ok(())
/// }
/// ```
///
/// Its writes commit together with the record that this consumer handled the message, or not at
/// all. It may run several times for one message (a conflict, a retry, a batch that was too slow);
/// only one run is ever committed (promise P4). Its effects outside the transaction happen with
/// each run.
///
/// An async closure is a handler too. It is cloned for each call, so what it owns must be cheap to
/// clone: `async move |order: OrderPlaced, context: &mut HandlerContext<'_, PostgresStore>| { … }`.
/// Functions find shared values in [`HandlerContext::state`].
///
/// *Cancellation*: its future is dropped at its timeout, and when the inbox is killed. The
/// transaction is then rolled back.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a handler of `{E}` for an inbox of `{S}`",
    label = "not a handler of this inbox",
    note = "a handler is an `async fn(event: {E}, context: &mut HandlerContext<'_, {S}>) -> Result<(), HandlerError>` whose future is `Send`",
    note = "the context names the store, then the state given to `state(…)` ({A}) and the codec of the outbox ({C})"
)]
pub trait MessageHandler<'a, E, S: Transactional, A: 'a = (), C: Codec = Json>:
    Clone + Send + Sync + 'static
{
    /// Its future.
    type Handling: Future<Output = Result<(), HandlerError>> + Send + 'a;

    /// Handles one event.
    fn handle(self, event: E, context: &'a mut HandlerContext<'a, S, A, C>) -> Self::Handling;
}

#[diagnostic::do_not_recommend]
impl<'a, F, Handling, E, S, A, C> MessageHandler<'a, E, S, A, C> for F
where
    F: FnOnce(E, &'a mut HandlerContext<'a, S, A, C>) -> Handling + Clone + Send + Sync + 'static,
    Handling: Future<Output = Result<(), HandlerError>> + Send + 'a,
    S: Transactional,
    A: 'a,
    C: Codec,
{
    type Handling = Handling;

    fn handle(self, event: E, context: &'a mut HandlerContext<'a, S, A, C>) -> Handling {
        self(event, context)
    }
}

/// A failure with a class, or a verdict, where an error alone says too little:
/// `return Err(HandlerFailure::rejected("no-such-order", "…").into())`.
///
/// Any other error has *failed*, with the class `handler`, and is retried.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HandlerFailure {
    failure: Failure,
    kind: Kind,
}

/// Verdict of a handler on a message that it did not handle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Failed,
    Rejected,
    TooNew,
}

impl HandlerFailure {
    /// Creates a failure that may pass. Counts as an attempt. Retry policies can name the class.
    #[must_use]
    pub fn failed(class: impl Into<Cow<'static, str>>, message: impl Into<String>) -> Self {
        Self { failure: Failure::new(class, message), kind: Kind::Failed }
    }

    /// Creates a failure that never passes: the message's attempts are exhausted at once.
    ///
    /// In direct mode the message goes to the store first, without this verdict. The handler then
    /// runs once more from there, and that verdict counts.
    #[must_use]
    pub fn rejected(class: impl Into<Cow<'static, str>>, message: impl Into<String>) -> Self {
        Self { failure: Failure::new(class, message), kind: Kind::Rejected }
    }

    /// Creates a failure that only a newer program cures, such as a value that this one does not
    /// know. No attempt is counted. The message and the later ones of its key wait, at most for
    /// [`InboxConfig::wait_for_upgrade`](super::InboxConfig::wait_for_upgrade), and are tried again
    /// from time to time, by whichever process has the key then.
    #[must_use]
    pub fn too_new(class: impl Into<Cow<'static, str>>, message: impl Into<String>) -> Self {
        Self { failure: Failure::new(class, message), kind: Kind::TooNew }
    }

    /// Returns true if a retry can't help.
    #[must_use]
    pub fn is_rejected(&self) -> bool {
        self.kind == Kind::Rejected
    }

    /// Returns true if only a newer program can handle the message.
    #[must_use]
    pub fn is_too_new(&self) -> bool {
        self.kind == Kind::TooNew
    }

    /// Converts a handler's error: the failure that it is, or that caused it.
    pub(crate) fn of(error: &HandlerError) -> Self {
        let given = causes(&**error).find_map(|error| error.downcast_ref::<Self>());
        given.cloned().unwrap_or_else(|| Self::failed("handler", with_causes(&**error)))
    }

    pub(crate) fn into_verdict(self) -> Verdict {
        match self.kind {
            Kind::Failed => Verdict::Failed(self.failure),
            Kind::Rejected => Verdict::Rejected(self.failure),
            Kind::TooNew => Verdict::TooNew(self.failure),
        }
    }
}

impl fmt::Display for HandlerFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.failure.fmt(f)
    }
}

impl std::error::Error for HandlerFailure {}
