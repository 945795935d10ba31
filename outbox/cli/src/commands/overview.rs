//! `relays`, `routes`, `topics`: who works on what, and what waits where.

use std::collections::BTreeMap;

use outbox::admin::{BucketOwner, Ownership, Paused, RelayStatus, RouteStatus, TopicFigures};
use outbox::{Admin, Route};
use serde_json::{Value, json};

use crate::app::App;
use crate::args::{OfRoute, RelaysArgs};
use crate::exit::{Exit, Failed, Outcome};
use crate::message::instant;
use crate::open::Database;
use crate::out::Row;
use crate::time;

pub(crate) async fn relays(app: &App, args: &RelaysArgs) -> Outcome {
    let store = app.store().await?;
    let routes = match &args.route {
        Some(route) => vec![route.clone()],
        None => store.routes().await?.into_iter().map(|status| status.route).collect(),
    };
    let mut rows = Vec::new();
    for route in routes {
        let ownership = store.ownership(&route).await?;
        if args.buckets {
            rows.extend(ownership.buckets.iter().map(|bucket| bucket_row(&route, &ownership, bucket)));
        } else {
            rows.extend(ownership.relays.iter().map(|relay| relay_row(&route, relay)));
        }
    }
    let head: &[&str] = if args.buckets {
        &["route", "bucket", "owner", "relay", "epoch", "since", "until", "low water"]
    } else {
        &["relay", "route", "label", "state", "buckets", "until", "broker"]
    };
    app.out.list(head, &rows)?;
    Ok(Exit::Done)
}

/// Returns a relay for programs.
pub(crate) fn relay_object(relay: &RelayStatus) -> Value {
    json!({
        "relay": relay.relay.to_string(),
        "label": relay.label,
        "live": relay.live,
        "buckets": relay.buckets,
        "expires_at": instant(relay.expires_at),
        "lease_seconds": relay.lasts.as_secs_f64(),
        "unavailable_since": relay.unavailable_since.map_or(Value::Null, instant),
        "fingerprint": relay.fingerprint,
    })
}

fn relay_row(route: &Route, relay: &RelayStatus) -> Row {
    let mut object = relay_object(relay);
    object["route"] = json!(route.as_str());
    // An inbox's transport is its handlers: it gives way while they are too old.
    let is_inbox = route.as_str().starts_with("inbox/");
    let (well, ill) =
        if is_inbox { ("-", "gives way or unavailable since") } else { ("reachable", "unreachable since") };
    let broker = match relay.unavailable_since {
        Some(since) => format!("{ill} {}", time::at(since)),
        None if relay.live => well.to_owned(),
        None => "-".to_owned(),
    };
    let cells = vec![
        relay.relay.to_string(),
        route.to_string(),
        relay.label.clone(),
        if relay.live { "live" } else { "gone" }.to_owned(),
        relay.buckets.to_string(),
        time::at(relay.expires_at),
        broker,
    ];
    Row { json: object, cells }
}

/// Returns the owner of a bucket for programs.
pub(crate) fn owner_object(ownership: &Ownership, bucket: &BucketOwner) -> Value {
    let label = bucket.owner.and_then(|relay| ownership.relay(relay)).map(|relay| relay.label.as_str());
    json!({
        "bucket": bucket.bucket.0,
        "owner": bucket.owner.map(|relay| relay.to_string()),
        "label": label,
        "epoch": bucket.epoch.0,
        "since": bucket.since.map_or(Value::Null, instant),
        "until": bucket.until.map_or(Value::Null, instant),
        "yielding": bucket.yielding,
        "low_water": bucket.low_water.0,
    })
}

fn bucket_row(route: &Route, ownership: &Ownership, bucket: &BucketOwner) -> Row {
    let mut object = owner_object(ownership, bucket);
    object["route"] = json!(route.as_str());
    let at = |at: Option<outbox::Timestamp>| at.map_or_else(|| "-".to_owned(), time::at);
    let relay = bucket.owner.and_then(|relay| ownership.relay(relay));
    let cells = vec![
        route.to_string(),
        bucket.bucket.to_string(),
        relay.map_or_else(|| "none".to_owned(), |relay| relay.label.clone()),
        bucket.owner.map_or_else(|| "-".to_owned(), |relay| relay.to_string()),
        bucket.epoch.to_string(),
        at(bucket.since),
        at(bucket.until),
        bucket.low_water.to_string(),
    ];
    Row { json: object, cells }
}

pub(crate) async fn routes(app: &App) -> Outcome {
    let store = app.store().await?;
    let row = |status: &RouteStatus| Row {
        json: json!({
            "route": status.route.as_str(),
            "relays": status.relays,
            "paused": paused_object(&status.paused),
        }),
        cells: vec![status.route.to_string(), status.relays.to_string(), paused(&status.paused)],
    };
    let rows: Vec<Row> = store.routes().await?.iter().map(row).collect();
    app.out.list(&["route", "relays", "paused"], &rows)?;
    Ok(Exit::Done)
}

/// Returns pauses for programs.
pub(crate) fn paused_object(paused: &Paused) -> Value {
    let topics: Vec<&str> = paused.topics.iter().map(|topic| topic.as_str()).collect();
    json!({ "route": paused.route, "topics": topics })
}

/// Returns pauses for people.
pub(crate) fn paused(paused: &Paused) -> String {
    let topics: Vec<&str> = paused.topics.iter().map(|topic| topic.as_str()).collect();
    match (paused.route, topics.is_empty()) {
        (true, _) => "all".to_owned(),
        (false, true) => "-".to_owned(),
        (false, false) => format!("topics: {}", topics.join(", ")),
    }
}

pub(crate) async fn topics(app: &App, args: &OfRoute) -> Outcome {
    let store = app.store().await?;
    let rows = topic_rows(&*store, &args.route).await?;
    app.out.list(&["topic", "waiting", "oldest", "parked", "retrying keys", "held keys", "dead"], &rows)?;
    Ok(Exit::Done)
}

/// Returns the figures of a route's topics as rows.
pub(crate) async fn topic_rows(store: &dyn Database, route: &Route) -> Result<Vec<Row>, Failed> {
    let row = |figures: &TopicFigures| {
        let more = if figures.is_at_least { "+" } else { "" };
        let json = json!({
            "route": route.as_str(),
            "topic": figures.topic.as_str(),
            "waiting": figures.waiting,
            "parked": figures.parked,
            "oldest_age_seconds": figures.oldest_age.map(|age| age.as_secs_f64()),
            "retrying_keys": figures.retrying_keys,
            "held_keys": figures.held_keys,
            "dead_letters": figures.dead,
            "is_at_least": figures.is_at_least,
        });
        let cells = vec![
            figures.topic.to_string(),
            format!("{}{more}", figures.waiting),
            figures.oldest_age.map_or_else(|| "-".to_owned(), time::age),
            figures.parked.to_string(),
            figures.retrying_keys.to_string(),
            figures.held_keys.to_string(),
            figures.dead.to_string(),
        ];
        Row { json, cells }
    };
    Ok(store.topics(route).await?.iter().map(row).collect())
}

/// Returns the names of the live relays of a route, each once, with their number of buckets.
pub(crate) fn live(ownership: &Ownership) -> String {
    let mut labels: BTreeMap<&str, usize> = BTreeMap::new();
    for relay in ownership.relays.iter().filter(|relay| relay.live) {
        *labels.entry(&relay.label).or_default() += relay.buckets;
    }
    let labels: Vec<String> = labels.iter().map(|(label, buckets)| format!("{label} ({buckets})")).collect();
    if labels.is_empty() { "none".to_owned() } else { labels.join(", ") }
}
