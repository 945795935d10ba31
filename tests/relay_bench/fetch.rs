//! Cost of a fetch behind a large backlog, and cost of each message for the database while
//! transactions stay open.

use std::time::{Duration, Instant};

use outbox_contract::backend::{BucketSet, FetchRequest, LeaseRequest, RelayId};
use outbox_contract::{Route, Store};
use serde::{Deserialize, Serialize};

use crate::bench::{Bench, KEYS, TOPIC};
use crate::child::{Child, finished, ready, run as run_child, tell};
use crate::ours::{Ours, store};
use crate::report::Table;
use crate::role::Role;
use crate::stats::median;
use crate::throughput::measure;

/// Messages to fetch.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Fetch {
    pub(crate) store: String,
    pub(crate) fetches: usize,
}

impl Fetch {
    /// Reports the duration of each fetch of 1,000 rows, in microseconds.
    pub(crate) async fn play(self) {
        let store = store(&self.store).await;
        let (relay, route) = (RelayId::new(), Route::default());
        let mut lease = LeaseRequest::new(relay, route.clone(), Duration::from_secs(600));
        lease.label = "bench".to_owned();
        store.lease(&lease).await.expect("leased");
        ready().await;
        let mut took = Vec::new();
        // The first ones find nothing prepared.
        for turn in 0..self.fetches + 5 {
            let request = FetchRequest::new(route.clone(), relay, BucketSet::ALL);
            let started = Instant::now();
            let fetched = store.fetch(&request).await.expect("fetched");
            assert_eq!(fetched.rows.len(), request.limit, "there are rows enough");
            if turn >= 5 {
                took.push(started.elapsed().as_secs_f64() * 1e6);
            }
        }
        tell(&took);
        finished().await;
    }
}

pub(crate) fn run(bench: &mut Bench) {
    waiting(bench);
    while_open(bench);
}

fn waiting(bench: &mut Bench) {
    let large = bench.profile.pick(500_000, 10_000_000);
    let mut table = Table::new("fetch", "a fetch of 1,000 messages, by how many wait", &["us", "ratio"]);
    let mut first = None;
    for messages in [10_000, large] {
        bench.say(format!("fetch: {messages} wait"));
        let store = bench.store();
        bench.fill(&store, TOPIC, messages, KEYS);
        let took: Vec<f64> = run_child(&Role::Fetch(Fetch { store, fetches: 40 }));
        let took = median(&took);
        let first = *first.get_or_insert(took);
        table.row(format!("{messages} wait"), [took, took.zip(first).map(|(took, first)| took / first)]);
    }
    bench.report(table);
}

/// Open transactions and obstacles while messages are fetched and settled.
const BESIDE: [&str; 4] = ["nothing", "a snapshot", "a writer of the outbox", "a paused topic in front"];

fn while_open(bench: &mut Bench) {
    let messages = bench.profile.pick(60_000, 1_000_000);
    let repetitions = bench.profile.pick(1, 3);
    let mut runs = vec![Vec::new(); BESIDE.len()];
    for repetition in 1..=repetitions {
        for (beside, runs) in BESIDE.iter().zip(&mut runs) {
            bench.say(format!("fetch {repetition}/{repetitions}: beside {beside}"));
            let store = bench.store();
            let statements: &[&str] = match *beside {
                "a snapshot" => {
                    &["begin isolation level repeatable read", "select count(*) from outbox_message"]
                }
                "a writer of the outbox" => &[
                    "begin",
                    "insert into outbox_message (topic, key, event_type) values ('bench', 'held', 'held')",
                ],
                _ => &[],
            };
            let statements: Vec<String> = statements.iter().map(|sql| (*sql).to_owned()).collect();
            let held = (!statements.is_empty())
                .then(|| Child::start(&Role::Hold { store: store.clone(), statements }));
            if *beside == "a paused topic in front" {
                bench.fill(&store, "paused", messages, KEYS);
                bench
                    .postgres()
                    .query(&store, "insert into outbox_pause (route, topic) values ('default', 'paused')");
            }
            bench.fill(&store, TOPIC, messages, KEYS);
            let role = Role::Ours(Ours { store, broker: None, settings: vec![], messages });
            runs.push(measure(bench, Child::start(&role)));
            drop(held);
        }
    }
    let about = format!(
        "{messages} messages fetched and settled, by what stays open beside; medians of {repetitions}"
    );
    let mut table = Table::new("beside", about, &["messages/s", "database us", "own us"]);
    for (beside, runs) in BESIDE.iter().zip(&runs) {
        let of = |figure: fn(&crate::throughput::Used) -> Option<f64>| {
            median(&runs.iter().filter_map(figure).collect::<Vec<_>>())
        };
        let row = [of(|used| Some(used.rate)), of(|used| used.database), of(|used| Some(used.own))];
        table.row(*beside, row);
    }
    bench.report(table);
}
