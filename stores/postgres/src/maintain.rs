//! Maintenance and figures: work that one elected relay does for all, in short transactions.

use std::time::Duration;

use outbox_contract::Route;
use outbox_contract::backend::rules::micros;
use outbox_contract::backend::{Backlog, Maintained};
use sqlx::Row;
use sqlx::postgres::PgConnection;

use crate::check::OF_OTHERS;
use crate::config::PostgresOptions;
use crate::sql::Statements;

/// A relay that has been dead for this long is removed.
const RELAYS_KEPT: Duration = Duration::from_secs(3_600);

/// Maximum number of due messages that one round moves: each locks its key.
const MAX_PROMOTED: usize = 1_000;

/// Runs one round: one statement that first checks whether there is anything to do, and one for the
/// audit.
pub(crate) async fn maintain(
    connection: &mut PgConnection,
    sql: &Statements,
    options: &PostgresOptions,
    limit: usize,
) -> Result<Maintained, sqlx::Error> {
    let most = i32::try_from(limit.clamp(1, MAX_PROMOTED)).unwrap_or(i32::MAX);
    let row = sql
        .query(&sql.maintain)
        .bind(most)
        .bind(options.history.map(micros))
        .bind(micros(options.handled_ids_kept))
        .bind(micros(options.handled_ids_max_age))
        .bind(micros(RELAYS_KEPT))
        .fetch_one(&mut *connection)
        .await?;
    let audit = sql.query(&sql.maintain_audit).bind(micros(options.audit_kept)).bind(i64::from(most));
    let audit_removed = audit.execute(connection).await?.rows_affected();
    let promoted = u64::try_from(row.try_get::<i32, _>("promoted")?).unwrap_or_default();
    let count =
        |column: &str| row.try_get::<i64, _>(column).map(|count| u64::try_from(count).unwrap_or_default());
    let mut maintained = Maintained::default();
    maintained.promoted = promoted;
    maintained.history_removed = count("history_removed")?;
    maintained.handled_ids_removed = count("handled_ids_removed")?;
    maintained.audit_removed = audit_removed;
    maintained.relays_removed = count("relays_removed")?;
    maintained.next_due = row.try_get::<Option<i64>, _>("next_due")?.map(span);
    let done = [
        maintained.history_removed,
        maintained.handled_ids_removed,
        maintained.audit_removed,
        maintained.relays_removed,
    ];
    // A round of due messages ends when it has enough keys, or at a key that another transaction
    // writes to: the rest is due already.
    let due_are_left = promoted > 0 && maintained.next_due == Some(Duration::ZERO);
    maintained.more = due_are_left || done.iter().any(|done| *done >= u64::from(most.unsigned_abs()));
    Ok(maintained)
}

/// Records the retention of handled ids that this process was opened with.
pub(crate) async fn record_retention(
    connection: &mut PgConnection,
    sql: &Statements,
    options: &PostgresOptions,
) -> Result<(), sqlx::Error> {
    let record = sql.query(&sql.record_retention).bind(micros(options.handled_ids_kept));
    record.bind(micros(options.handled_ids_max_age)).execute(connection).await.map(drop)
}

/// Maximum size of the default partition of the history, in bytes, while others are created: it is
/// read from end to end for each, and settlements wait meanwhile. Less than a second's reading.
pub(crate) const MAX_REST: i64 = 256 * 1024 * 1024;

/// Creates partitions of the history ahead and drops old ones. Returns the approximate number of
/// dropped rows.
pub(crate) async fn turn_history(
    connection: &mut PgConnection,
    sql: &Statements,
    kept: Duration,
) -> Result<u64, sqlx::Error> {
    let row = sql.query(&sql.turn_history).bind(micros(kept)).bind(MAX_REST).fetch_one(connection).await?;
    if row.try_get("too_large")? {
        tracing::warn!(
            "no partitions of the history are made: outbox_history_rest has become so large that every delivery would wait while it is read; when \
             no relay works, call outbox_turn_history({}, null)",
            micros(kept)
        );
    }
    let of_others: Vec<String> = row.try_get("of_others")?;
    if !of_others.is_empty() {
        tracing::warn!(partitions = of_others.join(", "), "{OF_OTHERS}");
    }
    Ok(u64::try_from(row.try_get::<i64, _>("dropped")?).unwrap_or_default())
}

pub(crate) async fn backlog(
    connection: &mut PgConnection,
    sql: &Statements,
    route: &Route,
    counting_limit: u32,
    lowest_below: i64,
) -> Result<Backlog, sqlx::Error> {
    let row = sql
        .query(&sql.backlog)
        .bind(route.as_str())
        .bind(i64::from(counting_limit))
        .bind(lowest_below)
        .fetch_one(connection)
        .await?;
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

/// Converts a span of the tables' clock; a negative one becomes zero.
pub(crate) fn span(micros: i64) -> Duration {
    Duration::from_micros(u64::try_from(micros).unwrap_or_default())
}
