//! `keys`: failing and held keys.

use outbox::admin::FailingKey;
use serde_json::{Value, json};

use crate::app::App;
use crate::args::{FilterArgs, KeysView};
use crate::commands::explain;
use crate::exit::{Exit, Failed, Outcome};
use crate::message::{failure, instant};
use crate::open::Database;
use crate::out::{Row, remark};
use crate::time;

pub(crate) async fn run(app: &App, view: KeysView) -> Outcome {
    match view {
        KeysView::List(filter) => list(app, &filter).await,
        KeysView::Show(key) => explain::run(app, &key).await,
    }
}

async fn list(app: &App, filter: &FilterArgs) -> Outcome {
    let store = app.store().await?;
    let keys = select(&*store, filter, filter.shown()).await?;
    let rows: Vec<Row> = keys.iter().map(row).collect();
    app.out.list(
        &["route", "topic", "key", "state", "since", "attempts", "waiting", "next try", "error"],
        &rows,
    )?;
    if keys.len() == filter.shown() && !keys.is_empty() {
        remark(&format!("there may be more: continue with --offset {}", filter.offset + keys.len()));
    }
    Ok(Exit::Done)
}

/// Returns all failing and held keys that a filter selects, at most so many.
pub(crate) async fn select(
    store: &dyn Database,
    filter: &FilterArgs,
    most: usize,
) -> Result<Vec<FailingKey>, Failed> {
    let (mut keys, time) = (Vec::new(), filter.between(store).await?);
    while keys.len() < most {
        let filter = filter.page(time, filter.offset + keys.len(), most - keys.len());
        let page = store.failing_keys(&filter).await?;
        if page.is_empty() {
            break;
        }
        keys.extend(page);
    }
    Ok(keys)
}

pub(crate) fn row(key: &FailingKey) -> Row {
    let cells = vec![
        key.route.to_string(),
        key.key.topic.to_string(),
        key.key.key.to_string(),
        state(key).to_owned(),
        time::at(key.since),
        key.attempts.to_string(),
        key.parked.to_string(),
        key.next_attempt_at.map_or_else(|| "-".to_owned(), time::at),
        key.last_failure.as_ref().map_or_else(|| "-".to_owned(), ToString::to_string),
    ];
    Row { json: object(key), cells }
}

/// Returns the state of a key in a word.
pub(crate) const fn state(key: &FailingKey) -> &'static str {
    if key.held { "held" } else { "retrying" }
}

/// Returns a key for programs.
pub(crate) fn object(key: &FailingKey) -> Value {
    json!({
        "route": key.route.as_str(),
        "topic": key.key.topic.as_str(),
        "key": key.key.key.as_str(),
        "state": state(key),
        "since": instant(key.since),
        "attempts": key.attempts,
        "parked": key.parked,
        "first_message": key.first.map(|id| id.to_string()),
        "next_attempt_at": key.next_attempt_at.map(instant),
        "first_failure": failure(key.first_failure.as_ref()),
        "last_failure": failure(key.last_failure.as_ref()),
    })
}
