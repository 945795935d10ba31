//! Helpers shared by the tests: a store in a database of its own, messages, and a relay that owns
//! everything.

use std::time::Duration;

use mongodb::bson::Document;
use mongodb::{ClientSession, Collection};
use outbox_contract::backend::{BucketSet, Epoch, FetchRequest, FetchedRow, LeaseRequest, RelayId, Stored};
use outbox_contract::{KeyId, Message, Outgoing, Route, Store, Transactional};
use outbox_servers::{MongoDb, MongoDbServer, OrSkip};
use outbox_store_mongodb::{MongoDbOptions, MongoDbStore};

/// Longer than anything takes that a test waits for, on however slow a machine.
pub(crate) const LONG: Duration = Duration::from_secs(120);

/// A migrated store in a database of its own, on a server that tests share.
pub(crate) struct Fixture {
    pub(crate) server: MongoDbServer,
    pub(crate) url: String,
    pub(crate) store: MongoDbStore,
}

impl Fixture {
    /// None: there is no server, and the test skips.
    pub(crate) async fn new() -> Option<Self> {
        Some(Self::on(MongoDb::newest().shared().or_skip()?, options()).await)
    }

    /// With a front of the test's own, for faults and for being killed. It is never a server that
    /// was given by URL.
    pub(crate) async fn alone(options: MongoDbOptions) -> Option<Self> {
        let kind = outbox_servers::mongo_front::Options::default();
        let engine = MongoDb::newest().options(kind.clone()).shared().or_skip()?;
        let server = MongoDb::newest().options(kind).beside(&engine).or_skip()?;
        Some(Self::on(server, options).await)
    }

    async fn on(server: MongoDbServer, options: MongoDbOptions) -> Self {
        let url = in_database(&server.url(), &server.fresh_database());
        let store = open(&url, options).await;
        store.migrate().await.unwrap();
        Self { server, url, store }
    }

    /// The store as another program sees it.
    pub(crate) async fn another(&self) -> MongoDbStore {
        open(&self.url, self.store.options().clone()).await
    }

    pub(crate) fn collection(&self, name: &str) -> Collection<Document> {
        collection_of(&self.store, name)
    }

    /// A session of the user's own, in a transaction.
    pub(crate) async fn session(&self) -> ClientSession {
        let mut session = self.store.client().start_session().await.unwrap();
        session.start_transaction().await.unwrap();
        session
    }
}

/// A collection by the client of a store: a session can be used with its own client only.
pub(crate) fn collection_of(store: &MongoDbStore, name: &str) -> Collection<Document> {
    store.client().default_database().unwrap().collection(name)
}

/// A URL with a database in it, which has none.
pub(crate) fn in_database(url: &str, name: &str) -> String {
    url.replacen("/?", &format!("/{name}?"), 1)
}

/// Options under which no slow machine changes what comes of a test.
pub(crate) fn options() -> MongoDbOptions {
    let mut options = MongoDbOptions::default();
    options.conflict_timeout = LONG;
    options.server_selection_timeout = LONG;
    options
}

pub(crate) async fn open(url: &str, options: MongoDbOptions) -> MongoDbStore {
    MongoDbStore::connect_with(url, options).await.unwrap()
}

pub(crate) fn message(key: &str) -> Message {
    Message::new("orders", "order.placed").unwrap().with_key(key).unwrap().with_payload("{}")
}

/// Appends messages and commits.
pub(crate) async fn append(store: &MongoDbStore, messages: impl IntoIterator<Item = Message>) {
    let outgoing: Vec<Outgoing> = messages.into_iter().map(Outgoing::from).collect();
    let mut tx = store.begin().await.unwrap();
    store.append(&mut tx, &outgoing).await.unwrap();
    store.commit(tx).await.into_result().unwrap();
}

/// Returns the heartbeat request of a relay on the route `default`.
pub(crate) fn lease_request(relay: RelayId) -> LeaseRequest {
    let mut request = LeaseRequest::new(relay, Route::default(), Duration::from_secs(3_600));
    request.label = "test".to_owned();
    request
}

/// A relay that owns every bucket.
pub(crate) async fn relay(store: &MongoDbStore) -> RelayId {
    let relay = RelayId::new();
    assert_eq!(store.lease(&lease_request(relay)).await.unwrap().leases.len(), 256);
    relay
}

/// The epoch under which a relay owns a key's bucket.
pub(crate) async fn epoch(store: &MongoDbStore, relay: RelayId, key: &KeyId) -> Epoch {
    let leased = store.lease(&lease_request(relay)).await.unwrap();
    leased.leases.iter().find(|lease| lease.bucket == key.bucket()).unwrap().epoch
}

pub(crate) fn everything(relay: RelayId) -> FetchRequest {
    FetchRequest::new(Route::default(), relay, BucketSet::ALL)
}

pub(crate) async fn fetch(store: &MongoDbStore, relay: RelayId) -> Vec<FetchedRow> {
    store.fetch(&everything(relay)).await.unwrap().rows
}

/// The messages of an answer that has nothing else.
pub(crate) fn messages(rows: Vec<FetchedRow>) -> Vec<std::sync::Arc<Stored>> {
    let message = |row| match row {
        FetchedRow::Message(stored) => stored,
        other => panic!("expected a message, got {other:?}"),
    };
    rows.into_iter().map(message).collect()
}
