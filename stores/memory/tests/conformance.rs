//! The suite that every store must pass, in every mode and in paused time.

use std::sync::Arc;
use std::time::Duration;

use outbox_contract::Timestamp;
use outbox_store_memory::{MemoryStore, MemoryStoreBuilder};
use outbox_testkit::store_suite::{Capabilities, StoreHarness};

const HISTORY: Duration = Duration::from_secs(24 * 60 * 60);

fn builder() -> MemoryStoreBuilder {
    MemoryStore::builder().history(HISTORY).starting_at(Timestamp::from_micros(1_800_000_000_000_000))
}

/// Nothing can be missing from memory, so there is nothing to migrate.
fn capabilities() -> Capabilities {
    Capabilities::default().with_migrations(false)
}

mod one_writer {
    use super::*;

    struct OneWriter(Arc<MemoryStore>);

    impl StoreHarness for OneWriter {
        type Store = MemoryStore;

        async fn fresh() -> Self {
            Self(Arc::new(builder().build()))
        }

        fn store(&self) -> Arc<MemoryStore> {
            Arc::clone(&self.0)
        }

        fn capabilities(&self) -> Capabilities {
            capabilities()
        }
    }

    outbox_testkit::store_conformance!(OneWriter, start_paused = true);
}

mod concurrent_writers {
    use super::*;

    struct ConcurrentWriters(Arc<MemoryStore>);

    impl StoreHarness for ConcurrentWriters {
        type Store = MemoryStore;

        async fn fresh() -> Self {
            Self(Arc::new(builder().concurrent_writers().build()))
        }

        fn store(&self) -> Arc<MemoryStore> {
            Arc::clone(&self.0)
        }

        fn capabilities(&self) -> Capabilities {
            capabilities()
        }
    }

    outbox_testkit::store_conformance!(ConcurrentWriters, start_paused = true);
}

mod stripes {
    use super::*;

    struct Stripes(Arc<MemoryStore>);

    impl StoreHarness for Stripes {
        type Store = MemoryStore;

        async fn fresh() -> Self {
            Self(Arc::new(builder().stripes().build()))
        }

        fn store(&self) -> Arc<MemoryStore> {
            Arc::clone(&self.0)
        }

        fn capabilities(&self) -> Capabilities {
            capabilities()
        }
    }

    outbox_testkit::store_conformance!(Stripes, start_paused = true);
}
