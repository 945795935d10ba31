//! The identity of the outbox.

use mongodb::bson::{Document, doc};
use mongodb::options::ReturnDocument;
use outbox_contract::admin::OutboxId;
use outbox_contract::{StoreError, StoreErrorKind};

use crate::database::Database;
use crate::error::{Failed, is_duplicate};

/// Id of the only document.
pub(crate) const ONE: i32 = 1;

/// Returns the identity, and makes it first where it is missing.
pub(crate) async fn read(database: &Database) -> Result<OutboxId, Failed> {
    match database.identity().find_one(doc! { "_id": ONE }).await? {
        Some(stored) => identity(&stored),
        None => put(database).await,
    }
}

async fn put(database: &Database) -> Result<OutboxId, Failed> {
    let collection = database.identity();
    loop {
        let change = doc! { "$setOnInsert": { "identity": OutboxId::new().to_string() } };
        let put = collection.find_one_and_update(doc! { "_id": ONE }, change);
        match put.upsert(true).return_document(ReturnDocument::After).await {
            Ok(stored) => return identity(&stored.unwrap_or_default()),
            // Another program was faster: its document is there now.
            Err(error) if is_duplicate(&error) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

fn identity(stored: &Document) -> Result<OutboxId, Failed> {
    let text = stored.get_str("identity").unwrap_or_default();
    text.parse().map_err(|_| {
        let words = format!("outbox_identity holds {text:?}, which is not a UUID; call `renew_identity`");
        StoreError::new(StoreErrorKind::SchemaAltered, "identity", words).into()
    })
}
