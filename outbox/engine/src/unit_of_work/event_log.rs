//! Event log of an aggregate: its recorded changes until a unit of work collects them.

use outbox_contract::DomainEvent;
use serde::Serialize;

/// Events that an aggregate has recorded and no unit of work has collected. A field of the
/// aggregate.
///
/// Plain data: a domain model with an event log needs neither a database nor a runtime, and its
/// tests compare events.
///
/// ```
/// # extern crate outbox_contract as outbox;
/// # mod outbox { pub use outbox_contract::*; pub use outbox_engine::*; }
/// use outbox::EventLog;
/// use outbox_derive::DomainEvent;
///
/// #[derive(Debug, PartialEq, serde::Serialize, DomainEvent)]
/// #[event(topic = "contacts", key = "id")]
/// enum ContactEvent {
///     #[serde(rename = "contact.renamed")]
///     Renamed { id: u32, name: String },
/// }
///
/// struct Contact { id: u32, name: String, events: EventLog<ContactEvent> }
///
/// impl Contact {
///     fn rename(&mut self, name: &str) {
///         self.name = name.to_owned();
///         self.events.replace(ContactEvent::Renamed { id: self.id, name: name.to_owned() });
///     }
/// }
///
/// let mut contact = Contact { id: 1, name: "Ann".to_owned(), events: EventLog::new() };
/// contact.rename("Anna");
/// contact.rename("Hannah"); // replaces the event for Anna
/// assert_eq!(contact.events.take(), [ContactEvent::Renamed { id: 1, name: "Hannah".to_owned() }]);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EventLog<E> {
    events: Vec<E>,
}

impl<E> Default for EventLog<E> {
    fn default() -> Self {
        Self { events: Vec::new() }
    }
}

impl<E> EventLog<E> {
    /// Creates an empty log.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds an event after the others.
    pub fn append(&mut self, event: E) {
        self.events.push(event);
    }

    /// Takes all events out, oldest first.
    #[must_use = "what is taken out is not in the log any more"]
    pub fn take(&mut self) -> Vec<E> {
        std::mem::take(&mut self.events)
    }

    /// Iterates over the events, oldest first.
    pub fn iter(&self) -> std::slice::Iter<'_, E> {
        self.events.iter()
    }

    /// Returns the number of events.
    #[must_use]
    pub fn len(&self) -> usize {
        self.events.len()
    }

    /// Returns true if there are no events.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.events.is_empty()
    }
}

impl<E: DomainEvent> EventLog<E> {
    /// Adds an event after the others, and drops an earlier one of the same event type and key: for
    /// events that describe the current state, where only the last one matters.
    pub fn replace(&mut self, event: E) {
        let (kind, key) = (event.event_type(), event.key());
        self.events.retain(|earlier| earlier.event_type() != kind || earlier.key() != key);
        drop(key);
        self.events.push(event);
    }
}

/// An object that records events as it changes, so that a unit of work can
/// [collect](crate::UnitOfWork::collect) them.
pub trait Aggregate {
    /// Its events: an enum, or a struct if there is only one kind.
    type Event: DomainEvent + Serialize + Send + Sync + 'static;

    /// Returns its event log.
    fn events(&mut self) -> &mut EventLog<Self::Event>;
}

#[cfg(test)]
mod tests {
    use std::borrow::Cow;

    use outbox_contract::EventType;

    use super::*;

    #[derive(Clone, Debug, PartialEq)]
    enum Event {
        Renamed(u8, &'static str),
        Moved(u8, &'static str),
    }

    impl DomainEvent for Event {
        const TYPES: &'static [EventType] =
            &[EventType::new("contacts", "renamed", 1), EventType::new("contacts", "moved", 1)];

        fn event_type(&self) -> &'static EventType {
            match self {
                Self::Renamed(..) => &Self::TYPES[0],
                Self::Moved(..) => &Self::TYPES[1],
            }
        }

        fn key(&self) -> Option<Cow<'_, str>> {
            let (Self::Renamed(key, _) | Self::Moved(key, _)) = self;
            Some(key.to_string().into())
        }
    }

    #[test]
    fn what_is_appended_stays_beside_earlier_ones_of_its_type() {
        let mut log = EventLog::new();
        for name in ["a", "b"] {
            log.append(Event::Renamed(1, name));
        }
        assert_eq!(log.take(), [Event::Renamed(1, "a"), Event::Renamed(1, "b")]);
        assert!(log.is_empty());
    }

    #[test]
    fn what_replaces_takes_the_place_of_its_type_and_key_alone_and_goes_last() {
        let mut log = EventLog::new();
        log.append(Event::Renamed(1, "a"));
        log.append(Event::Renamed(2, "b"));
        log.append(Event::Moved(1, "c"));
        log.replace(Event::Renamed(1, "d"));
        assert_eq!(log.take(), [Event::Renamed(2, "b"), Event::Moved(1, "c"), Event::Renamed(1, "d")]);
    }
}
