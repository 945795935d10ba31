//! A small store and a small transport that pass the suites: the examples of the book's page
//! "Writing a backend".

mod store;
mod transport;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use outbox_contract::{Topic, Transport};
use outbox_testkit::{store_suite, transport_suite};
use store::ToyStore;
use transport::ToyTransport;

// ANCHOR: store_harness
struct Store(Arc<ToyStore>);

impl store_suite::StoreHarness for Store {
    type Store = ToyStore;

    async fn fresh() -> Self {
        Self(Arc::new(ToyStore::new()))
    }

    fn store(&self) -> Arc<ToyStore> {
        Arc::clone(&self.0)
    }

    fn max_time(&self) -> Duration {
        Duration::from_secs(366 * 24 * 3_600)
    }

    fn capabilities(&self) -> store_suite::Capabilities {
        store_suite::Capabilities::default().with_history(false).with_migrations(false)
    }
}

mod the_store {
    use super::Store;
    outbox_testkit::store_conformance!(Store, start_paused = true);
}
// ANCHOR_END: store_harness

// ANCHOR: transport_harness
struct Broker(ToyTransport, AtomicUsize);

impl transport_suite::TransportHarness for Broker {
    async fn fresh() -> Self {
        Self(ToyTransport::default(), AtomicUsize::new(0))
    }

    fn transport(&self) -> Arc<dyn Transport> {
        Arc::new(self.0.clone())
    }

    async fn topic(&self) -> Topic {
        let topic = Topic::new(format!("topic-{}", self.1.fetch_add(1, Ordering::Relaxed))).unwrap();
        self.0.create(&topic);
        topic
    }

    fn capabilities(&self) -> transport_suite::Capabilities {
        let unknown = Topic::new("nobody-created-this").unwrap();
        transport_suite::Capabilities::default().with_unroutable_topic(unknown).with_too_large(1024 * 1024)
    }

    fn quiet(&self) -> Duration {
        Duration::from_millis(50)
    }
}

mod the_transport {
    use super::Broker;
    outbox_testkit::transport_conformance!(Broker, start_paused = true);
}
// ANCHOR_END: transport_harness
