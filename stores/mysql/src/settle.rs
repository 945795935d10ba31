//! Settling: removing what the broker confirmed, by position and id.

use outbox_contract::backend::{Position, RowId};
use outbox_contract::{MessageId, Route};
use sqlx::mysql::MySqlConnection;

use crate::line::{in_transaction, run};
use crate::sql;

/// The most rows of one statement: locks are held for one at a time.
const MAX_ROWS: usize = 2_000;

// Each row is found by its own position. A range of positions waits for every row between that a
// writer has not committed.

/// Removes rows; keeps them in the history first, where there is one, in the same transaction.
pub(crate) async fn settle(
    connection: &mut MySqlConnection,
    route: &Route,
    delivered: &[RowId],
    history: bool,
    is_mysql: bool,
) -> Result<(), sqlx::Error> {
    let mut delivered = delivered.to_vec();
    // In the order of the primary key: neighbors are removed together, and all other transactions
    // take these locks in the same order.
    delivered.sort_unstable();
    for rows in delivered.chunks(MAX_ROWS) {
        if history {
            let keep_and_remove = async |connection: &mut MySqlConnection| {
                joined(connection, sql::SETTLE_HISTORY, &sql::rows(rows), route).await?;
                remove(connection, rows, route, is_mysql).await
            };
            in_transaction(connection, keep_and_remove).await?;
        } else {
            remove(connection, rows, route, is_mysql).await?;
        }
    }
    Ok(())
}

/// MySQL removes the rows of a join in a second pass, which looks each up again; MariaDB does not.
async fn remove(
    connection: &mut MySqlConnection,
    rows: &[RowId],
    route: &Route,
    is_mysql: bool,
) -> Result<(), sqlx::Error> {
    if is_mysql {
        run(connection, listed(rows, route)).await
    } else {
        joined(connection, sql::SETTLE, &sql::rows(rows), route).await
    }
}

/// The statement that removes rows of one table, which is read once. The positions are ranges of
/// the primary key, of one row each: the connection's setup lets the optimizer have as many as
/// there are, and `force index` leaves it no other way. The pairs of id and position are constants
/// of one type, which the server sorts and searches.
fn listed(rows: &[RowId], route: &Route) -> String {
    let mut statement = String::with_capacity(128 + rows.len() * 100);
    statement.push_str("delete m from outbox_message m force index (primary) where m.route = ");
    statement.push_str(&sql::literal(route.as_str()));
    statement.push_str(" and m.position in (");
    let digits: Vec<String> = rows.iter().map(|row| row.position.0.to_string()).collect();
    for (at, digits) in digits.iter().enumerate() {
        statement.push_str(if at == 0 { "" } else { "," });
        statement.push_str(digits);
    }
    statement.push_str(") and concat(m.id, m.position) in (");
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
    listed(&[RowId { position: Position(1), id: MessageId::new() }], &Route::default())
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;

    #[test]
    fn a_listed_row_is_named_by_position_and_by_both() {
        let id = MessageId::from_uuid(Uuid::from_u128(0xab));
        let statement = listed(&[10, -7].map(|at| RowId { position: Position(at), id }), &Route::default());
        let pairs = "x'000000000000000000000000000000ab3130',x'000000000000000000000000000000ab2d37'";
        assert!(
            statement.ends_with(&format!("position in (10,-7) and concat(m.id, m.position) in ({pairs})"))
        );
    }
}
