//! Maintenance and figures: work that one elected relay does for all, in short transactions.

use std::time::Duration;

use outbox_contract::Route;
use outbox_contract::backend::rules::micros;
use outbox_contract::backend::{Backlog, Maintained, Unserved};
use sqlx::Row;
use sqlx::sqlite::SqlitePool;

use crate::config::SqliteOptions;
use crate::handled;
use crate::lease::now;
use crate::sql;

/// A relay that has been dead for this long is removed.
const RELAYS_KEPT: Duration = Duration::from_secs(3_600);

pub(crate) async fn maintain(
    pool: &SqlitePool,
    options: &SqliteOptions,
    limit: usize,
) -> Result<Maintained, sqlx::Error> {
    let limit = i64::try_from(limit.max(1)).unwrap_or(i64::MAX);
    let remove = async |statement: &'static str, kept: Duration| {
        let done = sqlx::query(statement).bind(micros(kept)).bind(limit).execute(pool).await?;
        Ok::<u64, sqlx::Error>(done.rows_affected())
    };
    let (promoted, next_due) = promote(pool, limit).await?;
    let mut maintained = Maintained::default();
    maintained.promoted = promoted;
    maintained.next_due = next_due;
    if let Some(kept) = options.history {
        maintained.history_removed = remove(sql::MAINTAIN_HISTORY, kept).await?;
    }
    maintained.audit_removed = remove(sql::MAINTAIN_AUDIT, options.audit_kept).await?;
    maintained.handled_ids_removed = handled::expire(pool, options, limit).await?;
    maintained.relays_removed = remove(sql::MAINTAIN_RELAYS, RELAYS_KEPT).await?;
    let most = [
        promoted,
        maintained.history_removed,
        maintained.handled_ids_removed,
        maintained.audit_removed,
        maintained.relays_removed,
    ];
    maintained.more = most.iter().any(|done| *done >= limit.unsigned_abs());
    Ok(maintained)
}

/// Appends due messages. Returns their number, and the time until the next is due.
async fn promote(pool: &SqlitePool, limit: i64) -> Result<(u64, Option<Duration>), sqlx::Error> {
    let mut tx = pool.begin_with(sql::BEGIN).await?;
    let now = now(&mut tx).await?;
    let promoted = sqlx::query(sql::MAINTAIN_PROMOTE).bind(now).bind(limit).execute(&mut *tx).await?;
    sqlx::query(sql::MAINTAIN_PROMOTED).bind(now).bind(limit).execute(&mut *tx).await?;
    let next: Option<i64> = sqlx::query_scalar(sql::MAINTAIN_NEXT_DUE).fetch_one(&mut *tx).await?;
    tx.commit().await?;
    Ok((promoted.rows_affected(), next.map(|due_at| span(due_at.saturating_sub(now)))))
}

pub(crate) async fn backlog(
    pool: &SqlitePool,
    route: &Route,
    counting_limit: u32,
) -> Result<Backlog, sqlx::Error> {
    let row = sqlx::query(sql::BACKLOG).bind(route.as_str()).bind(counting_limit).fetch_one(pool).await?;
    let count =
        |column: &str| row.try_get::<i64, _>(column).map(|count| u64::try_from(count).unwrap_or_default());
    let now: i64 = row.try_get("now")?;
    let oldest: [Option<i64>; 2] = [row.try_get("oldest_hot")?, row.try_get("oldest_due")?];
    let oldest = oldest.into_iter().flatten().min();
    let age = |oldest: i64| span(now.saturating_sub(oldest));
    let mut backlog = Backlog::default();
    backlog.counting_limit = Some(counting_limit.into());
    backlog.pending = count("pending")?;
    backlog.pending_is_at_least = count("looked")? >= u64::from(counting_limit);
    backlog.oldest_pending_age = oldest.map(age);
    backlog.oldest_age =
        oldest.into_iter().chain(row.try_get::<Option<i64>, _>("oldest_parked")?).min().map(age);
    backlog.parked = count("parked")?;
    backlog.retrying_keys = count("retrying_keys")?;
    backlog.held_keys = count("held_keys")?;
    backlog.dead = count("dead")?;
    backlog.scheduled = count("scheduled")?;
    backlog.unowned_buckets = count("unowned_buckets")?;
    Ok(backlog)
}

pub(crate) async fn unserved(
    pool: &SqlitePool,
    after: Duration,
    counting_limit: u32,
) -> Result<Vec<Unserved>, sqlx::Error> {
    let most = i64::try_from(Unserved::MOST).unwrap_or(i64::MAX);
    let query = sqlx::query(sql::UNSERVED).bind(i64::from(counting_limit)).bind(most);
    let mut found: Vec<(String, Duration)> = Vec::new();
    for row in query.fetch_all(pool).await? {
        let waited = row.try_get::<i64, _>("now")?.saturating_sub(row.try_get("since")?);
        found.push((row.try_get("route")?, span(waited)));
    }
    Ok(Unserved::gather(found, after))
}

/// Converts a span of the tables' clock; a negative one becomes zero.
fn span(micros: i64) -> Duration {
    Duration::from_micros(u64::try_from(micros).unwrap_or_default())
}
