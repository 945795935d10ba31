//! KeyTransitions: the steps of failing keys.
//!
//! All steps of a call are one transaction. It changes and so locks the leases of all steps, then for each step the key, then looks and acts: nobody can take the
//! lease or change the key meanwhile. A step is refused before it has changed anything.

use std::collections::{BTreeMap, BTreeSet};

use outbox_contract::Failure;
use outbox_contract::backend::{KeyTransition, RowId, Step, Then, Transitioned};
use sqlx::mysql::MySqlConnection;
use sqlx::{AssertSqlSafe, Row};

use crate::key::{KeyIn, KeyState, take_versions};
use crate::lease::{micros, now};
use crate::line::in_transaction;
use crate::sql;
use crate::stripes::in_open_transaction;

/// How a message failed: how often, first and last.
struct Failed<'a> {
    attempts: u32,
    first: &'a Failure,
    last: &'a Failure,
}

pub(crate) async fn transition(
    connection: &mut MySqlConnection,
    transitions: &[KeyTransition],
    history: bool,
) -> Result<Vec<Transitioned>, sqlx::Error> {
    let mut next_version = take_versions(connection, transitions.len()).await?;
    in_transaction(connection, async |connection| {
        let leases = lock_leases(connection, transitions).await?;
        let mut answers = Vec::with_capacity(transitions.len());
        for transition in transitions {
            // Read anew for each step: a lease ends meanwhile, locked or not.
            let now = now(connection).await?;
            let is_held = leases.get(&place(transition)).is_some_and(|lease| lease.is_held(transition, now));
            answers.push(if is_held {
                step(connection, transition, now, next_version, history).await?
            } else {
                Transitioned::LeaseLost
            });
            next_version += 1;
        }
        Ok(answers)
    })
    .await
}

async fn step(
    connection: &mut MySqlConnection,
    transition: &KeyTransition,
    now: i64,
    next_version: i64,
    history: bool,
) -> Result<Transitioned, sqlx::Error> {
    let mut key = KeyIn { connection, route: &transition.route, key: &transition.key, now, next_version };
    let state = key.state().await?;
    if transition.version.is_some() && transition.version != state.as_ref().map(|state| state.version) {
        return Ok(Transitioned::Stale);
    }
    match &transition.step {
        Step::Fail { row, attempts, first, last, then, behind } => {
            let failed = Failed { attempts: *attempts, first, last };
            key.fail(transition, state, *row, &failed, *then, behind).await
        }
        Step::Park { rows } => {
            let Some(state) = state else { return Ok(Transitioned::Stale) };
            key.park(rows).await?;
            key.step().await?;
            // The same state: a retry that is under way need not start again because more has come behind it.
            Ok(Transitioned::Done(Some(state.version)))
        }
        Step::Bury { row, reason, attempts, first, last } => {
            let failed = Failed { attempts: *attempts, first, last };
            key.bury(state, *row, reason, &failed).await
        }
        Step::Resume { delivered } => key.resume(state, delivered, history).await,
    }
}

/// A lease that has an owner, locked.
struct Locked {
    relay: Vec<u8>,
    epoch: i64,
    lives_until: i64,
    lasts: i64,
    ends_at: Option<i64>,
}

impl Locked {
    /// Whether it is this relay's, under this epoch, now.
    fn is_held(&self, transition: &KeyTransition, now: i64) -> bool {
        let is_its = self.relay == transition.relay.as_uuid().as_bytes() && self.epoch == transition.epoch.0;
        let lives = self.lives_until > now && self.lives_until <= now.saturating_add(2 * self.lasts);
        is_its && lives && self.ends_at.is_none_or(|ends_at| ends_at > now)
    }
}

/// A route and a bucket.
type Place<'d> = (&'d str, u16);

fn place(transition: &KeyTransition) -> Place<'_> {
    (transition.route.as_str(), u16::from(transition.bucket.0))
}

/// Locks the leases of all steps before the first, the lowest first, as heartbeats do: steps come in no order of buckets, and locked one by one they
/// would wait for a heartbeat that waits for them.
async fn lock_leases<'d>(
    connection: &mut MySqlConnection,
    transitions: &'d [KeyTransition],
) -> Result<BTreeMap<Place<'d>, Locked>, sqlx::Error> {
    let places: BTreeSet<Place<'d>> = transitions.iter().map(place).collect();
    let statements =
        format!("{}; {}", fence_statement(places.iter().copied()), lock_statement(places.iter().copied()));
    let statements = in_open_transaction(&statements);
    let rows = sqlx::raw_sql(AssertSqlSafe(statements)).fetch_all(connection).await?;
    let mut leases = BTreeMap::new();
    for row in &rows {
        let lease = Locked {
            relay: row.try_get_unchecked(2)?,
            epoch: row.try_get_unchecked(3)?,
            lives_until: row.try_get_unchecked(4)?,
            lasts: row.try_get_unchecked(5)?,
            ends_at: row.try_get_unchecked(6)?,
        };
        let (route, bucket): (&[u8], i64) = (row.try_get_unchecked(0)?, row.try_get_unchecked(1)?);
        let is_this = |place: &&Place<'d>| place.0.as_bytes() == route && i64::from(place.1) == bucket;
        leases.extend(places.iter().find(is_this).map(|place| (*place, lease)));
    }
    Ok(leases)
}

/// The statement that changes the leases of all steps, and so locks them. It walks the primary key, which is the order of heartbeats.
///
/// A lock holds on one server. Nodes of a cluster learn of what was changed, and of two that have changed the same row let the first commit: so
/// whoever takes a lease on one node and whoever relies on it on another meet here.
fn fence_statement<'d>(places: impl IntoIterator<Item = Place<'d>>) -> String {
    format!(
        "update outbox_lease force index (primary) set steps = steps + 1 where relay is not null and {} order by route, bucket",
        sql::among("route", "bucket", places)
    )
}

/// The statement that reads these leases with their relays' lives, and locks those.
fn lock_statement<'d>(places: impl IntoIterator<Item = Place<'d>>) -> String {
    format!(
        "select l.route, l.bucket, l.relay, l.epoch, r.expires_at, r.lasts, l.expires_at \
         from outbox_lease l force index (primary) straight_join outbox_relay r on r.route = l.route and r.relay = l.relay \
         where {} order by l.route, l.bucket lock in share mode",
        sql::among("l.route", "l.bucket", places)
    )
}

/// The statements as a transition writes them, for the server to prepare when the tables are checked.
pub(crate) fn samples() -> [String; 2] {
    [fence_statement([("default", 0)]), lock_statement([("default", 0)])]
}

impl KeyIn<'_> {
    async fn fail(
        &mut self,
        transition: &KeyTransition,
        state: Option<KeyState>,
        row: RowId,
        failed: &Failed<'_>,
        then: Then,
        behind: &[RowId],
    ) -> Result<Transitioned, sqlx::Error> {
        let id = row.id.as_uuid();
        let mut place = sqlx::query(sql::WHERE_IS);
        for _ in ["hot", "parked"] {
            place = self.bind_key(place).bind(row.position.0).bind(&id.as_bytes()[..]);
        }
        let place = place.fetch_one(&mut *self.connection).await?;
        if place.try_get_unchecked::<i64, _>(0)? == 0 && place.try_get_unchecked::<i64, _>(1)? == 0 {
            return Ok(Transitioned::Stale);
        }
        let rows: Vec<RowId> = [row].into_iter().chain(behind.iter().copied()).collect();
        self.park(&rows).await?;
        let is_first = self.first_parked().await?.as_deref() == Some(&id.as_bytes()[..]);
        if state.is_some() && !is_first {
            // What is first decides the key's state; a later one that failed too just waits behind it.
            return self.renumber().await.map(|version| Transitioned::Done(Some(version)));
        }
        let (held, next) = match then {
            Then::RetryAfter(delay) => (false, Some(self.now.saturating_add(micros(delay)))),
            Then::Hold => (true, None),
        };
        self.bind_key(sqlx::query(sql::KEY_FAIL))
            .bind(transition.bucket.0)
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
        Ok(Transitioned::Done(Some(self.next_version)))
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
    ) -> Result<Transitioned, sqlx::Error> {
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
                return Ok(Transitioned::Stale);
            }
            self.execute(sqlx::query(sql::RESUME).bind(sql::rows(&[row]))).await?;
        }
        let Some(state) = state else { return Ok(Transitioned::Done(None)) };
        let version = if state.failing.is_some() && state.failing == self.first_parked().await? {
            // It was not the first that was buried: that one goes on failing.
            self.renumber().await?
        } else {
            self.change(sql::KEY_NEXT).await?
        };
        Ok(Transitioned::Done(Some(version)))
    }

    async fn resume(
        &mut self,
        state: Option<KeyState>,
        delivered: &[RowId],
        history: bool,
    ) -> Result<Transitioned, sqlx::Error> {
        let Some(state) = state else { return Ok(Transitioned::Done(None)) };
        let rows = sql::rows(delivered);
        if history {
            self.execute(sqlx::query(sql::RESUME_HISTORY).bind(self.now).bind(&rows)).await?;
        }
        self.execute(sqlx::query(sql::RESUME).bind(&rows)).await?;
        if self.first_parked().await?.is_none() && !state.held {
            self.remove().await?;
            return Ok(Transitioned::Done(None));
        }
        self.change(sql::KEY_NEXT).await.map(|version| Transitioned::Done(Some(version)))
    }
}
