//! Ids that consumers have handled: their retention, and how an operator removes them.

use mongodb::ClientSession;
use mongodb::bson::{Bson, Document, doc};
use outbox_contract::Timestamp;
use outbox_contract::admin::{HandledFilter, MAX_PER_CALL};
use outbox_contract::backend::rules::micros;
use outbox_contract::backend::rules::retention::{HandledIdsCut, HandledIdsRetention};

use crate::database::Database;
use crate::error::{Failed, is_duplicate};
use crate::keys::number;

/// Removes ids that are over their time, of each consumer the oldest first. Returns their number.
pub(crate) async fn expire(database: &Database, limit: usize) -> Result<u64, Failed> {
    let mut session = database.session().await?;
    let now = Timestamp::from_micros(database.now(&mut session).await?);
    let begin = retention(database, &mut session, now).await?.cut(now);
    let (mut removed, mut consumer) = (0, String::new());
    while removed < limit {
        let behind = doc! { "_id.consumer": { "$gt": &consumer } };
        let order = doc! { "_id.consumer": 1, "handled_at": 1 };
        let next = database.handled().find_one(behind).sort(order).session(&mut session).await?;
        let Some(next) = next else { break };
        consumer =
            next.get_document("_id").and_then(|name| name.get_str("consumer")).unwrap_or_default().to_owned();
        if begin.is_due(Timestamp::from_micros(number(&next, "handled_at").unwrap_or_default())) {
            let cut = cut(database, &mut session, &consumer, begin).await?;
            let over = doc! { "_id.consumer": &consumer, "handled_at": { "$lte": cut } };
            let done = remove(database, &mut session, over, limit - removed).await?;
            removed += usize::try_from(done).unwrap_or(limit);
        }
    }
    Ok(removed as u64)
}

/// Records the retention that this process was opened with.
pub(crate) async fn record_retention(database: &Database) -> Result<(), Failed> {
    let mut session = database.session().await?;
    let now = database.now(&mut session).await?;
    let options = &database.options;
    let (kept, max_age) = (micros(options.handled_ids_kept), micros(options.handled_ids_max_age));
    let name = doc! { "_id": { "handled_ids_kept": kept, "handled_ids_max_age": max_age } };
    let renew = doc! { "$set": { "renewed_at": now } };
    let done = database.retentions().update_one(name, renew).upsert(true).session(&mut session).await;
    database.note(&session);
    match done {
        // Another process with the same retention was faster.
        Err(error) if !is_duplicate(&error) => Err(error.into()),
        _ => Ok(()),
    }
}

/// Returns the retention in force: that of this process, or a longer one that is recorded.
async fn retention(
    database: &Database,
    session: &mut ClientSession,
    now: Timestamp,
) -> Result<HandledIdsRetention, Failed> {
    let options = &database.options;
    let mut longest = HandledIdsRetention::new(options.handled_ids_kept, options.handled_ids_max_age);
    let mut cursor = database.retentions().find(doc! {}).session(&mut *session).await?;
    while let Some(row) = cursor.next(session).await {
        let row = row?;
        let Ok(name) = row.get_document("_id") else { continue };
        let field = |field| number(name, field).unwrap_or_default();
        let recorded = (field("handled_ids_kept"), field("handled_ids_max_age"));
        longest = longest.or_recorded(now, recorded, number(&row, "renewed_at").unwrap_or_default());
    }
    Ok(longest)
}

async fn cut(
    database: &Database,
    session: &mut ClientSession,
    consumer: &str,
    mut cut: HandledIdsCut,
) -> Result<i64, Failed> {
    while let Some(at) = cut.look() {
        let before = doc! { "_id.consumer": consumer, "handled_at": { "$lte": at.as_micros() } };
        let order = doc! { "_id.consumer": -1, "handled_at": -1 };
        let latest = database.handled().find_one(before).sort(order).session(&mut *session).await?;
        let latest = latest.and_then(|row| number(&row, "handled_at"));
        cut.found(latest.map(Timestamp::from_micros));
    }
    Ok(cut.cut().as_micros())
}

/// Removes ids that are selected, the oldest first. Returns their number.
async fn remove(
    database: &Database,
    session: &mut ClientSession,
    selected: Document,
    limit: usize,
) -> Result<u64, Failed> {
    let names = chosen(database, session, selected, limit).await?;
    let done =
        database.handled().delete_many(doc! { "_id": { "$in": names } }).session(&mut *session).await?;
    database.note(session);
    Ok(done.deleted_count)
}

/// The names of what is selected, the oldest first.
async fn chosen(
    database: &Database,
    session: &mut ClientSession,
    selected: Document,
    limit: usize,
) -> Result<Vec<Bson>, Failed> {
    let mut cursor = database
        .handled()
        .find(selected)
        .sort(doc! { "_id.consumer": 1, "handled_at": 1 })
        .projection(doc! { "_id": 1 })
        .limit(i64::try_from(limit).unwrap_or(i64::MAX))
        .session(&mut *session)
        .await?;
    let mut names: Vec<Bson> = Vec::new();
    while let Some(row) = cursor.next(session).await {
        names.extend(row?.get("_id").cloned());
    }
    Ok(names)
}

fn selected(filter: &HandledFilter) -> Document {
    let mut selected = doc! { "_id.consumer": filter.consumer.as_str() };
    if let Some(topic) = &filter.topic {
        selected.insert("topic", topic.as_str());
    }
    if let Some(key) = &filter.key {
        selected.insert("key", key.as_str());
    }
    let mut at = Document::new();
    if let Some(since) = filter.since {
        at.insert("$gte", since.as_micros());
    }
    if let Some(before) = filter.before {
        at.insert("$lt", before.as_micros());
    }
    if !at.is_empty() {
        selected.insert("handled_at", at);
    }
    selected
}

/// Counts what a filter selects.
pub(crate) async fn count(database: &Database, filter: &HandledFilter) -> Result<u64, Failed> {
    let mut session = database.session().await?;
    Ok(database.handled().count_documents(selected(filter)).session(&mut session).await?)
}

/// The names of what a filter selects, the oldest first.
pub(crate) async fn to_forget(database: &Database, filter: &HandledFilter) -> Result<Vec<Bson>, Failed> {
    let mut session = database.session().await?;
    chosen(database, &mut session, selected(filter), MAX_PER_CALL).await
}
