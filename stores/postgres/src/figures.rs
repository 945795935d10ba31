//! Figures for operators: relays and buckets, routes, topics, and the audit.

use outbox_contract::admin::{AuditEntry, Filter, Ownership, RouteStatus, TopicFigures};
use outbox_contract::backend::rules::leases::{self, BucketRow, RelayRow};
use outbox_contract::backend::{
    AuditColumns, Bucket, Epoch, Figure, Paused, Position, RelayId, RouteTally, TopicTally,
};
use outbox_contract::{Route, StoreError, Timestamp, Topic};
use sqlx::Row;
use sqlx::postgres::PgRow;
use std::time::Duration;
use uuid::Uuid;

use crate::admin::instant;
use crate::fetch::number;
use crate::store::PostgresStore;

/// Number of waiting messages at either end among which routes are looked for.
const LOOKED_AT: usize = 10_000;

/// A row of what is known of a route.
enum Known {
    Clock(Timestamp),
    Relay(String, RelayRow),
    Bucket(BucketRow),
    Pause(String),
}

impl Known {
    fn read(row: &PgRow) -> Result<Self, sqlx::Error> {
        let time = |column: &str| {
            Ok::<_, sqlx::Error>(row.try_get::<Option<i64>, _>(column)?.map(Timestamp::from_micros))
        };
        let relay = || Ok::<_, sqlx::Error>(row.try_get::<Option<Uuid>, _>("relay")?.map(RelayId::from_uuid));
        Ok(match row.try_get("kind")? {
            "clock" => Self::Clock(instant(row, "now")?),
            "relay" => Self::Relay(
                row.try_get("name")?,
                RelayRow {
                    relay: relay()?.unwrap_or(RelayId::from_uuid(Uuid::nil())),
                    expires_at: instant(row, "expires_at")?,
                    lasts: Duration::from_micros(
                        u64::try_from(row.try_get::<i64, _>("lasts")?).unwrap_or_default(),
                    ),
                    unavailable_since: time("unavailable_since")?,
                    fingerprint: row.try_get("fingerprint")?,
                },
            ),
            "bucket" => {
                let bucket = u8::try_from(row.try_get::<i64, _>("bucket")?).unwrap_or_default();
                Self::Bucket(BucketRow {
                    owner: relay()?,
                    epoch: Epoch(row.try_get("epoch")?),
                    since: instant(row, "since")?,
                    low_water: Position(row.try_get("low_water")?),
                    ends_at: time("expires_at")?,
                    ..BucketRow::new(Bucket(bucket))
                })
            }
            _ => Self::Pause(row.try_get("name")?),
        })
    }
}

impl PostgresStore {
    pub(crate) async fn owned(&self, route: &Route) -> Result<Ownership, StoreError> {
        let query = self.sql().query(&self.sql().ownership).bind(route.as_str().to_owned());
        let known = self.look("ownership", query, |row| Known::read(row).map(Some)).await?;
        let (mut relays, mut buckets, mut paused) = (Vec::new(), Vec::new(), Paused::default());
        let mut now = Timestamp::from_micros(0);
        for known in known {
            match known {
                Known::Clock(at) => now = at,
                Known::Relay(label, row) => relays.push((label, row)),
                Known::Bucket(row) => buckets.push(row),
                Known::Pause(topic) if topic.is_empty() => paused.route = true,
                Known::Pause(topic) => paused.topics.extend(Topic::new(topic)),
            }
        }
        paused.topics.sort();
        Ok(leases::ownership(relays, buckets, paused, now))
    }

    pub(crate) async fn all_routes(&self) -> Result<Vec<RouteStatus>, StoreError> {
        let query =
            self.sql().query(&self.sql().routes).bind(number(LOOKED_AT)).bind(number(RouteStatus::MAX));
        let found = self
            .look("routes", query, |row| {
                let (kind, route): (String, String) = (row.try_get("kind")?, row.try_get("route")?);
                Ok(Some((kind, route, row.try_get::<Option<String>, _>("topic")?)))
            })
            .await?;
        let mut tally = RouteTally::default();
        for (kind, route, topic) in found {
            match kind.as_str() {
                "relay" => tally.relay(&route),
                "pause" => tally.pause(&route, &topic.unwrap_or_default()),
                _ => tally.route(&route),
            }
        }
        Ok(tally.finish())
    }

    pub(crate) async fn figures(&self, route: &Route) -> Result<Vec<TopicFigures>, StoreError> {
        let limit = self.options().counting_limit;
        let query =
            self.sql().query(&self.sql().topics).bind(route.as_str().to_owned()).bind(i64::from(limit));
        let found = self
            .look("topics", query, |row| {
                let oldest = row.try_get::<Option<i64>, _>("oldest")?.map(Timestamp::from_micros);
                let count = u64::try_from(row.try_get::<i64, _>("count")?).unwrap_or_default();
                let topic: Option<String> = row.try_get("topic")?;
                let figure = Figure::from_name(row.try_get("kind")?);
                Ok(figure.map(|figure| (figure, topic, count, oldest)).zip(Some(instant(row, "now")?)))
            })
            .await?;
        let now = found.first().map_or(Timestamp::from_micros(0), |(_, now)| *now);
        let mut tally = TopicTally::new(now, limit.into());
        for ((figure, topic, count, oldest), _) in found {
            match topic {
                Some(topic) => tally.add(figure, &topic, count, oldest),
                None => tally.passed(figure, count),
            }
        }
        Ok(tally.finish())
    }

    pub(crate) async fn audited(&self, filter: &Filter) -> Result<Vec<AuditEntry>, StoreError> {
        let query = self.filtered(&self.sql().audit, filter).bind(number(filter.offset));
        self.look("audit", query, |row| {
            let columns = AuditColumns {
                at: row.try_get("at")?,
                actor: row.try_get("actor")?,
                operation: row.try_get("operation")?,
                route: row.try_get("route")?,
                topic: row.try_get("topic")?,
                key: row.try_get("key")?,
                detail: row.try_get("detail")?,
                affected: row.try_get("affected")?,
                ids: row.try_get("ids")?,
            };
            Ok(Some(columns.entry()))
        })
        .await
    }
}
