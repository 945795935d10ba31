//! Transitions of failing keys.
//!
//! All steps of a call are one transaction that has the write lock from its start: no other writer
//! can take a lease, change a key or move a message while a step looks and acts. A step looks first
//! and is refused before it has changed anything.

use outbox_contract::admin::Actor;
use outbox_contract::backend::rules::failing_key::{self, KeyState};
use outbox_contract::backend::{AuditNote, Bucket, KeyTransition, RowId, Step, Transitioned};
use outbox_contract::{Failure, KeyId, MessageId, Route, Timestamp};
use sqlx::Row;
use sqlx::query::Query;
use sqlx::sqlite::{Sqlite, SqliteArguments, SqliteConnection, SqlitePool, SqliteRow};
use uuid::Uuid;

use crate::lease::now;
use crate::settle::Rows;
use crate::{audit, sql};

/// One key, in a transaction.
pub(crate) struct KeyIn<'a> {
    pub(crate) connection: &'a mut SqliteConnection,
    pub(crate) route: &'a Route,
    pub(crate) key: &'a KeyId,
    /// The bucket that the key's row gets, if it has none yet.
    pub(crate) bucket: Bucket,
    pub(crate) now: i64,
}

pub(crate) async fn transition(
    pool: &SqlitePool,
    transitions: &[KeyTransition],
    actor: &Actor,
    history: bool,
) -> Result<Vec<Transitioned>, sqlx::Error> {
    if transitions.is_empty() {
        return Ok(Vec::new());
    }
    let mut tx = pool.begin_with(sql::BEGIN).await?;
    let now = now(&mut tx).await?;
    let mut answers = Vec::with_capacity(transitions.len());
    for transition in transitions {
        let KeyTransition { route, key, bucket, .. } = transition;
        let key = KeyIn { connection: &mut tx, route, key, bucket: *bucket, now };
        answers.push(key.transition(transition, actor, history).await?);
    }
    tx.commit().await?;
    Ok(answers)
}

impl KeyIn<'_> {
    async fn transition(
        mut self,
        transition: &KeyTransition,
        actor: &Actor,
        history: bool,
    ) -> Result<Transitioned, sqlx::Error> {
        if !self.holds_lease(transition).await? {
            return Ok(Transitioned::LeaseLost);
        }
        let state = self.state().await?;
        let step = &transition.step;
        if failing_key::is_stale(state.as_ref(), transition) || !self.move_messages(step, history).await? {
            return Ok(Transitioned::Stale);
        }
        if let Some((note, id)) = AuditNote::discarded(actor, transition) {
            audit::write(&mut *self.connection, &note, 1, &[id]).await?;
        }
        let first = match failing_key::depends_on_first(state.as_ref(), step) {
            true => self.first_parked().await?,
            false => None,
        };
        let version = self.next_version().await?;
        let next = failing_key::after(state.clone(), step, first, version, self.instant());
        self.put(state.as_ref(), next.as_ref()).await?;
        Ok(Transitioned::Done(next.map(|state| state.version)))
    }

    async fn holds_lease(&mut self, transition: &KeyTransition) -> Result<bool, sqlx::Error> {
        let held = sqlx::query(sql::TRANSITION_LEASE)
            .bind(transition.route.as_str())
            .bind(transition.bucket.0)
            .bind(&transition.relay.as_uuid().as_bytes()[..])
            .bind(transition.epoch.0)
            .bind(self.now)
            .fetch_optional(&mut *self.connection)
            .await?;
        Ok(held.is_some())
    }

    /// Moves the messages of a step. False: its own message is neither hot nor parked, and nothing
    /// has changed.
    async fn move_messages(&mut self, step: &Step, history: bool) -> Result<bool, sqlx::Error> {
        match step {
            Step::Fail { row, behind, .. } => {
                let is_there = self.is_there(*row).await?;
                if is_there {
                    let rows: Vec<RowId> = [*row].into_iter().chain(behind.iter().copied()).collect();
                    self.park(&rows).await?;
                }
                Ok(is_there)
            }
            Step::Park { rows } => self.park(rows).await.map(|()| true),
            Step::Bury { row, discard: true, .. } => self.drop_message(*row).await,
            Step::Bury { row, .. } => self.bury(*row, step).await,
            Step::Resume { delivered } => self.deliver(delivered, history).await.map(|()| true),
        }
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

    /// Moves messages of the key from the hot table to the parked ones; skips missing ones.
    async fn park(&mut self, rows: &[RowId]) -> Result<(), sqlx::Error> {
        let rows = Rows::new(rows);
        self.key_query(sql::PARK)
            .bind(&rows.positions)
            .bind(&rows.ids)
            .bind(self.now)
            .execute(&mut *self.connection)
            .await?;
        sqlx::query(sql::PARK_REMOVE).bind(&rows.positions).execute(&mut *self.connection).await?;
        Ok(())
    }

    async fn bury(&mut self, row: RowId, step: &Step) -> Result<bool, sqlx::Error> {
        let rows = Rows::new(&[row]);
        if self.bury_from(sql::BURY_PENDING, row, step).await? {
            sqlx::query(sql::SETTLE)
                .bind(&rows.positions)
                .bind(&rows.ids)
                .execute(&mut *self.connection)
                .await?;
        } else if self.bury_from(sql::BURY_PARKED, row, step).await? {
            self.remove_parked(&rows).await?;
        } else {
            return Ok(false);
        }
        Ok(true)
    }

    /// Deletes a message of the key, hot or parked. False: it is neither.
    async fn drop_message(&mut self, row: RowId) -> Result<bool, sqlx::Error> {
        let is_there = self.is_there(row).await?;
        if is_there {
            let rows = Rows::new(&[row]);
            let remove = sqlx::query(sql::SETTLE).bind(&rows.positions).bind(&rows.ids);
            remove.execute(&mut *self.connection).await?;
            self.remove_parked(&rows).await?;
        }
        Ok(is_there)
    }

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

    /// Removes delivered messages from the parked ones; to the history, if one is kept.
    async fn deliver(&mut self, delivered: &[RowId], history: bool) -> Result<(), sqlx::Error> {
        let rows = Rows::new(delivered);
        if history {
            self.key_query(sql::RESUME_HISTORY)
                .bind(&rows.positions)
                .bind(&rows.ids)
                .bind(self.now)
                .execute(&mut *self.connection)
                .await?;
        }
        self.remove_parked(&rows).await
    }

    async fn remove_parked(&mut self, rows: &Rows) -> Result<(), sqlx::Error> {
        self.key_query(sql::RESUME)
            .bind(&rows.positions)
            .bind(&rows.ids)
            .execute(&mut *self.connection)
            .await?;
        Ok(())
    }

    /// Returns the key's row, if it has one.
    pub(crate) async fn state(&mut self) -> Result<Option<KeyState>, sqlx::Error> {
        let row = self.key_query(sql::KEY_STATE).fetch_optional(&mut *self.connection).await?;
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
        query.execute(&mut *self.connection).await?;
        Ok(())
    }

    /// Returns the id of the first parked message.
    pub(crate) async fn first_parked(&mut self) -> Result<Option<MessageId>, sqlx::Error> {
        let row = self.key_query(sql::PARKED_FIRST).fetch_optional(&mut *self.connection).await?;
        Ok(row.map(|row| row.try_get::<Vec<u8>, _>("id")).transpose()?.as_deref().and_then(message_id))
    }

    /// Returns the time of this transaction.
    pub(crate) const fn instant(&self) -> Timestamp {
        Timestamp::from_micros(self.now)
    }

    /// Returns the number of the key's next state.
    pub(crate) async fn next_version(&mut self) -> Result<i64, sqlx::Error> {
        sqlx::query_scalar(sql::KEY_NEXT_VERSION).fetch_one(&mut *self.connection).await
    }

    /// A statement whose first three parameters name the key.
    pub(crate) fn key_query<'q>(&self, statement: &'static str) -> Query<'q, Sqlite, SqliteArguments> {
        sqlx::query(statement)
            .bind(self.route.as_str().to_owned())
            .bind(self.key.topic.as_str().to_owned())
            .bind(self.key.key.as_str().to_owned())
    }
}

pub(crate) fn message_id(bytes: &[u8]) -> Option<MessageId> {
    Uuid::from_slice(bytes).ok().map(MessageId::from_uuid)
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
