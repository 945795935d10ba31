//! The domain event: a typed fact, before it is a message.

use std::borrow::Cow;

use serde::Serialize;

use crate::backend::trace;
use crate::codec::{Codec, Json};
use crate::message::{Message, MessageError};

/// A fact about the domain that others may want to know. Derive it: `#[derive(DomainEvent)]`.
///
/// The derive macro takes topic, type, version and key from attributes, and checks at compile time
/// that they are present. A manual implementation looks like this:
///
/// ```
/// use std::borrow::Cow;
/// # mod outbox { pub use outbox_contract::*; pub mod message { pub use outbox_contract::*; } }
/// use outbox::DomainEvent;
/// use outbox::message::EventType;
///
/// #[derive(serde::Serialize)]
/// struct OrderPlaced { order_id: u64 }
///
/// impl DomainEvent for OrderPlaced {
///     const TYPES: &'static [EventType] = &[EventType::new("orders", "order.placed", 1)];
///
///     fn event_type(&self) -> &'static EventType { &Self::TYPES[0] }
///     fn key(&self) -> Option<Cow<'_, str>> { Some(self.order_id.to_string().into()) }
/// }
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a domain event",
    label = "used here as an event",
    note = "derive it: `#[derive(serde::Serialize, DomainEvent)]` with `#[event(topic = \"…\", type = \"…\")]` and a `#[event(key)]` field",
    note = "or append a `Message` with `append_message` when there is no type for it"
)]
pub trait DomainEvent {
    /// All wire types of this Rust type: one entry for a struct, one per variant for an enum. Names
    /// are unique within it.
    const TYPES: &'static [EventType];

    /// Returns the wire type of this value: one of [`TYPES`](Self::TYPES).
    fn event_type(&self) -> &'static EventType;

    /// Returns the ordering key within the topic; `None` if the event is unordered.
    fn key(&self) -> Option<Cow<'_, str>>;
}

/// Name, topic and version of an event's wire type.
///
/// An event without a topic is *local*. Only the handlers of a unit of work receive it, in this
/// process and transaction; it never becomes a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct EventType {
    /// The topic to which it is sent. `None`: it is local, and never sent.
    pub topic: Option<&'static str>,
    /// Stable name, such as `order.placed`. Renaming the Rust type does not change it.
    pub name: &'static str,
    /// Version of the payload's schema, from 1.
    pub version: u32,
}

impl EventType {
    /// An event that is sent to a topic.
    #[must_use]
    pub const fn new(topic: &'static str, name: &'static str, version: u32) -> Self {
        Self { topic: Some(topic), name, version }
    }

    /// An event that stays in the process.
    #[must_use]
    pub const fn local(name: &'static str, version: u32) -> Self {
        Self { topic: None, name, version }
    }

    /// Returns true if events of this type stay in the process.
    #[must_use]
    pub const fn is_local(&self) -> bool {
        self.topic.is_none()
    }
}

impl Message {
    /// Turns an event into a message, in JSON. It has the topic, type, version and key of the
    /// event, and carries the [`trace`](mod@crate::backend::trace) of the current span.
    ///
    /// For programs without an [`Outbox`](crate::Outbox), whose transactions are those of another
    /// driver: see [`AppendSql`](crate::AppendSql).
    ///
    /// # Errors
    ///
    /// Describes the invalid part of the event: a key that is empty or too long, a payload that
    /// does not encode, a missing topic.
    pub fn encode<E>(event: &E) -> Result<Self, MessageError>
    where
        E: DomainEvent + Serialize + ?Sized,
    {
        Self::encode_with(&Json, event)
    }

    /// Like [`encode`](Self::encode), by another codec.
    ///
    /// # Errors
    ///
    /// The same.
    pub fn encode_with<E>(codec: &impl Codec, event: &E) -> Result<Self, MessageError>
    where
        E: DomainEvent + Serialize + ?Sized,
    {
        let kind = event.event_type();
        let topic = kind.topic.ok_or(MessageError::Local { event_type: kind.name })?;
        let mut message = Self::new(topic, kind.name)?
            .with_schema_version(kind.version)
            .with_content_type(codec.content_type())
            .with_payload(codec.encode(event)?);
        if let Some(key) = event.key() {
            message = message.with_key(key)?;
        }
        trace::inject(&mut message.headers);
        Ok(message)
    }
}
