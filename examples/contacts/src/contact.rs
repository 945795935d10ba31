//! The contact: an aggregate that records its changes. It knows nothing of a database.

use outbox::prelude::*;
use serde::{Deserialize, Serialize};

// ANCHOR: events
/// Events of a contact. serde's names are the event types and appear in the payloads, so the
/// variants can be renamed later.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, DomainEvent)]
#[event(topic = "contacts", key = "id")]
pub(crate) enum ContactEvent {
    #[serde(rename = "contact.added")]
    Added { id: i64, name: String, email: String },
    #[serde(rename = "contact.renamed")]
    Renamed { id: i64, name: String },
    #[serde(rename = "contact.email_changed")]
    EmailChanged { id: i64, old: String, new: String },
}
// ANCHOR_END: events

// ANCHOR: aggregate
/// A person we know.
#[derive(Debug)]
pub(crate) struct Contact {
    pub(crate) id: i64,
    pub(crate) name: String,
    pub(crate) email: String,
    /// Version read from the database; 0 for a new contact.
    pub(crate) version: i64,
    pub(crate) events: EventLog<ContactEvent>,
}

impl Contact {
    /// Changes the name. Only the last name before a commit matters to others, so the event
    /// replaces an earlier one.
    pub(crate) fn rename(&mut self, name: &str) {
        if name != self.name {
            name.clone_into(&mut self.name);
            self.events.replace(ContactEvent::Renamed { id: self.id, name: name.to_owned() });
        }
    }

    /// Changes the e-mail address. Each change is an event of its own, because each may need a
    /// confirmation.
    pub(crate) fn change_email(&mut self, email: &str) -> Result<(), NotAnAddress> {
        if !email.contains('@') {
            return Err(NotAnAddress(email.to_owned()));
        }
        let old = std::mem::replace(&mut self.email, email.to_owned());
        if old != self.email {
            self.events.append(ContactEvent::EmailChanged { id: self.id, old, new: email.to_owned() });
        }
        Ok(())
    }
}

impl Aggregate for Contact {
    type Event = ContactEvent;

    fn events(&mut self) -> &mut EventLog<ContactEvent> {
        &mut self.events
    }
}
// ANCHOR_END: aggregate

impl Contact {
    /// Creates a new contact.
    pub(crate) fn new(id: i64, name: &str, email: &str) -> Self {
        let mut events = EventLog::new();
        events.append(ContactEvent::Added { id, name: name.to_owned(), email: email.to_owned() });
        Self { id, name: name.to_owned(), email: email.to_owned(), version: 0, events }
    }
}

/// The given text is not an e-mail address.
#[derive(Debug, PartialEq)]
pub(crate) struct NotAnAddress(pub(crate) String);

impl std::fmt::Display for NotAnAddress {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:?} is not an e-mail address: it has no @", self.0)
    }
}

impl std::error::Error for NotAnAddress {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_several_names_the_last_is_told_and_of_addresses_all() {
        let mut ann = Contact::new(1, "Ann", "ann@old");
        let _added = ann.events.take();
        ann.rename("Anna");
        ann.change_email("ann@new").unwrap();
        ann.change_email("ann@newer").unwrap();
        ann.rename("Hannah");
        ann.rename("Hannah");
        let moved =
            |old: &str, new: &str| ContactEvent::EmailChanged { id: 1, old: old.into(), new: new.into() };
        let renamed = ContactEvent::Renamed { id: 1, name: "Hannah".into() };
        assert_eq!(ann.events.take(), [moved("ann@old", "ann@new"), moved("ann@new", "ann@newer"), renamed]);
    }

    #[test]
    fn what_is_no_address_changes_nothing() {
        let mut ann = Contact::new(1, "Ann", "ann@old");
        assert_eq!(ann.change_email("nowhere"), Err(NotAnAddress("nowhere".into())));
        assert_eq!((ann.email.as_str(), ann.events.len()), ("ann@old", 1));
    }
}
