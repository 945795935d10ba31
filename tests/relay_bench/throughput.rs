//! Messages per second, and the cost of each: ours, the SKIP LOCKED baseline, and the parts alone,
//! in turns.

use crate::bench::{Bench, KEYS, TOPIC};
use crate::child::{Child, Done};
use crate::minimal::Minimal;
use crate::ours::Ours;
use crate::pair::{Broker, Database};
use crate::peers::{self, Name};
use crate::plot::Bars;
use crate::publish::Publish;
use crate::report::{Table, figures};
use crate::role::Role;
use crate::stats::median;
use crate::turns::turns;
use crate::usual::Usual;

/// Variant under comparison.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Variant {
    Ours { tuned: bool, checkpoint: bool },
    Usual { workers: usize, checkpoint: bool },
    Minimal,
    Peer { name: Name, workers: usize },
    Settle,
    Publish { by_hand: bool },
}

impl Variant {
    fn label(self) -> String {
        let behind = |checkpoint| if checkpoint { ", checkpoint" } else { "" };
        match self {
            Self::Ours { tuned, checkpoint } => {
                format!("ours, {}{}", if tuned { "tuned" } else { "default" }, behind(checkpoint))
            }
            Self::Usual { workers, checkpoint } => {
                format!("SKIP LOCKED, {workers} workers{}", behind(checkpoint))
            }
            Self::Minimal => "bare loop".to_owned(),
            Self::Peer { name, workers } => format!("{}, {workers} workers", name.label()),
            Self::Settle => "part: fetch and settle".to_owned(),
            Self::Publish { by_hand: false } => "part: publish".to_owned(),
            Self::Publish { by_hand: true } => BY_HAND.to_owned(),
        }
    }
}

/// Label of publishing without our transport.
const BY_HAND: &str = "part: publish, by the client library";

/// Resources of one run, in microseconds of processor time and bytes for each message.
#[derive(Clone, Copy, Default)]
pub(crate) struct Used {
    pub(crate) rate: f64,
    pub(crate) own: f64,
    /// None: the database is in the process.
    pub(crate) database: Option<f64>,
    pub(crate) broker: f64,
    pub(crate) cleaned: Option<f64>,
    pub(crate) wal: Option<f64>,
    pub(crate) memory: f64,
}

impl Used {
    /// Returns the processor time of all processes.
    pub(crate) fn sum(&self) -> f64 {
        self.own + self.database.unwrap_or(0.0) + self.broker
    }
}

/// Measures one child, with both servers.
pub(crate) fn measure(bench: &Bench, mut child: Child) -> Used {
    let wal = bench.database.logged();
    let before = (bench.database.cpu(), bench.broker.cpu());
    child.go();
    let done: Done = child.done();
    let after = (bench.database.cpu(), bench.broker.cpu());
    let messages = done.messages as f64;
    let each = |seconds: f64| seconds * 1e6 / messages;
    let database = after.0.zip(before.0).map(|(after, before)| (after - before).as_secs_f64());
    Used {
        rate: messages / done.seconds,
        own: each(done.cpu_seconds),
        database: database.map(each),
        broker: each((after.1 - before.1).as_secs_f64()),
        cleaned: None,
        wal: bench.database.logged().zip(wal).map(|(after, before)| (after - before) / messages),
        memory: done.max_memory as f64 / f64::from(1 << 20),
    }
}

const COLUMNS: [&str; 8] =
    ["messages/s", "own us", "database us", "broker us", "sum us", "cleaning us", "WAL B", "memory MiB"];

pub(crate) fn run(bench: &mut Bench) {
    // Quick brokers get more, so that a tick of the processor's clock is little.
    let messages = match bench.pair.broker {
        Broker::RabbitMq => bench.profile.pick(30_000, 200_000),
        Broker::Kafka | Broker::Redis => bench.profile.pick(60_000, 400_000),
    };
    let repetitions = bench.profile.pick(2, 5);
    let ours = |tuned, checkpoint| Variant::Ours { tuned, checkpoint };
    let usual = |workers, checkpoint| Variant::Usual { workers, checkpoint };
    let mut variants = vec![ours(false, false)];
    if bench.pair.broker == Broker::Kafka && bench.pair.database == Database::Postgres {
        variants.push(Variant::Minimal);
    }
    if bench.pair.database.has_usual() {
        variants.extend([usual(1, false), usual(2, false), usual(4, false)]);
        if bench.profile == crate::profile::Profile::Full {
            variants.push(usual(8, false));
        }
    }
    variants.extend(peers::of(bench).into_iter().map(|(name, workers)| Variant::Peer { name, workers }));
    variants.extend([Variant::Settle, Variant::Publish { by_hand: false }]);
    if bench.pair.broker == Broker::RabbitMq {
        variants.push(Variant::Publish { by_hand: true });
    }
    variants.push(ours(true, false));
    if bench.pair.database == Database::Postgres {
        variants.extend([ours(false, true), usual(4, true)]);
    }
    let mut runs: Vec<Vec<Used>> = vec![Vec::new(); variants.len()];
    for repetition in 1..=repetitions {
        for turn in turns(variants.len(), repetition) {
            let variant = variants[turn];
            bench.say(format!("throughput {repetition}/{repetitions}: {}", variant.label()));
            let used = one(bench, variant, messages);
            bench.say(format!(
                "  {} messages/s; own process {} us, database {} us, broker {} us",
                figures(used.rate),
                figures(used.own),
                used.database.map_or_else(|| "-".to_owned(), figures),
                figures(used.broker)
            ));
            runs[turn].push(used);
        }
    }

    let usual = match bench.pair.broker {
        _ if !bench.pair.database.has_usual() => "",
        Broker::RabbitMq => "; the SKIP LOCKED baseline publishes with the client library alone",
        Broker::Kafka | Broker::Redis => "; the SKIP LOCKED baseline publishes through our transport",
    };
    let about = format!(
        "{}: {messages} messages of 300 bytes and {KEYS} keys; medians of {repetitions}; processor time for each message{usual}",
        bench.pair
    );
    let mut table = Table::new("throughput", about, &COLUMNS);
    for (variant, runs) in variants.iter().zip(&runs) {
        let of =
            |figure: fn(&Used) -> Option<f64>| median(&runs.iter().filter_map(figure).collect::<Vec<_>>());
        let columns: [fn(&Used) -> Option<f64>; COLUMNS.len()] = [
            |used| Some(used.rate),
            |used| Some(used.own),
            |used| used.database,
            |used| Some(used.broker),
            |used| Some(used.sum()),
            |used| used.cleaned,
            |used| used.wal,
            |used| Some(used.memory),
        ];
        table.row(variant.label(), columns.map(of));
    }
    bench.draw(bars(bench, &table));
    let ratios = ratios(&table);
    bench.report(table);
    bench.report(ratios);
}

fn one(bench: &Bench, variant: Variant, messages: u64) -> Used {
    if let Variant::Peer { name, workers } = variant {
        return measure(bench, peers::start(bench, name, workers, messages));
    }
    let (store, broker) = (bench.store(), bench.broker.fresh());
    let checkpoint = match variant {
        Variant::Ours { checkpoint, .. } | Variant::Usual { checkpoint, .. } => checkpoint,
        Variant::Minimal | Variant::Peer { .. } | Variant::Settle | Variant::Publish { .. } => false,
    };
    match variant {
        Variant::Usual { .. } => bench.fill_usual(&store, messages),
        Variant::Ours { .. } | Variant::Minimal | Variant::Settle => {
            bench.fill(&store, TOPIC, messages, KEYS)
        }
        Variant::Peer { .. } | Variant::Publish { .. } => {}
    }
    if checkpoint {
        // Each page that is changed from now on is written whole to the WAL once.
        bench.postgres().query(&store, "checkpoint");
    }
    let role = match variant {
        Variant::Ours { tuned, .. } => {
            let settings = if tuned { bench.settings.clone() } else { vec![] };
            Role::Ours(Ours { store: store.clone(), broker: Some(broker), settings, messages })
        }
        Variant::Minimal => Role::Minimal(Minimal { store: store.clone(), broker, messages }),
        Variant::Settle => {
            Role::Ours(Ours { store: store.clone(), broker: None, settings: vec![], messages })
        }
        Variant::Usual { workers, .. } => {
            Role::Usual(Usual { store: store.clone(), broker, workers, messages })
        }
        Variant::Peer { .. } => unreachable!("started above"),
        Variant::Publish { by_hand } => Role::Publish(Publish { broker, messages, by_hand }),
    };
    let used = measure(bench, Child::start(&role));
    let cleaned = match variant {
        Variant::Ours { .. } | Variant::Minimal | Variant::Settle => bench.database.clean(&store, false),
        Variant::Usual { .. } => bench.database.clean(&store, true),
        Variant::Peer { .. } | Variant::Publish { .. } => None,
    };
    Used { cleaned: cleaned.map(|cpu| cpu.as_secs_f64() * 1e6 / messages as f64), ..used }
}

fn bars(bench: &Bench, table: &Table) -> Bars {
    let parts = vec!["own process", bench.pair.database.name(), bench.pair.broker.name()];
    let rows = table.rows.iter().map(|row| {
        let values = row.values[1..4].iter().map(|value| value.unwrap_or(0.0)).collect();
        (row.label.clone(), values)
    });
    Bars { title: "Processor time for each message, microseconds".to_owned(), parts, rows: rows.collect() }
}

/// Compares ours with the best of the SKIP LOCKED baselines, and with the sum of the parts.
fn ratios(table: &Table) -> Table {
    let best = |column: &str, better: fn(f64, f64) -> f64| {
        let usual = table
            .rows
            .iter()
            .filter(|row| row.label.starts_with("SKIP LOCKED") && !row.label.contains("checkpoint"));
        usual.filter_map(|row| table.value(&row.label, column)).reduce(better)
    };
    let ours = |column| table.value("ours, default", column);
    let parts = ["part: fetch and settle", "part: publish"].map(|part| table.value(part, "sum us"));
    let ratio = |one: Option<f64>, other: Option<f64>| Some(one? / other?);
    let mut ratios =
        Table::new("ratios", "ours, default, to the best SKIP LOCKED baseline in each figure", &["ratio"]);
    ratios.row("messages/s, ours to SKIP LOCKED", [ratio(ours("messages/s"), best("messages/s", f64::max))]);
    ratios
        .row("sum of processor time, SKIP LOCKED to ours", [ratio(best("sum us", f64::min), ours("sum us"))]);
    ratios.row("database, SKIP LOCKED to ours", [ratio(best("database us", f64::min), ours("database us"))]);
    ratios.row("WAL, SKIP LOCKED to ours", [ratio(best("WAL B", f64::min), ours("WAL B"))]);
    let least = |column| table.value("bare loop", column);
    ratios.row("messages/s, ours to the bare loop", [ratio(ours("messages/s"), least("messages/s"))]);
    ratios.row("sum of processor time, ours to the bare loop", [ratio(ours("sum us"), least("sum us"))]);
    let publish = table.value(BY_HAND, "sum us");
    ratios.row("sum of processor time, publish by the client library to publish", [ratio(publish, parts[1])]);
    let sum = parts.iter().copied().sum::<Option<f64>>();
    ratios.row("sum of processor time, ours to the parts alone", [ratio(ours("sum us"), sum)]);
    ratios
}
