//! Bytes of payloads that a relay really holds, whatever it reports itself.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use outbox_contract::backend::{Due, FetchedRow, Stored};

/// Of one relay: now, and at the most so far.
#[derive(Default)]
pub(crate) struct Held {
    now: AtomicUsize,
    most: AtomicUsize,
}

impl Held {
    pub(crate) fn most(&self) -> usize {
        self.most.load(Ordering::SeqCst)
    }

    /// The same message, whose payload counts until the last copy of it is gone.
    fn counted(self: &Arc<Self>, stored: &Stored) -> Arc<Stored> {
        let mut counted = stored.clone();
        counted.message.payload = Bytes::from_owner(Counted::new(self, stored.message.payload.clone()));
        Arc::new(counted)
    }

    pub(crate) fn count_rows(self: &Arc<Self>, rows: &mut [FetchedRow]) {
        for row in rows {
            if let FetchedRow::Message(stored) = row {
                *stored = self.counted(stored);
            }
        }
    }

    pub(crate) fn count_due(self: &Arc<Self>, due: &mut Due) {
        for key in &mut due.keys {
            for stored in &mut key.parked {
                *stored = self.counted(stored);
            }
        }
    }
}

struct Counted {
    held: Arc<Held>,
    payload: Bytes,
}

impl Counted {
    fn new(held: &Arc<Held>, payload: Bytes) -> Self {
        let now = held.now.fetch_add(payload.len(), Ordering::SeqCst) + payload.len();
        held.most.fetch_max(now, Ordering::SeqCst);
        Self { held: Arc::clone(held), payload }
    }
}

impl AsRef<[u8]> for Counted {
    fn as_ref(&self) -> &[u8] {
        &self.payload
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.held.now.fetch_sub(self.payload.len(), Ordering::SeqCst);
    }
}
