//! MongoDB: collections, and updates that create a missing document.

use examples_shared::transports::Failed;
use futures_util::TryStreamExt;
use mongodb::bson::{Document, doc};
use mongodb::options::ReturnDocument;
use mongodb::{ClientSession, Collection};
use outbox::mongodb::MongoDbStore;
use outbox::prelude::*;

use super::{Account, Database, OrderRow};

/// Returns a collection of the database that the URL names.
fn collection(client: &mongodb::Client, name: &str) -> Result<Collection<Document>, Failed> {
    let database = client.default_database().ok_or("the URL names no database")?;
    Ok(database.collection(name))
}

async fn make(store: &MongoDbStore, names: &[&str]) -> Result<(), Failed> {
    let database = store.client().default_database().ok_or("the URL names no database")?;
    let there = database.list_collection_names().await?;
    for name in names {
        if !there.iter().any(|other| other == name) {
            database.create_collection(*name).await?;
        }
    }
    Ok(())
}

/// Changes the named document in a transaction, and returns its new state.
async fn change(
    tx: &mut ClientSession,
    name: &str,
    id: &str,
    update: Document,
) -> Result<Document, HandlerError> {
    let collection = collection(&tx.client(), name)?;
    let changed = collection.find_one_and_update(doc! { "_id": id }, update).upsert(true);
    let changed = changed.return_document(ReturnDocument::After).session(tx).await?;
    changed.ok_or_else(|| format!("{id} is not in {name} after it was written").into())
}

async fn all(store: &MongoDbStore, name: &str) -> Result<Vec<Document>, Failed> {
    Ok(collection(store.client(), name)?.find(doc! {}).await?.try_collect().await?)
}

impl Database for MongoDbStore {
    async fn make_shop(&self) -> Result<(), Failed> {
        make(self, &["customers", "orders"]).await
    }

    async fn make_ledger(&self) -> Result<(), Failed> {
        make(self, &["accounts"]).await
    }

    async fn count_event(tx: &mut Self::Connection, customer: &str) -> Result<u32, HandlerError> {
        let counted = change(tx, "customers", customer, doc! { "$inc": { "events": 1_i64 } }).await?;
        Ok(u32::try_from(counted.get_i64("events")?)?)
    }

    async fn write_order(tx: &mut Self::Connection, order: &OrderRow<'_>) -> Result<(), HandlerError> {
        let set = doc! { "customer": order.customer, "state": order.state };
        let update = doc! { "$set": set, "$inc": { "cents": order.cents } };
        change(tx, "orders", order.id, update).await?;
        Ok(())
    }

    async fn book(tx: &mut Self::Connection, customer: &str, cents: i64) -> Result<(), HandlerError> {
        change(tx, "accounts", customer, doc! { "$inc": { "cents": cents, "events": 1_i64 } }).await?;
        Ok(())
    }

    async fn customers(&self) -> Result<Vec<(String, u32)>, Failed> {
        let row = |it: Document| Ok((it.get_str("_id")?.to_owned(), u32::try_from(it.get_i64("events")?)?));
        all(self, "customers").await?.into_iter().map(row).collect()
    }

    async fn cents(&self) -> Result<i64, Failed> {
        let mut sum = 0;
        for order in all(self, "orders").await? {
            sum += order.get_i64("cents")?;
        }
        Ok(sum)
    }

    async fn accounts(&self) -> Result<Vec<Account>, Failed> {
        let account = |it: Document| {
            Ok(Account {
                customer: it.get_str("_id")?.to_owned(),
                cents: it.get_i64("cents")?,
                events: u32::try_from(it.get_i64("events")?)?,
            })
        };
        all(self, "accounts").await?.into_iter().map(account).collect()
    }
}
