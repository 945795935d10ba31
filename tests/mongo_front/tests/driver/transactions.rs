use mongodb::ClientSession;
use mongodb::bson::{Document, doc};

use crate::{all, code, database, is_conflict};

async fn begun(client: &mongodb::Client) -> ClientSession {
    let mut session = client.start_session().await.unwrap();
    session.start_transaction().await.unwrap();
    session
}

#[tokio::test]
async fn a_transaction_over_two_collections_is_seen_inside_and_after_its_commit_outside() {
    let Some((client, database)) = database().await else { return };
    let (a, b) = (database.collection::<Document>("a"), database.collection::<Document>("b"));
    for collection in [&a, &b] {
        collection.insert_one(doc! { "_id": 0 }).await.unwrap();
    }
    let mut session = begun(&client).await;
    a.insert_one(doc! { "_id": 1 }).session(&mut session).await.unwrap();
    b.insert_one(doc! { "_id": 2 }).session(&mut session).await.unwrap();
    assert_eq!(all(&a).await.len() + all(&b).await.len(), 2, "seen before the commit");
    let inside = b.find_one(doc! { "_id": 2 }).session(&mut session).await.unwrap();
    assert!(inside.is_some());
    session.commit_transaction().await.unwrap();
    assert_eq!(all(&a).await, [doc! { "_id": 0 }, doc! { "_id": 1 }]);
    assert_eq!(all(&b).await, [doc! { "_id": 0 }, doc! { "_id": 2 }]);
}

#[tokio::test]
async fn an_aborted_transaction_leaves_nothing() {
    let Some((client, database)) = database().await else { return };
    let collection = database.collection::<Document>("a");
    collection.insert_one(doc! { "_id": 0 }).await.unwrap();
    let mut session = begun(&client).await;
    collection.insert_one(doc! { "_id": 1 }).session(&mut session).await.unwrap();
    session.abort_transaction().await.unwrap();
    assert_eq!(all(&collection).await, [doc! { "_id": 0 }]);
}

#[tokio::test]
async fn a_duplicate_key_aborts_the_transaction() {
    let Some((client, database)) = database().await else { return };
    let collection = database.collection::<Document>("a");
    collection.insert_one(doc! { "_id": 0 }).await.unwrap();
    let mut session = begun(&client).await;
    collection.insert_one(doc! { "_id": 1 }).session(&mut session).await.unwrap();
    let error = collection.insert_one(doc! { "_id": 0 }).session(&mut session).await.unwrap_err();
    assert_eq!(code(&error), Some(11_000), "{error:?}");
    let error = collection.insert_one(doc! { "_id": 2 }).session(&mut session).await.unwrap_err();
    assert_eq!(code(&error), Some(251), "{error:?}");
    let error = session.commit_transaction().await.unwrap_err();
    assert_eq!(code(&error), Some(251), "{error:?}");
    assert_eq!(all(&collection).await, [doc! { "_id": 0 }]);
}

#[tokio::test]
async fn two_transactions_that_write_one_document_conflict() {
    let Some((client, database)) = database().await else { return };
    let collection = database.collection::<Document>("a");
    collection.insert_one(doc! { "_id": 0, "n": 0 }).await.unwrap();
    let (mut first, mut second) = (begun(&client).await, begun(&client).await);
    let raise = doc! { "$inc": { "n": 1 } };
    collection.update_one(doc! { "_id": 0 }, raise.clone()).session(&mut first).await.unwrap();
    let error = collection.update_one(doc! { "_id": 0 }, raise).session(&mut second).await.unwrap_err();
    is_conflict(&error);
    first.commit_transaction().await.unwrap();
    assert_eq!(all(&collection).await, [doc! { "_id": 0, "n": 1 }]);
}

#[tokio::test]
async fn two_transactions_that_insert_one_key_conflict_or_are_told_of_the_duplicate() {
    let Some((client, database)) = database().await else { return };
    let collection = database.collection::<Document>("a");
    collection.insert_one(doc! { "_id": 0 }).await.unwrap();
    let (mut first, mut second) = (begun(&client).await, begun(&client).await);
    collection.insert_one(doc! { "_id": 1 }).session(&mut first).await.unwrap();
    let error = collection.insert_one(doc! { "_id": 1 }).session(&mut second).await.unwrap_err();
    is_conflict(&error);
    first.commit_transaction().await.unwrap();
    assert_eq!(all(&collection).await.len(), 2);
}

#[tokio::test]
async fn a_transaction_reads_one_snapshot_and_conflicts_with_what_came_after_it() {
    let Some((client, database)) = database().await else { return };
    let collection = database.collection::<Document>("a");
    collection.insert_one(doc! { "_id": 0, "n": 0 }).await.unwrap();
    let mut session = begun(&client).await;
    let read = collection.find_one(doc! { "_id": 0 }).session(&mut session).await.unwrap().unwrap();
    collection.update_one(doc! { "_id": 0 }, doc! { "$inc": { "n": 1 } }).await.unwrap();
    collection.insert_one(doc! { "_id": 1 }).await.unwrap();
    let again = collection.find_one(doc! { "_id": 0 }).session(&mut session).await.unwrap().unwrap();
    assert_eq!(read, again);
    assert_eq!(collection.find_one(doc! { "_id": 1 }).session(&mut session).await.unwrap(), None);
    let stale = collection.update_one(doc! { "_id": 0 }, doc! { "$inc": { "n": 1 } }).session(&mut session);
    is_conflict(&stale.await.unwrap_err());
    assert_eq!(all(&collection).await, [doc! { "_id": 0, "n": 1 }, doc! { "_id": 1 }]);
}

#[tokio::test]
async fn a_plain_write_waits_for_the_transaction_that_holds_its_document() {
    let Some((client, database)) = database().await else { return };
    let collection = database.collection::<Document>("a");
    collection.insert_one(doc! { "_id": 0, "n": 0 }).await.unwrap();
    let mut session = begun(&client).await;
    let raise = doc! { "$inc": { "n": 1 } };
    collection.update_one(doc! { "_id": 0 }, raise.clone()).session(&mut session).await.unwrap();
    let plain = tokio::spawn({
        let (collection, raise) = (collection.clone(), raise.clone());
        async move { collection.update_one(doc! { "_id": 0 }, raise).await }
    });
    // The plain write may arrive while the document is held or after: both count.
    session.commit_transaction().await.unwrap();
    plain.await.unwrap().unwrap();
    assert_eq!(all(&collection).await, [doc! { "_id": 0, "n": 2 }]);
}

#[tokio::test]
async fn transactions_that_raise_one_counter_all_count_through_the_drivers_retries() {
    let Some((client, database)) = database().await else { return };
    let collection = database.collection::<Document>("a");
    collection.insert_one(doc! { "_id": 0, "n": 0 }).await.unwrap();
    let task = |client: mongodb::Client, collection: mongodb::Collection<Document>| async move {
        for _ in 0..5 {
            loop {
                let mut session = begun(&client).await;
                let raised = collection
                    .update_one(doc! { "_id": 0 }, doc! { "$inc": { "n": 1 } })
                    .session(&mut session)
                    .await;
                match raised {
                    Ok(_) => {
                        session.commit_transaction().await.unwrap();
                        break;
                    }
                    Err(error) => is_conflict(&error),
                }
                let _ = session.abort_transaction().await;
            }
        }
    };
    let tasks: Vec<_> = (0..4).map(|_| tokio::spawn(task(client.clone(), collection.clone()))).collect();
    for task in tasks {
        task.await.unwrap();
    }
    assert_eq!(all(&collection).await, [doc! { "_id": 0, "n": 20 }]);
}

#[tokio::test]
async fn a_commit_that_is_asked_for_again_is_answered_the_same() {
    let Some((client, database)) = database().await else { return };
    let collection = database.collection::<Document>("a");
    collection.insert_one(doc! { "_id": 0 }).await.unwrap();
    let mut session = begun(&client).await;
    collection.insert_one(doc! { "_id": 1 }).session(&mut session).await.unwrap();
    session.commit_transaction().await.unwrap();
    session.commit_transaction().await.unwrap();
    assert_eq!(all(&collection).await.len(), 2);
}

#[tokio::test]
async fn a_collection_can_be_made_by_a_transaction() {
    let Some((client, database)) = database().await else { return };
    let collection = database.collection::<Document>("new");
    let mut session = begun(&client).await;
    collection.insert_one(doc! { "_id": 1 }).session(&mut session).await.unwrap();
    session.commit_transaction().await.unwrap();
    assert_eq!(all(&collection).await, [doc! { "_id": 1 }]);
}
