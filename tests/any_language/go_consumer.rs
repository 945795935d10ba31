//! A consumer in Go, of a program that was written from the book alone: it receives while relays
//! and it itself are killed, and while an operator replays.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use outbox_contract::AdminExt as _;
use outbox_contract::admin::Filter;
use outbox_servers::{Missing, OrSkip as _, Redis, RedisServer};
use outbox_store_sqlite::{SqliteOptions, SqliteStore};
use outbox_tests::fresh::fresh_topic;
use outbox_tests::ledger::Ledger;
use outbox_tests::pair::Pair;
use outbox_tests::record::{PATIENCE, until};

use super::{Line, World, by_key};

/// The program, and the file of its effects.
struct Consumer {
    program: PathBuf,
    effects: PathBuf,
    arguments: Vec<String>,
}

impl Consumer {
    fn new(folder: &Path, server: &RedisServer, world: &World) -> Result<Self, Missing> {
        let program = folder.join("consumer");
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("any_language/go_consumer/consumer.go");
        let build = Command::new("go").args(["build", "-o"]).args([&program, &source]).output();
        let build = build.map_err(|error| Missing::Absent {
            server: "go".to_owned(),
            reason: format!("the consumer is written for it; install it: {error}"),
        })?;
        assert!(build.status.success(), "{}", String::from_utf8_lossy(&build.stderr));
        let url = server.url();
        let address = url.rsplit('/').find(|part| part.contains(':')).unwrap().to_owned();
        let effects = folder.join("effects");
        let names = [address, effects.display().to_string()];
        let arguments = names.into_iter().chain(world.topics.iter().map(ToString::to_string)).collect();
        Ok(Self { program, effects, arguments })
    }

    fn start(&self) -> Child {
        let mut command = Command::new(&self.program);
        command.args(&self.arguments).stdin(Stdio::piped()).spawn().unwrap()
    }

    /// Returns the effects that are whole.
    fn effects(&self) -> Vec<Line> {
        let text = std::fs::read_to_string(&self.effects).unwrap_or_default();
        let lines = text.split_inclusive('\n').filter(|line| line.ends_with('\n'));
        let effect = |line: &str| {
            let effect: serde_json::Value = serde_json::from_str(line).unwrap();
            let field = |name: &str| effect[name].as_str().unwrap().to_owned();
            let key = effect["HasKey"].as_bool().unwrap().then(|| field("Key"));
            (field("Topic"), key, field("ID"))
        };
        lines.map(effect).collect()
    }

    /// Kills it when it has left this many more effects.
    async fn killed_behind(&self, mut process: Child, effects: usize) {
        let goal = self.effects().len() + effects;
        until("enough effects", async || self.effects().len() >= goal).await;
        process.kill().unwrap();
        process.wait().unwrap();
    }
}

/// Lets the consumer live and die while all is sent.
async fn relayed(world: &World, consumer: &Consumer) {
    let killed = async {
        for _ in 0..2 {
            consumer.killed_behind(consumer.start(), 100).await;
        }
        consumer.start()
    };
    let ((), mut last) = tokio::join!(world.relay("/shop"), killed);
    drop(last.stdin.take());
    let ended = tokio::task::spawn_blocking(move || last.wait().unwrap());
    assert!(tokio::time::timeout(PATIENCE, ended).await.unwrap().unwrap().success());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn it_loses_nothing_and_handles_nothing_twice_though_it_and_the_relays_are_killed() {
    let Some(server) = Redis::newest().shared().or_skip() else { return };
    let folder = tempfile::tempdir().unwrap();
    let topics = [fresh_topic(), fresh_topic()];
    let pair = Pair::new(String::new(), server.url(), topics[0].clone());
    let file = folder.path().join("outbox.db");
    let mut options = SqliteOptions::default();
    options.history = Some(PATIENCE * 100);
    let store = SqliteStore::connect_with(&format!("sqlite://{}", file.display()), options).await.unwrap();
    Ledger::prepare(&store).await.unwrap();
    let mut world = World { store, broker: pair.transport().unwrap(), topics, committed: Vec::new() };
    let Some(consumer) = Consumer::new(folder.path(), &server, &world).or_skip() else { return };
    world.write().await;
    relayed(&world, &consumer).await;
    let handled = consumer.effects();
    assert_eq!(handled.len(), world.committed.len(), "handled and committed");
    assert_eq!(by_key(&handled), by_key(&world.committed));

    // Messages with a key are handled again, as a replay asks; those without are known by their
    // ids.
    let replayed = world.store.replay(&Filter::all_routes()).await.unwrap();
    assert_eq!(replayed, u64::try_from(world.committed.len()).unwrap());
    relayed(&world, &consumer).await;
    let again: Vec<Line> = consumer.effects().split_off(handled.len());
    assert!(again.iter().all(|(_, key, _)| key.is_some()), "messages without a key are handled once");
    let keyed = world.committed.iter().filter(|(_, key, _)| key.is_some());
    assert_eq!(by_key(&again), by_key(&keyed.cloned().collect::<Vec<_>>()));
}
