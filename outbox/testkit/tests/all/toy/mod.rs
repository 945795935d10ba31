//! A small store and a small transport that pass the suites: the examples of the book's page
//! "Writing a backend".

mod store;
mod transport;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use outbox_contract::{Topic, Transport};
use outbox_testkit::store_suite::{Capability, StoreHarness};
use outbox_testkit::transport_suite::TransportHarness;
use store::ToyStore;
use transport::ToyTransport;

// ANCHOR: store_harness
struct Store(Arc<ToyStore>);

impl StoreHarness for Store {
    type Store = ToyStore;
    const LACKS: &'static [Capability] = &[
        Capability::History,
        Capability::Migrations,
        Capability::OtherRetention,
        Capability::ClockBack,
        Capability::RefusedAudit,
        Capability::LastPosition,
        Capability::RestoredParked,
        Capability::SpoiledParked,
        Capability::ReleaseByHand,
    ];

    async fn fresh() -> Self {
        Self(Arc::new(ToyStore::new()))
    }

    fn store(&self) -> Arc<ToyStore> {
        Arc::clone(&self.0)
    }

    fn max_time(&self) -> Duration {
        Duration::from_secs(366 * 24 * 3_600)
    }
}

mod the_store {
    use super::Store;
    outbox_testkit::store_conformance!(Store, start_paused = true);
}
// ANCHOR_END: store_harness

// ANCHOR: transport_harness
struct Broker(ToyTransport, AtomicUsize);

impl TransportHarness for Broker {
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

    fn unroutable_topic(&self) -> Topic {
        Topic::new("nobody-created-this").unwrap()
    }

    fn too_large(&self) -> usize {
        1024 * 1024
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
