//! The official CloudEvents SDK for Python, on every broker: an inbox reads what the SDK sends, in
//! every mode that it has, and the SDK reads what an outbox sends.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex, OnceLock};

use outbox_contract::{Message, MessageId, Timestamp};
use outbox_engine::{HandlerContext, HandlerError, Inbox};
use outbox_servers::{Missing, OrSkip as _};
use outbox_store_memory::MemoryStore;
use outbox_tests::fresh::Fresh;
use outbox_tests::kind::{StoreKind, TransportKind};
use outbox_tests::record::{PATIENCE, until};
use serde_json::{Map, Value, json};

use crate::inbox::real::publish;

/// Packages and their versions, as the registry has them.
const PACKAGES: [&str; 4] = ["cloudevents==2.2.0", "confluent-kafka==2.16.1", "pika==1.4.4", "redis==8.1.0"];

/// Events by their ids.
type Events = BTreeMap<String, Value>;
type Seen = Arc<Mutex<Events>>;

/// Returns a Python that has the SDK and the clients of all brokers. Made once for all tests.
fn python() -> Result<PathBuf, Missing> {
    static MADE: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    let made = MADE.get_or_init(|| {
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("official-sdk");
        let python = folder.join("bin/python");
        let run = |command: &mut Command| match command.output() {
            Ok(output) if output.status.success() => Ok(()),
            Ok(output) => Err(String::from_utf8_lossy(&output.stderr).trim().to_owned()),
            Err(error) => Err(error.to_string()),
        };
        run(Command::new("python3").args(["-m", "venv"]).arg(&folder))?;
        run(Command::new(&python).args(["-m", "pip", "install", "--quiet"]).args(PACKAGES))?;
        Ok(python)
    });
    made.clone().map_err(|reason| Missing::Absent { server: "cloudevents (Python)".to_owned(), reason })
}

/// Runs the program; returns the events that it prints.
async fn run(python: &Path, arguments: &[&str]) -> Events {
    let mut command = Command::new(python);
    command.arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("any_language/official.py")).args(arguments);
    let output = tokio::task::spawn_blocking(move || command.output()).await.unwrap().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{said}{}", String::from_utf8_lossy(&output.stderr));
    let events = said.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    events.map(|event| (event["id"].as_str().unwrap().to_owned(), event)).collect()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// Keeps what a handler finds of an event.
async fn handle(
    message: Message,
    context: &mut HandlerContext<'_, MemoryStore, Seen>,
) -> Result<(), HandlerError> {
    let extensions: Map<String, Value> =
        context.extensions().map(|(name, value)| (name.to_owned(), value.into())).collect();
    let key = message.key.as_ref().map(|key| key.as_str()).filter(|key| !key.contains("...sha256:"));
    let found = json!({
        "id": context.event_id(),
        "source": context.source(),
        "type": &*message.event_type,
        "time": message.occurred_at.as_micros(),
        "content_type": &*message.content_type,
        "subject": context.subject(),
        "dataschema": context.data_schema(),
        "extensions": extensions,
        "key": key,
        "traceparent": context.traceparent(),
        "payload": hex(&message.payload),
    });
    context.state().lock().unwrap().insert(context.event_id().into_owned(), found);
    Ok(())
}

fn assert_same(found: &Events, expected: &Events) {
    let ids = |events: &Events| events.keys().cloned().collect::<Vec<_>>();
    assert_eq!(ids(found), ids(expected));
    for (id, event) in expected {
        assert_eq!(found[id], *event, "{id}");
    }
}

/// The SDK sends to an inbox, by these bindings.
async fn is_read(kind: TransportKind, bindings: &[&str]) {
    let Some(python) = python().or_skip() else { return };
    let Some(Fresh { pair, .. }) = Fresh::new(StoreKind::Memory, kind).await else { return };
    let seen = Seen::default();
    let inbox = Inbox::builder(MemoryStore::new(), pair.transport().unwrap())
        .consumer(pair.topic.as_str())
        .state(Arc::clone(&seen))
        .topic(&pair.topic)
        .on_any(handle);
    let inbox = inbox.start().await.unwrap();
    let url = pair.broker.strip_prefix("kafka://").unwrap_or(&pair.broker);
    let mut sent = Events::new();
    for binding in bindings {
        for mode in ["binary", "structured"] {
            sent.extend(run(&python, &["send", binding, url, pair.topic.as_str(), mode]).await);
        }
    }
    assert!(sent.len() >= bindings.len() * 40, "{} events were sent", sent.len());
    until("every event is handled", async || seen.lock().unwrap().len() >= sent.len()).await;
    assert_same(&seen.lock().unwrap(), &sent);
    assert!(inbox.stop(PATIENCE).await);
}

/// Messages that are allowed, and rare, each with the data that a reader finds.
fn awkward(topic: &outbox_contract::Topic) -> Vec<(Message, Value)> {
    let message = || Message::new(topic.clone(), "order.placed");
    let with_json = || (message().with_payload(r#"{"n":1}"#), json!({"n": 1}));
    let (plain, data) = with_json();
    let change =
        |change: fn(Message) -> Message| (change(plain.clone().with_id(MessageId::new())), data.clone());
    vec![
        with_json(),
        (message().with_payload(r#"["Zoë 😀",1.5,null]"#), json!(["Zoë 😀", 1.5, null])),
        (message(), Value::Null),
        (message().with_key("gone").unwrap().into_tombstone(), Value::Null),
        (message().with_content_type("application/x-protobuf"), Value::Null),
        (message().with_content_type("text/plain").with_payload("two\nlines"), json!("two\nlines")),
        (
            message().with_content_type("application/octet-stream").with_payload(vec![0, 159, 255]),
            json!({"hex": "009fff"}),
        ),
        (message().with_content_type("application/json; charset=utf-8").with_payload("{}"), json!({})),
        change(|message| message.with_key("ключ/ü 1").unwrap()),
        change(|message| message.with_subject("s".repeat(300)).unwrap()),
        change(|message| message.with_subject("строка/1").unwrap().with_key("a").unwrap()),
        change(|message| message.with_data_schema("https://example.com/schema?v=1#x").unwrap()),
        change(|message| message.with_extension("tenantid", "Ünïcode 😀").unwrap()),
        change(|message| message.with_extension("a1b2c3d4e5f6g7h8i9j0", "x".repeat(8_192)).unwrap()),
        change(|message| message.with_schema_version(3)),
        change(|message| message.with_occurred_at(Timestamp::from_micros(-1_000_001))),
        change(|message| message.with_occurred_at(Timestamp::from_micros(253_402_300_799_999_999))),
        change(|message| message.with_occurred_at(Timestamp::from_micros(1_700_000_000_123_456))),
        change(|message| message.with_header("tenant", "Ünïcode, \"quoted\"").unwrap()),
        change(|message| message.with_header("x-empty", "").unwrap()),
        (Message::new(topic.clone(), "Zoë.placed").with_payload("{}"), json!({})),
    ]
}

/// What the SDK should find of a message.
fn expected(message: &Message, data: &Value) -> Value {
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

/// An outbox sends to the SDK, which reads by this binding.
async fn reads(kind: TransportKind, binding: &str) {
    let Some(python) = python().or_skip() else { return };
    let Some(Fresh { pair, .. }) = Fresh::new(StoreKind::Memory, kind).await else { return };
    let transport = pair.transport().unwrap();
    let sent = awkward(&pair.topic);
    let messages: Vec<Message> = sent.iter().map(|(message, _)| message.clone()).collect();
    publish(&*transport, "/shop", &messages).await;
    let url = pair.broker.strip_prefix("kafka://").unwrap_or(&pair.broker);
    let count = sent.len().to_string();
    let mut found = run(&python, &["receive", binding, url, pair.topic.as_str(), &count]).await;
    for event in found.values_mut() {
        let event = event.as_object_mut().unwrap();
        event.remove("topic");
        assert!(event.remove("sequence").is_some(), "{event:?}");
    }
    let expected = sent.iter().map(|(message, data)| (message.id.to_string(), expected(message, data)));
    assert_same(&found, &expected.collect());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_the_sdk_sends_is_read_on_kafka() {
    is_read(TransportKind::Kafka, &["kafka"]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_the_sdk_sends_is_read_on_rabbitmq() {
    is_read(TransportKind::RabbitMq, &["rabbitmq", "amqp"]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_the_sdk_sends_is_read_on_redis() {
    is_read(TransportKind::Redis, &["redis"]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_sdk_reads_what_is_sent_on_kafka() {
    reads(TransportKind::Kafka, "kafka").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_sdk_reads_what_is_sent_on_rabbitmq() {
    reads(TransportKind::RabbitMq, "amqp").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_sdk_reads_what_is_sent_on_redis() {
    reads(TransportKind::Redis, "redis").await;
}
