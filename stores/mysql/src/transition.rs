//! Transitions of failing keys.
//!
//! All steps of a call are one transaction. It changes and so locks the leases of all steps, then
//! for each step the key, then looks and acts: neither lease nor key can change meanwhile. A step
//! is refused before it has changed anything.

use std::collections::{BTreeMap, BTreeSet};

use outbox_contract::admin::Actor;
use outbox_contract::backend::{KeyTransition, Transitioned};
use outbox_store_sql::key::step;
use sqlx::mysql::MySqlConnection;
use sqlx::{AssertSqlSafe, Row};

use crate::key::{KeyIn, take_versions};
use crate::lease::now;
use crate::line::in_transaction;
use crate::sql;
use crate::stripes::in_open_transaction;

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
                let KeyTransition { route, key, bucket, .. } = transition;
                let bucket = *bucket;
                let mut key = KeyIn { connection, route, key, bucket, now, next_version, history };
                step(&mut key, transition, actor).await?
            } else {
                Transitioned::LeaseLost
            });
            next_version += 1;
        }
        Ok(answers)
    })
    .await
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
