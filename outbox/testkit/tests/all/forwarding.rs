//! Methods with a provided body reach the store itself, through everything that forwards to it.

use std::sync::Arc;

use outbox_contract::admin::{Actor, Diagnosis, Misplaced};
use outbox_contract::backend::StoreLayer;
use outbox_contract::{Admin, StoreError};
use outbox_store_memory::MemoryStore;

/// A store that finds something.
#[derive(Clone)]
struct Finds(MemoryStore);

impl StoreLayer for Finds {
    type Inner = MemoryStore;

    fn inner(&self) -> &MemoryStore {
        &self.0
    }

    fn acting_as(&self, _: Actor) -> Box<dyn Admin + '_> {
        Box::new(self.clone())
    }

    async fn misplaced(&self) -> Result<Vec<Misplaced>, StoreError> {
        Ok(vec![Misplaced::new("default", "a message", "none")])
    }

    async fn diagnose(&self) -> Result<Vec<Diagnosis>, StoreError> {
        Ok(vec![Diagnosis::bloat("a table", "none")])
    }
}

/// A layer that changes nothing.
struct Plain<S>(S);

impl<S: outbox_contract::Store> StoreLayer for Plain<S> {
    type Inner = S;

    fn inner(&self) -> &S {
        &self.0
    }
}

async fn finds(admin: &dyn Admin) -> (usize, usize) {
    (admin.misplaced().await.unwrap().len(), admin.diagnose().await.unwrap().len())
}

#[tokio::test]
async fn a_store_finds_the_same_through_arc_layer_and_actor() {
    let store = Finds(MemoryStore::new());
    let shared = Arc::new(store.clone());
    let layer = Plain(Plain(Arc::clone(&shared)));
    let actor = || Actor::new("ann");
    let handles: [&dyn Admin; 3] = [&store, &shared, &layer];
    for admin in handles {
        assert_eq!(finds(admin).await, (1, 1));
        let acting = admin.acting_as(actor());
        assert_eq!(finds(&*acting).await, (1, 1), "under the name of an actor");
        assert_eq!(finds(&*acting.acting_as(actor())).await, (1, 1), "and of another one");
    }
}
