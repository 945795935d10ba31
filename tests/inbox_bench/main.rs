//! The benchmark of inboxes from a broker to a database: `cargo bench -p outbox-tests --bench inbox
//! -- --help`
//!
//! This process starts the servers, fills queues, and reads the operating system's figures of each
//! process. Measured work runs in a child process of its own: this program again, with a role. See
//! `role.rs`.

mod bench;
mod by_hand;
mod consume;
mod fill;
mod members;
mod role;
mod slow;
mod stock;
mod throughput;

use std::path::PathBuf;
use std::process::ExitCode;

use bench::Bench;
use clap::{CommandFactory, Parser, Subcommand};
use outbox_tests::bench::pair::{Broker, Database, Pair};
use outbox_tests::bench::profile::Profile;
use outbox_tests::bench::{broker, child, database, pair, profile, report, stats};

/// Measures the inbox of this workspace beside a hand-written loop, from a broker to a database.
#[derive(Parser)]
#[command(name = "inbox", after_help = HELP)]
struct Cli {
    #[command(subcommand)]
    what: Option<What>,
    /// Amount of measuring: `quick` takes minutes and gives an impression, `full` gives figures to
    /// be quoted.
    #[arg(long, global = true, value_enum, default_value_t = Profile::Quick)]
    profile: Profile,
    /// The database and the broker: postgres, mysql, mariadb, mongodb or sqlite, and rabbitmq,
    /// kafka or redis. `slow-key` on postgres only, `members` on postgres-rabbitmq only.
    #[arg(long, global = true, default_value = "postgres-rabbitmq")]
    pair: Pair,
    /// The folder for inbox.json.
    #[arg(long, global = true, default_value = "target/inbox_bench")]
    out: PathBuf,
    // Cargo passes it to each benchmark.
    #[arg(long, global = true, hide = true)]
    bench: bool,
}

const HELP: &str = "\
Servers: the database and the broker, started here on free ports, from the folder that tests/servers/prepare makes
(target/servers, or what OUTBOX_SERVERS_DIR names).

How to read it: what else runs on the machine moves rates by a factor of two, and CPU time per message by little. Compare
rows of one run, whose variants take turns; quote medians, with the machine. Nothing else should run meanwhile.

The loop by hand does for each message what an inbox does: begin, insert-or-ignore the id, the handler's one UPDATE if it was
new, commit, acknowledge. On PostgreSQL, MySQL and MariaDB. It knows no retries, no failing keys, no dead letters, and loses a conflict's message to a crash.
";

#[derive(Subcommand)]
enum What {
    /// Messages per second and CPU per message: direct and stored mode, one by one and in batches;
    /// the hand-written loop.
    Throughput,
    /// Latency of messages of 1,000 keys beside a key of which each message takes a second, and
    /// without it.
    SlowKey,
    /// Members 1, 2 and 4 of a consumer that share its queues: their shares, and messages per second
    /// with a handler of 5 ms; order and repeats over joins, leaves and kills. On RabbitMQ 4.0.
    Members,
    /// All of these that the pair has.
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
    let of_postgres = matches!(what, What::SlowKey | What::Members);
    if of_postgres && (cli.pair.database != Database::Postgres) {
        eprintln!("{}: `slow-key` and `members` are measured on postgres", cli.pair);
        return ExitCode::from(2);
    }
    if matches!(what, What::Members) && cli.pair.broker != Broker::RabbitMq {
        eprintln!("{}: `members` share queues on rabbitmq", cli.pair);
        return ExitCode::from(2);
    }
    let mut bench = match Bench::start(cli.profile, cli.pair) {
        Ok(bench) => bench,
        Err(missing) => {
            eprintln!("{missing}\n\nThis benchmark needs both servers: run tests/servers/prepare first.");
            return ExitCode::from(2);
        }
    };
    let asked = |part: What| {
        matches!(what, What::All) || std::mem::discriminant(&part) == std::mem::discriminant(&what)
    };
    if asked(What::Throughput) {
        throughput::run(&mut bench);
    }
    if asked(What::SlowKey) && cli.pair.database == Database::Postgres {
        slow::run(&mut bench);
    }
    if asked(What::Members) && cli.pair == (Pair { database: Database::Postgres, broker: Broker::RabbitMq }) {
        members::run(&mut bench);
    }
    match bench.write(&cli.out) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{}: {error}; give another folder with --out", cli.out.display());
            ExitCode::FAILURE
        }
    }
}
