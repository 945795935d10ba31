//! Fetching: who owns what, then rows, then which of their keys are failing.
//!
//! Three reads, in this order, each at least as new as the one before:
//!
//! - *Leases first.* Rows that were read before a bucket was acquired could be old: its last owner
//!   may have parked some of them since.
//! - *Failing keys last.* A row is given as one to be published only if its key has no state
//!   *after* the row was read. What was parked of the key until then has been delivered or buried
//!   by then, for a state is closed when nothing is parked. Read before the rows, a key could begin
//!   to fail in between: its first message parked, and those behind it read as if nothing were. A
//!   key that begins to fail behind the rows costs a flag on rows that are parked already, and
//!   parking passes over those.

use std::collections::BTreeSet;

use mongodb::ClientSession;
use mongodb::bson::{Bson, Document, doc};
use outbox_contract::backend::{BucketSet, FetchRequest, Fetched, FetchedRow, Position, Scope};
use outbox_contract::{KeyId, MessageId};
use uuid::Uuid;

use crate::database::Database;
use crate::error::Failed;
use crate::lease;
use crate::row::{Raw, has_name, ids};

/// The most rows of one answer of the server, which also ends at 16 MiB: what is read ahead of the
/// bound of bytes.
const MAX_AHEAD: u32 = 1_000;

/// The most failing keys of a route that are read whole; where there are more, only those of the
/// rows are.
const MAX_KEYS: i64 = 1_000;

pub(crate) async fn fetch(database: &Database, request: &FetchRequest) -> Result<Fetched, Failed> {
    let mut session = database.session().await?;
    let held = lease::held(database, &mut session, &request.route, request.relay, &request.buckets).await?;
    let lapsed = held != request.buckets;
    if held.is_empty() {
        return Ok(Fetched::new(Vec::new(), false, Position::START, lapsed));
    }
    let (rows, full) = rows(database, &mut session, request, &held).await?;
    let keys: BTreeSet<KeyId> =
        rows.iter().filter(|(_, muted)| !muted).map(|(row, _)| row.key_id()).collect();
    let failing = failing(database, &mut session, request.route.as_str(), &keys).await?;
    // Who asks for marks next is told of these rows too.
    database.note(&session);
    let rows = rows.into_iter().map(|(row, muted)| {
        if muted {
            return FetchedRow::Muted(row.position());
        }
        let is_failing = failing.contains(&row.key_id());
        let waiting = row.waiting();
        match row.message() {
            // An invalid row becomes a dead letter even if its key is failing: parked, it could
            // never be sent.
            Err(not) => FetchedRow::Malformed(not.waiting, not.reason),
            Ok(_) if is_failing => FetchedRow::Failing(waiting),
            Ok(stored) => FetchedRow::Message(stored),
        }
    });
    Ok(Fetched::new(rows.collect(), full, Position::START, lapsed))
}

/// Rows in order, each with whether it is muted; and whether a limit cut it short.
async fn rows(
    database: &Database,
    session: &mut ClientSession,
    request: &FetchRequest,
    held: &BucketSet,
) -> Result<(Vec<(Raw, bool)>, bool), Failed> {
    let limit = request.limit.max(1);
    let messages = database.messages();
    let mut filter = filter(request, held);
    let (mut rows, mut bytes) = (Vec::new(), 0_usize);
    loop {
        let mut find = messages
            .find(filter.clone())
            .sort(doc! { "_id": 1 })
            .limit(i64::try_from(limit).unwrap_or(i64::MAX))
            .batch_size(u32::try_from(limit).unwrap_or(u32::MAX).min(MAX_AHEAD));
        if !request.muted.is_empty() {
            find = find.projection(without_content_of(&request.muted));
        }
        let mut cursor = find.session(&mut *session).await?;
        let (mut read, mut last) = (0, None);
        while let Some(row) = cursor.next(session).await {
            let row = row?;
            read += 1;
            if !has_name(&row) {
                database.unnamed.tell(&row);
                last = row.get("_id").cloned();
                continue;
            }
            last = None;
            let row = Raw::new(row);
            let muted = is_muted(&request.muted, &row);
            if !muted {
                bytes = bytes.saturating_add(row.size());
            }
            if bytes > request.bytes && !rows.is_empty() {
                return Ok((rows, true));
            }
            rows.push((row, muted));
            if rows.len() >= limit {
                return Ok((rows, true));
            }
        }
        if read < limit {
            return Ok((rows, false));
        }
        // A row that was passed over is no row to go on behind, and others may stand behind it.
        let (Some(last), Ok(range)) = (last, filter.get_document_mut("_id")) else { return Ok((rows, true)) };
        range.remove("$gte");
        range.insert("$gt", last);
    }
}

fn filter(request: &FetchRequest, held: &BucketSet) -> Document {
    let mut filter = doc! { "_id": range(request.route.as_str(), request.after, request.until) };
    if *held != BucketSet::ALL {
        filter.insert("bucket", doc! { "$in": numbers(held) });
    }
    if !request.except.is_empty() {
        let except: Vec<i64> = request.except.iter().map(|position| position.0).collect();
        filter.insert("_id.position", doc! { "$nin": except });
    }
    match &request.scope {
        Scope::Everything => {}
        Scope::Topic(topic) => {
            filter.insert("topic", topic.as_str());
        }
        Scope::Key(key) => filter.extend(of_key(key)),
    }
    filter
}

/// The names of rows of a route behind a position and up to another one. A name that has no id
/// stands before all that have the same position.
pub(crate) fn range(route: &str, after: Position, until: Position) -> Document {
    let end = match until.0.checked_add(1) {
        Some(end) => Bson::Int64(end),
        None => Bson::MaxKey,
    };
    doc! {
        "$gte": { "route": route, "position": after.0.saturating_add(1) },
        "$lt": { "route": route, "position": end },
    }
}

/// Rows of a key in the hot collection: those that have it, or the one that has no key and this id.
fn of_key(key: &KeyId) -> Document {
    let (topic, name) = (key.topic.as_str(), key.key.as_str());
    match keyless(name) {
        Some(ids) => doc! {
            "topic": topic,
            "$or": [{ "key": name }, { "key": Bson::Null, "_id.id": { "$in": ids } }],
        },
        None => doc! { "topic": topic, "key": name },
    }
}

/// The id that a key is the text of, where it is one of a message without a key: in each way in
/// which it may be written.
pub(crate) fn keyless(key: &str) -> Option<Vec<Bson>> {
    let id = Uuid::try_parse(key).ok()?;
    (id.as_hyphenated().to_string() == key).then(|| ids(MessageId::from_uuid(id)).collect())
}

/// Buckets as the collections have them.
pub(crate) fn numbers(buckets: &BucketSet) -> Vec<i32> {
    buckets.iter().map(|bucket| i32::from(bucket.0)).collect()
}

fn is_muted(muted: &[Scope], row: &Raw) -> bool {
    if muted.is_empty() {
        return false;
    }
    let key = row.key_id();
    muted.iter().any(|scope| scope.covers(&key))
}

/// Every field, but the content only of rows that are not muted. Texts are literals: one that
/// starts with a dollar names no field.
fn without_content_of(muted: &[Scope]) -> Document {
    let mut is_muted: Vec<Bson> = Vec::new();
    let topics: Vec<&str> = muted
        .iter()
        .filter_map(|scope| if let Scope::Topic(topic) = scope { Some(topic.as_str()) } else { None })
        .collect();
    is_muted.push(doc! { "$in": ["$topic", { "$literal": topics }] }.into());
    for scope in muted {
        match scope {
            Scope::Everything => is_muted.push(true.into()),
            Scope::Topic(_) => {}
            Scope::Key(key) => {
                let is_topic = doc! { "$eq": ["$topic", { "$literal": key.topic.as_str() }] };
                let is_key = doc! { "$eq": ["$key", { "$literal": key.key.as_str() }] };
                is_muted.push(doc! { "$and": [is_topic.clone(), is_key] }.into());
                if let Some(ids) = keyless(key.key.as_str()) {
                    is_muted.push(doc! { "$and": [is_topic, { "$in": ["$_id.id", ids] }] }.into());
                }
            }
        }
    }
    let unless_muted = |field: &str| doc! { "$cond": [{ "$or": is_muted.clone() }, "$$REMOVE", field] };
    doc! {
        "bucket": 1, "stripe": 1, "number": 1, "topic": 1, "key": 1, "event_type": 1, "schema_version": 1, "content_type": 1,
        "occurred_at": 1, "appended_at": 1,
        "headers": unless_muted("$headers"),
        "payload": unless_muted("$payload"),
    }
}

/// Returns those of these keys that have a state: failing or held.
async fn failing(
    database: &Database,
    session: &mut ClientSession,
    route: &str,
    keys: &BTreeSet<KeyId>,
) -> Result<BTreeSet<KeyId>, Failed> {
    if keys.is_empty() {
        return Ok(BTreeSet::new());
    }
    let of_route = doc! { "route": route };
    let all = key_names(database, session, of_route, MAX_KEYS + 1).await?;
    if i64::try_from(all.len()).unwrap_or(i64::MAX) <= MAX_KEYS {
        return Ok(all);
    }
    let names: Vec<Document> = keys.iter().map(|key| crate::keys::name(route, key)).collect();
    key_names(database, session, doc! { "_id": { "$in": names } }, 0).await
}

/// Names of keys that have a state; `limit` 0: all.
pub(crate) async fn key_names(
    database: &Database,
    session: &mut ClientSession,
    filter: Document,
    limit: i64,
) -> Result<BTreeSet<KeyId>, Failed> {
    let mut cursor = database
        .keys()
        .find(filter)
        .projection(doc! { "topic": 1, "key": 1 })
        .limit(limit)
        .session(&mut *session)
        .await?;
    let mut names = BTreeSet::new();
    while let Some(row) = cursor.next(session).await {
        let row = row?;
        if let (Ok(topic), Ok(key)) = (row.get_str("topic"), row.get_str("key")) {
            names.extend(KeyId::new(topic, key));
        }
    }
    Ok(names)
}
