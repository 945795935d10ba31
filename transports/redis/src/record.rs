//! A message as an entry of a stream, and back.
//!
//! An entry has the payload in the field `data`, before all others; then the content type, the
//! CloudEvents attributes under `ce-`, and the message's headers under their own names. The order
//! of fields is always the same, so that Redis stores their names once for many entries.

use bytes::Bytes;
use outbox_contract::backend::{Origin, RawRecord, Stored, Undecodable, cloudevents};
use outbox_contract::{Failure, Message, Rejection, Topic};

/// The field of the payload. A header may have the same name: the first field is the payload.
const DATA: &str = "data";

/// The most headers of one message: a script passes each as two strings, and Lua takes about 8,000
/// at once.
const MAX_HEADERS: usize = 1_000;

/// Gives the fields of a message to `add`, name and value in turn.
pub(crate) fn encode(stored: &Stored, source: &str, mut add: impl FnMut(&[u8])) {
    let message = &stored.message;
    add(DATA.as_bytes());
    add(&message.payload);
    if let Some(content_type) = cloudevents::content_type(message) {
        add(cloudevents::CONTENT_TYPE.as_bytes());
        add(content_type.as_bytes());
    }
    cloudevents::each(message, source, stored.position, cloudevents::HTTP, |name, value| {
        add(name.as_bytes());
        add(value.as_bytes());
    });
}

/// Reads an entry.
///
/// # Errors
///
/// [`Undecodable`] says why this is not a message, and keeps what is there.
pub(crate) fn decode(
    fields: &[(Bytes, Bytes)],
    came_from: &Topic,
) -> Result<(Message, Option<Origin>), Undecodable> {
    let payload = fields.iter().position(|(name, _)| name == DATA.as_bytes());
    let bytes = payload.and_then(|at| fields.get(at)).map(|(_, value)| value.clone());
    let mut raw = RawRecord::new(cloudevents::HTTP, bytes.unwrap_or_default());
    for (at, (name, value)) in fields.iter().enumerate() {
        if Some(at) != payload {
            raw.push(&name[..], &value[..]);
        }
    }
    raw.message(came_from).map_err(|mut undecodable| {
        if payload.is_none() {
            undecodable.reason =
                format!("{}; the field {DATA}, which holds the payload, is missing too", undecodable.reason);
        }
        undecodable
    })
}

/// Returns true if a message can be an entry at all, on a server that takes strings of so many
/// bytes.
pub(crate) fn validate(message: &Message, max_bytes: usize) -> Result<(), Rejection> {
    let bytes = message.payload.len();
    if bytes > max_bytes {
        return Err(Rejection(Failure::new(
            "message-too-large",
            format!(
                "the payload has {bytes} bytes, over the limit of {max_bytes}; raise max_message_bytes or the server's \
                 proto-max-bulk-len, or send a reference"
            ),
        )));
    }
    if message.headers.len() > MAX_HEADERS {
        return Err(Rejection(Failure::new(
            "too-many-headers",
            format!("the message has {} headers; send {MAX_HEADERS} or fewer", message.headers.len()),
        )));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use outbox_contract::Timestamp;
    use outbox_contract::backend::Position;

    use super::*;

    fn fields(stored: &Stored) -> Vec<(Bytes, Bytes)> {
        let mut strings = Vec::new();
        encode(stored, "/shop", |string| strings.push(Bytes::copy_from_slice(string)));
        strings.chunks(2).map(|pair| (pair[0].clone(), pair[1].clone())).collect()
    }

    /// Returns what is read of an event of another program, with these fields more.
    fn foreign(more: &[(&str, &[u8])]) -> Message {
        let all: [(&str, &[u8]); 5] = [
            ("ce-specversion", b"1.0"),
            ("ce-id", b"17"),
            ("ce-source", b"/legacy"),
            ("ce-type", b"x"),
            ("data", b""),
        ];
        let pair = |(name, value): &(&str, &[u8])| {
            (Bytes::copy_from_slice(name.as_bytes()), Bytes::copy_from_slice(value))
        };
        let pairs: Vec<_> = all.iter().chain(more).map(pair).collect();
        decode(&pairs, &Topic::new("orders").unwrap()).unwrap().0
    }

    #[test]
    fn a_message_survives_even_when_its_headers_are_called_like_our_fields() {
        let topic = Topic::new("orders").unwrap();
        let message = Message::new(topic.clone(), "order.placed")
            .unwrap()
            .with_key("a")
            .and_then(|message| message.with_header("data", "a header"))
            .unwrap()
            .with_payload(vec![0, 159, 255]);
        let stored = Stored::new(Position(7), Timestamp::now(), message.clone());
        let (read, origin) = decode(&fields(&stored), &topic).unwrap();
        assert_eq!(read, message);
        assert_eq!(origin.map(|origin| origin.sequence), Some(7));
    }

    #[test]
    fn what_has_no_payload_has_no_content_type_and_a_tombstone_says_what_it_is() {
        let topic = Topic::new("orders").unwrap();
        let empty = Message::new(topic.clone(), "order.placed").unwrap().with_key("a").unwrap();
        for message in [empty.clone(), empty.into_tombstone()] {
            let is_tombstone = message.is_tombstone();
            let fields = fields(&Stored::new(Position(7), Timestamp::now(), message.clone()));
            let has = |field: &str| fields.iter().any(|(name, _)| name == field.as_bytes());
            assert_eq!((has("content-type"), has("ce-tombstone")), (false, is_tombstone));
            assert_eq!(decode(&fields, &topic).unwrap().0, message);
        }
    }

    /// An event in structured mode; one in binary mode without data; and one with the prefix of
    /// another protocol.
    #[test]
    fn an_event_of_another_program_is_read_as_it_writes_it() {
        let read = |fields: &[(&'static str, &'static str)]| {
            let pairs: Vec<_> =
                fields.iter().map(|(name, value)| (Bytes::from(*name), Bytes::from(*value))).collect();
            decode(&pairs, &Topic::new("orders").unwrap()).map(|(message, _)| message)
        };
        let event = r#"{"specversion":"1.0","id":"17","source":"/s","type":"x","data":{"a":1}}"#;
        let message = read(&[("Content-Type", "application/cloudevents+json"), ("data", event)]).unwrap();
        assert_eq!((&*message.event_type, &message.payload[..]), ("x", &br#"{"a":1}"#[..]));
        let required = |prefix: &'static str| -> Vec<(&'static str, &'static str)> {
            [("specversion", "1.0"), ("id", "17"), ("source", "/s"), ("type", "x")]
                .map(|(name, value)| (&*format!("{prefix}{name}").leak(), value))
                .to_vec()
        };
        for prefix in ["ce-", "ce_", "cloudEvents:", "cloudEvents_"] {
            assert_eq!(read(&required(prefix)).unwrap().payload, "", "{prefix}");
        }
    }

    /// A stream keeps everything in order; of that, the inbox keeps what has the same key.
    #[test]
    fn the_key_of_another_program_is_its_partition_key_or_subject_whatever_it_is() {
        let key = |more: &[(&str, &[u8])]| foreign(more).key.map(|key| key.to_string());
        let both = [("ce-partitionkey", &b"order-1"[..]), ("ce-subject", b"line-1")];
        assert_eq!(key(&both).as_deref(), Some("order-1"));
        assert_eq!(key(&both[1..]).as_deref(), Some("line-1"));
        assert_eq!(key(&[("ce-partitionkey", b"a\nb")]).as_deref(), Some("0x610a62"));
        assert_eq!(key(&[("ce-partitionkey", b"\0\0\0\x07")]).as_deref(), Some("0x00000007"), "as on Kafka");
        assert_eq!(key(&[("ce-partitionkey", b"\xff")]).as_deref(), Some("0xff"));
        assert_eq!(key(&[]), None);
    }

    #[test]
    fn fields_of_any_bytes_and_length_come_along() {
        let long = vec![b'x'; 10_000];
        let message = foreign(&[
            ("bytes", b"\xffa"),
            ("lines", b"two\nlines"),
            ("long", &long),
            ("content-type", b""),
            ("ce-schemaversion", b"1.2.0"),
            ("ce-subject", &long[..300]),
        ]);
        let header = |name| message.headers.get(name).unwrap();
        assert_eq!(
            (header("bytes"), header("lines"), header("long").len()),
            ("\\xffa", "two\\nlines", 8_192)
        );
        assert_eq!((message.schema_version, &*message.content_type), (1, "application/octet-stream"));
        let note = header(cloudevents::ADAPTED);
        assert!(["bytes", "lines", "long", "schemaversion"].iter().all(|name| note.contains(name)), "{note}");
    }

    #[test]
    fn what_is_not_a_message_says_why_and_keeps_what_is_there() {
        let topic = Topic::new("orders").unwrap();
        let pair = |name: &'static [u8], value: &'static [u8]| (Bytes::from(name), Bytes::from(value));
        let error = decode(&[pair(b"total", b"42")], &topic).unwrap_err();
        assert!(error.reason.contains("data"), "{error}");
        assert_eq!(error.headers, [("total".to_owned(), "42".to_owned())]);
        let error = decode(&[pair(b"data", b"{}"), pair(b"x", b"\xff")], &topic).unwrap_err();
        assert!(error.reason.contains("ce-specversion, ce-id"), "{error}");
        assert_eq!(error.payload, "{}");
        assert_eq!(error.headers, [("x".to_owned(), "\\xff".to_owned())], "raw, but for the payload");
    }

    proptest::proptest! {
        #[test]
        fn nothing_in_a_stream_makes_the_reader_panic(
            pairs in proptest::collection::vec(("(ce-)?[a-z]{0,12}|data", proptest::collection::vec(0_u8.., 0..20)), 0..12),
        ) {
            let fields: Vec<_> = pairs.into_iter().map(|(name, value)| (Bytes::from(name), Bytes::from(value))).collect();
            let _ = decode(&fields, &Topic::new("orders").unwrap());
        }
    }
}
