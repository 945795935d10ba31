//! Costs of the store: appending, fetching behind any backlog, settling.
//!
//! The significant numbers are ratios: a fetch with a million rows waiting against one with a
//! thousand, and with a hundred thousand rows at the front that the cursor has passed.

use std::time::{Duration, Instant};

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use outbox_contract::backend::{
    BucketSet, FetchRequest, Fetched, FetchedRow, KeyTransition, LeaseRequest, Position, RelayId, RowId,
    Scope, Step, Then, Transitioned,
};
use outbox_contract::{Failure, Message, Outgoing, Route, Store, Topic, Transactional};
use outbox_store_sqlite::{Durability, SqliteOptions, SqliteStore};
use tempfile::TempDir;
use tokio::runtime::Runtime;

const BATCH: usize = 500;

struct Bench {
    _directory: TempDir,
    store: SqliteStore,
    relay: RelayId,
    epoch: outbox_contract::backend::Epoch,
}

impl Bench {
    async fn new(durability: Durability) -> Self {
        let directory = tempfile::tempdir().expect("a directory can be made");
        let mut options = SqliteOptions::default();
        options.durability = durability;
        let path = directory.path().join("outbox.db");
        let store = SqliteStore::open_with(path, options).await.expect("the file can be opened");
        store.migrate().await.expect("the tables can be made");
        let relay = RelayId::new();
        let mut request = LeaseRequest::new(relay, Route::default(), Duration::from_secs(3_600));
        request.label = "bench".to_owned();
        let leased = store.lease(&request).await.expect("a relay alone gets everything");
        Self { _directory: directory, store, relay, epoch: leased.leases[0].epoch }
    }

    async fn append(&self, messages: &[Outgoing]) {
        let mut tx = self.store.begin().await.expect("a transaction begins");
        self.store.append(&mut tx, messages).await.expect("messages are appended");
        self.store.commit(tx).await.into_result().expect("it commits");
    }

    async fn fill(&self, topic: &str, count: usize) {
        for start in (0..count).step_by(10_000) {
            self.append(&messages(topic, start..count.min(start + 10_000))).await;
        }
    }

    fn request(&self, after: Position) -> FetchRequest {
        let mut request = FetchRequest::new(Route::default(), self.relay, BucketSet::ALL);
        request.after = after;
        request.limit = BATCH;
        request
    }

    async fn fetch(&self, request: &FetchRequest) -> Fetched {
        let fetched = self.store.fetch(request).await.expect("a fetch works");
        assert_eq!(fetched.rows.len(), BATCH);
        fetched
    }

    /// Parks all messages of one key.
    async fn park_all(&self, topic: &str) {
        let mut version = None;
        loop {
            let mut request = self.request(Position::START);
            request.scope = Scope::Topic(Topic::new(topic).expect("a topic"));
            let fetched = self.store.fetch(&request).await.expect("a fetch works");
            let rows: Vec<RowId> = fetched.rows.iter().map(row).collect();
            let Some((first, behind)) = rows.split_first() else { return };
            let failure = Failure::new("refused", "no");
            let key = messages(topic, 0..1)[0].message.key_id();
            let step = match version {
                None => Step::Fail {
                    row: *first,
                    attempts: 1,
                    first: failure.clone(),
                    last: failure,
                    then: Then::Hold,
                    behind: behind.to_vec(),
                },
                Some(_) => Step::Park { rows },
            };
            let (route, bucket) = (Route::default(), key.bucket());
            let transition = KeyTransition::new(route, self.relay, (bucket, self.epoch), key, version, step);
            let answer = self.store.transition(&[transition]).await.expect("a transition is answered");
            let Transitioned::Done(now) = answer[0] else { panic!("{answer:?}") };
            version = now;
        }
    }
}

/// 300 bytes of payload; a thousand keys, or one for a topic that is parked.
fn messages(topic: &str, numbers: std::ops::Range<usize>) -> Vec<Outgoing> {
    let keys = if topic == "parked" { 1 } else { 1_000 };
    let name = Topic::new(topic).expect("a topic");
    let message = |number: usize| {
        Message::new(name.clone(), "order.placed")
            .expect("valid names")
            .with_key(format!("key-{}", number % keys))
            .expect("a key")
            .with_payload(vec![b'x'; 300])
            .into()
    };
    numbers.map(message).collect()
}

fn row(fetched: &FetchedRow) -> RowId {
    match fetched {
        FetchedRow::Message(stored) => stored.row(),
        FetchedRow::Failing(waiting) => waiting.at,
        other => panic!("{other:?}"),
    }
}

fn append(criterion: &mut Criterion) {
    let runtime = Runtime::new().expect("a runtime");
    for (name, durability) in [("power_loss", Durability::PowerLoss), ("process_end", Durability::ProcessEnd)]
    {
        let bench = runtime.block_on(Bench::new(durability));
        let mut group = criterion.benchmark_group(format!("append/{name}"));
        for size in [1, 10, 100, 1_000] {
            let batch = messages("orders", 0..size);
            group.throughput(Throughput::Elements(size as u64));
            group.bench_function(BenchmarkId::from_parameter(size), |bencher| {
                bencher.to_async(&runtime).iter(|| bench.append(&batch));
            });
        }
        group.finish();
    }
}

fn fetch(criterion: &mut Criterion) {
    let runtime = Runtime::new().expect("a runtime");
    let mut group = criterion.benchmark_group("fetch");
    group.throughput(Throughput::Elements(BATCH as u64));
    for waiting in [1_000, 1_000_000] {
        let bench = runtime.block_on(async {
            let bench = Bench::new(Durability::ProcessEnd).await;
            bench.fill("orders", waiting).await;
            bench
        });
        for (place, after) in [("front", 0), ("back", waiting - BATCH)] {
            let request = bench.request(Position(i64::try_from(after).expect("a position")));
            group.bench_function(BenchmarkId::new(format!("waiting_{place}"), waiting), |bencher| {
                bencher.to_async(&runtime).iter(|| bench.fetch(&request));
            });
        }
    }
    for (name, topic) in [("muted_at_the_front", "muted"), ("parked_at_the_front", "parked")] {
        const AT_THE_FRONT: usize = 100_000;
        let bench = runtime.block_on(async {
            let bench = Bench::new(Durability::ProcessEnd).await;
            bench.fill(topic, AT_THE_FRONT).await;
            if topic == "parked" {
                bench.park_all(topic).await;
            }
            bench.fill("orders", 1_000).await;
            bench
        });
        let mut request = bench.request(Position(i64::try_from(AT_THE_FRONT).expect("a position")));
        request.muted = vec![Scope::Topic(Topic::new("muted").expect("a topic"))];
        group.bench_function(name, |bencher| bencher.to_async(&runtime).iter(|| bench.fetch(&request)));
    }
    group.finish();
}

fn settle(criterion: &mut Criterion) {
    let runtime = Runtime::new().expect("a runtime");
    let bench = runtime.block_on(Bench::new(Durability::ProcessEnd));
    let batch = messages("orders", 0..BATCH);
    let mut group = criterion.benchmark_group("settle");
    group.throughput(Throughput::Elements(BATCH as u64));
    group.bench_function(BenchmarkId::from_parameter(BATCH), |bencher| {
        bencher.to_async(&runtime).iter_custom(async |rounds| {
            let mut took = Duration::ZERO;
            for _ in 0..rounds {
                bench.append(&batch).await;
                let rows: Vec<RowId> =
                    bench.fetch(&bench.request(Position::START)).await.rows.iter().map(row).collect();
                let started = Instant::now();
                bench.store.settle(&Route::default(), &rows).await.expect("rows are settled");
                took += started.elapsed();
            }
            took
        });
    });
    group.finish();
}

criterion_group! {
    name = benches;
    config = Criterion::default().sample_size(20).measurement_time(Duration::from_secs(4));
    targets = append, fetch, settle
}
criterion_main!(benches);
