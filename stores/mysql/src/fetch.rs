//! Fetching: which buckets the relay holds, then one statement, streamed, under a bound of rows and
//! of bytes.
//!
//! The statement is written out with its lists, as literals: so the server reads along the primary
//! key and compares with sorted constants. Lists as tables of their own would leave it to the
//! optimiser to read everything and sort it.

use futures_util::TryStreamExt;
use outbox_contract::Route;
use outbox_contract::backend::{
    Bucket, BucketSet, FetchRequest, Fetched, FetchedRow, Position, RelayId, Scope, Stored, StripeId,
};
use outbox_store_sql::Column;
use sqlx::mysql::{MySqlConnection, MySqlRow};
use sqlx::{AssertSqlSafe, Row, ValueRef};

use crate::row::{COUNT, Raw, index, raw, raw_with_content};
use crate::sql;

/// A larger payload does not come along with its row but is read on its own: what is behind the
/// bound of bytes was sent all the same.
const MAX_BYTES_ALONG: usize = 64 * 1024;

/// Number of rows in flight up to which their content is read for nothing: a second pass over all
/// rows costs more.
const MAX_PASSED: usize = 128;

const STATE: usize = COUNT;
const SIZE: usize = COUNT + 1;

const FAILING: i64 = 1;
const MUTED: i64 = 2;

/// Buckets that a relay holds, the last position of the route, and the database's clock in
/// microseconds.
pub(crate) struct Held {
    pub(crate) buckets: BucketSet,
    last: Position,
    clock: i64,
}

/// Buckets that a relay holds an unexpired lease of.
pub(crate) async fn held(
    connection: &mut MySqlConnection,
    route: &Route,
    relay: RelayId,
) -> Result<Held, sqlx::Error> {
    let route = route.as_str().as_bytes();
    let row = sqlx::query(sql::HELD)
        .bind(route)
        .bind(route)
        .bind(&relay.as_uuid().as_bytes()[..])
        .fetch_one(connection)
        .await?;
    let words: [u64; 4] = [
        row.try_get_unchecked(0)?,
        row.try_get_unchecked(1)?,
        row.try_get_unchecked(2)?,
        row.try_get_unchecked(3)?,
    ];
    let holds = |bucket: &Bucket| words[usize::from(bucket.0 / 64)] >> (bucket.0 % 64) & 1 == 1;
    Ok(Held {
        buckets: BucketSet::ALL.iter().filter(holds).collect(),
        last: Position(row.try_get_unchecked(4)?),
        clock: row.try_get_unchecked(5)?,
    })
}

/// Reads what a relay may publish. Also returns the database's clock before that.
pub(crate) async fn fetch(
    connection: &mut MySqlConnection,
    request: &FetchRequest,
) -> Result<(Fetched, i64), sqlx::Error> {
    let held = held(connection, &request.route, request.relay).await?;
    let buckets = held.buckets.intersection(&request.buckets);
    let lapsed = buckets != request.buckets;
    if buckets.is_empty() {
        return Ok((Fetched::new(Vec::new(), false, Position::START, lapsed), held.clock));
    }
    let limit = request.limit.max(1);
    let mut rows: Vec<MySqlRow> = Vec::new();
    let mut bytes: usize = 0;
    let mut cut = false;
    {
        let mut stream = sqlx::raw_sql(AssertSqlSafe(statement(request, &buckets))).fetch(&mut *connection);
        while let Some(row) = stream.try_next().await? {
            let size: i64 = row.try_get_unchecked(SIZE)?;
            bytes = bytes.saturating_add(usize::try_from(size).unwrap_or_default());
            if bytes > request.bytes && !rows.is_empty() {
                cut = true;
                break;
            }
            rows.push(row);
        }
    }
    let full = cut || rows.len() >= limit;
    let mut fetched = Vec::with_capacity(rows.len());
    for row in &rows {
        let state: i64 = row.try_get_unchecked(STATE)?;
        if has_content(row, state)? {
            let row = classify(&raw(row), state, last_message(&fetched));
            fetched.push(row);
        } else {
            fetched.extend(read_content(connection, request, row, state).await?);
        }
    }
    // Messages appended from now on may stand anywhere; in this snapshot nothing stands behind the
    // last position that there was before.
    let reached = if full || lapsed { Position::START } else { held.last.min(request.until) };
    Ok((Fetched::new(fetched, full, reached, lapsed), held.clock))
}

/// The statement of a fetch, in the shape that the request needs.
fn statement(request: &FetchRequest, buckets: &BucketSet) -> String {
    let takes_most = request.muted.is_empty() && buckets.len() >= BucketSet::ALL.len() / 2;
    if takes_most && request.scope == Scope::Everything && request.except.len() <= MAX_PASSED {
        one_pass(request, buckets)
    } else {
        two_passes(request, buckets)
    }
}

/// Reads content together with the decision on each row. Content of rows that are left out is read
/// for nothing, so this is for requests that take most of what they pass.
fn one_pass(request: &FetchRequest, buckets: &BucketSet) -> String {
    let conditions = conditions(request, buckets);
    // The first part is evaluated once, and nearly always false.
    let fails = format!(
        "(select exists (select 1 from outbox_key where route = {route})) and {}",
        fails(request),
        route = sql::literal(request.route.as_str())
    );
    let limit = request.limit.max(1);
    format!(
        "select w.position, w.id, w.stripe, w.number, w.topic, w.`key`, w.event_type, w.schema_version, w.content_type, \
         case when length(w.headers) <= {MAX_BYTES_ALONG} then w.headers end, \
         case when {fails} then null when length(w.payload) <= {MAX_BYTES_ALONG} then w.payload end, \
         w.occurred_at, w.appended_at, case when {fails} then {FAILING} else 0 end, \
         length(w.headers) + case when {fails} then 0 else length(w.payload) end \
         from outbox_message w force index (primary) where {conditions} order by w.position limit {limit}"
    )
}

/// The inner select decides on rows, in the order of the primary key and up to the limit; the outer
/// one reads content.
fn two_passes(request: &FetchRequest, buckets: &BucketSet) -> String {
    let (conditions, fails) = (conditions(request, buckets), fails(request));
    let route = sql::literal(request.route.as_str());
    let muted = muted("w.topic", "w.order_key", &request.muted);
    let limit = request.limit.max(1);
    format!(
        "select page.position, m.id, m.stripe, m.number, m.topic, m.`key`, m.event_type, m.schema_version, m.content_type, \
         case when page.state < {MUTED} and length(m.headers) <= {MAX_BYTES_ALONG} then m.headers end, \
         case when page.state = 0 and length(m.payload) <= {MAX_BYTES_ALONG} then m.payload end, \
         m.occurred_at, m.appended_at, page.state, \
         case when page.state < {MUTED} then length(m.headers) else 0 end + case page.state when 0 then length(m.payload) else 0 end \
         from (select w.position, case {muted} when {fails} then {FAILING} else 0 end as state \
         from outbox_message w force index (primary) where {conditions} order by w.position limit {limit}) page \
         straight_join outbox_message m on m.route = {route} and m.position = page.position order by page.position"
    )
}

/// The condition that a row's key is failing or held.
fn fails(request: &FetchRequest) -> String {
    format!(
        "exists (select 1 from outbox_key k force index (primary) \
         where k.route = {} and k.topic = w.topic and k.`key` = w.order_key)",
        sql::literal(request.route.as_str())
    )
}

/// The conditions that a row is asked for.
fn conditions(request: &FetchRequest, buckets: &BucketSet) -> String {
    let route = sql::literal(request.route.as_str());
    let mut conditions = format!(
        "w.route = {route} and w.position > {} and w.position <= {}",
        request.after.0, request.until.0
    );
    match &request.scope {
        Scope::Everything => {}
        Scope::Topic(topic) => {
            conditions.push_str(&format!(" and w.topic = {}", sql::literal(topic.as_str())));
        }
        Scope::Key(key) => conditions.push_str(&format!(
            " and w.stripe = {} and w.topic = {} and w.order_key = {}",
            StripeId::of(key.topic.as_str(), key.key.as_str()).0,
            sql::literal(key.topic.as_str()),
            sql::literal(key.key.as_str())
        )),
    }
    if *buckets != BucketSet::ALL {
        let buckets = sql::commas(buckets.iter().map(|bucket| bucket.0));
        conditions.push_str(&format!(" and (w.stripe div 4) in ({buckets})"));
    }
    if !request.except.is_empty() {
        let except = sql::commas(request.except.iter().map(|position| position.0));
        conditions.push_str(&format!(" and w.position not in ({except})"));
    }
    conditions
}

/// The branches of a case that say which rows are muted.
fn muted(topic: &str, key: &str, scopes: &[Scope]) -> String {
    let mut branches = String::new();
    for scope in scopes {
        let branch = match scope {
            Scope::Everything => "true".to_owned(),
            Scope::Topic(muted) => format!("{topic} = {}", sql::literal(muted.as_str())),
            Scope::Key(muted) => format!(
                "({topic} = {} and {key} = {})",
                sql::literal(muted.topic.as_str()),
                sql::literal(muted.key.as_str())
            ),
        };
        branches.push_str(&format!("when {branch} then {MUTED} "));
    }
    branches
}

/// Returns the condition that a row is of none of these parts.
pub(crate) fn not_muted(topic: &str, key: &str, scopes: &[Scope]) -> String {
    format!("(case {} else 0 end) = 0", muted(topic, key, scopes)).replace("(case  else 0 end)", "0")
}

/// Returns true if the content of a row in this state came along with it.
fn has_content(row: &MySqlRow, state: i64) -> Result<bool, sqlx::Error> {
    let is_there = |column: Column| row.try_get_raw(index(column)).map(|value| !value.is_null());
    match state {
        MUTED => Ok(true),
        FAILING => is_there(Column::Headers),
        _ => Ok(is_there(Column::Headers)? && is_there(Column::Payload)?),
    }
}

/// Completes a row whose content did not come along. None: it was settled in the meantime.
async fn read_content(
    connection: &mut MySqlConnection,
    request: &FetchRequest,
    row: &MySqlRow,
    state: i64,
) -> Result<Option<FetchedRow>, sqlx::Error> {
    let at = raw(row).waiting().at;
    let content = sqlx::query(sql::CONTENT)
        .bind(request.route.as_str().as_bytes())
        .bind(at.position.0)
        .bind(&at.id.as_uuid().as_bytes()[..])
        .fetch_optional(connection)
        .await?;
    let Some(content) = content else { return Ok(None) };
    let (headers, payload) = (content.try_get_unchecked(0)?, content.try_get_unchecked(1)?);
    Ok(Some(classify(&raw_with_content(row, headers, payload), state, None)))
}

/// The last row, if it is a message: most resemble the one before.
fn last_message(rows: &[FetchedRow]) -> Option<&Stored> {
    match rows.last() {
        Some(FetchedRow::Message(stored)) => Some(stored),
        _ => None,
    }
}

fn classify(raw: &Raw<'_>, state: i64, before: Option<&Stored>) -> FetchedRow {
    if state == MUTED {
        return FetchedRow::Muted(raw.position());
    }
    match raw.message(before) {
        // An invalid row becomes a dead letter even if its key is failing: parked, it could never
        // be sent.
        Err(not) => FetchedRow::Malformed(not.waiting, not.reason),
        Ok(_) if state == FAILING => FetchedRow::Failing(raw.waiting()),
        Ok(stored) => FetchedRow::Message(stored),
    }
}

/// A number of rows or bytes as a statement takes it.
pub(crate) fn number(number: usize) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

/// Statements as a fetch writes them, for the server to prepare when the tables are checked.
pub(crate) fn samples() -> [String; 2] {
    let request = FetchRequest::new(Route::default(), RelayId::new(), BucketSet::ALL);
    let buckets = BucketSet::from_iter([Bucket(0)]);
    [one_pass(&request, &buckets), two_passes(&request, &buckets)]
}

#[cfg(test)]
mod tests {
    use outbox_contract::{KeyId, Topic};

    use super::*;

    #[test]
    fn nothing_of_a_name_is_read_as_sql() {
        let evil = KeyId::new("a' or '1'='1", "\\'; drop table outbox_message; --").unwrap();
        let mut request = FetchRequest::new(Route::new("x' or 1=1").unwrap(), RelayId::new(), BucketSet::ALL);
        request.scope = Scope::Key(evil.clone());
        request.muted = vec![Scope::Key(evil), Scope::Topic(Topic::new("'").unwrap())];
        let statement = statement(&request, &BucketSet::ALL);
        assert!(!statement.contains("drop") && !statement.contains(" or "), "{statement}");
    }

    #[test]
    fn what_is_asked_for_stands_in_the_statement() {
        let mut request = FetchRequest::new(Route::default(), RelayId::new(), BucketSet::ALL);
        request.except = vec![Position(5), Position(9)];
        request.limit = 7;
        let statement = statement(&request, &BucketSet::from_iter([Bucket(3), Bucket(4)]));
        assert!(statement.contains("w.position not in (5,9)"));
        assert!(statement.contains("(w.stripe div 4) in (3,4)"));
        assert!(statement.contains("limit 7) page"));
        assert_eq!(not_muted("t", "k", &[]), "0 = 0");
    }
}
