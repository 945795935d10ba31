//! Fetching: one statement, streamed, under a bound of rows and of bytes.

use futures_util::TryStreamExt;
use futures_util::stream::BoxStream;
use outbox_contract::StoreError;
use outbox_contract::backend::{Bucket, BucketSet, FetchRequest, Fetched, FetchedRow, Position, Scope};
use sqlx::sqlite::{SqliteConnection, SqliteRow};
use sqlx::{Row, ValueRef};

use crate::error::store_error;
use crate::pools::Pools;
use crate::row::{Raw, raw, raw_with_content};
use crate::sql;

/// Maximum size of a payload that is returned with its row; a larger one is read separately: the
/// driver reads rows ahead, and memory has to stay bounded.
const MAX_BYTES_ALONG: i64 = 64 * 1024;

/// Maximum number of rows without a bucket that are assigned theirs at once.
const MAX_PLACED: i64 = 1_000;

/// Reads the messages that a relay may publish.
pub(crate) async fn fetch(pools: &Pools, request: &FetchRequest) -> Result<Fetched, StoreError> {
    let failed = |error| store_error("fetch", error);
    loop {
        let fetched = read(pools, request).await.map_err(failed)?;
        // Rows of a program that computes no buckets may be in front: assign theirs and read on.
        if fetched.full || !place(pools).await.map_err(failed)? {
            return Ok(fetched);
        }
    }
}

/// Rows of a fetch before large contents are read.
#[derive(Default)]
struct Page {
    rows: Vec<Decoded>,
    /// True if the limit of bytes cut it short.
    cut: bool,
    reached: Position,
    /// Last position that was scanned, where the limit of scanned rows cut it short.
    walked: Option<Position>,
    lapsed: bool,
}

async fn page(
    mut stream: BoxStream<'_, Result<SqliteRow, sqlx::Error>>,
    max_bytes: usize,
) -> Result<Page, sqlx::Error> {
    let (mut page, mut bytes) = (Page::default(), 0);
    while let Some(row) = stream.try_next().await? {
        // On each row: a limit of bytes may end the page before the last one.
        page.lapsed = row.try_get("lapsed")?;
        match row.try_get("state")? {
            LOOKED => {
                page.reached = Position(row.try_get("size")?);
                break;
            }
            WALKED => {
                page.walked = Some(Position(row.try_get("size")?));
                break;
            }
            _ => {}
        }
        bytes += usize::try_from(row.try_get::<i64, _>("size")?).unwrap_or_default();
        if bytes > max_bytes && !page.rows.is_empty() {
            page.cut = true;
            break;
        }
        page.rows.push(decode(row)?);
    }
    Ok(page)
}

async fn read(pools: &Pools, request: &FetchRequest) -> Result<Fetched, sqlx::Error> {
    let mut connection = pools.reads.acquire().await?;
    let (topic, key) = match &request.scope {
        Scope::Everything => (None, None),
        Scope::Topic(topic) => (Some(topic.as_str()), None),
        Scope::Key(key) => (Some(key.topic.as_str()), Some(key.key.as_str())),
    };
    let muted = Muted::of(&request.muted);
    let limit = request.limit.max(1);
    let query = sqlx::query(sql::FETCH)
        .bind(request.route.as_str())
        .bind(&request.relay.as_uuid().as_bytes()[..])
        .bind(bucket_list(&request.buckets))
        .bind(topic)
        .bind(key)
        .bind(request.after.0)
        .bind(request.until.0)
        .bind(sql::numbers(request.except.iter().map(|position| position.0)))
        .bind(muted.everything)
        .bind(muted.topics)
        .bind(muted.keys)
        .bind(i64::try_from(limit).unwrap_or(i64::MAX))
        .bind(MAX_BYTES_ALONG)
        .bind(i64::try_from(request.buckets.len()).unwrap_or(i64::MAX))
        .bind(MAX_WALKED);

    let Page { rows, cut, reached, walked, lapsed } =
        page(query.fetch(&mut *connection), request.bytes).await?;
    let mut full = cut || rows.len() >= limit;
    let mut fetched = Vec::with_capacity(rows.len());
    for row in rows {
        match row {
            Decoded::Whole(row) => fetched.push(row),
            Decoded::Large(row) => fetched.extend(read_content(&mut connection, &row).await?),
        }
    }
    if let Some(walked) = walked
        && !full
    {
        // Cut short behind the last scanned position: the next fetch continues from there, as
        // behind a muted row.
        fetched.push(FetchedRow::Muted(walked));
        full = true;
    }
    Ok(Fetched::new(fetched, full, if full { Position::START } else { reached }, lapsed))
}

/// A decoded row: complete, or with content that is still to be read.
enum Decoded {
    Whole(FetchedRow),
    Large(SqliteRow),
}

const FAILING: i64 = 1;
const MUTED: i64 = 2;
/// Not a row: the position up to which the statement has looked.
const LOOKED: i64 = 3;
/// Not a row: the position up to which the statement has looked, with more behind it.
const WALKED: i64 = 4;

/// Maximum number of positions that a fetch scans. A backlog of other routes may be of any size,
/// and a fetch that takes longer than its caller waits would start over from the same position.
const MAX_WALKED: i64 = 200_000;

fn decode(row: SqliteRow) -> Result<Decoded, sqlx::Error> {
    let state: i64 = row.try_get("state")?;
    let raw = raw(&row);
    if state == MUTED {
        return Ok(Decoded::Whole(FetchedRow::Muted(raw.position())));
    }
    let is_null = |column| row.try_get_raw(column).map(|value| value.is_null());
    if is_null("headers")? || (state != FAILING && is_null("payload")?) {
        return Ok(Decoded::Large(row));
    }
    Ok(Decoded::Whole(classify(&raw, state)))
}

fn classify(raw: &Raw<'_>, state: i64) -> FetchedRow {
    match raw.message(None) {
        // An undecodable row becomes a dead letter even if its key is failing: parked, it could
        // never be sent.
        Err(not) => FetchedRow::Malformed(not.waiting, not.reason),
        Ok(_) if state == FAILING => FetchedRow::Failing(raw.waiting()),
        Ok(stored) => FetchedRow::Message(stored),
    }
}

/// Completes a row that was returned without its content. None: it was settled in the meantime.
async fn read_content(
    connection: &mut SqliteConnection,
    row: &SqliteRow,
) -> Result<Option<FetchedRow>, sqlx::Error> {
    let waiting = raw(row).waiting();
    let content = sqlx::query(sql::CONTENT)
        .bind(waiting.at.position.0)
        .bind(&waiting.at.id.as_uuid().as_bytes()[..])
        .fetch_optional(connection)
        .await?;
    let Some(content) = content else { return Ok(None) };
    let (headers, payload): (&[u8], &[u8]) =
        (content.try_get_unchecked("headers")?, content.try_get_unchecked("payload")?);
    Ok(Some(classify(&raw_with_content(row, headers, payload), row.try_get("state")?)))
}

/// Assigns buckets to rows of programs that compute none, the oldest first. Returns true if there
/// were any.
async fn place(pools: &Pools) -> Result<bool, sqlx::Error> {
    let rows = sqlx::query(sql::UNPLACED).bind(MAX_PLACED).fetch_all(&pools.reads).await?;
    if rows.is_empty() {
        return Ok(false);
    }
    let text = |row: &SqliteRow, column| -> Result<String, sqlx::Error> {
        let bytes: &[u8] = row.try_get_unchecked(column)?;
        Ok(String::from_utf8_lossy(bytes).into_owned())
    };
    let mut placed = Vec::with_capacity(rows.len());
    for row in &rows {
        let bucket = Bucket::of(&text(row, "topic")?, &text(row, "order_key")?);
        placed.push((row.try_get::<i64, _>("position")?, i64::from(bucket.0)));
    }
    sqlx::query(sql::PLACE).bind(sql::pairs(placed)).execute(&pools.settling).await?;
    Ok(true)
}

/// Converts buckets to a statement parameter: None for all of them.
pub(crate) fn bucket_list(buckets: &BucketSet) -> Option<String> {
    (*buckets != BucketSet::ALL).then(|| sql::numbers(buckets.iter().map(|bucket| i64::from(bucket.0))))
}

/// Muted parts as statement parameters.
pub(crate) struct Muted {
    pub(crate) everything: bool,
    pub(crate) topics: String,
    pub(crate) keys: String,
}

impl Muted {
    pub(crate) fn of(scopes: &[Scope]) -> Self {
        let topics = scopes.iter().filter_map(|scope| match scope {
            Scope::Topic(topic) => Some(topic.as_str()),
            Scope::Everything | Scope::Key(_) => None,
        });
        let keys = scopes.iter().filter_map(|scope| match scope {
            Scope::Key(key) => Some(serde_json::json!([key.topic.as_str(), key.key.as_str()])),
            Scope::Everything | Scope::Topic(_) => None,
        });
        Self {
            everything: scopes.contains(&Scope::Everything),
            topics: serde_json::Value::from_iter(topics).to_string(),
            keys: serde_json::Value::from_iter(keys).to_string(),
        }
    }
}
