//! Messages below a saved mark, as after a restore, a move or an import without the sequence of
//! positions.

use std::time::Duration;

use outbox_contract::backend::{
    BucketSet, FetchRequest, FetchedRow, LeaseRequest, Leased, LowWater, Position, Scope,
};
use outbox_contract::{Admin, Route, Store};
use outbox_store_postgres::PostgresStore;
use outbox_testkit::Warnings;
use tokio::time::timeout;

use super::support::{Fixture, LONG, append, lease, lease_request, message, messages};

/// Saves a mark for all buckets that a relay owns.
async fn save(store: &PostgresStore, mut request: LeaseRequest, leased: &Leased, mark: i64) {
    let covered = leased.leases.iter().map(|lease| (lease.bucket, lease.epoch)).collect();
    request.low_water = LowWater::new(Position(mark), covered, leased.life);
    store.lease(&request).await.unwrap();
}

#[tokio::test]
async fn what_stands_below_a_saved_mark_is_read_counted_and_told_of() {
    let Some(fixture) = Fixture::new().await else { return };
    let (store, route) = (&fixture.store, Route::default());
    let request = lease_request(outbox_contract::backend::RelayId::new());
    let leased = lease(store, request.relay).await;
    assert_eq!(leased.leases.len(), 256);
    append(store, (0..30).map(|n| message(&format!("key-{n}")))).await;
    fixture.run("delete from outbox_message").await;
    save(store, request.clone(), &leased, 30).await;
    fixture.run("select setval('outbox_message_position', 1, false)").await;
    append(store, (0..10).map(|n| message(&format!("key-{n}")))).await;
    assert_eq!(fixture.number("select max(position) from outbox_message").await, 10);

    let (warnings, _captured) = Warnings::capture();
    let misplaced = store.misplaced().await.unwrap();
    assert!(misplaced.len() == 1 && misplaced[0].route == "default", "{misplaced:?}");
    assert!(misplaced[0].text.contains("position 1 on stand below 30"), "{misplaced:?}");
    // A check that takes long passes over it.
    let said = async {
        while !warnings.take().join("\n").contains(&misplaced[0].text) {
            store.check().await.unwrap();
        }
    };
    timeout(LONG, said).await.expect("a check says so");

    let mut below = FetchRequest::new(route.clone(), request.relay, BucketSet::ALL);
    below.until = Position(30);
    below.except = vec![Position(1), Position(2)];
    let found = store.fetch_below(&below).await.unwrap();
    assert_eq!(messages(&found).len(), 8);
    assert_eq!((found.rows[0].position(), found.full), (Position(3), false));
    below.muted = vec![Scope::Everything];
    let found = store.fetch_below(&below).await.unwrap();
    assert!(found.rows.iter().all(|row| matches!(row, FetchedRow::Muted(_))), "{found:?}");

    // By a store that has never checked, so that no earlier check counts.
    let other = fixture.another().await;
    let backlog = other.backlog(&route).await.unwrap();
    assert_eq!(backlog.pending, 10);
    assert!(backlog.oldest_age.is_some(), "{backlog:?}");
    let attic = Route::new("attic").unwrap();
    assert_eq!(other.backlog(&attic).await.unwrap().pending, 0);
    // A find is counted until it is gone, and no longer.
    fixture.run("delete from outbox_message").await;
    assert_eq!(other.backlog(&route).await.unwrap().pending, 0);
    assert_eq!(other.misplaced().await.unwrap(), []);
    assert_eq!(other.unserved(Duration::ZERO).await.unwrap(), []);
}
