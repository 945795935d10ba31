//! The identity of a message in an inbox: the `source` and `id` of its event together, as
//! CloudEvents has it.
//!
//! The store knows a message by one id: where it waits, where it is noted as handled, where it lies
//! dead. So a message gets an id of both when it comes in, and a handler sees the one that its
//! producer wrote.

use std::borrow::Cow;

use outbox_contract::Message;
use outbox_contract::backend::{EVENT_ID, Origin, cloudevents};

/// Gives a message that came in its source, and the id that it is known by from here on.
pub(crate) fn take_in(message: &mut Message, origin: Option<&Origin>) {
    // Whoever sent one could make a handler see any id.
    message.headers.remove(EVENT_ID);
    let Some(origin) = origin else { return };
    message.received_from(&origin.source);
    let id = cloudevents::identity(&origin.source, message.id);
    if id != message.id {
        // It always fits: a valid name and 36 characters.
        let _ = message.headers.insert(EVENT_ID, message.id.to_string());
        message.id = id;
    }
}

/// The message as its producer wrote it.
pub(crate) fn as_written(message: &Message) -> Cow<'_, Message> {
    let Some(id) = message.headers.get(EVENT_ID).and_then(|id| id.parse().ok()) else {
        return Cow::Borrowed(message);
    };
    let mut written = message.clone();
    written.id = id;
    written.headers.remove(EVENT_ID);
    Cow::Owned(written)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message() -> Message {
        Message::new("orders", "order.placed").unwrap().with_header("tenant", "acme").unwrap()
    }

    fn taken_in(message: &Message, source: &str) -> Message {
        let mut message = message.clone();
        take_in(&mut message, Some(&Origin { source: source.into(), sequence: 7 }));
        message
    }

    #[test]
    fn the_same_id_of_two_sources_is_two_messages_and_a_handler_sees_the_id_that_was_written() {
        let sent = message();
        let (one, other) = (taken_in(&sent, "/one"), taken_in(&sent, "/other"));
        assert!(one.id != other.id && one.id != sent.id);
        assert_eq!(one.id, taken_in(&sent, "/one").id, "a repeat is one");
        for message in [&one, &other] {
            let written = as_written(message);
            assert_eq!((written.id, written.headers.get("tenant")), (sent.id, Some("acme")));
        }
        assert_eq!((as_written(&one).source(), as_written(&other).source()), (Some("/one"), Some("/other")));
    }

    #[test]
    fn an_event_that_has_no_number_keeps_its_id() {
        let sent = message();
        let mut foreign = sent.clone();
        take_in(&mut foreign, None);
        assert_eq!(foreign, sent, "its id is of both already");
        assert!(matches!(as_written(&foreign), Cow::Borrowed(_)));
    }

    #[test]
    fn no_producer_sends_the_id_that_a_handler_sees() {
        let sent = message();
        let forged = sent.clone().with_header(EVENT_ID, message().id.to_string()).unwrap();
        assert_eq!(as_written(&taken_in(&forged, "/shop")).id, sent.id);
        let mut forged = sent.clone();
        forged.headers.insert("ce-source", "/forged").unwrap();
        assert_eq!(taken_in(&forged, "/shop").source(), Some("/shop"));
    }
}
