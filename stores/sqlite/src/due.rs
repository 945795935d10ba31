//! Failing keys that are due, with what is parked behind them.

use std::time::Duration;

use outbox_contract::fetch::{Due, DueKey, DueRequest};
use outbox_contract::{Bucket, MessageId, Stored};
use outbox_contract::{Failure, KeyId};
use sqlx::Row;
use sqlx::sqlite::{SqliteConnection, SqlitePool, SqliteRow};
use std::sync::Arc;
use uuid::Uuid;

use crate::fetch::{Muted, bucket_list};
use crate::row::Raw;
use crate::sql;

pub(crate) async fn due(pool: &SqlitePool, request: &DueRequest) -> Result<Due, sqlx::Error> {
    // One snapshot for the keys and what is parked behind them.
    let mut tx = pool.begin().await?;
    let muted = Muted::of(&request.muted);
    let except = request.except.iter().map(|key| serde_json::json!([key.topic.as_str(), key.key.as_str()]));
    // One more than asked for, due or not: it says when to ask again.
    let most = i64::try_from(request.keys.saturating_add(1)).unwrap_or(i64::MAX);
    let rows = sqlx::query(sql::DUE_KEYS)
        .bind(request.route.as_str())
        .bind(&request.relay.as_uuid().as_bytes()[..])
        .bind(bucket_list(&request.buckets))
        .bind(serde_json::Value::from_iter(except).to_string())
        .bind(muted.everything)
        .bind(muted.topics)
        .bind(muted.keys)
        .bind(most)
        .fetch_all(&mut *tx)
        .await?;

    let mut due = Due::default();
    let mut budget = request.bytes;
    for row in &rows {
        let due_in: i64 = row.try_get("due_in")?;
        if due_in > 0 || due.keys.len() == request.keys {
            due.next = Some(Duration::from_micros(u64::try_from(due_in).unwrap_or_default()));
            break;
        }
        // What can't be read is not the first.
        match read_key(&mut tx, request, row, &mut budget, due.keys.is_empty()).await? {
            Choice::Taken(key) => due.keys.push(*key),
            Choice::Broken => {}
            Choice::DoesNotFit => {
                due.next = Some(Duration::ZERO);
                break;
            }
        }
    }
    tx.rollback().await?;
    Ok(due)
}

/// What became of a key that is due.
enum Choice {
    Taken(Box<DueKey>),
    /// One of its rows is not what this program wrote.
    Broken,
    /// Its first message is for another call, and so is whatever is due later.
    DoesNotFit,
}

/// A key with its parked messages, as many as fit: of the first key, the first message always.
async fn read_key(
    connection: &mut SqliteConnection,
    request: &DueRequest,
    row: &SqliteRow,
    budget: &mut usize,
    is_first: bool,
) -> Result<Choice, sqlx::Error> {
    let (topic, name): (&str, &str) = (row.try_get("topic")?, row.try_get("key")?);
    let Some(key) = KeyId::from_texts(topic, name) else {
        tracing::error!(topic, key = name, "a row of outbox_key has a name that can be none; remove it");
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
            match Raw::new(row).message() {
                Ok(stored) => parked.push(stored),
                // Only what could be read is parked, so somebody changed it since. Its key waits, and is seen to wait.
                Err(not) => {
                    let position = not.waiting.at.position.0;
                    tracing::error!(%key, position, reason = not.reason, "a parked row is no message; skip it");
                    return Ok(Choice::Broken);
                }
            }
        }
    }
    let failing: Option<&[u8]> = row.try_get("failing")?;
    let failing = failing.and_then(|id| Uuid::from_slice(id).ok()).map(MessageId::from_uuid);
    // Attempts are those of the message that failed: not of another one that is first now.
    let failing = failing.filter(|failing| parked.first().is_some_and(|first| first.message.id == *failing));
    let first_failure = row.try_get::<Option<&str>, _>("first_failure")?.and_then(Failure::from_text);
    Ok(Choice::Taken(Box::new(DueKey {
        key,
        bucket: Bucket(row.try_get("bucket")?),
        version: row.try_get("version")?,
        failing,
        attempts: if failing.is_some() { row.try_get("attempts")? } else { 0 },
        first_failure: first_failure.filter(|_| failing.is_some()),
        parked,
    })))
}

/// Which parked messages of a key are within the bounds.
enum Within {
    /// Nothing is parked.
    Nothing,
    UpTo(i64),
    /// Not even the first.
    DoesNotFit,
}

/// Adds up what is parked for a key, the oldest first, until the budget is used up.
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
