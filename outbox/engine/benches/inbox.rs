//! Cost of an inbox: everything between deliveries and acknowledgments, on a store in memory, a
//! broker in memory and a handler that does nothing. `cargo bench -p outbox-engine --bench inbox`
//!
//! Prints CPU time per message of the whole process, from the operating system. The broker and the
//! store have their part in it: compare two versions of the engine, not this figure with others.

use std::time::{Duration, Instant};

use outbox_contract::{Message, Topic};
use outbox_engine::{HandlerContext, HandlerError, Inbox, Mode};
use outbox_store_memory::MemoryStore;
use outbox_testkit::Feed;

const MESSAGES: usize = 50_000;
const KEYS: usize = 1_000;
const REPETITIONS: usize = 5;

fn main() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    println!("messages {MESSAGES}, keys {KEYS}, median of {REPETITIONS}, CPU microseconds per message");
    for (name, mode, batch) in [
        ("direct", Mode::Direct, 1),
        ("direct, batches of 50", Mode::Direct, 50),
        ("stored", Mode::Stored, 50),
    ] {
        let mut all: Vec<f64> = (0..REPETITIONS).map(|_| runtime.block_on(handle(mode, batch))).collect();
        all.sort_by(f64::total_cmp);
        println!("{name:<22} {:>8.2}", all[REPETITIONS / 2]);
    }
}

async fn nothing(_: Message, _: &mut HandlerContext<'_, MemoryStore>) -> Result<(), HandlerError> {
    Ok(())
}

async fn handle(mode: Mode, batch: usize) -> f64 {
    let feed = Feed::new();
    let topic = Topic::new("orders").expect("a topic");
    for n in 0..MESSAGES {
        let message =
            Message::new(topic.clone(), "order.placed").expect("valid names").with_payload(vec![b'x'; 300]);
        feed.send(message.with_key(format!("order-{}", n % KEYS)).expect("a key"));
    }
    let before = cpu();
    let inbox = Inbox::builder(MemoryStore::new(), feed.clone())
        .consumer("bench")
        .topic("orders")
        .on_any(nothing)
        .mode(mode)
        .batch(batch)
        .start()
        .await
        .expect("started");
    let deadline = Instant::now() + Duration::from_secs(300);
    while inbox.stats().handled < MESSAGES as u64 || feed.unacknowledged() > 0 {
        assert!(Instant::now() < deadline, "not done in time: {:?}", inbox.stats());
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let used = cpu() - before;
    assert!(inbox.stop(Duration::from_secs(10)).await);
    per_message(used)
}

#[expect(clippy::cast_precision_loss, reason = "a few ten thousand")]
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
