//! Ids that consumers have handled: their retention, and how an operator removes them.

use outbox_contract::Timestamp;
use outbox_contract::admin::{HandledFilter, MAX_PER_CALL};
use outbox_contract::backend::rules::micros;
use outbox_contract::backend::rules::retention::{HandledIdsCut, HandledIdsRetention};
use sqlx::query::Query;
use sqlx::sqlite::{Sqlite, SqliteArguments, SqlitePool};

use crate::config::SqliteOptions;
use crate::lease::now;
use crate::sql;

/// Removes ids that are over their time, of each consumer the oldest first. Returns their number.
pub(crate) async fn expire(
    pool: &SqlitePool,
    options: &SqliteOptions,
    limit: i64,
) -> Result<u64, sqlx::Error> {
    let now = Timestamp::from_micros(now(&mut *pool.acquire().await?).await?);
    let begin = retention(pool, options, now).await?.cut(now);
    let (mut removed, mut consumer) = (0, String::new());
    while removed < limit {
        let next = sqlx::query_as(sql::MAINTAIN_CONSUMER).bind(&consumer).fetch_optional(pool).await?;
        let Some((name, oldest)) = next else { break };
        consumer = name;
        if begin.is_due(Timestamp::from_micros(oldest)) {
            let cut = cut(pool, &consumer, begin).await?;
            let remove = sqlx::query(sql::MAINTAIN_HANDLED).bind(&consumer).bind(cut).bind(limit - removed);
            let done = remove.execute(pool).await?.rows_affected();
            removed = removed.saturating_add(i64::try_from(done).unwrap_or(i64::MAX));
        }
    }
    Ok(removed.unsigned_abs())
}

/// Records the retention that this process was opened with.
pub(crate) async fn record_retention(pool: &SqlitePool, options: &SqliteOptions) -> Result<(), sqlx::Error> {
    let record = sqlx::query(sql::RECORD_RETENTION).bind(micros(options.handled_ids_kept));
    record.bind(micros(options.handled_ids_max_age)).execute(pool).await.map(drop)
}

/// Returns the retention in force: that of this process, or a longer one that is recorded.
async fn retention(
    pool: &SqlitePool,
    options: &SqliteOptions,
    now: Timestamp,
) -> Result<HandledIdsRetention, sqlx::Error> {
    let own = HandledIdsRetention::new(options.handled_ids_kept, options.handled_ids_max_age);
    let recorded: Vec<(i64, i64, i64)> = sqlx::query_as(sql::MAINTAIN_RETENTIONS).fetch_all(pool).await?;
    Ok(recorded
        .into_iter()
        .fold(own, |longest, (kept, max_age, at)| longest.or_recorded(now, (kept, max_age), at)))
}

async fn cut(pool: &SqlitePool, consumer: &str, mut cut: HandledIdsCut) -> Result<i64, sqlx::Error> {
    while let Some(at) = cut.look() {
        let latest: Option<i64> = sqlx::query_scalar(sql::MAINTAIN_LATEST)
            .bind(consumer)
            .bind(at.as_micros())
            .fetch_one(pool)
            .await?;
        cut.found(latest.map(Timestamp::from_micros));
    }
    Ok(cut.cut().as_micros())
}

/// A statement whose parameters 1 to 5 are the filter.
fn filtered<'q>(statement: &'static str, filter: &HandledFilter) -> Query<'q, Sqlite, SqliteArguments> {
    sqlx::query(statement)
        .bind(filter.consumer.as_str().to_owned())
        .bind(filter.topic.as_ref().map(|topic| topic.as_str().to_owned()))
        .bind(filter.key.as_ref().map(|key| key.as_str().to_owned()))
        .bind(filter.since.map(Timestamp::as_micros))
        .bind(filter.before.map(Timestamp::as_micros))
}

/// A statement that counts.
pub(crate) fn count<'q>(filter: &HandledFilter) -> Query<'q, Sqlite, SqliteArguments> {
    filtered(sql::HANDLED_COUNT, filter)
}

/// A statement that forgets.
pub(crate) fn forget<'q>(filter: &HandledFilter) -> Query<'q, Sqlite, SqliteArguments> {
    filtered(sql::HANDLED_FORGET, filter).bind(i64::try_from(MAX_PER_CALL).unwrap_or(i64::MAX))
}
