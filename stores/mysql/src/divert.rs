//! Diversions: the steps of failing keys.
//!
//! All steps of a call are one transaction. Each step locks the lease, then the key, then looks and acts: nobody can take the lease or change the
//! key meanwhile. A step is refused before it has changed anything.

use outbox_contract::Failure;
use outbox_contract::divert::{Diversion, Diverted, Step, Then};
use outbox_contract::fetch::RowId;
use sqlx::Row;
use sqlx::mysql::MySqlConnection;

use crate::key::{KeyIn, KeyState, take_versions};
use crate::lease::{micros, now};
use crate::line::run;
use crate::settle::end;
use crate::sql;

/// How a message failed: how often, first and last.
struct Failed<'a> {
    attempts: u32,
    first: &'a Failure,
    last: &'a Failure,
}

pub(crate) async fn divert(
    connection: &mut MySqlConnection,
    diversions: &[Diversion],
    history: bool,
) -> Result<Vec<Diverted>, sqlx::Error> {
    let mut next_version = take_versions(connection, diversions.len()).await?;
    run(connection, "start transaction").await?;
    let done = async {
        let mut answers = Vec::with_capacity(diversions.len());
        for diversion in diversions {
            answers.push(step(connection, diversion, next_version, history).await?);
            next_version += 1;
        }
        Ok(answers)
    };
    let done = done.await;
    end(connection, done).await
}

async fn step(
    connection: &mut MySqlConnection,
    diversion: &Diversion,
    next_version: i64,
    history: bool,
) -> Result<Diverted, sqlx::Error> {
    let Some(now) = hold_lease(connection, diversion).await? else { return Ok(Diverted::LeaseLost) };
    let mut key = KeyIn { connection, route: &diversion.route, key: &diversion.key, now, next_version };
    let state = key.state().await?;
    if diversion.version.is_some() && diversion.version != state.as_ref().map(|state| state.version) {
        return Ok(Diverted::Stale);
    }
    match &diversion.step {
        Step::Fail { row, attempts, first, last, then, behind } => {
            let failed = Failed { attempts: *attempts, first, last };
            key.fail(diversion, state, *row, &failed, *then, behind).await
        }
        Step::Park { rows } => {
            let Some(state) = state else { return Ok(Diverted::Stale) };
            key.park(rows).await?;
            // The same state: a retry that is under way need not start again because more has come behind it.
            Ok(Diverted::Done(Some(state.version)))
        }
        Step::Bury { row, reason, attempts, first, last } => {
            let failed = Failed { attempts: *attempts, first, last };
            key.bury(state, *row, reason, &failed).await
        }
        Step::Resume { delivered } => key.resume(state, delivered, history).await,
    }
}

/// The time, if the relay holds the lease now. Read after the lease was locked: whoever waits for a lock may have lost the lease meanwhile.
async fn hold_lease(
    connection: &mut MySqlConnection,
    diversion: &Diversion,
) -> Result<Option<i64>, sqlx::Error> {
    let lease = sqlx::query(sql::DIVERT_LEASE)
        .bind(diversion.route.as_str().as_bytes())
        .bind(diversion.bucket.0)
        .bind(&diversion.relay.as_uuid().as_bytes()[..])
        .bind(diversion.epoch.0)
        .fetch_optional(&mut *connection)
        .await?;
    let Some(lease) = lease else { return Ok(None) };
    let now = now(connection).await?;
    let (lives_until, lasts): (i64, i64) = (lease.try_get_unchecked(0)?, lease.try_get_unchecked(1)?);
    let ends_at: Option<i64> = lease.try_get_unchecked(2)?;
    let lives = lives_until > now && lives_until <= now.saturating_add(2 * lasts);
    Ok((lives && ends_at.is_none_or(|ends_at| ends_at > now)).then_some(now))
}

impl KeyIn<'_> {
    async fn fail(
        &mut self,
        diversion: &Diversion,
        state: Option<KeyState>,
        row: RowId,
        failed: &Failed<'_>,
        then: Then,
        behind: &[RowId],
    ) -> Result<Diverted, sqlx::Error> {
        let id = row.id.as_uuid();
        let mut place = sqlx::query(sql::WHERE_IS);
        for _ in ["hot", "parked"] {
            place = self.bind_key(place).bind(row.position.0).bind(&id.as_bytes()[..]);
        }
        let place = place.fetch_one(&mut *self.connection).await?;
        if place.try_get_unchecked::<i64, _>(0)? == 0 && place.try_get_unchecked::<i64, _>(1)? == 0 {
            return Ok(Diverted::Stale);
        }
        let rows: Vec<RowId> = [row].into_iter().chain(behind.iter().copied()).collect();
        self.park(&rows).await?;
        let is_first = self.first_parked().await?.as_deref() == Some(&id.as_bytes()[..]);
        if state.is_some() && !is_first {
            // What is first decides the key's state; a later one that failed too just waits behind it.
            return self.renumber().await.map(|version| Diverted::Done(Some(version)));
        }
        let (held, next) = match then {
            Then::RetryAfter(delay) => (false, Some(self.now.saturating_add(micros(delay)))),
            Then::Hold => (true, None),
        };
        self.bind_key(sqlx::query(sql::KEY_FAIL))
            .bind(diversion.bucket.0)
            .bind(self.next_version)
            .bind(held)
            .bind(next)
            .bind(&id.as_bytes()[..])
            .bind(failed.attempts)
            .bind(failed.first.to_text().into_bytes())
            .bind(failed.last.to_text().into_bytes())
            .bind(self.now)
            .execute(&mut *self.connection)
            .await?;
        Ok(Diverted::Done(Some(self.next_version)))
    }

    /// Moves messages of the key from the hot table to the parked ones; passes over those that are not there.
    async fn park(&mut self, rows: &[RowId]) -> Result<(), sqlx::Error> {
        let rows = sql::rows(rows);
        self.execute(sqlx::query(sql::PARK).bind(self.now).bind(&rows)).await?;
        self.execute(sqlx::query(sql::PARK_REMOVE).bind(&rows)).await?;
        Ok(())
    }

    async fn bury(
        &mut self,
        state: Option<KeyState>,
        row: RowId,
        reason: &str,
        failed: &Failed<'_>,
    ) -> Result<Diverted, sqlx::Error> {
        let id = row.id.as_uuid();
        let (route, id) = (self.route.as_str().as_bytes(), &id.as_bytes()[..]);
        let bury = |statement: &'static str| {
            sqlx::query(statement)
                .bind(reason.as_bytes())
                .bind(failed.attempts)
                .bind(failed.first.to_text().into_bytes())
                .bind(failed.last.to_text().into_bytes())
                .bind(self.now)
        };
        // By position and id alone: what is no message has a key that can't be named.
        let buried = bury(sql::BURY_PENDING).bind(route).bind(row.position.0).bind(id);
        let (pending, parked) = (buried, bury(sql::BURY_PARKED));
        if pending.execute(&mut *self.connection).await?.rows_affected() > 0 {
            sqlx::query(sql::SETTLE)
                .bind(sql::rows(&[row]))
                .bind(route)
                .execute(&mut *self.connection)
                .await?;
        } else {
            let parked = self.bind_key(parked).bind(row.position.0).bind(id);
            if parked.execute(&mut *self.connection).await?.rows_affected() == 0 {
                return Ok(Diverted::Stale);
            }
            self.execute(sqlx::query(sql::RESUME).bind(sql::rows(&[row]))).await?;
        }
        let Some(state) = state else { return Ok(Diverted::Done(None)) };
        let version = if state.failing.is_some() && state.failing == self.first_parked().await? {
            // It was not the first that was buried: that one goes on failing.
            self.renumber().await?
        } else {
            self.change(sql::KEY_NEXT).await?
        };
        Ok(Diverted::Done(Some(version)))
    }

    async fn resume(
        &mut self,
        state: Option<KeyState>,
        delivered: &[RowId],
        history: bool,
    ) -> Result<Diverted, sqlx::Error> {
        let Some(state) = state else { return Ok(Diverted::Done(None)) };
        let rows = sql::rows(delivered);
        if history {
            self.execute(sqlx::query(sql::RESUME_HISTORY).bind(self.now).bind(&rows)).await?;
        }
        self.execute(sqlx::query(sql::RESUME).bind(&rows)).await?;
        if self.first_parked().await?.is_none() && !state.held {
            self.remove().await?;
            return Ok(Diverted::Done(None));
        }
        self.change(sql::KEY_NEXT).await.map(|version| Diverted::Done(Some(version)))
    }
}
