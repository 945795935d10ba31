//! Messages per second, and the cost of each: the inbox in each of its modes and the hand-written
//! loop, in turns.

use crate::bench::Bench;
use crate::broker::Address;
use crate::by_hand::ByHand;
use crate::child::{Child, Done, run as run_child};
use crate::consume::Consume;
use crate::fill::Fill;
use crate::pair::Database;
use crate::report::Table;
use crate::role::Role;
use crate::stats::median;

/// Variant under comparison.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Variant {
    Inbox { stored: bool, batch: usize },
    ByHand { workers: usize },
}

const VARIANTS: [Variant; 6] = [
    Variant::ByHand { workers: 1 },
    Variant::ByHand { workers: 8 },
    Variant::Inbox { stored: false, batch: 1 },
    Variant::Inbox { stored: false, batch: 100 },
    Variant::Inbox { stored: true, batch: 1 },
    Variant::Inbox { stored: true, batch: 100 },
];

impl Variant {
    /// Returns true if it is measured there: the loop by hand speaks SQL over a network.
    fn is_of(self, database: Database) -> bool {
        matches!(self, Self::Inbox { .. }) || database.has_usual()
    }

    fn label(self) -> String {
        match self {
            Self::ByHand { workers } => format!("by hand, {workers} at once"),
            Self::Inbox { stored, batch } => {
                let mode = if stored { "stored" } else { "direct" };
                if batch == 1 { mode.to_owned() } else { format!("{mode}, batches of {batch}") }
            }
        }
    }

    fn role(self, store: String, broker: Address, messages: u64) -> Role {
        match self {
            Self::ByHand { workers } => Role::ByHand(ByHand { store, broker, workers, messages }),
            Self::Inbox { stored, batch } => {
                Role::Consume(Consume { store, broker, stored, batch, messages })
            }
        }
    }
}

/// Resources of one run, in microseconds of processor time for each message.
#[derive(Clone, Copy, Default)]
struct Used {
    rate: f64,
    own: f64,
    /// None: it is in the process, or means nothing.
    database: Option<f64>,
    broker: f64,
    memory: f64,
}

const COLUMNS: [&str; 6] = ["messages/s", "own us", "database us", "broker us", "sum us", "memory MiB"];

pub(crate) fn run(bench: &mut Bench) {
    let messages = bench.profile.pick(10_000, 100_000);
    let repetitions = bench.profile.pick(3, 5);
    let mut runs: Vec<Vec<Used>> = vec![Vec::new(); VARIANTS.len()];
    let variants: Vec<Variant> = VARIANTS.into_iter().filter(|it| it.is_of(bench.pair.database)).collect();
    for repetition in 1..=repetitions {
        for (variant, runs) in variants.iter().zip(&mut runs) {
            bench.say(format!("throughput {repetition}/{repetitions}: {}", variant.label()));
            runs.push(one(bench, *variant, messages));
        }
    }
    let about = format!(
        "{}: {messages} messages of 300 bytes, one UPDATE for each; medians of {repetitions}; processor time for each message",
        bench.pair
    );
    let mut table = Table::new("throughput", about, &COLUMNS);
    for (variant, runs) in variants.iter().zip(&runs) {
        let of =
            |figure: fn(&Used) -> Option<f64>| median(&runs.iter().filter_map(figure).collect::<Vec<_>>());
        table.row(
            variant.label(),
            [
                of(|used| Some(used.rate)),
                of(|used| Some(used.own)),
                of(|used| used.database),
                of(|used| Some(used.broker)),
                of(|used| Some(used.own + used.database.unwrap_or(0.0) + used.broker)),
                of(|used| Some(used.memory)),
            ],
        );
    }
    let ratios = ratios(&variants, &table);
    bench.report(table);
    bench.report(ratios);
}

/// Performs one run, after which every message must have had its effect once.
fn one(bench: &Bench, variant: Variant, messages: u64) -> Used {
    let (store, broker) = (bench.store(), bench.broker.fresh());
    run_child::<()>(&Role::Fill(Fill { broker: broker.clone(), messages, rate: None }));
    let mut child = Child::start(&variant.role(store.clone(), broker, messages));
    let before = (bench.database.cpu(), bench.broker.cpu());
    child.go();
    let done: Done = child.done();
    let after = (bench.database.cpu(), bench.broker.cpu());
    assert_eq!(bench.effects(&store), messages, "{}: effects", variant.label());
    let each = |seconds: f64| seconds * 1e6 / messages as f64;
    Used {
        rate: messages as f64 / done.seconds,
        own: each(done.cpu_seconds),
        database: after.0.zip(before.0).map(|(after, before)| each((after - before).as_secs_f64())),
        broker: each((after.1 - before.1).as_secs_f64()),
        memory: done.max_memory as f64 / f64::from(1 << 20),
    }
}

/// Compares each mode with the hand-written loop of equal concurrency.
fn ratios(variants: &[Variant], table: &Table) -> Table {
    let reference = Variant::ByHand { workers: 8 }.label();
    let mut ratios = Table::new("ratios", format!("times {reference}"), &["messages/s", "own us", "sum us"]);
    for variant in variants {
        let label = variant.label();
        let ratio = |column| Some(table.value(&label, column)? / table.value(&reference, column)?);
        ratios.row(label.clone(), ["messages/s", "own us", "sum us"].map(ratio));
    }
    ratios
}
