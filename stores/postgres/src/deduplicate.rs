//! Dedup: the messages that a consumer has handled, recorded in its own transaction.

use std::collections::HashSet;

use outbox_contract::backend::{Dedup, RowId, Stored};
use outbox_contract::{Consumer, Message, MessageId, Route, inbox_route};
use sqlx::Row;
use sqlx::postgres::{PgConnection, PgRow};
use uuid::Uuid;

use crate::settle::Rows;
use crate::sql::Statements;

/// Runs one statement if nothing waits and nothing was handled before; queries only the ids that
/// the statement did not return.
pub(crate) async fn deduplicate(
    connection: &mut PgConnection,
    sql: &Statements,
    consumer: &Consumer,
    messages: &[&Message],
) -> Result<Vec<Dedup>, sqlx::Error> {
    if messages.is_empty() {
        return Ok(Vec::new());
    }
    let route = inbox_route(consumer);
    let rows = match messages {
        [message] => alone(connection, sql, (consumer, route.as_str()), message).await?,
        _ => together(connection, sql, (consumer, route.as_str()), messages).await?,
    };
    let mut new = HashSet::with_capacity(rows.len());
    for row in &rows {
        new.insert(row.try_get::<Uuid, _>(0)?);
    }
    // One by one: a message recorded as handled unblocks the one behind it. An id that is given
    // twice is new the first time.
    let mut handled_ids = Vec::with_capacity(messages.len());
    for message in messages {
        let deduplication = if new.remove(&message.id.as_uuid()) {
            Dedup::New
        } else {
            ask(connection, sql, (consumer, route.as_str()), message).await?
        };
        handled_ids.push(deduplication);
    }
    Ok(handled_ids)
}

/// Returns which messages wait on a route, each where it was read; they do until the transaction is
/// over.
pub(crate) async fn fence(
    connection: &mut PgConnection,
    sql: &Statements,
    route: &Route,
    stored: &[&Stored],
) -> Result<Vec<bool>, sqlx::Error> {
    if stored.is_empty() {
        return Ok(Vec::new());
    }
    let asked: Vec<RowId> = stored.iter().map(|stored| stored.row()).collect();
    let Rows { positions, ids } = Rows::new(&asked);
    let rows =
        sql.query(&sql.fence).bind(positions).bind(ids).bind(route.as_str()).fetch_all(connection).await?;
    let mut waiting = HashSet::with_capacity(rows.len());
    for row in &rows {
        waiting.insert((row.try_get::<i64, _>(0)?, row.try_get::<Uuid, _>(1)?));
    }
    Ok(asked.iter().map(|row| waiting.contains(&(row.position.0, row.id.as_uuid()))).collect())
}

/// Records a message; returns its id, if it is new.
async fn alone(
    connection: &mut PgConnection,
    sql: &Statements,
    (consumer, route): (&Consumer, &str),
    message: &Message,
) -> Result<Vec<PgRow>, sqlx::Error> {
    sql.query(&sql.deduplicate_single)
        .bind(consumer.as_str())
        .bind(route)
        .bind(message.id.as_uuid())
        .bind(message.topic.as_str())
        .bind(message.order_key().as_str())
        .bind(message.key.as_ref().map(|key| key.as_str()))
        .fetch_all(connection)
        .await
}

/// Records messages; returns the ids of those that are new.
async fn together(
    connection: &mut PgConnection,
    sql: &Statements,
    (consumer, route): (&Consumer, &str),
    messages: &[&Message],
) -> Result<Vec<PgRow>, sqlx::Error> {
    let order_keys: Vec<_> = messages.iter().map(|message| message.order_key()).collect();
    sql.query(&sql.deduplicate)
        .bind(consumer.as_str())
        .bind(route)
        .bind(messages.iter().map(|message| message.id.as_uuid()).collect::<Vec<_>>())
        .bind(messages.iter().map(|message| message.topic.as_str()).collect::<Vec<_>>())
        .bind(order_keys.iter().map(|key| key.as_str()).collect::<Vec<_>>())
        .bind(messages.iter().map(|message| message.key.as_ref().map(|key| key.as_str())).collect::<Vec<_>>())
        .fetch_all(connection)
        .await
}

/// Finds out why a message was not recorded with the others; records it if it is no longer blocked.
async fn ask(
    connection: &mut PgConnection,
    sql: &Statements,
    (consumer, route): (&Consumer, &str),
    message: &Message,
) -> Result<Dedup, sqlx::Error> {
    let id = message.id.as_uuid();
    let row = sql
        .query(&sql.deduplicate_first)
        .bind(consumer.as_str())
        .bind(route)
        .bind(message.topic.as_str())
        .bind(message.order_key().as_str())
        .bind(message.key.as_ref().map(|key| key.as_str()))
        .bind(id)
        .fetch_one(&mut *connection)
        .await?;
    if row.try_get("noted")? {
        return Ok(Dedup::Duplicate);
    }
    let first: Option<Uuid> = row.try_get("first")?;
    if row.try_get("held")? || first.is_some_and(|first| first != id) {
        return Ok(Dedup::OutOfTurn);
    }
    let noted = sql
        .query(&sql.deduplicate_one)
        .bind(consumer.as_str())
        .bind(id)
        .bind(message.topic.as_str())
        .bind(message.key.as_ref().map(|key| key.as_str()))
        .fetch_optional(&mut *connection)
        .await?;
    Ok(if noted.is_some() { Dedup::New } else { Dedup::Duplicate })
}

pub(crate) async fn is_handled(
    connection: &mut PgConnection,
    sql: &Statements,
    consumer: &Consumer,
    id: MessageId,
) -> Result<bool, sqlx::Error> {
    let row =
        sql.query(&sql.is_handled).bind(consumer.as_str()).bind(id.as_uuid()).fetch_one(connection).await?;
    row.try_get(0)
}
