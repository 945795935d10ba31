//! Settling: removing what the broker confirmed, by position and id.

use std::ops::Range;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use outbox_contract::backend::{Position, RowId};
use outbox_contract::{MessageId, Route};
use sqlx::mysql::MySqlConnection;

use crate::error::is_conflict;
use crate::line::{in_transaction, run};
use crate::runs::Runs;
use crate::sql;

/// The most rows of one statement: locks are held for one at a time.
const MAX_ROWS: usize = 2_000;

/// Puts back what a statement with ranges has set on MySQL.
const WAIT_AGAIN: &str = "set session innodb_lock_wait_timeout = @outbox_locks";

// A row is found by its own position, or in a run by a range of them. Whichever way it is found, it
// is removed only if the list has its position and its id. A range reads each row once, where a
// look-up of each begins at the root of the index. But it waits for every row between its ends that
// a writer has not committed. So only old rows that were read next to each other are a run, a
// range waits for a second (on MariaDB: not at all), and then the rows are found by their positions.

/// A settlement of rows of a route.
pub(crate) struct Settling<'s> {
    pub(crate) route: &'s Route,
    /// True if rows are kept in the history first, in the same transaction.
    pub(crate) history: bool,
    pub(crate) is_mysql: bool,
    pub(crate) runs: &'s Mutex<Runs>,
}

impl Settling<'_> {
    /// Removes rows.
    pub(crate) async fn settle(
        &self,
        connection: &mut MySqlConnection,
        delivered: &[RowId],
    ) -> Result<(), sqlx::Error> {
        let mut delivered = delivered.to_vec();
        // In the order of the primary key: neighbors are removed together, and all other
        // transactions take these locks in the same order.
        delivered.sort_unstable();
        for rows in delivered.chunks(MAX_ROWS) {
            let runs = self.runs().among(self.route, rows, Instant::now());
            if runs.is_empty() || !self.keep_and_remove_runs(connection, rows, &runs).await? {
                self.keep_and_remove(connection, rows, &[]).await?;
            }
            self.runs().removed(self.route, rows);
        }
        Ok(())
    }

    fn runs(&self) -> MutexGuard<'_, Runs> {
        self.runs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns false if a range has met a lock. Then nothing was removed, and ranges rest.
    async fn keep_and_remove_runs(
        &self,
        connection: &mut MySqlConnection,
        rows: &[RowId],
        runs: &[Range<usize>],
    ) -> Result<bool, sqlx::Error> {
        let done = self.keep_and_remove(connection, rows, runs).await;
        let Err(error) = done else { return Ok(true) };
        let ready = if self.is_mysql { run(connection, WAIT_AGAIN).await } else { Ok(()) };
        if !is_conflict(&error) {
            return Err(error);
        }
        ready?;
        tracing::debug!(route = %self.route, %error, "a range of delivered messages met a lock; removing them by their positions");
        self.runs().rest(Instant::now());
        Ok(false)
    }

    async fn keep_and_remove(
        &self,
        connection: &mut MySqlConnection,
        rows: &[RowId],
        runs: &[Range<usize>],
    ) -> Result<(), sqlx::Error> {
        if !self.history {
            return self.remove(connection, rows, runs).await;
        }
        let keep_and_remove = async |connection: &mut MySqlConnection| {
            joined(connection, sql::SETTLE_HISTORY, &sql::rows(rows), self.route).await?;
            self.remove(connection, rows, runs).await
        };
        in_transaction(connection, keep_and_remove).await
    }

    /// MySQL removes the rows of a join in a second pass, which looks each up again; MariaDB does
    /// not.
    async fn remove(
        &self,
        connection: &mut MySqlConnection,
        rows: &[RowId],
        runs: &[Range<usize>],
    ) -> Result<(), sqlx::Error> {
        if !runs.is_empty() {
            run(connection, ranged(rows, runs, self.route, self.is_mysql)).await
        } else if self.is_mysql {
            run(connection, listed(rows, &[], self.route)).await
        } else {
            joined(connection, sql::SETTLE, &sql::rows(rows), self.route).await
        }
    }
}

/// The statement with ranges, which waits for no lock for longer than the server's minimum. MariaDB
/// would make a subquery of a list of more than a thousand.
fn ranged(rows: &[RowId], runs: &[Range<usize>], route: &Route, is_mysql: bool) -> String {
    let listed = listed(rows, runs, route);
    if is_mysql {
        format!("set session innodb_lock_wait_timeout = 1; {listed}; {WAIT_AGAIN}")
    } else {
        format!(
            "set statement innodb_lock_wait_timeout = 0, in_predicate_conversion_threshold = 0 for {listed}"
        )
    }
}

/// The statement that removes rows of one table, which is read once. The positions are ranges of
/// the primary key, one for each run and one for each other row: the connection's setup lets the
/// optimizer have as many as there are, and `force index` leaves it no other way. The pairs of id
/// and position are constants of one type, which the server sorts and searches.
///
/// A range also locks the row behind its end, where it finds that it has ended. So the last row of
/// a run is not in its range: the row behind the end is then one of the list.
fn listed(rows: &[RowId], runs: &[Range<usize>], route: &Route) -> String {
    let mut statement = String::with_capacity(128 + rows.len() * 100);
    statement.push_str("delete m from outbox_message m force index (primary) where m.route = ");
    statement.push_str(&sql::literal(route.as_str()));
    let digits: Vec<String> = rows.iter().map(|row| row.position.0.to_string()).collect();
    statement.push_str(" and (");
    let mut single = 0;
    let mut singles: Vec<&str> = Vec::with_capacity(rows.len());
    for run in runs {
        let last = run.end - 1;
        statement.push_str(&format!("m.position between {} and {} or ", digits[run.start], digits[last - 1]));
        singles.extend(digits[single..run.start].iter().map(String::as_str));
        single = last;
    }
    singles.extend(digits[single..].iter().map(String::as_str));
    statement.push_str("m.position in (");
    statement.push_str(&sql::commas(singles));
    statement.push_str(")) and concat(m.id, m.position) in (");
    for (at, (row, digits)) in rows.iter().zip(&digits).enumerate() {
        statement.push_str(if at == 0 { "x'" } else { ",x'" });
        push_hex(&mut statement, row.id.as_uuid().as_bytes());
        push_hex(&mut statement, digits.as_bytes());
        statement.push('\'');
    }
    statement.push(')');
    statement
}

fn push_hex(text: &mut String, bytes: &[u8]) {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    for byte in bytes {
        text.push(char::from(DIGITS[usize::from(byte >> 4)]));
        text.push(char::from(DIGITS[usize::from(byte & 15)]));
    }
}

/// Runs a statement that joins the rows with the table.
async fn joined(
    connection: &mut MySqlConnection,
    statement: &'static str,
    rows: &str,
    route: &Route,
) -> Result<(), sqlx::Error> {
    sqlx::query(statement).bind(rows).bind(route.as_str().as_bytes()).execute(connection).await.map(|_| ())
}

/// A statement that removes listed rows, for the server to prepare when the tables are checked.
pub(crate) fn sample() -> String {
    listed(&[RowId { position: Position(1), id: MessageId::new() }], &[], &Route::default())
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;

    fn rows(positions: &[i64]) -> Vec<RowId> {
        let id = MessageId::from_uuid(Uuid::from_u128(0xab));
        positions.iter().map(|at| RowId { position: Position(*at), id }).collect()
    }

    #[test]
    fn a_listed_row_is_named_by_position_and_by_both() {
        let statement = listed(&rows(&[10, -7]), &[], &Route::default());
        let pairs = "x'000000000000000000000000000000ab3130',x'000000000000000000000000000000ab2d37'";
        assert!(
            statement
                .ends_with(&format!("(m.position in (10,-7)) and concat(m.id, m.position) in ({pairs})"))
        );
    }

    #[test]
    fn a_run_is_a_range_up_to_its_last_row_and_every_row_is_named_by_both() {
        let statement = listed(&rows(&[1, 3, 5, 7, 9, 11, 13]), &[1..4, 5..7], &Route::default());
        let found =
            "(m.position between 3 and 5 or m.position between 11 and 11 or m.position in (1,7,9,13))";
        assert!(statement.contains(found), "{statement}");
        assert_eq!(statement.matches(",x'").count(), 6);
    }
}
