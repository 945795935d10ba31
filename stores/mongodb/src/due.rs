//! Failing keys that are due, with what is parked behind them.
//!
//! Keys first, then what is parked. What changes in between makes another version of the key, or
//! adds to what is parked: a step from the older version is refused, and a key is closed only where
//! nothing is parked when it is.

use std::sync::Arc;
use std::time::Duration;

use mongodb::ClientSession;
use mongodb::bson::{Document, doc};
use outbox_contract::KeyId;
use outbox_contract::backend::{Bucket, Due, DueKey, DueRequest, Scope, Stored};

use crate::database::Database;
use crate::error::Failed;
use crate::fetch::numbers;
use crate::keys::{name, number, read_state};
use crate::lease;
use crate::row::Raw;

/// The most parked messages of one answer of the server, which also ends at 16 MiB.
const MAX_AHEAD: u32 = 250;

pub(crate) async fn due(database: &Database, request: &DueRequest) -> Result<Due, Failed> {
    let mut session = database.session().await?;
    let held = lease::held(database, &mut session, &request.route, request.relay, &request.buckets).await?;
    if held.is_empty() || request.muted.contains(&Scope::Everything) {
        return Ok(Due::default());
    }
    let route = request.route.as_str();
    let mut filter = doc! { "route": route, "held": false, "bucket": { "$in": numbers(&held) } };
    let mut left_out: Vec<Document> = request.except.iter().map(|key| name(route, key)).collect();
    let mut topics = Vec::new();
    for scope in &request.muted {
        match scope {
            Scope::Everything => {}
            Scope::Topic(topic) => topics.push(topic.as_str()),
            Scope::Key(key) => left_out.push(name(route, key)),
        }
    }
    if !left_out.is_empty() {
        filter.insert("_id", doc! { "$nin": left_out });
    }
    if !topics.is_empty() {
        filter.insert("topic", doc! { "$nin": topics });
    }
    // One more than asked for, due or not: it says when to ask again.
    let most = i64::try_from(request.keys.saturating_add(1)).unwrap_or(i64::MAX);
    let now = database.now(&mut session).await?;
    let mut due = Due::default();
    let mut budget = Budget { left: request.bytes, is_first: true };
    let mut seen = 0;
    // What can't be read holds up nothing else: a page that is full of it is followed by another.
    loop {
        let mut cursor = database
            .keys()
            .find(filter.clone())
            .sort(doc! { "next_attempt_at": 1 })
            .skip(seen)
            .limit(most)
            .session(&mut session)
            .await?;
        let mut rows = Vec::new();
        while let Some(row) = cursor.next(&mut session).await {
            rows.push(row?);
        }
        for row in &rows {
            let due_in = number(row, "next_attempt_at").unwrap_or_default().saturating_sub(now);
            if due_in > 0 || due.keys.len() == request.keys {
                due.next = Some(Duration::from_micros(u64::try_from(due_in).unwrap_or_default()));
                break;
            }
            match read_key(database, &mut session, request, row, &mut budget).await? {
                Read::Key(key) => {
                    budget.is_first = false;
                    due.keys.push(key);
                }
                Read::Unreadable => {}
                // It is the next to be asked for, and with it those behind it.
                Read::DoesNotFit => {
                    due.next = Some(Duration::ZERO);
                    break;
                }
            }
        }
        if due.next.is_some() || rows.len() <= request.keys {
            return Ok(due);
        }
        seen += u64::try_from(rows.len()).unwrap_or(u64::MAX);
    }
}

/// Bytes that may still be read. The first message of the first key is read whatever it has, so
/// that there is always progress.
struct Budget {
    left: usize,
    is_first: bool,
}

/// Result of reading a key.
enum Read<T> {
    Key(T),
    /// One of its documents is not what this program wrote.
    Unreadable,
    /// Not even its first message is within the bound.
    DoesNotFit,
}

/// A key with its parked messages.
async fn read_key(
    database: &Database,
    session: &mut ClientSession,
    request: &DueRequest,
    row: &Document,
    budget: &mut Budget,
) -> Result<Read<DueKey>, Failed> {
    let (topic, key) = (row.get_str("topic").unwrap_or_default(), row.get_str("key").unwrap_or_default());
    let Ok(key) = KeyId::new(topic, key) else {
        tracing::error!(topic, key, "a document of outbox_key has an invalid name; remove it");
        return Ok(Read::Unreadable);
    };
    let parked = match parked(database, session, request, &key, budget).await? {
        Read::Key(parked) => parked,
        Read::Unreadable => return Ok(Read::Unreadable),
        Read::DoesNotFit => return Ok(Read::DoesNotFit),
    };
    let state = read_state(row);
    let bucket = number(row, "bucket").and_then(|bucket| u8::try_from(bucket).ok()).unwrap_or_default();
    let due = DueKey::new(key, Bucket(bucket), state.version, parked);
    Ok(Read::Key(due.with_failing(state.failing, state.attempts, state.first_failure)))
}

/// The first parked messages of a key, within the bounds.
async fn parked(
    database: &Database,
    session: &mut ClientSession,
    request: &DueRequest,
    key: &KeyId,
    budget: &mut Budget,
) -> Result<Read<Vec<Arc<Stored>>>, Failed> {
    let limit = request.messages.max(1);
    let behind = doc! {
        "route": request.route.as_str(), "topic": key.topic.as_str(), "order_key": key.key.as_str(),
    };
    let mut cursor = database
        .parked()
        .find(behind)
        .sort(doc! { "number": 1 })
        .limit(i64::try_from(limit).unwrap_or(i64::MAX))
        .batch_size(u32::try_from(limit).unwrap_or(u32::MAX).min(MAX_AHEAD))
        .session(&mut *session)
        .await?;
    let mut parked = Vec::new();
    while let Some(row) = cursor.next(session).await {
        let row = Raw::new(row?);
        let size = row.size();
        if size > budget.left && !parked.is_empty() {
            break;
        }
        if size > budget.left && !budget.is_first {
            return Ok(Read::DoesNotFit);
        }
        budget.left = budget.left.saturating_sub(size);
        match row.message() {
            Ok(stored) => parked.push(stored),
            // Only what could be read is parked, so somebody changed it since. Its key waits, and
            // is seen to wait.
            Err(not) => {
                let position = not.waiting.at.position.0;
                tracing::error!(%key, position, reason = not.reason, "a parked document is malformed; skip it");
                return Ok(Read::Unreadable);
            }
        }
    }
    Ok(Read::Key(parked))
}
