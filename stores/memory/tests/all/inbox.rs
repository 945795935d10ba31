//! The suite that an inbox on every store must pass, in every mode of this one and in paused time.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use outbox_store_memory::{MemoryStore, MemoryTx};
use outbox_testkit::inbox_suite::{Effect, EffectError, Effects, InboxHarness};
use outbox_testkit::store_suite::{Capability, StoreHarness};

/// Effects that happen at the very instant of the commit.
#[derive(Clone, Default)]
struct Ledger(Arc<Mutex<Vec<Effect>>>);

impl Effects<MemoryStore> for Ledger {
    async fn write(&self, tx: &mut MemoryTx, effect: Effect) -> Result<(), EffectError> {
        let ledger = Arc::clone(&self.0);
        tx.on_commit(move || ledger.lock().unwrap_or_else(PoisonError::into_inner).push(effect));
        Ok(())
    }

    async fn read(&self) -> Result<Vec<Effect>, EffectError> {
        Ok(self.0.lock().unwrap_or_else(PoisonError::into_inner).clone())
    }
}

macro_rules! on {
    ($module:ident, $builder:expr) => {
        mod $module {
            use super::*;

            struct Subject(Arc<MemoryStore>);

            impl StoreHarness for Subject {
                type Store = MemoryStore;
                const LACKS: &'static [Capability] = &[Capability::TransactionLimit];

                async fn fresh() -> Self {
                    Self(Arc::new($builder.history(Duration::from_secs(3_600)).build()))
                }

                fn store(&self) -> Arc<MemoryStore> {
                    Arc::clone(&self.0)
                }
            }

            impl InboxHarness for Subject {
                type Effects = Ledger;

                async fn effects(&self) -> Ledger {
                    Ledger::default()
                }
            }

            outbox_testkit::inbox_conformance!(Subject, start_paused = true);
        }
    };
}

on!(one_writer, MemoryStore::builder());
on!(concurrent_writers, MemoryStore::builder().concurrent_writers());
on!(stripes, MemoryStore::builder().stripes());
