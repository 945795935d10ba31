//! `orders`: a shop writes what happens to its orders, a relay sends it, a ledger in another database books it once.
//!
//! Each line of input becomes one SQLite transaction: the order and its event, both or neither. Relays send the events to an in-process
//! transport; the ledger receives them and books each in its own transaction, together with the note that it has. At the end the two
//! databases are compared, and a checker says what was lost, repeated or out of order. With `--kill-relay` relays are ended at random
//! moments meanwhile, without a drain.

mod args;
mod generate;
mod input;
mod ledger;
mod progress;
mod relays;
mod report;
mod shop;

use std::error::Error;
use std::io::{self, Write};
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Instant;

use clap::Parser;
use outbox::prelude::*;

use args::Args;
use input::{InputError, Step};
use ledger::Ledger;
use progress::{Progress, Seen};
use relays::Relays;
use report::Report;
use shop::Shop;

#[tokio::main]
async fn main() -> ExitCode {
    tracing_subscriber::fmt()
        .with_env_filter(
            tracing_subscriber::EnvFilter::try_from_default_env().unwrap_or_else(|_| "error".into()),
        )
        .with_writer(io::stderr)
        .init();
    match report(&Args::parse()).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("orders: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Runs it all and prints what came of it.
async fn report(args: &Args) -> Result<(), Box<dyn Error>> {
    let folder = tempfile::tempdir()?;
    let report = match &args.dir {
        Some(dir) => {
            let made = std::fs::create_dir_all(dir);
            made.map_err(|error| format!("could not make the folder {}: {error}", dir.display()))?;
            run(args, dir).await?
        }
        None => run(args, folder.path()).await?,
    };
    match write!(io::stdout(), "{report}") {
        // Whoever reads may have seen enough.
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => return Err(error.into()),
        _ => {}
    }
    if report.is_right() { Ok(()) } else { Err("the promises were broken; see above".into()) }
}

/// Runs the shop, the relays and the ledger until all that was committed is booked.
async fn run(args: &Args, folder: &Path) -> Result<Report, Box<dyn Error>> {
    let steps = args.steps()?;
    let seen = Arc::new(Seen::default());
    let mut shop = Shop::open(&folder.join("shop.db"), Arc::clone(&seen)).await?;
    let transport = MemoryTransport::new();
    let ledger = Ledger::open(&folder.join("ledger.db"), &transport, Arc::clone(&seen)).await?;
    let progress = Progress::start(Arc::clone(&seen), args.expected());
    let began = Instant::now();

    let store = shop.store();
    let relays = || Relays::start(store.clone(), transport.clone(), args.kill_relay, args.seed);
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
    Ok(Report::new(&shop, relayed, &booked, &seen, began.elapsed(), booked_after).await?)
}

/// Writes every step; a line that is none is reported, and the rest goes on.
async fn write_all(
    shop: &mut Shop,
    steps: Box<dyn Iterator<Item = Result<Step, InputError>> + Send>,
    progress: &Progress,
) -> Result<(), Box<dyn Error>> {
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
