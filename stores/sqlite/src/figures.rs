//! Figures for operators: relays and buckets, routes, topics.

use outbox_contract::admin::{Ownership, RouteStatus, TopicFigures};
use outbox_contract::backend::rules::leases;
use outbox_contract::backend::{Figure, RouteTally, TopicTally};
use outbox_contract::{Route, Timestamp};
use sqlx::Row;
use sqlx::sqlite::SqlitePool;

use crate::{lease, sql};

/// Number of waiting messages at either end among which routes are looked for.
const LOOKED_AT: i64 = 10_000;

pub(crate) async fn ownership(pool: &SqlitePool, route: &Route) -> Result<Ownership, sqlx::Error> {
    // One snapshot.
    let mut tx = pool.begin().await?;
    let now = Timestamp::from_micros(lease::now(&mut tx).await?);
    let relays = lease::labeled(&mut tx, route).await?;
    let buckets = lease::buckets(&mut tx, route).await?;
    let paused = lease::paused(&mut tx, route).await?;
    tx.commit().await?;
    Ok(leases::ownership(relays, buckets, paused, now))
}

pub(crate) async fn routes(pool: &SqlitePool) -> Result<Vec<RouteStatus>, sqlx::Error> {
    let most = i64::try_from(RouteStatus::MAX).unwrap_or(i64::MAX);
    let rows = sqlx::query(sql::ROUTES).bind(LOOKED_AT).bind(most).fetch_all(pool).await?;
    let mut tally = RouteTally::default();
    for row in &rows {
        let (kind, route): (&str, &str) = (row.try_get("kind")?, row.try_get("route")?);
        match kind {
            "relay" => tally.relay(route),
            "pause" => tally.pause(route, row.try_get("topic")?),
            _ => tally.route(route),
        }
    }
    Ok(tally.finish())
}

pub(crate) async fn topics(
    pool: &SqlitePool,
    route: &Route,
    counting_limit: u32,
) -> Result<Vec<TopicFigures>, sqlx::Error> {
    let rows = sqlx::query(sql::TOPICS).bind(route.as_str()).bind(counting_limit).fetch_all(pool).await?;
    let Some(first) = rows.first() else { return Ok(Vec::new()) };
    let now = Timestamp::from_micros(first.try_get("now")?);
    let mut tally = TopicTally::new(now, counting_limit.into());
    for row in &rows {
        let Some(figure) = Figure::from_name(row.try_get("kind")?) else { continue };
        let count = u64::try_from(row.try_get::<i64, _>("count")?).unwrap_or_default();
        let oldest = row.try_get::<Option<i64>, _>("oldest")?.map(Timestamp::from_micros);
        match row.try_get::<Option<&str>, _>("topic")? {
            Some(topic) => tally.add(figure, topic, count, oldest),
            None => tally.passed(figure, count),
        }
    }
    Ok(tally.finish())
}
