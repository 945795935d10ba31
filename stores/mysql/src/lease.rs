//! Leases: who owns which bucket, for how long, by the database's clock.
//!
//! Each heartbeat is one transaction that locks the leases of its route first, so that what it decides on can't change under it; the clock is
//! read after the locks were got. Whoever locks a relay's row has locked a lease before: in one order, nobody waits in a circle.

use std::collections::BTreeSet;
use std::time::Duration;

use outbox_contract::backend::{
    BUCKETS, Bucket, BucketSet, Epoch, Lease, LeaseRequest, Leased, LowWater, Paused, Position, RelayId,
};
use outbox_contract::{Route, Topic};
use sqlx::Row;
use sqlx::mysql::{MySqlConnection, MySqlRow};

use crate::line::in_transaction;
use crate::sql;

/// A relay of the route.
#[derive(Clone)]
struct Relay {
    id: Vec<u8>,
    expires_at: i64,
    lasts: i64,
    unavailable_since: Option<i64>,
    fingerprint: i64,
}

/// A bucket of the route.
struct BucketRow {
    bucket: Bucket,
    relay: Option<Vec<u8>>,
    epoch: i64,
    low_water: i64,
    owned: bool,
}

pub(crate) async fn heartbeat(
    connection: &mut MySqlConnection,
    request: &LeaseRequest,
) -> Result<Leased, sqlx::Error> {
    let route = request.route.as_str().as_bytes();
    let mut are_made = false;
    loop {
        let beat = async |connection: &mut MySqlConnection| {
            let locked = sqlx::query(sql::LEASE_LOCK).bind(route).fetch_all(&mut *connection).await?;
            if locked.len() < BUCKETS && !are_made {
                return Ok(None);
            }
            locked_heartbeat(connection, request).await.map(Some)
        };
        if let Some(leased) = in_transaction(connection, beat).await? {
            return Ok(leased);
        }
        // A route that is new. Its rows are made in a statement that keeps no lock: of relays that start at once, none waits for another's lock
        // while it has one that the other wants.
        sqlx::query(sql::LEASE_BUCKETS)
            .bind(route)
            .bind(sql::numbers((0..=u8::MAX).map(i64::from)))
            .execute(&mut *connection)
            .await?;
        are_made = true;
    }
}

async fn locked_heartbeat(
    connection: &mut MySqlConnection,
    request: &LeaseRequest,
) -> Result<Leased, sqlx::Error> {
    let me = request.relay.as_uuid();
    let me = me.as_bytes();
    let now = now(connection).await?;
    let mut relays = relays(connection, &request.route).await?;
    live(connection, request, &mut relays, now).await?;
    relays.retain(|relay| relay.lives(now));
    let rows = rows(connection, &request.route, &relays, now).await?;
    let fair_share = fair_share(&relays, me, now);
    let acquired = to_acquire(&rows, me, fair_share, &request.yielding);
    let is_dead = |relay: &&[u8]| relays.iter().all(|living| living.id != **relay);
    let taken_from: BTreeSet<&[u8]> = rows
        .iter()
        .filter(|row| acquired.contains(row.bucket))
        .filter_map(|row| row.relay.as_deref().filter(is_dead))
        .collect();
    if !taken_from.is_empty() {
        sqlx::query(sql::LEASE_END)
            .bind(now)
            .bind(request.route.as_str().as_bytes())
            .bind(sql::relays(taken_from))
            .execute(&mut *connection)
            .await?;
    }
    if !acquired.is_empty() {
        sqlx::query(sql::LEASE_ACQUIRE)
            .bind(&me[..])
            .bind(request.route.as_str().as_bytes())
            .bind(sql::numbers(acquired.iter().map(|bucket| i64::from(bucket.0))))
            .execute(&mut *connection)
            .await?;
    }
    let paused = paused(connection, &request.route).await?;
    let leases = rows
        .iter()
        .filter_map(|row| {
            let epoch = if acquired.contains(row.bucket) {
                row.epoch + 1
            } else if row.is_of(me) {
                row.epoch
            } else {
                return None;
            };
            Some(Lease { bucket: row.bucket, epoch: Epoch(epoch), low_water: Position(row.low_water) })
        })
        .collect();
    let fingerprints: BTreeSet<i64> = relays.iter().map(|relay| relay.fingerprint).collect();
    Ok(Leased {
        leases,
        fair_share,
        relays: relays.len(),
        paused,
        fingerprints_agree: fingerprints.len() <= 1,
        // Where there are stripes no mark passes anything.
        life: 0,
    })
}

/// Extends the relay's life, and what it owns with it. A relay whose life was over owns nothing any more: it acquires anew.
async fn live(
    connection: &mut MySqlConnection,
    request: &LeaseRequest,
    relays: &mut Vec<Relay>,
    now: i64,
) -> Result<(), sqlx::Error> {
    let id = request.relay.as_uuid();
    let (route, id) = (request.route.as_str().as_bytes(), &id.as_bytes()[..]);
    let before = relays.iter().position(|relay| relay.id == id).map(|at| relays.remove(at));
    let was_over = before.as_ref().is_none_or(|before| !before.lives(now));
    let unavailable_since = (!request.transport_available)
        .then(|| before.as_ref().and_then(|before| before.unavailable_since).unwrap_or(now));
    let lasts = micros(request.lasts);
    let relay = Relay {
        id: id.to_vec(),
        expires_at: now.saturating_add(lasts),
        lasts,
        unavailable_since,
        fingerprint: request.fingerprint,
    };
    sqlx::query(sql::LEASE_LAPSE)
        .bind(route)
        .bind(id)
        .bind(was_over)
        .bind(now)
        .execute(&mut *connection)
        .await?;
    sqlx::query(sql::LEASE_HEARTBEAT)
        .bind(route)
        .bind(id)
        .bind(label(&request.label))
        .bind(relay.expires_at)
        .bind(relay.lasts)
        .bind(relay.unavailable_since)
        .bind(relay.fingerprint)
        .execute(&mut *connection)
        .await?;
    sqlx::query(sql::LEASE_RENEW)
        .bind(request.low_water.position.0)
        .bind(sql::numbers(request.yielding.iter().map(|bucket| i64::from(bucket.0))))
        .bind(before.map_or(0, |before| before.expires_at))
        .bind(route)
        .bind(id)
        .execute(&mut *connection)
        .await?;
    relays.push(relay);
    Ok(())
}

/// A label as the table takes it.
fn label(label: &str) -> &[u8] {
    const MAX_BYTES: usize = 1_024;
    let end = (0..=MAX_BYTES.min(label.len())).rev().find(|at| label.is_char_boundary(*at));
    &label.as_bytes()[..end.unwrap_or_default()]
}

impl Relay {
    /// A life that ends implausibly late is none.
    fn lives(&self, now: i64) -> bool {
        self.expires_at > now && self.expires_at <= now.saturating_add(2 * self.lasts)
    }
}

impl BucketRow {
    fn is_of(&self, relay: &[u8]) -> bool {
        self.owned && self.relay.as_deref() == Some(relay)
    }
}

/// How many buckets are this relay's: all of them divided by the relays that count, rounded up. A relay that has been without its transport
/// for longer than a lease does not count while another has one.
fn fair_share(relays: &[Relay], me: &[u8], now: i64) -> usize {
    let another_has = relays.iter().any(|relay| relay.unavailable_since.is_none());
    let counts = |relay: &&Relay| {
        !another_has || relay.unavailable_since.is_none_or(|since| now.saturating_sub(since) <= relay.lasts)
    };
    let counted: Vec<&Relay> = relays.iter().filter(counts).collect();
    if counted.iter().any(|relay| relay.id == me) { BUCKETS.div_ceil(counted.len()) } else { 0 }
}

/// Free buckets that the relay may take: the lowest ones, up to its share, but none that it is giving up.
fn to_acquire(rows: &[BucketRow], me: &[u8], fair_share: usize, yielding: &BucketSet) -> BucketSet {
    let owned = rows.iter().filter(|row| row.is_of(me)).count();
    rows.iter()
        .filter(|row| !row.owned && !yielding.contains(row.bucket))
        .map(|row| row.bucket)
        .take(fair_share.saturating_sub(owned))
        .collect()
}

pub(crate) async fn give_back(
    connection: &mut MySqlConnection,
    relay: RelayId,
    route: &Route,
    leases: &[Lease],
    low_water: &LowWater,
    leaving: bool,
) -> Result<(), sqlx::Error> {
    let give_back = async |connection: &mut MySqlConnection| {
        let relay = relay.as_uuid();
        let (route, relay) = (route.as_str().as_bytes(), &relay.as_bytes()[..]);
        sqlx::query(sql::LEASE_LOCK).bind(route).fetch_all(&mut *connection).await?;
        sqlx::query(sql::LEASE_GIVE_BACK)
            .bind(low_water.position.0)
            .bind(route)
            .bind(relay)
            .bind(sql::pairs(leases.iter().map(|lease| (i64::from(lease.bucket.0), lease.epoch.0))))
            .execute(&mut *connection)
            .await?;
        if leaving {
            sqlx::query(sql::LEASE_LEAVE).bind(route).bind(relay).execute(connection).await?;
        }
        Ok(())
    };
    in_transaction(connection, give_back).await
}

pub(crate) async fn elect(
    connection: &mut MySqlConnection,
    role: &str,
    relay: RelayId,
    lasts: Duration,
) -> Result<bool, sqlx::Error> {
    let relay = relay.as_uuid();
    let (role, relay, lasts) = (role.as_bytes(), &relay.as_bytes()[..], micros(lasts));
    let elected = sqlx::query(sql::ELECT)
        .bind(relay)
        .bind(lasts)
        .bind(lasts)
        .bind(role)
        .bind(relay)
        .execute(&mut *connection)
        .await?;
    // The driver asks the server for rows that were found, not only for those that were changed.
    if elected.rows_affected() > 0 {
        return Ok(true);
    }
    let elected = sqlx::query(sql::ELECT_FIRST)
        .bind(role)
        .bind(relay)
        .bind(lasts)
        .bind(lasts)
        .execute(connection)
        .await?;
    Ok(elected.rows_affected() > 0)
}

async fn relays(connection: &mut MySqlConnection, route: &Route) -> Result<Vec<Relay>, sqlx::Error> {
    let read = |row: &MySqlRow| {
        Ok(Relay {
            id: row.try_get_unchecked(0)?,
            expires_at: row.try_get_unchecked(1)?,
            lasts: row.try_get_unchecked(2)?,
            unavailable_since: row.try_get_unchecked(3)?,
            fingerprint: row.try_get_unchecked(4)?,
        })
    };
    let rows = sqlx::query(sql::LEASE_RELAYS).bind(route.as_str().as_bytes()).fetch_all(connection).await?;
    rows.iter().map(read).collect()
}

async fn rows(
    connection: &mut MySqlConnection,
    route: &Route,
    living: &[Relay],
    now: i64,
) -> Result<Vec<BucketRow>, sqlx::Error> {
    let read = |row: &MySqlRow| {
        let relay: Option<Vec<u8>> = row.try_get_unchecked(1)?;
        let expires_at: Option<i64> = row.try_get_unchecked(4)?;
        let lives = relay.as_ref().is_some_and(|relay| living.iter().any(|living| living.id == *relay));
        Ok(BucketRow {
            bucket: Bucket(
                row.try_get_unchecked::<i64, _>(0).map(|bucket| u8::try_from(bucket).unwrap_or_default())?,
            ),
            relay,
            epoch: row.try_get_unchecked(2)?,
            low_water: row.try_get_unchecked(3)?,
            owned: lives && expires_at.is_none_or(|expires_at| expires_at > now),
        })
    };
    let rows = sqlx::query(sql::LEASE_ROWS).bind(route.as_str().as_bytes()).fetch_all(connection).await?;
    rows.iter().map(read).collect()
}

async fn paused(connection: &mut MySqlConnection, route: &Route) -> Result<Paused, sqlx::Error> {
    let rows = sqlx::query(sql::PAUSED).bind(route.as_str().as_bytes()).fetch_all(connection).await?;
    let mut paused = Paused::default();
    for row in &rows {
        let topic: Vec<u8> = row.try_get_unchecked(0)?;
        let topic = String::from_utf8_lossy(&topic);
        match Topic::new(&topic) {
            _ if topic.is_empty() => paused.route = true,
            Ok(topic) => paused.topics.push(topic),
            Err(error) => {
                tracing::error!(%error, "a row of outbox_pause has a name that can be none; remove it")
            }
        }
    }
    Ok(paused)
}

/// The database's clock.
pub(crate) async fn now(connection: &mut MySqlConnection) -> Result<i64, sqlx::Error> {
    sqlx::query(sql::NOW).fetch_one(connection).await?.try_get_unchecked(0)
}

/// A duration as the tables have it.
pub(crate) fn micros(span: Duration) -> i64 {
    // Half of the range: two of them can be added to an instant.
    i64::try_from(span.as_micros()).unwrap_or(i64::MAX).min(i64::MAX / 8)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn relay(id: u8, unavailable_since: Option<i64>) -> Relay {
        Relay { id: vec![id], expires_at: 100, lasts: 10, unavailable_since, fingerprint: 0 }
    }

    #[test]
    fn a_share_is_all_buckets_divided_by_the_relays_that_count() {
        let relays = [relay(1, None), relay(2, None), relay(3, Some(80))];
        assert_eq!(fair_share(&relays, &[1], 90), 86, "unavailable for no longer than a lease counts");
        assert_eq!(fair_share(&relays, &[1], 91), 128);
        assert_eq!(fair_share(&relays, &[3], 91), 0);
        let all_unavailable = [relay(1, Some(0)), relay(2, Some(0))];
        assert_eq!(fair_share(&all_unavailable, &[1], 1_000), 128, "nobody does better");
    }

    #[test]
    fn only_free_buckets_are_acquired_up_to_the_share() {
        let row = |bucket, relay: Option<u8>, owned| BucketRow {
            bucket: Bucket(bucket),
            relay: relay.map(|relay| vec![relay]),
            epoch: 1,
            low_water: 0,
            owned,
        };
        let rows = [
            row(0, Some(1), true),
            row(1, Some(2), true),
            row(2, Some(2), false),
            row(3, None, false),
            row(4, None, false),
        ];
        let yielding = BucketSet::from_iter([Bucket(3)]);
        let acquired = |share, yielding: &BucketSet| {
            to_acquire(&rows, &[1], share, yielding).iter().map(|b| b.0).collect::<Vec<_>>()
        };
        assert_eq!(acquired(3, &BucketSet::EMPTY), [2, 3]);
        assert_eq!(acquired(9, &yielding), [2, 4]);
        assert_eq!(acquired(1, &BucketSet::EMPTY), [0; 0]);
    }
}
