//! Fetching: one statement under a bound of rows, and a second one for content that the first did
//! not return.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use outbox_contract::backend::{
    BucketSet, FetchRequest, Fetched, FetchedRow, Position, RowId, Scope, Stored,
};
use outbox_store_sql::Column;
use sqlx::Row;
use sqlx::postgres::{PgConnection, PgRow};

use crate::error::{answered_by_a_standby, answered_in_another_life, content_is_hidden};
use crate::row::{Raw, raw, raw_with_content};
use crate::settle::Rows;
use crate::sql::Statements;

/// Content up to this many bytes is always returned with its row: a second query would cost more.
const LEAST_BYTES_ALONG: usize = 1_024;

const STATE: usize = Column::COUNT;
const SIZE: usize = Column::COUNT + 1;

const FAILING: i64 = 1;
const MUTED: i64 = 2;
/// Not a row: the position up to which the statement has looked.
const LOOKED: i64 = 3;
/// Not a row: the position up to which the statement has looked, with more behind it.
const WALKED: i64 = 4;

/// Maximum number of positions that a fetch scans. A backlog of other routes may be of any size,
/// and a fetch that takes longer than its caller waits would start over from the same position.
const MAX_WALKED: i64 = 200_000;

/// Not a row: a standby answers.
const LAGS: i64 = 5;

/// Added to the state of what is not a row: the relay does not hold every requested bucket.
const LAPSED: i64 = 8;

/// Number of reads of a page that begins with a row without content: if the row was settled in
/// between, the next read no longer returns it.
const TRIES: u32 = 4;
/// Pause before such a page is read again, times the number of the try.
const PAUSE: Duration = Duration::from_millis(20);

/// Reads the messages that a relay may publish. Behind a pooler, only in the life of the database
/// that is asked for: its connections outlive the server behind it.
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

/// Result of one read.
enum Page {
    Read(Fetched),
    /// The first row is visible and has no content: it is unknown whether it is gone.
    Hidden(Position),
}

/// Content of the rows of one answer.
struct Taken<'r> {
    /// Each row with its state, and whether its content was returned.
    rows: Vec<(&'r PgRow, i64, bool)>,
    /// True if a limit cut it short.
    is_cut: bool,
    reached: Position,
    walked: Option<Position>,
    /// True if the relay did not hold every requested bucket.
    lapsed: bool,
    /// Life of the database, as the heartbeats behind a pooler report it.
    life: i64,
}

async fn read(
    connection: &mut PgConnection,
    sql: &Statements,
    request: &FetchRequest,
) -> Result<Page, sqlx::Error> {
    let rows = read_rows(connection, sql, request).await?;
    let Taken { rows, is_cut, reached, walked, lapsed, life } = take(&rows, request)?;
    if sql.is_pooled() && request.life.is_some_and(|known| known != life) {
        return Err(answered_in_another_life());
    }
    let without: Vec<RowId> =
        rows.iter().filter(|(_, _, is_whole)| !is_whole).map(|(row, ..)| raw(row).waiting().at).collect();
    let content = read_content(connection, sql, &without).await?;
    let mut full = is_cut;
    let mut fetched: Vec<FetchedRow> = Vec::with_capacity(rows.len());
    let mut before = None;
    for (row, state, is_whole) in rows {
        let raw = if is_whole {
            raw(row)
        } else if let Some(content) = content.get(&raw(row).position().0) {
            raw_with_content(row, content.try_get_unchecked(1)?, content.try_get_unchecked(2)?)
        } else {
            // Settled in the meantime, or invisible to the second statement. Only the statement
            // that shows rows can tell which: the page ends here.
            let position = raw(row).position();
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
        // Cut short behind the last scanned position: the next fetch continues from there, as
        // behind a muted row.
        fetched.push(FetchedRow::Muted(walked));
        full = true;
    }
    let reached = if full { Position::START } else { reached };
    Ok(Page::Read(Fetched::new(fetched, full, reached, lapsed)))
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
    // Rows returned with their content are within the requested bytes, all together: the driver
    // reads rows ahead.
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
        .bind(MAX_WALKED)
        .fetch_all(connection)
        .await
}

/// Takes the rows that are within the bounds.
fn take<'r>(rows: &'r [PgRow], request: &FetchRequest) -> Result<Taken<'r>, sqlx::Error> {
    let mut taken = Taken {
        rows: Vec::with_capacity(rows.len()),
        is_cut: false,
        reached: Position::START,
        walked: None,
        lapsed: false,
        life: 0,
    };
    let mut bytes: usize = 0;
    for row in rows {
        let state: i64 = row.try_get_unchecked(STATE)?;
        let size: i64 = row.try_get_unchecked(SIZE)?;
        taken.lapsed |= state >= LAPSED;
        if matches!(state % LAPSED, LOOKED | WALKED) {
            taken.life = row.try_get_unchecked(Column::AppendedAt as usize)?;
        }
        match state % LAPSED {
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

/// Returns true if the content of a row in this state was returned with it.
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

/// Reads content of rows that were too large to return it, by position.
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
        // An undecodable row becomes a dead letter even if its key is failing: parked, it could
        // never be sent.
        Err(not) => FetchedRow::Malformed(not.waiting, not.reason),
        Ok(_) if state == FAILING => FetchedRow::Failing(raw.waiting()),
        Ok(stored) => FetchedRow::Message(stored),
    }
}

/// Converts a number of rows or bytes to a statement parameter.
pub(crate) fn number(number: usize) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

/// Converts buckets to a statement parameter: 256 bits, the first one lowest in the first byte.
pub(crate) fn bits(buckets: &BucketSet) -> Vec<u8> {
    let mut bits = vec![0_u8; 32];
    for bucket in buckets.iter() {
        bits[usize::from(bucket.0 / 8)] |= 1 << (bucket.0 % 8);
    }
    bits
}

/// Muted parts as statement parameters.
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
    use outbox_contract::backend::Bucket;

    use super::*;

    #[test]
    fn the_bit_of_a_bucket_is_where_the_server_looks_for_it() {
        let set = BucketSet::from_iter([Bucket(0), Bucket(9), Bucket(255)]);
        let bits = bits(&set);
        assert_eq!((bits.len(), bits[0], bits[1], bits[31]), (32, 1, 2, 128));
    }
}
