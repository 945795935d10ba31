//! Untrusted rows, for authors of stores: any program can write to the tables.
//!
//! A strict read returns a message, or the fault of the row. A lenient read returns a presentable
//! message, for the dead letter that the row becomes.

use std::fmt::{self, Display};
use std::sync::Arc;

use bytes::Bytes;
use uuid::Uuid;

use crate::clock::Timestamp;
use crate::headers::Headers;
use crate::id::MessageId;
use crate::message::Message;
use crate::name::{Key, NameError, Topic};

/// The columns of a message, as read from a row. `None`: a text or bytes column is null or
/// unreadable.
///
/// ```
/// # extern crate outbox_contract as outbox;
/// use outbox::backend::RawMessage;
///
/// let mut row = RawMessage::default();
/// row.topic = Some(b"orders");
/// assert_eq!(row.message().unwrap_err(), "its id is not a UUID of 16 bytes");
/// assert_eq!(row.presentable().topic.as_str(), "orders");
/// ```
#[derive(Clone, Copy, Default)]
#[non_exhaustive]
pub struct RawMessage<'r> {
    /// The bytes of [`Message::id`].
    pub id: Option<&'r [u8]>,
    /// [`Message::topic`].
    pub topic: Option<&'r [u8]>,
    /// [`Message::key`]. `None`: the message has none.
    pub key: Option<&'r [u8]>,
    /// [`Message::event_type`].
    pub event_type: Option<&'r [u8]>,
    /// [`Message::schema_version`].
    pub schema_version: i64,
    /// [`Message::content_type`].
    pub content_type: Option<&'r [u8]>,
    /// [`Message::headers`], as [`Headers::to_bytes`] writes them. `None`: the message has none.
    pub headers: Option<&'r [u8]>,
    /// [`Message::payload`]. `None`: it is empty.
    pub payload: Option<&'r [u8]>,
    /// [`Message::occurred_at`], in microseconds.
    pub occurred_at: i64,
}

/// Omits the payload, which may be confidential.
impl fmt::Debug for RawMessage<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("RawMessage").field(&self.names()).finish()
    }
}

impl RawMessage<'_> {
    /// Returns the message.
    ///
    /// # Errors
    ///
    /// The fault of an invalid row: the reason of
    /// [`FetchedRow::Malformed`](crate::backend::FetchedRow::Malformed).
    pub fn message(&self) -> Result<Message, String> {
        self.message_like(None)
    }

    /// Returns the message. If topic and event type equal those of another message, it shares them,
    /// and neither checks nor copies them. For the rows of a fetch, most of which resemble the
    /// previous one.
    ///
    /// # Errors
    ///
    /// As [`message`](Self::message).
    pub fn message_like(&self, other: Option<&Message>) -> Result<Message, String> {
        let id = self.id().ok_or("its id is not a UUID of 16 bytes")?;
        let topic = match other {
            Some(other) if self.topic == Some(other.topic.as_str().as_bytes()) => other.topic.clone(),
            _ => Topic::new(text("topic", self.topic)?).map_err(shown)?,
        };
        let event_type = match other {
            Some(other) if self.event_type == Some(other.event_type.as_bytes()) => {
                Arc::clone(&other.event_type)
            }
            _ => text("event_type", self.event_type)?.into(),
        };
        let mut message = Message::of(id, topic, event_type);
        if self.key.is_some() {
            message.key = Some(Key::new(text("key", self.key)?).map_err(shown)?);
        }
        let content_type = text("content_type", self.content_type)?;
        // Most values equal those of a new message, and need no copy.
        if *message.content_type != *content_type {
            message.content_type = content_type.into();
        }
        let version = self.schema_version;
        message.schema_version = u32::try_from(version)
            .map_err(|_| format!("its schema_version is {version}; versions count from 1"))?;
        message.headers = self.read_headers()?;
        message.payload = self.copy_payload();
        message.occurred_at = Timestamp::from_micros(self.occurred_at);
        message.validate().map_err(shown)?;
        Ok(message)
    }

    /// Returns a presentable form of the row, valid message or not: control characters in names are
    /// replaced, long names are truncated.
    #[must_use]
    pub fn presentable(&self) -> Message {
        let mut message = self.names();
        message.content_type = presentable(self.content_type, Message::MAX_TYPE_BYTES).into();
        message.schema_version = u32::try_from(self.schema_version).unwrap_or(1);
        message.headers = self.read_headers().unwrap_or_default();
        message.payload = self.copy_payload();
        message.occurred_at = Timestamp::from_micros(self.occurred_at);
        message
    }

    /// Like [`presentable`](Self::presentable), with id, topic, key and event type only.
    #[must_use]
    pub fn names(&self) -> Message {
        let topic = named(presentable(self.topic, Topic::MAX_BYTES), Topic::new);
        let event_type = presentable(self.event_type, Message::MAX_TYPE_BYTES);
        let id = self.id().unwrap_or(MessageId::from_uuid(Uuid::nil()));
        let mut message = Message::of(id, topic, event_type);
        if self.key.is_some() {
            message.key = Some(named(presentable(self.key, Key::MAX_BYTES), Key::new));
        }
        message
    }

    fn id(&self) -> Option<MessageId> {
        Uuid::from_slice(self.id?).ok().map(MessageId::from_uuid)
    }

    fn read_headers(&self) -> Result<Headers, String> {
        Headers::from_bytes(self.headers.unwrap_or_default())
            .map_err(|error| format!("its headers are not a JSON object of strings: {error}"))
    }

    fn copy_payload(&self) -> Bytes {
        Bytes::copy_from_slice(self.payload.unwrap_or_default())
    }
}

fn text<'r>(column: &str, bytes: Option<&'r [u8]>) -> Result<&'r str, String> {
    let bytes = bytes.ok_or_else(|| format!("its {column} is null"))?;
    std::str::from_utf8(bytes).map_err(|error| format!("its {column} is not UTF-8: {error}"))
}

fn presentable(bytes: Option<&[u8]>, most: usize) -> String {
    let text = String::from_utf8_lossy(bytes.unwrap_or_default());
    let mut text: String = text.chars().map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect();
    if text.is_empty() {
        text.push('?');
    }
    let end = (0..=most.min(text.len())).rev().find(|at| text.is_char_boundary(*at)).unwrap_or_default();
    text.truncate(end);
    text
}

fn named<T>(text: String, new: impl Fn(String) -> Result<T, NameError>) -> T {
    new(text).unwrap_or_else(|_| unreachable!("not empty, cut to length, without control characters"))
}

fn shown(error: impl Display) -> String {
    error.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: [u8; 16] = [7; 16];

    fn row() -> RawMessage<'static> {
        RawMessage {
            id: Some(&ID),
            topic: Some(b"orders"),
            key: Some(b"order-1"),
            event_type: Some(b"order.placed"),
            schema_version: 3,
            content_type: Some(b"text/plain"),
            headers: Some(br#"{"tenant":"acme"}"#),
            payload: Some(b"paid"),
            occurred_at: -1,
        }
    }

    fn expected() -> Message {
        Message::new("orders", "order.placed")
            .unwrap()
            .with_id(MessageId::from_uuid(Uuid::from_bytes(ID)))
            .with_key("order-1")
            .unwrap()
            .with_schema_version(3)
            .with_content_type("text/plain")
            .with_header("tenant", "acme")
            .unwrap()
            .with_payload("paid")
            .with_occurred_at(Timestamp::from_micros(-1))
    }

    #[test]
    fn a_row_that_is_a_message_is_read_in_every_field() {
        assert_eq!(row().message().unwrap(), expected());
        assert_eq!(row().presentable(), expected());
        let other = RawMessage { topic: Some(b"refunds"), ..row() }.message().unwrap();
        assert_eq!(row().message_like(Some(&expected())).unwrap(), expected());
        assert_eq!(row().message_like(Some(&other)).unwrap(), expected());
        let plain = RawMessage { key: None, headers: None, payload: None, ..row() }.message().unwrap();
        assert_eq!((plain.key, plain.headers, plain.payload), (None, Headers::new(), Bytes::new()));
    }

    #[test]
    fn a_row_that_is_no_message_says_what_is_wrong() {
        let long = "x".repeat(Topic::MAX_BYTES + 1);
        let long = Some(long.as_bytes());
        for (row, says) in [
            (RawMessage { id: Some(b"7"), ..row() }, "its id is not a UUID of 16 bytes"),
            (RawMessage { id: None, ..row() }, "its id is not a UUID of 16 bytes"),
            (RawMessage { topic: None, ..row() }, "its topic is null"),
            (RawMessage { topic: Some(b"a\xff"), ..row() }, "its topic is not UTF-8"),
            (RawMessage { topic: long, ..row() }, "topic"),
            (RawMessage { key: Some(b""), ..row() }, "key"),
            (RawMessage { key: Some(b"a\nb"), ..row() }, "key"),
            (RawMessage { event_type: None, ..row() }, "its event_type is null"),
            (RawMessage { event_type: Some(b""), ..row() }, "type"),
            (RawMessage { content_type: Some(b"\xff"), ..row() }, "its content_type is not UTF-8"),
            (RawMessage { schema_version: -1, ..row() }, "its schema_version is -1"),
            (RawMessage { schema_version: 1 << 32, ..row() }, "versions count from 1"),
            (RawMessage { headers: Some(b"[]"), ..row() }, "its headers are not a JSON object of strings"),
        ] {
            let wrong = row.message().unwrap_err();
            assert!(wrong.contains(says), "{wrong}");
        }
    }

    #[test]
    fn something_presentable_is_made_of_any_row() {
        // Two bytes per character: the limit splits a character.
        let long = "é".repeat(Topic::MAX_BYTES);
        let row = RawMessage {
            topic: Some(long.as_bytes()),
            key: Some(b"a\nb\xff"),
            headers: Some(b"nonsense"),
            payload: Some(b"kept"),
            schema_version: -1,
            ..RawMessage::default()
        };
        let shown = row.presentable();
        assert_eq!(shown.id, MessageId::from_uuid(Uuid::nil()));
        assert!(long.starts_with(shown.topic.as_str()));
        assert_eq!(shown.topic.as_str().len(), Topic::MAX_BYTES / 2 * 2);
        assert_eq!(shown.key.unwrap().as_str(), "a\u{fffd}b\u{fffd}");
        assert_eq!((&*shown.event_type, &*shown.content_type), ("?", "?"));
        assert_eq!((shown.schema_version, shown.headers), (1, Headers::new()));
        assert_eq!(shown.payload, "kept");
        assert!(!format!("{row:?}").contains("kept"));
    }
}
