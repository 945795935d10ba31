//! `audit`: who did what, to which messages.

use outbox::Admin;
use outbox::admin::{AuditEntry, Filter};
use serde_json::{Value, json};

use crate::app::App;
use crate::args::AuditArgs;
use crate::exit::{Exit, Outcome};
use crate::message::instant;
use crate::out::{Row, remark};
use crate::time;

pub(crate) async fn run(app: &App, args: &AuditArgs) -> Outcome {
    let store = app.store().await?;
    let time = args.filter.between(&*store).await?;
    let page = |offset: usize, limit: usize| Filter {
        ids: args.message.map(|id| vec![id]),
        newest: !args.oldest,
        ..args.filter.page(time, offset, limit)
    };
    let (mut rows, most) = (Vec::new(), args.filter.shown());
    while rows.len() < most {
        let entries = store.audit(&page(args.filter.offset + rows.len(), most - rows.len())).await?;
        if entries.is_empty() {
            break;
        }
        rows.extend(entries.iter().map(row));
    }
    app.out.list(&["at", "actor", "operation", "route", "topic", "key", "messages", "detail"], &rows)?;
    let next = args.filter.offset + rows.len();
    if rows.len() == most && most > 0 && !store.audit(&page(next, 1)).await?.is_empty() {
        remark(&format!("there are more: continue with --offset {next}"));
    }
    Ok(Exit::Done)
}

fn row(entry: &AuditEntry) -> Row {
    let name = |name: Option<&str>| name.map_or_else(|| "-".to_owned(), str::to_owned);
    let (route, topic) =
        (entry.route.as_ref().map(|it| it.as_str()), entry.topic.as_ref().map(|it| it.as_str()));
    let key = entry.key.as_ref().map(|key| key.as_str());
    // Any program can write to the table.
    let detail: Value = serde_json::from_str(&entry.detail).unwrap_or_else(|_| json!(entry.detail));
    let ids: Vec<String> = entry.ids.iter().map(ToString::to_string).collect();
    let json = json!({
        "at": instant(entry.at),
        "actor": entry.actor.as_str(),
        "operation": entry.operation,
        "route": route,
        "topic": topic,
        "key": key,
        "detail": detail,
        "messages": entry.affected,
        "ids": ids,
    });
    let shown = if entry.detail == "{}" { "-".to_owned() } else { entry.detail.clone() };
    let cells = vec![
        time::at(entry.at),
        entry.actor.to_string(),
        entry.operation.clone(),
        name(route),
        name(topic),
        name(key),
        entry.affected.to_string(),
        shown,
    ];
    Row { json, cells }
}
