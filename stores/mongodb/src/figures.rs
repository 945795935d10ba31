//! Figures for operators: what waits, relays and buckets, routes, topics.

use mongodb::bson::{Bson, Document, doc};
use mongodb::options::ReadConcern;
use mongodb::{ClientSession, Collection};
use outbox_contract::admin::{Filter, MAX_BYTES_PER_CALL, Ownership, RouteStatus, TopicFigures};
use outbox_contract::backend::rules::leases;
use outbox_contract::backend::{Figure, Listed, Paused, Position, RouteTally, TopicTally};
use outbox_contract::{Route, Timestamp};

use crate::database::Database;
use crate::error::Failed;
use crate::fetch::{keyless, range};
use crate::keys::{number, text};
use crate::row::{self, Raw};
use crate::{lease, unserved};

/// Number of scheduled messages among which routes are looked for.
const LOOKED_AT: i64 = 10_000;

/// One page of what waits: the first so many along the names of the hot collection are looked at.
pub(crate) async fn waiting(database: &Database, filter: &Filter) -> Result<Vec<Listed>, Failed> {
    let count = |count: usize| i64::try_from(count).unwrap_or(i64::MAX);
    if filter.limit() == 0 {
        return Ok(Vec::new());
    }
    let of_route = filter.route.as_ref().map_or_else(Document::new, |route| {
        doc! { "_id": range(route.as_str(), Position::START, Position::END) }
    });
    let way = if filter.newest { -1 } else { 1 };
    let pipeline = [
        doc! { "$match": of_route },
        doc! { "$sort": { "_id": way } },
        doc! { "$limit": count(filter.looked_at()) },
        doc! { "$match": matching(filter) },
        doc! { "$skip": count(filter.offset) },
        doc! { "$limit": count(filter.limit()) },
    ];
    let mut session = database.session().await?;
    let mut cursor = database.messages().aggregate(pipeline).session(&mut session).await?;
    let (mut listed, mut bytes) = (Vec::new(), 0_usize);
    while let Some(row) = cursor.next(&mut session).await {
        let row = row?;
        bytes = bytes.saturating_add(row::content_bytes(&row));
        if bytes > MAX_BYTES_PER_CALL && !listed.is_empty() {
            break;
        }
        let name = row.get_document("_id").ok().and_then(|name| text(name, "route")).unwrap_or_default();
        let route = Route::new(&name).or_else(|_| Route::new(name.replace(char::is_control, "?")));
        let stored = Raw::new(row).presentable();
        let at = stored.appended_at;
        listed.push(Listed::new(route.unwrap_or_default(), stored, at));
    }
    Ok(listed)
}

/// A filter as the hot collection takes it, but for the route.
fn matching(filter: &Filter) -> Document {
    let mut matching = Document::new();
    if let Some(topic) = &filter.topic {
        matching.insert("topic", topic.as_str());
    }
    if let Some(event_type) = &filter.event_type {
        matching.insert("event_type", event_type.as_str());
    }
    if let Some(key) = &filter.key {
        let mut either = vec![doc! { "key": key.as_str() }];
        either.extend(keyless(key.as_str()).map(|ids| doc! { "key": Bson::Null, "_id.id": { "$in": ids } }));
        matching.insert("$or", either);
    }
    if let Some(ids) = &filter.ids {
        let ids: Vec<Bson> = ids.iter().flat_map(|id| row::ids(*id)).collect();
        matching.insert("_id.id", doc! { "$in": ids });
    }
    let mut instants = Document::new();
    if let Some(since) = filter.since {
        instants.insert("$gte", since.as_micros());
    }
    if let Some(before) = filter.before {
        instants.insert("$lt", before.as_micros());
    }
    if !instants.is_empty() {
        matching.insert("appended_at", instants);
    }
    matching
}

pub(crate) async fn ownership(database: &Database, route: &Route) -> Result<Ownership, Failed> {
    let mut session = database.session().await?;
    match lease::read(database, &mut session, route, Some(ReadConcern::majority())).await? {
        Some(ownership) => Ok(ownership.view()),
        None => {
            let now = Timestamp::from_micros(database.now(&mut session).await?);
            Ok(leases::ownership([], [], Paused::default(), now))
        }
    }
}

pub(crate) async fn routes(database: &Database) -> Result<Vec<RouteStatus>, Failed> {
    let mut session = database.session().await?;
    let mut tally = RouteTally::default();
    // Whatever has a relay, a pause or a failing key has a document.
    let known = database.routes().clone_with_type::<Document>();
    let fields = doc! { "relays.expires_at": 1, "relays.lasts": 1, "paused": 1 };
    let now = database.now(&mut session).await?;
    let mut cursor = known.find(doc! {}).projection(fields).session(&mut session).await?;
    while let Some(route) = cursor.next(&mut session).await {
        let route = route?;
        let Some(name) = text(&route, "_id") else { continue };
        tally.route(&name);
        for relay in route.get_array("relays").into_iter().flatten().filter_map(Bson::as_document) {
            let lives = number(relay, "expires_at")
                .zip(number(relay, "lasts"))
                .is_some_and(|(end, lasts)| end > now && end <= now.saturating_add(lasts.saturating_mul(2)));
            if lives {
                tally.relay(&name);
            }
        }
        for topic in route.get_array("paused").into_iter().flatten().filter_map(Bson::as_str) {
            tally.pause(&name, topic);
        }
    }
    for name in unserved::hot_routes(database, &mut session).await? {
        tally.route(&name);
    }
    for collection in [database.dead(), database.parked()] {
        for name in collection.distinct("route", doc! {}).session(&mut session).await? {
            tally.route(name.as_str().unwrap_or_default());
        }
    }
    let due = [
        doc! { "$sort": { "due_at": 1, "turn": 1 } },
        doc! { "$limit": LOOKED_AT },
        doc! { "$group": { "_id": "$route" } },
    ];
    let mut cursor = database.scheduled().aggregate(due).session(&mut session).await?;
    while let Some(route) = cursor.next(&mut session).await {
        tally.route(&text(&route?, "_id").unwrap_or_default());
    }
    Ok(tally.finish())
}

pub(crate) async fn topics(database: &Database, route: &Route) -> Result<Vec<TopicFigures>, Failed> {
    let limit = database.options.counting_limit;
    let mut session = database.session().await?;
    let now = Timestamp::from_micros(database.now(&mut session).await?);
    let mut tally = TopicTally::new(now, limit.into());
    let of_route = || doc! { "route": route.as_str() };
    let with = |held: bool| doc! { "route": route.as_str(), "held": held };
    let hot = doc! { "_id": range(route.as_str(), Position::START, Position::END) };
    let counts = [
        (Figure::Waiting, database.messages(), hot, doc! { "_id": 1 }),
        (Figure::Parked, database.parked(), of_route(), doc! { "route": 1 }),
        (Figure::Retrying, database.keys(), with(false), doc! { "route": 1 }),
        (Figure::Held, database.keys(), with(true), doc! { "route": 1 }),
        (Figure::Dead, database.dead(), of_route(), doc! { "route": 1, "topic": 1 }),
    ];
    for (figure, collection, filter, sort) in counts {
        count(&mut tally, figure, (collection, filter, sort, limit.into()), &mut session).await?;
    }
    Ok(tally.finish())
}

/// Counts the first so many documents of a collection by their topics.
async fn count(
    tally: &mut TopicTally,
    figure: Figure,
    (collection, filter, sort, limit): (Collection<Document>, Document, Document, i64),
    session: &mut ClientSession,
) -> Result<(), Failed> {
    let pipeline = [
        doc! { "$match": filter },
        doc! { "$sort": sort },
        doc! { "$limit": limit },
        doc! { "$group": {
            "_id": "$topic",
            "count": { "$sum": 1_i64 },
            "oldest": { "$min": "$appended_at" },
        } },
    ];
    let mut cursor = collection.aggregate(pipeline).session(&mut *session).await?;
    while let Some(group) = cursor.next(session).await {
        let group = group?;
        let count = number(&group, "count").and_then(|count| u64::try_from(count).ok()).unwrap_or_default();
        let oldest = number(&group, "oldest").map(Timestamp::from_micros);
        tally.add(figure, &text(&group, "_id").unwrap_or_default(), count, oldest);
    }
    Ok(())
}
