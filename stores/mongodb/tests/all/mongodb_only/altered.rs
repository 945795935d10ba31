//! Collections that somebody has altered: found by `check`, before a relay works with them.

use mongodb::IndexModel;
use mongodb::bson::{Document, doc};
use outbox_contract::{Store, StoreError, StoreErrorKind, Transactional};

use super::support::{Fixture, lease_request, message};

#[track_caller]
fn assert_says(checked: Result<(), StoreError>, kind: StoreErrorKind, says: &str) {
    let error = checked.unwrap_err();
    assert_eq!(error.kind(), kind, "{error}");
    assert!(error.to_string().contains(says), "{error}");
}

#[tokio::test]
async fn an_index_that_is_missing_is_found_and_made_again() {
    let Some(fixture) = Fixture::new().await else { return };
    let store = &fixture.store;
    for (collection, name) in
        [("outbox_parked", "key"), ("outbox_handled", "handling"), ("outbox_key", "due")]
    {
        fixture.collection(collection).drop_index(name).await.unwrap();
        assert_says(store.check().await, StoreErrorKind::SchemaAltered, collection);
        store.migrate().await.unwrap();
        store.check().await.unwrap();
    }
}

#[tokio::test]
async fn an_index_that_was_made_otherwise_is_refused() {
    let Some(fixture) = Fixture::new().await else { return };
    let parked = fixture.collection("outbox_parked");
    parked.drop_index("key").await.unwrap();
    let options = mongodb::options::IndexOptions::builder().name("key".to_owned()).build();
    let other = IndexModel::builder().keys(doc! { "topic": 1 }).options(options).build();
    parked.create_index(other).await.unwrap();
    assert_says(fixture.store.check().await, StoreErrorKind::SchemaAltered, "topic");
}

#[tokio::test]
async fn a_collection_that_is_missing_is_found() {
    let Some(fixture) = Fixture::new().await else { return };
    fixture.collection("outbox_dead").drop().await.unwrap();
    assert_says(fixture.store.check().await, StoreErrorKind::SchemaAltered, "outbox_dead");
}

#[tokio::test]
async fn collections_of_a_newer_version_are_left_alone() {
    let Some(fixture) = Fixture::new().await else { return };
    fixture.collection("outbox_schema").insert_one(doc! { "_id": 99, "name": "later" }).await.unwrap();
    assert_says(fixture.store.check().await, StoreErrorKind::SchemaTooNew, "99");
    assert_says(fixture.store.migrate().await, StoreErrorKind::SchemaTooNew, "upgrade");
}

#[tokio::test]
async fn nothing_is_done_in_a_database_that_was_never_migrated() {
    let Some(fixture) = Fixture::new().await else { return };
    fixture.store.client().default_database().unwrap().drop().await.unwrap();
    let store = fixture.another().await;
    let mut tx = store.begin().await.unwrap();
    let error = store.append(&mut tx, &[message("a").into()]).await.unwrap_err();
    assert!(error.to_string().contains("call `migrate`"), "{error}");
    let leased = store.lease(&lease_request(outbox_contract::backend::RelayId::new())).await;
    assert_says(leased.map(drop), StoreErrorKind::NotMigrated, "call `migrate`");
    let there = store.client().default_database().unwrap().list_collection_names().await.unwrap();
    assert!(there.is_empty(), "{there:?}");
}

#[tokio::test]
async fn a_route_that_was_damaged_is_no_panic() {
    let Some(fixture) = Fixture::new().await else { return };
    let routes = fixture.collection("outbox_route");
    let damage = doc! { "$set": { "epochs": [1_i64] } };
    routes.update_one(doc! { "_id": "default" }, damage).await.unwrap();
    let leased = fixture.store.lease(&lease_request(outbox_contract::backend::RelayId::new())).await;
    assert_says(leased.map(drop), StoreErrorKind::SchemaAltered, "default");
    routes.replace_one(doc! { "_id": "default" }, Document::new()).await.unwrap();
    fixture.store.lease(&lease_request(outbox_contract::backend::RelayId::new())).await.unwrap_err();
}
