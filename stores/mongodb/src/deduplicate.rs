//! Dedup: what a consumer has handled, noted in its own transaction.
//!
//! Writing an id that is there would end the transaction, and with it all of a batch. So ids are
//! read first, and only those are written that are not there. Where another transaction writes one
//! at the same time, one of the two conflicts: it never says that a message is a duplicate.

use std::collections::HashSet;

use mongodb::ClientSession;
use mongodb::bson::{Document, doc};
use outbox_contract::backend::{Dedup, Position, Stored};
use outbox_contract::{Consumer, Message, MessageId, Route, StoreError, StoreErrorKind, inbox_route};

use crate::append::require_transaction;
use crate::database::{Database, IS_HANDLED};
use crate::error::Failed;
use crate::fetch::range;
use crate::row::{message_id, row_names, uuid};
use crate::turns::{Inbox, Turns};

fn name(consumer: &Consumer, id: MessageId) -> Document {
    doc! { "consumer": consumer.as_str(), "id": uuid(id.as_uuid()) }
}

pub(crate) async fn deduplicate(
    database: &Database,
    session: &mut ClientSession,
    consumer: &Consumer,
    messages: &[&Message],
) -> Result<Vec<Dedup>, Failed> {
    if messages.is_empty() {
        return Ok(Vec::new());
    }
    require_transaction(session).await?;
    let ids: Vec<MessageId> = messages.iter().map(|message| message.id).collect();
    let mut noted = noted(database, session, consumer, &ids).await?;
    let route = inbox_route(consumer);
    let mut turns = None;
    if noted.len() < ids.len() && anything_waits(database, session, &route).await? {
        let open: Vec<&Message> =
            messages.iter().filter(|message| !noted.contains(&message.id)).copied().collect();
        turns = Some(Turns::read(Inbox { database, consumer, route: &route }, session, &open).await?);
    }
    let mut new = Vec::new();
    let mut handled_ids = Vec::with_capacity(messages.len());
    for message in messages {
        let deduplication = if noted.contains(&message.id) {
            Dedup::Duplicate
        } else if let Some(turns) = &mut turns
            && turns.is_behind(session, message, &noted).await?
        {
            Dedup::OutOfTurn
        } else {
            // A message that is recorded as handled makes way for the one behind it. An id that is
            // given twice is new the first time.
            noted.insert(message.id);
            new.push(*message);
            Dedup::New
        };
        handled_ids.push(deduplication);
    }
    note(database, session, consumer, &new).await?;
    Ok(handled_ids)
}

/// Returns the messages that wait on a route, each where it was read. This also changes them, so
/// that a transaction that removes or moves one conflicts with this one. A read alone would
/// conflict with none, and this transaction reads everything as of its beginning.
pub(crate) async fn fence(
    database: &Database,
    session: &mut ClientSession,
    route: &Route,
    stored: &[&Stored],
) -> Result<Vec<bool>, Failed> {
    if stored.is_empty() {
        return Ok(Vec::new());
    }
    require_transaction(session).await?;
    let change = doc! { "$inc": { "fenced": 1 } };
    let named = |stored: &[&Stored]| {
        let names: Vec<Document> =
            stored.iter().flat_map(|stored| row_names(route.as_str(), stored.row())).collect();
        doc! { "_id": { "$in": names } }
    };
    let hot = database.messages().update_many(named(stored), change.clone()).session(&mut *session).await?;
    if hot.matched_count == stored.len() as u64 {
        return Ok(vec![true; stored.len()]);
    }
    let mut wait = Vec::with_capacity(stored.len());
    for stored in stored {
        if database
            .messages()
            .find_one(named(&[stored]))
            .projection(doc! { "_id": 1 })
            .session(&mut *session)
            .await?
            .is_some()
        {
            wait.push(true);
            continue;
        }
        let key = stored.message.key_id();
        let parked = doc! {
            "route": route.as_str(),
            "topic": key.topic.as_str(),
            "order_key": key.key.as_str(),
            "position": stored.position.0,
            "id": uuid(stored.message.id.as_uuid()),
        };
        let parked = database.parked().update_one(parked, change.clone()).session(&mut *session).await?;
        wait.push(parked.matched_count > 0);
    }
    Ok(wait)
}

/// Returns those of these that the consumer has handled.
pub(crate) async fn noted(
    database: &Database,
    session: &mut ClientSession,
    consumer: &Consumer,
    ids: &[MessageId],
) -> Result<HashSet<MessageId>, Failed> {
    let names: Vec<Document> = ids.iter().map(|id| name(consumer, *id)).collect();
    let wanted = doc! { "_id": { "$in": names } };
    let mut cursor =
        database.handled().find(wanted).projection(doc! { "_id": 1 }).session(&mut *session).await?;
    let mut noted = HashSet::new();
    while let Some(row) = cursor.next(session).await {
        noted.extend(row?.get_document("_id").ok().and_then(|name| message_id(name.get("id"))));
    }
    Ok(noted)
}

/// Writes ids, each with the time of the server's own clock.
async fn note(
    database: &Database,
    session: &mut ClientSession,
    consumer: &Consumer,
    messages: &[&Message],
) -> Result<(), Failed> {
    if messages.is_empty() {
        return Ok(());
    }
    let content = |message: &Message| {
        // Any text could be an expression.
        let literal = |text: Option<&str>| doc! { "$literal": text };
        doc! { "$set": {
            "handled_at": { "$multiply": [{ "$toLong": "$$NOW" }, 1_000_i64] },
            "topic": literal(Some(message.topic.as_str())),
            "key": literal(message.key.as_ref().map(|key| key.as_str())),
        } }
    };
    let update = |message: &&Message| doc! { "q": { "_id": name(consumer, message.id) }, "u": [content(message)], "upsert": true };
    let updates: Vec<Document> = messages.iter().map(update).collect();
    let answer = database.update_each(session, IS_HANDLED, updates).await?;
    if answer.get_array("upserted").map_or(0, Vec::len) < messages.len() {
        // It was not there when it was looked for.
        return Err(StoreError::new(
            StoreErrorKind::Conflict,
            "deduplicate",
            "another transaction is handling one of these messages; abort this one and start again",
        )
        .into());
    }
    Ok(())
}

/// Returns true if anything waits for a consumer, hot or behind a failing key.
async fn anything_waits(
    database: &Database,
    session: &mut ClientSession,
    route: &Route,
) -> Result<bool, Failed> {
    let bare = doc! { "_id": 1 };
    let of_route = doc! { "route": route.as_str() };
    let key = database.keys().find_one(of_route).projection(bare.clone()).session(&mut *session).await?;
    if key.is_some() {
        return Ok(true);
    }
    let all = doc! { "_id": range(route.as_str(), Position::START, Position::END) };
    let hot = database.messages().find_one(all).projection(bare).session(session).await?;
    Ok(hot.is_some())
}

/// Returns true if a consumer's handling of a message was committed.
pub(crate) async fn is_handled(
    database: &Database,
    consumer: &Consumer,
    id: MessageId,
) -> Result<bool, Failed> {
    let mut session = database.session().await?;
    let noted = noted(database, &mut session, consumer, &[id]).await?;
    Ok(noted.contains(&id))
}
