use mongodb::IndexModel;
use mongodb::bson::{Document, doc};
use mongodb::options::{IndexOptions, ReturnDocument};

use crate::{all, code, database};

#[tokio::test]
async fn indexes_are_made_listed_enforced_and_dropped() {
    let Some((_client, database)) = database().await else { return };
    database.create_collection("a").await.unwrap();
    let collection = database.collection::<Document>("a");
    let unique = IndexOptions::builder().unique(true).name("once".to_owned()).build();
    collection
        .create_index(IndexModel::builder().keys(doc! { "k": 1 }).options(unique).build())
        .await
        .unwrap();
    let partial = IndexOptions::builder().partial_filter_expression(doc! { "due": { "$gt": 0 } }).build();
    collection
        .create_index(IndexModel::builder().keys(doc! { "due": 1 }).options(partial).build())
        .await
        .unwrap();
    let expires = IndexOptions::builder().expire_after(std::time::Duration::from_secs(3_600)).build();
    collection
        .create_index(IndexModel::builder().keys(doc! { "at": 1 }).options(expires).build())
        .await
        .unwrap();
    let mut names = collection.list_index_names().await.unwrap();
    names.sort();
    assert_eq!(names, ["_id_", "at_1", "due_1", "once"]);

    collection.insert_one(doc! { "_id": 1, "k": "x" }).await.unwrap();
    let error = collection.insert_one(doc! { "_id": 2, "k": "x" }).await.unwrap_err();
    assert_eq!(code(&error), Some(11_000), "{error:?}");
    assert!(error.to_string().contains("E11000") && error.to_string().contains("once"), "{error}");
    collection.drop_index("once").await.unwrap();
    collection.insert_one(doc! { "_id": 2, "k": "x" }).await.unwrap();
}

#[tokio::test]
async fn an_unordered_insert_says_which_documents_were_there() {
    let Some((_client, database)) = database().await else { return };
    let collection = database.collection::<Document>("a");
    collection.insert_one(doc! { "_id": 1 }).await.unwrap();
    let many = [0, 1, 2].map(|id| doc! { "_id": id });
    let error = collection.insert_many(many).ordered(false).await.unwrap_err();
    assert_eq!(code(&error), Some(11_000), "{error:?}");
    assert_eq!(all(&collection).await.len(), 3);
}

#[tokio::test]
async fn updates_with_the_servers_clock_pipelines_and_upserts() {
    let Some((_client, database)) = database().await else { return };
    let collection = database.collection::<Document>("a");
    let upsert =
        doc! { "$inc": { "n": 1 }, "$setOnInsert": { "made": true }, "$currentDate": { "at": true } };
    for _ in 0..2 {
        collection.update_one(doc! { "_id": 1 }, upsert.clone()).upsert(true).await.unwrap();
    }
    let found = collection.find_one(doc! {}).await.unwrap().unwrap();
    assert_eq!((found.get_i32("n").unwrap(), found.get_bool("made").unwrap()), (2, true));
    assert!(found.get_datetime("at").is_ok());

    let now = doc! { "$set": { "micros": { "$multiply": [{ "$toLong": "$$NOW" }, 1_000_i64] } } };
    collection.update_one(doc! { "_id": 1 }, vec![now]).await.unwrap();
    let found = collection.find_one(doc! {}).await.unwrap().unwrap();
    assert!(found.get_i64("micros").unwrap() > 1_700_000_000_000_000);

    let raise = doc! { "$set": { "n": { "$add": [{ "$max": ["$n", 10] }, 5] } } };
    let after = collection
        .find_one_and_update(doc! { "_id": 1 }, vec![raise])
        .return_document(ReturnDocument::After)
        .await
        .unwrap()
        .unwrap();
    assert_eq!(after.get_i32("n").unwrap(), 15);
    assert_eq!(collection.delete_many(doc! { "n": 15 }).await.unwrap().deleted_count, 1);
    assert_eq!(collection.count_documents(doc! {}).await.unwrap(), 0);
}

#[tokio::test]
async fn tasks_that_claim_documents_never_claim_one_twice() {
    let Some((_client, database)) = database().await else { return };
    let collection = database.collection::<Document>("a");
    collection.insert_many((0..60).map(|id| doc! { "_id": id, "free": true })).await.unwrap();
    let claim = |collection: mongodb::Collection<Document>| async move {
        let mut claimed = Vec::new();
        let update = doc! { "$set": { "free": false } };
        while let Some(found) = collection
            .find_one_and_update(doc! { "free": true }, update.clone())
            .sort(doc! { "_id": 1 })
            .await
            .unwrap()
        {
            claimed.push(found.get_i32("_id").unwrap());
        }
        claimed
    };
    let tasks: Vec<_> = (0..4).map(|_| tokio::spawn(claim(collection.clone()))).collect();
    let mut claimed = Vec::new();
    for task in tasks {
        claimed.extend(task.await.unwrap());
    }
    claimed.sort_unstable();
    claimed.dedup();
    // A claim may find that all its candidates have gone to others, and end early: none is claimed
    // twice.
    assert!(!claimed.is_empty());
    let taken = collection.count_documents(doc! { "free": false }).await.unwrap();
    assert_eq!(u64::try_from(claimed.len()).unwrap(), taken);
}

#[tokio::test]
async fn a_retryable_write_that_comes_again_is_answered_the_same_and_done_once() {
    let Some((client, database)) = database().await else { return };
    let collection = database.collection::<Document>("a");
    let session = client.start_session().await.unwrap();
    let lsid = session.id().clone();
    let insert = doc! {
        "insert": "a", "documents": [{ "_id": 1 }, { "_id": 2 }], "lsid": lsid.clone(), "txnNumber": 7_i64,
    };
    let first = database.run_command(insert.clone()).await.unwrap();
    let again = database.run_command(insert).await.unwrap();
    assert_eq!((first.get_i32("n").unwrap(), first.get("writeErrors")), (2, None));
    assert_eq!(first.get("n"), again.get("n"));
    assert_eq!(again.get("writeErrors"), None, "done again: {again}");

    let raise = doc! {
        "findAndModify": "a", "query": { "_id": 1 }, "update": { "$inc": { "n": 1 } }, "new": true,
        "lsid": lsid.clone(), "txnNumber": 8_i64,
    };
    for _ in 0..3 {
        let raised = database.run_command(raise.clone()).await.unwrap();
        assert_eq!(raised.get_document("value").unwrap().get_i32("n").unwrap(), 1);
    }
    assert_eq!(all(&collection).await.first(), Some(&doc! { "_id": 1, "n": 1 }));
    let old = doc! { "delete": "a", "deletes": [{ "q": {}, "limit": 1 }], "lsid": lsid, "txnNumber": 7_i64 };
    let error = database.run_command(old).await.unwrap_err();
    assert_eq!(code(&error), Some(225), "{error:?}");
}

#[tokio::test]
async fn a_write_concern_of_more_members_than_there_are_is_not_confirmed() {
    let Some((_client, database)) = database().await else { return };
    let two = mongodb::options::WriteConcern::builder().w(mongodb::options::Acknowledgment::from(2)).build();
    let options = mongodb::options::CollectionOptions::builder().write_concern(two).build();
    let collection = database.collection_with_options::<Document>("a", options);
    let error = collection.insert_one(doc! { "_id": 1 }).await.unwrap_err();
    assert_eq!(code(&error), Some(100), "{error:?}");
}
