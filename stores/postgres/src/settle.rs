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

/// Removes rows; keeps them in the history, if there is one, in the same statement. Of a position
/// with several ids, which a restored database gives out again, each goes by a statement of its own.
pub(crate) async fn settle(
    connection: &mut PgConnection,
    sql: &Statements,
    delivered: &[RowId],
    history: bool,
) -> Result<(), sqlx::Error> {
    let statement = if history { &sql.settle_history } else { &sql.settle };
    for rows in ascending(delivered) {
        let Rows { positions, ids } = Rows::new(&rows);
        sql.query(statement).bind(positions).bind(ids).execute(&mut *connection).await?;
    }
    Ok(())
}

/// Divides rows into lists, nearly always one, each with ascending positions.
fn ascending(rows: &[RowId]) -> Vec<Vec<RowId>> {
    let mut rest = rows.to_vec();
    rest.sort_unstable();
    rest.dedup();
    let mut lists = Vec::new();
    while !rest.is_empty() {
        let mut last = None;
        let again: Vec<RowId> =
            rest.extract_if(.., |row| last.replace(row.position) == Some(row.position)).collect();
        lists.push(std::mem::replace(&mut rest, again));
    }
    lists
}

#[cfg(test)]
mod tests {
    use outbox_contract::MessageId;
    use outbox_contract::backend::Position;

    use super::*;

    #[test]
    fn positions_ascend_in_each_list_and_no_row_is_left_out() {
        let row = |position, id| RowId {
            position: Position(position),
            id: MessageId::from_uuid(Uuid::from_u128(id)),
        };
        assert!(ascending(&[]).is_empty());
        assert_eq!(ascending(&[row(7, 1), row(3, 2), row(7, 1)]), [vec![row(3, 2), row(7, 1)]]);
        let twice = [row(7, 3), row(9, 1), row(7, 2), row(3, 1), row(7, 1)];
        let lists = [vec![row(3, 1), row(7, 1), row(9, 1)], vec![row(7, 2)], vec![row(7, 3)]];
        assert_eq!(ascending(&twice), lists);
    }
}
