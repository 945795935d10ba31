//! Browsing: what operators look at, by a filter and page by page.

use std::collections::HashMap;

use mongodb::bson::{Bson, Document, doc};
use mongodb::{ClientSession, Collection};
use outbox_contract::admin::{FailingKey, Filter, MAX_BYTES_PER_CALL};
use outbox_contract::backend::{Death, Listed, View};
use outbox_contract::{KeyId, MessageId, Route, Timestamp};

use crate::database::Database;
use crate::error::Failed;
use crate::figures;
use crate::keys::{failure, number, read_state, text};
use crate::row::{self, Raw, message_id};

/// A filter as the collections take it: `key` is the field of what messages are ordered by, `at`
/// that of the instant.
pub(crate) fn matching(filter: &Filter, key: &str, at: &str) -> Document {
    let mut matching = Document::new();
    if let Some(route) = &filter.route {
        matching.insert("route", route.as_str());
    }
    if let Some(topic) = &filter.topic {
        matching.insert("topic", topic.as_str());
    }
    if let Some(name) = &filter.key {
        matching.insert(key, name.as_str());
    }
    if let Some(event_type) = &filter.event_type {
        matching.insert("event_type", event_type.as_str());
    }
    if let Some(ids) = &filter.ids {
        let ids: Vec<Bson> = ids.iter().flat_map(|id| row::ids(*id)).collect();
        matching.insert("id", doc! { "$in": ids });
    }
    let mut instants = Document::new();
    if let Some(since) = filter.since {
        instants.insert("$gte", since.as_micros());
    }
    if let Some(before) = filter.before {
        instants.insert("$lt", before.as_micros());
    }
    if !instants.is_empty() {
        matching.insert(at, instants);
    }
    matching
}

/// Dead letters in the order in which they died.
pub(crate) fn by_death() -> Document {
    doc! { "died_at": 1, "step": 1, "position": 1 }
}

/// Delivered messages in the order in which they were settled.
pub(crate) fn by_delivery() -> Document {
    doc! { "delivered_at": 1, "position": 1 }
}

/// The same order from its end, if the filter says so.
fn towards(filter: &Filter, mut sort: Document) -> Document {
    if filter.newest {
        sort.iter_mut().for_each(|(_, way)| *way = Bson::Int32(-1));
    }
    sort
}

/// Documents of one page, with these fields alone (of none: all). It may be short because its rows
/// are large, so a short one need not be the last. The server takes a limit of 0 for none.
pub(crate) async fn page(
    session: &mut ClientSession,
    collection: Collection<Document>,
    matching: Document,
    sort: Document,
    filter: &Filter,
    offset: usize,
    fields: Document,
) -> Result<Vec<Document>, Failed> {
    let limit = i64::try_from(filter.limit()).unwrap_or(i64::MAX);
    if limit == 0 {
        return Ok(Vec::new());
    }
    let mut cursor = collection
        .find(matching)
        .sort(sort)
        .skip(u64::try_from(offset).unwrap_or(u64::MAX))
        .limit(limit)
        .projection(fields)
        .session(&mut *session)
        .await?;
    let (mut rows, mut bytes) = (Vec::new(), 0_usize);
    while let Some(row) = cursor.next(session).await {
        let row = row?;
        bytes = bytes.saturating_add(row::content_bytes(&row));
        if bytes > MAX_BYTES_PER_CALL && !rows.is_empty() {
            break;
        }
        rows.push(row);
    }
    Ok(rows)
}

fn instant(row: &Document, field: &str) -> Timestamp {
    Timestamp::from_micros(number(row, field).unwrap_or_default())
}

fn route(row: &Document) -> Route {
    let name = row.get_str("route").unwrap_or_default();
    Route::new(name).or_else(|_| Route::new(name.replace(char::is_control, "?"))).unwrap_or_default()
}

pub(crate) async fn failing_keys(database: &Database, filter: &Filter) -> Result<Vec<FailingKey>, Failed> {
    let mut session = database.session().await?;
    let mut wanted = matching(&Filter { ids: None, event_type: None, ..filter.clone() }, "key", "since");
    if filter.ids.is_some() {
        // Keys behind which one of these messages is parked.
        let of_ids = Filter { ids: filter.ids.clone(), ..Filter::all_routes() };
        let parked = database.parked();
        let key = doc! { "route": 1, "topic": 1, "order_key": 1 };
        let of_ids_alone = matching(&of_ids, "", "");
        let rows = page(&mut session, parked, of_ids_alone, doc! { "_id": 1 }, &of_ids, 0, key).await?;
        let names: Vec<Document> = rows.iter().filter_map(key_of_parked).collect();
        wanted.insert("_id", doc! { "$in": names });
    }
    let by_age = towards(filter, doc! { "since": 1, "route": 1, "topic": 1, "key": 1 });
    let rows = page(&mut session, database.keys(), wanted, by_age, filter, filter.offset, doc! {}).await?;
    let behind = behind(database, &mut session, &rows).await?;
    let read = |row: &Document| {
        let key = KeyId::new(row.get_str("topic").ok()?, row.get_str("key").ok()?).ok()?;
        let route = route(row);
        let (parked, first) = behind.get(&(route.clone(), key.clone())).copied().unwrap_or_default();
        let mut failing = read_state(row).failing_key(route, key);
        (failing.parked, failing.first) = (parked, first);
        Some(failing)
    };
    Ok(rows.iter().filter_map(read).collect())
}

fn key_of_parked(row: &Document) -> Option<Document> {
    Some(doc! {
        "route": row.get_str("route").ok()?,
        "topic": row.get_str("topic").ok()?,
        "key": row.get_str("order_key").ok()?,
    })
}

type Behind = HashMap<(Route, KeyId), (u64, Option<MessageId>)>;

/// Returns the number of messages parked behind keys, and the first of each.
async fn behind(
    database: &Database,
    session: &mut ClientSession,
    keys: &[Document],
) -> Result<Behind, Failed> {
    let mut behind = HashMap::new();
    for key in keys {
        let (Ok(route), Ok(topic), Ok(name)) =
            (key.get_str("route"), key.get_str("topic"), key.get_str("key"))
        else {
            continue;
        };
        let filter = doc! { "route": route, "topic": topic, "order_key": name };
        let parked = database.parked();
        let count = parked.count_documents(filter.clone()).session(&mut *session).await?;
        let first = parked.find_one(filter).sort(doc! { "number": 1 }).projection(doc! { "id": 1 });
        let first = first.session(&mut *session).await?;
        if let (Ok(route), Ok(key)) = (Route::new(route), KeyId::new(topic, name)) {
            behind.insert((route, key), (count, first.and_then(|first| message_id(first.get("id")))));
        }
    }
    Ok(behind)
}

/// One page of a view.
pub(crate) async fn listed(database: &Database, view: View, filter: &Filter) -> Result<Vec<Listed>, Failed> {
    let (collection, key, at, sort) = match view {
        View::Waiting => return figures::waiting(database, filter).await,
        View::Parked => {
            let by_key = doc! { "route": 1, "topic": 1, "order_key": 1, "number": 1 };
            (database.parked(), "order_key", "parked_at", by_key)
        }
        View::DeadLetters => (database.dead(), "order_key", "died_at", by_death()),
        View::History => (database.history(), "order_key", "delivered_at", by_delivery()),
        View::Scheduled => (database.scheduled(), "key", "due_at", doc! { "due_at": 1, "turn": 1 }),
    };
    let mut session = database.session().await?;
    let wanted = matching(filter, key, at);
    let sort = towards(filter, sort);
    let rows = page(&mut session, collection, wanted, sort, filter, filter.offset, doc! {}).await?;
    let read = |row: Document| {
        let (route, at) = (route(&row), instant(&row, at));
        let death = (view == View::DeadLetters).then(|| death(&row));
        let listed = Listed::new(route, Raw::new(row).presentable(), at);
        match death {
            Some(death) => listed.with_death(death),
            None => listed,
        }
    };
    Ok(rows.into_iter().map(read).collect())
}

fn death(row: &Document) -> Death {
    let attempts = number(row, "attempts").and_then(|attempts| u32::try_from(attempts).ok());
    Death::new(
        text(row, "reason").unwrap_or_default(),
        attempts.unwrap_or_default(),
        failure(row, "first_failure"),
        failure(row, "last_failure"),
    )
}
