//! Cost of an idle relay: statements, and processor time of its own, of the database and of the
//! broker.
//!
//! The servers have work of their own without clients, so each round measures them alone and then
//! with a relay; the difference is the relay's. The queue, the topic or the stream exists in both.
//! The database is a separate server that counts statements by itself. The counts are read from
//! another database of it, which leaves out the queries, and so does the measured time.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use outbox_servers::PostgresServer;

use crate::bench::Bench;
use crate::broker::Address;
use crate::child::{Child, Role, run as run_child};
use crate::database::durable;
use crate::ours::Ours;
use crate::report::{Table, figures};
use crate::stats::median;

/// Servers to query.
struct Idle<'b> {
    bench: &'b Bench,
    postgres: PostgresServer,
    store: String,
    broker: Address,
    /// Idle time of the servers before a sample, and duration of a sample.
    calm: Duration,
    sample: Duration,
}

/// Resources used in one second.
#[derive(Clone, Default)]
struct Used {
    /// Frequency of each statement.
    statements: BTreeMap<String, f64>,
    /// Milliseconds of processor time: of the relay, of the database, of the broker.
    cpu: [f64; 3],
}

const COLUMNS: [&str; 5] = ["statements/s", "own ms/s", "database ms/s", "broker ms/s", "sum ms/s"];
/// Maximum cost of a relay.
const MOST: [Option<f64>; COLUMNS.len()] = [Some(2.0), None, None, None, Some(20.0)];
/// Number of characters shown of a statement.
const SHOWN: usize = 90;

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
            let shown: Vec<String> = used[round - 1].values().iter().copied().map(figures).collect();
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
    table.row("the relay's share", std::array::from_fn::<_, 5, _>(|at| Some(relayed[at]? - alone[at]?)));
    table.row("what it should be at most", MOST);
    let asked = asked(&with);
    bench.report(table);
    bench.report(asked);
}

/// Returns the median of each column.
fn medians(all: &[Used]) -> [Option<f64>; COLUMNS.len()] {
    let values: Vec<_> = all.iter().map(Used::values).collect();
    std::array::from_fn(|column| median(&values.iter().map(|values| values[column]).collect::<Vec<_>>()))
}

/// Returns the statements of a relay, the most frequent first.
fn asked(all: &[Used]) -> Table {
    let mut sums: BTreeMap<&str, f64> = BTreeMap::new();
    for (statement, rate) in all.iter().flat_map(|used| &used.statements) {
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
    fn values(&self) -> [f64; COLUMNS.len()] {
        let [own, database, broker] = self.cpu;
        [self.statements.values().sum(), own, database, broker, own + database + broker]
    }
}

impl<'b> Idle<'b> {
    fn start(bench: &'b Bench, calm: Duration, sample: Duration) -> Self {
        let postgres = durable().config("shared_preload_libraries = 'pg_stat_statements'");
        let postgres = postgres.start().expect("the database starts a second time");
        postgres.query(&postgres.url(), "create extension pg_stat_statements");
        let store = postgres.fresh_database();
        run_child::<()>(&Role::Migrate { store: store.clone() });
        Self { bench, postgres, store, broker: bench.broker.fresh(), calm, sample }
    }

    /// Returns an idle relay that had time to notice it.
    fn relay(&self) -> Child {
        let (store, broker) = (self.store.clone(), Some(self.broker.clone()));
        let mut relay = Child::start(&Role::Ours(Ours { store, broker, settings: vec![], messages: 0 }));
        relay.go();
        std::thread::sleep(self.calm);
        relay
    }

    fn used(&self, relay: Option<&Child>) -> Used {
        self.ask("select pg_stat_statements_reset()");
        let cpu = || {
            let own = relay.map(Child::cpu).unwrap_or_default();
            [own, self.postgres.usage().cpu, self.bench.broker.cpu()]
        };
        let (before, started) = (cpu(), Instant::now());
        std::thread::sleep(self.sample);
        let (after, seconds) = (cpu(), started.elapsed().as_secs_f64());
        let spent = |at: usize| (after[at] - before[at]).as_secs_f64() * 1e3 / seconds;
        Used { statements: self.statements(), cpu: std::array::from_fn(spent) }
    }

    /// Returns the statements run in the relay's database since the counters were reset, per second
    /// of that time.
    fn statements(&self) -> BTreeMap<String, f64> {
        let name = self.store.rsplit('/').next().unwrap_or_default();
        let counted = self.ask(&format!(
            "select (sum(calls) / extract(epoch from clock_timestamp() - (select stats_reset from pg_stat_statements_info)))::float8,
                    left(regexp_replace(trim(query), '\\s+', ' ', 'g'), {SHOWN}) as statement
             from pg_stat_statements join pg_database on pg_database.oid = dbid where datname = '{name}' group by statement"
        ));
        let rate = |line: &str| {
            let (rate, statement) = line.split_once('|')?;
            Some((statement.to_owned(), rate.parse().ok()?))
        };
        let read = |line| rate(line).unwrap_or_else(|| panic!("{line:?} is no rate of a statement"));
        counted.lines().filter(|line| !line.is_empty()).map(read).collect()
    }

    /// Queries through another database than the relay's, and waits until the server has closed the
    /// connection.
    fn ask(&self, sql: &str) -> String {
        let answer = self.postgres.query(&self.postgres.url(), sql);
        std::thread::sleep(Duration::from_millis(500));
        answer
    }
}
