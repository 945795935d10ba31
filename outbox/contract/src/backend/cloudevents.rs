//! Wire format of a message: CloudEvents 1.0.2 in the binary mode of each protocol.
//!
//! The payload becomes the body unchanged. Everything else becomes attributes, which each protocol
//! prints with its own prefix (`ce_` on Kafka, `ce-` in HTTP, `cloudEvents:` on AMQP). All
//! transports share one mapping, so that a consumer in any language finds the same data under the
//! same names.
//!
//! | attribute | from |
//! |---|---|
//! | `specversion` | `1.0` |
//! | `id` | the message's id |
//! | `source` | the identity of the outbox, or the relay's configured source |
//! | `type` | the event type |
//! | `time` | when it occurred |
//! | `sequence` | the position in the outbox (extension "Sequence") |
//! | `schemaversion` | the schema version (extension of ours), where it is not 1 |
//! | `partitionkey` | the key (extension "Partitioning"), where there is one |
//! | `topic` | the topic (extension of ours) |
//! | `subject`, `dataschema`, extensions | the message's attributes of these names |
//! | `tombstone` | `true`, where the message is a tombstone (extension of ours) |
//!
//! Protocols with their own fields for key and topic ([`Binding::is_addressed`]) omit the last two:
//! every header of every message costs each reader on its way. A record that is copied to another
//! topic then takes that topic's name as its topic.
//!
//! The content type uses the protocol's own property; a payload without bytes has none that
//! promises JSON ([`content_type`]). The message's headers travel beside the
//! attributes under their own names. `traceparent` and `tracestate` are among them, as W3C Trace
//! Context requires.
//!
//! Reading accepts more than writing produces: [`RawRecord`] takes every spelling of these names,
//! and the structured mode.

use std::borrow::Cow;
use std::fmt::{self, Write as _};

use crate::attributes;
use crate::backend::Position;
pub use crate::backend::{ADAPTED, RawRecord};
use crate::id::MessageId;
use crate::message::Message;

/// Mapping of attributes to a protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Binding {
    /// Prefix of attribute names.
    pub prefix: &'static str,
    /// True if the protocol has its own fields for topic and key.
    pub is_addressed: bool,
}

/// Kafka: a record has a topic and a key.
pub const KAFKA: Binding = Binding { prefix: "ce_", is_addressed: true };
/// AMQP, in application properties.
pub const AMQP: Binding = Binding { prefix: "cloudEvents:", is_addressed: false };
/// HTTP, and the default for other protocols.
pub const HTTP: Binding = Binding { prefix: "ce-", is_addressed: false };

/// Header that carries the content type, for protocols without their own property.
pub const CONTENT_TYPE: &str = "content-type";

/// Maximum number of attributes that a message has as fields.
pub const MAX_ATTRIBUTES: usize = 9;

/// Prefixes of attribute names: those of our protocols, and that of JMS on AMQP.
const PREFIXES: [&str; 4] = ["ce_", "ce-", "cloudEvents:", "cloudEvents_"];

/// Returns true if any protocol carries an attribute or the content type under this name. Such a
/// header would be mistaken for the attribute, or hidden by it.
pub(crate) fn is_reserved(name: &str) -> bool {
    let begins_with = |prefix: &&str| {
        name.get(..prefix.len()).is_some_and(|beginning| beginning.eq_ignore_ascii_case(prefix))
    };
    name.starts_with(['c', 'C'])
        && (name.eq_ignore_ascii_case(CONTENT_TYPE) || PREFIXES.iter().any(begins_with))
}

/// Returns the attribute that a header carries under any of the prefixes, whatever their case, and
/// the prefix. `None`: it carries none.
pub(crate) fn attribute_of(header: &[u8]) -> Option<(&'static str, Cow<'_, str>)> {
    if !matches!(header.first(), Some(b'c' | b'C')) {
        return None;
    }
    let prefix = PREFIXES.into_iter().find(|prefix| {
        header.get(..prefix.len()).is_some_and(|beginning| beginning.eq_ignore_ascii_case(prefix.as_bytes()))
    })?;
    let name = std::str::from_utf8(&header[prefix.len()..]).ok().filter(|name| !name.is_empty())?;
    let is_lower = !name.bytes().any(|byte| byte.is_ascii_uppercase());
    Some((prefix, if is_lower { name.into() } else { name.to_ascii_lowercase().into() }))
}

/// Returns true if a header carries the attribute `time`, for protocols that have a type for it.
#[must_use]
pub fn is_time(header: &[u8]) -> bool {
    attribute_of(header).is_some_and(|(_, name)| name == "time")
}

/// Returns the content type to send. `None`: the payload has no bytes, and so is no JSON; readers
/// that trust a type would fail on it.
#[must_use]
pub fn content_type(message: &Message) -> Option<&str> {
    let is_sent = !message.payload.is_empty() || !is_json(&message.content_type);
    is_sent.then_some(&*message.content_type)
}

/// Returns the media type of a content type, in lower case and without parameters.
pub(crate) fn media_type(content_type: &str) -> String {
    content_type.split(';').next().unwrap_or_default().trim().to_ascii_lowercase()
}

/// Returns true if a content type promises JSON.
pub(crate) fn is_json(content_type: &str) -> bool {
    let media_type = media_type(content_type);
    media_type.ends_with("/json") || media_type.ends_with("+json")
}

/// Encodes a message's attributes and headers as names and texts: its fields first, then its
/// attributes and headers by name. Omits a header whose name the wire format reserves.
///
/// ```
/// # extern crate outbox_contract as outbox;
/// use outbox::Message;
/// use outbox::backend::{Position, cloudevents};
///
/// let message = Message::new("orders", "order.placed")?.with_key("order-1")?;
/// let headers = cloudevents::encode(&message, "/shop", Position(7), cloudevents::KAFKA);
/// assert!(headers.contains(&("ce_type".into(), "order.placed".into())));
/// # Ok::<(), outbox::NameError>(())
/// ```
#[must_use]
pub fn encode(
    message: &Message,
    source: &str,
    position: Position,
    binding: Binding,
) -> Vec<(String, String)> {
    let mut out = Vec::with_capacity(MAX_ATTRIBUTES + message.headers.len());
    each(message, source, position, binding, |name, value| out.push((name.to_owned(), value.to_owned())));
    out
}

/// Visits the pairs of [`encode`] one by one, for a transport that copies names and texts into its
/// own form. Makes two allocations in all.
pub fn each(
    message: &Message,
    source: &str,
    position: Position,
    binding: Binding,
    mut take: impl FnMut(&str, &str),
) {
    let mut name = String::with_capacity(32);
    let take: &mut dyn FnMut(&str, &str) = &mut take;
    let mut attribute = |take: &mut dyn FnMut(&str, &str), attribute: &str, value: &str| {
        name.clear();
        name.push_str(binding.prefix);
        name.push_str(attribute);
        take(&name, value);
    };
    let mut text = String::with_capacity(40);
    attribute(take, "specversion", "1.0");
    attribute(take, "id", printed(&mut text, format_args!("{}", message.id)));
    attribute(take, "source", source);
    attribute(take, "type", &message.event_type);
    attribute(take, "time", printed(&mut text, format_args!("{}", message.occurred_at)));
    // Twenty digits with leading zeros: the Sequence extension orders values as text.
    attribute(take, "sequence", printed(&mut text, format_args!("{:020}", position.0)));
    if message.schema_version != 1 {
        attribute(take, "schemaversion", printed(&mut text, format_args!("{}", message.schema_version)));
    }
    if !binding.is_addressed {
        if let Some(key) = &message.key {
            attribute(take, "partitionkey", key.as_str());
        }
        attribute(take, "topic", message.topic.as_str());
    }
    for (header, value) in message.headers.iter() {
        match attributes::sent_as(header) {
            Some(_) if value.is_empty() => {}
            Some(name) => attribute(take, name, value),
            None if is_reserved(header) => {}
            None => take(header, value),
        }
    }
}

/// Formats a value into the buffer, replacing its content.
fn printed<'t>(text: &'t mut String, value: fmt::Arguments<'_>) -> &'t str {
    text.clear();
    // Writing to a string can't fail.
    let _ = text.write_fmt(value);
    text
}

/// Returns the id of an event among those of all sources, computed from its source and id.
///
/// An inbox records this id as handled, because two producers may use the same ids and both may
/// number their events.
#[must_use]
pub fn identity(source: &str, id: MessageId) -> MessageId {
    foreign_id(source, &id.to_string())
}

/// UUID of another producer's event: the same for the same source and id.
pub(crate) fn foreign_id(source: &str, id: &str) -> MessageId {
    use sha2::{Digest, Sha256};
    let mut hash = Sha256::new();
    hash.update(source.as_bytes());
    hash.update([0]);
    hash.update(id.as_bytes());
    let digest = hash.finalize();
    let mut bytes = [0; 16];
    bytes.copy_from_slice(&digest[..16]);
    MessageId::from_uuid(uuid::Builder::from_custom_bytes(bytes).into_uuid())
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;
    use crate::backend::{Origin, Undecodable};
    use crate::clock::Timestamp;
    use crate::name::Topic;

    fn topic() -> Topic {
        Topic::new("orders").unwrap()
    }

    #[test]
    fn attributes_are_sent_under_the_prefix_of_the_protocol_and_read_back() {
        for binding in [KAFKA, AMQP, HTTP] {
            let message = Message::new(topic(), "order.placed")
                .unwrap()
                .with_payload("{}")
                .with_subject("line-1")
                .and_then(|message| message.with_data_schema("https://example.com/order"))
                .and_then(|message| message.with_extension("tenantid", "acme"))
                .unwrap();
            let wire = encode(&message, "/shop", Position(42), binding);
            for (name, value) in
                [("subject", "line-1"), ("dataschema", "https://example.com/order"), ("tenantid", "acme")]
            {
                assert!(wire.contains(&(format!("{}{name}", binding.prefix), value.to_owned())), "{wire:?}");
            }
            let (read, _) = decode_pairs(&wire, binding).unwrap();
            assert_eq!(read, message, "a subject is no key of ours");
        }
    }

    #[test]
    fn what_has_no_payload_does_not_promise_json() {
        let sent = |content_type: &str, payload: &'static str| {
            let message =
                Message::new(topic(), "x").unwrap().with_content_type(content_type).with_payload(payload);
            super::content_type(&message).map(ToOwned::to_owned)
        };
        for json in ["application/json", "Application/JSON; charset=utf-8", "application/vnd.order+json"] {
            assert_eq!(sent(json, ""), None);
            assert_eq!(sent(json, "{}").as_deref(), Some(json));
        }
        assert_eq!(sent("application/protobuf", "").as_deref(), Some("application/protobuf"));
    }

    fn decode_pairs(
        pairs: &[(String, String)],
        binding: Binding,
    ) -> Result<(Message, Option<Origin>), Undecodable> {
        let mut record =
            RawRecord::new(binding, Bytes::from_static(b"{}")).with_content_type(Some(b"application/json"));
        pairs.iter().for_each(|(name, value)| record.push(name.as_bytes(), value.as_bytes()));
        record.message(&topic())
    }

    #[test]
    fn a_message_survives_the_wire_under_every_prefix() {
        for binding in [KAFKA, AMQP, HTTP] {
            let message = Message::new(topic(), "order.placed")
                .unwrap()
                .with_key("order-1")
                .unwrap()
                .with_schema_version(3)
                .with_payload("{}")
                .with_header("traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")
                .unwrap();
            let wire = encode(&message, "/shop", Position(42), binding);
            let (mut read, origin) = decode_pairs(&wire, binding).unwrap();
            if binding.is_addressed {
                assert_eq!(read.key.take(), None, "the protocol carries it");
                read.key.clone_from(&message.key);
            }
            assert_eq!(read, message);
            assert_eq!(origin, Some(Origin { source: "/shop".into(), sequence: 42 }));
        }
    }

    #[test]
    fn what_goes_without_saying_is_not_said() {
        let message = Message::new(topic(), "order.placed").unwrap().with_key("order-1").unwrap();
        let names = |message: &Message, binding| {
            let wire = encode(message, "/shop", Position(42), binding);
            wire.into_iter().map(|(name, _)| name).collect::<Vec<_>>().join(" ")
        };
        assert_eq!(names(&message, KAFKA), "ce_specversion ce_id ce_source ce_type ce_time ce_sequence");
        assert_eq!(
            names(&message, HTTP),
            "ce-specversion ce-id ce-source ce-type ce-time ce-sequence ce-partitionkey ce-topic"
        );
        let newer = names(&message.with_schema_version(2), HTTP);
        assert_eq!(newer.split(' ').count(), MAX_ATTRIBUTES);
        assert!(newer.contains("ce-schemaversion"), "{newer}");
    }

    #[test]
    fn a_header_never_stands_in_an_attributes_place() {
        for name in
            ["ce_id", "ce-id", "cloudEvents:id", "cloudEvents_id", "content-type", "Content-Type", "CE_id"]
        {
            let message = Message::new(topic(), "order.placed")
                .unwrap()
                .with_content_type("application/json")
                .with_payload("{}");
            assert!(message.clone().with_header(name, "1").unwrap_err().to_string().contains(name));
            // A program in another language wrote it into a table.
            let mut written = message.clone();
            written.headers.insert(name, "1").unwrap();
            for binding in [KAFKA, AMQP, HTTP] {
                let wire = encode(&written, "/shop", Position(42), binding);
                assert_eq!(decode_pairs(&wire, binding).unwrap().0, message, "{name}");
            }
        }
        for name in ["ce", "cell", "cloudEvents", "content-types", "x-ce_id"] {
            assert!(Message::new(topic(), "order.placed").unwrap().with_header(name, "1").is_ok(), "{name}");
        }
    }

    #[test]
    fn what_is_valid_can_be_read_back() {
        let at =
            |micros| Message::new(topic(), "x").unwrap().with_occurred_at(Timestamp::from_micros(micros));
        for micros in [-62_167_219_200_000_000, 253_402_300_799_999_999, 0] {
            let message = at(micros);
            message.validate().unwrap();
            let wire = encode(&message, "/shop", Position(42), HTTP);
            assert_eq!(decode_pairs(&wire, HTTP).unwrap().0.occurred_at, message.occurred_at);
        }
        // Some of these are nanoseconds instead of microseconds.
        for micros in
            [i64::MIN, -62_167_219_200_000_001, 253_402_300_800_000_000, 1_700_000_000_000_000_000, i64::MAX]
        {
            let error = at(micros).validate().unwrap_err().to_string();
            assert!(error.contains(&micros.to_string()), "{error}");
        }
    }
}
