//! Dedup: what a consumer has handled, noted in its own transaction.

use std::collections::HashSet;

use outbox_contract::backend::{Dedup, Stored};
use outbox_contract::{Consumer, Message, MessageId, Route, inbox_route};
use sqlx::mysql::MySqlConnection;
use sqlx::{Executor, Row, SqlStr};
use uuid::Uuid;

use crate::sql;

/// Prepares what deduplication asks, as far as the connection has not.
///
/// For a node of a cluster, in front of the question for the transaction: one that meets an abort
/// while it prepares a statement does not tell.
pub(crate) async fn prepare(connection: &mut MySqlConnection) -> Result<(), sqlx::Error> {
    for statement in [
        sql::FENCE,
        sql::FENCE_PARKED,
        sql::DEDUPLICATE_WAITS,
        sql::DEDUPLICATE,
        sql::DEDUPLICATE_NOTED,
        sql::DEDUPLICATE_FIRST,
        sql::IS_HANDLED,
    ] {
        connection.prepare(SqlStr::from_static(statement)).await?;
    }
    Ok(())
}

pub(crate) async fn deduplicate(
    connection: &mut MySqlConnection,
    consumer: &Consumer,
    messages: &[&Message],
) -> Result<Vec<Dedup>, sqlx::Error> {
    if messages.is_empty() {
        return Ok(Vec::new());
    }
    let route = inbox_route(consumer);
    let bytes = route.as_str().as_bytes();
    let waits =
        sqlx::query(sql::DEDUPLICATE_WAITS).bind(bytes).bind(bytes).fetch_one(&mut *connection).await?;
    if waits.try_get_unchecked::<i64, _>(0)? == 0 {
        return note(connection, consumer, messages).await;
    }
    // One by one: a message that is recorded as handled makes way for the one behind it.
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

/// Returns the messages that wait on a route, each where it was read; they do until the transaction
/// is over. Whether one is parked is asked last: what is moved meanwhile goes there.
pub(crate) async fn fence(
    connection: &mut MySqlConnection,
    route: &Route,
    stored: &[&Stored],
) -> Result<Vec<bool>, sqlx::Error> {
    let mut wait = vec![false; stored.len()];
    // In the order of the primary key, as all other transactions take these locks.
    let mut order: Vec<usize> = (0..stored.len()).collect();
    order.sort_unstable_by_key(|at| stored[*at].position);
    for at in order {
        wait[at] =
            is_hot(connection, route, stored[at]).await? || is_parked(connection, route, stored[at]).await?;
    }
    Ok(wait)
}

async fn is_hot(
    connection: &mut MySqlConnection,
    route: &Route,
    stored: &Stored,
) -> Result<bool, sqlx::Error> {
    let hot = sqlx::query(sql::FENCE)
        .bind(route.as_str().as_bytes())
        .bind(stored.position.0)
        .bind(&stored.message.id.as_uuid().as_bytes()[..])
        .fetch_optional(connection)
        .await?;
    Ok(hot.is_some())
}

async fn is_parked(
    connection: &mut MySqlConnection,
    route: &Route,
    stored: &Stored,
) -> Result<bool, sqlx::Error> {
    let parked = sqlx::query(sql::FENCE_PARKED)
        .bind(route.as_str().as_bytes())
        .bind(stored.message.topic.as_str().as_bytes())
        .bind(stored.message.order_key().as_str().as_bytes())
        .bind(stored.position.0)
        .bind(&stored.message.id.as_uuid().as_bytes()[..])
        .fetch_optional(connection)
        .await?;
    Ok(parked.is_some())
}

/// Notes messages, in one statement; a second one tells which, where some were noted before.
async fn note(
    connection: &mut MySqlConnection,
    consumer: &Consumer,
    messages: &[&Message],
) -> Result<Vec<Dedup>, sqlx::Error> {
    // Sorted: two handlers of the same messages wait for each other in one order.
    let mut given: Vec<&Message> = messages.to_vec();
    given.sort_unstable_by_key(|message| message.id);
    given.dedup_by_key(|message| message.id);
    let call = Uuid::now_v7();
    let noted = sqlx::query(sql::DEDUPLICATE)
        .bind(consumer.as_str().as_bytes())
        .bind(&call.as_bytes()[..])
        .bind(sql::handled(given.iter().copied()))
        .execute(&mut *connection)
        .await?
        .rows_affected();
    let mut new: HashSet<MessageId> = HashSet::new();
    if noted == u64::try_from(given.len()).unwrap_or(u64::MAX) {
        new.extend(given.iter().map(|message| message.id));
    } else if noted > 0 {
        let rows = sqlx::query(sql::DEDUPLICATE_NOTED)
            .bind(sql::ids(given.iter().map(|message| message.id)))
            .bind(consumer.as_str().as_bytes())
            .bind(&call.as_bytes()[..])
            .fetch_all(connection)
            .await?;
        for row in &rows {
            let id: &[u8] = row.try_get_unchecked(0)?;
            new.extend(Uuid::from_slice(id).ok().map(MessageId::from_uuid));
        }
    }
    // An id that is given twice is new the first time.
    let deduplication = |message: &&Message| {
        if new.remove(&message.id) { Dedup::New } else { Dedup::Duplicate }
    };
    Ok(messages.iter().map(deduplication).collect())
}

/// Returns true if others of its key wait for the consumer in front of a message that it has not
/// handled.
async fn must_go_behind(
    connection: &mut MySqlConnection,
    consumer: &Consumer,
    route: &Route,
    message: &Message,
) -> Result<bool, sqlx::Error> {
    let order_key = message.order_key();
    let (route, topic, key, consumer_name) = (
        route.as_str().as_bytes(),
        message.topic.as_str().as_bytes(),
        order_key.as_str().as_bytes(),
        consumer.as_str().as_bytes(),
    );
    let row = sqlx::query(sql::DEDUPLICATE_FIRST)
        .bind(route)
        .bind(topic)
        .bind(key)
        .bind(consumer_name)
        .bind(route)
        .bind(topic)
        .bind(key)
        .bind(consumer_name)
        .bind(route)
        .bind(topic)
        .bind(key)
        .fetch_one(&mut *connection)
        .await?;
    let first: Option<&[u8]> = row.try_get_unchecked(0)?;
    let is_held = row.try_get_unchecked::<i64, _>(1)? != 0;
    let waits = is_held || first.is_some_and(|first| first != message.id.as_uuid().as_bytes());
    Ok(waits && !is_handled(connection, consumer, message.id).await?)
}

/// Returns true if a consumer's handling of a message is noted.
pub(crate) async fn is_handled(
    connection: &mut MySqlConnection,
    consumer: &Consumer,
    id: MessageId,
) -> Result<bool, sqlx::Error> {
    let noted = sqlx::query(sql::IS_HANDLED)
        .bind(consumer.as_str().as_bytes())
        .bind(&id.as_uuid().as_bytes()[..])
        .fetch_optional(connection)
        .await?;
    Ok(noted.is_some())
}
