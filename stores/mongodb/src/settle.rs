//! Settling: removing what the broker confirmed, by position and id.

use mongodb::ClientSession;
use mongodb::bson::{Document, doc};
use mongodb::options::WriteConcern;
use outbox_contract::backend::RowId;
use outbox_contract::backend::rules::micros;
use outbox_contract::{Route, StoreError, async_trait};

use crate::database::Database;
use crate::error::Failed;
use crate::row::{Raw, aside, row_name, row_names};
use crate::transaction::{Work, transact};

/// The most rows of one statement: their names take a fifth of what a command may have.
const MAX_ROWS: usize = 10_000;

/// The most rows of one transaction: what it writes is kept in memory by the server until it
/// commits.
const MAX_MOVED: usize = 500;

/// The names of rows, as a filter of the hot collection, in whichever way other programs may have
/// written them.
pub(crate) fn named(route: &str, rows: &[RowId]) -> Document {
    let names: Vec<Document> = rows.iter().flat_map(|row| row_names(route, *row)).collect();
    doc! { "_id": { "$in": names } }
}

/// Removes rows; keeps them in the history first, where there is one, in the same transaction.
pub(crate) async fn settle(
    database: &Database,
    route: &Route,
    delivered: &[RowId],
) -> Result<(), StoreError> {
    if database.options.history.is_none() {
        for rows in delivered.chunks(MAX_ROWS) {
            remove(database, route, rows).await.map_err(|failed| failed.in_step("settle"))?;
        }
        return Ok(());
    }
    for rows in delivered.chunks(MAX_MOVED) {
        transact(database, "settle", &Keep { route, rows }).await?;
    }
    Ok(())
}

/// One server's word is enough: losing a removal costs a repeat. Later reads of this process wait
/// for it all the same.
async fn remove(database: &Database, route: &Route, rows: &[RowId]) -> Result<(), Failed> {
    let mut session = database.session().await?;
    let route = route.as_str();
    // As the store writes them first; only what was not there may have been written by another
    // program.
    let as_written = rows.iter().map(|row| row_name(route, *row)).collect();
    let removed = remove_named(database, &mut session, as_written).await?;
    if removed < u64::try_from(rows.len()).unwrap_or(u64::MAX) {
        let otherwise = rows.iter().flat_map(|row| row_names(route, *row).skip(1)).collect();
        remove_named(database, &mut session, otherwise).await?;
    }
    database.note(&session);
    Ok(())
}

async fn remove_named(
    database: &Database,
    session: &mut ClientSession,
    names: Vec<Document>,
) -> Result<u64, Failed> {
    let removed = database
        .messages()
        .delete_many(doc! { "_id": { "$in": names } })
        .write_concern(WriteConcern::nodes(1))
        .session(session)
        .await?;
    Ok(removed.deleted_count)
}

struct Keep<'a> {
    route: &'a Route,
    rows: &'a [RowId],
}

#[async_trait]
impl Work for Keep<'_> {
    type Done = ();

    async fn run(&self, database: &Database, session: &mut ClientSession) -> Result<(), Failed> {
        let filter = named(self.route.as_str(), self.rows);
        let messages = database.messages();
        let mut cursor = messages.find(filter).sort(doc! { "_id": 1 }).session(&mut *session).await?;
        let (mut rows, mut names) = (Vec::with_capacity(self.rows.len()), Vec::new());
        while let Some(row) = cursor.next(session).await {
            let row = row?;
            names.extend(row.get("_id").cloned());
            rows.push(aside(Raw::new(row)));
        }
        if rows.is_empty() {
            return Ok(());
        }
        keep(database, session, rows).await?;
        messages.delete_many(doc! { "_id": { "$in": names } }).session(session).await?;
        Ok(())
    }
}

/// Puts documents that were delivered now into the history.
pub(crate) async fn keep(
    database: &Database,
    session: &mut ClientSession,
    mut rows: Vec<Document>,
) -> Result<(), Failed> {
    let Some(kept) = database.options.history else { return Ok(()) };
    if rows.is_empty() {
        return Ok(());
    }
    let now = database.now(session).await?;
    let until = now.saturating_add(micros(kept));
    for row in &mut rows {
        row.remove("_id");
        row.insert("delivered_at", now);
        row.insert("remove_at", mongodb::bson::DateTime::from_millis(until / 1_000));
    }
    database.history().insert_many(rows).session(session).await?;
    Ok(())
}
