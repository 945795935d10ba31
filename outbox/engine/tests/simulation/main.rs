//! Many worlds: whatever goes wrong, nothing is lost, invented, or first delivered out of order
//! (promises P1, P2, P3), no bound is exceeded (P6), and when the faults stop, everything drains.
//!
//! `OUTBOX_SEEDS=5000` runs more of them, `OUTBOX_SEED=17` one, with its trace.

#![allow(clippy::unwrap_used, reason = "a panic in a test is a failed test")]

mod determinism;
mod sim;

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// So many seeds unless `OUTBOX_SEEDS` says otherwise: less than half a minute.
const SEEDS: u64 = 140;

fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok().map(|text| text.parse().expect("a number"))
}

/// Runs the seeds of one of several tests, so that these share the processors.
fn run_part(part: u64, parts: u64) {
    quiet_injected_panics();
    if let Some(seed) = number("OUTBOX_SEED") {
        if part == 0 {
            let ended = sim::run(seed);
            if let Err(problems) = ended.verdict {
                panic!("after {} lines: {problems}", ended.trace.len());
            }
        }
        return;
    }
    let seeds = number("OUTBOX_SEEDS").unwrap_or(SEEDS);
    let (mut deliveries, mut failed, mut faults) = (0, Vec::new(), BTreeMap::new());
    for seed in (0..seeds).filter(|seed| seed % parts == part) {
        match catch_unwind(AssertUnwindSafe(|| sim::run(seed))) {
            Ok(ended) => {
                deliveries += ended.deliveries;
                for (fault, count) in ended.faults {
                    *faults.entry(fault).or_default() += count;
                }
                if let Err(problems) = ended.verdict {
                    eprintln!("seed {seed} failed; replay: {}\n{problems}", replay(seed));
                    failed.push(seed);
                }
            }
            Err(_) => {
                eprintln!("seed {seed} panicked; replay: {}", replay(seed));
                failed.push(seed);
            }
        }
    }
    assert!(failed.is_empty(), "{} of {} seeds failed: {failed:?}", failed.len(), seeds / parts);
    assert!(deliveries > 0, "the worlds are not empty");
    if seeds >= SEEDS {
        let happened = |what: &&str| faults.get(what).copied().unwrap_or(0_u64) > 0;
        let never: Vec<&str> = sim::ALL.into_iter().filter(|what| !happened(what)).collect();
        assert!(
            never.is_empty(),
            "never happened, so nothing is known of it: {never:?}; what did: {faults:?}"
        );
    }
}

fn replay(seed: u64) -> String {
    format!("OUTBOX_SEED={seed} cargo test -p outbox-engine --test simulation -- --nocapture part_0")
}

/// Panics that are injected are no news.
fn quiet_injected_panics() {
    static ONCE: std::sync::Once = std::sync::Once::new();
    ONCE.call_once(|| {
        let usual = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            if !info.payload_as_str().is_some_and(|text| text.ends_with("was injected")) {
                usual(info);
            }
        }));
    });
}

#[test]
fn every_world_keeps_the_promises_part_0() {
    run_part(0, 2);
}

#[test]
fn every_world_keeps_the_promises_part_1() {
    run_part(1, 2);
}
