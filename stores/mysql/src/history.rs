//! Partitions of the history: made ahead, and dropped whole when everything in them is over its
//! time.

use std::time::Duration;

use outbox_contract::admin::Diagnosis;
use outbox_contract::backend::rules::micros;
use outbox_store_sql::History;
use sqlx::mysql::MySqlConnection;
use sqlx::{AssertSqlSafe, Row};

use crate::error::is_denied;
use crate::lease::now;
use crate::line::run;

/// Number of partitions that are made ahead of the one that is written to.
const AHEAD: i64 = 3;

const HOUR: i64 = 3_600 * 1_000_000;

/// A partition: everything below its bound and not below the one before.
struct Partition {
    name: String,
    bound: i64,
    rows: u64,
}

/// Changes to be made to the partitions. Pure.
#[derive(Debug, PartialEq, Eq)]
struct Turn {
    /// Bounds of new partitions, in order.
    make: Vec<i64>,
    /// Number of the first ones that are over.
    drop: usize,
}

impl Turn {
    fn of(bounds: &[i64], now: i64, kept: i64) -> Self {
        // A day each; an hour each where little is kept. What is kept is kept for as long, and for
        // one partition more.
        let width = if kept <= 48 * HOUR { HOUR } else { 24 * HOUR };
        let current = now.div_euclid(width) * width + width;
        let last = bounds.last().copied().unwrap_or(i64::MIN);
        let wanted = (0..AHEAD).map(|ahead| current + ahead * width);
        Self {
            make: wanted.filter(|bound| *bound > last).collect(),
            drop: bounds.iter().take_while(|bound| **bound <= now.saturating_sub(kept)).count(),
        }
    }

    fn to_make(&self) -> Option<String> {
        let made: Vec<String> = self
            .make
            .iter()
            .map(|bound| format!("partition until_{bound} values less than ({bound})"))
            .collect();
        (!made.is_empty()).then(|| {
            format!(
                "alter table outbox_history reorganize partition rest into ({}, partition rest values less than maxvalue)",
                made.join(", ")
            )
        })
    }
}

/// For how long the partitions wait for whoever uses the table, in seconds, the fewest that the
/// server takes: settlements stand in line behind them.
const PATIENCE: u32 = 1;

/// Makes partitions ahead and drops old ones. Says how many rows were dropped, about.
pub(crate) async fn turn(connection: &mut MySqlConnection, kept: Duration) -> Result<u64, sqlx::Error> {
    let now = now(connection).await?;
    let partitions = partitions(connection).await?;
    let bounds: Vec<i64> = partitions.iter().map(|partition| partition.bound).collect();
    let turn = Turn::of(&bounds, now, micros(kept));
    let over = &partitions[..turn.drop];
    // A partition that can't be created is no reason to keep old ones.
    let made = alter(connection, turn.to_make()).await;
    let dropped = alter(connection, to_drop(over)).await;
    made.and(dropped)?;
    Ok(over.iter().map(|partition| partition.rows).sum())
}

/// Changes the table, if there is a statement that does, without much patience.
async fn alter(connection: &mut MySqlConnection, statement: Option<String>) -> Result<(), sqlx::Error> {
    let Some(statement) = statement else { return Ok(()) };
    let done = run(connection, format!("set session lock_wait_timeout = {PATIENCE}; {statement}")).await;
    // On a connection that broke there is nothing to put back.
    let put_back = run(connection, "set session lock_wait_timeout = @outbox_locks").await;
    done.and(put_back)
}

fn to_drop(over: &[Partition]) -> Option<String> {
    let names: Vec<&str> = over.iter().map(|partition| partition.name.as_str()).collect();
    (!names.is_empty()).then(|| format!("alter table outbox_history drop partition {}", names.join(", ")))
}

/// Examines the partitions. `kept`: the retention, if this program keeps a history.
pub(crate) async fn find(
    connection: &mut MySqlConnection,
    kept: Option<Duration>,
) -> Result<Vec<Diagnosis>, sqlx::Error> {
    let partitions = partitions(connection).await?.into_iter().map(|it| (it.name, it.bound)).collect();
    let rest = rest(connection, "asc").await?.zip(rest(connection, "desc").await?);
    let history = History { now: now(connection).await?, kept, partitions, rest };
    let run = "run a relay with `history`, as a user with alter and drop on outbox_history; the log of one that can't says why";
    Ok(history.diagnoses(run, run))
}

/// Returns the delivery of the first or the last message in the partition without a bound, if this
/// user may read it.
async fn rest(connection: &mut MySqlConnection, order: &'static str) -> Result<Option<i64>, sqlx::Error> {
    let statement =
        format!("select delivered_at from outbox_history partition (rest) order by entry {order} limit 1");
    match sqlx::query(AssertSqlSafe(statement)).persistent(false).fetch_optional(connection).await {
        Ok(row) => row.map(|row| row.try_get_unchecked(0)).transpose(),
        Err(error) if is_denied(&error) => Ok(None),
        Err(error) => Err(error),
    }
}

/// The partitions that have a bound, in order.
async fn partitions(connection: &mut MySqlConnection) -> Result<Vec<Partition>, sqlx::Error> {
    let rows = sqlx::query(
        "select partition_name, cast(partition_description as char), table_rows from information_schema.partitions \
         where table_schema = database() and table_name = 'outbox_history' and partition_name like 'until\\_%' \
         order by partition_ordinal_position",
    )
    .persistent(false)
    .fetch_all(connection)
    .await?;
    let mut partitions = Vec::with_capacity(rows.len());
    for row in &rows {
        let (name, bound): (String, String) = (row.try_get_unchecked(0)?, row.try_get_unchecked(1)?);
        // Of a name that we gave: digits.
        let plain = name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
        if let (true, Ok(bound)) = (plain, bound.parse()) {
            let rows: Option<i64> = row.try_get_unchecked(2)?;
            partitions.push(Partition {
                name,
                bound,
                rows: rows.and_then(|rows| u64::try_from(rows).ok()).unwrap_or_default(),
            });
        }
    }
    Ok(partitions)
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY: i64 = 24 * HOUR;

    #[test]
    fn partitions_are_made_ahead_once() {
        let now = 100 * DAY + 5 * HOUR;
        let turn = Turn::of(&[], now, 7 * DAY);
        assert_eq!(turn, Turn { make: vec![101 * DAY, 102 * DAY, 103 * DAY], drop: 0 });
        assert_eq!(Turn::of(&turn.make, now, 7 * DAY), Turn { make: vec![], drop: 0 });
        assert_eq!(Turn::of(&turn.make, now + DAY, 7 * DAY).make, [104 * DAY]);
        // Maintenance did not run for a long time: the messages of that time are in one partition.
        assert_eq!(Turn::of(&turn.make, now + 10 * DAY, 70 * DAY).make, [111 * DAY, 112 * DAY, 113 * DAY]);
    }

    #[test]
    fn a_partition_is_dropped_when_everything_in_it_is_over_its_time() {
        let bounds = [99 * DAY, 100 * DAY, 101 * DAY, 102 * DAY, 103 * DAY];
        assert_eq!(Turn::of(&bounds, 106 * DAY - 1, 7 * DAY).drop, 0);
        assert_eq!(Turn::of(&bounds, 106 * DAY, 7 * DAY).drop, 1);
        assert_eq!(Turn::of(&bounds, 107 * DAY, 7 * DAY).drop, 2);
    }

    #[test]
    fn where_little_is_kept_partitions_are_short() {
        assert_eq!(Turn::of(&[], 10 * HOUR + 1, HOUR).make, [11 * HOUR, 12 * HOUR, 13 * HOUR]);
    }
}
