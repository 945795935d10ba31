//! Appending: rows in the user's transaction.
//!
//! SQLite has one writer at a time, from its first write to its commit, and `AUTOINCREMENT` numbers
//! rows as they are written: so position order is commit order, for every key, without locks of the
//! store.

use std::sync::LazyLock;

use outbox_contract::{DueTime, Outgoing};
use sqlx::query::Query;
use sqlx::sqlite::{Sqlite, SqliteArguments, SqliteConnection};

use crate::sql;

/// Maximum number of rows in one statement; with 13 values each, a tenth of SQLite's limit.
const MAX_ROWS: usize = 256;

/// Statements for 1, 2, 4, ... 256 rows: any number of messages takes few of them, and a connection
/// keeps at most nine prepared.
struct Statements([String; MAX_ROWS.ilog2() as usize + 1]);

static APPEND: LazyLock<Statements> = LazyLock::new(|| Statements::of(sql::APPEND));
static SCHEDULE: LazyLock<Statements> = LazyLock::new(|| Statements::of(sql::SCHEDULE));

impl Statements {
    /// Repeats the last group of values, on a line of its own, of a statement for one row.
    fn of(single: &str) -> Self {
        let single = single.trim_end();
        let (head, row) = single.split_at(single.rfind("\n    (").map_or(single.len(), |line| line + 5));
        Self(std::array::from_fn(|power| format!("{head}{}", vec![row; 1 << power].join(", "))))
    }

    /// Returns the statement for as many of these rows as one takes, and their number.
    fn for_most_of(&'static self, rows: usize) -> (&'static str, usize) {
        let power = rows.min(MAX_ROWS).ilog2() as usize;
        (&self.0[power], 1 << power)
    }
}

/// Writes messages, which are valid, in the open transaction.
pub(crate) async fn append(
    connection: &mut SqliteConnection,
    messages: &[Outgoing],
) -> Result<(), sqlx::Error> {
    let (due_later, at_once): (Vec<_>, Vec<_>) = messages.iter().partition(|outgoing| outgoing.due.is_some());
    write(connection, &APPEND, &at_once).await?;
    write(connection, &SCHEDULE, &due_later).await
}

async fn write(
    connection: &mut SqliteConnection,
    statements: &'static Statements,
    mut rows: &[&Outgoing],
) -> Result<(), sqlx::Error> {
    while !rows.is_empty() {
        let (statement, taken) = statements.for_most_of(rows.len());
        let (now, later) = rows.split_at(taken);
        now.iter().fold(sqlx::query(statement), bind_row).execute(&mut *connection).await?;
        rows = later;
    }
    Ok(())
}

fn bind_row<'q>(
    query: Query<'q, Sqlite, SqliteArguments>,
    outgoing: &&'q Outgoing,
) -> Query<'q, Sqlite, SqliteArguments> {
    let message = &outgoing.message;
    let query = query
        .bind(&message.id.as_uuid().as_bytes()[..])
        .bind(outgoing.route.as_str())
        .bind(message.bucket().0)
        .bind(message.topic.as_str())
        .bind(message.key.as_ref().map(|key| key.as_str()))
        .bind(&*message.event_type)
        .bind(message.schema_version)
        .bind(&*message.content_type)
        .bind(message.headers.to_bytes())
        .bind(&*message.payload)
        .bind(message.occurred_at.as_micros());
    match outgoing.due.map(DueTime::as_micros) {
        Some((micros, by_clock)) => query.bind(micros).bind(by_clock),
        None => query,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_statement_has_as_many_groups_of_values_as_rows() {
        for (rows, takes) in [(1, 1), (2, 2), (3, 2), (100, 64), (256, 256), (10_000, 256)] {
            let (statement, taken) = APPEND.for_most_of(rows);
            assert_eq!(taken, takes);
            assert_eq!(statement.matches('?').count(), 11 * takes);
            assert_eq!(SCHEDULE.for_most_of(rows).0.matches('?').count(), 13 * takes);
        }
    }
}
