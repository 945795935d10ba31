//! The audit: operations are recorded in the transaction that performs them.

use outbox_contract::admin::{AuditEntry, Filter};
use outbox_contract::backend::{AuditColumns, AuditNote};
use outbox_contract::{MessageId, Route, StoreError, Topic};
use outbox_store_sql::message_id;
use sqlx::mysql::{MySqlConnection, MySqlRow};
use sqlx::{MySql, QueryBuilder, Row};

use crate::browse::text;
use crate::fetch::number;
use crate::key::Bound;
use crate::line::in_transaction;
use crate::sql;
use crate::store::MySqlStore;

/// Records an operation on so many messages, of which these are known.
pub(crate) async fn write(
    connection: &mut MySqlConnection,
    note: &AuditNote,
    affected: u64,
    ids: &[MessageId],
) -> Result<(), sqlx::Error> {
    sqlx::query(sql::AUDIT_WRITE)
        .bind(note.actor.as_str().as_bytes().to_vec())
        .bind(note.operation.as_bytes())
        .bind(note.route.as_ref().map(|route| route.as_str().as_bytes().to_vec()))
        .bind(note.topic.as_ref().map(|topic| topic.as_str().as_bytes().to_vec()))
        .bind(note.key.as_ref().map(|key| key.as_str().as_bytes().to_vec()))
        .bind(note.detail.as_bytes().to_vec())
        .bind(i64::try_from(affected).unwrap_or(i64::MAX))
        .bind(AuditNote::ids(ids.iter().copied()).into_bytes())
        .execute(connection)
        .await
        .map(drop)
}

/// Records the removal of messages, if any were there. Somebody else may have been faster with some
/// of those that were chosen: then none is named.
pub(crate) async fn write_removed(
    connection: &mut MySqlConnection,
    note: &AuditNote,
    removed: u64,
    chosen: &[MessageId],
) -> Result<(), sqlx::Error> {
    if removed == 0 {
        return Ok(());
    }
    let ids = if chosen.len() as u64 == removed { chosen } else { &[] };
    write(connection, note, removed, ids).await
}

/// Returns the ids in a column of rows; leaves out what is none.
pub(crate) fn ids(rows: &[MySqlRow], column: usize) -> Result<Vec<MessageId>, sqlx::Error> {
    let mut ids = Vec::with_capacity(rows.len());
    for row in rows {
        ids.extend(message_id(row.try_get_unchecked(column)?));
    }
    Ok(ids)
}

/// A statement for the entries that the filter lets through.
fn select(filter: &Filter) -> QueryBuilder<MySql> {
    let mut query = QueryBuilder::new(
        "select at, actor, operation, route, topic, `key`, detail, affected, ids from outbox_audit where true",
    );
    let names = [
        (" and route = ", filter.route.as_ref().map(Route::as_str)),
        (" and topic = ", filter.topic.as_ref().map(Topic::as_str)),
        (" and `key` = ", filter.key.as_ref().map(|key| key.as_str())),
    ];
    for (condition, name) in names {
        if let Some(name) = name {
            query.push(condition).push_bind(name.as_bytes().to_vec());
        }
    }
    if let Some(since) = filter.since {
        query.push(" and at >= ").push_bind(since.as_micros());
    }
    if let Some(before) = filter.before {
        query.push(" and at < ").push_bind(before.as_micros());
    }
    // Of an empty list the limit is 0.
    if let Some(ids) = filter.ids.as_ref().filter(|ids| !ids.is_empty()) {
        query.push(" and (false");
        for id in ids {
            query.push(" or instr(ids, ").push_bind(id.to_string().into_bytes()).push(") > 0");
        }
        query.push(")");
    }
    let order = if filter.newest { " desc" } else { "" };
    query.push(format!(
        " order by entry{order} limit {} offset {}",
        number(filter.limit()),
        number(filter.offset)
    ));
    query
}

fn read(row: &MySqlRow) -> Result<AuditEntry, sqlx::Error> {
    let name = |column: usize| {
        let bytes: Option<&[u8]> = row.try_get_unchecked(column)?;
        Ok::<_, sqlx::Error>(bytes.map(|bytes| String::from_utf8_lossy(bytes).into_owned()))
    };
    let (route, topic, key) = (name(3)?, name(4)?, name(5)?);
    let columns = AuditColumns {
        at: row.try_get_unchecked(0)?,
        actor: &text(row, 1)?,
        operation: &text(row, 2)?,
        route: route.as_deref(),
        topic: topic.as_deref(),
        key: key.as_deref(),
        detail: &text(row, 6)?,
        affected: row.try_get_unchecked(7)?,
        ids: &text(row, 8)?,
    };
    Ok(columns.entry())
}

impl MySqlStore {
    /// Performs an operation that is one statement and moves no message, and records it if it
    /// changed something.
    pub(crate) async fn change(&self, note: &AuditNote, query: Bound<'_>) -> Result<(), StoreError> {
        let change = async |connection: &mut MySqlConnection| {
            if query.execute(&mut *connection).await?.rows_affected() > 0 {
                write(connection, note, 0, &[]).await?;
            }
            Ok(())
        };
        let work = async |connection: &mut MySqlConnection| in_transaction(connection, change).await;
        self.on(note.operation, &self.lines().operating, work).await
    }

    pub(crate) async fn audited(&self, filter: &Filter) -> Result<Vec<AuditEntry>, StoreError> {
        let mut query = select(filter);
        let work = async |connection: &mut MySqlConnection| {
            let rows = query.build().persistent(false).fetch_all(connection).await?;
            rows.iter().map(read).collect()
        };
        self.on("audit", &self.lines().looking, work).await
    }
}
