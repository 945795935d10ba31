//! Positions and numbers that came back, as after a restore or an import: of the stripes, or of
//! messages.

use outbox_contract::backend::{BucketSet, FetchRequest, LowWater, Position, RelayId};
use outbox_contract::{Admin, Route, Store};
use outbox_store_mysql::MySqlStore;
use outbox_testkit::Warnings;

use super::support::{append, both, heartbeat, message, messages};

/// Positions of an hour: microseconds times the number of stripes.
const HOUR: i64 = 3_600 * 1_000_000 * 1_024;

/// A look of a relay whose cursor is at this position. How many messages it shows.
async fn below(store: &MySqlStore, relay: RelayId, cursor: Position) -> usize {
    let mut request = FetchRequest::new(Route::default(), relay, BucketSet::ALL);
    request.until = cursor;
    messages(&store.fetch_below(&request).await.unwrap()).len()
}

/// A mark is what somebody remembers, and the messages are the truth.
#[tokio::test]
async fn what_stands_below_a_mark_is_shown_and_counted() {
    for fixture in both().await {
        let (store, route) = (&fixture.store, Route::default());
        let request = heartbeat(RelayId::new());
        let leased = store.lease(&request).await.unwrap();
        append(store, (0..5).map(|_| message("a"))).await;
        let mark = Position(fixture.number("select max(position) from outbox_message").await);
        let covered = leased.leases.iter().map(|lease| (lease.bucket, lease.epoch)).collect();
        let mut saves = request.clone();
        saves.low_water = LowWater::new(mark, covered, leased.life);
        store.lease(&saves).await.unwrap();
        let set_back = format!("update outbox_message set position = position - {HOUR}");
        fixture.run(&set_back).await;
        assert_eq!(below(store, request.relay, mark).await, 5);
        assert_eq!(store.backlog(&route).await.unwrap().pending, 5);
    }
}

/// Where the counters of stripes went back, an append takes its position from the clock all the
/// same; and the messages of before are told of.
#[tokio::test]
async fn messages_above_their_counters_are_told_of() {
    for fixture in both().await {
        let (store, route) = (&fixture.store, Route::default());
        let (warnings, _captured) = Warnings::capture();
        let relay = heartbeat(RelayId::new());
        store.lease(&relay).await.unwrap();
        append(store, (0..3).map(|_| message("a"))).await;
        append(store, [message("b")]).await;
        let mark = Position(fixture.number("select max(position) from outbox_message").await);
        store.check().await.unwrap();
        assert_eq!(warnings.take(), Vec::<String>::new(), "every message is within its stripe's counter");
        assert_eq!(store.misplaced().await.unwrap(), []);

        let set_back =
            "number = 0, position = 0, first_number = 0, first_position = 0, previous_position = 0";
        fixture.run(&format!("update outbox_stripe set {set_back}")).await;
        store.check().await.unwrap();
        let said = warnings.take().join("\n");
        assert!(said.contains("route=default") && said.contains(" 2 stripes"), "{said:?}");
        let misplaced = store.misplaced().await.unwrap();
        assert!(misplaced.len() == 1 && said.contains(&misplaced[0].text), "{misplaced:?}");
        append(store, [message("a")]).await;
        let mut request = FetchRequest::new(route, relay.relay, BucketSet::ALL);
        request.after = mark;
        assert_eq!(messages(&store.fetch(&request).await.unwrap()).len(), 1, "above all that was before");

        // A route that is relayed, and has no counters at all.
        fixture.run("update outbox_message set route = 'audit'; insert into outbox_lease (route, bucket) values ('audit', 0)").await;
        store.check().await.unwrap();
        let said = warnings.take().join("\n");
        assert!(said.contains("route=audit") && said.contains(" 2 stripes"), "{said:?}");
    }
}
