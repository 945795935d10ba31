//! Messages that an outbox sends: allowed, and rare. And what an SDK should find of each.

use outbox_contract::{Message, MessageId, Timestamp, Topic};
use serde_json::{Value, json};

use super::sdk::Sdk;

/// An extension of 8,192 bytes, under the longest name.
const LONG: &str = "a1b2c3d4e5f6g7h8i9j0";

/// Returns messages, each with its data: of one kind, or none.
pub(super) fn awkward(topic: &Topic) -> Vec<(Message, Value)> {
    let message = || Message::new(topic.clone(), "order.placed").unwrap();
    let with_json = || (message().with_payload(r#"{"n":1}"#), json!({"json": {"n": 1}}));
    let (plain, data) = with_json();
    let change =
        |change: fn(Message) -> Message| (change(plain.clone().with_id(MessageId::new())), data.clone());
    vec![
        with_json(),
        (message().with_payload(r#"["Zoë 😀",1.5,null]"#), json!({"json": ["Zoë 😀", 1.5, null]})),
        (message(), Value::Null),
        (message().with_key("gone").unwrap().into_tombstone(), Value::Null),
        (message().with_content_type("application/x-protobuf"), Value::Null),
        (message().with_content_type("text/plain").with_payload("two\nlines"), json!({"text": "two\nlines"})),
        (
            message().with_content_type("application/octet-stream").with_payload(vec![0, 159, 255]),
            json!({"hex": "009fff"}),
        ),
        (
            message().with_content_type("application/json; charset=utf-8").with_payload("{}"),
            json!({"json": {}}),
        ),
        change(|message| message.with_key("ключ/ü 1").unwrap()),
        change(|message| message.with_subject("s".repeat(300)).unwrap()),
        change(|message| message.with_subject("строка/1").unwrap().with_key("a").unwrap()),
        change(|message| message.with_data_schema("https://example.com/schema?v=1#x").unwrap()),
        change(|message| message.with_extension("tenantid", "Ünïcode 😀").unwrap()),
        change(|message| message.with_extension(LONG, "x".repeat(8_192)).unwrap()),
        change(|message| message.with_schema_version(3)),
        change(|message| message.with_occurred_at(Timestamp::from_micros(-1_000_001))),
        change(|message| message.with_occurred_at(Timestamp::from_micros(253_402_300_799_999_999))),
        change(|message| message.with_occurred_at(Timestamp::from_micros(1_700_000_000_123_456))),
        change(|message| message.with_header("tenant", "Ünïcode, \"quoted\"").unwrap()),
        change(|message| message.with_header("x-empty", "").unwrap()),
        (Message::new(topic.clone(), "Zoë.placed").unwrap().with_payload("{}"), json!({"json": {}})),
    ]
}

/// Returns what an SDK should find of a message, by this binding; None if it can't read it.
pub(super) fn expected(sdk: Sdk, binding: &str, message: &Message, data: &Value) -> Option<Value> {
    let mut event = written(message, data);
    match (sdk, binding) {
        (Sdk::JavaScript, "kafka") if message.is_tombstone() => return None,
        // Its type of an instant has no more digits.
        (Sdk::JavaScript, _) => {
            event["time"] = (message.occurred_at.as_micros().div_euclid(1_000) * 1_000).into();
        }
        // The key of a record is no attribute of the event.
        (Sdk::Go | Sdk::Java, "kafka") => _ = event.as_object_mut().unwrap().remove("partitionkey"),
        // The broker makes bytes of long texts, and the SDK base 64 of bytes.
        (Sdk::Go, "amqp") if event.get(LONG).is_some() => {
            event[LONG] = ("eHh4".repeat(2_730) + "eHg=").into()
        }
        _ => {}
    }
    Some(event)
}

/// Returns what was written of a message.
fn written(message: &Message, data: &Value) -> Value {
    let mut event = json!({
        "specversion": "1.0",
        "id": message.id.to_string(),
        "source": "/shop",
        "type": &*message.event_type,
        "time": message.occurred_at.as_micros(),
        "data": data,
    });
    let is_json = message.content_type.starts_with("application/json");
    let mut set = |name: &str, value: Option<&str>| {
        if let Some(value) = value {
            event[name] = value.into();
        }
    };
    set("datacontenttype", (!is_json || !message.payload.is_empty()).then_some(&message.content_type));
    set("subject", message.subject());
    set("dataschema", message.data_schema());
    set("partitionkey", message.key.as_ref().map(|key| key.as_str()));
    set("tombstone", message.is_tombstone().then_some("true"));
    set("schemaversion", (message.schema_version != 1).then_some("3"));
    message.extensions().for_each(|(name, value)| set(name, Some(value)));
    event
}
