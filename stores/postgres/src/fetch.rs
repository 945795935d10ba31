//! Fetching: one statement under a bound of rows, and a second one for content that did not come along.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use outbox_contract::fetch::{FetchRequest, Fetched, FetchedRow, RowId, Scope, Stored};
use outbox_contract::{BucketSet, Position};
use sqlx::Row;
use sqlx::postgres::{PgConnection, PgRow};

use crate::error::{answered_by_a_standby, content_is_hidden};
use crate::row::{Column, Raw};
use crate::settle::Rows;
use crate::sql::Statements;

/// Content up to this many bytes always comes along with its row: asking again would cost more.
const LEAST_BYTES_ALONG: usize = 1_024;

const STATE: usize = Column::COUNT;
const SIZE: usize = Column::COUNT + 1;

const FAILING: i64 = 1;
const MUTED: i64 = 2;
/// Not a row: how far the statement has looked.
const LOOKED: i64 = 3;
/// Not a row: how far the statement has looked, and there is more behind that.
const WALKED: i64 = 4;

/// The most positions that a fetch walks over. A backlog of other routes may be of any size, and a fetch that takes longer than its caller waits would
/// begin again from where it began.
const MOST_WALKED: i64 = 200_000;

/// Not a row: a standby answers.
const LAGS: i64 = 5;

/// How often a page is read again that begins with a row whose content is missing: settled in between, the row itself is missing the next time.
const TRIES: u32 = 4;
/// The pause before such a page is read again, times the number of the try.
const PAUSE: Duration = Duration::from_millis(20);

/// Reads what a relay may publish.
pub(crate) async fn fetch(
    connection: &mut PgConnection,
    sql: &Statements,
    request: &FetchRequest,
) -> Result<Fetched, sqlx::Error> {
    for tried in 1..TRIES {
        match read(connection, sql, request).await? {
            Page::Read(fetched) => return Ok(fetched),
            Page::Hidden(_) => tokio::time::sleep(PAUSE * tried).await,
        }
    }
    match read(connection, sql, request).await? {
        Page::Read(fetched) => Ok(fetched),
        Page::Hidden(position) => Err(content_is_hidden(position.0)),
    }
}

/// What one reading gives.
enum Page {
    Read(Fetched),
    /// Its first row is here and has no content: nobody knows whether it is gone.
    Hidden(Position),
}

/// What the rows of one answer say.
struct Taken<'r> {
    /// Each with its state, and whether its content came along.
    rows: Vec<(&'r PgRow, i64, bool)>,
    /// Whether a limit cut it short.
    is_cut: bool,
    reached: Position,
    walked: Option<Position>,
}

async fn read(
    connection: &mut PgConnection,
    sql: &Statements,
    request: &FetchRequest,
) -> Result<Page, sqlx::Error> {
    let rows = read_rows(connection, sql, request).await?;
    let Taken { rows, is_cut, reached, walked } = take(&rows, request)?;
    let without: Vec<RowId> = rows
        .iter()
        .filter(|(_, _, is_whole)| !is_whole)
        .map(|(row, ..)| Raw::new(row).waiting().at)
        .collect();
    let content = read_content(connection, sql, &without).await?;
    let mut full = is_cut;
    let mut fetched: Vec<FetchedRow> = Vec::with_capacity(rows.len());
    let mut before = None;
    for (row, state, is_whole) in rows {
        let raw = if is_whole {
            Raw::new(row)
        } else if let Some(content) = content.get(&Raw::new(row).position().0) {
            Raw::with_content(row, content.try_get_unchecked(1)?, content.try_get_unchecked(2)?)
        } else {
            // Settled in the meantime, or not to be seen where that was asked. Only the statement that shows rows can say which: it ends here.
            let position = Raw::new(row).position();
            if fetched.is_empty() {
                return Ok(Page::Hidden(position));
            }
            full = true;
            break;
        };
        let row = classify(&raw, state, before.as_deref());
        if let FetchedRow::Message(stored) = &row {
            before = Some(Arc::clone(stored));
        }
        fetched.push(row);
    }
    if let Some(walked) = walked
        && !full
    {
        // Cut short behind the last position that it has walked over: the next fetch goes on from there, as behind a row that was muted.
        fetched.push(FetchedRow::Muted(walked));
        full = true;
    }
    Ok(Page::Read(Fetched { rows: fetched, full, reached: if full { Position::START } else { reached } }))
}

async fn read_rows(
    connection: &mut PgConnection,
    sql: &Statements,
    request: &FetchRequest,
) -> Result<Vec<PgRow>, sqlx::Error> {
    let (topic, key) = match &request.scope {
        Scope::Everything => (None, None),
        Scope::Topic(topic) => (Some(topic.as_str()), None),
        Scope::Key(key) => (Some(key.topic.as_str()), Some(key.key.as_str())),
    };
    let muted = Muted::of(&request.muted);
    let limit = request.limit.max(1);
    // Rows whose content comes along are within the bytes asked for, all together: the driver reads rows ahead.
    let along = (request.bytes / limit).max(LEAST_BYTES_ALONG);
    sql.query(&sql.fetch)
        .bind(request.route.as_str())
        .bind(request.relay.as_uuid())
        .bind(bits(&request.buckets))
        .bind(topic)
        .bind(key)
        .bind(request.after.0)
        .bind(request.until.0)
        .bind(request.except.iter().map(|position| position.0).collect::<Vec<_>>())
        .bind(muted.everything)
        .bind(muted.topics)
        .bind(muted.key_topics)
        .bind(muted.keys)
        .bind(number(limit))
        .bind(number(along))
        .bind(number(request.buckets.len()))
        .bind(MOST_WALKED)
        .fetch_all(connection)
        .await
}

/// The rows that are within the bounds.
fn take<'r>(rows: &'r [PgRow], request: &FetchRequest) -> Result<Taken<'r>, sqlx::Error> {
    let mut taken =
        Taken { rows: Vec::with_capacity(rows.len()), is_cut: false, reached: Position::START, walked: None };
    let mut bytes: usize = 0;
    for row in rows {
        let state: i64 = row.try_get_unchecked(STATE)?;
        let size: i64 = row.try_get_unchecked(SIZE)?;
        match state {
            LAGS => return Err(answered_by_a_standby()),
            LOOKED => taken.reached = Position(size),
            WALKED => taken.walked = Some(Position(size)),
            _ if taken.is_cut => {}
            _ => {
                bytes = bytes.saturating_add(usize::try_from(size).unwrap_or_default());
                if bytes > request.bytes && !taken.rows.is_empty() {
                    taken.is_cut = true;
                } else {
                    taken.rows.push((row, state, has_content(row, state)?));
                }
            }
        }
    }
    taken.is_cut |= taken.rows.len() >= request.limit.max(1);
    Ok(taken)
}

/// Whether what is read of a row in this state came along with it.
fn has_content(row: &PgRow, state: i64) -> Result<bool, sqlx::Error> {
    let is_there = |column: Column| {
        row.try_get_unchecked::<Option<&[u8]>, _>(column as usize).map(|content| content.is_some())
    };
    match state {
        MUTED => Ok(true),
        FAILING => is_there(Column::Headers),
        _ => Ok(is_there(Column::Headers)? && is_there(Column::Payload)?),
    }
}

/// Content of rows that were too large to bring it along, by position.
async fn read_content(
    connection: &mut PgConnection,
    sql: &Statements,
    wanted: &[RowId],
) -> Result<HashMap<i64, PgRow>, sqlx::Error> {
    if wanted.is_empty() {
        return Ok(HashMap::new());
    }
    let wanted = Rows::new(wanted);
    let rows = sql.query(&sql.content).bind(wanted.positions).bind(wanted.ids).fetch_all(connection).await?;
    let mut content = HashMap::with_capacity(rows.len());
    for row in rows {
        if row.try_get("lags")? {
            return Err(answered_by_a_standby());
        }
        if row.try_get::<Option<&[u8]>, _>(1)?.is_some() {
            content.insert(row.try_get(0)?, row);
        }
    }
    Ok(content)
}

fn classify(raw: &Raw<'_>, state: i64, before: Option<&Stored>) -> FetchedRow {
    if state == MUTED {
        return FetchedRow::Muted(raw.position());
    }
    match raw.message(before) {
        // What is no message becomes a dead letter even where its key is failing: parked, it could never go out.
        Err(not) => FetchedRow::Malformed(not.waiting, not.reason),
        Ok(_) if state == FAILING => FetchedRow::Failing(raw.waiting()),
        Ok(stored) => FetchedRow::Message(stored),
    }
}

/// A number of rows or bytes as a statement takes it.
pub(crate) fn number(number: usize) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

/// Buckets as the statements take them: 256 bits, the first one lowest in the first byte.
pub(crate) fn bits(buckets: &BucketSet) -> Vec<u8> {
    let mut bits = vec![0_u8; 32];
    for bucket in buckets.iter() {
        bits[usize::from(bucket.0 / 8)] |= 1 << (bucket.0 % 8);
    }
    bits
}

/// Muted parts as the statements take them.
pub(crate) struct Muted<'s> {
    pub(crate) everything: bool,
    pub(crate) topics: Vec<&'s str>,
    pub(crate) key_topics: Vec<&'s str>,
    pub(crate) keys: Vec<&'s str>,
}

impl<'s> Muted<'s> {
    pub(crate) fn of(scopes: &'s [Scope]) -> Self {
        let mut muted =
            Self { everything: false, topics: Vec::new(), key_topics: Vec::new(), keys: Vec::new() };
        for scope in scopes {
            match scope {
                Scope::Everything => muted.everything = true,
                Scope::Topic(topic) => muted.topics.push(topic.as_str()),
                Scope::Key(key) => {
                    muted.key_topics.push(key.topic.as_str());
                    muted.keys.push(key.key.as_str());
                }
            }
        }
        muted
    }
}

#[cfg(test)]
mod tests {
    use outbox_contract::Bucket;

    use super::*;

    #[test]
    fn the_bit_of_a_bucket_is_where_the_server_looks_for_it() {
        let set = BucketSet::from_iter([Bucket(0), Bucket(9), Bucket(255)]);
        let bits = bits(&set);
        assert_eq!((bits.len(), bits[0], bits[1], bits[31]), (32, 1, 2, 128));
    }
}
