//! Shared parts of the tests of SQL stores. Each store's tests take this file in.

use std::sync::Arc;
use std::time::Duration;

use outbox_contract::admin::Filter;
use outbox_contract::backend::{
    BucketSet, DueRequest, FetchRequest, Fetched, FetchedRow, LeaseRequest, Leased, Position, RelayId, Stored,
};
use outbox_contract::{AdminExt, Message, Outgoing, Route, Store, Transactional};

/// Appends messages and commits.
pub(crate) async fn append<S: Transactional>(store: &S, messages: impl IntoIterator<Item = Message>) {
    let outgoing: Vec<Outgoing> = messages.into_iter().map(Outgoing::from).collect();
    let mut tx = store.begin().await.unwrap();
    store.append(&mut tx, &outgoing).await.unwrap();
    store.commit(tx).await.into_result().unwrap();
}

/// The heartbeat request of a relay on the route `default`, for leases of an hour.
pub(crate) fn lease_request(relay: RelayId) -> LeaseRequest {
    let mut request = LeaseRequest::new(relay, Route::default(), Duration::from_secs(3_600));
    request.label = "test".to_owned();
    request
}

pub(crate) async fn lease(store: &impl Store, relay: RelayId) -> Leased {
    store.lease(&lease_request(relay)).await.unwrap()
}

/// A relay that owns every bucket.
pub(crate) async fn relay(store: &impl Store) -> RelayId {
    let relay = RelayId::new();
    assert_eq!(lease(store, relay).await.leases.len(), 256);
    relay
}

pub(crate) async fn fetch(store: &impl Store, relay: RelayId) -> Fetched {
    store.fetch(&FetchRequest::new(Route::default(), relay, BucketSet::ALL)).await.unwrap()
}

/// Returns the messages of an answer that has nothing else.
pub(crate) fn messages(fetched: &Fetched) -> Vec<Arc<Stored>> {
    fetched
        .rows
        .iter()
        .map(|row| match row {
            FetchedRow::Message(stored) => Arc::clone(stored),
            other => panic!("expected a message, got {other:?}"),
        })
        .collect()
}

/// The request of a relay on the route `default` for due keys.
pub(crate) fn due_request(relay: RelayId) -> DueRequest {
    let mut request = DueRequest::new(Route::default(), relay, BucketSet::ALL);
    request.keys = 10;
    request.messages = 10;
    request.bytes = 1_000_000;
    request
}

/// Returns the positions of all dead letters.
pub(crate) async fn dead(store: &impl Store) -> Vec<i64> {
    let dead = store.dead_letters(&Filter::all_routes()).await.unwrap();
    dead.iter().map(|letter| letter.stored.position.0).collect()
}

/// Returns the last digits of the ids of all messages that wait, in order.
pub(crate) async fn waiting(store: &impl Store) -> Vec<u64> {
    let read = messages(&fetch(store, relay(store).await).await);
    read.iter().map(|stored| stored.message.id.to_string()[24..].parse().unwrap()).collect()
}

/// Returns the numbers of messages on each page of a table that can be browsed.
pub(crate) async fn pages(store: &impl Store, table: &str) -> Vec<usize> {
    let mut pages = Vec::new();
    loop {
        let filter = Filter { offset: pages.iter().sum(), ..Filter::all_routes() };
        let page = match table {
            "outbox_parked" => store.parked(&filter).await.unwrap().len(),
            "outbox_dead" => store.dead_letters(&filter).await.unwrap().len(),
            "outbox_history" => store.history(&filter).await.unwrap().len(),
            _ => store.scheduled(&filter).await.unwrap().len(),
        };
        if page == 0 {
            return pages;
        }
        pages.push(page);
    }
}

/// Asserts that a fetch walks over 200,000 positions at most. Rows of another route are at 1, 3 and
/// 900,000, and those of the relay's at 1,100,001 and 1,300,001.
pub(crate) async fn assert_fetches_walk(store: &impl Store) {
    let relay = relay(store).await;
    let mut request = FetchRequest::new(Route::default(), relay, BucketSet::ALL);
    let mut shown = Vec::new();
    for _ in 0..10 {
        let fetched = store.fetch(&request).await.unwrap();
        shown.push((
            fetched.rows.iter().map(|row| row.position().0).collect::<Vec<_>>(),
            fetched.full,
            fetched.reached.0,
        ));
        if !fetched.full {
            break;
        }
        assert!(matches!(fetched.rows.last(), Some(FetchedRow::Muted(_))), "{fetched:?}");
        request.after = fetched.rows.last().unwrap().position();
    }
    let walked = [
        (vec![200_001], true, 0),
        (vec![1_100_000], true, 0),
        (vec![1_100_001, 1_300_001], false, 1_300_001),
    ];
    assert_eq!(shown, walked);

    // A requested bound, and one of rows, come first.
    request.after = Position::START;
    request.until = Position(10);
    let fetched = store.fetch(&request).await.unwrap();
    assert_eq!((fetched.rows.len(), fetched.full, fetched.reached), (0, false, Position(10)));
    (request.after, request.until, request.limit) = (Position(1_099_999), Position::END, 1);
    let fetched = store.fetch(&request).await.unwrap();
    assert_eq!(
        (fetched.rows.len(), fetched.rows[0].position(), fetched.full),
        (1, Position(1_100_001), true)
    );
}
