//! A seed is a run: the same again to the last step, so that what a seed finds can be found again.

#![allow(clippy::unwrap_used, reason = "a panic in a test is a failed test")]

use crate::sim;

/// Sorts what is heard at one instant, where nothing else happens in between: the publishers of a
/// relay that is killed end in a random order.
fn sort_words(trace: &mut [String]) {
    let instant = |line: &String| line.split_whitespace().next().unwrap_or_default().to_owned();
    let is_word = |line: &String| line.contains(" hears ");
    let same =
        |one: &String, other: &String| is_word(one) && is_word(other) && instant(one) == instant(other);
    trace.chunk_by_mut(same).for_each(<[String]>::sort);
}

#[test]
fn one_seed_gives_one_run() {
    for seed in 0..12 {
        let (mut one, mut other) = (sim::run(seed), sim::run(seed));
        sort_words(&mut one.trace);
        sort_words(&mut other.trace);
        let differs = one.trace.iter().zip(&other.trace).position(|(one, other)| one != other);
        if let Some(at) = differs {
            let around = at.saturating_sub(5)..(at + 2).min(one.trace.len()).min(other.trace.len());
            panic!(
                "seed {seed} differs at line {at}\none:   {:#?}\nother: {:#?}",
                &one.trace[around.clone()],
                &other.trace[around]
            );
        }
        assert_eq!(one.trace.len(), other.trace.len(), "seed {seed}: one run is longer");
        assert_eq!((one.verdict, one.deliveries), (other.verdict, other.deliveries));
    }
}

#[test]
fn two_seeds_give_two_runs() {
    assert_ne!(sim::run(1).trace, sim::run(2).trace);
}
