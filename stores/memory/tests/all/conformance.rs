//! The suite that every store must pass, in every mode and in paused time.

use std::sync::Arc;
use std::time::Duration;

use outbox_contract::Timestamp;
use outbox_store_memory::{MemoryStore, MemoryStoreBuilder};
use outbox_testkit::TestClock;
use outbox_testkit::store_suite::{Capability, StoreHarness};

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

macro_rules! on {
    ($module:ident, $mode:expr) => {
        mod $module {
            use super::*;

            struct Subject(Clocked);

            impl StoreHarness for Subject {
                type Store = MemoryStore;
                const LACKS: &'static [Capability] = &[
                    Capability::Migrations,
                    Capability::OtherRetention,
                    Capability::RefusedAudit,
                    Capability::LastPosition,
                    Capability::SpoiledParked,
                    Capability::ReleaseByHand,
                ];

                async fn fresh() -> Self {
                    Self(Clocked::new($mode))
                }

                fn store(&self) -> Arc<MemoryStore> {
                    Arc::clone(&self.0.store)
                }

                async fn set_clock_back(&self, by: Duration) {
                    self.0.clock.set_back(by);
                }

                async fn restore_parked(&self) {
                    self.0.restore_parked();
                }

                fn max_time(&self) -> Duration {
                    Duration::from_secs(366 * 24 * 3_600)
                }
            }

            outbox_testkit::store_conformance!(Subject, start_paused = true);
        }
    };
}

on!(one_writer, |builder| builder);
on!(concurrent_writers, MemoryStoreBuilder::concurrent_writers);
on!(stripes, MemoryStoreBuilder::stripes);
