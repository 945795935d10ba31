use mongodb::bson::{Document, doc};
use outbox_servers::mongo_front::{Fault, Happens};
use outbox_servers::{MongoDb, OrSkip as _};

use crate::{all, client, code};

#[tokio::test]
async fn the_next_commands_of_a_name_fail_as_a_test_wants() {
    let Some(shared) = MongoDb::newest().shared().or_skip() else { return };
    if !shared.is_own() {
        return;
    }
    let server = MongoDb::newest().beside(&shared).unwrap();
    let client = client(&server).await;
    let database = client.database(&server.fresh_database());
    let collection = database.collection::<Document>("a");

    let error = Happens::Error { code: 96, labels: vec![] };
    server.fail_next(Fault::of(&["insert"], error));
    assert_eq!(code(&collection.insert_one(doc! { "_id": 1 }).await.unwrap_err()), Some(96));
    collection.insert_one(doc! { "_id": 1 }).await.unwrap();

    // The driver retries a write once: a lost request runs then, a completed one does not run
    // twice.
    server.fail_next(Fault::of(&["insert"], Happens::CloseBefore));
    collection.insert_one(doc! { "_id": 2 }).await.unwrap();
    server.fail_next(Fault::of(&["update"], Happens::CloseAfter));
    collection.update_one(doc! { "_id": 2 }, doc! { "$inc": { "n": 1 } }).await.unwrap();
    assert_eq!(all(&collection).await, [doc! { "_id": 1 }, doc! { "_id": 2, "n": 1 }]);
}

#[tokio::test]
async fn a_commit_whose_answer_is_lost_is_known_to_the_driver_after_asking_again() {
    let Some(shared) = MongoDb::newest().shared().or_skip() else { return };
    if !shared.is_own() {
        return;
    }
    let server = MongoDb::newest().beside(&shared).unwrap();
    let client = client(&server).await;
    let database = client.database(&server.fresh_database());
    let collection = database.collection::<Document>("a");
    for happens in [Happens::CloseBefore, Happens::CloseAfter] {
        let mut session = client.start_session().await.unwrap();
        session.start_transaction().await.unwrap();
        collection
            .insert_one(doc! { "after": happens == Happens::CloseAfter })
            .session(&mut session)
            .await
            .unwrap();
        server.fail_next(Fault::of(&["commitTransaction"], happens));
        session.commit_transaction().await.unwrap();
    }
    assert_eq!(all(&collection).await.len(), 2);

    // Twice lost: the driver gives up, and reports an unknown result.
    let mut session = client.start_session().await.unwrap();
    session.start_transaction().await.unwrap();
    collection.insert_one(doc! {}).session(&mut session).await.unwrap();
    server.fail_next(Fault::of(&["commitTransaction"], Happens::CloseAfter).times(2));
    let error = session.commit_transaction().await.unwrap_err();
    assert!(error.contains_label("UnknownTransactionCommitResult"), "{error:?}");
    server.fail_no_more();
    assert_eq!(all(&collection).await.len(), 3);
}
