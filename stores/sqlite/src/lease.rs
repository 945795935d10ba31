//! Leases: which relay owns which bucket, for how long, by the database's clock.
//!
//! Each heartbeat is one transaction that has the write lock from its start, so that the inputs of
//! its decision can't change meanwhile; the clock is read after the lock was acquired.

use std::collections::BTreeSet;
use std::time::Duration;

use outbox_contract::backend::{
    BUCKETS, Bucket, BucketSet, Epoch, Lease, LeaseRequest, Leased, LowWater, Paused, Position, RelayId,
};
use outbox_contract::{Route, Topic};
use sqlx::Row;
use sqlx::sqlite::{SqliteConnection, SqlitePool, SqliteRow};

use crate::sql;

/// A live relay of the route.
struct Relay {
    id: Vec<u8>,
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

pub(crate) async fn heartbeat(pool: &SqlitePool, request: &LeaseRequest) -> Result<Leased, sqlx::Error> {
    let mut tx = pool.begin_with(sql::BEGIN).await?;
    let now = now(&mut tx).await?;
    live(&mut tx, request, now).await?;
    let relays = relays(&mut tx, &request.route, now).await?;
    let mut rows = rows(&mut tx, &request.route, now).await?;
    if rows.len() < BUCKETS {
        sqlx::query(sql::LEASE_BUCKETS)
            .bind(request.route.as_str())
            .bind(sql::numbers((0..=u8::MAX).map(i64::from)))
            .execute(&mut *tx)
            .await?;
        rows = self::rows(&mut tx, &request.route, now).await?;
    }
    let me = request.relay.as_uuid();
    let me = me.as_bytes();
    let fair_share = fair_share(&relays, me, now);
    let acquired = to_acquire(&rows, me, fair_share, &request.yielding);
    if !acquired.is_empty() {
        sqlx::query(sql::LEASE_ACQUIRE)
            .bind(request.route.as_str())
            .bind(&me[..])
            .bind(sql::numbers(acquired.iter().map(|bucket| i64::from(bucket.0))))
            .execute(&mut *tx)
            .await?;
    }
    let paused = paused(&mut tx, &request.route).await?;
    tx.commit().await?;

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
        // A loss of power ends the relay too, and if another file has replaced this one no
        // heartbeat gets this far.
        life: 0,
    })
}

/// Extends the relay's life, and its leases with it. A relay whose life was over no longer owns
/// anything: it acquires anew.
async fn live(
    connection: &mut SqliteConnection,
    request: &LeaseRequest,
    now: i64,
) -> Result<(), sqlx::Error> {
    let relay = request.relay.as_uuid();
    let (route, relay) = (request.route.as_str(), &relay.as_bytes()[..]);
    let before =
        sqlx::query(sql::LEASE_RELAY).bind(route).bind(relay).fetch_optional(&mut *connection).await?;
    let before = match &before {
        Some(row) => (row.try_get::<i64, _>("expires_at")?, row.try_get::<i64, _>("lasts")?),
        None => (0, 0),
    };
    let (expired_at, lasted) = before;
    let was_over = expired_at <= now || expired_at > now.saturating_add(2 * lasted);
    sqlx::query(sql::LEASE_LAPSE)
        .bind(route)
        .bind(relay)
        .bind(now)
        .bind(was_over)
        .execute(&mut *connection)
        .await?;
    sqlx::query(sql::LEASE_HEARTBEAT)
        .bind(route)
        .bind(relay)
        .bind(&request.label)
        .bind(now)
        .bind(micros(request.lasts))
        .bind(request.transport_available)
        .bind(request.fingerprint)
        .execute(&mut *connection)
        .await?;
    sqlx::query(sql::LEASE_RENEW)
        .bind(route)
        .bind(relay)
        .bind(request.low_water.position.0)
        .bind(sql::numbers(request.yielding.iter().map(|bucket| i64::from(bucket.0))))
        .bind(expired_at)
        .bind(covered(&request.low_water))
        .execute(&mut *connection)
        .await?;
    Ok(())
}

/// The leases that a mark covers, as statement parameters.
fn covered(low_water: &LowWater) -> String {
    sql::pairs(low_water.covered.iter().map(|(bucket, epoch)| (i64::from(bucket.0), epoch.0)))
}

impl BucketRow {
    fn is_of(&self, relay: &[u8]) -> bool {
        self.owned && self.relay.as_deref() == Some(relay)
    }
}

/// Returns this relay's number of buckets: all of them divided by the relays that count, rounded
/// up. A relay that has been without its transport for longer than a lease does not count while
/// another has one.
fn fair_share(relays: &[Relay], me: &[u8], now: i64) -> usize {
    let another_has = relays.iter().any(|relay| relay.unavailable_since.is_none());
    let counts = |relay: &&Relay| {
        !another_has || relay.unavailable_since.is_none_or(|since| now.saturating_sub(since) <= relay.lasts)
    };
    let counted: Vec<&Relay> = relays.iter().filter(counts).collect();
    if counted.iter().any(|relay| relay.id == me) { BUCKETS.div_ceil(counted.len()) } else { 0 }
}

/// Returns the free buckets that the relay may take: the lowest ones, up to its share, but none
/// that it is giving up.
fn to_acquire(rows: &[BucketRow], me: &[u8], fair_share: usize, yielding: &BucketSet) -> BucketSet {
    let owned = rows.iter().filter(|row| row.is_of(me)).count();
    rows.iter()
        .filter(|row| !row.owned && !yielding.contains(row.bucket))
        .map(|row| row.bucket)
        .take(fair_share.saturating_sub(owned))
        .collect()
}

pub(crate) async fn give_back(
    pool: &SqlitePool,
    relay: RelayId,
    route: &Route,
    leases: &[Lease],
    low_water: &LowWater,
    leaving: bool,
) -> Result<(), sqlx::Error> {
    let relay = relay.as_uuid();
    let mut tx = pool.begin_with(sql::BEGIN).await?;
    sqlx::query(sql::LEASE_GIVE_BACK)
        .bind(route.as_str())
        .bind(&relay.as_bytes()[..])
        .bind(low_water.position.0)
        .bind(sql::pairs(leases.iter().map(|lease| (i64::from(lease.bucket.0), lease.epoch.0))))
        .bind(covered(low_water))
        .execute(&mut *tx)
        .await?;
    if leaving {
        sqlx::query(sql::LEASE_LEAVE)
            .bind(route.as_str())
            .bind(&relay.as_bytes()[..])
            .execute(&mut *tx)
            .await?;
    }
    tx.commit().await
}

pub(crate) async fn elect(
    pool: &SqlitePool,
    role: &str,
    relay: RelayId,
    lasts: Duration,
) -> Result<bool, sqlx::Error> {
    let elected = sqlx::query(sql::ELECT)
        .bind(role)
        .bind(&relay.as_uuid().as_bytes()[..])
        .bind(micros(lasts))
        .fetch_optional(pool)
        .await?;
    Ok(elected.is_some())
}

async fn relays(
    connection: &mut SqliteConnection,
    route: &Route,
    now: i64,
) -> Result<Vec<Relay>, sqlx::Error> {
    let read = |row: &SqliteRow| {
        Ok(Relay {
            id: row.try_get("relay")?,
            lasts: row.try_get("lasts")?,
            unavailable_since: row.try_get("unavailable_since")?,
            fingerprint: row.try_get("fingerprint")?,
        })
    };
    let rows = sqlx::query(sql::LEASE_RELAYS).bind(route.as_str()).bind(now).fetch_all(connection).await?;
    rows.iter().map(read).collect()
}

async fn rows(
    connection: &mut SqliteConnection,
    route: &Route,
    now: i64,
) -> Result<Vec<BucketRow>, sqlx::Error> {
    let read = |row: &SqliteRow| {
        Ok(BucketRow {
            bucket: Bucket(row.try_get("bucket")?),
            relay: row.try_get("relay")?,
            epoch: row.try_get("epoch")?,
            low_water: row.try_get("low_water")?,
            owned: row.try_get("owned")?,
        })
    };
    let rows = sqlx::query(sql::LEASE_ROWS).bind(route.as_str()).bind(now).fetch_all(connection).await?;
    rows.iter().map(read).collect()
}

async fn paused(connection: &mut SqliteConnection, route: &Route) -> Result<Paused, sqlx::Error> {
    let topics: Vec<String> =
        sqlx::query_scalar(sql::PAUSED).bind(route.as_str()).fetch_all(connection).await?;
    Ok(Paused {
        route: topics.iter().any(String::is_empty),
        topics: topics.iter().filter_map(|topic| Topic::new(topic).ok()).collect(),
    })
}

/// Returns the database's clock.
pub(crate) async fn now(connection: &mut SqliteConnection) -> Result<i64, sqlx::Error> {
    sqlx::query_scalar(sql::NOW).fetch_one(connection).await
}

/// Converts a duration to the tables' unit.
pub(crate) fn micros(span: Duration) -> i64 {
    // Half of the range: two of them can be added to an instant.
    i64::try_from(span.as_micros()).unwrap_or(i64::MAX).min(i64::MAX / 8)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn relay(id: u8, unavailable_since: Option<i64>) -> Relay {
        Relay { id: vec![id], lasts: 10, unavailable_since, fingerprint: 0 }
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
