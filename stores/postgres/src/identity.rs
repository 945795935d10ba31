//! The identity of the outbox.

use outbox_contract::admin::OutboxId;
use sqlx::Row;
use sqlx::postgres::PgConnection;

use crate::sql::Statements;

/// Returns the identity, and makes it first where it is missing.
pub(crate) async fn read(connection: &mut PgConnection, sql: &Statements) -> Result<OutboxId, sqlx::Error> {
    if let Some(identity) = stored(connection, sql).await? {
        return Ok(identity);
    }
    let first = OutboxId::new().as_uuid();
    sql.query(&sql.identity_first).bind(first).execute(&mut *connection).await?;
    // Another program's, if it was faster.
    stored(connection, sql).await?.ok_or(sqlx::Error::RowNotFound)
}

async fn stored(connection: &mut PgConnection, sql: &Statements) -> Result<Option<OutboxId>, sqlx::Error> {
    let row = sql.query(&sql.identity).fetch_optional(connection).await?;
    row.map(|row| row.try_get(0).map(OutboxId::from_uuid)).transpose()
}
