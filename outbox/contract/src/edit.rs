//! Corrections of a dead letter, before it is requeued.

use std::fmt;

use bytes::Bytes;

use crate::backend::RawMessage;
use crate::clock::Timestamp;
use crate::headers::Headers;
use crate::id::MessageId;
use crate::message::Message;
use crate::name::{Key, Topic};

/// Fields of a dead letter that an operator replaces. `None` keeps a field; the default changes
/// nothing. End a literal with `..Edit::default()`: a later version may add fields.
///
/// ```
/// # extern crate outbox_contract as outbox;
/// use outbox::Key;
/// use outbox::admin::Edit;
///
/// let edit = Edit { key: Some(Some(Key::new("order-1")?)), ..Edit::default() };
/// # Ok::<(), outbox::NameError>(())
/// ```
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Edit {
    /// New id. Consumers that handled the old one treat the message as new.
    pub id: Option<MessageId>,
    /// New topic.
    pub topic: Option<Topic>,
    /// New key; `Some(None)` removes it.
    pub key: Option<Option<Key>>,
    /// New event type.
    pub event_type: Option<String>,
    /// New version of the payload's schema.
    pub schema_version: Option<u32>,
    /// New media type.
    pub content_type: Option<String>,
    /// New headers, replacing all existing ones.
    pub headers: Option<Headers>,
    /// New payload.
    pub payload: Option<Bytes>,
    /// New time of occurrence.
    pub occurred_at: Option<Timestamp>,
}

impl Edit {
    /// Applies these corrections to a message, for stores that keep dead letters as messages.
    ///
    /// # Errors
    ///
    /// The first remaining fault, with column and rule.
    pub fn of_message(&self, message: &Message) -> Result<Message, String> {
        let headers = message.headers.to_bytes();
        self.of_row(RawMessage {
            id: Some(message.id.as_uuid().as_bytes()),
            topic: Some(message.topic.as_str().as_bytes()),
            key: message.key.as_ref().map(|key| key.as_str().as_bytes()),
            event_type: Some(message.event_type.as_bytes()),
            schema_version: message.schema_version.into(),
            content_type: Some(message.content_type.as_bytes()),
            headers: Some(&headers),
            payload: Some(&message.payload),
            occurred_at: message.occurred_at.as_micros(),
        })
    }

    /// Applies these corrections to a row, whatever was wrong with the replaced fields.
    ///
    /// # Errors
    ///
    /// The first remaining fault, with column and rule.
    pub fn of_row(&self, row: RawMessage<'_>) -> Result<Message, String> {
        let id = self.id.map(|id| *id.as_uuid().as_bytes());
        let headers = self.headers.as_ref().map(Headers::to_bytes);
        let key = self.key.as_ref().map(|key| key.as_ref().map(|key| key.as_str().as_bytes()));
        RawMessage {
            id: id.as_ref().map(|id| &id[..]).or(row.id),
            topic: self.topic.as_ref().map(|topic| topic.as_str().as_bytes()).or(row.topic),
            key: key.unwrap_or(row.key),
            event_type: self.event_type.as_deref().map(str::as_bytes).or(row.event_type),
            schema_version: self.schema_version.map_or(row.schema_version, i64::from),
            content_type: self.content_type.as_deref().map(str::as_bytes).or(row.content_type),
            headers: headers.as_deref().or(row.headers),
            payload: self.payload.as_deref().or(row.payload),
            occurred_at: self.occurred_at.map_or(row.occurred_at, Timestamp::as_micros),
        }
        .message()
    }
}

impl Edit {
    /// Returns the names of the fields that it replaces.
    #[must_use]
    pub fn fields(&self) -> Vec<&'static str> {
        let fields = [
            ("id", self.id.is_some()),
            ("topic", self.topic.is_some()),
            ("key", self.key.is_some()),
            ("event_type", self.event_type.is_some()),
            ("schema_version", self.schema_version.is_some()),
            ("content_type", self.content_type.is_some()),
            ("headers", self.headers.is_some()),
            ("payload", self.payload.is_some()),
            ("occurred_at", self.occurred_at.is_some()),
        ];
        fields.into_iter().filter(|(_, replaced)| *replaced).map(|(name, _)| name).collect()
    }
}

/// Omits the payload and header values, which may be confidential.
impl fmt::Debug for Edit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Edit")
            .field("id", &self.id)
            .field("topic", &self.topic)
            .field("key", &self.key)
            .field("event_type", &self.event_type)
            .field("schema_version", &self.schema_version)
            .field("content_type", &self.content_type)
            .field("headers", &self.headers)
            .field("payload", &self.payload.as_ref().map(Bytes::len))
            .field("occurred_at", &self.occurred_at)
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row() -> RawMessage<'static> {
        RawMessage {
            id: Some(&[7; 16]),
            topic: Some(b"orders"),
            key: Some(b"a\nb"),
            event_type: Some(b"order.placed"),
            schema_version: 1,
            content_type: Some(b"application/json"),
            headers: Some(b"[1]"),
            payload: Some(b"secret"),
            occurred_at: 0,
        }
    }

    #[test]
    fn what_is_not_replaced_has_to_be_right() {
        let mut edit = Edit::default();
        let wrong = edit.of_row(row()).unwrap_err();
        assert!(wrong.contains("the key") && wrong.contains("U+000A"), "{wrong}");
        edit.key = Some(None);
        let wrong = edit.of_row(row()).unwrap_err();
        assert!(wrong.contains("headers are not a JSON object"), "{wrong}");
        edit.headers = Some(Headers::new());
        let message = edit.of_row(row()).unwrap();
        assert_eq!((message.key.as_ref(), &message.payload[..]), (None, &b"secret"[..]));
        assert_eq!(edit.of_message(&message).unwrap(), message);
    }

    #[test]
    fn every_field_is_replaced() {
        let edit = Edit {
            id: Some(MessageId::new()),
            topic: Some(Topic::new("refunds").unwrap()),
            key: Some(Some(Key::new("b").unwrap())),
            event_type: Some("refunded".to_owned()),
            schema_version: Some(2),
            content_type: Some("text/plain".to_owned()),
            headers: Some(Headers::new()),
            payload: Some(Bytes::from_static(b"hidden")),
            occurred_at: Some(Timestamp::from_micros(1)),
        };
        let message = edit.of_row(RawMessage::default()).unwrap();
        assert_eq!(Some(message.id), edit.id);
        assert_eq!((message.topic.as_str(), message.key.unwrap().as_str()), ("refunds", "b"));
        assert_eq!((&*message.event_type, message.schema_version), ("refunded", 2));
        assert_eq!((&*message.content_type, &message.payload[..]), ("text/plain", &b"hidden"[..]));
        assert_eq!(message.occurred_at, Timestamp::from_micros(1));
        assert!(!format!("{edit:?}").contains("hidden"));
        let wrong = Edit { event_type: Some(String::new()), ..edit }.of_row(row()).unwrap_err();
        assert!(wrong.contains("event type"), "{wrong}");
    }
}
