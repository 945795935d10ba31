//! Leases: which relay owns which bucket, for how long, by the database's clock.
//!
//! Each heartbeat is one transaction that has the write lock from its start, so that the inputs of
//! its decision can't change meanwhile; the clock is read after the lock was acquired.

use std::time::Duration;

use outbox_contract::backend::rules::leases::{self, BucketRow, Heartbeat, RelayRow};
use outbox_contract::backend::rules::micros;
use outbox_contract::backend::{
    Bucket, Epoch, Lease, LeaseRequest, Leased, LowWater, Paused, Position, RelayId,
};
use outbox_contract::{Route, Timestamp, Topic};
use serde_json::json;
use sqlx::Row;
use sqlx::sqlite::{SqliteConnection, SqlitePool, SqliteRow};
use uuid::Uuid;

use crate::sql;

pub(crate) async fn heartbeat(pool: &SqlitePool, request: &LeaseRequest) -> Result<Leased, sqlx::Error> {
    let mut tx = pool.begin_with(sql::BEGIN).await?;
    let now = Timestamp::from_micros(now(&mut tx).await?);
    let relays = relays(&mut tx, &request.route).await?;
    let buckets = buckets(&mut tx, &request.route).await?;
    let Heartbeat { relay, changed, mut leased, .. } = leases::heartbeat(relays, buckets, request, now);
    sqlx::query(sql::LEASE_HEARTBEAT)
        .bind(request.route.as_str())
        .bind(&relay.relay.as_uuid().as_bytes()[..])
        .bind(&request.label)
        .bind(relay.expires_at.as_micros())
        .bind(micros(relay.lasts))
        .bind(relay.unavailable_since.map(Timestamp::as_micros))
        .bind(relay.fingerprint)
        .execute(&mut *tx)
        .await?;
    put(&mut tx, &request.route, request.relay, &changed).await?;
    // The life stays 0: a loss of power ends the relay too, and if another file has replaced this
    // one no heartbeat gets this far.
    leased.paused = paused(&mut tx, &request.route).await?;
    tx.commit().await?;
    Ok(leased)
}

pub(crate) async fn give_back(
    pool: &SqlitePool,
    relay: RelayId,
    route: &Route,
    leases: &[Lease],
    low_water: &LowWater,
    leaving: bool,
) -> Result<(), sqlx::Error> {
    let mut tx = pool.begin_with(sql::BEGIN).await?;
    let now = Timestamp::from_micros(now(&mut tx).await?);
    let (relays, buckets) = (relays(&mut tx, route).await?, buckets(&mut tx, route).await?);
    let changed = leases::give_back(relays, buckets, relay, (leases, low_water), now);
    put(&mut tx, route, relay, &changed).await?;
    if leaving {
        sqlx::query(sql::LEASE_LEAVE)
            .bind(route.as_str())
            .bind(&relay.as_uuid().as_bytes()[..])
            .execute(&mut *tx)
            .await?;
    }
    tx.commit().await
}

/// Writes buckets that changed: each is owned by this relay or has no owner.
async fn put(
    connection: &mut SqliteConnection,
    route: &Route,
    relay: RelayId,
    changed: &[BucketRow],
) -> Result<(), sqlx::Error> {
    if changed.is_empty() {
        return Ok(());
    }
    let rows = changed.iter().map(|row| {
        let ends_at = row.ends_at.map(Timestamp::as_micros);
        json!([
            row.bucket.0,
            row.owner.is_some(),
            row.epoch.0,
            row.low_water.0,
            ends_at,
            row.since.as_micros()
        ])
    });
    sqlx::query(sql::LEASE_PUT)
        .bind(route.as_str())
        .bind(&relay.as_uuid().as_bytes()[..])
        .bind(serde_json::Value::from_iter(rows).to_string())
        .execute(connection)
        .await?;
    Ok(())
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

async fn relays(connection: &mut SqliteConnection, route: &Route) -> Result<Vec<RelayRow>, sqlx::Error> {
    Ok(labeled(connection, route).await?.into_iter().map(|(_, row)| row).collect())
}

/// Relays of a route, each with its label.
pub(crate) async fn labeled(
    connection: &mut SqliteConnection,
    route: &Route,
) -> Result<Vec<(String, RelayRow)>, sqlx::Error> {
    let read = |row: &SqliteRow| {
        let lasts: i64 = row.try_get("lasts")?;
        let relay = RelayRow {
            relay: relay_id(row.try_get("relay")?).unwrap_or(RelayId::from_uuid(Uuid::nil())),
            expires_at: row.try_get("expires_at").map(Timestamp::from_micros)?,
            lasts: Duration::from_micros(u64::try_from(lasts).unwrap_or_default()),
            unavailable_since: row
                .try_get::<Option<i64>, _>("unavailable_since")?
                .map(Timestamp::from_micros),
            fingerprint: row.try_get("fingerprint")?,
        };
        Ok((row.try_get("label")?, relay))
    };
    let rows = sqlx::query(sql::LEASE_RELAYS).bind(route.as_str()).fetch_all(connection).await?;
    rows.iter().map(read).collect()
}

pub(crate) async fn buckets(
    connection: &mut SqliteConnection,
    route: &Route,
) -> Result<Vec<BucketRow>, sqlx::Error> {
    let read = |row: &SqliteRow| {
        Ok(BucketRow {
            bucket: Bucket(row.try_get("bucket")?),
            owner: row.try_get::<Option<&[u8]>, _>("relay")?.and_then(relay_id),
            epoch: Epoch(row.try_get("epoch")?),
            since: Timestamp::from_micros(row.try_get("since")?),
            low_water: Position(row.try_get("low_water")?),
            ends_at: row.try_get::<Option<i64>, _>("expires_at")?.map(Timestamp::from_micros),
        })
    };
    let rows = sqlx::query(sql::LEASE_ROWS).bind(route.as_str()).fetch_all(connection).await?;
    rows.iter().map(read).collect()
}

fn relay_id(bytes: &[u8]) -> Option<RelayId> {
    Uuid::from_slice(bytes).ok().map(RelayId::from_uuid)
}

pub(crate) async fn paused(connection: &mut SqliteConnection, route: &Route) -> Result<Paused, sqlx::Error> {
    let topics: Vec<String> =
        sqlx::query_scalar(sql::PAUSED).bind(route.as_str()).fetch_all(connection).await?;
    Ok(Paused::new(
        topics.iter().any(String::is_empty),
        topics.iter().filter_map(|topic| Topic::new(topic).ok()).collect(),
    ))
}

/// Returns the database's clock.
pub(crate) async fn now(connection: &mut SqliteConnection) -> Result<i64, sqlx::Error> {
    sqlx::query_scalar(sql::NOW).fetch_one(connection).await
}
