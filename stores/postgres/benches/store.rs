//! Server cost of a message: CPU time of all its processes for each message, from the operating
//! system.
//!
//! Wall-clock time says little on a busy machine; CPU time is stable. Run with `cargo bench -p
//! outbox-store-postgres`. `ROWS` sets the sizes of the backlog, by default 10,000 and 1,000,000.

#![allow(clippy::unwrap_used, reason = "a panic in a benchmark ends it")]

use std::time::Duration;

use outbox_contract::backend::{BucketSet, FetchRequest, FetchedRow, LeaseRequest, Position, RelayId, RowId};
use outbox_contract::{Message, Outgoing, Route, Store, Transactional};
use outbox_servers::{OrSkip, Postgres, PostgresServer};
use outbox_store_postgres::{PostgresOptions, PostgresStore};

const APPENDS: usize = 2_000;
/// Number of messages relayed in one measurement.
const RELAYED: usize = 10_000;

fn message(n: usize) -> Outgoing {
    let message = Message::new("orders", "order.placed").expect("valid names");
    message.with_key(format!("key-{}", n % 10_000)).unwrap().with_payload(vec![b'x'; 300]).into()
}

/// Microseconds of the server's CPU time for each of this many messages.
async fn cpu(server: &PostgresServer, of: usize, work: impl Future<Output = ()>) -> f64 {
    let before = server.usage().cpu;
    work.await;
    let used = server.usage().cpu.saturating_sub(before);
    used.as_secs_f64() * 1e6 / of as f64
}

async fn append(store: &PostgresStore, messages: &[Outgoing]) {
    let mut tx = store.begin().await.unwrap();
    store.append(&mut tx, messages).await.unwrap();
    store.commit(tx).await.into_result().unwrap();
}

/// Fetches and settles from the front, as a relay does: with a cursor, so that settled rows are not
/// scanned again.
async fn relay(store: &PostgresStore, relay: RelayId, after: &mut Position, batch: usize, most: usize) {
    let mut done = 0;
    while done < most {
        let mut request = FetchRequest::new(Route::default(), relay, BucketSet::ALL);
        (request.after, request.limit) = (*after, batch);
        let fetched = store.fetch(&request).await.unwrap();
        let rows: Vec<RowId> = fetched
            .rows
            .iter()
            .map(|row| match row {
                FetchedRow::Message(stored) => stored.row(),
                other => panic!("{other:?}"),
            })
            .collect();
        assert!(!rows.is_empty(), "the backlog is used up");
        *after = rows.last().unwrap().position;
        store.settle(&Route::default(), &rows).await.unwrap();
        done += rows.len();
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() {
    let Some(server) = Postgres::newest().durable().start().or_skip() else { return };
    let url = server.fresh_database();
    let waking = PostgresStore::connect(&url).await.unwrap();
    waking.migrate().await.unwrap();
    let one = [message(1)];
    append(&waking, &one).await;
    let woken = cpu(&server, APPENDS, async {
        for _ in 0..APPENDS {
            append(&waking, &one).await;
        }
    });
    println!("a transaction with one append, waking others: {:.1} us", woken.await);
    drop(waking);
    let mut options = PostgresOptions::default();
    options.notify_interval = None;
    let store = PostgresStore::connect_with(&url, options).await.unwrap();
    append(&store, &one).await;

    let appended = cpu(&server, APPENDS, async {
        for _ in 0..APPENDS {
            append(&store, &one).await;
        }
    });
    println!("a transaction with one append, waking nobody: {:.1} us", appended.await);
    let empty = cpu(&server, APPENDS, async {
        for _ in 0..APPENDS {
            let tx = store.begin().await.unwrap();
            store.commit(tx).await.into_result().unwrap();
        }
    });
    println!("a transaction without one: {:.1} us", empty.await);
    let mut tx = store.begin().await.unwrap();
    let single = cpu(&server, APPENDS, async {
        for _ in 0..APPENDS {
            store.append(&mut tx, &one).await.unwrap();
        }
    });
    println!("an append in a transaction: {:.1} us", single.await);
    store.commit(tx).await.into_result().unwrap();
    let many: Vec<Outgoing> = (0..1_000).map(message).collect();
    let bulk = cpu(&server, 20_000, async {
        for _ in 0..20 {
            append(&store, &many).await;
        }
    });
    println!("a message of an append of 1,000: {:.1} us", bulk.await);

    let me = RelayId::new();
    let mut request = LeaseRequest::new(me, Route::default(), Duration::from_secs(3_600));
    request.label = "bench".to_owned();
    store.lease(&request).await.unwrap();
    let sizes = std::env::var("ROWS").unwrap_or_else(|_| "10000,1000000".to_owned());
    let mut after = Position::START;
    for size in sizes.split(',').map(|size| size.parse::<usize>().unwrap()) {
        for batch in [500, 1_000] {
            let waiting = usize::try_from(store.backlog(&Route::default()).await.unwrap().pending).unwrap();
            let missing = (size + RELAYED).saturating_sub(waiting.min(size + RELAYED));
            for _ in 0..missing.div_ceil(1_000) {
                append(&store, &many).await;
            }
            let relayed = cpu(&server, RELAYED, relay(&store, me, &mut after, batch, RELAYED)).await;
            println!("fetch and settle, batches of {batch}, {size} waiting: {relayed:.1} us");
        }
    }
    let heartbeat = cpu(&server, 200, async {
        for _ in 0..200 {
            store.lease(&request).await.unwrap();
        }
    });
    println!("a heartbeat: {:.0} us", heartbeat.await);
    let mut empty = FetchRequest::new(Route::default(), me, BucketSet::ALL);
    empty.after = Position(i64::MAX - 1);
    let idle = cpu(&server, 200, async {
        for _ in 0..200 {
            store.fetch(&empty).await.unwrap();
        }
    });
    println!("a fetch of nothing: {:.0} us", idle.await);
    let round = cpu(&server, 200, async {
        for _ in 0..200 {
            store.maintain(1_000).await.unwrap();
        }
    });
    println!("a round of maintenance with nothing to do: {:.0} us", round.await);
    let probe = cpu(&server, 200, async {
        for _ in 0..200 {
            store.frontier().writers().await.unwrap();
        }
    });
    println!("a question for writers: {:.0} us", probe.await);
    let backlog = cpu(&server, 20, async {
        for _ in 0..20 {
            store.backlog(&Route::default()).await.unwrap();
        }
    });
    println!("the backlog's figures: {:.0} us", backlog.await);
}
