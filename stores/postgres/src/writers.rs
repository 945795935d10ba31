//! Writers that may still commit below a visible position.
//!
//! Read from the locks on the table, not from transaction numbers: a transaction can have a low
//! number and take a position late, or take its number after its position; both were seen to put a
//! message behind the reader.

use std::collections::BTreeSet;

use outbox_contract::backend::{Position, Writers};
use sqlx::Row;
use sqlx::postgres::PgConnection;

use crate::error::answered_by_a_standby;
use crate::sql::Statements;

pub(crate) async fn writers(connection: &mut PgConnection, sql: &Statements) -> Result<Writers, sqlx::Error> {
    let rows = sql.query(&sql.writers).fetch_all(connection).await?;
    let mut open = BTreeSet::new();
    let mut last = 0;
    for row in &rows {
        if row.try_get("lags")? {
            return Err(answered_by_a_standby());
        }
        last = row.try_get(0)?;
        open.extend(row.try_get::<Option<String>, _>(1)?);
    }
    Ok(Writers::new(open, Position(last)))
}
