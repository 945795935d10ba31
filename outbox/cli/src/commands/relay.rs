//! `relay`: a relay as a program of its own.

use std::time::Duration;

use outbox::backend::Backlog;
use outbox::relay::{RelayBuilder, RelayHandle};
use outbox::{Relay, Route, Store};
use serde_json::json;
use tokio::time::{Instant, sleep};

use crate::app::{App, count};
use crate::args::RelayArgs;
use crate::commands::dashboard;
use crate::commands::http::{self, Http};
use crate::commands::signals::Signals;
use crate::exit::{Exit, Failed, Outcome};
use crate::open::{self, Database};
use crate::out::remark;
use crate::redact;

/// Pause between looks at what is left.
const LOOK: Duration = Duration::from_millis(100);

pub(crate) async fn run(mut app: App, args: RelayArgs) -> Outcome {
    let settings = &mut app.settings;
    settings.relay.label = args.label.unwrap_or_else(|| settings.relay.label.clone());
    settings.relay.source = args.source.or_else(|| settings.relay.source.take());
    settings.history = args.history.or(settings.history);
    settings.stop_within = args.stop_within.unwrap_or(settings.stop_within);
    let mut signals = Signals::listen()?;
    settings.dashboard.enabled |= args.dashboard;
    let default = settings.dashboard.enabled.then_some(dashboard::ADDRESS);
    let http = match args.http.as_deref().or(settings.http.as_deref()).or(default) {
        Some(address) => Some((Http::bind(address).await?, http::collect()?)),
        None => None,
    };
    let starting = async {
        let store = app.store().await?;
        let relay = builder(&app, &store)?.start().await?;
        Ok::<_, Failed>((store, relay))
    };
    let (store, relay) = tokio::select! {
        started = starting => started?,
        () = signals.next() => return Err(Failed::Interrupted),
    };
    let mut started = json!({ "event": "started", "relay": relay.id().to_string(), "store": redact::url(app.settings.store()?) });
    let mut text = format!("relay {} started", relay.id());
    if let Some((http, metrics)) = http {
        let address = http.address()?;
        started["http"] = json!(address.to_string());
        let mut router = http::router(relay.observer(), metrics);
        if app.settings.dashboard.enabled {
            text.push_str(&format!("; dashboard, health and metrics: http://{address}"));
            router = router.merge(dashboard::router(&app, &store, Some(relay.observer()))?);
        } else {
            text.push_str(&format!("; health and metrics: http://{address}"));
        }
        if !address.ip().is_loopback() {
            tracing::warn!(%address, "health and metrics are open to the network, and need no login");
        }
        http.serve(router);
    }
    app.out.say(&text, &started)?;
    if args.once {
        return once(&app, &*store, relay, args.within, &mut signals).await;
    }
    signals.next().await;
    stop(&app, relay, &mut signals).await
}

/// Returns the builder of a relay of all routes of the settings.
pub(crate) fn builder(app: &App, store: &std::sync::Arc<dyn Database>) -> Result<RelayBuilder, Failed> {
    let settings = &app.settings;
    let store: std::sync::Arc<dyn Store> = std::sync::Arc::clone(store) as _;
    let mut builder = Relay::builder(store, app.transport()?).config(settings.relay.clone());
    for (route, url) in &settings.routes {
        builder = builder.route(route, open::transport(settings, url, None)?);
    }
    Ok(builder)
}

/// Drains and stops. A second signal ends it at once.
async fn stop(app: &App, relay: RelayHandle, signals: &mut Signals) -> Outcome {
    let within = app.settings.stop_within;
    remark("stopping: what is in flight is finished; a second signal ends the relay at once");
    let stats = relay.observer();
    tokio::select! {
        drained = relay.stop(within) => {
            let delivered = stats.stats().delivered;
            if !drained {
                return Err(Failed::error(format!(
                    "not drained within {within:?}: what was in flight is sent again by the next relay; \
                     nothing is lost"
                )));
            }
            let text = format!("drained and stopped; {} delivered", count(delivered, "message"));
            app.out.say(&text, &json!({ "event": "stopped", "drained": true, "delivered": delivered }))?;
            Ok(Exit::Done)
        }
        () = signals.next() => Err(Failed::Interrupted),
    }
}

/// Runs until nothing is left to send.
async fn once(
    app: &App,
    store: &dyn Database,
    relay: RelayHandle,
    within: Duration,
    signals: &mut Signals,
) -> Outcome {
    let routes: Vec<Route> = std::iter::once(Ok(Route::default()))
        .chain(app.settings.routes.keys().map(|route| route.parse()))
        .collect::<Result<_, _>>()?;
    let deadline = Instant::now() + within;
    let mut left;
    loop {
        left = leftovers(store, &routes).await?;
        let pending: u64 = left.iter().map(|(_, backlog)| backlog.pending).sum();
        if (pending == 0 && relay.stats().in_flight == 0) || Instant::now() >= deadline {
            break;
        }
        tokio::select! {
            () = sleep(LOOK) => {}
            () = signals.next() => return stop(app, relay, signals).await,
        }
    }
    let pending: u64 = left.iter().map(|(_, backlog)| backlog.pending).sum();
    let parked: u64 = left.iter().map(|(_, backlog)| backlog.parked).sum();
    if pending > 0 {
        relay.health().reasons.iter().for_each(|reason| remark(reason));
    }
    stop(app, relay, signals).await?;
    if pending + parked > 0 {
        remark(&format!(
            "left: {} pending, {parked} behind failing or held keys; see `outbox status` and `outbox keys list`",
            pending
        ));
    }
    Ok(Exit::of_findings(pending + parked > 0))
}

async fn leftovers(store: &dyn Database, routes: &[Route]) -> Result<Vec<(Route, Backlog)>, Failed> {
    let mut left = Vec::with_capacity(routes.len());
    for route in routes {
        left.push((route.clone(), store.backlog(route).await?));
    }
    Ok(left)
}
