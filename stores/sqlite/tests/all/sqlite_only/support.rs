//! Shared parts of the tests: a store in a directory of its own, messages, a relay that owns
//! everything.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use outbox_contract::backend::{
    BucketSet, DueRequest, FetchRequest, Fetched, FetchedRow, LeaseRequest, Leased, RelayId, Stored,
};
use outbox_contract::{Message, Outgoing, Route, Store, Transactional};
use outbox_store_sqlite::SqliteStore;
use tempfile::TempDir;

/// A migrated store in a file of its own.
pub(crate) struct Fixture {
    pub(crate) directory: TempDir,
    pub(crate) store: SqliteStore,
}

impl Fixture {
    pub(crate) async fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let store = SqliteStore::open(directory.path().join("outbox.db")).await.unwrap();
        store.migrate().await.unwrap();
        Self { directory, store }
    }

    pub(crate) fn path(&self) -> PathBuf {
        self.directory.path().join("outbox.db")
    }
}

pub(crate) fn message(key: &str, text: &str) -> Message {
    Message::new("orders", "order.placed")
        .unwrap()
        .with_key(key)
        .unwrap()
        .with_payload(text.to_owned().into_bytes())
}

/// Appends messages and commits.
pub(crate) async fn append(store: &SqliteStore, messages: impl IntoIterator<Item = Message>) {
    let outgoing: Vec<Outgoing> = messages.into_iter().map(Outgoing::from).collect();
    let mut tx = store.begin().await.unwrap();
    store.append(&mut tx, &outgoing).await.unwrap();
    store.commit(tx).await.into_result().unwrap();
}

/// The heartbeat request of a relay on the route `default`.
pub(crate) fn lease_request(relay: RelayId) -> LeaseRequest {
    let mut request = LeaseRequest::new(relay, Route::default(), Duration::from_secs(60));
    request.label = "test".to_owned();
    request
}

pub(crate) async fn lease(store: &SqliteStore, relay: RelayId) -> Leased {
    store.lease(&lease_request(relay)).await.unwrap()
}

/// A relay that owns every bucket.
pub(crate) async fn relay(store: &SqliteStore) -> RelayId {
    let relay = RelayId::new();
    assert_eq!(lease(store, relay).await.leases.len(), 256);
    relay
}

pub(crate) async fn fetch(store: &SqliteStore, relay: RelayId) -> Fetched {
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
