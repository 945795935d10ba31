//! Plan of a run: a seed, and the steps of it that happen. Each step has draws of its own, so that
//! one that is left out changes no other.

use std::ops::Range;

use outbox_contract::backend::Ordering;

use super::{Ran, Sabotage, run};

/// One run of the model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// Everything that is drawn comes from it.
    pub seed: u64,
    /// Number of steps before everything heals.
    pub steps: u32,
    /// Ordering of the store. None: as the seed has it.
    pub ordering: Option<Ordering>,
    /// Number of relays at the beginning. None: as the seed has it.
    pub relays: Option<usize>,
    /// Steps that happen. None: all.
    pub kept: Option<Vec<u32>>,
    /// The mistake that is made on purpose.
    pub sabotage: Option<Sabotage>,
}

/// Maximum number of runs that shrinking may take.
const MAX_RUNS: u32 = 6_000;

impl Plan {
    /// All of a seed.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self { seed, steps: 600, ordering: None, relays: None, kept: None, sabotage: None }
    }

    /// A seed with a mistake.
    #[must_use]
    pub fn sabotaged(seed: u64, sabotage: Sabotage) -> Self {
        Self { ordering: sabotage.ordering(), sabotage: Some(sabotage), ..Self::new(seed) }
    }

    /// The draws of a step; those of 0 make the world, and those behind the last one heal it.
    pub(super) fn random(&self, step: u32) -> fastrand::Rng {
        let step = u64::from(step) + 1;
        fastrand::Rng::with_seed(
            self.seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ step.wrapping_mul(0xD1B5_4A32_D192_ED03),
        )
    }

    /// Steps that happen.
    pub(super) fn happening(&self) -> Box<dyn Iterator<Item = u32> + '_> {
        match &self.kept {
            Some(kept) => Box::new(kept.iter().copied()),
            None => Box::new(0..self.steps),
        }
    }

    /// The smallest plan that is found of those that fail in the same way: without steps behind the
    /// failure, with one relay, then without half of the steps, a quarter, and so on down to single
    /// ones.
    #[must_use]
    pub fn shrunk(&self, ran: &Ran) -> Self {
        let Some(kind) = ran.violation.as_ref().map(|violation| violation.kind) else { return self.clone() };
        let mut left = MAX_RUNS;
        let mut fails = |plan: &Self| {
            left = left.saturating_sub(1);
            left > 0 && run(plan, false).violation.is_some_and(|violation| violation.kind == kind)
        };
        let mut best = Self { kept: Some(self.happening().collect()), ..self.clone() };
        if let Some(at) = ran.failed_at {
            let kept = self.happening().take_while(|step| *step <= at).collect();
            best.kept = Some(kept);
        }
        for relays in 1..3 {
            let fewer = Self { relays: Some(relays), ..best.clone() };
            if fails(&fewer) {
                best = fewer;
                break;
            }
        }
        let mut size = best.kept.as_ref().map_or(0, |kept| kept.len().div_ceil(2));
        while size > 0 {
            let mut at = 0;
            let mut took_any = false;
            while let Some(kept) = best.kept.as_ref().filter(|kept| at < kept.len()) {
                let mut fewer = kept.clone();
                fewer.drain(at..(at + size).min(kept.len()));
                let fewer = Self { kept: Some(fewer), ..best.clone() };
                if fails(&fewer) {
                    (best, took_any) = (fewer, true);
                } else {
                    at += size;
                }
            }
            // Once more with single steps, while that helps.
            size = if size == 1 && took_any { 1 } else { size / 2 };
        }
        best
    }

    /// Arguments of the program that run this plan again.
    #[must_use]
    pub fn arguments(&self) -> String {
        let mut words = format!("--seed {}", self.seed);
        if let Some(ordering) = self.ordering {
            words.push_str(&format!(" --ordering {}", name_of(ordering)));
        }
        if let Some(relays) = self.relays {
            words.push_str(&format!(" --relays {relays}"));
        }
        if let Some(kept) = &self.kept {
            words.push_str(&format!(" --kept {}", ranges(kept)));
        }
        if let Some(sabotage) = self.sabotage {
            words.push_str(&format!(" --sabotage {}", sabotage.name()));
        }
        words
    }
}

/// The word for an ordering.
#[must_use]
pub fn name_of(ordering: Ordering) -> &'static str {
    match ordering {
        Ordering::Single => "single",
        Ordering::Writers => "writers",
        _ => "stripes",
    }
}

/// Steps in short: `3,5-9`.
fn ranges(kept: &[u32]) -> String {
    let mut ranges: Vec<Range<u32>> = Vec::new();
    for step in kept {
        match ranges.last_mut() {
            Some(range) if range.end == *step => range.end += 1,
            _ => ranges.push(*step..step + 1),
        }
    }
    let one = |range: &Range<u32>| {
        if range.len() == 1 { range.start.to_string() } else { format!("{}-{}", range.start, range.end - 1) }
    };
    ranges.iter().map(one).collect::<Vec<_>>().join(",")
}

/// Reads what [`Plan::arguments`] wrote of steps.
#[must_use]
pub fn steps_of(text: &str) -> Option<Vec<u32>> {
    let mut kept = Vec::new();
    for part in text.split(',').filter(|part| !part.is_empty()) {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let [first, last] = [first.parse::<u32>().ok()?, last.parse::<u32>().ok()?];
        kept.extend(first..=last);
    }
    Some(kept)
}
