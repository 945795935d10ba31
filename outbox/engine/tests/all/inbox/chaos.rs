//! Everything at once, from seeds: faults of the store, failing handlers, repeats, rebalancing, and
//! processes that end.

use std::time::Duration;

use futures_util::FutureExt;
use outbox_contract::MessageId;
use outbox_engine::{HandlerFailure, Mode};
use outbox_testkit::{Ids, StoreFaultCounts, StoreFaultRates};
use tokio::time::Instant;

use crate::inbox::support::{MS, S, World, message, within};

/// Result of a run: each effect in the order of the commits, its duration in virtual time, and the
/// faults.
type Came = (Vec<(String, MessageId)>, Duration, StoreFaultCounts);

async fn run(seed: u64, mode: Mode, batch: usize) -> Came {
    let started = Instant::now();
    let (mut random, ids) = (fastrand::Rng::with_seed(seed), Ids::new(seed));
    let world = match seed % 3 {
        0 => World::single(seed),
        1 => World::concurrent(seed),
        _ => World::stripes(seed),
    };
    let rates =
        StoreFaultRates { before: 0.02, after: 0.02, hang_before: 0.004, hang_after: 0.004, delay: MS * 5 };
    world.store.set_rates(rates);
    // Until then their transactions hold what they hold.
    world.store.set_late_commits(0.03, MS * 500);
    let start = async |life: u64| {
        let inbox = world.inbox_that(move |message, attempt| {
            // Of each message it is fixed which attempts fail, so that what holds can be said.
            let digit = message.id.as_uuid().as_bytes()[15] ^ u8::try_from(life % 7).unwrap_or_default();
            let fails = digit.is_multiple_of(11) && attempt < 3;
            let slow = u32::from(digit % 4);
            async move {
                tokio::time::sleep(MS * slow).await;
                if fails { Err(HandlerFailure::failed("tested", "not yet").into()) } else { Ok(()) }
            }
            .boxed()
        });
        inbox.id(ids.relay()).mode(mode).batch(batch).tries(2).prefetch(40).start().await.ok()
    };
    let mut sent = Vec::new();
    let mut inboxes = Vec::new();
    for life in 0..8 {
        // One that meets a fault at its start was never there.
        inboxes.extend(start(life).await);
        for _ in 0..random.usize(5..40) {
            let key = random.u32(0..9);
            // By its id a message fails or not: so that comes from the seed too.
            let message = message(&format!("key-{key}")).with_id(ids.message());
            world.feed.send_to(key % 3, message.clone());
            sent.push((key, message));
            if random.f64() < 0.15 {
                // A duplicate, or one that is behind newer ones of its key.
                let (key, stale) = &sent[random.usize(..sent.len())];
                world.feed.send_to(key % 3, stale.clone());
            }
        }
        tokio::time::sleep(MS * random.u32(0..400)).await;
        if random.bool() {
            world.feed.rebalance();
        }
        if inboxes.len() > 1 && random.bool() {
            let inbox = inboxes.swap_remove(random.usize(..inboxes.len()));
            if random.bool() {
                inbox.stop(S * 30).await;
            } else {
                drop(inbox);
            }
        }
    }
    world.store.calm();
    if inboxes.is_empty() {
        inboxes.push(world.inbox().id(ids.relay()).mode(mode).start().await.unwrap());
    }
    within(S * 1_200, || world.feed.unacknowledged() == 0 && world.stored() == 0).await;
    let sent: Vec<_> = sent.into_iter().map(|(_, message)| message).collect();
    world.ledger.assert_once_and_in_order(&sent);
    (world.ledger.all(), started.elapsed(), world.store.counts())
}

/// Runs all seeds; over all of them, everything must have gone wrong.
async fn run_all(mode: Mode, batch: usize) {
    let (mut failed, mut late, mut hung) = ((0, 0), 0, 0);
    for seed in seeds() {
        println!("seed {seed}");
        let (_, _, counts) = run(seed, mode, batch).await;
        failed = (failed.0 + counts.before, failed.1 + counts.after);
        late += counts.late;
        hung += counts.hung;
    }
    if seeds().end >= SEEDS {
        let told = format!("failed before and after {failed:?}, late commits {late}, hung {hung}");
        assert!(
            failed.0 > 0 && failed.1 > 0 && late > 0 && hung > 0,
            "what never happens proves nothing: {told}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn one_seed_is_one_run() {
    for (mode, batch) in [(Mode::Direct, 1), (Mode::Direct, 7), (Mode::Stored, 3)] {
        let [first, second, other] =
            [run(5, mode, batch).await, run(5, mode, batch).await, run(6, mode, batch).await];
        assert_eq!(first, second, "the same seed, in {mode:?} mode");
        assert_ne!(first, other, "another seed is another run");
    }
}

/// So many seeds unless `INBOX_SEEDS` says otherwise.
const SEEDS: u64 = 6;

fn seeds() -> std::ops::Range<u64> {
    let count = std::env::var("INBOX_SEEDS").ok().and_then(|count| count.parse().ok());
    0..count.unwrap_or(SEEDS)
}

#[tokio::test(start_paused = true)]
async fn effects_are_once_and_in_order_in_direct_mode() {
    run_all(Mode::Direct, 1).await;
}

#[tokio::test(start_paused = true)]
async fn effects_are_once_and_in_order_in_batches() {
    run_all(Mode::Direct, 7).await;
}

#[tokio::test(start_paused = true)]
async fn effects_are_once_and_in_order_in_stored_mode() {
    run_all(Mode::Stored, 3).await;
}
