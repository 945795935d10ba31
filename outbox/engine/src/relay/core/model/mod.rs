//! A simulation of the core without a runtime: cores on a store and a broker that are plain tables,
//! and a seeded scheduler of events and faults, judged by what arrives at the broker and by what
//! the store holds.
//!
//! Safety holds in every step (lost, phantom, out of order, a consumer that drops what it never
//! handled, two owners that send at once, a batch begun without leases or while paused, a mark that
//! passes a row, a budget that is not what the table holds), liveness after healing.
//!
//! It is compiled for tests, and with the feature `_simulation` for the program
//! `examples/simulate.rs`, which runs as many seeds as there is time for, shrinks one that fails,
//! and tells its story.

mod audit;
mod broker;
mod calls;
mod cast;
mod describe;
mod failing;
mod faults;
mod healing;
mod judge;
mod keeping;
mod leases;
mod plan;
mod relay;
mod sabotage;
mod store;
mod world;

#[cfg(test)]
mod scenarios;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

pub use judge::Violation;
pub use plan::{Plan, name_of, steps_of};
pub use sabotage::Sabotage;
use world::World;

/// Result of a run.
#[derive(Clone, Debug)]
pub struct Ran {
    /// The promise that was broken, if one was.
    pub violation: Option<Violation>,
    /// The step in which it was; none if it was while healing.
    pub failed_at: Option<u32>,
    /// Number of events that cores took.
    pub events: u64,
    /// Number of messages that were committed.
    pub messages: u64,
    /// Number of faults, by kind.
    pub counts: BTreeMap<&'static str, u64>,
    /// Events of the run, if asked for.
    pub story: Vec<String>,
}

/// Runs a plan.
#[must_use]
pub fn run(plan: &Plan, tells: bool) -> Ran {
    let mut world = World::new(plan, tells);
    let mut judged = Ok(());
    let mut failed_at = None;
    for step in plan.happening() {
        world.random = plan.random(step + 1);
        judged = world.step();
        if judged.is_err() {
            failed_at = Some(step);
            break;
        }
    }
    if judged.is_ok() {
        world.random = plan.random(plan.steps + 1);
        judged = world.heal();
    }
    Ran {
        violation: judged.err(),
        failed_at,
        events: world.events,
        messages: world.store.ledger.messages() as u64,
        counts: std::mem::take(&mut world.counts),
        story: world.take_story(),
    }
}

impl Ran {
    /// Lines of the story that are about the key of the violation, or about no key.
    #[must_use]
    pub fn lines(&self) -> Vec<&str> {
        let key = self.violation.as_ref().and_then(|violation| violation.key);
        let Some(key) = key else { return self.story.iter().map(String::as_str).collect() };
        let name = format!("k{key}");
        let is_of = |line: &&String| {
            let names = (0..cast::KEYS).filter(|of| names_key(line, &format!("k{of}"))).count();
            names == 0 || names_key(line, &name)
        };
        self.story.iter().filter(is_of).map(String::as_str).collect()
    }
}

fn names_key(line: &str, name: &str) -> bool {
    let mut rest = line;
    while let Some(at) = rest.find(name) {
        let (before, behind) = (&rest[..at], &rest[at + name.len()..]);
        let is_word = !before.ends_with(|c: char| c.is_alphanumeric())
            && !behind.starts_with(|c: char| c.is_ascii_digit());
        if is_word {
            return true;
        }
        rest = behind;
    }
    false
}
