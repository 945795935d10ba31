//! Records of other programs on Kafka that are no CloudEvents: a change feed in the format of
//! Debezium, and JSON with its type in a header.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use outbox_contract::{Message, MessageId, Store as _, Timestamp, Topic, inbox_route};
use outbox_engine::{ForeignRecord, HandlerContext, HandlerError, Inbox, InboxHandle};
use outbox_store_memory::MemoryStore;
use outbox_tests::fresh::Fresh;
use outbox_tests::kind::{StoreKind, TransportKind};
use outbox_tests::record::{PATIENCE, until};
use rdkafka::ClientConfig;
use rdkafka::message::{Header, OwnedHeaders};
use rdkafka::producer::{BaseProducer, BaseRecord, Producer as _};

// ANCHOR: debezium
#[derive(serde::Deserialize)]
struct Change {
    op: String,
    source: Source,
}

#[derive(serde::Deserialize)]
struct Source {
    name: String,
    table: String,
    lsn: u64,
    ts_ms: i64,
}

fn change(record: &ForeignRecord<'_>) -> Result<Option<Message>, HandlerError> {
    if record.is_null() {
        return Ok(None); // the tombstone behind each delete
    }
    let Change { op, source } = serde_json::from_slice(record.payload())?;
    let key = String::from_utf8_lossy(record.key().unwrap_or_default());
    let message = record
        .message(format!("{}.{op}", source.table))
        .with_id(MessageId::of_event(&source.name, &format!("{}/{key}", source.lsn)))
        .with_content_type("application/json")
        .with_occurred_at(Timestamp::from_micros(source.ts_ms * 1_000));
    Ok(Some(message))
}
// ANCHOR_END: debezium

// ANCHOR: header
fn typed(record: &ForeignRecord<'_>) -> Result<Option<Message>, HandlerError> {
    let event_type = record.header("eventType").ok_or("the header eventType is missing")?;
    let message = record.message(event_type).with_content_type("application/json");
    Ok(Some(match record.header("eventId") {
        Some(id) => message.with_id(MessageId::of_event("billing", id)),
        None => message,
    }))
}
// ANCHOR_END: header

type Mapper = fn(&ForeignRecord<'_>) -> Result<Option<Message>, HandlerError>;
type Seen = Arc<Mutex<Vec<Message>>>;

/// A topic, its inbox, and all that handlers got.
struct World {
    producer: BaseProducer,
    topic: Topic,
    store: MemoryStore,
    inbox: InboxHandle,
    seen: Seen,
}

async fn handle(
    message: Message,
    context: &mut HandlerContext<'_, MemoryStore, Seen>,
) -> Result<(), HandlerError> {
    context.state().lock().unwrap().push(message);
    Ok(())
}

impl World {
    async fn new(mapper: Mapper) -> Option<Self> {
        let Fresh { pair, .. } = Fresh::new(StoreKind::Memory, TransportKind::Kafka).await?;
        let address = pair.broker.strip_prefix("kafka://").unwrap();
        let producer = ClientConfig::new().set("bootstrap.servers", address).create().unwrap();
        let (store, seen) = (MemoryStore::new(), Seen::default());
        let inbox = Inbox::builder(store.clone(), pair.transport().unwrap())
            .consumer(pair.topic.as_str())
            .state(Arc::clone(&seen))
            .topic(&pair.topic)
            .on_any(handle)
            .map_records(mapper);
        Some(Self { producer, topic: pair.topic, store, inbox: inbox.start().await.unwrap(), seen })
    }

    fn send(&self, key: &str, headers: &[(&str, &str)], value: Option<&str>) {
        let all = headers
            .iter()
            .fold(OwnedHeaders::new(), |all, (key, value)| all.insert(Header { key, value: Some(*value) }));
        let mut record = BaseRecord::to(self.topic.as_str()).key(key).headers(all);
        if let Some(value) = value {
            record = record.payload(value);
        }
        self.producer.send(record).map_err(|(error, _)| error).unwrap();
        self.producer.flush(PATIENCE).unwrap();
    }

    /// Returns the types that were handled of each key, in order, when as many records as these
    /// were, and as many became dead letters.
    async fn types(self, handled: usize, dead: u64) -> BTreeMap<String, Vec<String>> {
        let route = inbox_route(&self.topic.as_str().parse().unwrap());
        until("all are handled, or dead letters", async || {
            self.seen.lock().unwrap().len() >= handled
                && self.store.backlog(&route).await.is_ok_and(|backlog| backlog.dead >= dead)
        })
        .await;
        assert!(self.inbox.stop(PATIENCE).await);
        assert_eq!(self.store.backlog(&route).await.unwrap().dead, dead);
        let mut types = BTreeMap::<_, Vec<String>>::new();
        for message in &*self.seen.lock().unwrap() {
            types.entry(message.order_key().to_string()).or_default().push(message.event_type.to_string());
        }
        types
    }
}

fn debezium(op: &str, id: u32, lsn: u32) -> String {
    format!(
        r#"{{"before":null,"after":{{"id":{id},"name":"Ada"}},"source":{{"version":"2.7.0","connector":"postgresql",
            "name":"crm","ts_ms":1700000000123,"db":"crm","schema":"public","table":"customers","txId":7,"lsn":{lsn}}},
            "op":"{op}","ts_ms":1700000000456}}"#
    )
}

fn expected(keys: &[(&str, &[&str])]) -> BTreeMap<String, Vec<String>> {
    let owned = |types: &[&str]| types.iter().map(|name| (*name).to_owned()).collect();
    keys.iter().map(|(key, types)| ((*key).to_owned(), owned(types))).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_change_feed_in_the_format_of_debezium_is_handled_once_in_the_order_of_its_keys() {
    let Some(world) = World::new(change).await else { return };
    let (one, two) = (r#"{"id":1}"#, r#"{"id":2}"#);
    world.send(one, &[], Some(&debezium("c", 1, 10)));
    world.send(two, &[], Some(&debezium("c", 2, 11)));
    world.send(one, &[], Some(&debezium("u", 1, 12)));
    // The connector was restarted, and writes again what it had not noted.
    world.send(one, &[], Some(&debezium("u", 1, 12)));
    world.send(one, &[], Some(&debezium("d", 1, 13)));
    world.send(one, &[], None);
    world.send("3", &[], Some("not JSON"));
    world.send(two, &[], Some(&debezium("d", 2, 14)));
    let seen = Arc::clone(&world.seen);
    let types = world.types(5, 1).await;
    let each = ["customers.c", "customers.u", "customers.d"];
    assert_eq!(types, expected(&[(one, &each), (two, &["customers.c", "customers.d"])]));
    let first = seen.lock().unwrap()[0].clone();
    assert_eq!(first.occurred_at, Timestamp::from_micros(1_700_000_000_123_000));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn json_with_its_type_in_a_header_is_handled_once_in_the_order_of_its_keys() {
    let Some(world) = World::new(typed).await else { return };
    let paid = [("eventType", "invoice.paid"), ("eventId", "17")];
    world.send("a", &[("eventType", "invoice.sent"), ("tenant", "acme")], Some("{}"));
    world.send("a", &paid, Some("{}"));
    world.send("a", &paid, Some("{}"));
    world.send("b", &[("eventType", "invoice.sent"), ("eventId", "18")], Some("{}"));
    world.send("c", &[("other", "x")], Some("{}"));
    let seen = Arc::clone(&world.seen);
    let types = world.types(3, 1).await;
    assert_eq!(types, expected(&[("a", &["invoice.sent", "invoice.paid"]), ("b", &["invoice.sent"])]));
    let seen = seen.lock().unwrap();
    assert!(seen.iter().any(|message| message.headers.get("tenant") == Some("acme")));
}
