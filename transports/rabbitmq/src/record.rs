//! A message on the wire and back: CloudEvents in the binary mode of AMQP.
//!
//! The payload is the body; attributes are headers with the prefix `cloudEvents:`, and the message's own headers stand beside them. The
//! content type and the id are AMQP's own properties as well: tools show them, and a message that comes back is known by its id.

use std::borrow::Cow;

use bytes::Bytes;
use lapin::BasicProperties;
use lapin::types::{AMQPValue, ShortString};
use outbox_contract::cloudevents::{self, AMQP};
use outbox_contract::subscription::{Origin, Undecodable};
use outbox_contract::{Message, MessageId, Position, Rejection, Stored, Topic};

use crate::frames::{counted, short};

const SEQUENCE: &str = "cloudEvents:sequence";

/// Kept on disk (`delivery-mode` of AMQP 0-9-1).
const PERSISTENT: u8 = 2;

/// The prefix of attributes where a colon is no letter of names, as JMS has it.
const OTHER_PREFIX: &str = "cloudEvents_";

/// Headers that the broker adds on the way.
const OF_THE_BROKER: [&str; 5] =
    ["x-delivery-count", "x-acquired-count", "x-death", "x-stream-offset", "x-opt-deaths"];
const OF_THE_BROKER_TOO: [&str; 2] = ["x-first-death-", "x-last-death-"];

/// Which properties there are, by their place in the standard: content type, headers, delivery mode, message id.
const FLAGS: u16 = 1 << 15 | 1 << 13 | 1 << 12 | 1 << 7;

/// Writes everything of a message but its payload, as it goes out.
///
/// # Errors
///
/// A header whose name, or a content type that, is too long for AMQP. Messages that a store took have none.
pub(crate) fn encode(out: &mut Vec<u8>, stored: &Stored, source: &str) -> Result<(), Rejection> {
    let message = &stored.message;
    out.extend_from_slice(&FLAGS.to_be_bytes());
    short(out, "content type", &message.content_type)?;
    counted(out, |out| {
        let mut written = Ok(());
        cloudevents::each(message, source, stored.position, AMQP, |name, value| {
            if written.is_ok() {
                written = header(out, name, value);
            }
        });
        written
    })?;
    out.push(PERSISTENT);
    short(out, "id", &message.id.to_string())
}

/// One header: a text.
fn header(out: &mut Vec<u8>, name: &str, value: &str) -> Result<(), Rejection> {
    short(out, "header's name", name)?;
    out.push(b'S');
    counted(out, |out| {
        out.extend_from_slice(value.as_bytes());
        Ok(())
    })
}

/// Which message this is, by its properties.
pub(crate) fn id_of(properties: &BasicProperties) -> Option<MessageId> {
    properties.message_id().as_ref()?.as_str().parse().ok()
}

/// Where it stood in the outbox, by its properties.
pub(crate) fn position_of(properties: &BasicProperties) -> Option<Position> {
    let headers = properties.headers().as_ref()?;
    let sequence = headers.inner().get(SEQUENCE)?;
    text_of(sequence)?.parse().ok().map(Position)
}

/// Reads a message from what came out of a queue of a topic.
///
/// # Errors
///
/// What is not one of our messages, with its payload and its headers as far as they are text.
pub(crate) fn decode(
    properties: &BasicProperties,
    body: Vec<u8>,
    came_from: &Topic,
) -> Result<(Message, Option<Origin>), Undecodable> {
    let headers: Vec<(Cow<'_, str>, Cow<'_, str>)> = properties
        .headers()
        .as_ref()
        .into_iter()
        .flatten()
        .filter_map(|(name, value)| Some((own_name(name.as_str())?, text_of(value)?)))
        .collect();
    let pairs = headers.iter().map(|(name, value)| (&**name, &**value));
    let content_type = properties.content_type().as_ref().map(ShortString::as_str);
    cloudevents::decode(pairs, content_type, Bytes::from(body), came_from, AMQP)
}

/// What is no message, with all of its headers and what tells it from others. A queue has no places: the id that its publisher gave it has to do, and
/// what it contains.
pub(crate) fn placed(mut undecodable: Undecodable, properties: &BasicProperties) -> Undecodable {
    undecodable.headers = raw_texts(properties);
    match properties.message_id() {
        Some(id) => undecodable.at(format!("message-id {id}")),
        None => undecodable,
    }
}

/// All headers that are not the broker's; a value that is no text is written out.
fn raw_texts(properties: &BasicProperties) -> Vec<(String, String)> {
    let headers = properties.headers().as_ref().into_iter().flatten();
    let text = |value: &AMQPValue| match (text_of(value), value) {
        (Some(text), _) => text.into_owned(),
        (None, AMQPValue::LongString(bytes)) => Undecodable::text(bytes.as_bytes()),
        (None, value) => format!("{value:?}"),
    };
    let named = headers.filter_map(|(name, value)| Some((own_name(name.as_str())?, value)));
    named.map(|(name, value)| (name.into_owned(), text(value))).collect()
}

/// The name of a header that is not the broker's.
fn own_name(name: &str) -> Option<Cow<'_, str>> {
    if OF_THE_BROKER.contains(&name) || OF_THE_BROKER_TOO.iter().any(|prefix| name.starts_with(prefix)) {
        return None;
    }
    Some(match name.strip_prefix(OTHER_PREFIX) {
        Some(attribute) => format!("{}{attribute}", AMQP.prefix).into(),
        None => name.into(),
    })
}

/// The value of a header as text. None for lists, tables and bytes.
fn text_of(value: &AMQPValue) -> Option<Cow<'_, str>> {
    match value {
        AMQPValue::LongString(text) => std::str::from_utf8(text.as_bytes()).ok().map(Cow::Borrowed),
        AMQPValue::ShortString(text) => Some(text.as_str().into()),
        AMQPValue::Boolean(value) => Some(value.to_string().into()),
        AMQPValue::ShortShortInt(value) => Some(value.to_string().into()),
        AMQPValue::ShortShortUInt(value) => Some(value.to_string().into()),
        AMQPValue::ShortInt(value) => Some(value.to_string().into()),
        AMQPValue::ShortUInt(value) => Some(value.to_string().into()),
        AMQPValue::LongInt(value) => Some(value.to_string().into()),
        AMQPValue::LongUInt(value) => Some(value.to_string().into()),
        AMQPValue::LongLongInt(value) => Some(value.to_string().into()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use amq_protocol::frame::AMQPFrame;
    use lapin::types::FieldTable;
    use outbox_contract::Timestamp;

    use super::*;
    use crate::frames::{Incoming, Publish};

    /// The properties as somebody else's codec reads them.
    fn encoded(stored: &Stored) -> BasicProperties {
        let mut bytes = Vec::new();
        let publish = Publish { channel: 1, exchange: "outbox", routing_key: "orders", payload: b"" };
        publish.write(&mut bytes, 4_096, |out| encode(out, stored, "/shop")).unwrap();
        let mut incoming = Incoming::new(4_096);
        incoming.push(&bytes);
        incoming.next().unwrap();
        let Some(AMQPFrame::Header(1, header)) = incoming.next().unwrap() else { panic!("no header") };
        header.properties
    }

    fn topic() -> Topic {
        Topic::new("orders").unwrap()
    }

    fn stored() -> Stored {
        let message = Message::new(topic(), "order.placed")
            .with_key("order-1")
            .and_then(|message| message.with_header("x-request-id", "7"))
            .and_then(|message| message.with_header("empty", ""))
            .unwrap()
            .with_payload("{}");
        Stored::new(Position(42), Timestamp::now(), message)
    }

    #[test]
    fn a_message_survives_the_wire_and_what_the_broker_adds_to_it() {
        let stored = stored();
        let properties = encoded(&stored);
        assert_eq!(id_of(&properties), Some(stored.message.id));
        assert_eq!(position_of(&properties), Some(Position(42)));
        assert_eq!(*properties.delivery_mode(), Some(2));
        let mut headers = properties.headers().clone().unwrap();
        headers.insert("x-delivery-count".into(), AMQPValue::LongLongInt(3));
        headers.insert("x-first-death-queue".into(), AMQPValue::LongString("q".into()));
        headers.insert("bytes".into(), AMQPValue::LongString(vec![0xff].into()));
        let came = properties.with_headers(headers);
        let (message, origin) = decode(&came, b"{}".to_vec(), &topic()).unwrap();
        assert_eq!(message, stored.message);
        assert_eq!(origin, Some(Origin { source: "/shop".into(), sequence: 42 }));
    }

    #[test]
    fn another_program_may_write_attributes_its_way() {
        let mut headers = FieldTable::default();
        for (name, value) in [("specversion", "1.0"), ("id", "17"), ("source", "/legacy"), ("type", "x")] {
            headers.insert(format!("cloudEvents_{name}").into(), AMQPValue::LongString(value.into()));
        }
        headers.insert("cloudEvents:schemaversion".into(), AMQPValue::LongInt(3));
        let properties = BasicProperties::default().with_headers(headers);
        let (message, origin) = decode(&properties, Vec::new(), &topic()).unwrap();
        assert_eq!((&*message.event_type, message.schema_version, origin), ("x", 3, None));
    }

    /// A queue keeps everything in order; of that, the inbox keeps what has the same key.
    #[test]
    fn the_key_of_another_program_is_its_partition_key_or_subject_whatever_it_is() {
        let key = |more: &[(&str, &str)]| {
            let mut headers = FieldTable::default();
            let all = [("specversion", "1.0"), ("id", "17"), ("source", "/legacy"), ("type", "x")];
            for (name, value) in all.iter().chain(more) {
                headers.insert(format!("cloudEvents:{name}").into(), AMQPValue::LongString((*value).into()));
            }
            let properties = BasicProperties::default().with_headers(headers);
            decode(&properties, Vec::new(), &topic()).unwrap().0.key.map(|key| key.to_string())
        };
        assert_eq!(key(&[("partitionkey", "order-1"), ("subject", "line-1")]).as_deref(), Some("order-1"));
        assert_eq!(key(&[("subject", "line-1")]).as_deref(), Some("line-1"));
        assert_eq!(key(&[("partitionkey", "a\nb")]).as_deref(), Some("0x610a62"));
        assert!(key(&[("partitionkey", &"x".repeat(300))]).is_some());
        assert_eq!(key(&[]), None);
    }

    #[test]
    fn what_is_no_event_keeps_its_payload() {
        let error = decode(&BasicProperties::default(), b"hello".to_vec(), &topic()).unwrap_err();
        assert_eq!(error.payload, "hello");
        assert!(error.reason.contains("cloudEvents:specversion"), "{}", error.reason);
        let mut headers = FieldTable::default();
        headers.insert("a".into(), AMQPValue::LongString("b".into()));
        headers.insert("bytes".into(), AMQPValue::LongString(vec![0xff].into()));
        headers.insert("void".into(), AMQPValue::Void);
        headers.insert("x-delivery-count".into(), AMQPValue::LongInt(3));
        let kept = raw_texts(&BasicProperties::default().with_headers(headers));
        let kept: Vec<_> = kept.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
        assert_eq!(kept, [("a", "b"), ("bytes", "\\xff"), ("void", "Void")], "the broker's count changes");
    }
}
