//! The suite that every store must pass. A fresh database for each test, on the server that is given by URL, or on the stand-in.

use std::sync::Arc;
use std::time::Duration;

use outbox_servers::{MongoDb, MongoDbServer, OrSkip};
use outbox_store_mongodb::{MongoDbOptions, MongoDbStore};
use outbox_testkit::store_suite::StoreHarness;

async fn open(url: &str) -> Arc<MongoDbStore> {
    let mut options = MongoDbOptions::default();
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
