//! The world itself: puts the parts together, lets chaos reign, then peace, and judges.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::Arc;
use std::time::Duration;

use fastrand::Rng;
use outbox_contract::backend::{Clock, Ordering};
use outbox_store_memory::MemoryStore;
use outbox_testkit::{ChaosStore, History, Ids, TestClock};
use tokio::time::Instant;

use super::broker::Broker;
use super::deaths::Deaths;
use super::fleet::Fleet;
use super::operators::Operator;
use super::plan::Plan;
use super::tally::Tally;
use super::trace::Trace;
use super::writers::Writer;

/// End of a run.
pub(crate) struct Ended {
    /// Everything that happened, in order.
    pub(crate) trace: Vec<String>,
    /// The violation, if any.
    pub(crate) verdict: Result<(), String>,
    /// Number of messages that arrived.
    pub(crate) deliveries: u64,
    /// Number of faults, by kind.
    #[allow(dead_code, reason = "not every test that runs worlds looks at it")]
    pub(crate) faults: BTreeMap<&'static str, u64>,
}

/// For so long a relay whose parts failed often counts as one that keeps failing.
const A_MINUTE: Duration = Duration::from_secs(60);

/// Runs the world of a seed.
pub(crate) fn run(seed: u64) -> Ended {
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
    runtime.block_on(live(Plan::of(seed)))
}

async fn live(plan: Plan) -> Ended {
    let mut rng = Rng::with_seed(plan.seed ^ 0x5eed);
    let trace = Arc::new(Trace::new());
    let history = Arc::new(History::new());
    let ids = Arc::new(Ids::new(plan.seed));
    let clock = Arc::new(TestClock::new(plan.seed));
    let mut store = MemoryStore::builder().clock(Arc::clone(&clock) as Arc<dyn Clock>);
    store = match plan.ordering {
        Ordering::Single => store,
        Ordering::Stripes => store.stripes(),
        _ => store.concurrent_writers(),
    };
    let store = store.history(Duration::from_secs(3_600)).build();
    let writing = ChaosStore::new(Arc::new(store.clone()), rng.u64(..)).with_rates(plan.writing.clone());
    writing.set_late_commits(plan.late_commits, Duration::from_millis(800));
    let writing = Arc::new(writing);
    let tally = Arc::new(Tally::default());
    let deaths = Arc::new(Deaths::new(store.clone(), Arc::clone(&history)));
    let writers: Vec<_> = (0..plan.writers)
        .map(|_| {
            let writer = Writer {
                plan: plan.clone(),
                store: Arc::clone(&writing),
                history: Arc::clone(&history),
                clock: Arc::clone(&clock),
                ids: Arc::clone(&ids),
                trace: Arc::clone(&trace),
                rng: Rng::with_seed(rng.u64(..)),
            };
            tokio::spawn(writer.run())
        })
        .collect();
    let mut operator = Operator {
        plan: plan.clone(),
        store: store.clone(),
        history: Arc::clone(&history),
        trace: Arc::clone(&trace),
        deaths: Arc::clone(&deaths),
        tally: Arc::clone(&tally),
        buried: 0,
        rng: Rng::with_seed(rng.u64(..)),
    };
    let mut fleet = Fleet {
        plan: plan.clone(),
        store: store.clone(),
        broker: Arc::new(Broker::new(Arc::clone(&history), Arc::clone(&trace))),
        ids,
        trace: Arc::clone(&trace),
        deaths: Arc::clone(&deaths),
        tally: Arc::clone(&tally),
        rng: Rng::with_seed(rng.u64(..)),
        relays: Vec::new(),
        faults: Vec::new(),
        started: 0,
        calm: false,
    };

    let mut problems = Vec::from_iter(chaos(&plan, &mut rng, &mut fleet, &mut operator).await);
    trace.say("the faults stop");
    writing.calm();
    for writer in writers {
        writer.await.unwrap();
    }
    operator.settle_down().await;
    fleet.settle_down().await;
    problems.extend(peace(&plan, &store, &mut fleet, &operator).await);
    // Calls that hung when the faults stopped end; then every relay must be well, and have its
    // share.
    tokio::time::sleep(plan.patience() + A_MINUTE).await;
    problems.extend(fleet.unwell());
    problems.extend(fleet.over_its_bounds());
    fleet.count_faults();
    for relay in fleet.relays {
        let number = relay.number;
        if !relay.handle.stop(plan.patience()).await {
            problems.push(format!("relay {number} did not drain, though nothing goes wrong"));
        }
    }
    deaths.look().await;
    let died = deaths.count();
    if plan.nothing_fails() && died != operator.buried {
        problems.push(format!(
            "{died} messages died and {} were skipped or discarded; nothing failed",
            operator.buried
        ));
    }
    tally.of_writing(writing.counts());
    count(&tally, &plan, died, operator.buried);

    let report = history.check();
    if !report.is_at_least_once_in_order() {
        problems.push(report.to_string());
    }
    let mut text = String::new();
    problems.iter().for_each(|problem| writeln!(text, "{problem}").unwrap());
    Ended {
        trace: trace.take(),
        verdict: if text.is_empty() { Ok(()) } else { Err(text) },
        deliveries: report.deliveries,
        faults: tally.take(),
    }
}

/// Counts what kind of world it was, and who died in it.
fn count(tally: &Tally, plan: &Plan, died: u64, buried: u64) {
    let kind = match plan.ordering {
        Ordering::Single => "worlds of one writer",
        Ordering::Stripes => "worlds of stripes",
        _ => "worlds of several writers",
    };
    tally.add(kind, 1);
    tally.add("worlds in which nothing fails", u64::from(plan.nothing_fails()));
    tally.add("dead letters", died);
    tally.add("dead letters by operators", buried);
}

async fn chaos(plan: &Plan, rng: &mut Rng, fleet: &mut Fleet, operator: &mut Operator) -> Option<String> {
    let end = Instant::now() + plan.chaos;
    while Instant::now() < end {
        tokio::time::sleep(Duration::from_millis(rng.u64(1..600))).await;
        if rng.u8(..3) == 0 {
            operator.act().await;
        } else {
            fleet.act().await;
        }
        if let Some(over) = fleet.over_its_bounds() {
            return Some(over);
        }
    }
    None
}

/// Waits until everything is delivered. Says what is left, if that takes too long.
async fn peace(plan: &Plan, store: &MemoryStore, fleet: &mut Fleet, operator: &Operator) -> Option<String> {
    let end = Instant::now() + plan.patience();
    loop {
        let left = store.snapshot();
        if left.hot.is_empty() && left.parked.is_empty() && left.scheduled == 0 && left.failing_keys == 0 {
            return None;
        }
        if let Some(over) = fleet.over_its_bounds() {
            return Some(over);
        }
        if Instant::now() > end {
            let mut text = format!(
                "not drained within {:?}: {} hot, {} parked, {} scheduled, {} failing keys",
                plan.patience(),
                left.hot.len(),
                left.parked.len(),
                left.scheduled,
                left.failing_keys
            );
            for (_, stored) in left.hot.iter().chain(&left.parked).take(5) {
                write!(text, "\n  {} {}", stored.position, stored.message.key_id()).unwrap();
            }
            for relay in &fleet.relays {
                write!(
                    text,
                    "\n  relay {}: {:?} {:?}",
                    relay.number,
                    relay.handle.health(),
                    relay.handle.stats()
                )
                .unwrap();
            }
            return Some(text);
        }
        operator.release_held().await;
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
}
