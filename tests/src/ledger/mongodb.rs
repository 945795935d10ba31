//! Effects in collections of MongoDB.

use futures_util::TryStreamExt as _;
use mongodb::bson::{Document, doc};
use mongodb::options::ReturnDocument;
use mongodb::{Collection, Database};
use outbox_contract::MessageId;
use outbox_engine::HandlerError;
use outbox_store_mongodb::MongoDbStore;

use super::{ConnectionOf, Effect, Effects, Failed};

fn database(store: &MongoDbStore) -> Result<Database, Failed> {
    store.client().default_database().ok_or_else(|| "the URL names no database".into())
}

fn effects(store: &MongoDbStore) -> Result<Collection<Document>, Failed> {
    Ok(database(store)?.collection("effects"))
}

fn counters(store: &MongoDbStore) -> Result<Collection<Document>, Failed> {
    Ok(database(store)?.collection("counters"))
}

impl Effects for MongoDbStore {
    type Store = Self;

    fn store(&self) -> &Self {
        self
    }

    async fn make_tables(&self) -> Result<(), Failed> {
        // Before the first write: in a transaction they could not be created on every version.
        for collection in ["counters", "effects"] {
            database(self)?.create_collection(collection).await?;
        }
        Ok(())
    }

    async fn note(&self, tx: &mut ConnectionOf<Self>, key: &str, id: MessageId) -> Result<(), HandlerError> {
        let counted = counters(self)?
            .find_one_and_update(doc! { "_id": key }, doc! { "$inc": { "handled": 1_i64 } })
            .upsert(true)
            .return_document(ReturnDocument::After)
            .session(&mut *tx)
            .await?;
        let number = counted.ok_or("the counter was not made")?.get_i64("handled")?;
        let effect = doc! { "key": key, "number": number, "id": id.to_string() };
        effects(self)?.insert_one(effect).session(&mut *tx).await?;
        Ok(())
    }

    async fn all(&self) -> Result<Vec<Effect>, Failed> {
        let found = effects(self)?.find(doc! {}).sort(doc! { "key": 1, "number": 1 }).await?;
        let found: Vec<Document> = found.try_collect().await?;
        let row = |it: Document| -> Result<Effect, Failed> {
            let (key, id) = (it.get_str("key")?.to_owned(), it.get_str("id")?.to_owned());
            Effect::from_row((key, it.get_i64("number")?, id))
        };
        found.into_iter().map(row).collect()
    }
}
