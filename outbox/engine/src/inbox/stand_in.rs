//! Messages that stand for what can't be handled or kept as it is: no handler gets them, and they become dead letters.

use outbox_contract::subscription::Undecodable;
use outbox_contract::{Headers, Message, Topic};

use super::handlers::{UNDECODABLE, UNDECODABLE_REASON};

/// The message; or one that stands for what is none.
pub(crate) fn message_of(decoded: Result<Message, Undecodable>, topic: &Topic) -> Message {
    let junk = match decoded {
        Ok(message) => return message,
        Err(junk) => junk,
    };
    let length = junk.payload.len().min(Message::MOST_PAYLOAD_BYTES);
    let mut message = Message::new(topic.clone(), UNDECODABLE)
        .with_content_type("application/octet-stream")
        .with_payload(junk.payload.slice(..length));
    for (name, value) in junk.headers {
        // What can't be a header here can't be kept as one.
        let _ = message.headers.insert(name, value);
    }
    give_reason(&mut message, &junk.reason);
    message
}

/// Stands for a message that the store refuses to keep: of the same id and key, so that it stands where that would, with nothing else of it.
pub(crate) fn refused(message: &Message, words: &str) -> Message {
    let mut stand_in = Message::new(message.topic.clone(), UNDECODABLE);
    stand_in.id = message.id;
    stand_in.key.clone_from(&message.key);
    stand_in.occurred_at = message.occurred_at;
    let reason = format!(
        "a message of type {} with {} bytes of payload, about {} in all, could not be stored: {words}",
        message.event_type,
        message.payload.len(),
        message.bytes()
    );
    give_reason(&mut stand_in, &reason);
    stand_in
}

/// As much of a reason as a header can have.
fn give_reason(message: &mut Message, reason: &str) {
    let reason: String = reason.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    let end = reason.floor_char_boundary(Headers::MOST_VALUE_BYTES);
    let _ = message.headers.insert(UNDECODABLE_REASON, &reason[..end]);
}

#[cfg(test)]
mod tests {
    use outbox_contract::Bytes;

    use super::*;

    #[test]
    fn what_is_no_message_is_kept_with_its_bytes_and_the_reason() {
        let headers = vec![("tenant".to_owned(), "acme".to_owned()), (String::new(), "nameless".to_owned())];
        let junk = Undecodable::new("no\nid", Bytes::from_static(b"\xff\x00"), headers);
        let message = message_of(Err(junk), &"orders".parse().unwrap());
        assert!(message.validate().is_ok());
        assert_eq!((&*message.event_type, &message.payload[..]), (UNDECODABLE, &b"\xff\x00"[..]));
        assert_eq!(message.headers.get(UNDECODABLE_REASON), Some("no id"));
        assert_eq!((message.headers.get("tenant"), message.headers.len()), (Some("acme"), 2));
    }

    #[test]
    fn a_reason_of_any_length_is_kept_as_far_as_a_header_goes() {
        let junk = Undecodable::new("é".repeat(9_000), Bytes::new(), Vec::new());
        let message = message_of(Err(junk), &"orders".parse().unwrap());
        assert!(message.headers.get(UNDECODABLE_REASON).is_some_and(|reason| reason.len() > 8_000));
    }

    #[test]
    fn what_stands_for_a_refused_message_has_its_place_and_can_be_stored() {
        let long = "x".repeat(Message::MOST_PAYLOAD_BYTES + 1);
        let mut message = Message::new("orders".parse().unwrap(), "order.placed").with_key("a").unwrap();
        message.payload = long.into();
        let stand_in = refused(&message, "too\nlarge");
        assert!(message.validate().is_err() && stand_in.validate().is_ok());
        assert_eq!((stand_in.id, stand_in.key_id()), (message.id, message.key_id()));
        let reason = stand_in.headers.get(UNDECODABLE_REASON).unwrap();
        assert!(reason.contains("order.placed") && reason.ends_with("too large"), "{reason}");
    }
}
