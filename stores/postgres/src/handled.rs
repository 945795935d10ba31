//! Ids that consumers have handled, as an operator counts and removes them.

use outbox_contract::Timestamp;
use outbox_contract::admin::{HandledFilter, MAX_PER_CALL};
use sqlx::SqlStr;
use sqlx::postgres::{PgArguments, Postgres};
use sqlx::query::Query;

use crate::sql::Statements;

/// A statement whose parameters 1 to 5 are the filter.
fn filtered(
    sql: &Statements,
    statement: &SqlStr,
    filter: &HandledFilter,
) -> Query<'static, Postgres, PgArguments> {
    sql.query(statement)
        .bind(filter.consumer.as_str().to_owned())
        .bind(filter.topic.as_ref().map(|topic| topic.as_str().to_owned()))
        .bind(filter.key.as_ref().map(|key| key.as_str().to_owned()))
        .bind(filter.since.map(Timestamp::as_micros))
        .bind(filter.before.map(Timestamp::as_micros))
}

/// A statement that counts.
pub(crate) fn count(sql: &Statements, filter: &HandledFilter) -> Query<'static, Postgres, PgArguments> {
    filtered(sql, &sql.handled_count, filter)
}

/// A statement that forgets.
pub(crate) fn forget(sql: &Statements, filter: &HandledFilter) -> Query<'static, Postgres, PgArguments> {
    filtered(sql, &sql.handled_forget, filter).bind(i64::try_from(MAX_PER_CALL).unwrap_or(i64::MAX))
}
