//! One key, in a transaction: its state, and what is parked behind it.

use outbox_contract::admin::AuditEntry;
use outbox_contract::backend::rules::failing_key::KeyState;
use outbox_contract::backend::{AuditNote, Bucket, RowId, Step};
use outbox_contract::{Failure, KeyId, MessageId, Route, Timestamp};
use outbox_store_sql::key::OpenKey;
use outbox_store_sql::message_id;
use sqlx::Row;
use sqlx::mysql::{MySql, MySqlArguments, MySqlConnection, MySqlRow};
use sqlx::query::Query;

use crate::browse::{attempts, instant};
use crate::due::failure;
use crate::{audit, sql};

/// One key, in a transaction.
pub(crate) struct KeyIn<'a> {
    pub(crate) connection: &'a mut MySqlConnection,
    pub(crate) route: &'a Route,
    pub(crate) key: &'a KeyId,
    /// The bucket that the key's row gets, if it has none yet.
    pub(crate) bucket: Bucket,
    pub(crate) now: i64,
    /// The number of the key's next state, should there be one.
    pub(crate) next_version: i64,
    /// True if delivered messages go to the history.
    pub(crate) history: bool,
}

/// A statement with values.
pub(crate) type Bound<'q> = Query<'q, MySql, MySqlArguments>;

impl OpenKey for KeyIn<'_> {
    type Error = sqlx::Error;

    fn instant(&self) -> Timestamp {
        Timestamp::from_micros(self.now)
    }

    async fn next_version(&mut self) -> Result<i64, sqlx::Error> {
        Ok(self.next_version)
    }

    async fn state(&mut self) -> Result<Option<KeyState>, sqlx::Error> {
        let query = self.bind_key(sqlx::query(sql::KEY_STATE));
        let row = query.fetch_optional(&mut *self.connection).await?;
        row.as_ref().map(read_state).transpose()
    }

    async fn put(&mut self, before: Option<&KeyState>, next: Option<&KeyState>) -> Result<(), sqlx::Error> {
        if before == next {
            // The row stays as it is, but is changed: something was moved behind it. On another
            // node of a cluster an operator may have closed the key meanwhile: of two who change
            // its row one is refused.
            return if before.is_some() {
                self.execute(sqlx::query(sql::KEY_STEP)).await.map(drop)
            } else {
                Ok(())
            };
        }
        let Some(next) = next else {
            return self.execute(sqlx::query(sql::KEY_REMOVE)).await.map(drop);
        };
        let text = |failure: &Option<Failure>| failure.as_ref().map(|failure| failure.to_text().into_bytes());
        self.bind_key(sqlx::query(sql::KEY_PUT))
            .bind(self.bucket.0)
            .bind(next.version)
            .bind(next.held)
            .bind(next.next_attempt_at.map(Timestamp::as_micros))
            .bind(next.failing.map(|id| id.as_uuid().as_bytes().to_vec()))
            .bind(next.attempts)
            .bind(text(&next.first_failure))
            .bind(text(&next.last_failure))
            .bind(next.since.as_micros())
            .execute(&mut *self.connection)
            .await
            .map(drop)
    }

    async fn first_parked(&mut self) -> Result<Option<MessageId>, sqlx::Error> {
        let query = self.bind_key(sqlx::query(sql::PARKED_FIRST));
        let row = query.fetch_optional(&mut *self.connection).await?;
        Ok(row.map(|row| row.try_get_unchecked::<Vec<u8>, _>(0)).transpose()?.as_deref().and_then(message_id))
    }

    async fn parked_ids(&mut self) -> Result<Vec<MessageId>, sqlx::Error> {
        let most = i64::try_from(AuditEntry::MAX_IDS).unwrap_or(i64::MAX);
        let query = self.bind_key(sqlx::query(sql::PARKED_IDS)).bind(most);
        audit::ids(&query.fetch_all(&mut *self.connection).await?, 0)
    }

    async fn parked_to_dead(&mut self, reason: &'static str, most: u32) -> Result<u64, sqlx::Error> {
        let bury = sqlx::query(sql::DISCARD).bind(reason.as_bytes()).bind(self.now);
        let bury = self.bind_key(bury).bind(most);
        let buried = bury.execute(&mut *self.connection).await?.rows_affected();
        let remove = self.bind_key(sqlx::query(sql::PARKED_REMOVE)).bind(most);
        remove.execute(&mut *self.connection).await?;
        Ok(buried)
    }

    async fn is_there(&mut self, row: RowId) -> Result<bool, sqlx::Error> {
        let mut place = sqlx::query(sql::WHERE_IS);
        for _ in ["hot", "parked"] {
            place = self.bind_key(place).bind(row.position.0).bind(row.id.as_uuid().as_bytes().to_vec());
        }
        let place = place.fetch_one(&mut *self.connection).await?;
        Ok(place.try_get_unchecked::<i64, _>(0)? != 0 || place.try_get_unchecked::<i64, _>(1)? != 0)
    }

    async fn park(&mut self, rows: &[RowId]) -> Result<(), sqlx::Error> {
        let rows = sql::rows(rows);
        self.execute(sqlx::query(sql::PARK).bind(self.now).bind(&rows)).await?;
        self.execute(sqlx::query(sql::PARK_REMOVE).bind(&rows)).await?;
        Ok(())
    }

    async fn bury(&mut self, row: RowId, step: &Step) -> Result<bool, sqlx::Error> {
        let Step::Bury { reason, attempts, first, last, .. } = step else { return Ok(false) };
        let id = row.id.as_uuid();
        let (route, id) = (self.route.as_str().as_bytes(), &id.as_bytes()[..]);
        let bury = |statement: &'static str| {
            sqlx::query(statement)
                .bind(reason.as_bytes())
                .bind(attempts)
                .bind(first.to_text().into_bytes())
                .bind(last.to_text().into_bytes())
                .bind(self.now)
        };
        // By position and id alone: what is no message has a key that can't be named.
        let pending = bury(sql::BURY_PENDING).bind(route).bind(row.position.0).bind(id);
        let parked = self.bind_key(bury(sql::BURY_PARKED)).bind(row.position.0).bind(id);
        if pending.execute(&mut *self.connection).await?.rows_affected() > 0 {
            let settle = sqlx::query(sql::SETTLE).bind(sql::rows(&[row])).bind(route);
            settle.execute(&mut *self.connection).await?;
            return Ok(true);
        }
        let is_parked = parked.execute(&mut *self.connection).await?.rows_affected() > 0;
        if is_parked {
            self.execute(sqlx::query(sql::RESUME).bind(sql::rows(&[row]))).await?;
        }
        Ok(is_parked)
    }

    async fn delete(&mut self, row: RowId) -> Result<(), sqlx::Error> {
        let rows = sql::rows(&[row]);
        let settle = sqlx::query(sql::SETTLE).bind(&rows).bind(self.route.as_str().as_bytes());
        settle.execute(&mut *self.connection).await?;
        self.execute(sqlx::query(sql::RESUME).bind(&rows)).await.map(drop)
    }

    async fn deliver(&mut self, delivered: &[RowId]) -> Result<(), sqlx::Error> {
        let rows = sql::rows(delivered);
        if self.history {
            self.execute(sqlx::query(sql::RESUME_HISTORY).bind(self.now).bind(&rows)).await?;
        }
        self.execute(sqlx::query(sql::RESUME).bind(&rows)).await.map(drop)
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
    /// Runs a statement whose next three values name the key, and are the last. Says how many rows.
    async fn execute(&mut self, query: Bound<'_>) -> Result<u64, sqlx::Error> {
        Ok(self.bind_key(query).execute(&mut *self.connection).await?.rows_affected())
    }

    /// The next three values of a statement name the key.
    fn bind_key<'q>(&self, query: Bound<'q>) -> Bound<'q> {
        query
            .bind(self.route.as_str().as_bytes().to_vec())
            .bind(self.key.topic.as_str().as_bytes().to_vec())
            .bind(self.key.key.as_str().as_bytes().to_vec())
    }
}

/// Takes numbers for the next states of so many keys; gives the first of them. In a statement of
/// its own: whoever changes keys holds no lock that others who change other keys want. None comes
/// back, though the key be closed and opened again.
pub(crate) async fn take_versions(
    connection: &mut MySqlConnection,
    count: usize,
) -> Result<i64, sqlx::Error> {
    let count = i64::try_from(count).unwrap_or(i64::MAX);
    let taken = sqlx::query(sql::KEY_VERSIONS).bind(count).execute(connection).await?;
    let last = i64::try_from(taken.last_insert_id()).unwrap_or(i64::MAX);
    Ok(last - count + 1)
}

/// The columns of a key's state, as [`read_state`] reads them.
pub(crate) const STATE: &str =
    "t.version, t.held, t.next_attempt_at, t.failing, t.attempts, t.first_failure, t.last_failure, t.since";

pub(crate) fn read_state(row: &MySqlRow) -> Result<KeyState, sqlx::Error> {
    Ok(KeyState {
        version: row.try_get_unchecked(0)?,
        held: row.try_get_unchecked::<i64, _>(1)? != 0,
        next_attempt_at: row.try_get_unchecked::<Option<i64>, _>(2)?.map(Timestamp::from_micros),
        failing: row.try_get_unchecked::<Option<&[u8]>, _>(3)?.and_then(message_id),
        attempts: attempts(row, 4)?,
        first_failure: failure(row, 5)?,
        last_failure: failure(row, 6)?,
        since: instant(row, 7)?,
    })
}
