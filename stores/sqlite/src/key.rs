//! One key, in a transaction: its state, and what is parked behind it.

use outbox_contract::admin::AuditEntry;
use outbox_contract::backend::rules::failing_key::KeyState;
use outbox_contract::backend::{AuditNote, Bucket, RowId, Step};
use outbox_contract::{Failure, KeyId, MessageId, Route, Timestamp};
use outbox_store_sql::key::OpenKey;
use outbox_store_sql::message_id;
use sqlx::Row;
use sqlx::query::Query;
use sqlx::sqlite::{Sqlite, SqliteArguments, SqliteConnection, SqliteRow};

use crate::settle::Rows;
use crate::{audit, sql};

/// One key, in a transaction that has the write lock.
pub(crate) struct KeyIn<'a> {
    pub(crate) connection: &'a mut SqliteConnection,
    pub(crate) route: &'a Route,
    pub(crate) key: &'a KeyId,
    /// The bucket that the key's row gets, if it has none yet.
    pub(crate) bucket: Bucket,
    pub(crate) now: i64,
    /// True if delivered messages go to the history.
    pub(crate) history: bool,
}

impl OpenKey for KeyIn<'_> {
    type Error = sqlx::Error;

    fn instant(&self) -> Timestamp {
        Timestamp::from_micros(self.now)
    }

    async fn next_version(&mut self) -> Result<i64, sqlx::Error> {
        sqlx::query_scalar(sql::KEY_NEXT_VERSION).fetch_one(&mut *self.connection).await
    }

    async fn state(&mut self) -> Result<Option<KeyState>, sqlx::Error> {
        let row = self.key_query(sql::KEY_STATE).fetch_optional(&mut *self.connection).await?;
        row.as_ref().map(read_state).transpose()
    }

    async fn put(&mut self, before: Option<&KeyState>, next: Option<&KeyState>) -> Result<(), sqlx::Error> {
        if before == next {
            return Ok(());
        }
        let query = match next {
            None => self.key_query(sql::KEY_REMOVE),
            Some(next) => self
                .key_query(sql::KEY_PUT)
                .bind(self.bucket.0)
                .bind(next.version)
                .bind(next.held)
                .bind(next.next_attempt_at.map(Timestamp::as_micros))
                .bind(next.failing.map(|id| id.as_uuid().as_bytes().to_vec()))
                .bind(next.attempts)
                .bind(next.first_failure.as_ref().map(Failure::to_text))
                .bind(next.last_failure.as_ref().map(Failure::to_text))
                .bind(next.since.as_micros()),
        };
        query.execute(&mut *self.connection).await.map(drop)
    }

    async fn first_parked(&mut self) -> Result<Option<MessageId>, sqlx::Error> {
        let row = self.key_query(sql::PARKED_FIRST).fetch_optional(&mut *self.connection).await?;
        Ok(row.map(|row| row.try_get::<Vec<u8>, _>("id")).transpose()?.as_deref().and_then(message_id))
    }

    async fn parked_ids(&mut self) -> Result<Vec<MessageId>, sqlx::Error> {
        let most = i64::try_from(AuditEntry::MAX_IDS).unwrap_or(i64::MAX);
        let rows = self.key_query(sql::PARKED_IDS).bind(most).fetch_all(&mut *self.connection).await?;
        Ok(audit::ids(&rows))
    }

    async fn parked_to_dead(&mut self, reason: &'static str, most: u32) -> Result<u64, sqlx::Error> {
        let bury = self.key_query(sql::PARKED_TO_DEAD).bind(reason).bind(self.now).bind(most);
        let buried = bury.execute(&mut *self.connection).await?;
        self.key_query(sql::PARKED_REMOVE).bind(most).execute(&mut *self.connection).await?;
        Ok(buried.rows_affected())
    }

    async fn is_there(&mut self, row: RowId) -> Result<bool, sqlx::Error> {
        let place = self
            .key_query(sql::WHERE_IS)
            .bind(row.position.0)
            .bind(&row.id.as_uuid().as_bytes()[..])
            .fetch_one(&mut *self.connection)
            .await?;
        Ok(place.try_get("hot")? || place.try_get("parked")?)
    }

    async fn park(&mut self, rows: &[RowId]) -> Result<(), sqlx::Error> {
        let rows = Rows::new(rows);
        self.key_query(sql::PARK)
            .bind(&rows.positions)
            .bind(&rows.ids)
            .bind(self.now)
            .execute(&mut *self.connection)
            .await?;
        let remove = sqlx::query(sql::PARK_REMOVE).bind(&rows.positions);
        remove.execute(&mut *self.connection).await.map(drop)
    }

    async fn bury(&mut self, row: RowId, step: &Step) -> Result<bool, sqlx::Error> {
        let rows = Rows::new(&[row]);
        if self.bury_from(sql::BURY_PENDING, row, step).await? {
            self.remove_hot(&rows).await?;
        } else if self.bury_from(sql::BURY_PARKED, row, step).await? {
            self.remove_parked(&rows).await?;
        } else {
            return Ok(false);
        }
        Ok(true)
    }

    async fn delete(&mut self, row: RowId) -> Result<(), sqlx::Error> {
        let rows = Rows::new(&[row]);
        self.remove_hot(&rows).await?;
        self.remove_parked(&rows).await
    }

    async fn deliver(&mut self, delivered: &[RowId]) -> Result<(), sqlx::Error> {
        let rows = Rows::new(delivered);
        if self.history {
            self.key_query(sql::RESUME_HISTORY)
                .bind(&rows.positions)
                .bind(&rows.ids)
                .bind(self.now)
                .execute(&mut *self.connection)
                .await?;
        }
        self.remove_parked(&rows).await
    }

    async fn record(
        &mut self,
        note: &AuditNote,
        affected: u64,
        ids: &[MessageId],
    ) -> Result<(), sqlx::Error> {
        audit::write(self.connection, note, affected, ids).await
    }
}

impl KeyIn<'_> {
    async fn bury_from(
        &mut self,
        statement: &'static str,
        row: RowId,
        step: &Step,
    ) -> Result<bool, sqlx::Error> {
        let Step::Bury { reason, attempts, first, last, .. } = step else { return Ok(false) };
        let buried = sqlx::query(statement)
            .bind(self.route.as_str())
            .bind(row.position.0)
            .bind(&row.id.as_uuid().as_bytes()[..])
            .bind(*reason)
            .bind(attempts)
            .bind(first.to_text())
            .bind(last.to_text())
            .bind(self.now)
            .execute(&mut *self.connection)
            .await?;
        Ok(buried.rows_affected() > 0)
    }

    async fn remove_hot(&mut self, rows: &Rows) -> Result<(), sqlx::Error> {
        let remove = sqlx::query(sql::SETTLE).bind(&rows.positions).bind(&rows.ids);
        remove.execute(&mut *self.connection).await.map(drop)
    }

    async fn remove_parked(&mut self, rows: &Rows) -> Result<(), sqlx::Error> {
        let remove = self.key_query(sql::RESUME).bind(&rows.positions).bind(&rows.ids);
        remove.execute(&mut *self.connection).await.map(drop)
    }

    /// A statement whose first three parameters name the key.
    fn key_query<'q>(&self, statement: &'static str) -> Query<'q, Sqlite, SqliteArguments> {
        sqlx::query(statement)
            .bind(self.route.as_str().to_owned())
            .bind(self.key.topic.as_str().to_owned())
            .bind(self.key.key.as_str().to_owned())
    }
}

pub(crate) fn read_state(row: &SqliteRow) -> Result<KeyState, sqlx::Error> {
    let failure =
        |column: &str| row.try_get::<Option<&str>, _>(column).map(|text| text.and_then(Failure::from_text));
    Ok(KeyState {
        version: row.try_get("version")?,
        held: row.try_get("held")?,
        next_attempt_at: row.try_get::<Option<i64>, _>("next_attempt_at")?.map(Timestamp::from_micros),
        failing: row.try_get::<Option<&[u8]>, _>("failing")?.and_then(message_id),
        attempts: row.try_get("attempts")?,
        first_failure: failure("first_failure")?,
        last_failure: failure("last_failure")?,
        since: row.try_get("since").map(Timestamp::from_micros)?,
    })
}
