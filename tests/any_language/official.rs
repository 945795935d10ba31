//! Official CloudEvents SDKs of several languages, on every broker: an inbox reads what an SDK
//! sends, in every mode that it has, and the SDK reads what an outbox sends. The page "Wire format"
//! has the results as a table.

mod foreign;
mod own;
mod sdk;

use std::fmt::Write as _;
use std::sync::{Arc, Mutex};

use outbox_contract::{Message, Store as _, inbox_route};
use outbox_engine::{HandlerContext, HandlerError, Inbox};
use outbox_servers::OrSkip as _;
use outbox_store_memory::MemoryStore;
use outbox_tests::fresh::Fresh;
use outbox_tests::kind::{StoreKind, TransportKind};
use outbox_tests::record::{PATIENCE, until};
use serde_json::{Map, Value, json};

use crate::inbox::real::publish;
use foreign::Way;
use sdk::{Events, Sdk};

type Seen = Arc<Mutex<Events>>;

/// Type of the message that shows that the queues are there.
const READY: &str = "ready";

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

fn bytes(hex: &str) -> Vec<u8> {
    (0..hex.len()).step_by(2).map(|at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap()).collect()
}

/// Returns what was found, as data of the kind that is expected: an SDK, or a handler, may have
/// parsed it or not.
fn like(expected: &Value, found: &Value) -> Value {
    let found_bytes = || found.get("hex").and_then(Value::as_str).map(bytes);
    if expected.is_null() {
        return if found_bytes().is_some_and(|bytes| bytes.is_empty()) { Value::Null } else { found.clone() };
    }
    let (kind, _) = expected.as_object().unwrap().iter().next().unwrap();
    let inside = match (kind.as_str(), found_bytes()) {
        ("json", Some(bytes)) => serde_json::from_slice(&bytes).ok(),
        ("text", Some(bytes)) => String::from_utf8(bytes).ok().map(Value::from),
        ("hex", Some(bytes)) => Some(hex(&bytes).into()),
        (_, None) => Some(found.clone()),
        _ => None,
    };
    inside.map_or_else(|| found.clone(), |inside| json!({kind: inside}))
}

/// Keeps what a handler finds of an event.
async fn handle(
    message: Message,
    context: &mut HandlerContext<'_, MemoryStore, Seen>,
) -> Result<(), HandlerError> {
    if *message.event_type == *READY {
        return Ok(());
    }
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
        "data": {"hex": hex(&message.payload)},
    });
    context.state().lock().unwrap().insert(context.event_id().into_owned(), found);
    Ok(())
}

/// Asserts that these were found, and nothing else. Says everything that is different.
fn assert_same(found: &Events, expected: &Events) {
    let mut differences = Vec::new();
    for (id, event) in found {
        let Some(expected) = expected.get(id) else {
            differences.push(format!("{id} was not expected: {event}"));
            continue;
        };
        let mut event = event.clone();
        event["data"] = like(&expected["data"], &event["data"]);
        let names = event.as_object().unwrap().keys().chain(expected.as_object().unwrap().keys());
        let names: std::collections::BTreeSet<&String> = names.collect();
        let different =
            names.into_iter().filter(|name| event.get(name.as_str()) != expected.get(name.as_str()));
        for name in different {
            let cut = |value: Option<&Value>| {
                value
                    .map_or("nothing".into(), |value| value.to_string().chars().take(200).collect::<String>())
            };
            let (found, expected) = (cut(event.get(name)), cut(expected.get(name)));
            differences.push(format!("{id}: {name}: {found}, expected {expected}"));
        }
    }
    differences
        .extend(expected.keys().filter(|id| !found.contains_key(*id)).map(|id| format!("{id} is missing")));
    assert!(differences.is_empty(), "{}", differences.join("\n"));
}

/// The SDK sends to an inbox, by each of its bindings in both modes.
async fn is_read(sdk: Sdk, kind: TransportKind) {
    let Some(program) = sdk.program().or_skip() else { return };
    let Some(Fresh { pair, .. }) = Fresh::new(StoreKind::Memory, kind).await else { return };
    let (seen, store, transport) = (Seen::default(), MemoryStore::new(), pair.transport().unwrap());
    let inbox = Inbox::builder(store.clone(), Arc::clone(&transport))
        .consumer(pair.topic.as_str())
        .state(Arc::clone(&seen))
        .topic(&pair.topic)
        .on_any(handle);
    let inbox = inbox.start().await.unwrap();
    publish(&*transport, "/ready", &[Message::new(pair.topic.clone(), READY).unwrap()]).await;
    let url = pair.broker.strip_prefix("kafka://").unwrap_or(&pair.broker);
    let folder = tempfile::tempdir().unwrap();
    let mut sent = Events::new();
    for binding in sdk.bindings(kind, true) {
        for is_structured in [false, true] {
            let way = Way { sdk, binding, is_structured };
            let (events, file) = (way.events(), folder.path().join("events.json"));
            std::fs::write(&file, Value::from(events.clone()).to_string()).unwrap();
            let arguments = ["send", binding, url, pair.topic.as_str(), way.mode(), file.to_str().unwrap()];
            let refused = program.run(&arguments).await;
            let mut expected = way.expected(&events);
            let unmade: Vec<String> = refused.keys().cloned().collect();
            expected.retain(|id, event| {
                assert_eq!(way.refuses(event), unmade.contains(id), "{way:?}: {id}: {refused:?}");
                !unmade.contains(id)
            });
            sent.extend(expected);
        }
    }
    let route = inbox_route(&pair.consumer().unwrap());
    until("every event is handled, or a dead letter", async || {
        let dead = store.backlog(&route).await.unwrap().dead;
        seen.lock().unwrap().len() + usize::try_from(dead).unwrap() >= sent.len()
    })
    .await;
    assert!(inbox.stop(PATIENCE).await);
    assert_same(&seen.lock().unwrap(), &sent);
}

/// An outbox sends to the SDK, which reads by each of its bindings.
async fn reads(sdk: Sdk, kind: TransportKind) {
    let Some(program) = sdk.program().or_skip() else { return };
    for binding in sdk.bindings(kind, false) {
        let Some(Fresh { pair, .. }) = Fresh::new(StoreKind::Memory, kind).await else { return };
        let transport = pair.transport().unwrap();
        let sent = own::awkward(&pair.topic);
        let messages: Vec<Message> = sent.iter().map(|(message, _)| message.clone()).collect();
        publish(&*transport, "/shop", &messages).await;
        let url = pair.broker.strip_prefix("kafka://").unwrap_or(&pair.broker);
        let count = sent.len().to_string();
        let mut found = program.run(&["receive", binding, url, pair.topic.as_str(), &count]).await;
        let unread: Events = found.extract_if(.., |_, event| event.get("unread").is_some()).collect();
        for event in found.values_mut() {
            let event = event.as_object_mut().unwrap();
            // The topic is where it is written, and the SDK of Go adds the record's place.
            ["topic", "kafkatopic", "kafkapartition", "kafkaoffset"]
                .iter()
                .for_each(|name| _ = event.remove(*name));
            assert!(event.remove("sequence").is_some(), "{event:?}");
        }
        let mut expected = Events::new();
        for (message, data) in &sent {
            let id = message.id.to_string();
            match own::expected(sdk, binding, message, data) {
                Some(event) => _ = expected.insert(id, event),
                None => assert!(unread.contains_key(&id), "{sdk:?} reads {id} after all"),
            }
        }
        let not_listed: Vec<&Value> =
            unread.iter().filter(|(id, _)| expected.contains_key(*id)).map(|(_, event)| event).collect();
        assert!(not_listed.is_empty(), "{sdk:?}, {binding}: {not_listed:#?}");
        assert_same(&found, &expected);
    }
}

macro_rules! sdks {
    ($($language:ident: $sdk:expr;)*) => {$(
        mod $language {
            use super::*;

            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn what_the_sdk_sends_is_read_on_kafka() {
                is_read($sdk, TransportKind::Kafka).await;
            }

            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn what_the_sdk_sends_is_read_on_rabbitmq() {
                is_read($sdk, TransportKind::RabbitMq).await;
            }

            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn what_the_sdk_sends_is_read_on_redis() {
                is_read($sdk, TransportKind::Redis).await;
            }

            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn the_sdk_reads_what_is_sent_on_kafka() {
                reads($sdk, TransportKind::Kafka).await;
            }

            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn the_sdk_reads_what_is_sent_on_rabbitmq() {
                reads($sdk, TransportKind::RabbitMq).await;
            }

            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn the_sdk_reads_what_is_sent_on_redis() {
                reads($sdk, TransportKind::Redis).await;
            }
        }
    )*};
}

sdks! {
    go: Sdk::Go;
    java: Sdk::Java;
    javascript: Sdk::JavaScript;
    python: Sdk::Python;
}
