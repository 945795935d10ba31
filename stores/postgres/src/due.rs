//! Failing keys that are due, with the messages parked behind them.
//!
//! Two statements: the first selects keys, with the sizes of their parked messages; the second
//! reads the messages that fit. A change in between makes the key's next version, and every step
//! that starts from this version is refused.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use outbox_contract::backend::{Bucket, Due, DueKey, DueRequest, Stored};
use outbox_contract::{Failure, KeyId, MessageId};
use sqlx::Row;
use sqlx::postgres::{PgConnection, PgRow};
use uuid::Uuid;

use crate::fetch::{Muted, bits, number};
use crate::row::raw;
use crate::sql::Statements;

/// A key, and the parked messages of it that are within the bounds.
struct Chosen {
    due: DueKey,
    rows: Vec<(i64, Uuid)>,
}

/// Result for a due key.
enum Choice {
    Taken(Box<Chosen>),
    /// Its row was not written by this program.
    Broken,
    /// Its first message is left for another call, and so are all later due keys.
    DoesNotFit,
}

pub(crate) async fn due(
    connection: &mut PgConnection,
    sql: &Statements,
    request: &DueRequest,
) -> Result<Due, sqlx::Error> {
    let mut seen = 0;
    // Unreadable keys hold up no others: a page that is full of them is followed by another.
    loop {
        let rows = keys(connection, sql, request, seen).await?;
        let mut due = readable(connection, sql, request, &rows).await?;
        let is_full = rows.len() > request.keys;
        if !is_full || due.next.is_some() || !due.keys.is_empty() {
            // Where some of a full page are left out, others may be due behind it.
            due.next = due.next.or(is_full.then_some(Duration::ZERO));
            return Ok(due);
        }
        seen += rows.len();
    }
}

/// A page of the failing keys, the next due first, behind as many as were seen.
async fn keys(
    connection: &mut PgConnection,
    sql: &Statements,
    request: &DueRequest,
    seen: usize,
) -> Result<Vec<PgRow>, sqlx::Error> {
    let muted = Muted::of(&request.muted);
    sql.query(&sql.due_keys)
        .bind(request.route.as_str())
        .bind(request.relay.as_uuid())
        .bind(bits(&request.buckets))
        .bind(request.except.iter().map(|key| key.topic.as_str()).collect::<Vec<_>>())
        .bind(request.except.iter().map(|key| key.key.as_str()).collect::<Vec<_>>())
        .bind(muted.everything)
        .bind(muted.topics)
        .bind(muted.key_topics)
        .bind(muted.keys)
        // One more than requested, due or not: it gives the time of the next request.
        .bind(number(request.keys.saturating_add(1)))
        .bind(number(request.messages.max(1)))
        .bind(number(seen))
        .fetch_all(connection)
        .await
}

/// The due keys of a page, with their messages.
async fn readable(
    connection: &mut PgConnection,
    sql: &Statements,
    request: &DueRequest,
    rows: &[PgRow],
) -> Result<Due, sqlx::Error> {
    let mut due = Due::default();
    let mut rows = rows.iter().peekable();
    // Again if none of the chosen keys can be read: broken ones must not block others.
    while due.keys.is_empty() {
        due.next = None;
        let mut chosen = Vec::new();
        let mut budget = request.bytes;
        while let Some(row) = rows.peek() {
            let due_in: i64 = row.try_get("due_in")?;
            let next = Some(Duration::from_micros(u64::try_from(due_in).unwrap_or_default()));
            if due_in > 0 || chosen.len() == request.keys {
                due.next = next;
                break;
            }
            match choose(row, &mut budget, chosen.is_empty())? {
                Choice::Taken(key) => chosen.push(*key),
                Choice::Broken => {}
                Choice::DoesNotFit => {
                    due.next = next;
                    break;
                }
            }
            rows.next();
        }
        if chosen.is_empty() {
            break;
        }
        let messages = read_messages(&mut *connection, sql, &chosen).await?;
        due.keys = chosen.into_iter().filter_map(|chosen| complete(chosen, &messages)).collect();
    }
    Ok(due)
}

/// Chooses as many of a key's parked messages as the budget allows: of the first key, the first
/// message always.
fn choose(row: &PgRow, budget: &mut usize, is_first: bool) -> Result<Choice, sqlx::Error> {
    let (topic, name): (&str, &str) = (row.try_get("topic")?, row.try_get("key")?);
    let Ok(key) = KeyId::new(topic, name) else {
        tracing::error!(topic, key = name, "a row of outbox_key has an invalid name; remove it");
        return Ok(Choice::Broken);
    };
    let (positions, ids, sizes): (Vec<i64>, Vec<Uuid>, Vec<i64>) =
        (row.try_get("positions")?, row.try_get("ids")?, row.try_get("sizes")?);
    let is_parked = !positions.is_empty();
    let mut rows = Vec::new();
    for ((position, id), size) in positions.into_iter().zip(ids).zip(sizes) {
        let size = usize::try_from(size).unwrap_or_default();
        let comes_anyway = is_first && rows.is_empty();
        if size > *budget && !comes_anyway {
            break;
        }
        *budget = budget.saturating_sub(size);
        rows.push((position, id));
    }
    if is_parked && rows.is_empty() {
        return Ok(Choice::DoesNotFit);
    }
    let failing = row.try_get::<Option<Uuid>, _>("failing")?.map(MessageId::from_uuid);
    // Attempts belong to the message that failed, not to another one that is first now.
    let failing = failing.filter(|failing| rows.first().is_some_and(|first| first.1 == failing.as_uuid()));
    let attempts = u32::try_from(row.try_get::<i64, _>("attempts")?).unwrap_or(u32::MAX);
    let first_failure = row.try_get::<Option<&str>, _>("first_failure")?.and_then(Failure::from_text);
    let mut due = DueKey::new(
        key,
        Bucket(u8::try_from(row.try_get::<i64, _>("bucket")? & 255).unwrap_or_default()),
        row.try_get("version")?,
        Vec::new(),
    );
    due.failing = failing;
    due.attempts = if failing.is_some() { attempts } else { 0 };
    due.first_failure = first_failure.filter(|_| failing.is_some());
    Ok(Choice::Taken(Box::new(Chosen { due, rows })))
}

async fn read_messages(
    connection: &mut PgConnection,
    sql: &Statements,
    chosen: &[Chosen],
) -> Result<HashMap<(i64, Uuid), PgRow>, sqlx::Error> {
    let wanted = || chosen.iter().flat_map(|chosen| &chosen.rows);
    let positions: Vec<i64> = wanted().map(|row| row.0).collect();
    if positions.is_empty() {
        return Ok(HashMap::new());
    }
    let ids: Vec<Uuid> = wanted().map(|row| row.1).collect();
    let rows = sql.query(&sql.due_messages).bind(positions).bind(ids).fetch_all(connection).await?;
    rows.into_iter().map(|row| Ok(((row.try_get(0)?, row.try_get(1)?), row))).collect()
}

/// Combines a key with its messages. None: one of them is gone, so the key has changed, or is no
/// message.
fn complete(chosen: Chosen, messages: &HashMap<(i64, Uuid), PgRow>) -> Option<DueKey> {
    let Chosen { mut due, rows } = chosen;
    for row in &rows {
        due.parked.push(read(&due.key, messages.get(row)?)?);
    }
    Some(due)
}

fn read(key: &KeyId, row: &PgRow) -> Option<Arc<Stored>> {
    match raw(row).message(None) {
        Ok(stored) => Some(stored),
        // Only readable rows are parked, so another program changed it since. Its key waits
        // visibly.
        Err(not) => {
            let position = not.waiting.at.position.0;
            tracing::error!(%key, position, reason = not.reason, "a parked row is malformed; skip it");
            None
        }
    }
}
