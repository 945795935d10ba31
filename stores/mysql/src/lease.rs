//! Leases: who owns which bucket, for how long, by the database's clock.
//!
//! Each heartbeat is one transaction that locks the leases of its route first, so that its basis
//! can't change meanwhile; it reads the clock after it has the locks. Whoever locks a relay's row
//! has locked a lease before: one order, and therefore no deadlock.

use std::collections::BTreeSet;
use std::time::Duration;

use outbox_contract::backend::rules::leases::{self, BucketRow, Heartbeat, RelayRow};
use outbox_contract::backend::rules::micros;
use outbox_contract::backend::rules::sessions::Look;
use outbox_contract::backend::{
    BUCKETS, Bucket, Epoch, Lease, LeaseRequest, Leased, LowWater, Paused, Position, RelayId,
};
use outbox_contract::{Route, Timestamp, Topic};
use sqlx::Row;
use sqlx::mysql::{MySqlConnection, MySqlRow};
use uuid::Uuid;

use crate::browse::text;
use crate::line::in_transaction;
use crate::{session, sql};

pub(crate) async fn heartbeat(
    connection: &mut MySqlConnection,
    request: &LeaseRequest,
    sees_sessions: bool,
) -> Result<Leased, sqlx::Error> {
    let route = request.route.as_str().as_bytes();
    let mut are_made = false;
    loop {
        let beat = async |connection: &mut MySqlConnection| {
            let locked = sqlx::query(sql::LEASE_LOCK).bind(route).fetch_all(&mut *connection).await?;
            if locked.len() < BUCKETS && !are_made {
                return Ok(None);
            }
            locked_heartbeat(connection, request, sees_sessions).await.map(Some)
        };
        if let Some(leased) = in_transaction(connection, beat).await? {
            return Ok(leased);
        }
        // A route that is new. Its rows are made in a statement that keeps no lock: of relays that
        // start at once, none waits for another's lock while it has one that the other wants.
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
    sees_sessions: bool,
) -> Result<Leased, sqlx::Error> {
    let route = request.route.as_str().as_bytes();
    let now = Timestamp::from_micros(now(connection).await?);
    let mut relays = relays(connection, &request.route).await?;
    let buckets = buckets(connection, &request.route).await?;
    let session = if sees_sessions { session::hold(connection).await? } else { None };
    let looks = match &session {
        Some(session) => session::look(connection, request, session, now).await?,
        None => Vec::new(),
    };
    for row in relays.iter_mut().filter(|row| looks.contains(&(row.relay, Look::Dead))) {
        row.expires_at = now;
    }
    // The life stays 0: where there are stripes no mark passes anything.
    let Heartbeat { relay, changed, mut leased, .. } =
        leases::heartbeat(relays.iter().copied(), buckets.iter().copied(), request, now);
    sqlx::query(sql::LEASE_HEARTBEAT)
        .bind(route)
        .bind(&relay.relay.as_uuid().as_bytes()[..])
        .bind(label(&request.label))
        .bind(relay.expires_at.as_micros())
        .bind(micros(relay.lasts))
        .bind(relay.unavailable_since.map(Timestamp::as_micros))
        .bind(relay.fingerprint)
        .bind(session.as_ref().map(|session| session.number))
        .bind(session.as_ref().map(|session| session.server.as_slice()))
        .execute(&mut *connection)
        .await?;
    let mut owners = taken_from(&buckets, &changed);
    owners.remove(&request.relay);
    owners.extend(looks.iter().filter(|(_, look)| *look == Look::Dead).map(|(relay, _)| *relay));
    let dead = relays.iter().filter(|row| owners.contains(&row.relay) && !row.is_live(now));
    let dead: Vec<Uuid> = dead.map(|row| row.relay.as_uuid()).collect();
    if !dead.is_empty() {
        sqlx::query(sql::LEASE_END)
            .bind(now.as_micros())
            .bind(route)
            .bind(sql::relays(dead.iter().map(|relay| &relay.as_bytes()[..])))
            .execute(&mut *connection)
            .await?;
    }
    put(connection, &request.route, request.relay, &changed).await?;
    leased.recheck = looks.iter().filter_map(|(_, look)| look.recheck()).min();
    leased.paused = paused(connection, &request.route).await?;
    Ok(leased)
}

/// Returns the owners that buckets had before they changed.
fn taken_from(before: &[BucketRow], changed: &[BucketRow]) -> BTreeSet<RelayId> {
    let has_changed = |row: &&BucketRow| changed.iter().any(|changed| changed.bucket == row.bucket);
    before.iter().filter(has_changed).filter_map(|row| row.owner).collect()
}

/// Writes buckets that changed: each is owned by this relay or has no owner.
async fn put(
    connection: &mut MySqlConnection,
    route: &Route,
    relay: RelayId,
    changed: &[BucketRow],
) -> Result<(), sqlx::Error> {
    if changed.is_empty() {
        return Ok(());
    }
    sqlx::query(sql::LEASE_PUT)
        .bind(sql::buckets(changed))
        .bind(&relay.as_uuid().as_bytes()[..])
        .bind(route.as_str().as_bytes())
        .execute(connection)
        .await
        .map(drop)
}

/// A label as the table takes it.
fn label(label: &str) -> &[u8] {
    const MAX_BYTES: usize = 1_024;
    let end = (0..=MAX_BYTES.min(label.len())).rev().find(|at| label.is_char_boundary(*at));
    &label.as_bytes()[..end.unwrap_or_default()]
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
        let name = route.as_str().as_bytes();
        sqlx::query(sql::LEASE_LOCK).bind(name).fetch_all(&mut *connection).await?;
        let now = Timestamp::from_micros(now(connection).await?);
        let (relays, buckets) = (relays(connection, route).await?, buckets(connection, route).await?);
        let changed = leases::give_back(relays, buckets, relay, (leases, low_water), now);
        put(connection, route, relay, &changed).await?;
        if leaving {
            let relay = relay.as_uuid();
            sqlx::query(sql::LEASE_LEAVE).bind(name).bind(&relay.as_bytes()[..]).execute(connection).await?;
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

async fn relays(connection: &mut MySqlConnection, route: &Route) -> Result<Vec<RelayRow>, sqlx::Error> {
    Ok(labeled(connection, route).await?.into_iter().map(|(_, relay)| relay).collect())
}

/// The relays of a route, each with its label.
pub(crate) async fn labeled(
    connection: &mut MySqlConnection,
    route: &Route,
) -> Result<Vec<(String, RelayRow)>, sqlx::Error> {
    let read = |row: &MySqlRow| {
        let lasts: i64 = row.try_get_unchecked(2)?;
        let relay = RelayRow {
            relay: relay_id(row.try_get_unchecked(0)?).unwrap_or(RelayId::from_uuid(Uuid::nil())),
            expires_at: row.try_get_unchecked(1).map(Timestamp::from_micros)?,
            lasts: Duration::from_micros(u64::try_from(lasts).unwrap_or_default()),
            unavailable_since: row.try_get_unchecked::<Option<i64>, _>(3)?.map(Timestamp::from_micros),
            fingerprint: row.try_get_unchecked(4)?,
        };
        Ok((text(row, 5)?, relay))
    };
    let rows = sqlx::query(sql::LEASE_RELAYS).bind(route.as_str().as_bytes()).fetch_all(connection).await?;
    rows.iter().map(read).collect()
}

pub(crate) async fn buckets(
    connection: &mut MySqlConnection,
    route: &Route,
) -> Result<Vec<BucketRow>, sqlx::Error> {
    let read = |row: &MySqlRow| {
        let bucket: i64 = row.try_get_unchecked(0)?;
        Ok(BucketRow {
            bucket: Bucket(u8::try_from(bucket).unwrap_or_default()),
            owner: row.try_get_unchecked::<Option<&[u8]>, _>(1)?.and_then(relay_id),
            epoch: Epoch(row.try_get_unchecked(2)?),
            since: Timestamp::from_micros(row.try_get_unchecked(5)?),
            low_water: Position(row.try_get_unchecked(3)?),
            ends_at: row.try_get_unchecked::<Option<i64>, _>(4)?.map(Timestamp::from_micros),
        })
    };
    let rows = sqlx::query(sql::LEASE_ROWS).bind(route.as_str().as_bytes()).fetch_all(connection).await?;
    rows.iter().map(read).collect()
}

pub(crate) fn relay_id(bytes: &[u8]) -> Option<RelayId> {
    Uuid::from_slice(bytes).ok().map(RelayId::from_uuid)
}

pub(crate) async fn paused(connection: &mut MySqlConnection, route: &Route) -> Result<Paused, sqlx::Error> {
    let rows = sqlx::query(sql::PAUSED).bind(route.as_str().as_bytes()).fetch_all(connection).await?;
    let mut paused = Paused::default();
    for row in &rows {
        let topic: Vec<u8> = row.try_get_unchecked(0)?;
        let topic = String::from_utf8_lossy(&topic);
        match Topic::new(&topic) {
            _ if topic.is_empty() => paused.route = true,
            Ok(topic) => paused.topics.push(topic),
            Err(error) => {
                tracing::error!(%error, "a row of outbox_pause has an invalid name; remove it")
            }
        }
    }
    Ok(paused)
}

/// The database's clock.
pub(crate) async fn now(connection: &mut MySqlConnection) -> Result<i64, sqlx::Error> {
    sqlx::query(sql::NOW).fetch_one(connection).await?.try_get_unchecked(0)
}
