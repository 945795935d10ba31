//! Appending: rows in the user's transaction.
//!
//! Positions of one key have to be in the order of its commits. So the key is locked against every
//! other writer, from before its position is taken until the transaction is over. `0002_append.sql`
//! defines which locks are taken, and in which order. The store remembers no locks of a
//! transaction: a rollback to a savepoint drops them without notice.

use std::collections::BTreeSet;

use outbox_contract::backend::key_hash;
use outbox_contract::{AppendError, DueTime, Outgoing};
use sqlx::postgres::PgConnection;

use crate::error::store_error;
use crate::sql::Statements;

/// Maximum number of keys locked one by one; above it, buckets are locked instead: ten thousand
/// locks would fill the server's lock table.
const MAX_KEYS: usize = 256;

/// Maximum number of messages in one statement, so that no statement grows without bound.
const MAX_ROWS: usize = 2_000;

/// Order of a message: its bucket, and the number of its key's lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Place {
    bucket: i32,
    lock: i64,
}

impl Place {
    /// Same as `outbox_hash` in the database: the first byte of the hash, and its first eight.
    fn of(outgoing: &Outgoing) -> Self {
        let hash = key_hash(outgoing.message.topic.as_str(), outgoing.message.order_key().as_str());
        let mut first = [0; 8];
        first.copy_from_slice(&hash[..8]);
        Self { bucket: i32::from(hash[0]), lock: i64::from_be_bytes(first) }
    }
}

/// The locks of an append, each list in ascending order.
#[derive(Debug, PartialEq, Eq)]
struct Locks {
    buckets: Vec<i32>,
    /// Keys to lock; none where buckets are locked exclusively.
    keys: Vec<i64>,
    exclusive: bool,
}

impl Locks {
    fn of(places: &[Place]) -> Self {
        let buckets: BTreeSet<i32> = places.iter().map(|place| place.bucket).collect();
        let keys: BTreeSet<i64> = places.iter().map(|place| place.lock).collect();
        let exclusive = keys.len() > MAX_KEYS;
        Self {
            buckets: buckets.into_iter().collect(),
            keys: if exclusive { Vec::new() } else { keys.into_iter().collect() },
            exclusive,
        }
    }
}

/// Writes messages, all of them valid or none.
pub(crate) async fn append(
    connection: &mut PgConnection,
    sql: &Statements,
    messages: &[Outgoing],
) -> Result<(), AppendError> {
    for outgoing in messages {
        outgoing.message.validate()?;
    }
    let (due_later, at_once): (Vec<_>, Vec<_>) = messages.iter().partition(|outgoing| outgoing.due.is_some());
    let failed = |error| AppendError::from(store_error("append", error));
    match at_once[..] {
        [] => {}
        [outgoing] => append_one(connection, sql, outgoing).await.map_err(failed)?,
        _ => append_many(connection, sql, &at_once).await.map_err(failed)?,
    }
    for chunk in due_later.chunks(MAX_ROWS) {
        schedule(connection, sql, chunk).await.map_err(failed)?;
    }
    Ok(())
}

async fn append_one(
    connection: &mut PgConnection,
    sql: &Statements,
    outgoing: &Outgoing,
) -> Result<(), sqlx::Error> {
    let place = Place::of(outgoing);
    let message = &outgoing.message;
    sql.query(&sql.append_one)
        .bind(place.bucket)
        .bind(place.lock)
        .bind(message.id.as_uuid())
        .bind(outgoing.route.as_str())
        .bind(message.topic.as_str())
        .bind(message.key.as_ref().map(|key| key.as_str()))
        .bind(&*message.event_type)
        .bind(i64::from(message.schema_version))
        .bind(&*message.content_type)
        .bind(message.headers.to_bytes())
        .bind(&message.payload[..])
        .bind(message.occurred_at.as_micros())
        .execute(connection)
        .await?;
    Ok(())
}

async fn append_many(
    connection: &mut PgConnection,
    sql: &Statements,
    messages: &[&Outgoing],
) -> Result<(), sqlx::Error> {
    let places: Vec<Place> = messages.iter().map(|outgoing| Place::of(outgoing)).collect();
    // Of all messages, before the first is written: in parts, two appends could wait for each
    // other.
    let locks = Locks::of(&places);
    for (chunk, places) in messages.chunks(MAX_ROWS).zip(places.chunks(MAX_ROWS)) {
        let columns = Columns::of(chunk);
        sql.query(&sql.append_many)
            .bind(&locks.buckets)
            .bind(&locks.keys)
            .bind(locks.exclusive)
            .bind(columns.ids)
            .bind(columns.routes)
            .bind(places.iter().map(|place| place.bucket).collect::<Vec<_>>())
            .bind(columns.topics)
            .bind(columns.keys)
            .bind(columns.types)
            .bind(columns.versions)
            .bind(columns.content_types)
            .bind(columns.headers)
            .bind(columns.payloads)
            .bind(columns.occurred_at)
            .execute(&mut *connection)
            .await?;
    }
    Ok(())
}

async fn schedule(
    connection: &mut PgConnection,
    sql: &Statements,
    messages: &[&Outgoing],
) -> Result<(), sqlx::Error> {
    let columns = Columns::of(messages);
    let due = |outgoing: &&Outgoing| outgoing.due.map(DueTime::as_micros).unwrap_or_default();
    let (due, by_clock): (Vec<i64>, Vec<bool>) = messages.iter().map(due).unzip();
    sql.query(&sql.schedule)
        .bind(due)
        .bind(columns.ids)
        .bind(columns.routes)
        .bind(columns.topics)
        .bind(columns.keys)
        .bind(columns.types)
        .bind(columns.versions)
        .bind(columns.content_types)
        .bind(columns.headers)
        .bind(columns.payloads)
        .bind(columns.occurred_at)
        .bind(by_clock)
        .execute(connection)
        .await?;
    Ok(())
}

/// Many messages as parameters of a statement: an array for each column.
struct Columns<'m> {
    ids: Vec<uuid::Uuid>,
    routes: Vec<&'m str>,
    topics: Vec<&'m str>,
    keys: Vec<Option<&'m str>>,
    types: Vec<&'m str>,
    versions: Vec<i64>,
    content_types: Vec<&'m str>,
    headers: Vec<Vec<u8>>,
    payloads: Vec<&'m [u8]>,
    occurred_at: Vec<i64>,
}

impl<'m> Columns<'m> {
    fn of(messages: &[&'m Outgoing]) -> Self {
        let all = || messages.iter().map(|outgoing| &outgoing.message);
        Self {
            ids: all().map(|message| message.id.as_uuid()).collect(),
            routes: messages.iter().map(|outgoing| outgoing.route.as_str()).collect(),
            topics: all().map(|message| message.topic.as_str()).collect(),
            keys: all().map(|message| message.key.as_ref().map(|key| key.as_str())).collect(),
            types: all().map(|message| &*message.event_type).collect(),
            versions: all().map(|message| i64::from(message.schema_version)).collect(),
            content_types: all().map(|message| &*message.content_type).collect(),
            headers: all().map(|message| message.headers.to_bytes()).collect(),
            payloads: all().map(|message| &message.payload[..]).collect(),
            occurred_at: all().map(|message| message.occurred_at.as_micros()).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_keys_are_locked_each_and_many_by_their_buckets() {
        let place = |n: i32| Place { bucket: n % 7, lock: i64::from(n) * 31 % 1_009 };
        let few: Vec<Place> = (0..256).rev().map(place).collect();
        let locks = Locks::of(&few);
        assert!(!locks.exclusive && locks.keys.len() == 256);
        assert!(locks.keys.is_sorted() && locks.buckets == [0, 1, 2, 3, 4, 5, 6]);
        let locks = Locks::of(&(0..257).map(place).collect::<Vec<_>>());
        assert!(locks.exclusive && locks.keys.is_empty() && locks.buckets.len() == 7);
    }
}
