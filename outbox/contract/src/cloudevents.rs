//! How a message stands on the wire: CloudEvents 1.0.2 in the binary mode of each protocol.
//!
//! The payload is the body as it is; everything else is attributes, which a protocol prints with its own prefix (`ce_` on Kafka, `ce-` in
//! HTTP, `cloudEvents:` on AMQP). One mapping for all transports, so that a consumer in any language finds the same things under the same names.
//!
//! | attribute | from |
//! |---|---|
//! | `specversion` | `1.0` |
//! | `id` | the message's id |
//! | `source` | the relay's configured source |
//! | `type` | the event type |
//! | `time` | when it occurred |
//! | `subject` | the key, where there is one |
//! | `partitionkey` | the same (extension "Partitioning") |
//! | `sequence` | the position in the outbox (extension "Sequence") |
//! | `schemaversion` | the schema version (extension of ours) |
//! | `topic` | the topic (extension of ours), for brokers whose address is something else |
//!
//! The content type is the protocol's own property. The message's headers stand beside the attributes under their own names;
//! `traceparent` and `tracestate` among them, as W3C Trace Context wants it.

use std::fmt::{self, Write as _};

use bytes::Bytes;

use crate::clock::Timestamp;
use crate::headers::Headers;
use crate::id::Position;
use crate::message::Message;
use crate::name::Topic;
use crate::subscription::{Origin, Undecodable};

/// The prefix of attributes in Kafka's headers.
pub const KAFKA_PREFIX: &str = "ce_";
/// The prefix of attributes in AMQP's application properties.
pub const AMQP_PREFIX: &str = "cloudEvents:";
/// The prefix of attributes in HTTP's headers, and where nothing says otherwise.
pub const HTTP_PREFIX: &str = "ce-";

/// The header in which protocols without a property of their own for it carry the content type.
pub const CONTENT_TYPE: &str = "content-type";

/// The attributes and headers of a message, as names and texts: attributes first, prefixed, then the message's own headers.
///
/// ```
/// use outbox_contract::{Message, Position, Topic, cloudevents};
///
/// let message = Message::new(Topic::new("orders")?, "order.placed").with_key("order-1")?;
/// let headers = cloudevents::encode(&message, "/shop", Position(7), cloudevents::KAFKA_PREFIX);
/// assert!(headers.contains(&("ce_type".into(), "order.placed".into())));
/// # Ok::<(), outbox_contract::NameError>(())
/// ```
#[must_use]
pub fn encode(message: &Message, source: &str, position: Position, prefix: &str) -> Vec<(String, String)> {
    let mut out = Vec::with_capacity(10 + message.headers.len());
    each(message, source, position, prefix, |name, value| out.push((name.to_owned(), value.to_owned())));
    out
}

/// What [`encode`] gives, one after the other, for a transport that copies names and texts into a form of its own: two allocations for all of
/// it.
pub fn each(
    message: &Message,
    source: &str,
    position: Position,
    prefix: &str,
    mut take: impl FnMut(&str, &str),
) {
    let mut name = String::with_capacity(32);
    let mut attribute = |attribute: &str, value: &str| {
        name.clear();
        name.push_str(prefix);
        name.push_str(attribute);
        take(&name, value);
    };
    let mut text = String::with_capacity(40);
    attribute("specversion", "1.0");
    attribute("id", printed(&mut text, format_args!("{}", message.id)));
    attribute("source", source);
    attribute("type", &message.event_type);
    attribute("time", printed(&mut text, format_args!("{}", message.occurred_at)));
    if let Some(key) = &message.key {
        attribute("subject", key.as_str());
        attribute("partitionkey", key.as_str());
    }
    // Twenty digits with leading zeros: the Sequence extension orders by text.
    attribute("sequence", printed(&mut text, format_args!("{:020}", position.0)));
    attribute("schemaversion", printed(&mut text, format_args!("{}", message.schema_version)));
    attribute("topic", message.topic.as_str());
    message.headers.iter().for_each(|(name, value)| take(name, value));
}

/// A value as text, in place of what was there.
fn printed<'t>(text: &'t mut String, value: fmt::Arguments<'_>) -> &'t str {
    text.clear();
    // Writing to a string does not fail.
    let _ = text.write_fmt(value);
    text
}

/// Reads a message from its attributes, headers, content type and payload.
///
/// What another producer leaves out is filled in where that is honest: schema version 1, `application/octet-stream`, the topic that it
/// came from. An id that is no UUID becomes one that is computed from source and id, so that the same event has the same id again.
///
/// # Errors
///
/// [`Undecodable`] names the attribute that is missing or wrong, and keeps payload and headers.
pub fn decode<'h>(
    headers: impl IntoIterator<Item = (&'h str, &'h str)>,
    content_type: Option<&str>,
    payload: Bytes,
    came_from: &Topic,
    prefix: &str,
) -> Result<(Message, Option<Origin>), Undecodable> {
    let headers: Vec<(&str, &str)> = headers.into_iter().collect();
    let attribute = |name: &str| {
        headers.iter().find(|(header, _)| header.strip_prefix(prefix) == Some(name)).map(|(_, value)| *value)
    };
    read(&headers, attribute, content_type, &payload, came_from, prefix).map_err(|reason| {
        let headers = headers.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        Undecodable::new(reason, payload, headers)
    })
}

fn read<'h>(
    headers: &[(&'h str, &'h str)],
    attribute: impl Fn(&str) -> Option<&'h str>,
    content_type: Option<&str>,
    payload: &Bytes,
    came_from: &Topic,
    prefix: &str,
) -> Result<(Message, Option<Origin>), String> {
    let required = |name: &str| {
        attribute(name).ok_or_else(|| format!("the CloudEvents attribute {prefix}{name} is missing"))
    };
    let wrong =
        |name: &str, value: &str, want: &str| format!("{prefix}{name} is {value:?}; it should be {want}");

    let version = required("specversion")?;
    if !version.starts_with("1.") {
        return Err(wrong("specversion", version, "1.0"));
    }
    let (id, source) = (required("id")?, required("source")?);
    let topic = match attribute("topic") {
        Some(topic) => Topic::new(topic).map_err(|error| error.to_string())?,
        None => came_from.clone(),
    };
    let mut message = Message::new(topic, required("type")?)
        .with_id(id.parse().unwrap_or_else(|_| foreign_id(source, id)))
        .with_content_type(content_type.unwrap_or("application/octet-stream"))
        .with_payload(payload.clone());
    if let Some(key) = attribute("partitionkey").or_else(|| attribute("subject")) {
        message = message.with_key(key).map_err(|error| error.to_string())?;
    }
    message.occurred_at = match attribute("time") {
        Some(time) => Timestamp::parse(time).ok_or_else(|| wrong("time", time, "an RFC 3339 instant"))?,
        None => Timestamp::default(),
    };
    if let Some(version) = attribute("schemaversion") {
        message.schema_version = version
            .parse()
            .ok()
            .filter(|version| *version > 0)
            .ok_or_else(|| wrong("schemaversion", version, "a number from 1"))?;
    }
    let mut own = Headers::new();
    for (name, value) in headers {
        if !name.starts_with(prefix) && *name != CONTENT_TYPE {
            own.insert(*name, *value).map_err(|error| error.to_string())?;
        }
    }
    message.headers = own;
    message.validate().map_err(|error| error.to_string())?;
    let sequence = attribute("sequence").and_then(|sequence| sequence.parse().ok());
    let origin = sequence.map(|sequence| Origin { source: source.into(), sequence });
    Ok((message, origin))
}

/// A UUID for an event whose producer numbers its events in another way: the same for the same source and id.
fn foreign_id(source: &str, id: &str) -> crate::id::MessageId {
    use sha2::{Digest, Sha256};
    let mut hash = Sha256::new();
    hash.update(source.as_bytes());
    hash.update([0]);
    hash.update(id.as_bytes());
    let digest = hash.finalize();
    let mut bytes = [0; 16];
    bytes.copy_from_slice(&digest[..16]);
    crate::id::MessageId::from_uuid(uuid::Builder::from_custom_bytes(bytes).into_uuid())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn topic() -> Topic {
        Topic::new("orders").unwrap()
    }

    fn decode_pairs(
        pairs: &[(String, String)],
        prefix: &str,
    ) -> Result<(Message, Option<Origin>), Undecodable> {
        let pairs = pairs.iter().map(|(name, value)| (name.as_str(), value.as_str()));
        decode(pairs, Some("application/json"), Bytes::from_static(b"{}"), &topic(), prefix)
    }

    #[test]
    fn a_message_survives_the_wire_under_every_prefix() {
        for prefix in [KAFKA_PREFIX, AMQP_PREFIX, HTTP_PREFIX] {
            let message = Message::new(topic(), "order.placed")
                .with_key("order-1")
                .unwrap()
                .with_schema_version(3)
                .with_payload("{}")
                .with_header("traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")
                .unwrap();
            let wire = encode(&message, "/shop", Position(42), prefix);
            let (read, origin) = decode_pairs(&wire, prefix).unwrap();
            assert_eq!(read, message);
            assert_eq!(origin, Some(Origin { source: "/shop".into(), sequence: 42 }));
        }
    }

    #[test]
    fn a_foreign_event_keeps_its_identity() {
        let pairs = |id: &str| {
            [("ce_specversion", "1.0"), ("ce_id", id), ("ce_source", "/legacy"), ("ce_type", "x")]
                .map(|(name, value)| (name.to_owned(), value.to_owned()))
        };
        let id = |text| decode_pairs(&pairs(text), KAFKA_PREFIX).unwrap().0.id;
        assert_eq!(id("17"), id("17"));
        assert_ne!(id("17"), id("18"));
    }

    #[test]
    fn what_is_not_an_event_says_why_and_keeps_the_payload() {
        let error = decode_pairs(&[("ce_id".to_owned(), "1".to_owned())], KAFKA_PREFIX).unwrap_err();
        assert_eq!(error.reason, "the CloudEvents attribute ce_specversion is missing");
        assert_eq!(error.payload, "{}");
        assert_eq!(error.headers.len(), 1);
    }

    proptest::proptest! {
        #[test]
        fn nothing_from_the_wire_makes_the_reader_panic(
            pairs in proptest::collection::vec(("(ce_)?[a-z]{0,12}", "\\PC{0,20}"), 0..12),
        ) {
            let _ = decode_pairs(&pairs, KAFKA_PREFIX);
        }
    }
}
