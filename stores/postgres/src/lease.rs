//! Leases: which relay owns which bucket, for how long, by the database's clock.
//!
//! A heartbeat is one call of a function in the database, under a lock on the route. So the inputs
//! of its decision can't change meanwhile, and no program can be paused in the middle of it.
//! `0003_relay.sql` defines its decision.
//!
//! A relay's session holds an advisory lock. The server ends the session of a killed process at
//! once, so others find the lock free at their next heartbeats, and do not wait for the lease.

use std::time::Duration;

use outbox_contract::backend::rules::micros;
use outbox_contract::backend::{
    BUCKETS, Bucket, Epoch, Lease, LeaseRequest, Leased, LowWater, Paused, Position, RelayId,
};
use outbox_contract::{Route, Timestamp, Topic};
use sqlx::Row;
use sqlx::postgres::PgConnection;

use crate::sql::Statements;

pub(crate) async fn heartbeat(
    connection: &mut PgConnection,
    sql: &Statements,
    request: &LeaseRequest,
) -> Result<Leased, sqlx::Error> {
    let yielding: Vec<i32> = request.yielding.iter().map(|bucket| i32::from(bucket.0)).collect();
    let row = sql
        .query(&sql.lease)
        .bind(request.route.as_str())
        .bind(request.relay.as_uuid())
        // NUL, which PostgreSQL text can't contain.
        .bind(request.label.replace('\0', "?"))
        .bind(micros(request.lasts))
        .bind(request.transport_available)
        .bind(request.fingerprint)
        .bind(request.low_water.position.0)
        .bind(covered(&request.low_water))
        .bind(request.low_water.life)
        .bind(sql.is_pooled())
        .bind(yielding)
        .fetch_one(connection)
        .await?;
    let (buckets, epochs, low_waters): (Vec<i16>, Vec<i64>, Vec<i64>) =
        (row.try_get("buckets")?, row.try_get("epochs")?, row.try_get("low_waters")?);
    let leases = buckets
        .into_iter()
        .zip(epochs)
        .zip(low_waters)
        .filter_map(|((bucket, epoch), low_water)| {
            let bucket = Bucket(u8::try_from(bucket).ok()?);
            Some(Lease { bucket, epoch: Epoch(epoch), low_water: Position(low_water) })
        })
        .collect();
    let count =
        |column: &str| row.try_get::<i32, _>(column).map(|count| usize::try_from(count).unwrap_or_default());
    let paused: Vec<String> = row.try_get("paused")?;
    let mut leased = Leased::default();
    leased.leases = leases;
    (leased.fair_share, leased.relays) = (count("fair_share")?, count("relays")?);
    leased.paused = Paused::new(
        paused.iter().any(String::is_empty),
        paused.iter().filter_map(|topic| Topic::new(topic).ok()).collect(),
    );
    leased.fingerprints_agree = row.try_get("agree")?;
    leased.now = Timestamp::from_micros(row.try_get("now")?);
    leased.life = row.try_get("life")?;
    let recheck: Option<i64> = row.try_get("recheck")?;
    leased.recheck = recheck.map(|after| Duration::from_micros(after.unsigned_abs()));
    Ok(leased)
}

/// The leases that a mark covers, as the functions take them: the epoch of each bucket, 0 where
/// there is none.
fn covered(low_water: &LowWater) -> Vec<i64> {
    if low_water.covered.is_empty() {
        return Vec::new();
    }
    let mut epochs = vec![0; BUCKETS];
    for (bucket, epoch) in &low_water.covered {
        epochs[usize::from(bucket.0)] = epoch.0;
    }
    epochs
}

pub(crate) async fn give_back(
    connection: &mut PgConnection,
    sql: &Statements,
    relay: RelayId,
    route: &Route,
    leases: &[Lease],
    low_water: &LowWater,
    leaving: bool,
) -> Result<(), sqlx::Error> {
    sql.query(&sql.give_back)
        .bind(route.as_str())
        .bind(relay.as_uuid())
        .bind(leases.iter().map(|lease| i32::from(lease.bucket.0)).collect::<Vec<_>>())
        .bind(leases.iter().map(|lease| lease.epoch.0).collect::<Vec<_>>())
        .bind(low_water.position.0)
        .bind(covered(low_water))
        .bind(low_water.life)
        .bind(sql.is_pooled())
        .bind(leaving)
        .execute(connection)
        .await?;
    Ok(())
}

pub(crate) async fn elect(
    connection: &mut PgConnection,
    sql: &Statements,
    role: &str,
    relay: RelayId,
    lasts: Duration,
) -> Result<bool, sqlx::Error> {
    let elected = sql
        .query(&sql.elect)
        .bind(role)
        .bind(relay.as_uuid())
        .bind(micros(lasts))
        .fetch_optional(connection)
        .await?;
    Ok(elected.is_some())
}
