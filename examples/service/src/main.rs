//! `service`: a web service that takes orders, relays their events itself, exposes its health and
//! metrics, and stops without losing anything.
//!
//! - `POST /orders` with `{"customer": "ann", "cents": 4200}` writes an order and its event in one
//!   transaction;
//! - `GET /live` is 200 as long as the program answers, and `GET /ready` while its database does
//!   too: for probes;
//! - `GET /health` is 200 while the relay works, 503 with the reasons otherwise: for alarms, never
//!   as a probe;
//! - `GET /metrics` is for Prometheus.
//!
//! `cargo run -p service -- --listen 127.0.0.1:8080 --database orders.db`, and Ctrl-C to stop it.

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
use outbox::backend::Received;
use outbox::prelude::*;
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tokio::time::{Instant, timeout};

use web::Service;

/// Takes orders over HTTP.
#[derive(Parser)]
struct Args {
    /// Address to listen on; port 0 picks a free one
    #[arg(long, default_value = "127.0.0.1:8080")]
    listen: SocketAddr,
    /// The database file, created if missing
    #[arg(long, value_name = "FILE", default_value = "orders.db")]
    database: PathBuf,
    /// Maximum seconds for a stop, in total; anything unsent by then is sent after the next start
    #[arg(long, value_name = "S", default_value_t = 20)]
    stop_within: u32,
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
    // Before the relay starts: earlier counts would be lost.
    let metrics = PrometheusBuilder::new().install_recorder()?;
    let store = SqliteStore::open(&args.database).await?;
    store.migrate().await?;
    web::create_table(store.pool()).await?;
    let transport = MemoryTransport::new(); // in production, a broker's
    // Also before the relay starts: this transport keeps nothing for consumers that have not
    // subscribed yet.
    let mails = transport.subscribe(Subscription::new("mail".parse()?, ["orders".parse()?])).await?;
    let mut mail = tokio::spawn(send_mails(mails));
    let relay = Relay::builder(store.clone(), transport).start().await?;
    let service = Arc::new(Service::new(store, relay, metrics));

    let stop = stop_signal()?;
    let listener = TcpListener::bind(args.listen).await?;
    say(format_args!("listening on http://{}", listener.local_addr()?));
    let (no_more, stopping) = oneshot::channel::<()>();
    let server = axum::serve(listener, web::router(Arc::clone(&service)));
    let server = server.with_graceful_shutdown(async { _ = stopping.await }).into_future();
    let mut server = tokio::spawn(server);
    // ANCHOR: stop
    // On request, or because a part has ended without which the service does only half its work.
    let ended = tokio::select! {
        () = stop => None,
        why = &mut mail => Some(why.unwrap_or_else(|error| error.to_string())),
    };
    // One deadline for everything, below the grace period after which the supervisor kills the
    // process.
    let within = Duration::from_secs(args.stop_within.into());
    let deadline = Instant::now() + within;
    // First stop taking requests: those in progress finish, but a client that stops reading can't
    // take all the time.
    _ = no_more.send(());
    if timeout(within / 2, &mut server).await.is_err() {
        server.abort();
    }
    // Then the relay: it finishes what is in flight. Messages that it has not read are in the
    // database. They are sent after the next start, or by another relay immediately.
    let drained = service.stop(deadline.saturating_duration_since(Instant::now())).await;
    // The receiver last: messages in flight are confirmed only after it received them.
    mail.abort();
    // ANCHOR_END: stop
    say(format_args!(
        "{}",
        if drained {
            "drained"
        } else {
            "not drained in time; what is in flight is sent again after the next start"
        }
    ));
    match ended {
        None => Ok(()),
        Some(why) => Err(format!("no more mails could be sent: {why}").into()),
    }
}

/// Completes at Ctrl-C, or when the supervisor asks the process to stop. Listens from the call on,
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

/// Another part of the program, which receives orders. It ends on a permanent error, and returns
/// it.
async fn send_mails(mails: Box<dyn Deliveries>) -> String {
    loop {
        let deliveries = match mails.next().await {
            Ok(Received::Deliveries(deliveries)) => deliveries,
            Ok(Received::Ended) => return "the subscription has ended".to_owned(),
            Ok(_) => continue,
            // The broker is unreachable, and will be back.
            Err(error) if error.is_retryable() => {
                tokio::time::sleep(Duration::from_millis(200)).await;
                continue;
            }
            Err(error) => return error.to_string(),
        };
        for delivery in deliveries {
            match delivery.message {
                Ok(message) => say(format_args!(
                    "mail {}: {}",
                    message.event_type,
                    String::from_utf8_lossy(&message.payload)
                )),
                // Any program can send anything to a broker: that must not stop all other mails.
                Err(junk) => eprintln!("service: skipped: {junk}"),
            }
            // If this fails, the broker redelivers the message.
            if let Err(error) = mails.acknowledge(&[delivery.tag]).await {
                eprintln!("service: {error}");
            }
        }
    }
}

/// Prints a line immediately. A missing reader is no reason to stop.
fn say(line: std::fmt::Arguments<'_>) {
    let mut out = io::stdout().lock();
    let _ = writeln!(out, "{line}").and_then(|()| out.flush());
}
