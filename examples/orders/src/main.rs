//! `orders`: a shop writes the steps of its orders, a relay sends them, and a ledger in another
//! database books each once.
//!
//! Each line of input becomes one transaction: the order and its event, both or neither. Relays
//! send the events. The ledger's inbox books each in its own transaction, together with the record
//! that it did. At the end the program compares the two databases, and reports what was lost,
//! repeated or out of order. `--kill-relay` kills relays at random moments meanwhile, without a
//! drain.
//!
//! By default it needs nothing installed: two SQLite databases, and an in-process transport.
//! `--store` and `--transport` run the same on servers; only the code in `databases` differs.

mod args;
mod databases;
mod generate;
mod input;
mod ledger;
mod progress;
mod relays;
mod report;
mod shop;

use std::io::{self, Write};
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Instant;

use clap::Parser;
use examples_shared::transports::{self, Failed};
use outbox::prelude::*;
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::prelude::*;

use args::Args;
use databases::Database;
use input::{InputError, Step};
use ledger::Ledger;
use progress::{Progress, Seen};
use relays::Relays;
use report::Report;
use shop::Shop;

#[tokio::main]
async fn main() -> ExitCode {
    log_as_told(std::env::var("RUST_LOG").ok().as_deref());
    match report(&Args::parse()).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("orders: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Logs to standard error what `RUST_LOG` selects; only errors if it is unset or invalid.
fn log_as_told(targets: Option<&str>) {
    let targets = targets.and_then(|told| told.parse().ok());
    let targets: Targets = targets.unwrap_or_else(|| Targets::new().with_default(LevelFilter::ERROR));
    let layer = tracing_subscriber::fmt::layer().with_writer(io::stderr).with_filter(targets);
    tracing_subscriber::registry().with(layer).init();
}

/// Runs everything and prints the report.
async fn report(args: &Args) -> Result<(), Failed> {
    let report = match &args.store {
        None => in_files(args).await?,
        Some(url) => match url.split(':').next().unwrap_or_default() {
            #[cfg(feature = "postgres")]
            "postgres" | "postgresql" => in_one(args, PostgresStore::connect(url).await?).await?,
            #[cfg(feature = "mysql")]
            "mysql" | "mariadb" => in_one(args, outbox::mysql::MySqlStore::connect(url).await?).await?,
            #[cfg(feature = "mongodb")]
            "mongodb" => in_one(args, outbox::mongodb::MongoDbStore::connect(url).await?).await?,
            "sqlite" => in_one(args, SqliteStore::connect(url).await?).await?,
            scheme => return Err(transports::unknown(scheme, &["postgres", "mysql", "mongodb"])),
        },
    };
    match write!(io::stdout(), "{report}") {
        // The reader may close the pipe when it has seen enough.
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => return Err(error.into()),
        _ => {}
    }
    if report.is_right() { Ok(()) } else { Err("the promises were broken; see above".into()) }
}

/// Runs with a file each for shop and ledger.
async fn in_files(args: &Args) -> Result<Report, Failed> {
    let temporary = tempfile::tempdir()?;
    let folder = match &args.dir {
        Some(dir) => {
            let made = std::fs::create_dir_all(dir);
            made.map_err(|error| format!("could not make the folder {}: {error}", dir.display()))?;
            dir
        }
        None => temporary.path(),
    };
    let file = async |name: &str| SqliteStore::open(Path::new(folder).join(name)).await;
    run(args, file("shop.db").await?, file("ledger.db").await?).await
}

/// Runs with one database for shop and ledger, with tables of their own.
async fn in_one<D: Database>(args: &Args, store: D) -> Result<Report, Failed> {
    run(args, store.clone(), store).await
}

/// Runs the shop, the relays and the ledger until everything committed is booked.
async fn run<D: Database>(args: &Args, of_shop: D, of_ledger: D) -> Result<Report, Failed> {
    let steps = args.steps()?;
    let seen = Arc::new(Seen::default());
    let store: Arc<dyn Store> = Arc::new(of_shop.clone());
    let mut shop = Shop::open(of_shop, Arc::clone(&seen)).await?;
    let transport = transports::open(&args.transport, &[("orders", "ledger")])?;
    let ledger = Ledger::open(of_ledger, Arc::clone(&transport), Arc::clone(&seen)).await?;
    let progress = Progress::start(Arc::clone(&seen), args.expected());
    let began = Instant::now();

    let relays = || Relays::start(Arc::clone(&store), Arc::clone(&transport), args.kill_relay, args.seed);
    let (relays, drained_from) = if args.backlog_first {
        write_all(&mut shop, steps, &progress).await?;
        (relays().await?, Instant::now())
    } else {
        let relays = relays().await?;
        write_all(&mut shop, steps, &progress).await?;
        (relays, began)
    };
    ledger.wait_for(shop.committed_in_all()).await?;
    let booked_after = drained_from.elapsed();
    let relayed = relays.stop().await;
    let booked = ledger.close().await?;
    progress.end();
    Report::new(&shop, relayed, &booked, &seen, began.elapsed(), booked_after).await
}

/// Writes every step; reports an invalid line, and continues with the rest.
async fn write_all<D: Database>(
    shop: &mut Shop<D>,
    steps: Box<dyn Iterator<Item = Result<Step, InputError>> + Send>,
    progress: &Progress,
) -> Result<(), Failed> {
    for step in steps {
        match step {
            Ok(step) => shop.write(&step).await?,
            Err(error @ InputError::NotAnOrder { .. }) => {
                shop.refused += 1;
                progress.say(&error.to_string());
            }
            Err(error @ InputError::Unreadable { .. }) => return Err(error.into()),
        }
    }
    Ok(())
}
