//! Effects in memory, which happen at the instant of the commit.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use outbox_contract::MessageId;
use outbox_engine::HandlerError;
use outbox_store_memory::MemoryStore;

use super::{ConnectionOf, Effect, Effects, Failed};

#[derive(Clone)]
pub(crate) struct Memory {
    store: MemoryStore,
    effects: Arc<Mutex<Vec<Effect>>>,
}

impl Memory {
    pub(crate) fn new(store: MemoryStore) -> Self {
        Self { store, effects: Arc::default() }
    }
}

fn lock(effects: &Mutex<Vec<Effect>>) -> MutexGuard<'_, Vec<Effect>> {
    effects.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Effects for Memory {
    type Store = MemoryStore;

    fn store(&self) -> &MemoryStore {
        &self.store
    }

    async fn make_tables(&self) -> Result<(), Failed> {
        Ok(())
    }

    async fn note(&self, tx: &mut ConnectionOf<Self>, key: &str, id: MessageId) -> Result<(), HandlerError> {
        let (effects, key) = (Arc::clone(&self.effects), key.to_owned());
        tx.on_commit(move || {
            let mut effects = lock(&effects);
            let before = effects.iter().filter(|effect| effect.key == key).count();
            effects.push(Effect { key, number: before as i64 + 1, id });
        });
        Ok(())
    }

    async fn all(&self) -> Result<Vec<Effect>, Failed> {
        let mut effects = lock(&self.effects).clone();
        effects.sort();
        Ok(effects)
    }
}
