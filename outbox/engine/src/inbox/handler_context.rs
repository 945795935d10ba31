//! Context of a handler: its transaction, the message, the state of the application, and the
//! events that it publishes.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

use outbox_contract::backend::trace;
use outbox_contract::{
    AppendOptions, Codec, Consumer, DomainEvent, Headers, Json, Message, MessageError, MessageId, Outbox,
    Outgoing, Transactional,
};
use serde::Serialize;

/// Context of one call of a [handler](super::MessageHandler).
///
/// It names the store, and after that the [state](crate::InboxBuilder::state) of the application
/// and the codec of the outbox, where an inbox has them: `&mut HandlerContext<'_, PostgresStore,
/// App>`.
pub struct HandlerContext<'a, S: Transactional, A = (), C: Codec = Json> {
    pub(crate) tx: &'a mut S::Tx<'static>,
    pub(crate) message: &'a Message,
    pub(crate) consumer: &'a Consumer,
    pub(crate) attempt: u32,
    pub(crate) state: &'a A,
    pub(crate) outbox: &'a Outbox<Arc<S>, C>,
    /// Events to append when the handler has returned.
    pub(crate) published: &'a mut Vec<Outgoing>,
}

impl<'a, S: Transactional, C: Codec> HandlerContext<'a, S, (), C> {
    /// Adds the state.
    pub(crate) fn with_state<A>(self, state: &'a A) -> HandlerContext<'a, S, A, C> {
        let Self { tx, message, consumer, attempt, state: (), outbox, published } = self;
        HandlerContext { tx, message, consumer, attempt, state, outbox, published }
    }
}

impl<'a, S: Transactional, A, C: Codec> HandlerContext<'a, S, A, C> {
    /// Returns the connection of the handler's transaction, for your queries:
    /// `query.execute(context.tx())`. With MongoDB it is the session.
    ///
    /// The inbox commits or rolls back when the handler has returned. Do not end the transaction.
    pub fn tx(&mut self) -> &mut S::Connection {
        S::connection(self.tx)
    }

    /// Returns the driver's own transaction, where its type is needed: to append with another
    /// [`Outbox`], or to open a savepoint.
    pub fn transaction(&mut self) -> &mut S::Tx<'static> {
        self.tx
    }

    /// Returns the [state](crate::InboxBuilder::state) of the application.
    #[must_use]
    pub fn state(&self) -> &'a A {
        self.state
    }

    /// Returns the message that carried the event.
    #[must_use]
    pub fn message(&self) -> &'a Message {
        self.message
    }

    /// Returns the headers of the message.
    #[must_use]
    pub fn headers(&self) -> &'a Headers {
        &self.message.headers
    }

    /// Returns the CloudEvents `source` of the message: the outbox, or the program, that sent it.
    /// `None`: it did not come from a transport.
    #[must_use]
    pub fn source(&self) -> Option<&'a str> {
        self.message.source()
    }

    /// Returns the CloudEvents `id` as the producer wrote it. That of another program need not be a
    /// UUID.
    #[must_use]
    pub fn event_id(&self) -> Cow<'a, str> {
        self.message.event_id()
    }

    /// Returns the CloudEvents `subject`.
    #[must_use]
    pub fn subject(&self) -> Option<&'a str> {
        self.message.subject()
    }

    /// Returns the CloudEvents `dataschema`.
    #[must_use]
    pub fn data_schema(&self) -> Option<&'a str> {
        self.message.data_schema()
    }

    /// Returns a CloudEvents extension attribute, as text.
    #[must_use]
    pub fn extension(&self, name: &str) -> Option<&'a str> {
        self.message.extension(name)
    }

    /// Iterates over the extension attributes, ordered by name.
    pub fn extensions(&self) -> impl Iterator<Item = (&'a str, &'a str)> + use<'a, S, A, C> {
        self.message.extensions()
    }

    /// Returns the W3C trace context that the message came with, its header `traceparent` or its
    /// attribute of that name.
    #[must_use]
    pub fn traceparent(&self) -> Option<&'a str> {
        self.message.headers.get(trace::TRACEPARENT)
    }

    /// Returns the name of this consumer.
    #[must_use]
    pub fn consumer(&self) -> &'a Consumer {
        self.consumer
    }

    /// Returns the number of this attempt, from 1. Attempts in memory and, once the message is
    /// stored, those of the stored message are counted apart. Attempts that ended in a conflict (a
    /// deadlock, a [`VersionMismatch`](crate::VersionMismatch)) are not counted, unless they last
    /// so long that the message itself counts as failing.
    #[must_use]
    pub fn attempt(&self) -> u32 {
        self.attempt
    }

    /// Publishes an event: it is appended to the outbox in the handler's transaction, after the
    /// handler has returned. It carries the trace context of the handled message.
    ///
    /// *Ordering*: the events of one handler keep their order.
    ///
    /// # Errors
    ///
    /// Describes the invalid part of the event. Nothing was published.
    pub fn publish<E>(&mut self, event: &E) -> Result<MessageId, MessageError>
    where
        E: DomainEvent + Serialize + ?Sized,
    {
        self.publish_message(self.outbox.encode(event)?)
    }

    /// Publishes an event with headers, or at a later time.
    ///
    /// # Errors
    ///
    /// As [`publish`](Self::publish).
    pub fn publish_with<E>(&mut self, event: &E, options: AppendOptions) -> Result<MessageId, MessageError>
    where
        E: DomainEvent + Serialize + ?Sized,
    {
        let outgoing = options.apply(self.outbox.encode(event)?)?;
        self.push(outgoing)
    }

    /// Publishes a message built by hand.
    ///
    /// # Errors
    ///
    /// As [`publish`](Self::publish).
    pub fn publish_message(&mut self, mut message: Message) -> Result<MessageId, MessageError> {
        trace::inject(&mut message.headers);
        self.push(message.into())
    }

    fn push(&mut self, mut outgoing: Outgoing) -> Result<MessageId, MessageError> {
        let (given, incoming) = (&mut outgoing.message.headers, &self.message.headers);
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
        outgoing.message.validate()?;
        let id = outgoing.message.id;
        self.published.push(outgoing);
        Ok(id)
    }
}

impl<S: Transactional, A, C: Codec> fmt::Debug for HandlerContext<'_, S, A, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HandlerContext")
            .field("consumer", &self.consumer.as_str())
            .field("message", self.message)
            .field("attempt", &self.attempt)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use outbox_store_memory::MemoryStore;

    use super::*;

    /// Returns the headers of a message published with these, while a message with those is
    /// handled.
    async fn published(given: &[(&str, &str)], incoming: &[(&str, &str)]) -> Headers {
        let message = |headers: &[(&str, &str)]| {
            let message = Message::new("orders", "order.placed").unwrap();
            headers.iter().fold(message, |message, (name, value)| message.with_header(*name, *value).unwrap())
        };
        let store = Arc::new(MemoryStore::new());
        let mut published = Vec::new();
        let mut context = HandlerContext {
            tx: &mut store.begin().await.unwrap(),
            message: &message(incoming),
            consumer: &Consumer::new("inventory").unwrap(),
            attempt: 1,
            state: &(),
            outbox: &Outbox::new(Arc::clone(&store)),
            published: &mut published,
        };
        context.publish_message(message(given)).unwrap();
        published.remove(0).message.headers
    }

    #[tokio::test]
    async fn what_is_published_carries_one_trace_and_what_belongs_to_it() {
        let (own, other) = ("00-11111111111111111111111111111111-1111111111111111-01", "00-22-22-00");
        let incoming = [("traceparent", other), ("tracestate", "vendor=other")];
        let headers = published(&[("traceparent", own)], &incoming).await;
        assert_eq!((headers.get("traceparent"), headers.get("tracestate")), (Some(own), None));
        let headers = published(&[], &incoming).await;
        assert_eq!(headers.get("traceparent"), Some(other));
        assert_eq!(headers.get("tracestate"), Some("vendor=other"));
        // A state without a trace says nothing, and is not mixed with another one's.
        let headers = published(&[("tracestate", "vendor=own")], &incoming).await;
        assert_eq!(headers.get("tracestate"), Some("vendor=other"));
        assert!(published(&[], &[("tracestate", "vendor=other")]).await.get("tracestate").is_none());
    }
}
