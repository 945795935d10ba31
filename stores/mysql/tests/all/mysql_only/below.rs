//! Positions and numbers that came back, as after a restore or an import: of the stripes, or of messages.

use outbox_contract::{
    BucketSet, FetchRequest, Lease, LeaseRequest, LowWater, Position, RelayId, Route, Store,
};
use outbox_store_mysql::MySqlStore;

use super::support::{append, both, heartbeat, message, messages};

/// What stands behind a position.
async fn behind(store: &MySqlStore, relay: RelayId, after: Position) -> usize {
    let mut request = FetchRequest::new(Route::default(), relay, BucketSet::ALL);
    request.after = after;
    messages(&store.fetch(&request).await.unwrap()).len()
}

fn lowest(leases: &[Lease]) -> Position {
    leases.iter().map(|lease| lease.low_water).min().unwrap()
}

#[tokio::test]
async fn what_stands_below_a_mark_is_read_once_the_mark_is_set_back() {
    for fixture in both().await {
        let (store, route) = (&fixture.store, Route::default());
        let request = heartbeat(RelayId::new());
        let leased = store.lease(&request).await.unwrap();
        append(store, (0..5).map(|_| message("a"))).await;
        let mark = Position(fixture.number("select max(position) from outbox_message").await);
        fixture.run("delete from outbox_message").await;
        let covered = leased.leases.iter().map(|lease| (lease.bucket, lease.epoch)).collect();
        let low_water = LowWater { position: mark, covered, life: leased.life };
        store.lease(&LeaseRequest { low_water: low_water.clone(), ..request.clone() }).await.unwrap();

        // The stripes: an append takes its position from the clock.
        fixture
            .run("update outbox_stripe set number = 0, position = 0, first_number = 0, first_position = 0")
            .await;
        append(store, [message("a")]).await;
        assert_eq!(behind(store, request.relay, mark).await, 1);
        assert_eq!(store.backlog(&route).await.unwrap().pending, 1);

        // The messages: with positions of an hour before.
        fixture.run("update outbox_message set position = position - 3600 * 1000000 * 1024").await;
        store.check().await.unwrap();
        assert_eq!(behind(store, request.relay, mark).await, 0);
        // The relays stop, the marks are set back, the relays start.
        store.give_back(request.relay, &route, &leased.leases, &low_water, true).await.unwrap();
        fixture.run("update outbox_lease set low_water = 0 where route = 'default'").await;
        assert_eq!(store.backlog(&route).await.unwrap().pending, 1);
        let next = heartbeat(RelayId::new());
        let leases = store.lease(&next).await.unwrap().leases;
        assert_eq!(lowest(&leases), Position::START);
        assert_eq!(behind(store, next.relay, Position::START).await, 1);
    }
}
