//! Two builds of this program, measured in turns: says whether anything moved beyond the noise.
//!
//! Each build creates, fills and relays by itself, so that tables and statements may differ between
//! them. Both use the same servers. The order within a round alternates.

use std::fmt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::bench::{Bench, KEYS, TOPIC};
use crate::child::Child;
use crate::noise::{CONFIDENCE, Moved, Ratio, fewest};
use crate::ours::Ours;
use crate::report::Table;
use crate::role::Role;
use crate::stats::median;
use crate::throughput::{Used, measure};

/// The build to compare this one with.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Diff {
    /// This program, built from an older commit.
    base: PathBuf,
    /// Time to measure.
    #[arg(long, default_value_t = 5)]
    minutes: u64,
    /// Messages of each run.
    #[arg(long, default_value_t = 60_000)]
    messages: u64,
}

/// A figure of a run.
struct Figure {
    name: &'static str,
    of: fn(&Used) -> Option<f64>,
    /// More of it is better.
    gain: bool,
}

const fn cost(name: &'static str, of: fn(&Used) -> Option<f64>) -> Figure {
    Figure { name, of, gain: false }
}

const FIGURES: [Figure; 7] = [
    Figure { name: "messages/s", of: |used| Some(used.rate), gain: true },
    cost("own us", |used| Some(used.own)),
    cost("database us", |used| used.database),
    cost("broker us", |used| Some(used.broker)),
    cost("sum us", |used| Some(used.sum())),
    cost("log B", |used| used.wal),
    cost("memory MiB", |used| Some(used.memory)),
];

/// Change of one figure.
struct Change {
    figure: &'static Figure,
    base: f64,
    head: f64,
    ratio: Ratio,
}

impl Change {
    fn is_worse(&self) -> bool {
        let worse = if self.figure.gain { Moved::Less } else { Moved::More };
        self.ratio.moved() == worse
    }
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:<12} {}", self.figure.name, self.ratio)
    }
}

/// Measures both; returns true if something is surely worse.
pub(crate) fn run(bench: &mut Bench, diff: &Diff) -> bool {
    let until = Instant::now() + Duration::from_secs(60 * diff.minutes);
    // The first run of each warms caches and the broker, and does not count.
    one(bench, Some(&diff.base), diff.messages);
    one(bench, None, diff.messages);
    let (mut base, mut head) = (Vec::new(), Vec::new());
    while Instant::now() < until || base.len() < fewest() {
        let base_first = base.len() % 2 == 0;
        for is_base in [base_first, !base_first] {
            let build = is_base.then_some(&*diff.base);
            let used = one(bench, build, diff.messages);
            if is_base { &mut base } else { &mut head }.push(used);
        }
        let (base, head) = (base[base.len() - 1].sum(), head[head.len() - 1].sum());
        bench.say(format!("{base:.1} us and {head:.1} us a message"));
    }
    let changes: Vec<Change> = FIGURES.iter().filter_map(|figure| change(figure, &base, &head)).collect();
    let about = format!(
        "{}: {} messages of 300 bytes and {KEYS} keys in each of {} rounds; medians, and the median of the ratios within a round \
         with its interval of {:.1} %",
        bench.pair,
        diff.messages,
        base.len(),
        CONFIDENCE * 100.0
    );
    bench.report(table(about, &changes));
    for change in &changes {
        println!("  {change}");
    }
    changes.iter().any(Change::is_worse)
}

fn change(figure: &'static Figure, base: &[Used], head: &[Used]) -> Option<Change> {
    let of = |runs: &[Used]| runs.iter().map(figure.of).collect::<Option<Vec<f64>>>();
    let (base, head) = (of(base)?, of(head)?);
    let ratio = Ratio::of(&base, &head)?;
    Some(Change { figure, base: median(&base)?, head: median(&head)?, ratio })
}

fn table(about: String, changes: &[Change]) -> Table {
    let mut table = Table::new("diff", about, &["base", "head", "change %", "low %", "high %"]);
    let percent = |ratio: f64| Some((ratio - 1.0) * 100.0);
    for Change { figure, base, head, ratio } in changes {
        let change = [percent(ratio.median), percent(ratio.low), percent(ratio.high)];
        table.row(figure.name, [Some(*base), Some(*head)].into_iter().chain(change));
    }
    table
}

/// Measures one run of a build; None: of this one.
fn one(bench: &Bench, build: Option<&Path>, messages: u64) -> Used {
    let (store, broker) = (bench.store_by(build), bench.broker.fresh());
    bench.fill_by(build, &store, TOPIC, messages, KEYS);
    let role = Role::Ours(Ours { store, broker: Some(broker), settings: vec![], messages });
    measure(bench, Child::start_by(build, &role))
}
