//! From commit to consumer: one process writes at a fixed rate and consumes, another one relays.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::future::join_all;
use outbox_contract::backend::{Deliveries, Delivery, Received, Subscription, Tag};
use outbox_contract::{Key, Message, MessageId, Transport};
use outbox_engine::RelayHandle;
use outbox_tests::on_store;
use serde::{Deserialize, Serialize};
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;

use crate::bench::{Bench, KEYS};
use crate::broker::Address;
use crate::child::{Child, finished, ready, run as run_child, tell};
use crate::ours::{Ours, topic};
use crate::pair::Database;
use crate::report::Table;
use crate::role::Role;
use crate::stats::{median, quantile};
use crate::writer::Writer;

/// Messages to write and consume.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Latency {
    pub(crate) store: String,
    pub(crate) broker: Address,
    /// Transactions per second, of one message each.
    pub(crate) rate: u32,
    pub(crate) seconds: u32,
    /// Number of keys, in turn.
    pub(crate) keys: u32,
}

/// Result of the measurement.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Came {
    /// Transactions per second that were committed.
    rate: f64,
    /// From the return of the commit to the first delivery, in milliseconds.
    pub(crate) waits: Vec<f64>,
    /// Number of further deliveries.
    pub(crate) repeats: u64,
    /// Number of messages that were first delivered after a later one of their key.
    pub(crate) late: u64,
}

/// Deliveries so far.
#[derive(Default)]
pub(crate) struct Delivered {
    pub(crate) first: HashMap<MessageId, Instant>,
    /// Highest position of each key.
    last: HashMap<Key, i64>,
    repeats: u64,
    late: u64,
}

impl Delivered {
    fn came(&mut self, delivery: &Delivery, now: Instant) {
        let Ok(message) = &delivery.message else { return };
        if self.first.contains_key(&message.id) {
            self.repeats += 1;
            return;
        }
        self.first.insert(message.id, now);
        if let (Some(key), Some(origin)) = (&message.key, &delivery.origin) {
            let last = self.last.entry(key.clone()).or_insert(origin.sequence);
            self.late += u64::from(origin.sequence < *last);
            *last = origin.sequence.max(*last);
        }
    }
}

/// Number of concurrent writers.
const WRITERS: u32 = 8;
/// Warm-up time of the writers. A new group of Kafka waits three seconds for more members.
const WARMING: Duration = Duration::from_secs(5);

/// Instants of the returns of commits.
type Times = Arc<Mutex<HashMap<MessageId, Instant>>>;

impl Latency {
    pub(crate) async fn play(self) {
        on_store!(self.store, W => self.play_on::<W>().await)
    }

    async fn play_on<W: Writer>(self) {
        let (store, transport) = (W::reach(&self.store).await, self.broker.transport());
        let measured = self.measure(&store, &*transport, async { None }).await;
        // A delivery may overtake the answer to the commit.
        let wait = |(id, at): (&MessageId, &Instant)| {
            measured.delivered.first[id].saturating_duration_since(*at).as_secs_f64() * 1e3
        };
        let waits = measured.warm().map(wait).collect();
        let rate = measured.committed.len() as f64 / measured.took.as_secs_f64();
        tell(&Came { rate, waits, repeats: measured.delivered.repeats, late: measured.delivered.late });
        finished().await;
        transport.close().await;
    }

    /// Writes and consumes, beside a relay that is started first, if one is.
    pub(crate) async fn measure<W: Writer>(
        &self,
        store: &W,
        transport: &dyn Transport,
        relay: impl Future<Output = Option<RelayHandle>>,
    ) -> Measured {
        let subscription =
            Subscription::new(self.broker.consumer(), [topic()]).expect("valid names").with_prefetch(2_000);
        let deliveries = transport.subscribe(subscription).await.expect("subscribed");
        let (committed, delivered) = (Times::default(), Arc::new(Mutex::new(Delivered::default())));
        let (enough, told) = oneshot::channel();
        let consuming = tokio::spawn(consume(deliveries, Arc::clone(&delivered), told));
        let relay = relay.await;
        ready().await;

        let begin = Instant::now();
        write_all(self, begin, store, &committed).await;
        let took = begin.elapsed();
        let committed = std::mem::take(&mut *committed.lock().expect("no writer has panicked"));
        all_came(&delivered, committed.len()).await;
        if let Some(relay) = relay {
            assert!(relay.stop(Duration::from_secs(10)).await, "the relay drains");
        }
        // A member that leaves silently delays the next one: Kafka waits for it for the length of
        // its session.
        drop(enough);
        consuming.await.expect("the consumer does not panic").close().await.expect("closed");
        let delivered = std::mem::take(&mut *delivered.lock().expect("the consumer has not panicked"));
        Measured { begin, took, committed, delivered }
    }
}

/// Commits and deliveries of a measurement.
pub(crate) struct Measured {
    begin: Instant,
    took: Duration,
    committed: HashMap<MessageId, Instant>,
    pub(crate) delivered: Delivered,
}

impl Measured {
    /// Returns the commits behind the warm-up.
    pub(crate) fn warm(&self) -> impl Iterator<Item = (&MessageId, &Instant)> {
        self.committed.iter().filter(|(_, at)| **at >= self.begin + WARMING)
    }
}

/// Writes with all writers, until their time is over.
async fn write_all<W: Writer>(part: &Latency, begin: Instant, store: &W, committed: &Times) {
    let writers = (0..WRITERS)
        .map(|number| tokio::spawn(write(part.clone(), number, begin, store.clone(), Arc::clone(committed))));
    for writer in join_all(writers).await {
        writer.expect("a writer does not panic");
    }
}

/// Waits until so many messages were delivered.
async fn all_came(delivered: &Mutex<Delivered>, messages: usize) {
    let all_came = async {
        while delivered.lock().expect("the consumer has not panicked").first.len() < messages {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), all_came).await.expect("everything arrives");
}

async fn write<W: Writer>(part: Latency, number: u32, begin: Instant, store: W, committed: Times) {
    let turns = part.rate * (part.seconds + u32::try_from(WARMING.as_secs()).unwrap_or(0));
    for turn in (number..turns).step_by(WRITERS as usize) {
        tokio::time::sleep_until(begin + Duration::from_secs(1) * turn / part.rate).await;
        let message = Message::new(topic(), "bench.made").expect("valid names").with_payload(vec![b'x'; 300]);
        let message = message.with_key(format!("key-{}", turn % part.keys)).expect("a valid key");
        let id = message.id;
        store.write(message).await;
        committed.lock().expect("no writer has panicked").insert(id, Instant::now());
    }
}

/// Consumes until the signal to stop. As in an inbox, nothing that comes waits for the
/// acknowledgement of what came before.
async fn consume(
    deliveries: Box<dyn Deliveries>,
    delivered: Arc<Mutex<Delivered>>,
    mut enough: oneshot::Receiver<()>,
) -> Box<dyn Deliveries> {
    let (finished, mut to_acknowledge) = mpsc::unbounded_channel();
    let receive = async {
        // Dropped with this, so that the other one ends.
        let finished = finished;
        loop {
            let received = tokio::select! {
                received = deliveries.next() => received.expect("the broker answers"),
                _ = &mut enough => return,
            };
            let Received::Deliveries(came) = received else { continue };
            let now = Instant::now();
            {
                let mut delivered = delivered.lock().expect("the reader has not panicked");
                came.iter().for_each(|delivery| delivered.came(delivery, now));
            }
            let tags: Vec<Tag> = came.into_iter().map(|delivery| delivery.tag).collect();
            finished.send(tags).expect("the other one goes on");
        }
    };
    let acknowledge = async {
        while let Some(mut tags) = to_acknowledge.recv().await {
            while let Ok(more) = to_acknowledge.try_recv() {
                tags.extend(more);
            }
            deliveries.acknowledge(&tags).await.expect("acknowledged");
        }
    };
    tokio::join!(receive, acknowledge);
    deliveries
}

fn keys() -> u32 {
    u32::try_from(KEYS).unwrap_or(u32::MAX)
}

pub(crate) fn run(bench: &mut Bench) {
    let (seconds, repetitions) = bench.profile.pick((5, 1), (20, 3));
    let mut rates = bench.profile.pick(vec![500, 1_000], vec![100, 500, 1_000, 2_000]);
    if bench.pair.database != Database::Postgres {
        // Relays that can't be notified find rare messages last.
        rates.splice(0..0, [1, 20]);
    }
    let mut cases: Vec<(u32, bool)> = rates.into_iter().map(|rate| (rate, false)).collect();
    if bench.pair.database.holds_transactions() {
        cases.push((1_000, true));
    }
    let mut runs: Vec<Vec<(Came, f64)>> = vec![Vec::new(); cases.len()];
    for repetition in 1..=repetitions {
        for ((rate, held), runs) in cases.iter().zip(&mut runs) {
            bench.say(format!("latency {repetition}/{repetitions}: {rate} per second"));
            let (store, broker) = (bench.store(), bench.broker.fresh());
            let statements = ["create table other (n int)", "begin", "insert into other values (1)"];
            let statements = statements.map(str::to_owned).to_vec();
            let _held = held.then(|| Child::start(&Role::Hold { store: store.clone(), statements }));
            let ours =
                Ours { store: store.clone(), broker: Some(broker.clone()), settings: vec![], messages: 0 };
            let mut relay = Child::start(&Role::Ours(ours));
            relay.go();
            let before = relay.cpu();
            let seconds = if *rate < 100 { seconds.max(30) } else { seconds };
            let latency = Latency { store, broker, rate: *rate, seconds, keys: keys() };
            let came: Came = run_child(&Role::Latency(latency));
            let messages = f64::from(*rate) * (f64::from(seconds) + WARMING.as_secs_f64());
            let own = relay.cpu().saturating_sub(before).as_secs_f64() * 1e6 / messages;
            runs.push((came, own));
        }
    }

    let about = format!(
        "{}: commit to consumer, {WRITERS} writers, one message each, relay in another process; {seconds} s, medians of {repetitions}",
        bench.pair
    );
    let mut table = Table::new("latency", about, &["committed/s", "p50 ms", "p99 ms", "most ms", "relay us"]);
    for ((rate, held), runs) in cases.iter().zip(&runs) {
        let of = |figure: &dyn Fn(&(Came, f64)) -> Option<f64>| {
            median(&runs.iter().filter_map(figure).collect::<Vec<_>>())
        };
        let label = format!("{rate}/s{}", if *held { ", another table's writer open" } else { "" });
        table.row(
            label,
            [
                of(&|(came, _)| Some(came.rate)),
                of(&|(came, _)| quantile(&came.waits, 0.5)),
                of(&|(came, _)| quantile(&came.waits, 0.99)),
                of(&|(came, _)| quantile(&came.waits, 1.0)),
                of(&|(_, own)| Some(*own)),
            ],
        );
    }
    bench.report(table);
}
