//! `relay`: a relay as a program of its own.

use std::time::Duration;

use outbox::relay::{Backlog, RelayBuilder, RelayHandle};
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
use crate::otlp::Otlp;
use crate::out::remark;
use crate::redact;
use crate::settings::Settings;

/// Pause between looks at what is left.
const LOOK: Duration = Duration::from_millis(100);

/// Takes the settings of the arguments over those of the file.
pub(crate) fn configure(settings: &mut Settings, args: &RelayArgs) {
    let or = |argument: &Option<String>, setting: &mut Option<String>| argument.clone().or(setting.take());
    settings.relay.label = args.label.clone().unwrap_or_else(|| settings.relay.label.clone());
    settings.relay.source = or(&args.source, &mut settings.relay.source);
    settings.http = or(&args.http, &mut settings.http);
    settings.otlp = or(&args.otlp, &mut settings.otlp);
    settings.history = args.history.or(settings.history);
    settings.stop_within = args.stop_within.unwrap_or(settings.stop_within);
    settings.dashboard.enabled |= args.dashboard;
}

/// Runs a relay, and exports what is left at its end.
pub(crate) async fn run(app: &App, args: &RelayArgs, otlp: Option<Otlp>) -> Outcome {
    let outcome = relay(app, args, otlp.as_ref()).await;
    if let Some(otlp) = otlp {
        otlp.shutdown().await;
    }
    outcome
}

async fn relay(app: &App, args: &RelayArgs, otlp: Option<&Otlp>) -> Outcome {
    let mut signals = Signals::listen()?;
    let default = app.settings.dashboard.enabled.then_some(dashboard::ADDRESS);
    let http = match app.settings.http.as_deref().or(default) {
        Some(address) => Some(Http::bind(address).await?),
        None => None,
    };
    let metrics = http::collect(http.is_some(), otlp)?;
    let starting = async {
        let store = app.store().await?;
        let relay = builder(app, &store)?.start().await?;
        Ok::<_, Failed>((store, relay))
    };
    let (store, relay) = tokio::select! {
        started = starting => started?,
        () = signals.next() => return Err(Failed::Interrupted),
    };
    let mut started = json!({ "event": "started", "relay": relay.id().to_string(), "store": redact::url(app.settings.store()?) });
    let mut text = format!("relay {} started", relay.id());
    if let Some((http, metrics)) = http.zip(metrics) {
        let address = http.address()?;
        started["http"] = json!(address.to_string());
        let mut router = http::router(relay.observer().clone(), metrics);
        if app.settings.dashboard.enabled {
            text.push_str(&format!("; dashboard, health and metrics: http://{address}"));
            router = router.merge(dashboard::router(app, &store, Some(relay.observer().clone()))?);
        } else {
            text.push_str(&format!("; health and metrics: http://{address}"));
        }
        if !address.ip().is_loopback() {
            tracing::warn!(%address, "health and metrics are open to the network, and need no login");
        }
        http.serve(router);
    }
    app.out.say(&text, &started)?;
    let observer = relay.observer().clone();
    let ended = observer.ended();
    if args.once {
        return once(app, &*store, relay, args.within, &mut signals, ended).await;
    }
    until_end(app, relay, &mut signals, ended).await
}

/// Runs until a signal, or until a supervisor of the relay has ended: then the program ends with an
/// error, so that whatever supervises it starts it again.
async fn until_end(
    app: &App,
    relay: RelayHandle,
    signals: &mut Signals,
    ended: impl Future<Output = String>,
) -> Outcome {
    tokio::select! {
        () = signals.next() => stop(app, relay, signals).await,
        part = ended => broken(app, relay, signals, &part).await,
    }
}

/// Drains what still runs of a relay of which a supervisor has ended.
async fn broken(app: &App, relay: RelayHandle, signals: &mut Signals, part: &str) -> Outcome {
    tracing::error!(part, "a supervisor of the relay has ended by a bug; stopping the rest");
    tokio::select! {
        _ = relay.stop(app.settings.stop_within) => {}
        () = signals.next() => {}
    }
    Err(Failed::error(format!(
        "the relay has ended: its supervisor of {part} ended by a bug, and nothing but a new start of this \
         program restarts it; nothing is lost: what was in flight is sent again. The log says what came \
         before; please report it"
    )))
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
    remark("stopping: finishing the messages in flight; a second signal ends the relay at once");
    let (observer, began) = (relay.observer().clone(), Instant::now());
    tokio::select! {
        drained = relay.stop(within) => {
            let delivered = observer.stats().delivered;
            if !drained {
                return Err(Failed::error(format!(
                    "not drained: gave up after {:.1?} (limit {within:?}), because the database or the broker \
                     did not answer; what was in flight is sent again by the next relay; nothing is lost",
                    began.elapsed()
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
    ended: impl Future<Output = String>,
) -> Outcome {
    let mut ended = std::pin::pin!(ended);
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
            () = signals.next() => {
                stop(app, relay, signals).await?;
                return Err(Failed::Interrupted);
            }
            part = &mut ended => return broken(app, relay, signals, &part).await,
        }
    }
    let pending: u64 = left.iter().map(|(_, backlog)| backlog.pending).sum();
    let parked: u64 = left.iter().map(|(_, backlog)| backlog.parked).sum();
    if pending > 0 {
        relay.health().reasons.iter().for_each(|reason| remark(&reason.text));
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

#[cfg(test)]
mod tests {
    use std::future::ready;
    use std::process::ExitCode;

    use clap::Parser;
    use outbox::Message;
    use outbox::memory::{MemoryStore, MemoryTransport};
    use tokio::time::timeout;

    use super::*;
    use crate::args::Cli;
    use crate::exit;

    /// Longer than a busy machine takes.
    const MINUTE: Duration = Duration::from_secs(60);

    async fn relay() -> RelayHandle {
        Relay::builder(MemoryStore::new(), MemoryTransport::new()).start().await.unwrap()
    }

    /// Whatever supervises the program starts it again only if it ends, and with an error.
    #[tokio::test]
    async fn the_program_fails_when_a_supervisor_of_its_relay_ends() {
        let app = App::new(&Cli::try_parse_from(["outbox", "relay"]).unwrap().global).unwrap();
        let mut signals = Signals::listen().unwrap();
        let part = || ready("route default".to_owned());
        let ended = until_end(&app, relay().await, &mut signals, part());
        let ended = timeout(MINUTE, ended).await.expect("the end is noticed");
        let Err(Failed::Error(error)) = &ended else { panic!("{ended:?}") };
        assert!(error.contains("supervisor of route default"), "{error}");
        assert_eq!(format!("{:?}", exit::code(&ended)), format!("{:?}", ExitCode::from(1)));
    }

    #[tokio::test]
    async fn a_run_to_the_end_fails_when_a_supervisor_of_its_relay_ends() {
        let app = App::new(&Cli::try_parse_from(["outbox", "relay"]).unwrap().global).unwrap();
        let mut signals = Signals::listen().unwrap();
        let store = MemoryStore::new();
        store.append_all(&[Message::new("orders", "order.placed").unwrap().into()]).await.unwrap();
        // The relay is one of another store, so what waits stays.
        let hour = Duration::from_secs(3_600);
        let part = ready("maintenance".to_owned());
        let ended = once(&app, &store, relay().await, hour, &mut signals, part);
        let ended = timeout(MINUTE, ended).await.expect("the end is noticed");
        assert!(matches!(&ended, Err(Failed::Error(error)) if error.contains("maintenance")), "{ended:?}");
    }
}
