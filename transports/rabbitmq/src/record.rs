//! A message on the wire and back: CloudEvents in the binary mode of AMQP.
//!
//! The payload is the body; attributes are headers with the prefix `cloudEvents:`, and the
//! message's own headers stand beside them. The content type and the id are AMQP's own properties
//! as well: tools show them, and a message that comes back is known by its id.

use bytes::Bytes;
use lapin::BasicProperties;
use outbox_contract::backend::cloudevents::{self, AMQP};
use outbox_contract::backend::{Origin, Position, RawRecord, Stored, Undecodable};
use outbox_contract::{Message, MessageId, Rejection, Topic};

use crate::frames::{counted, short};
use crate::values::{bytes_of, time_of};

const SEQUENCE: &str = "cloudEvents:sequence";

/// Kept on disk (`delivery-mode` of AMQP 0-9-1).
const PERSISTENT: u8 = 2;

/// Headers that the broker adds on the way.
const OF_THE_BROKER: [&str; 5] =
    ["x-delivery-count", "x-acquired-count", "x-death", "x-stream-offset", "x-opt-deaths"];
const OF_THE_BROKER_TOO: [&str; 2] = ["x-first-death-", "x-last-death-"];

/// Flags of the properties, by their place in the standard: headers, delivery mode, message id.
const FLAGS: u16 = 1 << 13 | 1 << 12 | 1 << 7;
/// The same of a content type.
const HAS_CONTENT_TYPE: u16 = 1 << 15;

/// Writes everything of a message but its payload, as it goes out.
///
/// # Errors
///
/// A header whose name, or a content type that, is too long for AMQP. Messages that a store took
/// have none.
pub(crate) fn encode(out: &mut Vec<u8>, stored: &Stored, source: &str) -> Result<(), Rejection> {
    let message = &stored.message;
    match cloudevents::content_type(message) {
        Some(content_type) => {
            out.extend_from_slice(&(FLAGS | HAS_CONTENT_TYPE).to_be_bytes());
            short(out, "content type", content_type)?;
        }
        None => out.extend_from_slice(&FLAGS.to_be_bytes()),
    }
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

/// Returns the id of the message, from its properties.
pub(crate) fn id_of(properties: &BasicProperties) -> Option<MessageId> {
    properties.message_id().as_ref()?.as_str().parse().ok()
}

/// Returns its position in the outbox, from its properties.
pub(crate) fn position_of(properties: &BasicProperties) -> Option<Position> {
    let headers = properties.headers().as_ref()?;
    let sequence = headers.inner().get(SEQUENCE)?;
    std::str::from_utf8(&bytes_of(sequence)).ok()?.parse().ok().map(Position)
}

/// Reads a message from what came out of a queue of a topic.
///
/// # Errors
///
/// A record that is not one of our messages, with its payload and its headers. A queue has no
/// places: the id that its publisher gave it has to do, and what it contains.
pub(crate) fn decode(
    properties: &BasicProperties,
    body: Vec<u8>,
    came_from: &Topic,
) -> Result<(Message, Option<Origin>), Undecodable> {
    let content_type =
        properties.content_type().as_ref().map(|content_type| content_type.as_str().as_bytes());
    let mut raw = RawRecord::new(AMQP, Bytes::from(body)).with_content_type(content_type);
    for (name, value) in properties.headers().as_ref().into_iter().flatten() {
        let name = name.as_str();
        if !is_of_the_broker(name) {
            let is_time = cloudevents::is_time(name.as_bytes());
            raw.push(name.as_bytes(), if is_time { time_of(value) } else { bytes_of(value) });
        }
    }
    raw.message(came_from).map_err(|mut undecodable| {
        // Many programs say there what a message is.
        if let Some(kind) = properties.kind() {
            undecodable.headers.push(("type".to_owned(), kind.to_string()));
        }
        match properties.message_id() {
            Some(id) => undecodable.at(format!("message-id {id}")),
            None => undecodable,
        }
    })
}

fn is_of_the_broker(name: &str) -> bool {
    OF_THE_BROKER.contains(&name) || OF_THE_BROKER_TOO.iter().any(|prefix| name.starts_with(prefix))
}

#[cfg(test)]
mod tests {
    use amq_protocol::frame::AMQPFrame;
    use lapin::types::{AMQPValue, DecimalValue, FieldTable};
    use outbox_contract::{Key, Timestamp};

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

    /// Returns an event as another program sends it, with these headers more.
    fn foreign(more: impl IntoIterator<Item = (String, AMQPValue)>) -> BasicProperties {
        let all = [("specversion", "1.0"), ("id", "17"), ("source", "/legacy"), ("type", "x")];
        let all =
            all.map(|(name, value)| (format!("cloudEvents:{name}"), AMQPValue::LongString(value.into())));
        let mut headers = FieldTable::default();
        all.into_iter().chain(more).for_each(|(name, value)| _ = headers.insert(name.into(), value));
        BasicProperties::default().with_headers(headers)
    }

    fn stored() -> Stored {
        let message = Message::new(topic(), "order.placed")
            .unwrap()
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
        let came = properties.with_headers(headers);
        let (message, origin) = decode(&came, b"{}".to_vec(), &topic()).unwrap();
        assert_eq!(message, stored.message);
        assert_eq!(origin, Some(Origin { source: "/shop".into(), sequence: 42 }));
    }

    /// SDKs send the milliseconds of AMQP 1.0 as a number, the native timestamp that the broker
    /// makes seconds of, or text.
    #[test]
    fn the_time_of_another_program_is_of_any_type() {
        let time = |name: &str, value: AMQPValue| {
            let came = foreign([(name.to_owned(), value)]);
            decode(&came, Vec::new(), &topic()).unwrap().0.occurred_at.as_micros()
        };
        for name in ["cloudEvents:time", "cloudEvents_time", "ce-time"] {
            let text = AMQPValue::LongString("2023-11-14T22:13:20Z".into());
            assert_eq!(time(name, text), 1_700_000_000_000_000);
            assert_eq!(time(name, AMQPValue::LongLongInt(1_700_000_000_123)), 1_700_000_000_123_000);
            assert_eq!(time(name, AMQPValue::LongInt(1_000)), 1_000_000, "near 1970 too");
            let last = 253_402_300_799_999;
            assert_eq!(time(name, AMQPValue::LongLongInt(last)), last * 1_000, "and in the year 9999");
            assert_eq!(time(name, AMQPValue::LongLongInt(-1)), -1_000, "and before");
            assert_eq!(time(name, AMQPValue::LongLongInt(1_700_000_000_123_456)), 1_700_000_000_123_456);
            assert_eq!(time(name, AMQPValue::Timestamp(1_700_000_000)), 1_700_000_000_000_000);
            assert_eq!(time(name, AMQPValue::Timestamp(1_700_000_000_123)), 1_700_000_000_123_000);
            assert_eq!(time(name, AMQPValue::Timestamp(u64::MAX)), -1_000_000, "before 1970");
            let last = AMQPValue::Timestamp(i64::MAX.unsigned_abs());
            assert_eq!(time(name, last), i64::MAX / 1_000, "so many digits are nanoseconds");
        }
        let came = foreign([("cloudEvents:expirytime".to_owned(), AMQPValue::Timestamp(1_700_000_000))]);
        let (message, _) = decode(&came, Vec::new(), &topic()).unwrap();
        assert_eq!(message.extension("expirytime"), Some("2023-11-14T22:13:20.000000Z"));
    }

    /// The binding of AMQP has two prefixes, that of RabbitMQ a third.
    #[test]
    fn another_program_may_write_attributes_its_way() {
        for prefix in ["cloudEvents_", "cloudEvents:", "ce-", "ce_"] {
            let mut headers = FieldTable::default();
            for (name, value) in [("specversion", "1.0"), ("id", "17"), ("source", "/legacy"), ("type", "x")]
            {
                headers.insert(format!("{prefix}{name}").into(), AMQPValue::LongString(value.into()));
            }
            headers.insert("cloudEvents:schemaversion".into(), AMQPValue::LongInt(3));
            let properties = BasicProperties::default().with_headers(headers);
            let (message, origin) = decode(&properties, Vec::new(), &topic()).unwrap();
            assert_eq!((&*message.event_type, message.schema_version, origin), ("x", 3, None));
        }
    }

    #[test]
    fn an_event_in_structured_mode_is_read_by_its_content_type() {
        let body = br#"{"specversion":"1.0","id":"17","source":"/s","type":"x","data":{"a":1}}"#.to_vec();
        let properties = BasicProperties::default()
            .with_content_type("application/cloudevents+json; charset=UTF-8".into());
        let (message, _) = decode(&properties, body, &topic()).unwrap();
        assert_eq!((&*message.event_type, &message.payload[..]), ("x", &br#"{"a":1}"#[..]));
    }

    #[test]
    fn what_has_no_payload_has_no_content_type() {
        let message = Message::new(topic(), "order.placed").unwrap();
        let stored = Stored::new(Position(42), Timestamp::now(), message.clone());
        let properties = encoded(&stored);
        assert_eq!(*properties.content_type(), None);
        assert_eq!(decode(&properties, Vec::new(), &topic()).unwrap().0, message);
    }

    /// A queue keeps everything in order; of that, the inbox keeps what has the same key.
    #[test]
    fn the_key_of_another_program_is_its_partition_key_or_subject_whatever_it_is() {
        let key = |more: &[(&str, AMQPValue)]| {
            let came =
                foreign(more.iter().map(|(name, value)| (format!("cloudEvents:{name}"), value.clone())));
            decode(&came, Vec::new(), &topic()).unwrap().0.key.map(|key| key.to_string())
        };
        let text = |text: &str| AMQPValue::LongString(text.into());
        let subject = ("subject", text("line-1"));
        let named = |value| key(&[("partitionkey", value), subject.clone()]).unwrap();
        assert_eq!(named(text("order-1")), "order-1");
        assert_eq!(named(text("a\nb")), "0x610a62");
        assert_eq!(named(text(&"x".repeat(300))), Key::of_bytes(&[b'x'; 300]).as_str());
        let bytes = [0, 0, 0, 7];
        assert_eq!(named(AMQPValue::ByteArray(bytes[..].into())), "0x00000007");
        assert_eq!(named(AMQPValue::LongString(bytes[..].into())), "0x00000007", "as on Kafka");
        assert_eq!(named(AMQPValue::LongString(vec![0xff].into())), "0xff");
        assert_eq!(named(AMQPValue::LongLongInt(7)), "7");
        assert_eq!(named(AMQPValue::Timestamp(7)), "1970-01-01T00:00:07.000000Z");
        assert_eq!(named(AMQPValue::Void), "line-1");
        assert_eq!(key(&[subject]).as_deref(), Some("line-1"));
        assert_eq!(key(&[]), None);
    }

    #[test]
    fn headers_of_any_type_and_length_come_along() {
        let mut nested = FieldTable::default();
        nested.insert("a".into(), AMQPValue::LongInt(1));
        nested.insert("b".into(), AMQPValue::LongString("ü".into()));
        nested.insert("c".into(), AMQPValue::LongString(vec![0xff].into()));
        let list =
            vec![AMQPValue::Void, AMQPValue::Boolean(true), AMQPValue::FieldTable(FieldTable::default())];
        let headers = [
            ("bytes", AMQPValue::ByteArray(vec![0xff, b'a'].into())),
            ("decimal", AMQPValue::DecimalValue(DecimalValue { scale: 2, value: 5 })),
            ("double", AMQPValue::Double(1.5)),
            ("lines", AMQPValue::LongString("two\nlines".into())),
            ("long", AMQPValue::LongString("x".repeat(10_000).into())),
            ("list", AMQPValue::FieldArray(list.into())),
            ("table", AMQPValue::FieldTable(nested)),
            ("void", AMQPValue::Void),
            ("cloudEvents:schemaversion", AMQPValue::LongString("1.2.0".into())),
            ("cloudEvents:subject", AMQPValue::LongString("s".repeat(300).into())),
        ];
        let came = foreign(headers.into_iter().map(|(name, value)| (name.to_owned(), value)));
        let (message, _) = decode(&came.with_content_type("".into()), Vec::new(), &topic()).unwrap();
        let header = |name| message.headers.get(name).unwrap();
        assert_eq!((header("bytes"), header("double"), header("lines")), ("\\xffa", "1.5", "two\\nlines"));
        assert_eq!((header("long").len(), header("void")), (8_192, ""));
        assert_eq!((header("decimal"), header("list")), ("0.05", "[null,true,{}]"));
        assert_eq!(header("table"), r#"{"a":1,"b":"ü","c":"\\xff"}"#);
        assert_eq!((message.schema_version, &*message.content_type), (1, "application/octet-stream"));
        let note = header(cloudevents::ADAPTED);
        assert!(["bytes", "lines", "long", "schemaversion"].iter().all(|name| note.contains(name)), "{note}");
        assert!(!["double", "void"].iter().any(|name| note.contains(name)), "{note}");
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
        let came = BasicProperties::default()
            .with_headers(headers)
            .with_message_id("17".into())
            .with_content_type("text/plain".into())
            .with_type("order".into());
        let error = decode(&came, Vec::new(), &topic()).unwrap_err();
        let kept: Vec<_> =
            error.headers.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
        let own = [("a", "b"), ("bytes", "\\xff"), ("void", "")];
        assert_eq!(kept[..3], own, "the broker's count changes");
        assert_eq!(kept[3..], [("content-type", "text/plain"), ("type", "order")]);
        assert_eq!(error.place.as_deref(), Some("message-id 17"));
    }
}
