//! Documents of a side collection that are appended: dead letters and history again, scheduled
//! messages when they are due.
//!
//! Each takes a stripe, and whoever appends to one of these conflicts until the transaction is
//! over. So few are appended in one, and the stripes are taken when nothing is left to do but
//! writing.

use mongodb::bson::{Bson, Document, doc};
use mongodb::{ClientSession, Collection};
use outbox_contract::backend::{AuditNote, StripeId};
use outbox_contract::{MessageId, async_trait};

use crate::append::{self, Row};
use crate::audit;
use crate::database::Database;
use crate::error::Failed;
use crate::row::{content_bytes, message_id, uuid};
use crate::transaction::Work;

/// The most messages that are appended in one transaction.
pub(crate) const MAX_AT_ONCE: usize = 50;

/// The most bytes of payload and headers that are moved in one transaction, whatever the first
/// message has: what it writes is kept in memory by the server until it commits.
pub(crate) const MAX_BYTES_AT_ONCE: usize = 16 * 1024 * 1024;

/// Returns the number of these documents that are appended in one transaction: the first so many.
pub(crate) fn at_once(rows: &[Document]) -> usize {
    let mut bytes = 0_usize;
    let fits = |row: &&Document| {
        bytes = bytes.saturating_add(content_bytes(row));
        bytes <= MAX_BYTES_AT_ONCE
    };
    rows.iter().take(MAX_AT_ONCE).take_while(fits).count().max(1).min(rows.len())
}

/// Appends documents, in the order given.
pub(crate) struct Again<'a> {
    pub(crate) rows: &'a [Document],
    /// Collection that they leave with that, if any.
    pub(crate) leave: Option<Collection<Document>>,
    /// Record of the operation, if an operator asks for it.
    pub(crate) note: Option<&'a AuditNote>,
}

#[async_trait]
impl Work for Again<'_> {
    type Done = usize;

    async fn run(&self, database: &Database, session: &mut ClientSession) -> Result<usize, Failed> {
        let mut rows: Vec<&Document> = self.rows.iter().collect();
        if let Some(collection) = &self.leave {
            let names: Vec<Bson> = rows.iter().filter_map(|row| row.get("_id").cloned()).collect();
            let filter = doc! { "_id": { "$in": names } };
            // Somebody else may have been faster with some, or an operator have removed them.
            let there = collection.distinct("_id", filter.clone()).session(&mut *session).await?;
            rows.retain(|row| row.get("_id").is_some_and(|name| there.contains(name)));
            if rows.is_empty() {
                return Ok(0);
            }
            collection.delete_many(filter).session(&mut *session).await?;
        }
        if let Some(note) = self.note {
            let ids: Vec<MessageId> = rows.iter().filter_map(|row| message_id(row.get("id"))).collect();
            let now = database.now(session).await?;
            audit::write(database, session, note, now, (rows.len(), &ids)).await?;
        }
        // Last: the stripes are taken by it.
        append::write(database, session, rows.iter().copied().map(again).collect()).await?;
        Ok(rows.len())
    }
}

/// A document of a side collection as it joins its key. Its place is computed anew: a wrong bucket
/// is one of the things that a message can have died of.
fn again(row: &Document) -> Row {
    const CONTENT: [&str; 8] =
        ["topic", "key", "event_type", "schema_version", "content_type", "headers", "payload", "occurred_at"];
    let text = |field| row.get_str(field).unwrap_or_default();
    let stripe = StripeId::of(text("topic"), text("order_key"));
    let mut content = doc! { "bucket": i32::from(stripe.bucket().0) };
    for field in CONTENT {
        if let Some(value) = row.get(field) {
            content.insert(field, value.clone());
        }
    }
    // In the store's own way, if it is an id at all.
    let id = message_id(row.get("id")).map_or(Bson::Null, |id| uuid(id.as_uuid()));
    Row { route: text("route").to_owned(), stripe, id, due: None, content }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(bytes: usize) -> Document {
        doc! { "payload": "x".repeat(bytes) }
    }

    #[test]
    fn a_transaction_takes_few_and_not_much() {
        assert_eq!(at_once(&[]), 0);
        assert_eq!(at_once(&vec![of(1); 200]), MAX_AT_ONCE);
        assert_eq!(at_once(&[of(MAX_BYTES_AT_ONCE + 1), of(1)]), 1, "the first always");
        assert_eq!(at_once(&[of(MAX_BYTES_AT_ONCE - 1), of(1), of(1)]), 2);
    }
}
