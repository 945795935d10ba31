//! CloudEvents attributes of a message beyond its fields: subject, schema, extensions.
//!
//! A message keeps them as headers under the reserved prefix `ce-`, so that every store, dead
//! letter and inbox keeps them without a column of their own. On the wire each protocol prints them
//! with its own prefix, among the other attributes.

use std::borrow::Cow;

use crate::headers::Headers;
use crate::message::Message;
use crate::name::{self, NameError};

/// Prefix of the headers that keep attributes.
const PREFIX: &str = "ce-";

/// Header that keeps the source of a received event.
pub(crate) const SOURCE: &str = "ce-source";
/// Header that keeps the id of a received event, where it is not that of the message.
pub(crate) const ID: &str = "ce-id";
/// Header that keeps the id of a received message of an outbox, where an inbox knows it by another
/// one. For the engine.
pub const EVENT_ID: &str = "outbox-event-id";
const SUBJECT: &str = "ce-subject";
const DATA_SCHEMA: &str = "ce-dataschema";
const TOMBSTONE: &str = "ce-tombstone";

/// Attributes that a message has as fields, or that the relay knows. Never sent from a header.
const FIELDS: [&str; 12] = [
    "specversion",
    "id",
    "source",
    "type",
    "time",
    "datacontenttype",
    "data",
    "data_base64",
    "sequence",
    "schemaversion",
    "partitionkey",
    "topic",
];

/// Attributes of the CloudEvents specification that have their own methods.
const NAMED: [&str; 3] = ["subject", "dataschema", "tombstone"];

/// Returns true if a message has this attribute as a field.
pub(crate) fn is_field(name: &str) -> bool {
    FIELDS.contains(&name)
}

/// Returns the header that keeps an attribute.
pub(crate) fn header_of(name: &str) -> String {
    format!("{PREFIX}{name}")
}

/// Returns the attribute that is sent in place of a header. `None`: the header is none of these.
pub(crate) fn sent_as(header: &str) -> Option<&str> {
    header.strip_prefix(PREFIX).filter(|name| is_name(name) && !is_field(name))
}

/// Removes what describes the event that a message was received as, before the message is sent.
pub(crate) fn forget_origin(headers: &mut Headers) {
    if !headers.is_empty() {
        headers.remove(SOURCE);
        headers.remove(ID);
    }
}

/// Marks a message without payload as a tombstone.
pub(crate) fn mark_tombstone(headers: &mut Headers) {
    // Both are valid.
    let _ = headers.insert(TOMBSTONE, "true");
}

fn is_name(name: &str) -> bool {
    !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit())
}

/// # Attributes of CloudEvents
///
/// They travel as attributes on every transport, both ways. Values have 1 to
/// [`Headers::MAX_VALUE_BYTES`] bytes without control characters.
///
/// ```
/// # extern crate outbox_contract as outbox;
/// use outbox::Message;
///
/// let message = Message::new("orders", "order.placed")?
///     .with_subject("order-1")?
///     .with_data_schema("https://schemas.example.com/order.placed/1")?
///     .with_extension("tenantid", "acme")?;
/// assert_eq!(message.extension("tenantid"), Some("acme"));
/// assert!(message.with_extension("tenant-id", "acme").is_err(), "lower-case letters and digits only");
/// # Ok::<(), outbox::NameError>(())
/// ```
impl Message {
    /// Maximum size of an extension attribute's name, in bytes: the recommendation of CloudEvents.
    pub const MAX_EXTENSION_BYTES: usize = 20;

    /// Sets the CloudEvents `subject`: what the event is about, within its source.
    ///
    /// # Errors
    ///
    /// Describes an invalid value.
    pub fn with_subject(self, subject: impl Into<String>) -> Result<Self, NameError> {
        self.with_attribute(SUBJECT, subject.into())
    }

    /// Sets the CloudEvents `dataschema`: the URI of the payload's schema.
    ///
    /// # Errors
    ///
    /// Describes an invalid value.
    pub fn with_data_schema(self, uri: impl Into<String>) -> Result<Self, NameError> {
        self.with_attribute(DATA_SCHEMA, uri.into())
    }

    /// Sets a CloudEvents extension attribute.
    ///
    /// # Errors
    ///
    /// Describes an invalid value, or a name that is not 1 to
    /// [`MAX_EXTENSION_BYTES`](Self::MAX_EXTENSION_BYTES) of `a` to `z` and `0` to `9`, or that the
    /// message has as a field or a method of its own.
    pub fn with_extension(self, name: impl AsRef<str>, value: impl Into<String>) -> Result<Self, NameError> {
        let name = name.as_ref();
        if is_field(name) || NAMED.contains(&name) {
            return Err(name::reserved("extension attribute", name));
        }
        if !is_name(name) || name.len() > Self::MAX_EXTENSION_BYTES {
            return Err(name::not_an_attribute(name));
        }
        self.with_attribute(&header_of(name), value.into())
    }

    /// Makes this message a tombstone: it says that what its key names is gone, and has no payload.
    ///
    /// Kafka sends it as a null value, so that a compacted topic forgets the key. Other transports
    /// send the attribute `tombstone`.
    ///
    /// ```
    /// # extern crate outbox_contract as outbox;
    /// use outbox::Message;
    ///
    /// let gone = Message::new("customers", "customer.deleted")?.with_key("c-1")?.into_tombstone();
    /// assert!(gone.is_tombstone() && gone.payload.is_empty());
    /// # Ok::<(), outbox::NameError>(())
    /// ```
    #[must_use]
    pub fn into_tombstone(mut self) -> Self {
        self.payload = bytes::Bytes::new();
        mark_tombstone(&mut self.headers);
        self
    }

    /// Returns the CloudEvents `subject`.
    #[must_use]
    pub fn subject(&self) -> Option<&str> {
        self.headers.get(SUBJECT)
    }

    /// Returns the CloudEvents `dataschema`.
    #[must_use]
    pub fn data_schema(&self) -> Option<&str> {
        self.headers.get(DATA_SCHEMA)
    }

    /// Returns a CloudEvents extension attribute, as text.
    #[must_use]
    pub fn extension(&self, name: &str) -> Option<&str> {
        if is_field(name) || NAMED.contains(&name) { None } else { self.headers.get(&header_of(name)) }
    }

    /// Iterates over the extension attributes, ordered by name.
    pub fn extensions(&self) -> impl Iterator<Item = (&str, &str)> {
        self.headers.iter().filter_map(|(header, value)| {
            let name = header.strip_prefix(PREFIX)?;
            (!is_field(name) && !NAMED.contains(&name)).then_some((name, value))
        })
    }

    /// Returns true if this message is a [tombstone](Self::into_tombstone): it has no payload,
    /// which is not the same as an empty one.
    #[must_use]
    pub fn is_tombstone(&self) -> bool {
        self.payload.is_empty() && self.headers.get(TOMBSTONE).is_some_and(|value| value == "true")
    }

    /// Returns the `source` of the event as which this message was received. `None`: it was not
    /// received.
    #[must_use]
    pub fn source(&self) -> Option<&str> {
        self.headers.get(SOURCE)
    }

    /// Returns the `id` of the event as its producer wrote it, whether or not it is a UUID. An
    /// inbox knows a received message by an `id` of its own, made of source and id: in its tables
    /// and dead letters this is the one that producer and broker know.
    #[must_use]
    pub fn event_id(&self) -> Cow<'_, str> {
        let written = self.headers.get(ID).or_else(|| self.headers.get(EVENT_ID));
        written.map_or_else(|| self.id.to_string().into(), Cow::Borrowed)
    }

    /// Records the source from which an inbox received this message. For consumers that receive by
    /// themselves: the [`Origin`](crate::backend::Origin) of a delivery has it.
    pub fn received_from(&mut self, source: &str) {
        self.headers.remove(SOURCE);
        // A source that is too long for a header was none that a relay takes.
        let _ = self.headers.insert(SOURCE, source);
    }

    fn with_attribute(mut self, header: &str, value: String) -> Result<Self, NameError> {
        name::check_value(header, &value, Headers::MAX_VALUE_BYTES)?;
        self.headers.insert(header, value)?;
        Ok(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message() -> Message {
        Message::new("orders", "order.placed").unwrap()
    }

    #[test]
    fn what_is_no_extension_attribute_is_refused_with_the_reason() {
        let long = "x".repeat(21);
        let says = |name: &str| message().with_extension(name, "1").unwrap_err().to_string();
        for name in ["", "tenantId", "tenant_id", "tenant-id", &long] {
            assert!(says(name).contains("1 to 20 characters of a-z and 0-9"), "{}", says(name));
        }
        for name in FIELDS.iter().chain(&NAMED) {
            assert!(says(name).contains("reserved"), "{}", says(name));
        }
        for wrong in ["", "a\nb", &"x".repeat(8_193)] {
            assert!(message().with_extension("tenantid", wrong).is_err());
            assert!(message().with_subject(wrong).is_err());
            assert!(message().with_data_schema(wrong).is_err());
        }
        assert!(message().with_header("ce-tenantid", "1").is_err(), "there is one way to set it");
    }

    #[test]
    fn attributes_are_read_by_their_names_and_fields_are_none_of_them() {
        let mut message =
            message().with_subject("line-1").unwrap().with_extension("tenantid", "acme").unwrap();
        for name in [SOURCE, ID] {
            message.headers.insert(name, "x").unwrap();
        }
        assert_eq!((message.subject(), message.data_schema()), (Some("line-1"), None));
        assert_eq!(message.extensions().collect::<Vec<_>>(), [("tenantid", "acme")]);
        assert_eq!((message.extension("source"), message.extension("subject")), (None, None));
        assert_eq!((message.source(), &*message.event_id()), (Some("x"), "x"));
        forget_origin(&mut message.headers);
        assert_eq!(message.source(), None);
        assert_eq!(message.event_id(), message.id.to_string());
    }

    #[test]
    fn a_tombstone_is_not_an_empty_payload() {
        let empty = message().with_payload("");
        let tombstone = message().with_payload("{}").into_tombstone();
        assert!(!empty.is_tombstone() && tombstone.is_tombstone() && tombstone.payload.is_empty());
        assert_eq!(tombstone.extensions().count(), 0);
        assert!(!tombstone.with_payload("{}").is_tombstone(), "it has a payload");
    }
}
