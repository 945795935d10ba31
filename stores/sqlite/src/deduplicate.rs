//! Dedup: the messages that a consumer has handled, recorded in its own transaction.

use std::collections::HashSet;

use outbox_contract::backend::{Dedup, RowId, Stored};
use outbox_contract::{Consumer, Message, MessageId, Route, inbox_route};
use sqlx::Row;
use sqlx::sqlite::{SqliteConnection, SqlitePool};

use crate::settle::Rows;
use crate::sql;

pub(crate) async fn deduplicate(
    connection: &mut SqliteConnection,
    consumer: &Consumer,
    messages: &[&Message],
) -> Result<Vec<Dedup>, sqlx::Error> {
    let route = inbox_route(consumer);
    let waits: bool =
        sqlx::query_scalar(sql::DEDUPLICATE_WAITS).bind(route.as_str()).fetch_one(&mut *connection).await?;
    if !waits {
        return note(connection, consumer, messages).await;
    }
    // One by one: a message recorded as handled unblocks the one behind it.
    let mut handled_ids = Vec::with_capacity(messages.len());
    for message in messages {
        let deduplication = if must_go_behind(connection, consumer, &route, message).await? {
            Dedup::OutOfTurn
        } else {
            note(connection, consumer, &[message]).await?.pop().unwrap_or(Dedup::Duplicate)
        };
        handled_ids.push(deduplication);
    }
    Ok(handled_ids)
}

/// Returns the messages that wait on a route, each where it was read. A transaction that has read
/// them and writes later fails if another one has written meanwhile; otherwise no other can write
/// before it is over.
pub(crate) async fn fence(
    connection: &mut SqliteConnection,
    route: &Route,
    stored: &[&Stored],
) -> Result<Vec<bool>, sqlx::Error> {
    let asked: Vec<RowId> = stored.iter().map(|stored| stored.row()).collect();
    let rows = Rows::new(&asked);
    let waiting: Vec<i64> = sqlx::query_scalar(sql::FENCE)
        .bind(&rows.positions)
        .bind(&rows.ids)
        .bind(route.as_str())
        .fetch_all(connection)
        .await?;
    let waiting: HashSet<i64> = waiting.into_iter().collect();
    Ok((0..).zip(&asked).map(|(at, _)| waiting.contains(&at)).collect())
}

/// Records messages, in one statement.
async fn note(
    connection: &mut SqliteConnection,
    consumer: &Consumer,
    messages: &[&Message],
) -> Result<Vec<Dedup>, sqlx::Error> {
    let rows = sqlx::query(sql::DEDUPLICATE)
        .bind(consumer.as_str())
        .bind(names(messages))
        .fetch_all(connection)
        .await?;
    let mut new = HashSet::with_capacity(rows.len());
    for row in &rows {
        new.insert(row.try_get::<Vec<u8>, _>("id")?);
    }
    // An id that is given twice is new the first time.
    let deduplication = |message: &&Message| {
        if new.remove(&message.id.as_uuid().as_bytes()[..]) { Dedup::New } else { Dedup::Duplicate }
    };
    Ok(messages.iter().map(deduplication).collect())
}

/// Returns true if other messages of its key wait for the consumer in front of a message that it
/// has not handled.
async fn must_go_behind(
    connection: &mut SqliteConnection,
    consumer: &Consumer,
    route: &Route,
    message: &Message,
) -> Result<bool, sqlx::Error> {
    let row = sqlx::query(sql::DEDUPLICATE_FIRST)
        .bind(consumer.as_str())
        .bind(route.as_str())
        .bind(message.topic.as_str())
        .bind(message.order_key().as_str())
        .bind(message.key.as_ref().map(|key| key.as_str()))
        .fetch_one(&mut *connection)
        .await?;
    let first: Option<Vec<u8>> = row.try_get("first")?;
    let waits = row.try_get("held")? || first.is_some_and(|first| first != message.id.as_uuid().as_bytes());
    Ok(waits && !is_noted(connection, consumer, message.id).await?)
}

async fn is_noted(
    connection: &mut SqliteConnection,
    consumer: &Consumer,
    id: MessageId,
) -> Result<bool, sqlx::Error> {
    let noted = sqlx::query(sql::IS_HANDLED)
        .bind(consumer.as_str())
        .bind(&id.as_uuid().as_bytes()[..])
        .fetch_optional(connection)
        .await?;
    Ok(noted.is_some())
}

pub(crate) async fn is_handled(
    pool: &SqlitePool,
    consumer: &Consumer,
    id: MessageId,
) -> Result<bool, sqlx::Error> {
    is_noted(&mut *pool.acquire().await?, consumer, id).await
}

/// Messages as a JSON array: id, topic and key of each.
fn names(messages: &[&Message]) -> String {
    let name = |message: &&Message| {
        let id = format!("{:X}", message.id.as_uuid().simple());
        serde_json::json!([id, message.topic.as_str(), message.key.as_ref().map(|key| key.as_str())])
    };
    serde_json::Value::from_iter(messages.iter().map(name)).to_string()
}

/// Ids as a JSON array of hexadecimal digits, in the format of SQLite's `hex`.
pub(crate) fn id_list(ids: impl IntoIterator<Item = MessageId>) -> String {
    serde_json::Value::from_iter(ids.into_iter().map(|id| format!("{:X}", id.as_uuid().simple()))).to_string()
}
