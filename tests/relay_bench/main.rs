//! The side-by-side benchmark of relays from a database to a broker: `cargo bench -p outbox-tests
//! --bench relay -- --help`
//!
//! This process starts the servers, fills tables, and reads the operating system's figures of each
//! process. Measured work runs in a child process of its own: this program again, with a role. See
//! `role.rs`.

mod append;
mod bench;
mod by_hand;
mod compare;
mod diff;
mod fetch;
mod fill;
mod idle;
mod kill;
mod latency;
mod memory;
mod minimal;
mod noise;
mod ours;
mod page;
mod peers;
mod plot;
mod publish;
mod role;
mod stages;
mod statements;
mod throughput;
mod tuned;
mod turns;
mod usual;
mod writer;

use std::path::PathBuf;
use std::process::ExitCode;

use bench::Bench;
use clap::{CommandFactory, Parser, Subcommand};
use outbox_tests::bench::pair::{Database, Pair};
use outbox_tests::bench::profile::Profile;
use outbox_tests::bench::{broker, child, database, pair, process, profile, report, stats};
use tuned::Setting;

/// Measures the relay of this workspace beside a SKIP LOCKED baseline, and beside its own parts,
/// from a database to a broker.
#[derive(Parser)]
#[command(name = "relay", after_help = HELP)]
struct Cli {
    #[command(subcommand)]
    what: Option<What>,
    /// Amount of measuring: `quick` takes minutes and gives an impression, `full` gives figures to
    /// be quoted.
    #[arg(long, global = true, value_enum, default_value_t = Profile::Quick)]
    profile: Profile,
    /// The database and the broker: postgres, mysql, mariadb, mongodb or sqlite, and rabbitmq,
    /// kafka or redis. `append` and `fetch` on postgres only.
    #[arg(long, global = true, default_value = "postgres-rabbitmq")]
    pair: Pair,
    /// A setting of the tuned relay, such as fetch_batch=2000; repeat it for another one.
    #[arg(long, global = true, value_name = "NAME=NUMBER")]
    tuned: Vec<Setting>,
    /// The program of tests/peers: relays of other projects, measured beside.
    #[arg(long, global = true, value_name = "PROGRAM")]
    peers: Option<PathBuf>,
    /// The folder for relay.json and relay.svg.
    #[arg(long, global = true, default_value = "target/relay_bench")]
    out: PathBuf,
    // Cargo passes it to each benchmark.
    #[arg(long, global = true, hide = true)]
    bench: bool,
}

const HELP: &str = "\
Servers: the database and the broker, started here on free ports, from the folder that tests/servers/prepare makes
(target/servers, or what OUTBOX_SERVERS_DIR names).

MySQL has its binary log, MariaDB none, as each has by default. For MongoDB there is a stand-in: of its pairs the
relay's own process says something, the rest nothing.

How to read it: what else runs on the machine moves rates by a factor of two, and CPU time per message by little. Compare
rows of one run, whose variants take turns; quote medians, with the machine. Nothing else should run meanwhile.

The SKIP LOCKED baseline publishes to RabbitMQ as one would by hand: with the client library and nothing of ours between, over a connection
for each worker. To Kafka and Redis it publishes through our transport, which is a thin layer over the client library there.

  cargo bench -p outbox-tests --bench relay -- throughput           ours, the SKIP LOCKED baseline, the parts
  cargo bench -p outbox-tests --bench relay -- throughput --pair postgres-kafka
                                                                    and the bare loop, the lower bound
  cargo bench -p outbox-tests --bench relay -- all --profile full   everything, for an hour
";

#[derive(Subcommand)]
enum What {
    /// Messages per second and CPU per message: ours, default and tuned; the SKIP LOCKED baseline;
    /// fetch and settle alone; publish alone, to RabbitMQ also by the client library alone.
    Throughput,
    /// From commit to consumer, at fixed rates.
    Latency,
    /// A message's way from commit to consumer, stage by stage.
    Stages,
    /// Cost of an idle relay: statements and processor time, without the servers' own.
    Idle,
    /// Cost of an append for its transaction, and cost of waking the relay for it.
    Append,
    /// Cost of a fetch behind a large backlog, and while transactions stay open.
    Fetch,
    /// Resident memory at a large backlog of many keys and of one.
    Memory,
    /// Repeats and the interruption after a relay was killed.
    Kill,
    /// The defaults, other settings and other builds of this program, in many short rounds.
    Compare(compare::Compare),
    /// An older build of this program and this one, in turns: says whether anything moved beyond the
    /// noise. Ends with 3 if something is surely worse.
    Diff(diff::Diff),
    /// The results of runs as a page of the book, with pictures; measures nothing.
    Page(page::Page),
    /// All but `compare` and `diff`: each part that the pair has.
    All,
    /// One of the measured processes.
    #[command(hide = true)]
    Child {
        /// Its role, as JSON.
        role: String,
    },
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    let Some(what) = cli.what else {
        // Heavy work must not start by accident.
        let _ = Cli::command().print_help();
        return ExitCode::SUCCESS;
    };
    if let What::Child { role } = what {
        role::play(&role);
        return ExitCode::SUCCESS;
    }
    if let What::Page(page) = &what {
        return match page::write(page) {
            Ok(()) => ExitCode::SUCCESS,
            Err(problem) => {
                eprintln!("{problem}");
                ExitCode::FAILURE
            }
        };
    }
    let inspects_postgres = matches!(what, What::Append | What::Fetch);
    if inspects_postgres && cli.pair.database != Database::Postgres {
        eprintln!(
            "{}: `append` and `fetch` look into PostgreSQL; every other part is measured there",
            cli.pair
        );
        return ExitCode::from(2);
    }
    let mut bench = match Bench::start(cli.profile, cli.pair, tuned::tuned(&cli.tuned)) {
        Ok(bench) => bench,
        Err(missing) => {
            eprintln!("{missing}\n\nThis benchmark needs both servers: run tests/servers/prepare first.");
            return ExitCode::from(2);
        }
    };
    bench.peers = cli.peers.clone();
    if let What::Compare(compare) = &what {
        compare::run(&mut bench, compare);
    }
    let is_worse = matches!(&what, What::Diff(diff) if diff::run(&mut bench, diff));
    type Part = fn(&mut Bench);
    let mut parts: Vec<(What, Part)> = vec![
        (What::Throughput, throughput::run),
        (What::Latency, latency::run),
        (What::Stages, stages::run),
        (What::Idle, idle::run),
        (What::Memory, memory::run),
        (What::Kill, kill::run),
    ];
    if cli.pair.database == Database::Postgres {
        parts.extend([(What::Append, append::run as Part), (What::Fetch, fetch::run)]);
    }
    let same = |part: &What| std::mem::discriminant(part) == std::mem::discriminant(&what);
    for (part, run) in &parts {
        if matches!(what, What::All) || same(part) {
            run(&mut bench);
        }
    }
    match bench.write(&cli.out) {
        Ok(()) if is_worse => ExitCode::from(3),
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{}: {error}; give another folder with --out", cli.out.display());
            ExitCode::FAILURE
        }
    }
}
