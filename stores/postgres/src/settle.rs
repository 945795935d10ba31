//! Settling: removal of the messages that the broker confirmed, by position and id.

use outbox_contract::backend::RowId;
use sqlx::postgres::PgConnection;
use uuid::Uuid;

use crate::sql::Statements;

/// Rows as statement parameters: their positions, and their ids in the same order.
pub(crate) struct Rows {
    pub(crate) positions: Vec<i64>,
    pub(crate) ids: Vec<Uuid>,
}

impl Rows {
    pub(crate) fn new(rows: &[RowId]) -> Self {
        Self {
            positions: rows.iter().map(|row| row.position.0).collect(),
            ids: rows.iter().map(|row| row.id.as_uuid()).collect(),
        }
    }
}

/// Removes rows; keeps them in the history, if there is one, in the same statement.
pub(crate) async fn settle(
    connection: &mut PgConnection,
    sql: &Statements,
    delivered: &[RowId],
    history: bool,
) -> Result<(), sqlx::Error> {
    let rows = Rows::new(delivered);
    let statement = if history { &sql.settle_history } else { &sql.settle };
    sql.query(statement).bind(rows.positions).bind(rows.ids).execute(connection).await?;
    Ok(())
}
