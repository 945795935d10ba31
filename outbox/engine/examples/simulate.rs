//! Runs the simulation of the relay's core: as many seeds as there is time for.
//!
//! ```text
//! cargo run -p outbox-engine --features _simulation --example simulate -- --seeds 0..100000
//! ```
//!
//! Several relays on one store and one broker, all of them plain tables, without a runtime:
//! whatever fails, hangs, is killed or set back, nothing may be lost, phantom or out of order, and
//! when all is well everything must come through. A seed that fails is shrunk, its story is told,
//! and the command line that runs it again is printed. `--sabotage NAME` makes a mistake on
//! purpose, which is to be found; `--sabotages` makes all of them, one after the other.

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering as Memory};
use std::time::{Duration, Instant};

use outbox_contract::backend::Ordering;
use outbox_engine::simulation::{Plan, Ran, Sabotage, run, steps_of};

const USAGE: &str = "simulate: runs the simulation of the relay's core

  --seeds A..B       these seeds (0..10000)
  --threads N        on so many threads (one for each processor)
  --seed N           one seed, with its story
  --ordering WORD    on a store of this ordering: single, writers or stripes (as the seed has it)
  --relays N         with so many relays at the beginning (as the seed has it)
  --keep-going       not only until the first seed fails: the first of each kind is told
  --whole            with its whole story, not only that of the key that failed
  --kept STEPS       with these steps alone, as 3,5-9
  --sabotage NAME    with a mistake on purpose; the run is good if it is found
  --sabotages        with each mistake in turn; how many seeds each takes

Exit codes: 0 nothing was found (or every mistake was), 1 a promise was broken (or a mistake was not found), 2 wrong arguments.";

/// Interval of progress.
const EVERY: Duration = Duration::from_secs(5);
/// Seeds in which a mistake must be found.
const SABOTAGE_SEEDS: u64 = 20_000;
/// Lines of a story that are printed, from its beginning and from its end.
const FIRST_LINES: usize = 300;
const LAST_LINES: usize = 100;

struct Arguments {
    seeds: std::ops::Range<u64>,
    threads: usize,
    plan: Option<Plan>,
    all_sabotages: bool,
    keep_going: bool,
    whole: bool,
}

fn arguments() -> Option<Arguments> {
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let mut read = Arguments {
        seeds: 0..10_000,
        threads,
        plan: None,
        all_sabotages: false,
        keep_going: false,
        whole: false,
    };
    let mut plan = Plan::new(0);
    let mut words = std::env::args().skip(1);
    while let Some(word) = words.next() {
        if word == "--sabotages" {
            read.all_sabotages = true;
            continue;
        }
        if word == "--keep-going" {
            read.keep_going = true;
            continue;
        }
        if word == "--whole" {
            read.whole = true;
            continue;
        }
        let value = words.next()?;
        match word.as_str() {
            "--seeds" => {
                let (first, end) = value.split_once("..")?;
                read.seeds = first.parse().ok()?..end.parse().ok()?;
            }
            "--threads" => read.threads = value.parse().ok()?,
            "--seed" => {
                plan.seed = value.parse().ok()?;
                read.plan = Some(plan.clone());
            }
            "--ordering" => {
                plan.ordering = Some(match value.as_str() {
                    "single" => Ordering::Single,
                    "writers" => Ordering::Writers,
                    "stripes" => Ordering::Stripes,
                    _ => return None,
                });
            }
            "--relays" => plan.relays = Some(value.parse().ok()?),
            "--kept" => plan.kept = Some(steps_of(&value)?),
            "--sabotage" => {
                let sabotage = Sabotage::of(&value)?;
                plan.ordering = plan.ordering.or(sabotage.ordering());
                plan.sabotage = Some(sabotage);
            }
            _ => return None,
        }
    }
    read.plan = match read.plan {
        Some(of) => Some(Plan { seed: of.seed, ..plan }),
        None if plan.sabotage.is_some() || plan.ordering.is_some() => {
            return Some(Arguments { plan: Some(Plan { seed: u64::MAX, ..plan }), ..read });
        }
        None => None,
    };
    Some(read)
}

fn main() -> ExitCode {
    let Some(arguments) = arguments() else {
        eprintln!("{USAGE}");
        return ExitCode::from(2);
    };
    if arguments.all_sabotages {
        return all_sabotages(arguments.threads);
    }
    let is_one = arguments.plan.as_ref().is_some_and(|plan| plan.seed != u64::MAX);
    match arguments.plan {
        Some(plan) if is_one => {
            let ran = run(&plan, true);
            tell(&ran, arguments.whole);
            if ran.violation.is_some() { ExitCode::FAILURE } else { ExitCode::SUCCESS }
        }
        of => {
            let of = of.unwrap_or_else(|| Plan::new(0));
            let found = many(&of, arguments.seeds, arguments.threads, true, arguments.keep_going);
            match (found, of.sabotage) {
                (None, None) | (Some(_), Some(_)) => ExitCode::SUCCESS,
                _ => ExitCode::FAILURE,
            }
        }
    }
}

/// The seeds that failed in one way, and the first of them with its run.
type Failed = (Vec<u64>, Plan, Ran);

#[derive(Default)]
struct Totals {
    seeds: AtomicU64,
    steps: AtomicU64,
    events: AtomicU64,
    messages: AtomicU64,
    counts: Mutex<BTreeMap<&'static str, u64>>,
    /// By the kind of failure.
    failed: Mutex<BTreeMap<&'static str, Failed>>,
    is_over: AtomicBool,
}

impl Totals {
    fn add(&self, plan: &Plan, ran: Ran, counts: &mut BTreeMap<&'static str, u64>, keep_going: bool) {
        self.seeds.fetch_add(1, Memory::Relaxed);
        self.steps.fetch_add(u64::from(ran.failed_at.unwrap_or(plan.steps)), Memory::Relaxed);
        self.events.fetch_add(ran.events, Memory::Relaxed);
        self.messages.fetch_add(ran.messages, Memory::Relaxed);
        for (what, count) in &ran.counts {
            *counts.entry(what).or_default() += count;
        }
        if let Some(kind) = ran.violation.as_ref().map(|violation| violation.kind) {
            self.is_over.store(!keep_going, Memory::Relaxed);
            let mut failed = self.failed.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
            let (seeds, first, its) =
                failed.entry(kind).or_insert_with(|| (Vec::new(), plan.clone(), ran.clone()));
            seeds.push(plan.seed);
            if plan.seed < first.seed {
                (*first, *its) = (plan.clone(), ran);
            }
        }
    }

    fn line(&self, began: Instant, of: u64) -> String {
        let [seeds, steps, events, messages] =
            [&self.seeds, &self.steps, &self.events, &self.messages].map(|count| count.load(Memory::Relaxed));
        let took = began.elapsed().as_secs_f64().max(0.001);
        let failed = self.failed.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let failed: Vec<String> = failed
            .iter()
            .map(|(kind, (seeds, plan, _))| format!(", {} {kind} (seed {})", seeds.len(), plan.seed))
            .collect();
        format!(
            "{seeds} of {of} seeds, {messages} messages, {steps} steps ({:.0} a second), {events} events, {took:.0} s{}",
            steps as f64 / took,
            failed.concat()
        )
    }
}

/// Runs seeds, until one fails or all. Says which is the first that did.
fn many(
    of: &Plan,
    seeds: std::ops::Range<u64>,
    threads: usize,
    tells: bool,
    keep_going: bool,
) -> Option<u64> {
    let totals = Totals::default();
    let (next, began, count) =
        (AtomicU64::new(seeds.start), Instant::now(), seeds.end.saturating_sub(seeds.start));
    let work = || {
        let mut counts = BTreeMap::new();
        while !totals.is_over.load(Memory::Relaxed) {
            let seed = next.fetch_add(1, Memory::Relaxed);
            if seed >= seeds.end {
                break;
            }
            let plan = Plan { seed, ..of.clone() };
            totals.add(&plan, run(&plan, false), &mut counts, keep_going);
        }
        let mut all = totals.counts.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        counts.into_iter().for_each(|(what, count)| *all.entry(what).or_default() += count);
    };
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..threads.max(1)).map(|_| scope.spawn(work)).collect();
        let mut told = Instant::now();
        while tells && workers.iter().any(|worker| !worker.is_finished()) {
            std::thread::sleep(Duration::from_millis(50));
            if told.elapsed() >= EVERY {
                told = Instant::now();
                eprintln!("{}", totals.line(began, count));
            }
        }
    });
    let mut failed =
        std::mem::take(&mut *totals.failed.lock().unwrap_or_else(std::sync::PoisonError::into_inner));
    if tells {
        println!("{}", totals.line(began, count));
        let counts = totals.counts.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        counts.iter().for_each(|(what, count)| println!("  {count:>12} {what}"));
        for (kind, (seeds, plan, ran)) in &mut failed {
            seeds.sort_unstable();
            println!("\n{} seeds failed: {kind} {seeds:?}", seeds.len());
            report(plan, ran);
        }
        if failed.is_empty() {
            println!("no promise was broken");
        }
    }
    failed.values().map(|(_, plan, _)| plan.seed).min()
}

/// Shrinks what failed, and tells its story.
fn report(plan: &Plan, ran: &Ran) {
    let Some(violation) = &ran.violation else { return };
    println!("\nseed {} failed: {violation}", plan.seed);
    let small = plan.shrunk(ran);
    let ran = run(&small, true);
    println!("shrunk to {} of {} steps; its story:\n", small.kept.as_ref().map_or(0, Vec::len), plan.steps);
    tell(&ran, false);
    println!(
        "\nagain: cargo run -p outbox-engine --features _simulation --example simulate -- {}",
        small.arguments()
    );
}

fn tell(ran: &Ran, whole: bool) {
    let lines = if whole { ran.story.iter().map(String::as_str).collect() } else { ran.lines() };
    let (first, rest) = lines.split_at(lines.len().min(FIRST_LINES));
    let (between, last) = rest.split_at(rest.len().saturating_sub(LAST_LINES));
    first.iter().for_each(|line| println!("{line}"));
    if !between.is_empty() {
        println!("          ({} lines)", between.len());
    }
    last.iter().for_each(|line| println!("{line}"));
    match &ran.violation {
        Some(violation) => println!("\n{violation}"),
        None => println!("\nno promise was broken"),
    }
}

fn all_sabotages(threads: usize) -> ExitCode {
    println!("| mistake | seeds |\n|---|---|");
    let mut all_found = true;
    for sabotage in Sabotage::ALL {
        let plan = Plan::sabotaged(0, *sabotage);
        let found = many(&plan, 0..SABOTAGE_SEEDS, threads, false, false);
        all_found &= found.is_some();
        let words = found.map_or("not found".to_owned(), |seed| (seed + 1).to_string());
        println!("| {} | {words} |", sabotage.words());
    }
    if all_found { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
