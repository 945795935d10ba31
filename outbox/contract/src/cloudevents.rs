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
//! | `source` | the relay's configured source |
//! | `type` | the event type |
//! | `time` | when it occurred |
//! | `sequence` | the position in the outbox (extension "Sequence") |
//! | `schemaversion` | the schema version (extension of ours), where it is not 1 |
//! | `partitionkey` | the key (extension "Partitioning"), where there is one |
//! | `topic` | the topic (extension of ours) |
//!
//! Protocols with their own fields for key and topic ([`Binding::is_addressed`]) omit the last two:
//! every header of every message costs each reader on its way. A record that is copied to another
//! topic then takes that topic's name as its topic.
//!
//! The content type uses the protocol's own property. The message's headers travel beside the
//! attributes under their own names. `traceparent` and `tracestate` are among them, as W3C Trace
//! Context requires.

use std::fmt::{self, Write as _};

use bytes::Bytes;

use crate::clock::Timestamp;
use crate::headers::Headers;
use crate::id::{MessageId, Position};
use crate::message::Message;
use crate::name::{Key, Topic};
use crate::subscription::{Origin, Undecodable};

/// Mapping of attributes to a protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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

/// The `source` of a relay without a configured one. Consumers can't distinguish outboxes by it.
pub const DEFAULT_SOURCE: &str = "/outbox";

/// Maximum number of attributes of a message.
pub const MOST_ATTRIBUTES: usize = 9;

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

/// Encodes a message's attributes and headers as names and texts: prefixed attributes first, then
/// the message's own headers. Omits a header whose name the wire format reserves.
///
/// ```
/// use outbox_contract::{Message, Position, Topic, cloudevents};
///
/// let message = Message::new(Topic::new("orders")?, "order.placed").with_key("order-1")?;
/// let headers = cloudevents::encode(&message, "/shop", Position(7), cloudevents::KAFKA);
/// assert!(headers.contains(&("ce_type".into(), "order.placed".into())));
/// # Ok::<(), outbox_contract::NameError>(())
/// ```
#[must_use]
pub fn encode(
    message: &Message,
    source: &str,
    position: Position,
    binding: Binding,
) -> Vec<(String, String)> {
    let mut out = Vec::with_capacity(MOST_ATTRIBUTES + message.headers.len());
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
    let mut attribute = |attribute: &str, value: &str| {
        name.clear();
        name.push_str(binding.prefix);
        name.push_str(attribute);
        take(&name, value);
    };
    let mut text = String::with_capacity(40);
    attribute("specversion", "1.0");
    attribute("id", printed(&mut text, format_args!("{}", message.id)));
    attribute("source", source);
    attribute("type", &message.event_type);
    attribute("time", printed(&mut text, format_args!("{}", message.occurred_at)));
    // Twenty digits with leading zeros: the Sequence extension orders values as text.
    attribute("sequence", printed(&mut text, format_args!("{:020}", position.0)));
    if message.schema_version != 1 {
        attribute("schemaversion", printed(&mut text, format_args!("{}", message.schema_version)));
    }
    if !binding.is_addressed {
        if let Some(key) = &message.key {
            attribute("partitionkey", key.as_str());
        }
        attribute("topic", message.topic.as_str());
    }
    message.headers.iter().filter(|(name, _)| !is_reserved(name)).for_each(|(name, value)| take(name, value));
}

/// Formats a value into the buffer, replacing its content.
fn printed<'t>(text: &'t mut String, value: fmt::Arguments<'_>) -> &'t str {
    text.clear();
    // Writing to a string can't fail.
    let _ = text.write_fmt(value);
    text
}

/// Reads a message from its attributes, headers, content type and payload.
///
/// Attributes that another producer omits get safe defaults: schema version 1,
/// `application/octet-stream`, and the topic that the message came from. The key is the message's
/// `partitionkey`, or else its `subject`, whatever their bytes ([`Key::of_bytes`]). A protocol with
/// a field for the key uses [`decode_keyed`].
///
/// CloudEvents identifies an event by source *and* id. If `sequence` is not a number, or the id is
/// not a UUID, this function computes the message id from both. The same event then always has the
/// same id, and events of two producers never share one. If `sequence` is a number, the id stays as
/// the outbox wrote it; code that remembers ids uses the [`identity`].
///
/// # Errors
///
/// [`Undecodable`] names the attribute that is missing or wrong, and keeps payload and headers.
pub fn decode<'h>(
    headers: impl IntoIterator<Item = (&'h str, &'h str)>,
    content_type: Option<&str>,
    payload: Bytes,
    came_from: &Topic,
    binding: Binding,
) -> Result<(Message, Option<Origin>), Undecodable> {
    decode_keyed(headers, content_type, payload, came_from, binding, None)
}

/// Like [`decode`], for protocols with a field for the key. The broker orders by that field, so it
/// takes precedence over `subject`. Only `partitionkey` takes precedence over it.
///
/// # Errors
///
/// Those of [`decode`].
pub fn decode_keyed<'h>(
    headers: impl IntoIterator<Item = (&'h str, &'h str)>,
    content_type: Option<&str>,
    payload: Bytes,
    came_from: &Topic,
    binding: Binding,
    key: Option<&[u8]>,
) -> Result<(Message, Option<Origin>), Undecodable> {
    let prefix = binding.prefix;
    let headers: Vec<(&str, &str)> = headers.into_iter().collect();
    let attribute = |name: &str| {
        headers.iter().find(|(header, _)| header.strip_prefix(prefix) == Some(name)).map(|(_, value)| *value)
    };
    read(&headers, attribute, content_type, &payload, came_from, (prefix, key)).map_err(|reason| {
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
    (prefix, key): (&str, Option<&[u8]>),
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
    let sequence = attribute("sequence").and_then(|sequence| sequence.parse().ok());
    // A number marks it as a message of an outbox, whose handlers expect the original id.
    let own = id.parse().ok().filter(|_| sequence.is_some());
    let id = own.unwrap_or_else(|| foreign_id(source, id));
    let mut message = Message::of(id, topic, required("type")?)
        .with_content_type(content_type.unwrap_or("application/octet-stream"))
        .with_payload(payload.clone());
    let named = |name: &str| attribute(name).map(str::as_bytes).filter(|key| !key.is_empty());
    message.key = named("partitionkey").or(key).or_else(|| named("subject")).map(Key::of_bytes);
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
    let origin = sequence.map(|sequence| Origin { source: source.into(), sequence });
    Ok((message, origin))
}

/// Returns the id of an event among those of all sources, computed from its source and id. An event
/// of the [`DEFAULT_SOURCE`], which distinguishes nothing, keeps its id.
///
/// An inbox records this id as handled, because two producers may use the same ids and both may
/// number their events.
#[must_use]
pub fn identity(source: &str, id: MessageId) -> MessageId {
    if source == DEFAULT_SOURCE { id } else { foreign_id(source, &id.to_string()) }
}

/// UUID of another producer's event: the same for the same source and id.
fn foreign_id(source: &str, id: &str) -> MessageId {
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
    use super::*;

    fn topic() -> Topic {
        Topic::new("orders").unwrap()
    }

    fn decode_pairs(
        pairs: &[(String, String)],
        binding: Binding,
    ) -> Result<(Message, Option<Origin>), Undecodable> {
        let pairs = pairs.iter().map(|(name, value)| (name.as_str(), value.as_str()));
        decode(pairs, Some("application/json"), Bytes::from_static(b"{}"), &topic(), binding)
    }

    #[test]
    fn a_message_survives_the_wire_under_every_prefix() {
        for binding in [KAFKA, AMQP, HTTP] {
            let message = Message::new(topic(), "order.placed")
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
        let message = Message::new(topic(), "order.placed").with_key("order-1").unwrap();
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
        assert_eq!(newer.split(' ').count(), MOST_ATTRIBUTES);
        assert!(newer.contains("ce-schemaversion"), "{newer}");
    }

    #[test]
    fn a_header_never_stands_in_an_attributes_place() {
        for name in
            ["ce_id", "ce-id", "cloudEvents:id", "cloudEvents_id", "content-type", "Content-Type", "CE_id"]
        {
            let message = Message::new(topic(), "order.placed")
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
            assert!(Message::new(topic(), "order.placed").with_header(name, "1").is_ok(), "{name}");
        }
    }

    #[test]
    fn what_is_valid_can_be_read_back() {
        let at = |micros| Message::new(topic(), "x").with_occurred_at(Timestamp::from_micros(micros));
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

    #[test]
    fn a_foreign_event_may_name_its_key_as_subject() {
        let pairs = [("specversion", "1.0"), ("id", "1"), ("source", "/s"), ("type", "x"), ("subject", "k")];
        let pairs = pairs.map(|(name, value)| (format!("ce-{name}"), value.to_owned()));
        assert_eq!(decode_pairs(&pairs, HTTP).unwrap().0.key.unwrap().as_str(), "k");
    }

    /// The broker's ordering key takes precedence over the event's description.
    #[test]
    fn the_key_of_the_protocol_goes_before_the_subject_and_behind_the_partition_key() {
        let key = |named: &[(&str, &str)], key: Option<&[u8]>| {
            let pairs = [("specversion", "1.0"), ("id", "1"), ("source", "/s"), ("type", "x")];
            let pairs: Vec<(String, &str)> =
                pairs.iter().chain(named).map(|(name, value)| (format!("ce_{name}"), *value)).collect();
            let pairs = pairs.iter().map(|(name, value)| (name.as_str(), *value));
            let read = decode_keyed(pairs, None, Bytes::new(), &topic(), KAFKA, key);
            read.unwrap().0.key.map(|key| key.to_string())
        };
        let both = [("subject", "line-1"), ("partitionkey", "order-1")];
        assert_eq!(key(&both, Some(b"k")).as_deref(), Some("order-1"));
        assert_eq!(key(&both[..1], Some(b"k")).as_deref(), Some("k"));
        assert_eq!(key(&both[..1], Some(&[0, 7])).as_deref(), Some("0x0007"));
        assert_eq!(key(&both[..1], None).as_deref(), Some("line-1"));
        assert_eq!(key(&[], None), None);
        let long = "x".repeat(300);
        let long = key(&[("partitionkey", &long)], None).unwrap();
        assert!(long.starts_with("xxx") && long.len() <= Key::MOST_BYTES, "{long}");
    }

    #[test]
    fn a_foreign_event_keeps_its_identity() {
        let pairs = |id: &str| {
            [("ce_specversion", "1.0"), ("ce_id", id), ("ce_source", "/legacy"), ("ce_type", "x")]
                .map(|(name, value)| (name.to_owned(), value.to_owned()))
        };
        let id = |text| decode_pairs(&pairs(text), KAFKA).unwrap().0.id;
        assert_eq!(id("17"), id("17"));
        assert_ne!(id("17"), id("18"));
    }

    /// Other producers identify an event by source *and* id: equal ids from two sources are two
    /// events, not a duplicate.
    #[test]
    fn the_same_id_of_two_producers_is_two_events() {
        let uuid = "0190a1b2-0000-7000-8000-000000000001";
        let id = |source: &str, more: &[(&str, &str)]| {
            let pairs = [("specversion", "1.0"), ("id", uuid), ("source", source), ("type", "x")];
            let pairs =
                pairs.iter().chain(more).map(|(name, value)| (format!("ce_{name}"), (*value).to_owned()));
            decode_pairs(&pairs.collect::<Vec<_>>(), KAFKA).unwrap().0.id
        };
        assert_ne!(id("/one", &[]), id("/other", &[]));
        assert_eq!(id("/one", &[]), id("/one", &[]), "a repeat is one");
        assert_eq!(id("/shop", &[("sequence", "7")]).to_string(), uuid, "ours has one id everywhere");
        let identity = |source| identity(source, id(source, &[("sequence", "7")]));
        assert_ne!(identity("/one"), identity("/other"), "and not the same identity");
        assert_eq!(identity("/one"), id("/one", &[]), "numbered or not");
        assert_eq!(identity(DEFAULT_SOURCE).to_string(), uuid);
    }

    #[test]
    fn what_is_not_an_event_says_why_and_keeps_the_payload() {
        let error = decode_pairs(&[("ce_id".to_owned(), "1".to_owned())], KAFKA).unwrap_err();
        assert_eq!(error.reason, "the CloudEvents attribute ce_specversion is missing");
        assert_eq!(error.payload, "{}");
        assert_eq!(error.headers.len(), 1);
    }

    proptest::proptest! {
        #[test]
        fn nothing_from_the_wire_makes_the_reader_panic(
            pairs in proptest::collection::vec(("(ce_)?[a-z]{0,12}", "\\PC{0,20}"), 0..12),
        ) {
            let _ = decode_pairs(&pairs, KAFKA);
        }
    }
}
