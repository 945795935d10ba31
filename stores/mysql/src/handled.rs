//! Ids that consumers have handled: their retention, and how an operator removes them.

use outbox_contract::admin::{HandledFilter, MAX_PER_CALL};
use outbox_contract::backend::rules::micros;
use outbox_contract::backend::rules::retention::{HandledIdsCut, HandledIdsRetention};
use outbox_contract::{MessageId, Timestamp};
use outbox_store_sql::message_id;
use sqlx::mysql::{MySql, MySqlConnection};
use sqlx::{QueryBuilder, Row};

use crate::config::MySqlOptions;
use crate::fetch::number;
use crate::sql;

/// Removes ids that are over their time, of each consumer the oldest first. Returns their number.
pub(crate) async fn expire(
    connection: &mut MySqlConnection,
    options: &MySqlOptions,
    (now, limit): (i64, usize),
) -> Result<u64, sqlx::Error> {
    let now = Timestamp::from_micros(now);
    let begin = retention(connection, options, now).await?.cut(now);
    let (mut removed, mut consumer) = (0, Vec::new());
    while removed < limit {
        let next =
            sqlx::query(sql::MAINTAIN_CONSUMER).bind(&consumer).fetch_optional(&mut *connection).await?;
        let Some(next) = next else { break };
        consumer = next.try_get_unchecked(0)?;
        if begin.is_due(Timestamp::from_micros(next.try_get_unchecked(1)?)) {
            let cut = cut(connection, &consumer, begin).await?;
            let remove =
                sqlx::query(sql::MAINTAIN_HANDLED).bind(&consumer).bind(cut).bind(number(limit - removed));
            let done = remove.execute(&mut *connection).await?.rows_affected();
            removed += usize::try_from(done).unwrap_or(limit);
        }
    }
    Ok(removed as u64)
}

/// Records the retention that this process was opened with.
pub(crate) async fn record_retention(
    connection: &mut MySqlConnection,
    options: &MySqlOptions,
) -> Result<(), sqlx::Error> {
    let record = sqlx::query(sql::RECORD_RETENTION).bind(micros(options.handled_ids_kept));
    record.bind(micros(options.handled_ids_max_age)).execute(connection).await.map(drop)
}

/// Returns the retention in force: that of this process, or a longer one that is recorded.
async fn retention(
    connection: &mut MySqlConnection,
    options: &MySqlOptions,
    now: Timestamp,
) -> Result<HandledIdsRetention, sqlx::Error> {
    let mut longest = HandledIdsRetention::new(options.handled_ids_kept, options.handled_ids_max_age);
    for row in sqlx::query(sql::MAINTAIN_RETENTIONS).fetch_all(connection).await? {
        let recorded = (row.try_get_unchecked(0)?, row.try_get_unchecked(1)?);
        longest = longest.or_recorded(now, recorded, row.try_get_unchecked(2)?);
    }
    Ok(longest)
}

async fn cut(
    connection: &mut MySqlConnection,
    consumer: &[u8],
    mut cut: HandledIdsCut,
) -> Result<i64, sqlx::Error> {
    while let Some(at) = cut.look() {
        let latest = sqlx::query(sql::MAINTAIN_LATEST)
            .bind(consumer)
            .bind(at.as_micros())
            .fetch_one(&mut *connection)
            .await?;
        cut.found(latest.try_get_unchecked::<Option<i64>, _>(0)?.map(Timestamp::from_micros));
    }
    Ok(cut.cut().as_micros())
}

/// Counts what a filter selects.
pub(crate) async fn count(
    connection: &mut MySqlConnection,
    filter: &HandledFilter,
) -> Result<u64, sqlx::Error> {
    let mut query = selected("count(*)", filter);
    let row = query.build().persistent(false).fetch_one(connection).await?;
    row.try_get_unchecked::<i64, _>(0).map(i64::unsigned_abs)
}

/// Forgets what a filter selects, the oldest first. Returns their number and their ids.
pub(crate) async fn forget(
    connection: &mut MySqlConnection,
    filter: &HandledFilter,
) -> Result<(u64, Vec<MessageId>), sqlx::Error> {
    let mut choose = selected("id", filter);
    choose.push(" order by handled_at limit ").push_bind(number(MAX_PER_CALL));
    // Chosen without a lock, and removed by the primary key: this waits for no other transaction's
    // row.
    let rows = choose.build().persistent(false).fetch_all(&mut *connection).await?;
    let mut ids = Vec::with_capacity(rows.len());
    for row in &rows {
        ids.extend(message_id(row.try_get_unchecked(0)?));
    }
    let forget = sqlx::query(sql::HANDLED_FORGET)
        .bind(sql::ids(ids.iter().copied()))
        .bind(filter.consumer.as_str().as_bytes());
    Ok((forget.execute(connection).await?.rows_affected(), ids))
}

/// A statement that reads these columns of what a filter selects.
fn selected(columns: &str, filter: &HandledFilter) -> QueryBuilder<MySql> {
    let mut query = QueryBuilder::new(format!("select {columns} from outbox_handled where consumer = "));
    query.push_bind(filter.consumer.as_str().as_bytes().to_vec());
    if let Some(topic) = &filter.topic {
        query.push(" and topic = ").push_bind(topic.as_str().as_bytes().to_vec());
    }
    if let Some(key) = &filter.key {
        query.push(" and `key` = ").push_bind(key.as_str().as_bytes().to_vec());
    }
    if let Some(since) = filter.since {
        query.push(" and handled_at >= ").push_bind(since.as_micros());
    }
    if let Some(before) = filter.before {
        query.push(" and handled_at < ").push_bind(before.as_micros());
    }
    query
}
