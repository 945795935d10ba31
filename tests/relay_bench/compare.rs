//! Settings, and builds of this program, compared with the defaults in many short rounds.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use crate::bench::{Bench, KEYS, TOPIC};
use crate::child::Child;
use crate::minimal::Minimal;
use crate::ours::Ours;
use crate::pair::{Broker, Database};
use crate::report::Table;
use crate::role::Role;
use crate::stats::median;
use crate::throughput::{Used, measure};
use crate::tuned::Setting;
use crate::turns::turns;

/// Settings that are compared with the defaults, such as `publish_batch=250,fetch_batch=500`.
#[derive(Clone, Debug)]
pub(crate) struct Settings(Vec<Setting>, String);

impl FromStr for Settings {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let settings: Result<Vec<Setting>, String> = text.split(',').map(str::parse).collect();
        Ok(Self(settings?, text.to_owned()))
    }
}

/// Variants to compare, and the number of rounds.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Compare {
    /// Settings to compare with the defaults, such as publish_batch=250,fetch_batch=500; repeat it for
    /// others.
    #[arg(long)]
    with: Vec<Settings>,
    /// Another build of this program, such as one of an older commit; repeat it for others.
    #[arg(long, value_name = "PROGRAM")]
    build: Vec<PathBuf>,
    #[arg(long, default_value_t = 7)]
    rounds: usize,
    /// Messages of each round.
    #[arg(long, default_value_t = 60_000)]
    messages: u64,
}

/// One of the compared.
#[derive(Clone)]
enum Variant {
    Loop,
    Ours { build: Option<PathBuf>, settings: Option<Settings> },
}

impl fmt::Display for Variant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Loop => f.write_str("bare loop"),
            Self::Ours { build: None, settings: None } => f.write_str("defaults"),
            Self::Ours { build: Some(build), .. } => write!(f, "defaults of {}", build.display()),
            Self::Ours { settings: Some(Settings(_, text)), .. } => f.write_str(text),
        }
    }
}

const COLUMNS: [&str; 7] =
    ["messages/s", "own us", "database us", "broker us", "sum us", "rate / first", "sum / first"];

pub(crate) fn run(bench: &mut Bench, compare: &Compare) {
    let ours = |build, settings| Variant::Ours { build, settings };
    let mut variants = Vec::new();
    if bench.pair.broker == Broker::Kafka && bench.pair.database == Database::Postgres {
        variants.push(Variant::Loop);
    }
    variants.push(ours(None, None));
    variants.extend(compare.build.iter().map(|build| ours(Some(build.clone()), None)));
    variants.extend(compare.with.iter().map(|settings| ours(None, Some(settings.clone()))));
    let mut runs: Vec<Vec<Used>> = vec![Vec::new(); variants.len()];
    for round in 1..=compare.rounds {
        for turn in turns(variants.len(), round) {
            let variant = &variants[turn];
            let used = one(bench, variant, compare.messages);
            bench.say(format!("round {round}: {variant}: {:.0}/s, {:.1} us", used.rate, used.sum()));
            runs[turn].push(used);
        }
    }
    let about = format!(
        "{}: {} messages of 300 bytes and {KEYS} keys in each of {} rounds; medians, also of the ratios within a round",
        bench.pair, compare.messages, compare.rounds
    );
    let mut table = Table::new("compare", about, &COLUMNS);
    for (variant, of) in variants.iter().zip(&runs) {
        let figure = |figure: &dyn Fn(&Used) -> f64| median(&of.iter().map(figure).collect::<Vec<_>>());
        let ratio = |figure: &dyn Fn(&Used) -> f64| {
            let pairs = of.iter().zip(&runs[0]);
            median(&pairs.map(|(used, first)| figure(used) / figure(first)).collect::<Vec<_>>())
        };
        table.row(
            variant.to_string(),
            [
                figure(&|used| used.rate),
                figure(&|used| used.own),
                figure(&|used| used.database.unwrap_or_default()),
                figure(&|used| used.broker),
                figure(&Used::sum),
                ratio(&|used| used.rate),
                ratio(&Used::sum),
            ],
        );
    }
    bench.report(table);
}

fn one(bench: &Bench, variant: &Variant, messages: u64) -> Used {
    let build = match variant {
        Variant::Ours { build, .. } => build.as_deref(),
        Variant::Loop => None,
    };
    let (store, broker) = (bench.store_by(build), bench.broker.fresh());
    bench.fill_by(build, &store, TOPIC, messages, KEYS);
    match variant {
        Variant::Loop => measure(bench, Child::start(&Role::Minimal(Minimal { store, broker, messages }))),
        Variant::Ours { build, settings } => {
            let settings = settings.as_ref().map_or_else(Vec::new, |Settings(settings, _)| settings.clone());
            let role = Role::Ours(Ours { store, broker: Some(broker), settings, messages });
            measure(bench, Child::start_by(build.as_deref(), &role))
        }
    }
}
