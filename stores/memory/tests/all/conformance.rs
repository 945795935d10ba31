//! The suite that every store must pass, in every mode and in paused time.

use std::sync::Arc;
use std::time::Duration;

use outbox_contract::Timestamp;
use outbox_store_memory::{MemoryStore, MemoryStoreBuilder};
use outbox_testkit::TestClock;
use outbox_testkit::store_suite::{Capabilities, StoreHarness};

const HISTORY: Duration = Duration::from_secs(24 * 60 * 60);

/// A store on a clock of the test's, and the clock.
struct Clocked {
    store: Arc<MemoryStore>,
    clock: Arc<TestClock>,
}

impl Clocked {
    fn new(mode: impl FnOnce(MemoryStoreBuilder) -> MemoryStoreBuilder) -> Self {
        let clock = Arc::new(TestClock::starting_at(Timestamp::from_micros(1_800_000_000_000_000)));
        let builder = MemoryStore::builder().history(HISTORY).clock(Arc::<TestClock>::clone(&clock));
        Self { store: Arc::new(mode(builder).build()), clock }
    }

    fn restore_parked(&self) {
        let parked = self.store.snapshot().parked;
        self.store.put_back(parked);
    }
}

/// Nothing can be missing from memory, so there is nothing to migrate.
fn capabilities() -> Capabilities {
    Capabilities::default().with_migrations(false)
}

mod one_writer {
    use super::*;

    struct OneWriter(Clocked);

    impl StoreHarness for OneWriter {
        type Store = MemoryStore;

        async fn fresh() -> Self {
            Self(Clocked::new(|builder| builder))
        }

        fn store(&self) -> Arc<MemoryStore> {
            Arc::clone(&self.0.store)
        }

        async fn set_clock_back(&self, by: Duration) -> bool {
            self.0.clock.set_back(by);
            true
        }

        async fn restore_parked(&self) -> bool {
            self.0.restore_parked();
            true
        }

        fn max_time(&self) -> Duration {
            Duration::from_secs(366 * 24 * 3_600)
        }

        fn capabilities(&self) -> Capabilities {
            capabilities()
        }
    }

    outbox_testkit::store_conformance!(OneWriter, start_paused = true);
}

mod concurrent_writers {
    use super::*;

    struct ConcurrentWriters(Clocked);

    impl StoreHarness for ConcurrentWriters {
        type Store = MemoryStore;

        async fn fresh() -> Self {
            Self(Clocked::new(MemoryStoreBuilder::concurrent_writers))
        }

        fn store(&self) -> Arc<MemoryStore> {
            Arc::clone(&self.0.store)
        }

        async fn set_clock_back(&self, by: Duration) -> bool {
            self.0.clock.set_back(by);
            true
        }

        async fn restore_parked(&self) -> bool {
            self.0.restore_parked();
            true
        }

        fn max_time(&self) -> Duration {
            Duration::from_secs(366 * 24 * 3_600)
        }

        fn capabilities(&self) -> Capabilities {
            capabilities()
        }
    }

    outbox_testkit::store_conformance!(ConcurrentWriters, start_paused = true);
}

mod stripes {
    use super::*;

    struct Stripes(Clocked);

    impl StoreHarness for Stripes {
        type Store = MemoryStore;

        async fn fresh() -> Self {
            Self(Clocked::new(MemoryStoreBuilder::stripes))
        }

        fn store(&self) -> Arc<MemoryStore> {
            Arc::clone(&self.0.store)
        }

        async fn set_clock_back(&self, by: Duration) -> bool {
            self.0.clock.set_back(by);
            true
        }

        async fn restore_parked(&self) -> bool {
            self.0.restore_parked();
            true
        }

        fn max_time(&self) -> Duration {
            Duration::from_secs(366 * 24 * 3_600)
        }

        fn capabilities(&self) -> Capabilities {
            capabilities()
        }
    }

    outbox_testkit::store_conformance!(Stripes, start_paused = true);
}
