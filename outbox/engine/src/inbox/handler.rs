//! Handlers of users: their context, and their failures.

use std::borrow::Cow;
use std::fmt;
use std::sync::{Mutex, PoisonError};

use futures_util::future::BoxFuture;
use outbox_contract::backend::trace;
use outbox_contract::{
    Codec, Consumer, DomainEvent, Failure, Headers, Json, Message, MessageError, MessageId, Topic,
};
use serde::Serialize;

use crate::mediator::HandlerError;

/// A function that handles one event in a transaction: an `async fn` of the transaction, the event, and a [`HandlerContext`].
///
/// What it writes with the transaction is committed with the note that this consumer handled the message, or not at all. It may be called
/// several times for one message (a conflict, a retry, too slow a batch); only one call is ever committed (promise P4). What it does outside of
/// the transaction happens once for each call.
///
/// Implemented for functions. A closure that owns something is given through [`handler_fn`]. Where the inbox has an outbox with a codec of its own, the
/// context names it: `HandlerContext<'_, MyCodec>`.
///
/// *Cancellation*: its future is dropped at its timeout and when the inbox is killed; the transaction is then rolled back.
pub trait MessageHandler<'a, Tx: 'a, E, C: Codec = Json>: Send + Sync + 'static {
    /// Future of the function.
    type Future: Future<Output = Result<(), HandlerError>> + Send + 'a;

    /// Handles one event.
    fn handle(&self, tx: &'a mut Tx, event: E, context: HandlerContext<'a, C>) -> Self::Future;
}

impl<'a, Tx: 'a, E, C: Codec, F, Fut> MessageHandler<'a, Tx, E, C> for F
where
    F: Fn(&'a mut Tx, E, HandlerContext<'a, C>) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Result<(), HandlerError>> + Send + 'a,
{
    type Future = Fut;

    fn handle(&self, tx: &'a mut Tx, event: E, context: HandlerContext<'a, C>) -> Fut {
        self(tx, event, context)
    }
}

/// Tells the compiler what a closure takes, so that it can be a [`MessageHandler`]: `handler_fn(|tx, event: OrderPlaced, context| Box::pin(async
/// move { … }))`.
pub fn handler_fn<Tx, E, C, F>(handler: F) -> F
where
    C: Codec,
    F: for<'a> Fn(&'a mut Tx, E, HandlerContext<'a, C>) -> BoxFuture<'a, Result<(), HandlerError>>
        + Send
        + Sync
        + 'static,
{
    handler
}

/// Context of a handler's call besides the event, and the place for what it emits. Cheap to copy.
pub struct HandlerContext<'a, C: Codec = Json> {
    pub(crate) message: &'a Message,
    pub(crate) consumer: &'a Consumer,
    pub(crate) attempt: u32,
    pub(crate) emitted: &'a Emitted,
    /// Codec of emitted events.
    pub(crate) codec: &'a C,
}

impl<C: Codec> Clone for HandlerContext<'_, C> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<C: Codec> Copy for HandlerContext<'_, C> {}

impl<'a, C: Codec> HandlerContext<'a, C> {
    /// The message that the event came in.
    #[must_use]
    pub fn message(&self) -> &'a Message {
        self.message
    }

    /// The headers of the message.
    #[must_use]
    pub fn headers(&self) -> &'a Headers {
        &self.message.headers
    }

    /// The name of this consumer.
    #[must_use]
    pub fn consumer(&self) -> &'a Consumer {
        self.consumer
    }

    /// Number of this attempt, from 1. The tries in memory and, once the message is stored, those of the stored one are counted apart.
    /// Tries that ended in a conflict (a deadlock, a [`VersionMismatch`](crate::VersionMismatch)) are not counted, unless they go on for so long
    /// that this is the message's own failure.
    #[must_use]
    pub fn attempt(&self) -> u32 {
        self.attempt
    }

    /// Emits an event: it is appended to the outbox in the handler's transaction, after the handler has returned. It is written by the codec of the
    /// [outbox](crate::InboxBuilder::outbox) of the inbox, and carries the trace context of the message that is handled.
    ///
    /// *Ordering*: what one handler emits keeps its order.
    ///
    /// # Errors
    ///
    /// Says what of the event can't be a message. Nothing was emitted.
    pub fn emit<E>(&self, event: &E) -> Result<MessageId, MessageError>
    where
        E: DomainEvent + Serialize + ?Sized,
    {
        let kind = event.event_type();
        let topic = kind.topic.ok_or(MessageError::Local { event_type: kind.name })?;
        let mut message = Message::new(Topic::new(topic)?, kind.name)
            .with_schema_version(kind.version)
            .with_content_type(self.codec.content_type())
            .with_payload(self.codec.encode(event)?);
        if let Some(key) = event.key() {
            message = message.with_key(key)?;
        }
        self.emit_message(message)
    }

    /// Emits a message that was made by hand.
    ///
    /// # Errors
    ///
    /// Says what of it can't be. Nothing was emitted.
    pub fn emit_message(&self, mut message: Message) -> Result<MessageId, MessageError> {
        trace::inject(&mut message.headers);
        let (given, incoming) = (&mut message.headers, &self.message.headers);
        // Both or neither: the state belongs to the trace that it came with.
        if given.get(trace::TRACEPARENT).is_none()
            && let Some(parent) = incoming.get(trace::TRACEPARENT)
        {
            given.insert(trace::TRACEPARENT, parent)?;
            given.remove(trace::TRACESTATE);
            if let Some(state) = incoming.get(trace::TRACESTATE) {
                given.insert(trace::TRACESTATE, state)?;
            }
        }
        message.validate()?;
        let id = message.id;
        self.emitted.push(message);
        Ok(id)
    }
}

impl<C: Codec> fmt::Debug for HandlerContext<'_, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HandlerContext")
            .field("consumer", &self.consumer.as_str())
            .field("message", self.message)
            .field("attempt", &self.attempt)
            .finish_non_exhaustive()
    }
}

/// Messages that the handlers of one transaction have emitted so far.
#[derive(Debug, Default)]
pub(crate) struct Emitted(Mutex<Vec<Message>>);

impl Emitted {
    fn push(&self, message: Message) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(message);
    }

    pub(crate) fn take(&self) -> Vec<Message> {
        std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// A failure of which a handler says more than an error does: `return Err(HandlerFailure::rejected("no-such-order", "…").into())`.
///
/// Any other error *failed*, of the class `handler`, and is tried again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HandlerFailure {
    failure: Failure,
    rejected: bool,
}

impl HandlerFailure {
    /// It failed, and may succeed another time. Counts as an attempt. Retry policies can name the class.
    #[must_use]
    pub fn failed(class: impl Into<Cow<'static, str>>, message: impl Into<String>) -> Self {
        Self { failure: Failure::new(class, message), rejected: false }
    }

    /// This message can never be handled: its attempts are used up at once.
    ///
    /// In direct mode it goes to the store first, without this verdict: the handler is called once more, from there, and its word counts then.
    #[must_use]
    pub fn rejected(class: impl Into<Cow<'static, str>>, message: impl Into<String>) -> Self {
        Self { failure: Failure::new(class, message), rejected: true }
    }

    /// Returns true if it was rejected permanently.
    #[must_use]
    pub const fn is_rejected(&self) -> bool {
        self.rejected
    }

    /// Reads a handler's error.
    pub(crate) fn of(error: &HandlerError) -> Self {
        error.downcast_ref::<Self>().cloned().unwrap_or_else(|| Self::failed("handler", error.to_string()))
    }

    pub(crate) fn into_failure(self) -> Failure {
        self.failure
    }
}

impl fmt::Display for HandlerFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.failure.fmt(f)
    }
}

impl std::error::Error for HandlerFailure {}

#[cfg(test)]
mod tests {
    use super::*;

    /// The headers of what is emitted with these, while a message with those is handled.
    fn emitted(given: &[(&str, &str)], incoming: &[(&str, &str)]) -> Headers {
        let message = |headers: &[(&str, &str)]| {
            let message = Message::new("orders".parse().unwrap(), "order.placed");
            headers.iter().fold(message, |message, (name, value)| message.with_header(*name, *value).unwrap())
        };
        let (handled, emitted) = (message(incoming), Emitted::default());
        let consumer = Consumer::new("inventory").unwrap();
        let context = HandlerContext {
            message: &handled,
            consumer: &consumer,
            attempt: 1,
            emitted: &emitted,
            codec: &Json,
        };
        context.emit_message(message(given)).unwrap();
        emitted.take().remove(0).headers
    }

    #[test]
    fn what_is_emitted_carries_one_trace_and_what_belongs_to_it() {
        let (own, other) = ("00-11111111111111111111111111111111-1111111111111111-01", "00-22-22-00");
        let incoming = [("traceparent", other), ("tracestate", "vendor=other")];
        let headers = emitted(&[("traceparent", own)], &incoming);
        assert_eq!((headers.get("traceparent"), headers.get("tracestate")), (Some(own), None));
        let headers = emitted(&[], &incoming);
        assert_eq!(headers.get("traceparent"), Some(other));
        assert_eq!(headers.get("tracestate"), Some("vendor=other"));
        // A state without a trace says nothing, and is not mixed with another one's.
        let headers = emitted(&[("tracestate", "vendor=own")], &incoming);
        assert_eq!(headers.get("tracestate"), Some("vendor=other"));
        assert!(emitted(&[], &[("tracestate", "vendor=other")]).get("tracestate").is_none());
    }
}
