//! Positions and numbers that came back, as after a restore or an import: of the stripes, or of
//! messages.

use mongodb::bson::{Document, doc};
use outbox_contract::backend::{LowWater, Position, RelayId};
use outbox_contract::{Admin, Route, Store};
use outbox_store_mongodb::MongoDbStore;
use outbox_testkit::Warnings;

use super::support::{Fixture, append, everything, lease_request, message, messages};

/// Returns the number of messages behind a position.
async fn behind(store: &MongoDbStore, relay: RelayId, after: Position) -> usize {
    let mut request = everything(relay);
    request.after = after;
    messages(store.fetch(&request).await.unwrap().rows).len()
}

/// A mark is what somebody remembers, and the messages are the truth.
#[tokio::test]
async fn what_stands_below_a_mark_is_shown_and_counted() {
    let Some(fixture) = Fixture::new().await else { return };
    let (store, route) = (&fixture.store, Route::default());
    let hot = fixture.collection("outbox_message");
    let request = lease_request(RelayId::new());
    let leased = store.lease(&request).await.unwrap();
    append(store, (0..3).map(|_| message("a"))).await;
    let read = messages(store.fetch(&everything(request.relay)).await.unwrap().rows);
    let mark = read.iter().map(|stored| stored.position).max().unwrap();
    let mut copy: Vec<Document> = Vec::new();
    while let Some(document) = hot.find_one_and_delete(doc! {}).await.unwrap() {
        copy.push(document);
    }
    assert_eq!(copy.len(), 3);
    let covered = leased.leases.iter().map(|lease| (lease.bucket, lease.epoch)).collect();
    let mut saves = request.clone();
    saves.low_water = LowWater::new(mark, covered, leased.life);
    store.lease(&saves).await.unwrap();

    append(store, [message("a")]).await;
    hot.insert_many(copy).await.unwrap();
    assert_eq!(behind(store, request.relay, mark).await, 1);
    let mut below = everything(request.relay);
    below.until = mark;
    assert_eq!(messages(store.fetch_below(&below).await.unwrap().rows).len(), 3);
    assert_eq!(store.backlog(&route).await.unwrap().pending, 4);
}

/// Where the counters of stripes went back, an append takes its position from the clock all the
/// same; and the messages of before are told of.
#[tokio::test]
async fn messages_above_their_counters_are_told_of() {
    let Some(fixture) = Fixture::new().await else { return };
    let store = &fixture.store;
    let (warnings, _captured) = Warnings::capture();
    let relay = lease_request(RelayId::new());
    store.lease(&relay).await.unwrap();
    append(store, [message("a"), message("b"), message("a")]).await;
    let read = messages(store.fetch(&everything(relay.relay)).await.unwrap().rows);
    let mark = read.iter().map(|stored| stored.position).max().unwrap();
    store.check().await.unwrap();
    assert_eq!(warnings.take(), Vec::<String>::new(), "every message is within the counter of its stripe");
    assert_eq!(store.misplaced().await.unwrap(), []);

    let stripes = fixture.collection("outbox_stripe");
    stripes.update_many(doc! {}, doc! { "$set": { "number": 0_i64, "position": 0_i64 } }).await.unwrap();
    store.check().await.unwrap();
    let said = warnings.take().join("\n");
    assert!(said.contains("route=default") && said.contains(" 2 stripes"), "{said:?}");
    let misplaced = store.misplaced().await.unwrap();
    assert!(misplaced.len() == 1 && said.contains(&misplaced[0].text), "{misplaced:?}");
    append(store, [message("a")]).await;
    assert_eq!(behind(store, relay.relay, mark).await, 1, "above all that was before");

    stripes.delete_many(doc! {}).await.unwrap();
    store.check().await.unwrap();
    let said = warnings.take().join("\n");
    assert!(said.contains("route=default") && said.contains(" 2 stripes"), "{said:?}");
}
