//! `verify --every`: canary messages again and again, as a series of results and as metrics.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use axum::Router;
use axum::routing::get;
use metrics::{Unit, counter, describe_counter, describe_histogram, histogram};
use metrics_exporter_prometheus::PrometheusHandle;
use serde_json::json;

use crate::app::App;
use crate::args::VerifyArgs;
use crate::commands::canary::{self, Canary};
use crate::commands::http::{self, Http};
use crate::commands::signals::Signals;
use crate::exit::{Exit, Failed, Outcome};
use crate::out::remark;

/// Counters of canary messages, with their meanings.
const COUNTERS: [(&str, &str); 5] = [
    ("outbox_canary_sent_total", "Canary messages that were appended."),
    ("outbox_canary_missing_total", "Canary messages that did not arrive in time."),
    ("outbox_canary_repeated_total", "Canary messages that arrived more than once."),
    ("outbox_canary_out_of_order_total", "Canary messages that arrived after a later one of their key."),
    ("outbox_canary_failed_total", "Rounds that failed: the database or the broker returned an error."),
];

/// Time from append to arrival.
pub(crate) const LATENCY: &str = "outbox_canary_latency_seconds";

/// Sends canary messages until a signal. The exit code says whether any round found something.
pub(crate) async fn run(app: &App, args: &VerifyArgs, every: Duration) -> Outcome {
    let mut signals = Signals::listen()?;
    let http = match &args.http {
        Some(address) => Some(Http::bind(address).await?),
        None => None,
    };
    let metrics = http::collect(http.is_some(), None)?;
    describe();
    if let Some((http, metrics)) = http.zip(metrics) {
        let address = http.address()?;
        http.serve(router(metrics));
        app.out.say(
            &format!("metrics: http://{address}/metrics"),
            &json!({ "event": "started", "http": address.to_string() }),
        )?;
    }
    let found = AtomicBool::new(false);
    let rounds = async {
        loop {
            if round(app, args).await? != Exit::Done {
                found.store(true, Ordering::Relaxed);
            }
            tokio::time::sleep(every).await;
        }
    };
    tokio::select! {
        ended = rounds => ended,
        () = signals.next() => Ok(Exit::of_findings(found.load(Ordering::Relaxed))),
    }
}

/// Runs one round. An error of the database or the broker is a result: the next round may succeed.
async fn round(app: &App, args: &VerifyArgs) -> Outcome {
    match Canary::run(app, &args.canary).await {
        Ok(run) => {
            count(&run);
            canary::report(app, &args.canary, &run)
        }
        Err(Failed::Error(error)) => {
            counter!("outbox_canary_failed_total").increment(1);
            if app.out.is_json() {
                app.out.object(&json!({ "failed": error }))?;
            } else {
                remark(&format!("failed: {error}"));
            }
            Ok(Exit::Findings)
        }
        Err(failed) => Err(failed),
    }
}

fn count(run: &Canary) {
    let figures = [run.sent, run.lost(), run.repeated, run.out_of_order];
    for ((name, _), figure) in COUNTERS.iter().zip(figures) {
        counter!(*name).increment(figure);
    }
    for latency in &run.latencies {
        histogram!(LATENCY).record(latency.as_secs_f64());
    }
}

/// Describes the metrics, and exports the counters from zero on.
fn describe() {
    for (name, help) in COUNTERS {
        describe_counter!(name, Unit::Count, help);
        counter!(name).increment(0);
    }
    describe_histogram!(LATENCY, Unit::Seconds, "Time from append to arrival of canary messages.");
}

fn router(metrics: PrometheusHandle) -> Router {
    Router::new()
        .route("/live", get(async || "alive\n"))
        .route("/metrics", get(http::page))
        .with_state(metrics)
}
