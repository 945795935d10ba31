//! KeyTransitions: the steps of failing keys.
//!
//! All steps of a call are one transaction that has the write lock from its start: no other writer
//! can take a lease, change a key or move a message while a step looks and acts. A step looks first
//! and is refused before it has changed anything.

use outbox_contract::backend::{KeyTransition, RowId, Step, Then, Transitioned};
use outbox_contract::{Failure, KeyId, Route};
use sqlx::Row;
use sqlx::query::Query;
use sqlx::sqlite::{Sqlite, SqliteArguments, SqliteConnection, SqlitePool};

use crate::lease::{micros, now};
use crate::settle::Rows;
use crate::sql;

/// One key, in a transaction.
pub(crate) struct KeyIn<'a> {
    pub(crate) connection: &'a mut SqliteConnection,
    pub(crate) route: &'a Route,
    pub(crate) key: &'a KeyId,
    pub(crate) now: i64,
}

/// A failing key's row.
pub(crate) struct KeyState {
    pub(crate) version: i64,
    pub(crate) held: bool,
    failing: Option<Vec<u8>>,
}

/// Failures of a message: their number, the first and the last time.
struct Failed<'a> {
    attempts: u32,
    first: &'a Failure,
    last: &'a Failure,
}

pub(crate) async fn transition(
    pool: &SqlitePool,
    transitions: &[KeyTransition],
    history: bool,
) -> Result<Vec<Transitioned>, sqlx::Error> {
    if transitions.is_empty() {
        return Ok(Vec::new());
    }
    let mut tx = pool.begin_with(sql::BEGIN).await?;
    let now = now(&mut tx).await?;
    let mut answers = Vec::with_capacity(transitions.len());
    for transition in transitions {
        let key = KeyIn { connection: &mut tx, route: &transition.route, key: &transition.key, now };
        answers.push(key.transition(transition, history).await?);
    }
    tx.commit().await?;
    Ok(answers)
}

impl KeyIn<'_> {
    async fn transition(
        mut self,
        transition: &KeyTransition,
        history: bool,
    ) -> Result<Transitioned, sqlx::Error> {
        if !self.holds_lease(transition).await? {
            return Ok(Transitioned::LeaseLost);
        }
        let state = self.state().await?;
        if transition.version.is_some() && transition.version != state.as_ref().map(|state| state.version) {
            return Ok(Transitioned::Stale);
        }
        match &transition.step {
            Step::Fail { row, attempts, first, last, then, behind } => {
                let failed = Failed { attempts: *attempts, first, last };
                self.fail(transition, state, *row, &failed, *then, behind).await
            }
            Step::Park { rows } => {
                let Some(state) = state else { return Ok(Transitioned::Stale) };
                self.park(rows).await?;
                // The same state: a running retry need not restart because more messages were
                // parked behind it.
                Ok(Transitioned::Done(Some(state.version)))
            }
            Step::Bury { row, reason, attempts, first, last } => {
                let failed = Failed { attempts: *attempts, first, last };
                self.bury(state, *row, reason, &failed).await
            }
            Step::Resume { delivered } => self.resume(state, delivered, history).await,
        }
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

    async fn fail(
        &mut self,
        transition: &KeyTransition,
        state: Option<KeyState>,
        row: RowId,
        failed: &Failed<'_>,
        then: Then,
        behind: &[RowId],
    ) -> Result<Transitioned, sqlx::Error> {
        let place = self
            .key_query(sql::WHERE_IS)
            .bind(row.position.0)
            .bind(&row.id.as_uuid().as_bytes()[..])
            .fetch_one(&mut *self.connection)
            .await?;
        if !place.try_get::<bool, _>("hot")? && !place.try_get::<bool, _>("parked")? {
            return Ok(Transitioned::Stale);
        }
        let rows: Vec<RowId> = [row].into_iter().chain(behind.iter().copied()).collect();
        self.park(&rows).await?;
        let version = self.next_version().await?;
        let is_first = self.first_parked().await? == Some(row.id.as_uuid().as_bytes().to_vec());
        if state.is_some() && !is_first {
            // The first message decides the key's state; a later one that failed too just waits
            // behind it.
            self.key_query(sql::KEY_VERSION).bind(version).execute(&mut *self.connection).await?;
            return Ok(Transitioned::Done(Some(version)));
        }
        let (held, next) = match then {
            Then::RetryAfter(delay) => (false, Some(self.now.saturating_add(micros(delay)))),
            Then::Hold => (true, None),
        };
        self.key_query(sql::KEY_FAIL)
            .bind(transition.bucket.0)
            .bind(version)
            .bind(held)
            .bind(next)
            .bind(&row.id.as_uuid().as_bytes()[..])
            .bind(failed.attempts)
            .bind(failed.first.to_text())
            .bind(failed.last.to_text())
            .bind(self.now)
            .execute(&mut *self.connection)
            .await?;
        Ok(Transitioned::Done(Some(version)))
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

    async fn bury(
        &mut self,
        state: Option<KeyState>,
        row: RowId,
        reason: &str,
        failed: &Failed<'_>,
    ) -> Result<Transitioned, sqlx::Error> {
        let rows = Rows::new(&[row]);
        if self.bury_from(sql::BURY_PENDING, row, reason, failed).await? {
            sqlx::query(sql::SETTLE)
                .bind(&rows.positions)
                .bind(&rows.ids)
                .execute(&mut *self.connection)
                .await?;
        } else if self.bury_from(sql::BURY_PARKED, row, reason, failed).await? {
            self.remove_parked(&rows).await?;
        } else {
            return Ok(Transitioned::Stale);
        }
        let Some(state) = state else { return Ok(Transitioned::Done(None)) };
        let version = self.next_version().await?;
        if state.failing.is_some() && state.failing == self.first_parked().await? {
            // The buried message was not the first: the first keeps failing.
            self.key_query(sql::KEY_VERSION).bind(version).execute(&mut *self.connection).await?;
        } else {
            self.go_on(version).await?;
        }
        Ok(Transitioned::Done(Some(version)))
    }

    async fn bury_from(
        &mut self,
        statement: &'static str,
        row: RowId,
        reason: &str,
        failed: &Failed<'_>,
    ) -> Result<bool, sqlx::Error> {
        let buried = sqlx::query(statement)
            .bind(self.route.as_str())
            .bind(row.position.0)
            .bind(&row.id.as_uuid().as_bytes()[..])
            .bind(reason)
            .bind(failed.attempts)
            .bind(failed.first.to_text())
            .bind(failed.last.to_text())
            .bind(self.now)
            .execute(&mut *self.connection)
            .await?;
        Ok(buried.rows_affected() > 0)
    }

    async fn resume(
        &mut self,
        state: Option<KeyState>,
        delivered: &[RowId],
        history: bool,
    ) -> Result<Transitioned, sqlx::Error> {
        let Some(state) = state else { return Ok(Transitioned::Done(None)) };
        let rows = Rows::new(delivered);
        if history {
            self.key_query(sql::RESUME_HISTORY)
                .bind(&rows.positions)
                .bind(&rows.ids)
                .bind(self.now)
                .execute(&mut *self.connection)
                .await?;
        }
        self.remove_parked(&rows).await?;
        if self.first_parked().await?.is_none() && !state.held {
            self.key_query(sql::KEY_REMOVE).execute(&mut *self.connection).await?;
            return Ok(Transitioned::Done(None));
        }
        let version = self.next_version().await?;
        self.go_on(version).await?;
        Ok(Transitioned::Done(Some(version)))
    }

    /// Continues the key with its next message, with zero attempts.
    async fn go_on(&mut self, version: i64) -> Result<(), sqlx::Error> {
        self.key_query(sql::KEY_NEXT).bind(version).bind(self.now).execute(&mut *self.connection).await?;
        Ok(())
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
        let state = |row: &sqlx::sqlite::SqliteRow| {
            Ok(KeyState {
                version: row.try_get("version")?,
                held: row.try_get("held")?,
                failing: row.try_get("failing")?,
            })
        };
        row.as_ref().map(state).transpose()
    }

    /// Returns the id of the first parked message.
    pub(crate) async fn first_parked(&mut self) -> Result<Option<Vec<u8>>, sqlx::Error> {
        let row = self.key_query(sql::PARKED_FIRST).fetch_optional(&mut *self.connection).await?;
        row.map(|row| row.try_get("id")).transpose()
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
