//! A Galera cluster whose nodes all take writes, with relays on several of them, while nodes are
//! killed, isolated and brought back.

#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use outbox_contract::backend::Committed;
use outbox_contract::{Message, MessageId, Store, Transactional};
use outbox_engine::{Relay, RelayHandle};
use outbox_servers::{Galera, GaleraCluster, OrSkip};
use outbox_store_mysql::{MySqlOptions, MySqlStore};
use outbox_testkit::history::History;
use outbox_testkit::{RecordingTransport, eventually};
use tokio::task::JoinHandle;

/// Longer than any wait of a test, even on a slow machine.
const LONG: Duration = Duration::from_secs(180);
const LEASE: Duration = Duration::from_secs(4);
const KEYS: usize = 5;

/// A cluster, its writers, and their record.
struct World {
    cluster: GaleraCluster,
    urls: Vec<String>,
    transport: Arc<RecordingTransport>,
    history: Arc<History>,
    committed: Arc<Mutex<HashMap<MessageId, Message>>>,
    conflicts: Arc<AtomicUsize>,
    stop: Arc<AtomicBool>,
    writers: Vec<JoinHandle<()>>,
}

impl World {
    async fn new() -> Option<Self> {
        let cluster = Galera::newest().start().or_skip()?;
        let urls = cluster.fresh_database();
        open(&urls[0]).await.migrate().await.unwrap();
        Some(Self {
            cluster,
            urls,
            transport: Arc::new(RecordingTransport::new()),
            history: Arc::new(History::new()),
            committed: Arc::default(),
            conflicts: Arc::default(),
            stop: Arc::default(),
            writers: Vec::new(),
        })
    }

    async fn relay(&self, node: usize) -> RelayHandle {
        for _ in 0..20 {
            let started = Relay::builder(open(&self.urls[node]).await, Arc::clone(&self.transport))
                .lease(LEASE)
                .heartbeat(Duration::from_millis(500))
                .publish_timeout(Duration::from_millis(2_500))
                .store_timeout(Duration::from_millis(3_500))
                .outage_max_delay(Duration::from_secs(1))
                .start()
                .await;
            match started {
                Ok(relay) => return relay,
                // Three nodes on a busy machine may take longer to answer than these times allow.
                Err(error) => eprintln!("the relay does not start yet: {error}"),
            }
        }
        panic!("the relay does not start")
    }

    /// Starts writers on a node. They restart after a conflict, as a user does, and continue when
    /// their node is down.
    async fn write(&mut self, node: usize, writers: usize) {
        for writer in 0..writers {
            let store = open(&self.urls[node]).await;
            let (history, stop) = (Arc::clone(&self.history), Arc::clone(&self.stop));
            let (committed, conflicts) = (Arc::clone(&self.committed), Arc::clone(&self.conflicts));
            self.writers.push(tokio::spawn(async move {
                for number in 0.. {
                    if stop.load(Ordering::Relaxed) {
                        return;
                    }
                    let key = format!("key-{}", (writer + number) % KEYS);
                    let message = Message::new("orders", "order.placed").unwrap().with_key(key).unwrap();
                    let Ok(mut tx) = store.begin().await else {
                        tokio::time::sleep(Duration::from_millis(50)).await;
                        continue;
                    };
                    let mut writing = history.begin();
                    writing.append(&message);
                    let appended = store.append(&mut tx, &[message.clone().into()]).await;
                    if appended.is_err() {
                        conflicts.fetch_add(1, Ordering::Relaxed);
                        let _ = store.rollback(tx).await;
                        writing.rolled_back();
                        continue;
                    }
                    writing.committing();
                    match store.commit(tx).await {
                        Committed::Yes => {
                            writing.committed();
                            committed.lock().unwrap().insert(message.id, message);
                        }
                        Committed::No(_) => {
                            conflicts.fetch_add(1, Ordering::Relaxed);
                            writing.rolled_back();
                        }
                        Committed::Unknown(_) => writing.unknown(),
                    }
                }
            }));
        }
    }

    /// Waits until this many more messages were published.
    async fn more(&self, count: usize) {
        let from = self.transport.len();
        tokio::time::timeout(LONG, self.transport.wait_for(from + count)).await.expect("it flows");
    }

    /// Stops the writers, waits until all their commits were published, stops the relays, and
    /// checks.
    async fn finish(self, relays: impl IntoIterator<Item = RelayHandle>) {
        self.stop.store(true, Ordering::Relaxed);
        for writer in self.writers {
            writer.await.unwrap();
        }
        let committed = std::mem::take(&mut *self.committed.lock().unwrap());
        let missing = || {
            let published: HashSet<MessageId> = self.transport.published().iter().map(|it| it.id).collect();
            committed.keys().filter(|id| !published.contains(id)).count()
        };
        let all = eventually(LONG, || async { missing() == 0 }).await;
        assert!(all, "{} of {} were not published", missing(), committed.len());
        for relay in relays {
            assert!(relay.stop(Duration::from_secs(20)).await, "it stops in order");
        }
        let consumer = self.history.consumer("all");
        for it in self.transport.published() {
            let key = outbox_contract::Key::new(it.key.key.as_str()).unwrap();
            self.history.delivered_id(consumer, it.id, &it.key.topic, Some(&key), None);
        }
        let report = self.history.check();
        eprintln!(
            "{} committed, {} conflicts; {report:?}",
            committed.len(),
            self.conflicts.load(Ordering::Relaxed)
        );
        report.assert_at_least_once_in_order();
        assert!(self.conflicts.load(Ordering::Relaxed) > 0, "nodes have been in each other's way");
    }
}

async fn open(url: &str) -> MySqlStore {
    let mut options = MySqlOptions::default();
    options.lock_timeout = Duration::from_secs(1);
    options.transaction_idle_timeout = Duration::from_secs(2);
    MySqlStore::connect_with(url, options).await.unwrap()
}

/// One relay on one node, then another one on another.
#[tokio::test(flavor = "multi_thread")]
async fn a_relay_on_any_node_sends_what_all_nodes_commit_in_its_order() {
    let Some(mut world) = World::new().await else { return };
    let relay = world.relay(0).await;
    for node in 0..3 {
        world.write(node, 2).await;
    }
    world.more(300).await;
    assert!(relay.stop(Duration::from_secs(20)).await);
    let relay = world.relay(2).await;
    world.more(300).await;
    world.finish([relay]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn nodes_that_die_with_their_relays_or_lose_their_quorum_cost_nothing() {
    let Some(mut world) = World::new().await else { return };
    let (first, second) = (world.relay(0).await, world.relay(1).await);
    for node in 0..3 {
        world.write(node, 2).await;
    }
    world.more(200).await;

    tokio::task::block_in_place(|| world.cluster.node(0).kill());
    drop(first);
    world.more(200).await;
    tokio::task::block_in_place(|| {
        world.cluster.node(0).start_again();
        world.cluster.until_in_step(&[0, 1, 2]);
    });
    let third = world.relay(0).await;
    world.more(200).await;

    // The second relay can't reach anything, and its writers neither; the third continues.
    tokio::task::block_in_place(|| world.cluster.isolate(1));
    world.more(200).await;
    tokio::task::block_in_place(|| world.cluster.rejoin(1));
    world.more(200).await;

    // A paused node is given up by the others after a while, and comes back.
    tokio::task::block_in_place(|| {
        world.cluster.node(2).pause();
        world.cluster.until_in_step(&[0, 1]);
    });
    world.more(100).await;
    tokio::task::block_in_place(|| {
        world.cluster.node(2).resume();
        world.cluster.until_in_step(&[0, 1, 2]);
    });
    world.more(100).await;
    world.finish([second, third]).await;
}
