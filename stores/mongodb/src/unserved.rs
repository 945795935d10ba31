//! Routes with messages that no relay serves: one step along an index, which begins with the route,
//! for each of them.
//!
//! Nothing of a route that is served is walked over, neither what waits there nor what is gone and,
//! for an old snapshot's sake, still there.

use std::collections::BTreeSet;
use std::time::Duration;

use mongodb::bson::{Bson, Document, doc};
use mongodb::{ClientSession, Collection};
use outbox_contract::backend::Unserved;

use crate::database::Database;
use crate::error::Failed;
use crate::keys::{number, text};

/// Number of messages of an unserved route among which the oldest is looked for.
const LOOK: i64 = 1_000;

pub(crate) async fn unserved(database: &Database, after: Duration) -> Result<Vec<Unserved>, Failed> {
    let mut session = database.session().await?;
    let now = database.now(&mut session).await?;
    let served = served(database, &mut session).await?;
    let mut found = hot(database, &mut session, &served).await?;
    found.extend(parked(database, &mut session, &served).await?);
    let limit = i64::from(database.options.counting_limit);
    let due = [
        doc! { "$match": { "due_at": { "$lte": now } } },
        doc! { "$sort": { "due_at": 1, "turn": 1 } },
        doc! { "$limit": limit },
        doc! { "$group": { "_id": "$route", "oldest": { "$min": "$due_at" } } },
    ];
    let mut cursor = database.scheduled().aggregate(due).session(&mut session).await?;
    while let Some(group) = cursor.next(&mut session).await {
        let group = group?;
        if let (Some(route), Some(since)) = (text(&group, "_id"), number(&group, "oldest"))
            && !served.contains(&route)
        {
            found.push((route, since));
        }
    }
    let waited = |since: i64| u64::try_from(now.saturating_sub(since)).unwrap_or_default();
    let found = found.into_iter().map(|(route, since)| (route, Duration::from_micros(waited(since))));
    Ok(Unserved::gather(found, after))
}

/// Routes that a live relay serves: one whose life ends implausibly late is none.
async fn served(database: &Database, session: &mut ClientSession) -> Result<BTreeSet<String>, Failed> {
    let now = doc! { "$multiply": [{ "$toLong": "$$NOW" }, 1_000_i64] };
    let furthest = doc! { "$add": ["$$now", { "$multiply": ["$$relay.lasts", 2_i64] }] };
    let lives = doc! { "$and": [
        { "$gt": ["$$relay.expires_at", "$$now"] },
        { "$lte": ["$$relay.expires_at", furthest] },
    ] };
    let lives = doc! { "$map": { "input": "$relays", "as": "relay", "in": lives } };
    let any = doc! { "$anyElementTrue": [lives] };
    let pipeline = [
        doc! { "$match": { "$expr": { "$let": { "vars": { "now": now }, "in": any } } } },
        doc! { "$project": { "_id": 1 } },
    ];
    let routes = database.routes().clone_with_type::<Document>();
    let mut cursor = routes.aggregate(pipeline).session(&mut *session).await?;
    let mut served = BTreeSet::new();
    while let Some(route) = cursor.next(session).await {
        served.extend(text(&route?, "_id"));
    }
    Ok(served)
}

/// Unserved routes of the hot collection, whose documents are in the order of route and position.
async fn hot(
    database: &Database,
    session: &mut ClientSession,
    served: &BTreeSet<String>,
) -> Result<Vec<(String, i64)>, Failed> {
    let messages = database.messages();
    let (mut found, mut last, mut routes) = (Vec::new(), Bson::MinKey, 0);
    for end in ends(served) {
        while routes < Unserved::MOST {
            let between = doc! { "_id": { "$gt": behind(&last), "$lt": { "route": &end } } };
            let next = messages.find_one(between).sort(doc! { "_id": 1 }).projection(doc! { "_id": 1 });
            let next = next.session(&mut *session).await?;
            let route = next.and_then(|next| text(next.get_document("_id").ok()?, "route"));
            let Some(route) = route else { break };
            routes += 1;
            last = Bson::String(route.clone());
            let of_route = doc! { "_id": { "$gte": { "route": &route }, "$lt": behind(&last) } };
            let since = oldest(&messages, session, of_route, doc! { "_id": 1 }).await?;
            found.extend(since.map(|since| (route, since)));
        }
        last = end;
    }
    Ok(found)
}

/// All routes of the hot collection, one step along its names for each.
pub(crate) async fn hot_routes(
    database: &Database,
    session: &mut ClientSession,
) -> Result<Vec<String>, Failed> {
    let messages = database.messages();
    let (mut found, mut last) = (Vec::new(), Bson::MinKey);
    while found.len() < Unserved::MOST {
        let next = messages.find_one(doc! { "_id": { "$gt": behind(&last) } });
        let next = next.sort(doc! { "_id": 1 }).projection(doc! { "_id": 1 }).session(&mut *session).await?;
        let route = next.and_then(|next| text(next.get_document("_id").ok()?, "route"));
        let Some(route) = route else { break };
        last = Bson::String(route.clone());
        found.push(route);
    }
    Ok(found)
}

async fn parked(
    database: &Database,
    session: &mut ClientSession,
    served: &BTreeSet<String>,
) -> Result<Vec<(String, i64)>, Failed> {
    let parked = database.parked();
    let (mut found, mut last, mut routes) = (Vec::new(), Bson::MinKey, 0);
    for end in ends(served) {
        while routes < Unserved::MOST {
            let between = doc! { "route": { "$gt": &last, "$lt": &end } };
            let next = parked.find_one(between).sort(doc! { "route": 1 }).projection(doc! { "route": 1 });
            let next = next.session(&mut *session).await?;
            let Some(route) = next.and_then(|next| text(&next, "route")) else { break };
            routes += 1;
            last = Bson::String(route.clone());
            let since = oldest(&parked, session, doc! { "route": &route }, doc! { "route": 1 }).await?;
            found.extend(since.map(|since| (route, since)));
        }
        last = end;
    }
    Ok(found)
}

/// Ends of the gaps between routes that are served, in their order.
fn ends(served: &BTreeSet<String>) -> impl Iterator<Item = Bson> {
    served.iter().map(|route| Bson::String(route.clone())).chain([Bson::MaxKey])
}

/// A name in the hot collection that stands behind all of a route.
fn behind(route: &Bson) -> Document {
    doc! { "route": route, "position": Bson::MaxKey }
}

/// Returns the time of appending of the oldest of the first of these. None: all of them are gone
/// meanwhile.
async fn oldest(
    collection: &Collection<Document>,
    session: &mut ClientSession,
    filter: Document,
    sort: Document,
) -> Result<Option<i64>, Failed> {
    let pipeline = [
        doc! { "$match": filter },
        doc! { "$sort": sort },
        doc! { "$limit": LOOK },
        doc! { "$group": { "_id": Bson::Null, "oldest": { "$min": "$appended_at" } } },
    ];
    let mut cursor = collection.aggregate(pipeline).session(&mut *session).await?;
    let group = cursor.next(session).await.transpose()?;
    Ok(group.and_then(|group| number(&group, "oldest")))
}
