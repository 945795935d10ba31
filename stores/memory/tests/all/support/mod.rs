//! Helpers shared by the tests of this crate.

use std::time::Duration;

use outbox_contract::backend::{BucketSet, FetchRequest, Fetched, FetchedRow, LeaseRequest, Leased, RelayId};
use outbox_contract::{KeyId, Message, MessageId, Route, Store, Timestamp, Transactional};
use outbox_store_memory::{MemoryStore, MemoryStoreBuilder, MemoryTx};

pub(crate) const START: Timestamp = Timestamp::from_micros(1_800_000_000_000_000);
pub(crate) const LEASE: Duration = Duration::from_secs(10);

pub(crate) fn builder() -> MemoryStoreBuilder {
    MemoryStore::builder().starting_at(START)
}

/// A message of topic `t`, with an id of its own number.
pub(crate) fn message(key: &str, number: u128) -> Message {
    Message::new("t", "event")
        .unwrap()
        .with_key(key)
        .unwrap()
        .with_id(MessageId::from_uuid(uuid::Uuid::from_u128(number)))
        .with_occurred_at(START)
}

pub(crate) fn key(name: &str) -> KeyId {
    message(name, 0).key_id()
}

pub(crate) async fn append(store: &MemoryStore, tx: &mut MemoryTx, message: Message) {
    store.append(tx, &[message.into()]).await.unwrap();
}

pub(crate) async fn commit(store: &MemoryStore, tx: MemoryTx) {
    store.commit(tx).await.into_result().unwrap();
}

pub(crate) async fn write(store: &MemoryStore, message: Message) {
    let mut tx = store.begin().await.unwrap();
    append(store, &mut tx, message).await;
    commit(store, tx).await;
}

/// The ids, as numbers, and positions of what is to be published.
pub(crate) fn hot(store: &MemoryStore) -> Vec<(i64, u128)> {
    let rows = store.snapshot().hot;
    rows.iter().map(|(_, row)| (row.position.0, row.message.id.as_uuid().as_u128())).collect()
}

pub(crate) fn relay(number: u128) -> RelayId {
    RelayId::from_uuid(uuid::Uuid::from_u128(number))
}

pub(crate) fn request(relay: RelayId) -> LeaseRequest {
    let mut request = LeaseRequest::new(relay, Route::default(), LEASE);
    request.label = "test".into();
    request.fingerprint = 1;
    request
}

pub(crate) async fn beat(store: &MemoryStore, relay: RelayId) -> Leased {
    store.lease(&request(relay)).await.unwrap()
}

pub(crate) async fn fetch(store: &MemoryStore, relay: RelayId) -> Fetched {
    store.fetch(&FetchRequest::new(Route::default(), relay, BucketSet::ALL)).await.unwrap()
}

/// The ids, as numbers, of the messages that a fetch gave to be published.
pub(crate) fn published(fetched: &Fetched) -> Vec<u128> {
    let message = |row: &FetchedRow| match row {
        FetchedRow::Message(stored) => Some(stored.message.id.as_uuid().as_u128()),
        _ => None,
    };
    fetched.rows.iter().filter_map(message).collect()
}

/// Returns true if a future is still not ready when everything else has come to rest. In paused
/// time.
pub(crate) async fn waits<F: Future + Unpin>(future: &mut F) -> bool {
    tokio::time::timeout(Duration::from_millis(1), future).await.is_err()
}
