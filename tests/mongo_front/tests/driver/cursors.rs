use futures_util::TryStreamExt as _;
use mongodb::bson::{Document, doc};

use crate::{code, database};

async fn numbers(collection: &mongodb::Collection<Document>) {
    collection
        .insert_many((0..500).map(|id| doc! { "_id": id, "back": 500 - id, "of": id % 7 }))
        .await
        .unwrap();
}

#[tokio::test]
async fn a_result_comes_in_pages_in_order() {
    let Some((_client, database)) = database().await else { return };
    let collection = database.collection::<Document>("a");
    numbers(&collection).await;
    for (sort, first) in [(doc! { "_id": 1 }, 0), (doc! { "back": 1 }, 499)] {
        let found = collection.find(doc! {}).sort(sort).batch_size(33).await.unwrap();
        let found: Vec<Document> = found.try_collect().await.unwrap();
        let ids: Vec<i32> = found.iter().map(|document| document.get_i32("_id").unwrap()).collect();
        assert_eq!((ids.len(), ids.first()), (500, Some(&first)));
        assert!(ids.is_sorted() || ids.iter().rev().is_sorted());
    }
    let found = collection.find(doc! { "of": 3 }).batch_size(5).await.unwrap();
    assert_eq!(found.try_collect::<Vec<Document>>().await.unwrap().len(), 71);
}

#[tokio::test]
async fn many_open_cursors_do_not_disturb_each_other() {
    let Some((_client, database)) = database().await else { return };
    let collection = database.collection::<Document>("a");
    numbers(&collection).await;
    let mut open = Vec::new();
    for _ in 0..10 {
        open.push(collection.find(doc! {}).sort(doc! { "back": 1 }).batch_size(100).await.unwrap());
    }
    for cursor in open {
        assert_eq!(cursor.try_collect::<Vec<Document>>().await.unwrap().len(), 500);
    }
}

#[tokio::test]
async fn groups_are_made_and_a_cursor_in_a_transaction_reads_on() {
    let Some((client, database)) = database().await else { return };
    let collection = database.collection::<Document>("a");
    numbers(&collection).await;
    let group = doc! { "$group": { "_id": "$of", "count": { "$sum": 1 } } };
    let groups = collection.aggregate([group, doc! { "$sort": { "_id": 1 } }]).await.unwrap();
    let groups: Vec<Document> = groups.try_collect().await.unwrap();
    assert_eq!(groups.first(), Some(&doc! { "_id": 0, "count": 72 }));

    let mut session = client.start_session().await.unwrap();
    session.start_transaction().await.unwrap();
    let sort = doc! { "back": 1 };
    let mut found = collection.find(doc! {}).sort(sort).batch_size(50).session(&mut session).await.unwrap();
    let found: Vec<Document> = found.stream(&mut session).try_collect().await.unwrap();
    assert_eq!(found.len(), 500);
    session.commit_transaction().await.unwrap();
}

#[tokio::test]
async fn a_cursor_that_is_not_there_is_said_so() {
    let Some((_client, database)) = database().await else { return };
    let error = database.run_command(doc! { "getMore": 12_345_i64, "collection": "a" }).await.unwrap_err();
    assert_eq!(code(&error), Some(43), "{error:?}");
}

#[tokio::test]
async fn change_streams_are_refused() {
    let Some((_client, database)) = database().await else { return };
    let collection = database.collection::<Document>("a");
    collection.insert_one(doc! { "_id": 1 }).await.unwrap();
    let error = collection.watch().await.unwrap_err();
    assert!(code(&error).is_some(), "{error:?}");
}
