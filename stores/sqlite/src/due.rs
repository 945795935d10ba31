//! Failing keys that are due, with the messages parked behind them.

use std::time::Duration;

use outbox_contract::backend::{Bucket, Due, DueKey, DueRequest, Stored};
use outbox_contract::{Failure, KeyId, MessageId};
use sqlx::Row;
use sqlx::sqlite::{SqliteConnection, SqlitePool, SqliteRow};
use std::sync::Arc;
use uuid::Uuid;

use crate::fetch::{Muted, bucket_list};
use crate::row::raw;
use crate::sql;

pub(crate) async fn due(pool: &SqlitePool, request: &DueRequest) -> Result<Due, sqlx::Error> {
    // One snapshot for the keys and the messages parked behind them.
    let mut tx = pool.begin().await?;
    let mut due = Due::default();
    let mut budget = request.bytes;
    let mut seen = 0;
    // Unreadable keys hold up no others: a page that is full of them is followed by another.
    loop {
        let rows = keys(&mut tx, request, seen).await?;
        for row in &rows {
            let due_in: i64 = row.try_get("due_in")?;
            if due_in > 0 || due.keys.len() == request.keys {
                due.next = Some(Duration::from_micros(u64::try_from(due_in).unwrap_or_default()));
                break;
            }
            // An unreadable key does not count as the first.
            match read_key(&mut tx, request, row, &mut budget, due.keys.is_empty()).await? {
                Choice::Taken(key) => due.keys.push(*key),
                Choice::Broken => {}
                Choice::DoesNotFit => {
                    due.next = Some(Duration::ZERO);
                    break;
                }
            }
        }
        if due.next.is_some() || rows.len() <= request.keys {
            break;
        }
        seen += rows.len();
    }
    tx.rollback().await?;
    Ok(due)
}

/// A page of the failing keys, the next due first, behind as many as were seen.
async fn keys(
    connection: &mut SqliteConnection,
    request: &DueRequest,
    seen: usize,
) -> Result<Vec<SqliteRow>, sqlx::Error> {
    let muted = Muted::of(&request.muted);
    let except = request.except.iter().map(|key| serde_json::json!([key.topic.as_str(), key.key.as_str()]));
    // One more than requested, due or not: it gives the time of the next request.
    let most = i64::try_from(request.keys.saturating_add(1)).unwrap_or(i64::MAX);
    sqlx::query(sql::DUE_KEYS)
        .bind(request.route.as_str())
        .bind(&request.relay.as_uuid().as_bytes()[..])
        .bind(bucket_list(&request.buckets))
        .bind(serde_json::Value::from_iter(except).to_string())
        .bind(muted.everything)
        .bind(muted.topics)
        .bind(muted.keys)
        .bind(most)
        .bind(i64::try_from(seen).unwrap_or(i64::MAX))
        .fetch_all(connection)
        .await
}

/// Result for a due key.
enum Choice {
    Taken(Box<DueKey>),
    /// One of its rows was not written by this program.
    Broken,
    /// Its first message is left for another call, and so are all later due keys.
    DoesNotFit,
}

/// Reads a key with as many of its parked messages as fit: of the first key, the first message
/// always.
async fn read_key(
    connection: &mut SqliteConnection,
    request: &DueRequest,
    row: &SqliteRow,
    budget: &mut usize,
    is_first: bool,
) -> Result<Choice, sqlx::Error> {
    let (topic, name): (&str, &str) = (row.try_get("topic")?, row.try_get("key")?);
    let Ok(key) = KeyId::new(topic, name) else {
        tracing::error!(topic, key = name, "a row of outbox_key has an invalid name; remove it");
        return Ok(Choice::Broken);
    };
    let route = request.route.as_str();
    let last = match last_within(connection, (route, topic, name), request.messages, budget, is_first).await?
    {
        Within::Nothing => None,
        Within::UpTo(position) => Some(position),
        Within::DoesNotFit => return Ok(Choice::DoesNotFit),
    };
    let mut parked: Vec<Arc<Stored>> = Vec::new();
    if let Some(last) = last {
        let rows = sqlx::query(sql::DUE_MESSAGES)
            .bind(route)
            .bind(topic)
            .bind(name)
            .bind(last)
            .fetch_all(connection)
            .await?;
        for row in &rows {
            match raw(row).message(None) {
                Ok(stored) => parked.push(stored),
                // Only readable rows are parked, so another program changed it since. Its key waits
                // visibly.
                Err(not) => {
                    let position = not.waiting.at.position.0;
                    tracing::error!(%key, position, reason = not.reason, "a parked row is malformed; skip it");
                    return Ok(Choice::Broken);
                }
            }
        }
    }
    let failing: Option<&[u8]> = row.try_get("failing")?;
    let failing = failing.and_then(|id| Uuid::from_slice(id).ok()).map(MessageId::from_uuid);
    let first_failure = row.try_get::<Option<&str>, _>("first_failure")?.and_then(Failure::from_text);
    let attempts = if failing.is_some() { row.try_get("attempts")? } else { 0 };
    let due = DueKey::new(key, Bucket(row.try_get("bucket")?), row.try_get("version")?, parked);
    Ok(Choice::Taken(Box::new(due.with_failing(failing, attempts, first_failure))))
}

/// Parked messages of a key that are within the bounds.
enum Within {
    /// Nothing is parked.
    Nothing,
    UpTo(i64),
    /// Not even the first fits.
    DoesNotFit,
}

/// Adds up the parked messages of a key, the oldest first, until the budget is used up.
async fn last_within(
    connection: &mut SqliteConnection,
    (route, topic, key): (&str, &str, &str),
    messages: usize,
    budget: &mut usize,
    is_first: bool,
) -> Result<Within, sqlx::Error> {
    let rows = sqlx::query(sql::DUE_SIZES)
        .bind(route)
        .bind(topic)
        .bind(key)
        .bind(i64::try_from(messages.max(1)).unwrap_or(i64::MAX))
        .fetch_all(connection)
        .await?;
    let mut within = Within::Nothing;
    for (place, row) in rows.iter().enumerate() {
        let size = usize::try_from(row.try_get::<i64, _>("size")?).unwrap_or_default();
        let comes_anyway = is_first && place == 0;
        if size > *budget && !comes_anyway {
            return Ok(if place == 0 { Within::DoesNotFit } else { within });
        }
        *budget = budget.saturating_sub(size);
        within = Within::UpTo(row.try_get("position")?);
    }
    Ok(within)
}
