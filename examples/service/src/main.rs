//! `service`: a web service that takes orders and sends a mail for each, once. It relays its events
//! itself, exposes its health and metrics, and stops without losing anything.
//!
//! - `POST /orders` with `{"customer": "ann", "cents": 4200}` writes an order and its event in one
//!   transaction;
//! - `GET /live` is 200 as long as the program answers, and `GET /ready` while its database does
//!   too: for probes;
//! - `GET /health` is 200 while messages flow, 503 with the reasons otherwise: for alarms, never as
//!   a probe;
//! - `GET /metrics` is for Prometheus.
//!
//! `cargo run -p service` needs nothing installed: SQLite, and an in-process transport. On
//! PostgreSQL and Kafka, which `docker compose -f examples/service/compose.yaml up` starts:
//!
//! ```text
//! cargo run -p service --features postgres,kafka -- \
//!     --store postgres://outbox:outbox@localhost/orders --transport kafka://localhost:9092
//! ```
//!
//! Ctrl-C stops it.

mod config;
mod database;
mod mails;
mod web;

use std::error::Error;
use std::io::{self, Write};
use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;
use examples_shared::transports;
use metrics_exporter_prometheus::PrometheusBuilder;
use outbox::prelude::*;
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tokio::time::{Instant, timeout};

use config::{Args, Config};
use database::Database;
use web::App;

type Failed = Box<dyn Error + Send + Sync>;

#[tokio::main]
async fn main() -> ExitCode {
    tracing_subscriber::fmt()
        .with_writer(io::stderr)
        .with_max_level(tracing_subscriber::filter::LevelFilter::WARN)
        .init();
    match choose_database(Args::parse()).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("service: {error}");
            ExitCode::FAILURE
        }
    }
}

async fn choose_database(args: Args) -> Result<(), Failed> {
    match args.store.split(':').next().unwrap_or_default() {
        "sqlite" => serve(SqliteStore::connect(&args.store).await?, &args).await,
        #[cfg(feature = "postgres")]
        "postgres" | "postgresql" => serve(PostgresStore::connect(&args.store).await?, &args).await,
        scheme => Err(transports::unknown(scheme, &["postgres"])),
    }
}

async fn serve<D: Database>(store: D, args: &Args) -> Result<(), Failed> {
    // Before the service starts: earlier counts would be lost.
    let metrics = PrometheusBuilder::new().install_recorder()?;
    let Config { relay, inbox } = args.config()?;
    store.migrate().await?;
    store.create_tables().await?;
    let transport = transports::open(&args.transport, &[("orders", "mail")])?;
    // ANCHOR: start
    let service = Service::builder("orders", store.clone(), transport)
        .relay(|builder| builder.config(relay))
        .inbox("mail", |builder| builder.config(inbox).on(mails::send_mail::<D>))
        .start()
        .await?;
    // ANCHOR_END: start
    let app = App::new(store, service.clone(), metrics);

    let stop = stop_signal()?;
    let listener = TcpListener::bind(args.listen).await?;
    say(format_args!("listening on http://{}", listener.local_addr()?));
    let (no_more, stopping) = oneshot::channel::<()>();
    let server = axum::serve(listener, web::router(app));
    let server = server.with_graceful_shutdown(async { _ = stopping.await }).into_future();
    let mut server = tokio::spawn(server);
    // ANCHOR: stop
    stop.await;
    // One deadline for everything, below the grace period after which the process manager kills it.
    let within = Duration::from_secs(args.stop_within.into());
    let deadline = Instant::now() + within;
    // First stop taking requests: those in progress finish, but a client that stops reading can't
    // take all the time.
    _ = no_more.send(());
    if timeout(within / 2, &mut server).await.is_err() {
        server.abort();
    }
    // Then handlers and relay finish what is in flight. Messages that were not read are in the
    // database. They are sent after the next start, or by another relay immediately.
    service.shutdown(deadline.saturating_duration_since(Instant::now())).await?;
    // ANCHOR_END: stop
    say(format_args!("drained"));
    Ok(())
}

/// Completes at Ctrl-C, or when the process manager asks it to stop. Listens from the call on,
/// not only from the first poll.
#[cfg(unix)]
fn stop_signal() -> io::Result<impl Future<Output = ()>> {
    use tokio::signal::unix::{SignalKind, signal};
    let (mut interrupt, mut terminate) = (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
    Ok(async move {
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
        }
    })
}

#[cfg(not(unix))]
fn stop_signal() -> io::Result<impl Future<Output = ()>> {
    let mut interrupt = tokio::signal::windows::ctrl_c()?;
    Ok(async move { _ = interrupt.recv().await })
}

/// Prints a line immediately. A missing reader is no reason to stop.
fn say(line: std::fmt::Arguments<'_>) {
    let mut out = io::stdout().lock();
    let _ = writeln!(out, "{line}").and_then(|()| out.flush());
}
