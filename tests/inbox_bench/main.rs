//! The benchmark of inboxes from RabbitMQ to PostgreSQL: `cargo bench -p outbox-tests --bench inbox
//! -- --help`
//!
//! This process starts the servers, fills queues, and reads the operating system's figures of each
//! process. Measured work runs in a child process of its own: this program again, with a role. See
//! `role.rs`.

mod bench;
mod by_hand;
#[path = "../relay_bench/child.rs"]
#[allow(dead_code, reason = "the relay's benchmark uses the rest")]
mod child;
mod consume;
mod fill;
#[path = "../relay_bench/process.rs"]
mod process;
#[path = "../relay_bench/report.rs"]
mod report;
mod role;
mod slow;
#[path = "../relay_bench/stats.rs"]
mod stats;
mod throughput;

use std::path::PathBuf;
use std::process::ExitCode;

use bench::{Bench, Profile};
use clap::{CommandFactory, Parser, Subcommand};

/// Measures the inbox of this workspace beside a hand-written loop, from RabbitMQ to PostgreSQL.
#[derive(Parser)]
#[command(name = "inbox", after_help = HELP)]
struct Cli {
    #[command(subcommand)]
    what: Option<What>,
    /// Amount of measuring: `quick` takes minutes and gives an impression, `full` gives figures to
    /// be quoted.
    #[arg(long, global = true, value_enum, default_value_t = Profile::Quick)]
    profile: Profile,
    /// The folder for inbox.json.
    #[arg(long, global = true, default_value = "target/inbox_bench")]
    out: PathBuf,
    // Cargo passes it to each benchmark.
    #[arg(long, global = true, hide = true)]
    bench: bool,
}

const HELP: &str = "\
Servers: PostgreSQL 18 and RabbitMQ 4, started here on free ports, from the folder that tests/servers/prepare makes
(target/servers, or what OUTBOX_SERVERS_DIR names).

How to read it: what else runs on the machine moves rates by a factor of two, and CPU time per message by little. Compare
rows of one run, whose variants take turns; quote medians, with the machine. Nothing else should run meanwhile.

The loop by hand does for each message what an inbox does: begin, insert-or-ignore the id, the handler's one UPDATE if it was
new, commit, acknowledge. It knows no retries, no failing keys, no dead letters, and loses a conflict's message to a crash.
";

#[derive(Subcommand)]
enum What {
    /// Messages per second and CPU per message: direct and stored mode, one by one and in batches;
    /// the hand-written loop.
    Throughput,
    /// Latency of messages of 1,000 keys beside a key of which each message takes a second, and
    /// without it.
    SlowKey,
    /// All of these.
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
    let mut bench = match Bench::start(cli.profile) {
        Ok(bench) => bench,
        Err(missing) => {
            eprintln!("{missing}\n\nThis benchmark needs both servers: run tests/servers/prepare first.");
            return ExitCode::from(2);
        }
    };
    if matches!(what, What::All | What::Throughput) {
        throughput::run(&mut bench);
    }
    if matches!(what, What::All | What::SlowKey) {
        slow::run(&mut bench);
    }
    match bench.write(&cli.out) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{}: {error}; give another folder with --out", cli.out.display());
            ExitCode::FAILURE
        }
    }
}
