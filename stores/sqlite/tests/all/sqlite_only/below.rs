//! Messages below a saved mark, as after a restore, an import, or a sequence of positions that was
//! set back.

use outbox_contract::backend::{BucketSet, FetchRequest, LowWater, Position, RelayId};
use outbox_contract::{Route, Store};

use super::support::{Fixture, append, lease, lease_request, message, messages};

#[tokio::test]
async fn what_stands_below_a_saved_mark_is_read_and_counted() {
    let fixture = Fixture::new().await;
    let (store, route) = (&fixture.store, Route::default());
    let run = async |statements: &'static str| {
        sqlx::raw_sql(statements).execute(store.pool()).await.unwrap();
    };
    let request = lease_request(RelayId::new());
    let leased = lease(store, request.relay).await;
    append(store, (0..30).map(|n| message(&format!("key-{n}"), "old"))).await;
    let covered = leased.leases.iter().map(|lease| (lease.bucket, lease.epoch)).collect();
    run("delete from outbox_message").await;
    let mut saves = request.clone();
    saves.low_water = LowWater::new(Position(30), covered, leased.life);
    store.lease(&saves).await.unwrap();
    append(store, [message("above", "new")]).await;
    assert_eq!(store.backlog(&route).await.unwrap().pending, 1);

    run("delete from outbox_message; update sqlite_sequence set seq = 0 where name = 'outbox_message'").await;
    append(store, (0..10).map(|n| message(&format!("key-{n}"), "new"))).await;
    let mut below = FetchRequest::new(route.clone(), request.relay, BucketSet::ALL);
    below.until = Position(30);
    below.except = vec![Position(1), Position(2)];
    let found = store.fetch_below(&below).await.unwrap();
    assert_eq!((messages(&found).len(), found.rows[0].position()), (8, Position(3)));

    let backlog = store.backlog(&route).await.unwrap();
    assert_eq!((backlog.pending, backlog.pending_is_at_least), (10, false));
    assert!(backlog.oldest_age.is_some(), "{backlog:?}");
    assert_eq!(store.backlog(&Route::new("attic").unwrap()).await.unwrap().pending, 0);
    store.check().await.unwrap();
    run("delete from outbox_message").await;
    assert_eq!(store.backlog(&route).await.unwrap().pending, 0);
}
