//! Programs in other languages. Here a consumer in Python: it implements only the rules of the
//! book, drops repeats and nothing else.

#![allow(clippy::unwrap_used)]

mod foreign_records;
mod go_consumer;
mod official;

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use outbox_contract::{Message, Outgoing, Store as _, Topic, Transport};
use outbox_servers::{Missing, OrSkip as _, Redis, RedisServer};
use outbox_store_sqlite::SqliteStore;
use outbox_testkit::{ChaosTransport, FaultRates};
use outbox_tests::fresh::fresh_topic;
use outbox_tests::halt::{Halt, Halting};
use outbox_tests::ledger::{Ledger, Written};
use outbox_tests::pair::Pair;
use outbox_tests::record::{PATIENCE, until};

/// Number of messages in each part of the story.
const MESSAGES: usize = 300;
const UNITS: u32 = 4;

/// Topic, key and id of a message.
type Line = (String, Option<String>, String);

/// The outbox, the broker, and every committed message, in order.
struct World {
    store: SqliteStore,
    broker: Arc<dyn Transport>,
    topics: [Topic; 2],
    committed: Vec<Line>,
}

impl World {
    /// Commits messages one by one: without a key, of one key that alternates over two topics, and
    /// of a key of one topic.
    async fn write(&mut self) {
        for number in 0..MESSAGES {
            let topic = &self.topics[number % 2];
            for key in [None, Some("alternates"), (number % 2 == 0).then_some("stays")] {
                let message = Message::new(topic.clone(), "order.placed").unwrap();
                let message = match key {
                    Some(key) => message.with_key(key).unwrap(),
                    None => message,
                };
                let line = (topic.to_string(), key.map(ToOwned::to_owned), message.id.to_string());
                let written = Ledger::write(&self.store, &[Outgoing::from(message)], &|| ()).await;
                assert!(matches!(written, Written::Yes), "{written:?}");
                self.committed.push(line);
            }
        }
    }

    /// Sends everything, by relays that are killed at different points, except the last one.
    async fn relay(&self, source: &str) {
        // Some confirmations get lost: their messages are resent.
        let rates = FaultRates { unknown_with_effect: 0.1, ..FaultRates::default() };
        let out: Arc<dyn Transport> =
            Arc::new(ChaosTransport::new(Arc::clone(&self.broker), 1).with_rates(rates));
        for halt in [Halt::Sent, Halt::Settling] {
            let halting = Halting::new(halt, Arc::new(self.store.clone()), Arc::clone(&out));
            let transport: Arc<dyn Transport> = Arc::<Halting>::clone(&halting);
            let relay = Pair::relay(halting.store(), transport)
                .store_timeout(PATIENCE)
                .publish_batch(20)
                .source(source)
                .start()
                .await
                .unwrap();
            tokio::time::timeout(PATIENCE, halting.reached()).await.unwrap();
            drop(relay);
        }
        let relay = Pair::relay(Arc::new(self.store.clone()), out)
            .store_timeout(PATIENCE)
            .source(source)
            .start()
            .await
            .unwrap();
        until("everything is sent", async || {
            let backlog = self.store.backlog(&outbox_contract::Route::default()).await;
            backlog.is_ok_and(|backlog| backlog.pending + backlog.parked == 0)
        })
        .await;
        assert!(relay.stop(PATIENCE).await, "the relay stops in order");
    }

    /// Returns the messages that the consumer handles, and the number of entries.
    fn consume(&self, server: &RedisServer) -> (Vec<Line>, usize) {
        let program = Path::new(env!("CARGO_MANIFEST_DIR")).join("any_language/consumer.py");
        let port = server.url().rsplit(':').next().unwrap().to_owned();
        let streams = self
            .topics
            .iter()
            .flat_map(|topic| (0..UNITS).map(move |unit| format!("outbox:{{{topic}:{unit}}}")));
        let output = Command::new("python3").arg(program).arg(port).args(streams).output().unwrap();
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success(), "{said}{}", String::from_utf8_lossy(&output.stderr));
        let mut lines: Vec<&str> = said.lines().collect();
        let entries = lines.pop().unwrap().parse().unwrap();
        (lines.into_iter().map(|line| serde_json::from_str(line).unwrap()).collect(), entries)
    }
}

/// Groups by topic and key; messages without a key are unordered.
fn by_key(lines: &[Line]) -> BTreeMap<(&str, Option<&str>), Vec<&str>> {
    let mut all = BTreeMap::<_, Vec<&str>>::new();
    for (topic, key, id) in lines {
        all.entry((topic.as_str(), key.as_deref())).or_default().push(id);
    }
    all.iter_mut().filter(|((_, key), _)| key.is_none()).for_each(|(_, ids)| ids.sort_unstable());
    all
}

fn python() -> Result<(), Missing> {
    let found = Command::new("python3").arg("--version").output();
    match found {
        Ok(output) if output.status.success() => Ok(()),
        _ => Err(Missing::Absent {
            server: "python3".to_owned(),
            reason: "the consumer is written for it; install it".to_owned(),
        }),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_consumer_by_the_book_loses_nothing_and_handles_nothing_twice() {
    let Some(()) = python().or_skip() else { return };
    let Some(server) = Redis::newest().shared().or_skip() else { return };
    let folder = tempfile::tempdir().unwrap();
    let topics = [fresh_topic(), fresh_topic()];
    let pair = Pair::new(String::new(), server.url(), topics[0].clone());
    let (store, broker) = (open(folder.path(), "before").await, pair.transport().unwrap());
    let mut world = World { store, broker, topics, committed: Vec::new() };
    world.write().await;
    world.relay("/shop").await;
    // The database is restored from a backup in which nothing had been written yet: its positions
    // begin again, so it has another name.
    world.store = open(folder.path(), "restored").await;
    world.write().await;
    world.relay("/shop/restored-2026-11-25").await;

    let (handled, entries) = world.consume(&server);
    println!("{} committed, {entries} came, {} handled", world.committed.len(), handled.len());
    assert!(entries > world.committed.len(), "some messages were repeated");
    assert_eq!(handled.len(), world.committed.len(), "handled and committed");
    assert_eq!(by_key(&handled), by_key(&world.committed));
}

async fn open(folder: &Path, name: &str) -> SqliteStore {
    let file = folder.join(format!("{name}.db"));
    let store = SqliteStore::connect(&format!("sqlite://{}", file.display())).await.unwrap();
    Ledger::prepare(&store).await.unwrap();
    store
}
