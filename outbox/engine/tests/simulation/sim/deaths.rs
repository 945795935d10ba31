//! Who died, and from when on: the checker keeps the order of a key as long as its messages live.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};

use outbox_contract::admin::Filter;
use outbox_contract::backend::Position;
use outbox_contract::{AdminExt, MessageId};
use outbox_store_memory::MemoryStore;
use outbox_testkit::History;
use outbox_testkit::history::Moment;

/// Looks at the dead letters, before and behind whatever may make one.
pub(crate) struct Deaths {
    store: MemoryStore,
    history: Arc<History>,
    seen: Mutex<Seen>,
}

struct Seen {
    /// Before the last look: whatever is new was no dead letter then.
    looked: Moment,
    dead: BTreeSet<(MessageId, Position)>,
    died: u64,
}

impl Deaths {
    pub(crate) fn new(store: MemoryStore, history: Arc<History>) -> Self {
        let seen = Seen { looked: history.now(), dead: BTreeSet::new(), died: 0 };
        Self { store, history, seen: Mutex::new(seen) }
    }

    /// Tells the checker who died since the last look. Says who is dead now.
    pub(crate) async fn look(&self) -> Vec<MessageId> {
        let now = self.history.now();
        let letters = self.store.dead_letters(&Filter::all_routes()).await.unwrap();
        let mut seen = self.seen.lock().unwrap();
        let mut dead = BTreeSet::new();
        for letter in &letters {
            let died = (letter.stored.message.id, letter.stored.position);
            if !seen.dead.contains(&died) {
                self.history.dead_lettered(&letter.stored.message, seen.looked);
                seen.died += 1;
            }
            dead.insert(died);
        }
        (seen.looked, seen.dead) = (now, dead);
        letters.iter().map(|letter| letter.stored.message.id).collect()
    }

    /// Returns the number of dead letters so far; one that was requeued may die again.
    pub(crate) fn count(&self) -> u64 {
        self.seen.lock().unwrap().died
    }
}
