//! Figures for operators: what waits, relays and buckets, routes, topics.

use outbox_contract::admin::{Filter, Ownership, RouteStatus, TopicFigures};
use outbox_contract::backend::rules::leases;
use outbox_contract::backend::{Figure, Listed, RouteTally, TopicTally};
use outbox_contract::{Route, StoreError, Timestamp, Topic};
use sqlx::mysql::{MySqlConnection, MySqlRow};
use sqlx::{AssertSqlSafe, MySql, QueryBuilder, Row};

use crate::browse::{MESSAGE, OWN, count, fitting, instant, route, stays, text};
use crate::fetch::number;
use crate::line::in_snapshot;
use crate::row::raw;
use crate::store::MySqlStore;
use crate::{lease, sql};

/// Number of keys and of scheduled messages among which routes are looked for.
const LOOKED_AT: i64 = 10_000;

const fn direction(filter: &Filter) -> &'static str {
    if filter.newest { " desc" } else { "" }
}

/// A statement for the places and sizes of what waits and the filter lets through. The first so
/// many are looked at, along the primary key; their content is not.
fn places(filter: &Filter) -> QueryBuilder<MySql> {
    let direction = direction(filter);
    let mut query = QueryBuilder::new(
        "select w.route, w.position, length(t.headers) + length(t.payload) from (\
         select route, position, topic, order_key, event_type, id, appended_at from outbox_message force index (primary)",
    );
    if let Some(route) = &filter.route {
        query.push(" where route = ").push_bind(route.as_str().as_bytes().to_vec());
    }
    let looked_at = number(filter.looked_at());
    query.push(format!(" order by route{direction}, position{direction} limit ")).push_bind(looked_at);
    query.push(
        ") w straight_join outbox_message t on t.route = w.route and t.position = w.position where true",
    );
    let names = [
        (" and w.topic = ", filter.topic.as_ref().map(Topic::as_str)),
        (" and w.order_key = ", filter.key.as_ref().map(|key| key.as_str())),
        (" and w.event_type = ", filter.event_type.as_deref()),
    ];
    for (condition, name) in names {
        if let Some(name) = name {
            query.push(condition).push_bind(name.as_bytes().to_vec());
        }
    }
    if let Some(since) = filter.since {
        query.push(" and w.appended_at >= ").push_bind(since.as_micros());
    }
    if let Some(before) = filter.before {
        query.push(" and w.appended_at < ").push_bind(before.as_micros());
    }
    // Of an empty list the limit is 0.
    if let Some(ids) = filter.ids.as_ref().filter(|ids| !ids.is_empty()) {
        query.push(" and w.id in (");
        let mut list = query.separated(", ");
        for id in ids {
            list.push_bind(id.as_uuid().as_bytes().to_vec());
        }
        query.push(")");
    }
    let (limit, offset) = (number(filter.limit()), number(filter.offset));
    query.push(format!(" order by w.route{direction}, w.position{direction} limit ")).push_bind(limit);
    query.push(" offset ").push_bind(offset);
    query
}

impl MySqlStore {
    /// One page of what waits: its places first, then as many messages as fit.
    pub(crate) async fn waiting_page(&self, filter: &Filter) -> Result<Vec<Listed>, StoreError> {
        let mut places = places(filter);
        let page = async |connection: &mut MySqlConnection| {
            let rows = places.build().persistent(stays(filter)).fetch_all(&mut *connection).await?;
            let mut found: Vec<(String, i64)> = Vec::with_capacity(rows.len());
            let mut sizes: Vec<i64> = Vec::with_capacity(rows.len());
            for row in &rows {
                found.push((text(row, 0)?, row.try_get_unchecked(1)?));
                sizes.push(row.try_get_unchecked(2)?);
            }
            found.truncate(fitting(&sizes));
            let among = sql::among(
                "t.route",
                "t.position",
                found.iter().map(|(route, position)| (route.as_str(), *position)),
            );
            let direction = direction(filter);
            let select = format!(
                "select {MESSAGE}, t.route from outbox_message t where {among} \
                 order by t.route{direction}, t.position{direction}"
            );
            // Not prepared: see `stays`.
            let rows = sqlx::raw_sql(AssertSqlSafe(select)).fetch_all(connection).await?;
            let listed = |row: &MySqlRow| {
                let stored = raw(row).presentable();
                let at = stored.appended_at;
                Ok(Listed::new(route(row, OWN)?, stored, at))
            };
            rows.iter().map(listed).collect()
        };
        let work = async |connection: &mut MySqlConnection| in_snapshot(connection, page).await;
        self.on("waiting", &self.lines().looking, work).await
    }

    pub(crate) async fn owned(&self, of: &Route) -> Result<Ownership, StoreError> {
        let look = async |connection: &mut MySqlConnection| {
            let now = Timestamp::from_micros(lease::now(connection).await?);
            let relays = lease::labeled(connection, of).await?;
            let buckets = lease::buckets(connection, of).await?;
            let paused = lease::paused(connection, of).await?;
            Ok(leases::ownership(relays, buckets, paused, now))
        };
        let work = async |connection: &mut MySqlConnection| in_snapshot(connection, look).await;
        self.on("ownership", &self.lines().looking, work).await
    }

    pub(crate) async fn all_routes(&self) -> Result<Vec<RouteStatus>, StoreError> {
        let work = async |connection: &mut MySqlConnection| {
            let query = sqlx::query(sql::ROUTE_STATUS).bind(LOOKED_AT).bind(LOOKED_AT);
            let mut tally = RouteTally::default();
            for row in &query.fetch_all(connection).await? {
                let (kind, route) = (text(row, 0)?, text(row, 1)?);
                match kind.as_str() {
                    "relay" => tally.relay(&route),
                    "pause" => tally.pause(&route, &text(row, 2)?),
                    _ => tally.route(&route),
                }
            }
            Ok(tally.finish())
        };
        self.on("routes", &self.lines().looking, work).await
    }

    pub(crate) async fn figures(&self, of: &Route) -> Result<Vec<TopicFigures>, StoreError> {
        let limit = self.options().counting_limit;
        let work = async |connection: &mut MySqlConnection| {
            let mut query = sqlx::query(sql::TOPICS);
            for _ in 0..5 {
                query = query.bind(of.as_str().as_bytes()).bind(i64::from(limit));
            }
            let rows = query.fetch_all(connection).await?;
            let Some(first) = rows.first() else { return Ok(Vec::new()) };
            let mut tally = TopicTally::new(instant(first, 4)?, limit.into());
            for row in &rows {
                let Some(figure) = Figure::from_name(&text(row, 0)?) else { continue };
                let oldest: Option<i64> = row.try_get_unchecked(3)?;
                tally.add(figure, &text(row, 1)?, count(row, 2)?, oldest.map(Timestamp::from_micros));
            }
            Ok(tally.finish())
        };
        self.on("topics", &self.lines().looking, work).await
    }
}
