//! The suite that every store must pass. A fresh database for each test.

use std::sync::Arc;
use std::time::Duration;

use outbox_store_mongodb::{MongoDbOptions, MongoDbStore};
use outbox_testkit::store_suite::StoreHarness;

async fn open(url: &str) -> Arc<MongoDbStore> {
    let mut options = MongoDbOptions::default();
    options.history = Some(Duration::from_secs(3_600));
    // A test runs as long as it has to, on however slow a machine.
    options.conflict_timeout = Duration::from_secs(60);
    options.server_selection_timeout = Duration::from_secs(60);
    Arc::new(MongoDbStore::connect_with(url, options).await.expect("the server takes connections"))
}

struct Subject {
    url: String,
    store: Arc<MongoDbStore>,
}

impl StoreHarness for Subject {
    type Store = MongoDbStore;

    async fn fresh() -> Self {
        let url = std::env::var("OUTBOX_MONGODB_URL").unwrap().replace("/?", &format!("/t{}?", uuid::Uuid::now_v7().simple()));
        Self { store: open(&url).await, url }
    }

    fn store(&self) -> Arc<MongoDbStore> {
        Arc::clone(&self.store)
    }

    async fn as_another_process(&self) -> Arc<MongoDbStore> {
        open(&self.url).await
    }
}

outbox_testkit::store_conformance!(Subject);
