//! Cost of the engine: everything between the store's rows and the transport's confirmations, on a
//! store in memory and a transport that confirms at once. `cargo bench -p outbox-engine`
//!
//! Prints CPU time per message of the whole process, from the operating system: with a store in
//! memory, that is the engine and the store's own work, which is measured beside it (fetch and
//! settle of the same rows without an engine) and taken off.

use std::sync::Arc;
use std::time::{Duration, Instant};

use outbox_contract::backend::{BucketSet, FetchRequest, FetchedRow, LeaseRequest, Position, RelayId, RowId};
use outbox_contract::{Message, Outgoing, Route, Store, Topic, Transactional};
use outbox_engine::Relay;
use outbox_store_memory::MemoryStore;
use outbox_testkit::NullTransport;

const MESSAGES: usize = 400_000;
const KEYS: usize = 10_000;
const REPETITIONS: usize = 5;

fn main() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let mut engine = Vec::new();
    let mut alone = Vec::new();
    for _ in 0..REPETITIONS {
        // In turn, so that what else runs on the machine meets both alike.
        alone.push(runtime.block_on(store_alone()));
        engine.push(runtime.block_on(with_engine()));
    }
    alone.sort_by(f64::total_cmp);
    engine.sort_by(f64::total_cmp);
    let (alone, whole) = (alone[REPETITIONS / 2], engine[REPETITIONS / 2]);
    println!(
        "messages {MESSAGES}, keys {KEYS}, batches of 500, median of {REPETITIONS}, CPU microseconds per message"
    );
    println!("store alone (fetch, settle)   {alone:.2}");
    println!("store and engine              {whole:.2}");
    println!("engine                        {:.2}", whole - alone);
}

async fn filled() -> MemoryStore {
    let store = MemoryStore::new();
    let topic = Topic::new("orders").expect("a topic");
    let payload = vec![b'x'; 300];
    for first in (0..MESSAGES).step_by(1_000) {
        let mut tx = store.begin().await.expect("a transaction");
        let messages: Vec<Outgoing> = (first..first + 1_000)
            .map(|n| {
                let message = Message::new(topic.clone(), "order.placed")
                    .expect("valid names")
                    .with_payload(payload.clone());
                Outgoing::from(message.with_key(format!("order-{}", n % KEYS)).expect("a key"))
            })
            .collect();
        store.append(&mut tx, &messages).await.expect("appended");
        store.commit(tx).await.into_result().expect("committed");
    }
    store
}

async fn with_engine() -> f64 {
    let store = filled().await;
    let transport = Arc::new(NullTransport::new());
    let before = cpu();
    let relay = Relay::builder(store.clone(), Arc::clone(&transport))
        .config(config())
        .start()
        .await
        .expect("started");
    let deadline = Instant::now() + Duration::from_secs(120);
    while relay.stats().settled < MESSAGES as u64 {
        assert!(Instant::now() < deadline, "not done in time: {:?}", relay.stats());
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    let used = cpu() - before;
    assert_eq!(transport.messages(), MESSAGES as u64, "each message once");
    assert!(relay.stop(Duration::from_secs(10)).await);
    per_message(used)
}

fn config() -> outbox_engine::RelayConfig {
    let mut config = outbox_engine::RelayConfig::default();
    config.fetch_batch = 500;
    config.max_in_flight = 1_000;
    config
}

/// The same rows read and removed in the same batches, by hand.
async fn store_alone() -> f64 {
    let store = filled().await;
    let route = Route::default();
    let relay = RelayId::new();
    let mut request = LeaseRequest::new(relay, route.clone(), Duration::from_secs(300));
    request.label = "bench".to_owned();
    let before = cpu();
    store.lease(&request).await.expect("leased");
    let mut after = Position::START;
    loop {
        let mut request = FetchRequest::new(route.clone(), relay, BucketSet::ALL);
        request.limit = 500;
        request.after = after;
        let fetched = store.fetch(&request).await.expect("fetched");
        let rows: Vec<RowId> = fetched
            .rows
            .iter()
            .filter_map(|row| if let FetchedRow::Message(stored) = row { Some(stored.row()) } else { None })
            .collect();
        let Some(last) = rows.last() else { break };
        after = last.position;
        store.settle(&route, &rows).await.expect("settled");
    }
    per_message(cpu() - before)
}

#[expect(clippy::cast_precision_loss, reason = "a few hundred thousand")]
fn per_message(used: Duration) -> f64 {
    used.as_secs_f64() * 1e6 / MESSAGES as f64
}

/// User and system time of this process, from the operating system; in steps of 10 ms.
fn cpu() -> Duration {
    let stat = std::fs::read_to_string("/proc/self/stat").expect("a system with /proc");
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
    let ticks: u64 = fields[11..=12].iter().map(|field| field.parse::<u64>().unwrap_or(0)).sum();
    Duration::from_millis(ticks * 10)
}
