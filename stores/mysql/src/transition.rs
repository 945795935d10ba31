//! Transitions of failing keys.
//!
//! All steps of a call are one transaction. It changes and so locks the leases of all steps, then
//! for each step the key, then looks and acts: neither lease nor key can change meanwhile. A step
//! is refused before it has changed anything.

use std::collections::{BTreeMap, BTreeSet};

use outbox_contract::admin::Actor;
use outbox_contract::backend::rules::failing_key;
use outbox_contract::backend::{AuditNote, KeyTransition, RowId, Step, Transitioned};
use sqlx::mysql::MySqlConnection;
use sqlx::{AssertSqlSafe, Row};

use crate::key::{KeyIn, take_versions};
use crate::lease::now;
use crate::line::in_transaction;
use crate::stripes::in_open_transaction;
use crate::{audit, sql};

pub(crate) async fn transition(
    connection: &mut MySqlConnection,
    transitions: &[KeyTransition],
    actor: &Actor,
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
                step(connection, transition, (now, next_version), actor, history).await?
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
    (now, next_version): (i64, i64),
    actor: &Actor,
    history: bool,
) -> Result<Transitioned, sqlx::Error> {
    let KeyTransition { route, key, bucket, step, .. } = transition;
    let mut key = KeyIn { connection, route, key, bucket: *bucket, now, next_version };
    let state = key.state().await?;
    if failing_key::is_stale(state.as_ref(), transition) || !key.move_messages(step, history).await? {
        return Ok(Transitioned::Stale);
    }
    if let Some((note, id)) = AuditNote::discarded(actor, transition) {
        audit::write(&mut *key.connection, &note, 1, &[id]).await?;
    }
    let first = match failing_key::depends_on_first(state.as_ref(), step) {
        true => key.first_parked().await?,
        false => None,
    };
    let next = failing_key::after(state.clone(), step, first, next_version, key.instant());
    if state.is_some() && state == next {
        key.touch().await?;
    }
    key.put(state.as_ref(), next.as_ref()).await?;
    Ok(Transitioned::Done(next.map(|state| state.version)))
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
    /// Returns true if it is this relay's, under this epoch, now.
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

/// Locks the leases of all steps before the first, the lowest first, as heartbeats do: steps come
/// in no order of buckets, and locked one by one they would wait for a heartbeat that waits for
/// them.
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

/// The statement that changes the leases of all steps, and so locks them. It walks the primary key,
/// which is the order of heartbeats.
///
/// A lock holds on one server. Nodes of a cluster learn of what was changed, and of two that have
/// changed the same row let the first commit: so whoever takes a lease on one node and whoever
/// relies on it on another meet here.
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

/// The statements as a transition writes them, for the server to prepare when the tables are
/// checked.
pub(crate) fn samples() -> [String; 2] {
    [fence_statement([("default", 0)]), lock_statement([("default", 0)])]
}

impl KeyIn<'_> {
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
        let mut place = sqlx::query(sql::WHERE_IS);
        for _ in ["hot", "parked"] {
            place = self.bind_key(place).bind(row.position.0).bind(row.id.as_uuid().as_bytes().to_vec());
        }
        let place = place.fetch_one(&mut *self.connection).await?;
        Ok(place.try_get_unchecked::<i64, _>(0)? != 0 || place.try_get_unchecked::<i64, _>(1)? != 0)
    }

    /// Moves messages of the key from the hot table to the parked ones; passes over those that are
    /// not there.
    async fn park(&mut self, rows: &[RowId]) -> Result<(), sqlx::Error> {
        let rows = sql::rows(rows);
        self.execute(sqlx::query(sql::PARK).bind(self.now).bind(&rows)).await?;
        self.execute(sqlx::query(sql::PARK_REMOVE).bind(&rows)).await?;
        Ok(())
    }

    /// Deletes a message of the key, hot or parked. False: it is neither.
    async fn drop_message(&mut self, row: RowId) -> Result<bool, sqlx::Error> {
        let is_there = self.is_there(row).await?;
        if is_there {
            let rows = sql::rows(&[row]);
            let settle = sqlx::query(sql::SETTLE).bind(&rows).bind(self.route.as_str().as_bytes());
            settle.execute(&mut *self.connection).await?;
            self.execute(sqlx::query(sql::RESUME).bind(&rows)).await?;
        }
        Ok(is_there)
    }

    /// Makes a dead letter of a message, hot or parked. False: it is neither.
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

    /// Removes delivered messages from the parked ones; to the history, if one is kept.
    async fn deliver(&mut self, delivered: &[RowId], history: bool) -> Result<(), sqlx::Error> {
        let rows = sql::rows(delivered);
        if history {
            self.execute(sqlx::query(sql::RESUME_HISTORY).bind(self.now).bind(&rows)).await?;
        }
        self.execute(sqlx::query(sql::RESUME).bind(&rows)).await.map(|_| ())
    }
}
