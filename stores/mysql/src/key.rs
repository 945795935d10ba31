//! One key, in a transaction: its state, and what is parked behind it.

use outbox_contract::admin::{Actor, AuditEntry};
use outbox_contract::backend::rules::failing_key::KeyState;
use outbox_contract::backend::{AuditNote, Bucket, KeyOperation};
use outbox_contract::{Failure, KeyId, MessageId, Route, Timestamp};
use sqlx::Row;
use sqlx::mysql::{MySql, MySqlArguments, MySqlConnection, MySqlRow};
use sqlx::query::Query;
use uuid::Uuid;

use crate::browse::{attempts, instant};
use crate::due::failure;
use crate::{audit, sql};

/// The most messages that one transaction discards: a relay that parks another one behind them
/// waits for no longer than that takes.
pub(crate) const MAX_DISCARDED: u64 = 1_000;

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
}

/// A statement with values.
pub(crate) type Bound<'q> = Query<'q, MySql, MySqlArguments>;

impl KeyIn<'_> {
    /// Returns the key's row, if it has one, locked until the transaction ends.
    pub(crate) async fn state(&mut self) -> Result<Option<KeyState>, sqlx::Error> {
        let query = self.bind_key(sqlx::query(sql::KEY_STATE));
        let row = query.fetch_optional(&mut *self.connection).await?;
        row.as_ref().map(read_state).transpose()
    }

    /// Writes the key's next state, if it differs from the one before.
    pub(crate) async fn put(
        &mut self,
        before: Option<&KeyState>,
        next: Option<&KeyState>,
    ) -> Result<(), sqlx::Error> {
        if before == next {
            return Ok(());
        }
        let Some(next) = next else {
            return self.execute(sqlx::query(sql::KEY_REMOVE)).await.map(|_| ());
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
            .map(|_| ())
    }

    /// Returns the id of the first parked message.
    pub(crate) async fn first_parked(&mut self) -> Result<Option<MessageId>, sqlx::Error> {
        let query = self.bind_key(sqlx::query(sql::PARKED_FIRST));
        let row = query.fetch_optional(&mut *self.connection).await?;
        Ok(row.map(|row| row.try_get_unchecked::<Vec<u8>, _>(0)).transpose()?.as_deref().and_then(message_id))
    }

    /// Returns the time of this transaction.
    pub(crate) const fn instant(&self) -> Timestamp {
        Timestamp::from_micros(self.now)
    }

    /// Touches the key's row, which stays as it is: something was moved behind it. On another node
    /// of a cluster an operator may have closed the key meanwhile: of two who change its row one is
    /// refused.
    pub(crate) async fn touch(&mut self) -> Result<(), sqlx::Error> {
        self.execute(sqlx::query(sql::KEY_STEP)).await.map(|_| ())
    }

    /// Turns as many parked messages into dead letters as one transaction moves. Returns their
    /// number. When they were the last the key flows again; until then it is held, so that none of
    /// the others goes out.
    pub(crate) async fn discard(&mut self, state: &KeyState) -> Result<u64, sqlx::Error> {
        let most = i64::try_from(MAX_DISCARDED).unwrap_or(i64::MAX);
        let discarded = self.parked_to_dead("discarded", most).await?;
        let is_part = discarded == MAX_DISCARDED;
        let next = is_part.then(|| state.clone().discard_in_part(self.next_version, self.instant()));
        self.put(Some(state), next.as_ref()).await?;
        Ok(discarded)
    }

    /// The first so many parked messages of the key become dead letters. Says how many.
    pub(crate) async fn parked_to_dead(
        &mut self,
        reason: &'static str,
        most: i64,
    ) -> Result<u64, sqlx::Error> {
        let bury = sqlx::query(sql::DISCARD).bind(reason.as_bytes()).bind(self.now);
        let bury = self.bind_key(bury).bind(most);
        let buried = bury.execute(&mut *self.connection).await?.rows_affected();
        let remove = self.bind_key(sqlx::query(sql::PARKED_REMOVE)).bind(most);
        remove.execute(&mut *self.connection).await?;
        Ok(buried)
    }

    /// Records an operation on this key.
    pub(crate) async fn note(
        &mut self,
        actor: &Actor,
        operation: KeyOperation,
        affected: u64,
        ids: &[MessageId],
    ) -> Result<(), sqlx::Error> {
        let note = AuditNote::on_key(actor, operation, self.route, self.key);
        audit::write(self.connection, &note, affected, ids).await
    }

    /// Returns the ids of the first parked messages, as many as the audit keeps.
    pub(crate) async fn parked_ids(&mut self) -> Result<Vec<MessageId>, sqlx::Error> {
        let most = i64::try_from(AuditEntry::MAX_IDS).unwrap_or(i64::MAX);
        let query = self.bind_key(sqlx::query(sql::PARKED_IDS)).bind(most);
        audit::ids(&query.fetch_all(&mut *self.connection).await?, 0)
    }

    /// Runs a statement whose next three values name the key, and are the last. Says how many rows.
    pub(crate) async fn execute(&mut self, query: Bound<'_>) -> Result<u64, sqlx::Error> {
        Ok(self.bind_key(query).execute(&mut *self.connection).await?.rows_affected())
    }

    /// The next three values of a statement name the key.
    pub(crate) fn bind_key<'q>(&self, query: Bound<'q>) -> Bound<'q> {
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

pub(crate) fn message_id(bytes: &[u8]) -> Option<MessageId> {
    Uuid::from_slice(bytes).ok().map(MessageId::from_uuid)
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
