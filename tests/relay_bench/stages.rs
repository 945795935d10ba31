//! A message's way from commit to consumer, stage by stage: writers, relay and consumer in one
//! process, so that one clock times them all.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use outbox_contract::backend::{
    FetchRequest, Fetched, FetchedRow, Outcomes, PublishBatch, RowId, StoreLayer, TransportLayer,
};
use outbox_contract::{MessageId, Route, Store, StoreError, Transport};
use outbox_engine::Relay;
use outbox_tests::on_store;
use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use crate::bench::{Bench, KEYS};
use crate::child::{finished, run as run_child, tell};
use crate::latency::Latency;
use crate::report::Table;
use crate::role::Role;
use crate::stats::quantile;
use crate::writer::Writer;

/// Messages to follow.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Stages(Latency);

/// Instants on the way of a message.
#[derive(Clone, Copy, Debug, Default)]
struct Way {
    asked: Option<Instant>,
    fetched: Option<Instant>,
    handed_over: Option<Instant>,
    confirmed: Option<Instant>,
    settled: Option<Instant>,
}

type Ways = Arc<Mutex<HashMap<MessageId, Way>>>;

fn note<'i>(ways: &Ways, ids: impl IntoIterator<Item = &'i MessageId>, set: impl Fn(&mut Way)) {
    let mut ways = ways.lock().expect("no user has panicked");
    ids.into_iter().for_each(|id| set(ways.entry(*id).or_default()));
}

/// A store whose fetches and settlements are timed.
struct TimedStore<S>(S, Ways);

impl<S: Store> StoreLayer for TimedStore<S> {
    type Inner = S;

    fn inner(&self) -> &S {
        &self.0
    }

    async fn fetch(&self, request: &FetchRequest) -> Result<Fetched, StoreError> {
        let asked = Instant::now();
        let fetched = self.0.fetch(request).await?;
        let now = Instant::now();
        let ids = fetched.rows.iter().filter_map(|row| match row {
            FetchedRow::Message(stored) => Some(&stored.message.id),
            _ => None,
        });
        note(&self.1, ids, |way| (way.asked, way.fetched) = (Some(asked), Some(now)));
        Ok(fetched)
    }

    async fn settle(&self, route: &Route, delivered: &[RowId]) -> Result<(), StoreError> {
        self.0.settle(route, delivered).await?;
        let now = Instant::now();
        note(&self.1, delivered.iter().map(|row| &row.id), |way| way.settled = Some(now));
        Ok(())
    }
}

/// A transport whose batches are timed.
struct TimedTransport(Arc<dyn Transport>, Ways);

impl TransportLayer for TimedTransport {
    type Inner = dyn Transport;

    fn inner(&self) -> &dyn Transport {
        &*self.0
    }

    async fn publish(&self, batch: PublishBatch, outcomes: &Outcomes) {
        let ids: Vec<MessageId> = batch.messages.iter().map(|stored| stored.message.id).collect();
        let now = Instant::now();
        note(&self.1, &ids, |way| way.handed_over = Some(now));
        self.0.publish(batch, outcomes).await;
        let now = Instant::now();
        note(&self.1, &ids, |way| way.confirmed = Some(now));
    }
}

/// Names of the stages.
const STAGES: [&str; 7] = [
    "commit to the fetch that finds it",
    "fetch",
    "fetched to handed over",
    "handed over to received",
    "commit to received",
    "handed over to confirmed",
    "confirmed to settled",
];

/// Durations of each stage, in milliseconds.
type Durations = [Vec<f64>; STAGES.len()];

impl Stages {
    pub(crate) async fn play(self) {
        on_store!(self.0.store, W => self.play_on::<W>().await)
    }

    async fn play_on<W: Writer + Store>(self) {
        let Self(part) = self;
        let (store, transport) = (W::reach(&part.store).await, part.broker.transport());
        let ways = Ways::default();
        let timed = TimedTransport(Arc::clone(&transport), Arc::clone(&ways));
        let relay = Relay::builder(TimedStore(store.clone(), Arc::clone(&ways)), timed);
        let relay = async { Some(relay.start().await.expect("the relay starts")) };
        let measured = part.measure(&store, &*transport, relay).await;
        let ways = std::mem::take(&mut *ways.lock().expect("no user has panicked"));
        let mut durations = Durations::default();
        for (id, committed) in measured.warm() {
            let way = ways[id];
            let (committed, received) = (Some(*committed), measured.delivered.first.get(id).copied());
            let stages = [
                (committed, way.asked),
                (way.asked, way.fetched),
                (way.fetched, way.handed_over),
                (way.handed_over, received),
                (committed, received),
                (way.handed_over, way.confirmed),
                (way.confirmed, way.settled),
            ];
            for ((from, to), durations) in stages.into_iter().zip(&mut durations) {
                let (Some(from), Some(to)) = (from, to) else { continue };
                // A fetch may find a message before its commit returns to the writer.
                durations.push(to.saturating_duration_since(from).as_secs_f64() * 1e3);
            }
        }
        tell(&durations);
        finished().await;
        transport.close().await;
    }
}

/// Messages per second.
const RATE: u32 = 1_000;

pub(crate) fn run(bench: &mut Bench) {
    let seconds = bench.profile.pick(5, 20);
    bench.say(format!("stages: {RATE} per second"));
    let (store, broker) = (bench.store(), bench.broker.fresh());
    let keys = u32::try_from(KEYS).unwrap_or(u32::MAX);
    let part = Latency { store, broker, rate: RATE, seconds, keys };
    let durations: Durations = run_child(&Role::Stages(Stages(part)));
    let about =
        format!("{RATE} messages per second, writers, relay and consumer in one process; {seconds} s");
    let mut table = Table::new("stages", about, &["p50 ms", "p90 ms", "p99 ms", "most ms"]);
    for (stage, durations) in STAGES.iter().zip(&durations) {
        table.row(*stage, [0.5, 0.9, 0.99, 1.0].map(|part| quantile(durations, part)));
    }
    bench.report(table);
}
