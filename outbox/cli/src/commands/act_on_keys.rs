//! `hold`, `release`, `skip`, `discard`: operations on keys.

use outbox::admin::{FailingKey, Filter, KeyOperation, Steered};
use outbox::{Admin, KeyId, Route, StoreErrorKind};
use serde_json::{Value, json};

use crate::app::{App, count};
use crate::args::SelectKeys;
use crate::commands::{act, keys};
use crate::exit::{Exit, Failed, Outcome};
use crate::open::Database;
use crate::out::{Row, remark};

/// Selects keys, shows or confirms them, and does it.
pub(crate) async fn run(app: &App, operation: KeyOperation, select: &SelectKeys) -> Outcome {
    let name = key_of(select)?;
    if name.is_none() {
        select.filter.names_route(operation.name())?;
    }
    let store = app.store().await?;
    let chosen = match &name {
        Some(key) => vec![one(&*store, operation, select, key).await?],
        None => {
            let most = select.filter.limit.unwrap_or(usize::MAX);
            let keys = keys::select(&*store, &select.filter, most).await?;
            keys.into_iter().map(Chosen::Failing).collect()
        }
    };
    if select.dry_run {
        return dry_run(app, operation, &chosen);
    }
    confirm(app, operation, &chosen)?;
    carry_out(app, &*app.acting(&*store), operation, &chosen).await
}

/// A key, with what is known of it.
enum Chosen {
    Failing(FailingKey),
    /// A key that flows, to be held.
    Flowing(Route, KeyId),
}

impl Chosen {
    fn place(&self) -> (&Route, &KeyId) {
        match self {
            Self::Failing(key) => (&key.route, &key.key),
            Self::Flowing(route, key) => (route, key),
        }
    }

    fn parked(&self) -> u64 {
        match self {
            Self::Failing(key) => key.parked,
            Self::Flowing(..) => 0,
        }
    }

    fn row(&self) -> Row {
        match self {
            Self::Failing(key) => keys::row(key),
            Self::Flowing(route, key) => {
                let mut cells =
                    vec![route.to_string(), key.topic.to_string(), key.key.to_string(), "flows".to_owned()];
                cells.resize(9, "-".to_owned());
                let json = json!({
                    "route": route.as_str(), "topic": key.topic.as_str(), "key": key.key.as_str(), "state": "flows",
                });
                Row { json, cells }
            }
        }
    }
}

fn key_of(select: &SelectKeys) -> Result<Option<KeyId>, Failed> {
    match select.name.as_slice() {
        [topic, key] => Ok(Some(KeyId::new(topic, key)?)),
        _ => Ok(None),
    }
}

/// Finds a key by its name.
async fn one(
    store: &dyn Database,
    operation: KeyOperation,
    select: &SelectKeys,
    key: &KeyId,
) -> Result<Chosen, Failed> {
    let mut found = failing(store, select.filter.route.as_ref(), key).await?;
    if found.len() > 1 {
        let routes: Vec<&str> = found.iter().map(|key| key.route.as_str()).collect();
        return Err(Failed::usage(format!(
            "the key {key} waits on several routes ({}); name one with --route",
            routes.join(", ")
        )));
    }
    match found.pop() {
        Some(failing) => Ok(Chosen::Failing(failing)),
        None if operation == KeyOperation::Hold => {
            Ok(Chosen::Flowing(select.filter.route.clone().unwrap_or_default(), key.clone()))
        }
        None => Err(Failed::error(format!(
            "the key {key} is neither failing nor held{}; `outbox explain` shows why it waits, if it does",
            select.filter.route.as_ref().map(|route| format!(" on the route {route}")).unwrap_or_default()
        ))),
    }
}

/// Returns the entries of a key, one for each route on which it fails.
pub(crate) async fn failing(
    store: &dyn Database,
    route: Option<&Route>,
    key: &KeyId,
) -> Result<Vec<FailingKey>, Failed> {
    let filter = Filter {
        route: route.cloned(),
        topic: Some(key.topic.clone()),
        key: Some(key.key.clone()),
        ..Filter::all_routes()
    };
    Ok(store.failing_keys(&filter).await?)
}

const fn done(operation: KeyOperation) -> &'static str {
    match operation {
        KeyOperation::Hold => "held",
        KeyOperation::Release => "released",
        KeyOperation::Skip => "skipped",
        KeyOperation::Discard => "discarded",
    }
}

fn dry_run(app: &App, operation: KeyOperation, chosen: &[Chosen]) -> Outcome {
    let rows: Vec<Row> = chosen.iter().map(Chosen::row).collect();
    app.out.list(
        &["route", "topic", "key", "state", "since", "attempts", "waiting", "next try", "error"],
        &rows,
    )?;
    let messages: u64 = chosen.iter().map(Chosen::parked).sum();
    let what = match operation {
        KeyOperation::Hold | KeyOperation::Release => {
            format!("{} would be {}", count(chosen.len() as u64, "key"), done(operation))
        }
        KeyOperation::Skip => {
            format!("the first message of {} would become a dead letter", count(chosen.len() as u64, "key"))
        }
        KeyOperation::Discard => format!("{} would become dead letters", count(messages, "message")),
    };
    remark(&format!("dry run: {what}"));
    Ok(Exit::Done)
}

fn confirm(app: &App, operation: KeyOperation, chosen: &[Chosen]) -> Result<(), Failed> {
    let keys = count(chosen.len() as u64, "key");
    match operation {
        _ if chosen.is_empty() => Ok(()),
        KeyOperation::Hold | KeyOperation::Release => Ok(()),
        KeyOperation::Skip => app.confirm(&format!("make the first message of {keys} a dead letter")),
        KeyOperation::Discard => {
            let messages: u64 = chosen.iter().map(Chosen::parked).sum();
            app.confirm(&format!("make {} of {keys} dead letters", count(messages, "message")))
        }
    }
}

async fn carry_out(app: &App, store: &dyn Admin, operation: KeyOperation, chosen: &[Chosen]) -> Outcome {
    let bar = act::bar(chosen.len() as u64);
    let (mut keys, mut buried, mut gone, mut skipped) = (0_u64, 0, 0_u64, Value::Null);
    for key in chosen {
        let (route, id) = key.place();
        match store.steer(route, id, operation).await {
            Ok(Steered { buried: now, skipped: first, .. }) => {
                keys += 1;
                buried += now;
                skipped = first.map_or(Value::Null, |id| json!(id.to_string()));
            }
            // Another operator, or the relay, was faster.
            Err(error) if error.kind() == StoreErrorKind::Invalid => gone += 1,
            Err(error) => return Err(error.into()),
        }
        bar.inc(1);
    }
    bar.finish_and_clear();
    let mut text = format!("{} {}", done(operation), count(keys, "key"));
    if matches!(operation, KeyOperation::Skip | KeyOperation::Discard) {
        text.push_str(&format!("; dead letters of them: {buried}"));
    }
    if gone > 0 {
        text.push_str(&format!(
            "; {} no longer waited: another operator or a relay was faster",
            count(gone, "key")
        ));
    }
    let mut json =
        json!({ "operation": operation.name(), "keys": keys, "gone": gone, "dead_lettered": buried });
    if chosen.len() == 1 && operation == KeyOperation::Skip {
        json["skipped"] = skipped;
    }
    app.out.say(&text, &json)?;
    Ok(Exit::of_findings(gone > 0))
}
