//! The audit: operations are recorded in the transaction that performs them.

use std::time::Duration;

use mongodb::ClientSession;
use mongodb::bson::{Bson, DateTime, Document, doc};
use outbox_contract::admin::{AuditEntry, Filter, OutboxId};
use outbox_contract::backend::{AuditColumns, AuditNote};
use outbox_contract::{MessageId, Route, async_trait};

use crate::browse;
use crate::database::Database;
use crate::error::Failed;
use crate::keys::number;
use crate::row::message_id;
use crate::transaction::Work;

/// Records an operation on so many messages, of which these are known, at this time of the server's
/// clock.
pub(crate) async fn write(
    database: &Database,
    session: &mut ClientSession,
    note: &AuditNote,
    now: i64,
    (affected, ids): (usize, &[MessageId]),
) -> Result<(), Failed> {
    let remove_at = (now / 1_000).saturating_add(millis(database.options.audit_kept));
    let entry = doc! {
        "at": now,
        "actor": note.actor.as_str(),
        "operation": note.operation,
        "route": note.route.as_ref().map(Route::as_str),
        "topic": note.topic.as_ref().map(|topic| topic.as_str()),
        "key": note.key.as_ref().map(|key| key.as_str()),
        "detail": &note.detail,
        "affected": i64::try_from(affected).unwrap_or(i64::MAX),
        "ids": ids.iter().take(AuditEntry::MAX_IDS).map(ToString::to_string).collect::<Vec<_>>(),
        "remove_at": DateTime::from_millis(remove_at),
    };
    database.audit().insert_one(entry).session(session).await?;
    Ok(())
}

/// A span in milliseconds, of which no sum with a time of now overflows.
fn millis(kept: Duration) -> i64 {
    const MAX: i64 = 1 << 50;
    i64::try_from(kept.as_millis()).unwrap_or(MAX).min(MAX)
}

/// An operation that changes no key, in one transaction with its record.
pub(crate) struct Noted<'a> {
    pub(crate) note: AuditNote,
    pub(crate) change: Change<'a>,
}

/// The change of such an operation.
pub(crate) enum Change<'a> {
    /// Removes dead letters of these names.
    Purge(&'a [Bson]),
    /// Forgets handled ids of these names.
    Forget(&'a [Bson]),
    /// Removes scheduled messages of these ids.
    Cancel(&'a [Bson]),
    /// Begins or ends a pause of a route, or of one of its topics.
    Pause { route: &'a Route, topic: &'a str, paused: bool },
    /// Replaces the identity.
    Identity(OutboxId),
}

impl Change<'_> {
    /// Returns the number and the ids of the messages. `None`: nothing changed.
    async fn apply(
        &self,
        database: &Database,
        session: &mut ClientSession,
    ) -> Result<Option<(usize, Vec<MessageId>)>, Failed> {
        let (collection, filter) = match self {
            Self::Purge(names) => (database.dead(), doc! { "_id": { "$in": *names } }),
            Self::Forget(names) => (database.handled(), doc! { "_id": { "$in": *names } }),
            Self::Cancel(ids) => (database.scheduled(), doc! { "id": { "$in": *ids } }),
            Self::Pause { route, topic, paused } => {
                // No new version: a heartbeat writes what it changes alone, and this is none of it.
                let change = if *paused { "$addToSet" } else { "$pull" };
                let change = doc! { change: { "paused": *topic } };
                let routes = database.routes();
                let done = routes.update_one(doc! { "_id": route.as_str() }, change).session(session).await?;
                return Ok((done.modified_count > 0).then(|| (0, Vec::new())));
            }
            Self::Identity(identity) => {
                let change = doc! { "$set": { "identity": identity.to_string() } };
                let collection = database.identity();
                let put = collection.update_one(doc! { "_id": crate::identity::ONE }, change);
                put.upsert(true).session(session).await?;
                return Ok(Some((0, Vec::new())));
            }
        };
        let names_alone = doc! { "_id": 1, "id": 1 };
        let mut cursor = collection.find(filter).projection(names_alone).session(&mut *session).await?;
        let (mut names, mut ids) = (Vec::new(), Vec::new());
        while let Some(row) = cursor.next(session).await {
            let row = row?;
            let name = row.get_document("_id").ok();
            ids.extend(message_id(row.get("id").or_else(|| name?.get("id"))));
            names.extend(row.get("_id").cloned());
        }
        if names.is_empty() {
            return Ok(None);
        }
        let count = names.len();
        collection.delete_many(doc! { "_id": { "$in": names } }).session(session).await?;
        Ok(Some((count, ids)))
    }
}

#[async_trait]
impl Work for Noted<'_> {
    /// Number of messages.
    type Done = u64;

    async fn run(&self, database: &Database, session: &mut ClientSession) -> Result<u64, Failed> {
        let now = database.now(session).await?;
        let Some((count, ids)) = self.change.apply(database, session).await? else { return Ok(0) };
        write(database, session, &self.note, now, (count, &ids)).await?;
        Ok(u64::try_from(count).unwrap_or_default())
    }
}

/// One page of entries.
pub(crate) async fn listed(database: &Database, filter: &Filter) -> Result<Vec<AuditEntry>, Failed> {
    let mut wanted = browse::matching(&Filter { ids: None, event_type: None, ..filter.clone() }, "key", "at");
    if let Some(ids) = &filter.ids {
        let ids: Vec<String> = ids.iter().map(ToString::to_string).collect();
        wanted.insert("ids", doc! { "$in": ids });
    }
    let way = if filter.newest { -1 } else { 1 };
    let order = doc! { "at": way, "_id": way };
    let mut session = database.session().await?;
    let rows =
        browse::page(&mut session, database.audit(), wanted, order, filter, filter.offset, doc! {}).await?;
    Ok(rows.iter().map(entry).collect())
}

fn entry(row: &Document) -> AuditEntry {
    let name = |field| row.get_str(field).ok();
    let ids = row.get_array("ids").into_iter().flatten().filter_map(Bson::as_str);
    let ids: Vec<&str> = ids.collect();
    let columns = AuditColumns {
        at: number(row, "at").unwrap_or_default(),
        actor: name("actor").unwrap_or_default(),
        operation: name("operation").unwrap_or_default(),
        route: name("route"),
        topic: name("topic"),
        key: name("key"),
        detail: name("detail").unwrap_or("{}"),
        affected: number(row, "affected").unwrap_or_default(),
        ids: &ids.join(" "),
    };
    columns.entry()
}
