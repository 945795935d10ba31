//! MongoDB: the same in documents.

use examples_shared::transports::Failed;
use futures_util::TryStreamExt;
use mongodb::bson::{Document, doc};
use mongodb::{Client, Collection};
use outbox::mongodb::MongoDbStore;
use outbox::prelude::*;

use super::{Database, State};

/// Returns a collection of the database that the URL names.
fn collection(client: &Client, name: &str) -> Result<Collection<Document>, Failed> {
    let database = client.default_database().ok_or("the URL names no database")?;
    Ok(database.collection(name))
}

/// Creates the collection before any write: on some servers a transaction can't.
async fn make(client: &Client, name: &str) -> Result<(), Failed> {
    let database = client.default_database().ok_or("the URL names no database")?;
    Ok(database.create_collection(name).await?)
}

impl Database for MongoDbStore {
    async fn make_orders(&self) -> Result<(), Failed> {
        make(self.client(), "orders").await
    }

    async fn make_stock(&self, items: i64, each: i64) -> Result<(), Failed> {
        make(self.client(), "stock").await?;
        make(self.client(), "reservations").await?;
        let stock = (0..items).map(|item| doc! { "_id": item, "free": each, "reserved": 0_i64 });
        collection(self.client(), "stock")?.insert_many(stock).await?;
        Ok(())
    }

    async fn write_order(tx: &mut Self::Connection, order: i64, item: i64) -> Result<(), HandlerError> {
        let document = doc! { "_id": order, "item": item, "state": State::Waits as i64 };
        collection(&tx.client(), "orders")?.insert_one(document).session(tx).await?;
        Ok(())
    }

    async fn answer(tx: &mut Self::Connection, order: i64, state: State) -> Result<bool, HandlerError> {
        let waits = doc! { "_id": order, "state": State::Waits as i64 };
        let answer = doc! { "$set": { "state": state as i64 } };
        let answered = collection(&tx.client(), "orders")?.update_one(waits, answer).session(tx).await?;
        Ok(answered.modified_count == 1)
    }

    async fn take(tx: &mut Self::Connection, item: i64) -> Result<bool, HandlerError> {
        let free = doc! { "_id": item, "free": { "$gt": 0_i64 } };
        let take = doc! { "$inc": { "free": -1_i64, "reserved": 1_i64 } };
        let taken = collection(&tx.client(), "stock")?.update_one(free, take).session(tx).await?;
        Ok(taken.modified_count == 1)
    }

    async fn reserve(tx: &mut Self::Connection, order: i64, item: i64) -> Result<(), HandlerError> {
        // No unique order: the example shows that each is reserved once.
        let reservation = doc! { "order": order, "item": item };
        collection(&tx.client(), "reservations")?.insert_one(reservation).session(tx).await?;
        Ok(())
    }

    async fn answered(&self) -> Result<(i64, i64), Failed> {
        let orders = collection(self.client(), "orders")?;
        let count = async |state: State| orders.count_documents(doc! { "state": state as i64 }).await;
        let (confirmed, refused) = (count(State::Confirmed).await?, count(State::Refused).await?);
        Ok((i64::try_from(confirmed)?, i64::try_from(refused)?))
    }

    async fn stock(&self) -> Result<(i64, i64), Failed> {
        let items: Vec<Document> =
            collection(self.client(), "stock")?.find(doc! {}).await?.try_collect().await?;
        let (mut free, mut reserved) = (0, 0);
        for item in items {
            free += item.get_i64("free")?;
            reserved += item.get_i64("reserved")?;
        }
        Ok((free, reserved))
    }

    async fn reservations(&self) -> Result<(i64, i64), Failed> {
        let all: Vec<Document> =
            collection(self.client(), "reservations")?.find(doc! {}).await?.try_collect().await?;
        let mut orders = all.iter().map(|it| it.get_i64("order")).collect::<Result<Vec<_>, _>>()?;
        orders.sort_unstable();
        orders.dedup();
        Ok((i64::try_from(all.len())?, i64::try_from(orders.len())?))
    }
}
