//! Cost of an idle relay: statements, and processor time of its own, of the database and of the
//! broker.
//!
//! The servers have work of their own without clients, so each round measures them alone and then
//! with a relay; the difference is the relay's. The queue, the topic or the stream exists in both.
//! The database is a separate server that counts statements by itself, if it can. The counts are
//! read from another database of it, which leaves out the queries, and so does the measured time.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use crate::bench::Bench;
use crate::broker::Address;
use crate::child::{Child, run as run_child};
use crate::ours::Ours;
use crate::report::{Table, figures};
use crate::role::Role;
use crate::statements::{Counting, Statements};
use crate::stats::median;

/// Servers to query.
struct Idle<'b> {
    bench: &'b Bench,
    counting: Counting,
    broker: Address,
    /// Idle time of the servers before a sample, and duration of a sample.
    calm: Duration,
    sample: Duration,
}

/// Resources used in one second.
#[derive(Clone, Default)]
struct Used {
    /// None: the database counts none.
    statements: Option<Statements>,
    /// Milliseconds of processor time: of the relay, of the database, of the broker. None: it is
    /// in the relay's process, or means nothing.
    cpu: [Option<f64>; 3],
}

const COLUMNS: [&str; 5] = ["statements/s", "own ms/s", "database ms/s", "broker ms/s", "sum ms/s"];
/// Maximum cost of a relay.
const MOST: [Option<f64>; COLUMNS.len()] = [Some(2.0), None, None, None, Some(20.0)];

pub(crate) fn run(bench: &mut Bench) {
    let (calm, seconds, rounds) = bench.profile.pick((5, 15, 2), (15, 60, 5));
    let (calm, sample) = (Duration::from_secs(calm), Duration::from_secs(seconds));
    let idle = Idle::start(bench, calm, sample);
    // The setup and the cold caches of the first relay are not a cost of an idle one.
    drop(idle.relay());
    let (mut alone, mut with) = (Vec::new(), Vec::new());
    for round in 1..=rounds {
        std::thread::sleep(calm);
        alone.push(idle.used(None));
        let relay = idle.relay();
        with.push(idle.used(Some(&relay)));
        for (label, used) in [("alone", &alone), ("with a relay", &with)] {
            let shown: Vec<String> = used[round - 1].values().into_iter().map(shown).collect();
            bench.say(format!(
                "idle {round}/{rounds}: {label}: {} ({})",
                shown.join(", "),
                COLUMNS.join(", ")
            ));
        }
    }
    let about = format!(
        "{}: medians of {rounds} samples of {seconds} s, in turns; processor time per second; the benchmark's own questions are left out",
        bench.pair
    );
    let mut table = Table::new("idle", about, &COLUMNS);
    let (alone, relayed) = (medians(&alone), medians(&with));
    table.row("servers alone", alone);
    table.row("with a relay", relayed);
    let share = |at: usize| Some(relayed[at]? - alone[at].unwrap_or(0.0));
    table.row("the relay's share", std::array::from_fn::<_, 5, _>(share));
    table.row("what it should be at most", MOST);
    let asked = asked(&with);
    bench.report(table);
    if !asked.rows.is_empty() {
        bench.report(asked);
    }
}

/// Returns the median of each column.
fn medians(all: &[Used]) -> [Option<f64>; COLUMNS.len()] {
    let values: Vec<_> = all.iter().map(Used::values).collect();
    std::array::from_fn(|column| {
        median(&values.iter().filter_map(|values| values[column]).collect::<Vec<_>>())
    })
}

fn shown(value: Option<f64>) -> String {
    value.map_or_else(|| "-".to_owned(), figures)
}

/// Returns the statements of a relay, the most frequent first.
fn asked(all: &[Used]) -> Table {
    let mut sums: BTreeMap<&str, f64> = BTreeMap::new();
    for (statement, rate) in all.iter().filter_map(|used| used.statements.as_ref()).flatten() {
        *sums.entry(statement).or_default() += rate / all.len() as f64;
    }
    let mut sums: Vec<(&str, f64)> = sums.into_iter().collect();
    sums.sort_by(|one, other| other.1.total_cmp(&one.1));
    let mut table = Table::new("asked", "what the database was asked with a relay; means", &["per s"]);
    for (statement, rate) in sums {
        table.row(statement, [Some(rate)]);
    }
    table
}

impl Used {
    /// Returns the values of the columns.
    fn values(&self) -> [Option<f64>; COLUMNS.len()] {
        let [own, database, broker] = self.cpu;
        let asked = self.statements.as_ref().map(|statements| statements.values().sum());
        [asked, own, database, broker, Some(self.cpu.iter().flatten().sum())]
    }
}

impl<'b> Idle<'b> {
    fn start(bench: &'b Bench, calm: Duration, sample: Duration) -> Self {
        let counting = Counting::start(bench.pair.database).expect("the database starts a second time");
        run_child::<()>(&Role::Migrate { store: counting.store().to_owned() });
        Self { bench, counting, broker: bench.broker.fresh(), calm, sample }
    }

    /// Returns an idle relay that had time to notice it.
    fn relay(&self) -> Child {
        let (store, broker) = (self.counting.store().to_owned(), Some(self.broker.clone()));
        let mut relay = Child::start(&Role::Ours(Ours { store, broker, settings: vec![], messages: 0 }));
        relay.go();
        std::thread::sleep(self.calm);
        relay
    }

    fn used(&self, relay: Option<&Child>) -> Used {
        let reset = self.counting.reset();
        let cpu = || {
            let own = relay.map(Child::cpu).unwrap_or_default();
            [Some(own), self.counting.database.cpu(), Some(self.bench.broker.cpu())]
        };
        let (before, started) = (cpu(), Instant::now());
        std::thread::sleep(self.sample);
        let (after, seconds) = (cpu(), started.elapsed().as_secs_f64());
        let spent = |at: usize| Some((after[at]? - before[at]?).as_secs_f64() * 1e3 / seconds);
        Used { statements: self.counting.since(reset), cpu: std::array::from_fn(spent) }
    }
}
