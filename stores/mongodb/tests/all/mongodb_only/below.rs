//! Positions and numbers that came back, as after a restore or an import: of the stripes, or of messages.

use mongodb::bson::{Document, doc};
use outbox_contract::{LeaseRequest, LowWater, Position, RelayId, Route, Store};
use outbox_store_mongodb::MongoDbStore;

use super::support::{Fixture, append, everything, lease_request, message, messages};

/// What stands behind a position.
async fn behind(store: &MongoDbStore, relay: RelayId, after: Position) -> usize {
    let mut request = everything(relay);
    request.after = after;
    messages(store.fetch(&request).await.unwrap().rows).len()
}

#[tokio::test]
async fn what_stands_below_a_mark_is_read_once_the_mark_is_set_back() {
    let Some(fixture) = Fixture::new().await else { return };
    let (store, route) = (&fixture.store, Route::default());
    let (hot, stripes) = (fixture.collection("outbox_message"), fixture.collection("outbox_stripe"));
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
    let low_water = LowWater { position: mark, covered, life: leased.life };
    store.lease(&LeaseRequest { low_water: low_water.clone(), ..request.clone() }).await.unwrap();

    // The stripes: an append takes its position from the clock.
    stripes.update_many(doc! {}, doc! { "$set": { "number": 0_i64, "position": 0_i64 } }).await.unwrap();
    append(store, [message("a")]).await;
    assert_eq!(behind(store, request.relay, mark).await, 1);
    assert_eq!(store.backlog(&route).await.unwrap().pending, 1);

    // The messages, with positions of before.
    hot.delete_many(doc! {}).await.unwrap();
    hot.insert_many(copy).await.unwrap();
    assert_eq!(behind(store, request.relay, mark).await, 0);
    assert_eq!(store.backlog(&route).await.unwrap().pending, 0);
    // The relays stop, the marks are set back, the relays start.
    store.give_back(request.relay, &route, &leased.leases, &low_water, true).await.unwrap();
    let marks = doc! { "$set": { "low_waters": vec![0_i64; 256] } };
    fixture.collection("outbox_route").update_one(doc! { "_id": "default" }, marks).await.unwrap();
    assert_eq!(store.backlog(&route).await.unwrap().pending, 3);
    let next = lease_request(RelayId::new());
    let leases = store.lease(&next).await.unwrap().leases;
    assert_eq!(leases.iter().map(|lease| lease.low_water).min(), Some(Position::START));
    assert_eq!(behind(store, next.relay, Position::START).await, 3);
}
