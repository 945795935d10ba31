//! The point at which a relay's process is killed.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use outbox_contract::backend::{Outcome, Outcomes, PublishBatch, TransportLayer};
use outbox_contract::{Failure, Store, Transport};
use outbox_testkit::{ChaosStore, StoreCall, StoreFault};
use tokio::sync::watch;

use crate::ledger::Failed;

/// A point in the work of a relay. Its successor must lose nothing and bring nothing out of order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Halt {
    /// Rows were read, and none of them was sent.
    Read,
    /// A batch is about to be sent.
    Sending,
    /// A batch was confirmed by the broker, and the relay does not know.
    Sent,
    /// The relay knows, and nothing is removed from the store.
    Settling,
    /// It was removed, and the relay does not know.
    Settled,
    /// Messages failed, and nothing is parked.
    Parking,
    /// They are parked, and the relay does not know.
    Parked,
    /// The leases were renewed, and the relay does not know.
    Leased,
}

const HALT: &str = "OUTBOX_RELAY_HALT";
/// Number of batches that pass before the point counts.
const BEFORE: u32 = 3;

impl Halt {
    /// Every point, in the order of the work.
    pub const ALL: [Self; 8] = [
        Self::Read,
        Self::Sending,
        Self::Sent,
        Self::Settling,
        Self::Settled,
        Self::Parking,
        Self::Parked,
        Self::Leased,
    ];

    /// Returns the environment variable that passes this point to a program.
    #[must_use]
    pub fn variable(self) -> (&'static str, String) {
        let place = Self::ALL.iter().position(|other| *other == self).unwrap_or_default();
        (HALT, place.to_string())
    }

    /// Returns the point in the environment, if there is one.
    ///
    /// # Errors
    ///
    /// There is no such point.
    pub fn from_environment() -> Result<Option<Self>, Failed> {
        let Ok(place) = std::env::var(HALT) else { return Ok(None) };
        let halt = Self::ALL.get(place.parse::<usize>()?).ok_or("there is no such point")?;
        Ok(Some(*halt))
    }

    /// Returns the store call that never answers at this point.
    const fn in_store(self) -> Option<(StoreCall, StoreFault)> {
        Some(match self {
            Self::Read => (StoreCall::Fetch, StoreFault::HangAfter),
            Self::Settling => (StoreCall::Settle, StoreFault::HangBefore),
            Self::Settled => (StoreCall::Settle, StoreFault::HangAfter),
            Self::Parking => (StoreCall::Transition, StoreFault::HangBefore),
            Self::Parked => (StoreCall::Transition, StoreFault::HangAfter),
            Self::Leased => (StoreCall::Lease, StoreFault::HangAfter),
            Self::Sending | Self::Sent => return None,
        })
    }
}

/// A store and a transport that hang at a point, once they have worked for a while.
pub struct Halting {
    halt: Halt,
    store: Arc<ChaosStore<dyn Store>>,
    transport: Arc<dyn Transport>,
    chunks: AtomicU32,
    /// True once the transport hangs.
    stands: watch::Sender<bool>,
}

impl std::fmt::Debug for Halting {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Halting").field("halt", &self.halt).finish_non_exhaustive()
    }
}

impl Halting {
    /// Wraps both.
    #[must_use]
    pub fn new(halt: Halt, store: Arc<dyn Store>, transport: Arc<dyn Transport>) -> Arc<Self> {
        let store = Arc::new(ChaosStore::new(store, 1));
        let (chunks, stands) = (AtomicU32::new(0), watch::Sender::new(false));
        Arc::new(Self { halt, store, transport, chunks, stands })
    }

    /// Returns the store, for the relay.
    #[must_use]
    pub fn store(&self) -> Arc<ChaosStore<dyn Store>> {
        Arc::clone(&self.store)
    }

    /// Waits until the point is reached.
    pub async fn reached(&self) {
        let mut stands = self.stands.subscribe();
        tokio::select! {
            biased;
            () = self.store.hangs() => {}
            // The sender is in this value, so it does not end.
            _ = stands.wait_for(|stands| *stands) => {}
        }
    }

    async fn stand_still(&self) {
        self.stands.send_replace(true);
        std::future::pending().await
    }
}

impl TransportLayer for Halting {
    type Inner = dyn Transport;

    fn inner(&self) -> &dyn Transport {
        &*self.transport
    }

    async fn publish(&self, batch: PublishBatch, outcomes: &Outcomes) {
        let number = self.chunks.fetch_add(1, Ordering::SeqCst);
        if number < BEFORE {
            return self.transport.publish(batch, outcomes).await;
        }
        if number == BEFORE
            && let Some((call, fault)) = self.halt.in_store()
        {
            // Each call from now on: a busy server may take longer than the relay waits for the
            // first one.
            self.store.inject(call, fault, usize::MAX);
        }
        match self.halt {
            Halt::Sending => self.stand_still().await,
            Halt::Sent => {
                let unheard = Outcomes::new(batch.messages.len());
                self.transport.publish(batch, &unheard).await;
                self.stand_still().await;
            }
            Halt::Parking | Halt::Parked => {
                // No message of a key is sent behind one that failed.
                let mut keys = HashSet::new();
                for (index, stored) in batch.messages.iter().enumerate() {
                    let first = keys.insert(stored.message.key_id());
                    let failed = Outcome::Failed(Failure::new("tested", "not yet"));
                    outcomes.report(index, if first { failed } else { Outcome::Blocked });
                }
            }
            _ => self.transport.publish(batch, outcomes).await,
        }
    }
}
