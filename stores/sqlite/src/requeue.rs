//! Dead letters on their way back, in one transaction: those that the database refuses stay.

use outbox_contract::backend::{AuditNote, Bucket, Requeue};
use outbox_contract::{MessageId, StoreError};
use outbox_store_sql::dead_letter_name;
use sqlx::Row;
use sqlx::query::Query;
use sqlx::sqlite::{Sqlite, SqliteArguments, SqliteConnection, SqliteRow};

use crate::error::{CONSTRAINT, code, store_error};
use crate::store::SqliteStore;
use crate::{audit, sql};

const OPERATION: &str = "requeue";

/// A row of a side table, and the bucket that it joins.
pub(crate) type Chosen = (i64, i64);

/// Rows that were chosen, in the order in which they stood in their keys.
pub(crate) fn chosen(rows: &[SqliteRow]) -> Result<Vec<Chosen>, sqlx::Error> {
    let text = |row: &SqliteRow, column: &str| -> Result<String, sqlx::Error> {
        row.try_get_unchecked::<&[u8], _>(column).map(|text| String::from_utf8_lossy(text).into_owned())
    };
    let mut chosen = Vec::with_capacity(rows.len());
    for row in rows {
        // Computed again: a wrong bucket is one of the things that a message can have died of.
        let bucket = Bucket::of(&text(row, "topic")?, &text(row, "order_key")?);
        chosen.push((row.try_get("number")?, bucket.0.into()));
    }
    Ok(chosen)
}

/// Appends dead letters again and removes them: pairs of number and bucket (JSON). Says how many.
pub(crate) async fn append(connection: &mut SqliteConnection, chosen: &str) -> Result<u64, sqlx::Error> {
    let appended = sqlx::query(sql::REQUEUE).bind(chosen).execute(&mut *connection).await?;
    sqlx::query(sql::REQUEUE_REMOVE).bind(chosen).execute(connection).await?;
    Ok(appended.rows_affected())
}

impl SqliteStore {
    pub(crate) async fn requeue_all(
        &self,
        note: &AuditNote,
        choose: Query<'_, Sqlite, SqliteArguments>,
    ) -> Result<u64, StoreError> {
        let done = async {
            let mut tx = self.pools().deciding.begin_with(sql::BEGIN).await?;
            let rows = choose.fetch_all(&mut *tx).await?;
            let mut named = Vec::with_capacity(rows.len());
            for (chosen, row) in chosen(&rows)?.into_iter().zip(&rows) {
                named.push((chosen, dead_letter_name(row.try_get_unchecked("id")?)));
            }
            let mut requeue = Requeue::new(named);
            let mut ids: Vec<MessageId> = Vec::new();
            while let Some(some) = requeue.next() {
                let pairs = sql::pairs(some.iter().map(|(chosen, _)| *chosen));
                sqlx::query("savepoint outbox_requeue").execute(&mut *tx).await?;
                match append(&mut tx, &pairs).await {
                    Ok(appended) => {
                        ids.extend(some.iter().filter_map(|(_, name)| name.parse::<MessageId>().ok()));
                        requeue.appended(appended);
                    }
                    Err(error) => {
                        let Some(words) = refusal(&error) else { return Err(error) };
                        sqlx::query("rollback to outbox_requeue").execute(&mut *tx).await?;
                        requeue.refused(words, |(_, name)| name.clone());
                    }
                }
                sqlx::query("release outbox_requeue").execute(&mut *tx).await?;
            }
            if requeue.count() > 0 {
                audit::write(&mut tx, note, requeue.count(), &ids).await?;
            }
            tx.commit().await?;
            Ok::<_, sqlx::Error>(requeue)
        };
        let requeue = done.await.map_err(|error| store_error(OPERATION, error))?;
        if requeue.count() > 0 {
            self.bell().committed();
        }
        requeue.result()
    }
}

/// Returns the database's reason if it refuses one of the rows.
fn refusal(error: &sqlx::Error) -> Option<String> {
    let refused = error.as_database_error().filter(|_| code(error) == Some(CONSTRAINT))?;
    Some(refused.message().to_owned())
}
