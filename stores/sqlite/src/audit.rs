//! The audit: operations are recorded in the transaction that performs them.

use outbox_contract::admin::{AuditEntry, Filter};
use outbox_contract::backend::{AuditColumns, AuditNote};
use outbox_contract::{MessageId, StoreError};
use outbox_store_sql::message_id;
use sqlx::Row;
use sqlx::query::Query;
use sqlx::sqlite::{Sqlite, SqliteArguments, SqliteConnection, SqliteRow};

use crate::browse::page;
use crate::error::store_error;
use crate::sql;
use crate::store::SqliteStore;

/// Records an operation on so many messages, of which these are known.
pub(crate) async fn write(
    connection: &mut SqliteConnection,
    note: &AuditNote,
    affected: u64,
    ids: &[MessageId],
) -> Result<(), sqlx::Error> {
    sqlx::query(sql::AUDIT_WRITE)
        .bind(note.actor.as_str().to_owned())
        .bind(note.operation)
        .bind(note.route.as_ref().map(|route| route.as_str().to_owned()))
        .bind(note.topic.as_ref().map(|topic| topic.as_str().to_owned()))
        .bind(note.key.as_ref().map(|key| key.as_str().to_owned()))
        .bind(note.detail.clone())
        .bind(i64::try_from(affected).unwrap_or(i64::MAX))
        .bind(AuditNote::ids(ids.iter().copied()))
        .execute(connection)
        .await
        .map(drop)
}

/// Returns the ids of rows that have such a column; leaves out what is none.
pub(crate) fn ids(rows: &[SqliteRow]) -> Vec<MessageId> {
    let id =
        |row: &SqliteRow| row.try_get_unchecked::<Option<&[u8]>, _>("id").ok().flatten().and_then(message_id);
    rows.iter().filter_map(id).collect()
}

impl SqliteStore {
    /// Performs an operation that is one statement and returns the column `id` of what it changed,
    /// null where that is no message. Records it, if it changed something. Returns the number of
    /// messages.
    pub(crate) async fn change(
        &self,
        note: &AuditNote,
        query: Query<'_, Sqlite, SqliteArguments>,
    ) -> Result<u64, StoreError> {
        let done = async {
            let mut tx = self.pools().deciding.begin_with(sql::BEGIN).await?;
            let rows = query.fetch_all(&mut *tx).await?;
            let mut messages = 0;
            for row in &rows {
                messages += u64::from(row.try_get_unchecked::<Option<&[u8]>, _>("id")?.is_some());
            }
            if !rows.is_empty() {
                write(&mut tx, note, messages, &ids(&rows)).await?;
            }
            tx.commit().await?;
            Ok::<_, sqlx::Error>(messages)
        };
        done.await.map_err(|error| store_error(note.operation, error))
    }

    pub(crate) async fn audited(&self, filter: &Filter) -> Result<Vec<AuditEntry>, StoreError> {
        let ids = filter
            .ids
            .as_ref()
            .map(|ids| serde_json::Value::from_iter(ids.iter().map(ToString::to_string)).to_string());
        self.look("audit", page(sql::AUDIT, filter).bind(ids), |row| {
            let columns = AuditColumns {
                at: row.try_get("at")?,
                actor: row.try_get("actor")?,
                operation: row.try_get("operation")?,
                route: row.try_get("route")?,
                topic: row.try_get("topic")?,
                key: row.try_get("key")?,
                detail: row.try_get("detail")?,
                affected: row.try_get("affected")?,
                ids: row.try_get("ids")?,
            };
            Ok(Some(columns.entry()))
        })
        .await
    }
}
