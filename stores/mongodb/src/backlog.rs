//! Figures: what waits for a route, and for how long. Counts stop at the counting limit.

use std::time::Duration;

use mongodb::bson::{Bson, Document, doc};
use mongodb::options::ReadConcern;
use mongodb::{ClientSession, Collection};
use outbox_contract::Route;
use outbox_contract::backend::{Backlog, Bucket, BucketSet, Position};

use crate::database::Database;
use crate::error::Failed;
use crate::fetch::range;
use crate::keys::number;
use crate::lease;

pub(crate) async fn backlog(database: &Database, route: &Route) -> Result<Backlog, Failed> {
    let limit = i64::from(database.options.counting_limit);
    let mut session = database.session().await?;
    let ownership = lease::read(database, &mut session, route, Some(ReadConcern::majority())).await?;
    let owned = ownership.map_or(BucketSet::EMPTY, |ownership| ownership.owned_by_anybody());
    let of_route = doc! { "route": route.as_str() };
    let hot = doc! { "_id": range(route.as_str(), Position::START, Position::END) };
    let hot = look(database.messages(), &mut session, hot, doc! { "_id": 1 }, limit).await?;
    let parked = look(database.parked(), &mut session, of_route.clone(), doc! { "route": 1 }, limit).await?;
    let keys = look(database.keys(), &mut session, of_route.clone(), doc! { "route": 1 }, limit).await?;
    let held = doc! { "route": route.as_str(), "held": true };
    let held = count(database.keys(), &mut session, held, limit).await?;

    let waiting = hot.buckets.union(&keys.buckets);
    let now = database.now(&mut session).await?;
    let due = doc! { "route": route.as_str(), "due_at": { "$lte": now } };
    let scheduled = database.scheduled();
    let due = scheduled.find_one(due).sort(doc! { "due_at": 1, "turn": 1 }).session(&mut session).await?;
    let due = due.and_then(|due| number(&due, "due_at"));
    let oldest = hot.oldest.into_iter().chain(due).min();
    let age =
        |oldest: i64| Duration::from_micros(u64::try_from(now.saturating_sub(oldest)).unwrap_or_default());
    let mut backlog = Backlog::default();
    backlog.counting_limit = u64::try_from(limit).ok();
    backlog.pending = hot.count;
    backlog.pending_is_at_least = i64::try_from(hot.count).unwrap_or(i64::MAX) >= limit;
    backlog.oldest_pending_age = oldest.map(age);
    backlog.oldest_age = oldest.into_iter().chain(parked.oldest).min().map(age);
    backlog.parked = parked.count;
    backlog.retrying_keys = keys.count.saturating_sub(held);
    backlog.held_keys = held;
    backlog.dead = count(database.dead(), &mut session, of_route.clone(), limit).await?;
    backlog.scheduled = count(database.scheduled(), &mut session, of_route, limit).await?;
    backlog.unowned_buckets = u64::try_from(waiting.without(&owned).len()).unwrap_or_default();
    Ok(backlog)
}

struct Look {
    count: u64,
    buckets: BucketSet,
    oldest: Option<i64>,
}

/// Counts documents, and says of which buckets they are and when the oldest of them was appended.
async fn look(
    collection: Collection<Document>,
    session: &mut ClientSession,
    filter: Document,
    sort: Document,
    limit: i64,
) -> Result<Look, Failed> {
    let pipeline = [
        doc! { "$match": filter },
        doc! { "$sort": sort },
        doc! { "$limit": limit },
        doc! { "$group": {
            "_id": "$bucket",
            "count": { "$sum": 1_i64 },
            "oldest": { "$min": "$appended_at" },
        } },
    ];
    let mut cursor = collection.aggregate(pipeline).session(&mut *session).await?;
    let mut look = Look { count: 0, buckets: BucketSet::EMPTY, oldest: None };
    while let Some(group) = cursor.next(session).await {
        let group = group?;
        look.count += number(&group, "count").and_then(|count| u64::try_from(count).ok()).unwrap_or_default();
        let bucket = number(&group, "_id").and_then(|bucket| u8::try_from(bucket).ok());
        if let Some(bucket) = bucket {
            look.buckets.insert(Bucket(bucket));
        }
        look.oldest = [look.oldest, number(&group, "oldest")].into_iter().flatten().min();
    }
    Ok(look)
}

async fn count(
    collection: Collection<Document>,
    session: &mut ClientSession,
    filter: Document,
    limit: i64,
) -> Result<u64, Failed> {
    let pipeline = [
        doc! { "$match": filter },
        doc! { "$limit": limit },
        doc! { "$group": { "_id": Bson::Null, "count": { "$sum": 1_i64 } } },
    ];
    let mut cursor = collection.aggregate(pipeline).session(&mut *session).await?;
    let group = cursor.next(session).await.transpose()?;
    let count = group.and_then(|group| number(&group, "count"));
    Ok(count.and_then(|count| u64::try_from(count).ok()).unwrap_or_default())
}
