//! Failing keys that are due, with what is parked behind them.

use std::sync::Arc;
use std::time::Duration;

use outbox_contract::backend::{Bucket, BucketSet, Due, DueKey, DueRequest, Stored};
use outbox_contract::{Failure, KeyId, MessageId};
use sqlx::mysql::{MySqlConnection, MySqlRow};
use sqlx::{AssertSqlSafe, Row};
use uuid::Uuid;

use crate::fetch::{held, not_muted, number};
use crate::line::in_snapshot;
use crate::row::raw;
use crate::sql;

pub(crate) async fn due(connection: &mut MySqlConnection, request: &DueRequest) -> Result<Due, sqlx::Error> {
    let held = held(connection, &request.route, request.relay).await?;
    let buckets = held.buckets.intersection(&request.buckets);
    if buckets.is_empty() {
        return Ok(Due::default());
    }
    // One snapshot for the keys and what is parked behind them.
    in_snapshot(connection, async |connection| read(connection, request, &buckets).await).await
}

/// Bytes of messages that an answer has room for.
#[derive(Clone, Copy)]
struct Room {
    bytes: usize,
    /// Nothing is in the answer yet: what comes first comes whatever it has.
    is_all: bool,
}

impl Room {
    /// Takes room for a message, if there is any for it.
    fn take(&mut self, bytes: usize) -> bool {
        let fits = self.is_all || bytes <= self.bytes;
        if fits {
            *self = Self { bytes: self.bytes.saturating_sub(bytes), is_all: false };
        }
        fits
    }
}

/// Result of reading a key.
enum Read {
    /// The key, and the room that it left.
    Key(DueKey, Room),
    /// One of its rows is not what this program wrote.
    Unreadable,
    /// Its first message is too much: the key comes with another answer.
    NoRoom,
}

async fn read(
    connection: &mut MySqlConnection,
    request: &DueRequest,
    buckets: &BucketSet,
) -> Result<Due, sqlx::Error> {
    let mut due = Due::default();
    let mut room = Room { bytes: request.bytes, is_all: true };
    let mut seen = 0;
    // What can't be read holds up nothing else: a page that is full of it is followed by another.
    loop {
        let statement = AssertSqlSafe(statement(request, buckets, seen));
        let rows = sqlx::raw_sql(statement).fetch_all(&mut *connection).await?;
        for row in &rows {
            let due_in: i64 = row.try_get_unchecked(7)?;
            if due_in > 0 || due.keys.len() == request.keys {
                due.next = Some(Duration::from_micros(u64::try_from(due_in).unwrap_or_default()));
                break;
            }
            match read_key(connection, request, row, room).await? {
                Read::Key(key, left) => {
                    due.keys.push(key);
                    room = left;
                }
                Read::Unreadable => {}
                Read::NoRoom => {
                    due.next = Some(Duration::ZERO);
                    break;
                }
            }
        }
        if due.next.is_some() || rows.len() <= request.keys {
            return Ok(due);
        }
        seen += rows.len();
    }
}

/// The statement for failing keys, the next due first, those that are not due yet behind them.
fn statement(request: &DueRequest, buckets: &BucketSet, seen: usize) -> String {
    let mut conditions = format!(
        "k.route = {} and k.held = 0 and {}",
        sql::literal(request.route.as_str()),
        not_muted("k.topic", "k.`key`", &request.muted)
    );
    if *buckets != BucketSet::ALL {
        let buckets = sql::commas(buckets.iter().map(|bucket| bucket.0));
        conditions.push_str(&format!(" and k.bucket in ({buckets})"));
    }
    if !request.except.is_empty() {
        let except = request
            .except
            .iter()
            .map(|key| format!("({},{})", sql::literal(key.topic.as_str()), sql::literal(key.key.as_str())));
        conditions.push_str(&format!(" and (k.topic, k.`key`) not in ({})", sql::commas(except)));
    }
    // One more than asked for, due or not: it says when to ask again. A key without a time, which
    // somebody has released by hand, is due.
    let limit = request.keys.saturating_add(1);
    format!(
        "select k.topic, k.`key`, k.bucket, k.version, k.failing, k.attempts, k.first_failure, \
         coalesce(k.next_attempt_at - timestampdiff(microsecond, timestamp'1970-01-01 00:00:00', utc_timestamp(6)), 0) \
         from outbox_key k force index (outbox_key_due) where {conditions} order by k.next_attempt_at limit {limit} offset {seen}"
    )
}

/// A key with its parked messages.
async fn read_key(
    connection: &mut MySqlConnection,
    request: &DueRequest,
    row: &MySqlRow,
    mut room: Room,
) -> Result<Read, sqlx::Error> {
    let text = |column: usize| -> Result<String, sqlx::Error> {
        let bytes: &[u8] = row.try_get_unchecked(column)?;
        Ok(String::from_utf8_lossy(bytes).into_owned())
    };
    let (topic, name) = (text(0)?, text(1)?);
    let Ok(key) = KeyId::new(&topic, &name) else {
        tracing::error!(topic, key = name, "a row of outbox_key has an invalid name; remove it");
        return Ok(Read::Unreadable);
    };
    let mut parked: Vec<Arc<Stored>> = Vec::new();
    let within = last_within(connection, request, &key, &mut room).await?;
    if let Within::NoRoom = within {
        return Ok(Read::NoRoom);
    }
    if let Within::UpTo(last) = within {
        let query = sqlx::query(sql::DUE_MESSAGES)
            .bind(request.route.as_str().as_bytes())
            .bind(key.topic.as_str().as_bytes())
            .bind(key.key.as_str().as_bytes())
            .bind(last);
        for row in &query.fetch_all(connection).await? {
            match raw(row).message(None) {
                Ok(stored) => parked.push(stored),
                // Only what could be read is parked, so somebody changed it since. Its key waits,
                // and is seen to wait.
                Err(not) => {
                    let position = not.waiting.at.position.0;
                    tracing::error!(%key, position, reason = not.reason, "a parked row is malformed; skip it");
                    return Ok(Read::Unreadable);
                }
            }
        }
    }
    let failing: Option<&[u8]> = row.try_get_unchecked(4)?;
    let failing = failing.and_then(|id| Uuid::from_slice(id).ok()).map(MessageId::from_uuid);
    let attempts = u32::try_from(row.try_get_unchecked::<i64, _>(5)?).unwrap_or(u32::MAX);
    let key = DueKey::new(key, Bucket(row.try_get_unchecked(2)?), row.try_get_unchecked(3)?, parked);
    Ok(Read::Key(key.with_failing(failing, attempts, failure(row, 6)?), room))
}

/// A failure as a column has it; none where it has nothing that can be read.
pub(crate) fn failure(row: &MySqlRow, column: usize) -> Result<Option<Failure>, sqlx::Error> {
    let bytes: Option<&[u8]> = row.try_get_unchecked(column)?;
    Ok(bytes.and_then(|bytes| std::str::from_utf8(bytes).ok()).and_then(Failure::from_text))
}

/// Parked messages of a key that there is room for.
enum Within {
    NothingParked,
    NoRoom,
    /// Those up to this position.
    UpTo(i64),
}

/// Parked messages of a key within the bounds.
async fn last_within(
    connection: &mut MySqlConnection,
    request: &DueRequest,
    key: &KeyId,
    room: &mut Room,
) -> Result<Within, sqlx::Error> {
    let rows = sqlx::query(sql::DUE_SIZES)
        .bind(request.route.as_str().as_bytes())
        .bind(key.topic.as_str().as_bytes())
        .bind(key.key.as_str().as_bytes())
        .bind(number(request.messages.max(1)))
        .fetch_all(connection)
        .await?;
    let mut within = Within::NothingParked;
    for row in &rows {
        let size = usize::try_from(row.try_get_unchecked::<i64, _>(1)?).unwrap_or_default();
        if !room.take(size) {
            return Ok(if let Within::NothingParked = within { Within::NoRoom } else { within });
        }
        within = Within::UpTo(row.try_get_unchecked(0)?);
    }
    Ok(within)
}

#[cfg(test)]
mod tests {
    use outbox_contract::Route;
    use outbox_contract::backend::RelayId;

    use super::*;

    #[test]
    fn what_is_asked_for_stands_in_the_statement() {
        let mut request = DueRequest::new(Route::default(), RelayId::new(), BucketSet::ALL);
        request.except = vec![KeyId::new("t", "k").unwrap()];
        request.keys = 4;
        request.messages = 1;
        request.bytes = 1;
        let statement = statement(&request, &BucketSet::from_iter([Bucket(3), Bucket(4)]), 0);
        assert!(statement.contains("(k.topic, k.`key`) not in ((x'74',x'6b'))"), "{statement}");
        assert!(
            statement.contains("k.bucket in (3,4)") && statement.ends_with("limit 5 offset 0"),
            "{statement}"
        );
    }
}
