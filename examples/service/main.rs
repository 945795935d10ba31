//! `service`: a web service that takes orders, relays their events itself, shows its health and metrics, and stops without losing anything.
//!
//! - `POST /orders` with `{"customer": "ann", "cents": 4200}` writes an order and its event in one transaction;
//! - `GET /health` is 200 while the relay does its work, 503 with the reasons when not;
//! - `GET /metrics` is what Prometheus reads.
//!
//! `cargo run --example service -- --listen 127.0.0.1:8080 --database orders.db`, and Ctrl-C to stop it.

mod web;

use std::error::Error;
use std::io::{self, Write};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use clap::Parser;
use metrics_exporter_prometheus::PrometheusBuilder;
use outbox::prelude::*;
use outbox::subscription::Received;
use tokio::net::TcpListener;

use web::Service;

/// How long stopping may take; what is not sent by then is sent after the next start.
const STOP_WITHIN: Duration = Duration::from_secs(20);

/// Takes orders over HTTP.
#[derive(Parser)]
struct Args {
    /// Where to listen; port 0 is any free one
    #[arg(long, default_value = "127.0.0.1:8080")]
    listen: SocketAddr,
    /// The database, made if it is not there
    #[arg(long, value_name = "FILE", default_value = "orders.db")]
    database: PathBuf,
}

#[tokio::main]
async fn main() -> ExitCode {
    match serve(Args::parse()).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("service: {error}");
            ExitCode::FAILURE
        }
    }
}

async fn serve(args: Args) -> Result<(), Box<dyn Error>> {
    // Before the relay starts: what is counted earlier is counted by nobody.
    let metrics = PrometheusBuilder::new().install_recorder()?;
    let store = SqliteStore::open(&args.database).await?;
    store.migrate().await?;
    web::create_table(store.pool()).await?;
    let transport = MemoryTransport::new(); // a broker's in earnest
    // Before the relay starts, too: this transport keeps nothing for consumers that are not there yet.
    let mails = transport.subscribe(Subscription::new("mail".parse()?, ["orders".parse()?])).await?;
    let mail = tokio::spawn(send_mails(mails));
    let relay = Relay::builder(store.clone(), transport).start().await?;
    let service = Arc::new(Service::new(Mediator::new(Outbox::new(store)), relay, metrics));

    let stop = stop_signal()?;
    let listener = TcpListener::bind(args.listen).await?;
    say(format_args!("listening on http://{}", listener.local_addr()?));
    // ANCHOR: stop
    // First no more requests: those that are being answered are finished. Then the relay: it finishes what is in flight. What it has not read
    // yet is in the database, and is sent after the next start, or by another relay at once.
    axum::serve(listener, web::router(Arc::clone(&service))).with_graceful_shutdown(stop).await?;
    let drained = service.stop(STOP_WITHIN).await;
    // ANCHOR_END: stop
    mail.abort();
    say(format_args!(
        "{}",
        if drained {
            "drained"
        } else {
            "not drained in time; what is in flight is sent again after the next start"
        }
    ));
    Ok(())
}

/// Completes at Ctrl-C, or when whoever runs the service asks it to stop. Listens from the call on, and not only once it is waited for.
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

/// Another part of the program, which hears of orders.
async fn send_mails(mails: Box<dyn Deliveries>) -> Result<(), Box<dyn Error + Send + Sync>> {
    loop {
        match mails.next().await? {
            Received::Deliveries(deliveries) => {
                for delivery in deliveries {
                    let message = delivery.message?;
                    say(format_args!(
                        "mail {}: {}",
                        message.event_type,
                        String::from_utf8_lossy(&message.payload)
                    ));
                    mails.acknowledge(&[delivery.tag]).await?;
                }
            }
            Received::Ended => return Ok(()),
            _ => {}
        }
    }
}

/// Prints a line at once. Nobody reading is no reason to stop.
fn say(line: std::fmt::Arguments<'_>) {
    let mut out = io::stdout().lock();
    let _ = writeln!(out, "{line}").and_then(|()| out.flush());
}
