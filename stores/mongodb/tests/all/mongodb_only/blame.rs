//! The cause of errors, as a handler's transaction meets them: of what a server really refuses, and
//! of what tests let it answer.

use mongodb::Client;
use mongodb::bson::doc;
use mongodb::error::Error;
use outbox_contract::backend::Blame;
use outbox_contract::{Store, Transactional};
use outbox_servers::mongo_front::{Fault, Happens};
use outbox_store_mongodb::MongoDbStore;

use super::support::{Fixture, LONG, collection_of, options};

#[track_caller]
fn assert_blames(store: &MongoDbStore, error: &Error, blame: Blame) {
    assert_eq!(store.blame(error), blame, "{error}");
}

/// Returns the error of an insert in the user's own transaction during this event.
async fn error_of(fixture: &Fixture, happens: Happens) -> Error {
    let mut session = fixture.session().await;
    fixture.server.fail_next(Fault::of(&["insert"], happens));
    let error = fixture.collection("orders").insert_one(doc! {}).session(&mut session).await.unwrap_err();
    let _ = session.abort_transaction().await;
    error
}

#[tokio::test]
async fn a_code_or_a_label_of_the_server_says_whose_fault_an_error_is() {
    let Some(fixture) = Fixture::alone(options()).await else { return };
    let store = &fixture.store;
    fixture.collection("orders").insert_one(doc! {}).await.unwrap();
    for (blame, codes) in [
        // Other transactions: write conflicts, locks, snapshots, transactions that were ended.
        (Blame::Conflict, &[24, 112, 225, 246, 251, 290][..]),
        // No primary, one that steps down or stops; other members; limits of time, memory, locks,
        // disk; operators; who may connect.
        (Blame::Environment, &[91, 133, 189, 10_058, 10_107, 11_600, 11_602, 13_435, 13_436]),
        (Blame::Environment, &[6, 7, 64, 89, 100, 134, 202, 216, 317, 384, 9_001]),
        (Blame::Environment, &[50, 146, 208, 262, 292, 462, 14_031]),
        (Blame::Environment, &[18, 237, 391, 11_601]),
        // Bad values, rights, tables, documents, duplicates, and unknown codes.
        (Blame::Handler, &[2, 8, 9, 13, 14, 20, 26, 43, 59, 66, 121, 10_334, 11_000, 65_000]),
    ] {
        for code in codes {
            let error = error_of(&fixture, Happens::Error { code: *code, labels: Vec::new() }).await;
            assert_blames(store, &error, blame);
        }
    }
    for (label, code, blame) in [
        ("TransientTransactionError", 65_000, Blame::Conflict),
        ("SystemOverloadedError", 65_000, Blame::Environment),
        // A server that goes down adds it to what it says then.
        ("TransientTransactionError", 11_600, Blame::Environment),
        ("TransientTransactionError", 10_107, Blame::Environment),
    ] {
        let error = error_of(&fixture, Happens::Error { code, labels: vec![label.to_owned()] }).await;
        assert_blames(store, &error, blame);
    }
    for lost in [Happens::CloseBefore, Happens::CloseAfter] {
        assert_blames(store, &error_of(&fixture, lost).await, Blame::Environment);
    }
    tokio::time::timeout(LONG, store.check()).await.unwrap().unwrap();
}

#[tokio::test]
async fn what_a_server_really_refuses_has_a_cause() {
    let Some(fixture) = Fixture::new().await else { return };
    let (store, other) = (&fixture.store, fixture.another().await);
    let (orders, orders_of_other) = (fixture.collection("orders"), collection_of(&other, "orders"));
    orders.insert_one(doc! { "_id": 1, "n": 0 }).await.unwrap();

    let mut session = fixture.session().await;
    let twice = orders.insert_one(doc! { "_id": 1 }).session(&mut session).await.unwrap_err();
    assert_blames(store, &twice, Blame::Handler);
    let _ = session.abort_transaction().await;
    let several = orders.insert_many([doc! { "_id": 2 }, doc! { "_id": 1 }]).await.unwrap_err();
    assert_blames(store, &several, Blame::Handler);
    let wrong = store.client().database("shop").run_command(doc! { "nothing": 1 }).await.unwrap_err();
    assert_blames(store, &wrong, Blame::Handler);

    let change = || doc! { "$set": { "n": 1 } };
    let (mut first, mut second) = (fixture.session().await, other.begin().await.unwrap());
    orders.update_one(doc! { "_id": 1 }, change()).session(&mut first).await.unwrap();
    let conflict =
        orders_of_other.update_one(doc! { "_id": 1 }, change()).session(&mut second).await.unwrap_err();
    assert_blames(store, &conflict, Blame::Conflict);
    first.commit_transaction().await.unwrap();

    let nobody = "mongodb://127.0.0.1:1/shop?serverSelectionTimeoutMS=200&connectTimeoutMS=200";
    let nobody = Client::with_uri_str(nobody).await.unwrap();
    let shop = nobody.database("shop");
    let looking = async { shop.run_command(doc! { "ping": 1 }).await };
    let away = tokio::time::timeout(LONG, looking).await.unwrap().unwrap_err();
    assert_blames(store, &away, Blame::Environment);
    assert_blames(store, &Error::custom("the handler's own"), Blame::Handler);
    assert_eq!(store.blame(&std::fmt::Error), Blame::Handler);
}
