//! `dashboard`: the web page of an outbox, also beside a relay.

use std::sync::Arc;

use axum::Router;
use outbox::Store;
use outbox::relay::RelayObserver;
use outbox_dashboard::{Dashboard, Role};
use serde_json::{Value, json};

use crate::app::App;
use crate::args::DashboardArgs;
use crate::commands::http::Http;
use crate::commands::signals::Signals;
use crate::exit::{Exit, Failed, Outcome};
use crate::open::Database;
use crate::redact;

/// Address unless another one is given.
pub(crate) const ADDRESS: &str = "127.0.0.1:9464";

pub(crate) async fn run(app: &App, args: &DashboardArgs) -> Outcome {
    let mut signals = Signals::listen()?;
    let address = args.http.as_deref().or(app.settings.http.as_deref()).unwrap_or(ADDRESS);
    let http = Http::bind(address).await?;
    let starting = async { router(app, &app.store().await?, None) };
    let router = tokio::select! {
        router = starting => router?,
        () = signals.next() => return Err(Failed::Interrupted),
    };
    let address = http.address()?;
    let store = redact::url(app.settings.store()?);
    app.out.say(
        &format!("dashboard: http://{address}"),
        &json!({ "event": "started", "store": store, "http": address.to_string() }),
    )?;
    http.serve(router);
    signals.next().await;
    Ok(Exit::Done)
}

/// Returns the dashboard of the settings.
pub(crate) fn router(
    app: &App,
    store: &Arc<dyn Database>,
    relay: Option<RelayObserver>,
) -> Result<Router, Failed> {
    let settings = &app.settings;
    let store: Arc<dyn Store> = Arc::clone(store) as _;
    let mut builder = Dashboard::builder(store).access(settings.dashboard.access()?).redact(redact::hide);
    if let Some(relay) = relay {
        builder = builder.relay(relay);
    }
    if settings.dashboard.payloads_for_readers {
        builder = builder.payloads_for(Role::ReadOnly);
    }
    if let Some(title) = &settings.dashboard.title {
        builder = builder.title(title);
    }
    if let Some(path) = &settings.dashboard.base_path {
        builder = builder.base_path(path);
    }
    for origin in &settings.dashboard.origins {
        builder = builder.origin(origin);
    }
    for route in settings.routes.keys() {
        builder = builder.route(route.parse()?);
    }
    for (name, value) in shown(app) {
        builder = builder.setting(name, value);
    }
    Ok(builder.build())
}

/// Returns the settings as names and values, without secrets.
fn shown(app: &App) -> Vec<(String, String)> {
    let settings = &app.settings;
    let mut shown = Vec::new();
    let urls = [("store", settings.store.as_deref()), ("transport", settings.transport.as_deref())];
    shown.extend(urls.into_iter().filter_map(|(name, value)| Some((name.to_owned(), redact::url(value?)))));
    shown.extend(settings.routes.iter().map(|(name, value)| (format!("routes.{name}"), redact::url(value))));
    let relay = serde_json::to_value(&settings.relay).unwrap_or_default();
    flatten("relay", &relay, &mut shown);
    shown
}

fn flatten(name: &str, value: &Value, into: &mut Vec<(String, String)>) {
    match value {
        Value::Object(fields) => {
            fields.iter().for_each(|(field, value)| flatten(&format!("{name}.{field}"), value, into));
        }
        Value::Array(items) => items
            .iter()
            .enumerate()
            .for_each(|(index, item)| flatten(&format!("{name}[{index}]"), item, into)),
        Value::String(text) => into.push((name.to_owned(), text.clone())),
        Value::Null => {}
        other => into.push((name.to_owned(), other.to_string())),
    }
}
