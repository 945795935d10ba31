//! Statements of a filter, and the rows that they return.

use std::borrow::Cow;

use outbox_contract::admin::{Filter, MAX_BYTES_PER_CALL};
use outbox_contract::backend::Death;
use outbox_contract::{Failure, Route, StoreError, Timestamp};
use outbox_store_sql::statements::{newest_first, of_one_key};
use sqlx::query::Query;
use sqlx::sqlite::{Sqlite, SqliteArguments, SqliteRow};
use sqlx::{AssertSqlSafe, Row, SqlSafeStr};

use crate::deduplicate::id_list;
use crate::error::store_error;
use crate::store::SqliteStore;

/// A statement whose parameters 1 to 7 are the filter.
pub(crate) fn filtered<'q>(statement: &'static str, filter: &Filter) -> Query<'q, Sqlite, SqliteArguments> {
    let limit = i64::try_from(filter.limit()).unwrap_or(i64::MAX);
    let mut statement = Cow::Borrowed(statement);
    if filter.newest {
        statement = newest_first(&statement).into();
    }
    if filter.route.is_some() && filter.topic.is_some() && filter.key.is_some() {
        statement = of_one_key(&statement).into();
    }
    sqlx::query(AssertSqlSafe(statement.into_owned()).into_sql_str())
        .bind(filter.route.as_ref().map(|route| route.as_str().to_owned()))
        .bind(filter.topic.as_ref().map(|topic| topic.as_str().to_owned()))
        .bind(filter.key.as_ref().map(|key| key.as_str().to_owned()))
        .bind(filter.ids.as_ref().map(|ids| id_list(ids.iter().copied())))
        .bind(filter.since.map(Timestamp::as_micros))
        .bind(filter.before.map(Timestamp::as_micros))
        .bind(limit)
}

/// A statement whose parameters 1 to 8 are the filter.
pub(crate) fn page<'q>(statement: &'static str, filter: &Filter) -> Query<'q, Sqlite, SqliteArguments> {
    filtered(statement, filter).bind(i64::try_from(filter.offset).unwrap_or(i64::MAX))
}

/// A statement that returns a page of messages.
pub(crate) fn messages<'q>(statement: &'static str, filter: &Filter) -> Query<'q, Sqlite, SqliteArguments> {
    let bytes = i64::try_from(MAX_BYTES_PER_CALL).unwrap_or(i64::MAX);
    page(statement, filter).bind(bytes).bind(filter.event_type.clone())
}

pub(crate) fn instant(row: &SqliteRow, column: &str) -> Result<Timestamp, sqlx::Error> {
    row.try_get(column).map(Timestamp::from_micros)
}

pub(crate) fn route(row: &SqliteRow) -> Result<Route, sqlx::Error> {
    let name: &str = row.try_get("route")?;
    // The table checks the length only.
    Ok(Route::new(name).or_else(|_| Route::new(name.replace(char::is_control, "?"))).unwrap_or_default())
}

pub(crate) fn death(row: &SqliteRow) -> Result<Death, sqlx::Error> {
    let failure = |column: &str| -> Result<Option<Failure>, sqlx::Error> {
        Ok(row.try_get::<Option<&str>, _>(column)?.and_then(Failure::from_text))
    };
    Ok(Death::new(
        row.try_get("reason")?,
        row.try_get("attempts")?,
        failure("first_failure")?,
        failure("last_failure")?,
    ))
}

impl SqliteStore {
    pub(crate) async fn look<T>(
        &self,
        operation: &'static str,
        query: Query<'_, Sqlite, SqliteArguments>,
        read: impl Fn(&SqliteRow) -> Result<Option<T>, sqlx::Error>,
    ) -> Result<Vec<T>, StoreError> {
        let failed = |error| store_error(operation, error);
        let rows = query.fetch_all(&self.pools().reads).await.map_err(failed)?;
        rows.iter().filter_map(|row| read(row).transpose()).collect::<Result<_, _>>().map_err(failed)
    }
}

#[cfg(test)]
mod tests {
    use outbox_contract::Key;
    use sqlx::Execute;

    use super::*;
    use crate::sql;

    #[test]
    fn a_filter_of_one_key_has_conditions_for_an_index() {
        let sql = |filter: &Filter| filtered(sql::BROWSE_PARKED, filter).sql().as_str().to_owned();
        let topic = Filter::route("default").unwrap().with_topic("orders").unwrap();
        assert!(sql(&topic).contains("(?2 is null or topic = ?2)"));
        let key = Filter { key: Some(Key::new("a").unwrap()), ..topic };
        assert!(!sql(&key).contains("?2 is null") && !sql(&key).contains("?3 is null"), "{}", sql(&key));
        let newest = sql(&Filter { newest: true, ..key });
        assert!(newest.contains("position desc") && newest.contains("(order_key = ?3)"), "{newest}");
    }
}
