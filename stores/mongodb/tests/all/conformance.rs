//! The suite that every store must pass. A fresh database for each test, on the server that is
//! given by URL, or on the stand-in.

use std::sync::Arc;
use std::time::Duration;

use futures_util::TryStreamExt;
use mongodb::bson::{Document, doc};
use outbox_servers::{MongoDb, MongoDbServer, OrSkip};
use outbox_store_mongodb::{MongoDbOptions, MongoDbStore};
use outbox_testkit::store_suite::{Capability, StoreHarness};

async fn open(url: &str) -> Arc<MongoDbStore> {
    open_with(url, MongoDbOptions::default()).await
}

async fn open_with(url: &str, mut options: MongoDbOptions) -> Arc<MongoDbStore> {
    options.history = Some(Duration::from_secs(3_600));
    // A test runs as long as it has to, on however slow a machine.
    options.conflict_timeout = Duration::from_secs(100);
    options.server_selection_timeout = Duration::from_secs(100);
    Arc::new(MongoDbStore::connect_with(url, options).await.expect("the server takes connections"))
}

struct Subject {
    url: String,
    store: Arc<MongoDbStore>,
    _server: MongoDbServer,
}

impl StoreHarness for Subject {
    type Store = MongoDbStore;
    const LACKS: &'static [Capability] = &[Capability::LastPosition];

    async fn fresh() -> Self {
        let server = MongoDb::newest().shared().expect("it was there when it was asked for");
        let url = in_database(&server.url(), &server.fresh_database());
        Self { store: open(&url).await, url, _server: server }
    }

    fn store(&self) -> Arc<MongoDbStore> {
        Arc::clone(&self.store)
    }

    async fn as_another_process(&self) -> Arc<MongoDbStore> {
        open(&self.url).await
    }

    async fn as_another_process_that_keeps_ids(&self, kept: Duration) -> Arc<MongoDbStore> {
        let mut options = MongoDbOptions::default();
        options.handled_ids_kept = kept;
        open_with(&self.url, options).await
    }

    async fn refuse_audit(&self) {
        let database = self.store.client().default_database().expect("the URL names a database");
        let never = doc! { "collMod": "outbox_audit", "validator": { "never": { "$exists": true } } };
        database.run_command(never).await.expect("the collection is there");
    }

    /// The server's clock is not the tests' own: the ends of lives, leases and roles are moved
    /// instead.
    async fn set_clock_back(&self, by: Duration) {
        let by = i64::try_from(by.as_micros()).expect("not that long");
        let database = self.store.client().default_database().expect("the URL names a database");
        let routes = database.collection::<Document>("outbox_route");
        let found = routes.find(doc! {}).await.expect("routes can be read");
        let found: Vec<Document> = found.try_collect().await.expect("routes can be read");
        for mut route in found {
            for relay in route.get_array_mut("relays").expect("a route has its relays") {
                let relay = relay.as_document_mut().expect("a relay is a document");
                let ends = relay.get_i64("expires_at").expect("its life has an end");
                relay.insert("expires_at", ends + by);
            }
            let id = doc! { "_id": route.get("_id").cloned() };
            routes.replace_one(id, route).await.expect("the route can be written");
        }
        let roles = database.collection::<Document>("outbox_role");
        roles
            .update_many(doc! {}, doc! { "$inc": { "expires_at": by } })
            .await
            .expect("roles can be written");
    }

    async fn restore_parked(&self) {
        let database = self.store.client().default_database().expect("the URL names a database");
        let parked = database.collection::<Document>("outbox_parked");
        let found = parked.find(doc! {}).await.expect("parked messages can be read");
        let found: Vec<Document> = found.try_collect().await.expect("parked messages can be read");
        for mut row in found {
            let mut field = |name| row.remove(name).expect("a parked message has it");
            let name = doc! { "route": field("route"), "position": field("position"), "id": field("id") };
            for other in ["_id", "order_key", "parked_at"] {
                field(other);
            }
            row.insert("_id", name);
            let hot = database.collection::<Document>("outbox_message");
            hot.insert_one(row).await.expect("messages can be written");
        }
    }

    async fn spoil_parked(&self, topic: &str) {
        let database = self.store.client().default_database().expect("the URL names a database");
        let parked = database.collection::<Document>("outbox_parked");
        let spoil = doc! { "$set": { "headers": "x" } };
        parked.update_many(doc! { "topic": topic }, spoil).await.expect("messages can be written");
    }

    async fn release_by_hand(&self) {
        let database = self.store.client().default_database().expect("the URL names a database");
        let keys = database.collection::<Document>("outbox_key");
        let release = doc! { "$set": { "held": false } };
        keys.update_many(doc! {}, release).await.expect("keys can be written");
    }

    async fn age_handled_ids(&self, by: Duration) {
        let by = i64::try_from(by.as_micros()).expect("not that long");
        let database = self.store.client().default_database().expect("the URL names a database");
        let handled = database.collection::<Document>("outbox_handled");
        let older = doc! { "$inc": { "handled_at": -by } };
        handled.update_many(doc! {}, older).await.expect("ids can be written");
        let recorded = database.collection::<Document>("outbox_retention");
        let earlier = doc! { "$inc": { "renewed_at": -by } };
        recorded.update_many(doc! {}, earlier).await.expect("records can be written");
    }

    fn skipped() -> Option<String> {
        MongoDb::newest().shared().or_skip().is_none().then(|| "there is no MongoDB".to_owned())
    }
}

/// A URL with another database in it.
fn in_database(url: &str, name: &str) -> String {
    let (address, parameters) = url.split_once('?').unwrap_or((url, ""));
    let host = address.strip_prefix("mongodb://").or_else(|| address.strip_prefix("mongodb+srv://"));
    let end =
        address.len() - host.and_then(|host| host.split_once('/')).map_or(0, |(_, name)| name.len() + 1);
    format!("{}/{name}?{parameters}", &address[..end])
}

outbox_testkit::store_conformance!(Subject);
