//! The domain event: a typed fact, before it is a message.

use std::borrow::Cow;

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
