//! Settling: removing what the broker confirmed, by position and id.

use outbox_contract::Route;
use outbox_contract::fetch::RowId;
use sqlx::mysql::MySqlConnection;

use crate::line::run;
use crate::sql;

/// The most rows of one statement: locks are held for one at a time.
const MOST_ROWS: usize = 1_000;

/// Removes rows; keeps them in the history first, where there is one, in the same transaction.
pub(crate) async fn settle(
    connection: &mut MySqlConnection,
    route: &Route,
    delivered: &[RowId],
    history: bool,
) -> Result<(), sqlx::Error> {
    let mut delivered = delivered.to_vec();
    // In the order of the primary key: neighbours are removed together, and nobody else takes the locks in another order.
    delivered.sort_unstable();
    for rows in delivered.chunks(MOST_ROWS) {
        let rows = sql::rows(rows);
        if history {
            run(connection, "start transaction").await?;
            let done = async {
                remove(connection, sql::SETTLE_HISTORY, &rows, route).await?;
                remove(connection, sql::SETTLE, &rows, route).await
            };
            let done = done.await;
            end(connection, done).await?;
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

/// Ends a transaction with what came of it.
pub(crate) async fn end<T>(
    connection: &mut MySqlConnection,
    done: Result<T, sqlx::Error>,
) -> Result<T, sqlx::Error> {
    match done {
        Ok(value) => run(connection, "commit").await.map(|()| value),
        Err(error) => {
            // On a connection that is broken there is nothing to roll back, and the cause is the error before.
            let _ = run(connection, "rollback").await;
            Err(error)
        }
    }
}
