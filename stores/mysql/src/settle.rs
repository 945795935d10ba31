//! Settling: removing what the broker confirmed, by position and id.

use outbox_contract::Route;
use outbox_contract::backend::RowId;
use sqlx::mysql::MySqlConnection;

use crate::line::in_transaction;
use crate::sql;

/// The most rows of one statement: locks are held for one at a time.
const MAX_ROWS: usize = 1_000;

// Each row is found by its own position. A range of positions with a list of ids costs the server
// half of that (a delete of 500 rows of 300 bytes, for each row: 10 in place of 20 us on MySQL 9.7,
// 4 in place of 7 on MariaDB 11.8), but it waits for every row between that a writer has not
// committed. A list of positions costs 14 on MySQL and 7 on MariaDB, and reads the whole table once
// a server gives its optimiser too little memory for so many.

/// Removes rows; keeps them in the history first, where there is one, in the same transaction.
pub(crate) async fn settle(
    connection: &mut MySqlConnection,
    route: &Route,
    delivered: &[RowId],
    history: bool,
) -> Result<(), sqlx::Error> {
    let mut delivered = delivered.to_vec();
    // In the order of the primary key: neighbors are removed together, and all other transactions
    // take these locks in the same order.
    delivered.sort_unstable();
    for rows in delivered.chunks(MAX_ROWS) {
        let rows = sql::rows(rows);
        if history {
            let keep_and_remove = async |connection: &mut MySqlConnection| {
                remove(connection, sql::SETTLE_HISTORY, &rows, route).await?;
                remove(connection, sql::SETTLE, &rows, route).await
            };
            in_transaction(connection, keep_and_remove).await?;
        } else {
            remove(connection, sql::SETTLE, &rows, route).await?;
        }
    }
    Ok(())
}

async fn remove(
    connection: &mut MySqlConnection,
    statement: &'static str,
    rows: &str,
    route: &Route,
) -> Result<(), sqlx::Error> {
    sqlx::query(statement).bind(rows).bind(route.as_str().as_bytes()).execute(connection).await.map(|_| ())
}
