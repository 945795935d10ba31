//! The domain event: a typed fact, before it is a message.

use std::borrow::Cow;

/// A fact about the domain that others may want to hear of. Derive it: `#[derive(DomainEvent)]`.
///
/// The derive takes topic, type, version and key from attributes and checks at compile time that they are there. By
/// hand it looks like this:
///
/// ```
/// use std::borrow::Cow;
/// use outbox_contract::{DomainEvent, EventType};
///
/// #[derive(serde::Serialize)]
/// struct OrderPlaced { order_id: u64 }
///
/// impl DomainEvent for OrderPlaced {
///     const TYPES: &'static [EventType] = &[EventType { topic: Some("orders"), name: "order.placed", version: 1 }];
///
///     fn event_type(&self) -> &'static EventType { &Self::TYPES[0] }
///     fn key(&self) -> Option<Cow<'_, str>> { Some(self.order_id.to_string().into()) }
/// }
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a domain event",
    label = "appended here as an event",
    note = "derive it: `#[derive(serde::Serialize, DomainEvent)]` with `#[event(topic = \"…\", type = \"…\")]` and a `#[event(key)]` field",
    note = "or append a `Message` with `append_message` when there is no type for it"
)]
pub trait DomainEvent {
    /// Everything that a value of this type can be on the wire: one entry for a struct, one per variant for an enum.
    /// Names are unique in it.
    const TYPES: &'static [EventType];

    /// What this value is on the wire: one of [`TYPES`](Self::TYPES).
    fn event_type(&self) -> &'static EventType;

    /// What it is ordered by within its topic; None when it is ordered with nothing.
    fn key(&self) -> Option<Cow<'_, str>>;
}

/// The name, topic and version of an event's type on the wire.
///
/// An event without a topic is *local*: it is for the handlers of a unit of work, in this process and transaction, and never a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct EventType {
    /// The topic that it is sent to. None: it is local, and never sent.
    pub topic: Option<&'static str>,
    /// Its stable name, such as `order.placed`. Renaming the Rust type does not change it.
    pub name: &'static str,
    /// The version of its payload's schema, from 1.
    pub version: u32,
}

impl EventType {
    /// Whether events of this type stay in the process.
    #[must_use]
    pub const fn is_local(&self) -> bool {
        self.topic.is_none()
    }
}
