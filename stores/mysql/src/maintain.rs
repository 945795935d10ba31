//! Maintenance and figures: what one elected relay does for all, in short transactions.

use std::time::Duration;

use outbox_contract::Route;
use outbox_contract::backend::rules::micros;
use outbox_contract::backend::{Backlog, Maintained};
use sqlx::Row;
use sqlx::mysql::MySqlConnection;

use crate::config::MySqlOptions;
use crate::fetch::number;
use crate::handled;
use crate::lease::now;
use crate::promote::promote;
use crate::sql;

/// A relay that has been dead for this long is removed.
const RELAYS_KEPT: Duration = Duration::from_secs(3_600);

/// The most messages that one round moves when they are due: each locks its stripe.
const MAX_PROMOTED: usize = 1_000;

pub(crate) async fn maintain(
    connection: &mut MySqlConnection,
    options: &MySqlOptions,
    limit: usize,
) -> Result<Maintained, sqlx::Error> {
    let limit = limit.clamp(1, MAX_PROMOTED);
    let now = now(connection).await?;
    let mut next_due = next_due(connection).await?;
    let mut maintained = Maintained::default();
    if next_due.is_some_and(|due_at| due_at <= now) {
        maintained.promoted = promote(connection, limit).await?;
        next_due = self::next_due(connection).await?;
    }
    maintained.next_due = next_due.map(|due_at| span(due_at.saturating_sub(now)));
    maintained.audit_removed = sqlx::query(sql::MAINTAIN_AUDIT)
        .bind(now.saturating_sub(micros(options.audit_kept)))
        .bind(number(limit))
        .execute(&mut *connection)
        .await?
        .rows_affected();
    maintained.handled_ids_removed = handled::expire(connection, options, (now, limit)).await?;
    maintained.relays_removed = sqlx::query(sql::MAINTAIN_RELAYS)
        .bind(now.saturating_sub(micros(RELAYS_KEPT)))
        .bind(now)
        .bind(micros(RELAYS_KEPT))
        .bind(number(limit))
        .execute(connection)
        .await?
        .rows_affected();
    let most = [
        maintained.promoted,
        maintained.handled_ids_removed,
        maintained.audit_removed,
        maintained.relays_removed,
    ];
    maintained.more = most.iter().any(|done| usize::try_from(*done).is_ok_and(|done| done >= limit));
    Ok(maintained)
}

async fn next_due(connection: &mut MySqlConnection) -> Result<Option<i64>, sqlx::Error> {
    sqlx::query(sql::MAINTAIN_NEXT_DUE).fetch_one(connection).await?.try_get_unchecked(0)
}

pub(crate) async fn backlog(
    connection: &mut MySqlConnection,
    route: &Route,
    counting_limit: u32,
) -> Result<Backlog, sqlx::Error> {
    let (route, limit) = (route.as_str().as_bytes(), i64::from(counting_limit));
    let mut query = sqlx::query(sql::BACKLOG).bind(route).bind(route).bind(limit);
    query = query.bind(route).bind(limit).bind(route);
    for _ in ["parked", "retrying", "held", "dead", "scheduled"] {
        query = query.bind(route).bind(limit);
    }
    let row = query.bind(limit).bind(route).fetch_one(connection).await?;
    let count = |column: usize| {
        row.try_get_unchecked::<i64, _>(column).map(|count| u64::try_from(count).unwrap_or_default())
    };
    let now: i64 = row.try_get_unchecked(10)?;
    let [hot, parked, due]: [Option<i64>; 3] =
        [row.try_get_unchecked(1)?, row.try_get_unchecked(2)?, row.try_get_unchecked(9)?];
    let oldest = hot.into_iter().chain(due).min();
    let age = |oldest: i64| span(now.saturating_sub(oldest));
    let mut backlog = Backlog::default();
    backlog.counting_limit = Some(counting_limit.into());
    backlog.pending = count(0)?;
    backlog.pending_is_at_least = backlog.pending >= u64::from(counting_limit);
    backlog.oldest_pending_age = oldest.map(age);
    backlog.oldest_age = oldest.into_iter().chain(parked).min().map(age);
    backlog.parked = count(3)?;
    backlog.retrying_keys = count(4)?;
    backlog.held_keys = count(5)?;
    backlog.dead = count(6)?;
    backlog.scheduled = count(7)?;
    backlog.unowned_buckets = count(8)?;
    Ok(backlog)
}

/// A span of the tables' clock; none that is negative.
fn span(micros: i64) -> Duration {
    Duration::from_micros(u64::try_from(micros).unwrap_or_default())
}
