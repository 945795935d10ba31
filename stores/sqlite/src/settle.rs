//! Settling: removal of the messages that the broker confirmed, by position and id.

use outbox_contract::StoreError;
use outbox_contract::backend::RowId;
use sqlx::sqlite::{SqliteConnection, SqlitePool};

use crate::error::store_error;
use crate::sql;

/// Rows as statement parameters: positions as JSON, and ids of 16 bytes in the same order.
pub(crate) struct Rows {
    pub(crate) positions: String,
    pub(crate) ids: Vec<u8>,
}

impl Rows {
    pub(crate) fn new(rows: &[RowId]) -> Self {
        Self {
            positions: sql::numbers(rows.iter().map(|row| row.position.0)),
            ids: rows.iter().flat_map(|row| *row.id.as_uuid().as_bytes()).collect(),
        }
    }
}

/// Removes rows; keeps them in the history first, if there is one, in the same transaction.
pub(crate) async fn settle(pool: &SqlitePool, delivered: &[RowId], history: bool) -> Result<(), StoreError> {
    if delivered.is_empty() {
        return Ok(());
    }
    let rows = Rows::new(delivered);
    let done = async {
        if !history {
            return remove(&mut *pool.acquire().await?, sql::SETTLE, &rows).await;
        }
        let mut tx = pool.begin_with(sql::BEGIN).await?;
        remove(&mut tx, sql::SETTLE_HISTORY, &rows).await?;
        remove(&mut tx, sql::SETTLE, &rows).await?;
        tx.commit().await
    };
    done.await.map_err(|error| store_error("settle", error))
}

async fn remove(
    connection: &mut SqliteConnection,
    statement: &'static str,
    rows: &Rows,
) -> Result<(), sqlx::Error> {
    sqlx::query(statement).bind(&rows.positions).bind(&rows.ids).execute(connection).await?;
    Ok(())
}
