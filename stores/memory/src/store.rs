//! The store: the tables behind a mutex, as relays see them.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use outbox_contract::admin::{Actor, OutboxId};
use outbox_contract::backend::rules::options::{StoreOptions, refuse};
use outbox_contract::backend::{
    Backlog, BucketSet, Clock, Due, DueRequest, FetchRequest, Fetched, Frontier, KeyTransition, Lease,
    LeaseRequest, Leased, LowWater, Maintained, OpenWriters, Ordering, RelayId, RowId, Stored, StripeMark,
    StripeMarks, Transitioned, Unserved, WakeupSignal, Writers,
};
use outbox_contract::{Route, Store, StoreError, Timestamp, async_trait};

use crate::clock::RuntimeClock;
use crate::config::MemoryStoreBuilder;
use crate::locks::{LockName, Locks, TxId};
use crate::tables::{Appendable, Snapshot, Tables};
use crate::transaction::MemoryTx;

/// An outbox in memory. Clones share it; it is gone with the last of them.
#[derive(Clone)]
pub struct MemoryStore {
    pub(crate) shared: Arc<Shared>,
    /// Whoever performs the operations of this handle.
    pub(crate) actor: Actor,
}

/// State that the clones of a store, and its transactions, share.
pub(crate) struct Shared {
    pub(crate) ordering: Ordering,
    options: StoreOptions,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) wakeup_signal: WakeupSignal,
    /// A plain mutex, held for the length of one statement and never across an await.
    state: Mutex<State>,
}

/// State behind the mutex.
pub(crate) struct State {
    pub(crate) tables: Tables,
    pub(crate) locks: Locks,
    pub(crate) identity: OutboxId,
    last_tx: TxId,
}

impl MemoryStore {
    /// Creates an empty store where one transaction writes at a time, without a history.
    #[must_use]
    pub fn new() -> Self {
        Self::builder().build()
    }

    /// Returns the builder of a store.
    pub fn builder() -> MemoryStoreBuilder {
        MemoryStoreBuilder::default()
    }

    /// Returns the content of all tables. For tests: it copies a reference to every row.
    #[must_use]
    pub fn snapshot(&self) -> Snapshot {
        self.shared.state().tables.snapshot()
    }

    /// Puts rows of a [snapshot](Self::snapshot) into the hot table where they stood, and changes
    /// nothing else, as a restore or an import of that table alone does. A position at which a row
    /// stands keeps that row. For tests of what reads below its own marks.
    pub fn put_back(&self, hot: impl IntoIterator<Item = (Route, Arc<Stored>)>) {
        self.shared.state().tables.put_back(hot);
    }

    /// Sets the counters of all [stripes](MemoryStoreBuilder::stripes) of a route to nothing, as a
    /// restore of that table alone does: the next message of each has number 1 again. For tests, as
    /// [`put_back`](Self::put_back).
    pub fn forget_stripes(&self, route: &Route) {
        self.shared.state().tables.forget_stripes(route);
    }

    pub(crate) fn with(builder: MemoryStoreBuilder) -> Self {
        let tables = Tables::new(builder.ordering, &builder.options);
        let clock = builder.clock.unwrap_or_else(|| Arc::new(RuntimeClock::starting_at(Timestamp::now())));
        let identity = builder.identity.unwrap_or_else(OutboxId::new);
        let state = Mutex::new(State { tables, locks: Locks::default(), identity, last_tx: 0 });
        let wakeup_signal = WakeupSignal::new();
        let (ordering, options) = (builder.ordering, builder.options);
        let shared = Shared { ordering, options, clock, wakeup_signal, state };
        Self { shared: Arc::new(shared), actor: Actor::default() }
    }

    /// Takes the locks of what a verb appends. They are held until the transaction is dropped.
    ///
    /// With one writer at a time no lock is needed: rows get their positions when they are
    /// committed.
    pub(crate) async fn lock(
        &self,
        names: BTreeSet<LockName>,
        operation: &'static str,
    ) -> Result<(MemoryTx, Appendable), StoreError> {
        let mut tx = MemoryTx::begin(Arc::clone(&self.shared));
        if self.shared.ordering == Ordering::Single {
            return Ok((tx, Appendable::All));
        }
        tx.lock(names.clone(), operation).await?;
        Ok((tx, Appendable::Locked(self.shared.ordering, names)))
    }
}

impl Default for MemoryStore {
    fn default() -> Self {
        Self::new()
    }
}

impl std::fmt::Debug for MemoryStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MemoryStore").field("ordering", &self.shared.ordering).finish_non_exhaustive()
    }
}

impl Shared {
    /// A panic elsewhere (in an effect of a commit) leaves the tables whole, so a poisoned mutex is
    /// used on.
    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Does one statement, at one instant.
    pub(crate) fn statement<T>(&self, statement: impl FnOnce(&mut Tables, Timestamp) -> T) -> T {
        let mut state = self.state();
        statement(&mut state.tables, self.clock.now())
    }
}

impl State {
    pub(crate) fn next_tx(&mut self) -> TxId {
        self.last_tx += 1;
        self.last_tx
    }
}

#[async_trait]
impl Store for MemoryStore {
    fn name(&self) -> &'static str {
        "memory"
    }

    fn history_kept(&self) -> Option<Duration> {
        self.shared.options.history
    }

    fn frontier(&self) -> Frontier<'_> {
        match self.shared.ordering {
            Ordering::Writers => Frontier::Writers(self),
            Ordering::Stripes => Frontier::Stripes(self),
            _ => Frontier::Single,
        }
    }

    async fn migrate(&self) -> Result<(), StoreError> {
        Ok(())
    }

    async fn check(&self) -> Result<(), StoreError> {
        refuse("check", &self.shared.options.problems("memory"))
    }

    async fn lease(&self, request: &LeaseRequest) -> Result<Leased, StoreError> {
        Ok(self.shared.statement(|tables, now| tables.lease(request, now)))
    }

    async fn give_back(
        &self,
        relay: RelayId,
        route: &Route,
        leases: &[Lease],
        low_water: &LowWater,
        leaving: bool,
    ) -> Result<(), StoreError> {
        self.shared.statement(|tables, now| {
            tables.release_leases(relay, route, leases, low_water, leaving, now);
        });
        Ok(())
    }

    async fn fetch(&self, request: &FetchRequest) -> Result<Fetched, StoreError> {
        Ok(self.shared.statement(|tables, now| tables.fetch(request, now)))
    }

    async fn due(&self, request: &DueRequest) -> Result<Due, StoreError> {
        Ok(self.shared.statement(|tables, now| tables.due(request, now)))
    }

    async fn settle(&self, route: &Route, delivered: &[RowId]) -> Result<(), StoreError> {
        self.shared.statement(|tables, now| tables.settle(route, delivered, now));
        Ok(())
    }

    async fn transition(&self, transitions: &[KeyTransition]) -> Result<Vec<Transitioned>, StoreError> {
        Ok(self.shared.statement(|tables, now| {
            transitions.iter().map(|step| tables.transition(step, &self.actor, now)).collect()
        }))
    }

    async fn elect(&self, role: &str, relay: RelayId, lasts: Duration) -> Result<bool, StoreError> {
        Ok(self.shared.statement(|tables, now| tables.elect(role, relay, lasts, now)))
    }

    async fn maintain(&self, limit: usize) -> Result<Maintained, StoreError> {
        let names = self.shared.statement(|tables, now| tables.due_locks(limit, now));
        let (_locked, appendable) = self.lock(names, "maintain").await?;
        let maintained = self.shared.statement(|tables, now| tables.maintain(limit, &appendable, now));
        if maintained.promoted > 0 {
            self.shared.wakeup_signal.committed();
        }
        Ok(maintained)
    }

    async fn backlog(&self, route: &Route) -> Result<Backlog, StoreError> {
        Ok(self.shared.statement(|tables, now| tables.backlog(route, now)))
    }

    async fn unserved(&self, after: Duration) -> Result<Vec<Unserved>, StoreError> {
        Ok(self.shared.statement(|tables, now| tables.unserved(after, now)))
    }

    fn wakeup_signal(&self) -> &WakeupSignal {
        &self.shared.wakeup_signal
    }
}

#[async_trait]
impl OpenWriters for MemoryStore {
    async fn writers(&self) -> Result<Writers, StoreError> {
        Ok(self.shared.state().tables.writers())
    }
}

#[async_trait]
impl StripeMarks for MemoryStore {
    async fn stripes(&self, route: &Route, buckets: &BucketSet) -> Result<Vec<StripeMark>, StoreError> {
        Ok(self.shared.state().tables.stripes(route, buckets))
    }
}
