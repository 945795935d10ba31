//! Settings of a memory store, with defaults that suit a trial.

use std::sync::Arc;
use std::time::Duration;

use outbox_contract::Timestamp;
use outbox_contract::admin::OutboxId;
use outbox_contract::backend::rules::options::StoreOptions;
use outbox_contract::backend::{Clock, Ordering};

use crate::clock::RuntimeClock;
use crate::store::MemoryStore;

/// Builds a [`MemoryStore`].
///
/// ```
/// use std::time::Duration;
/// # mod outbox { pub mod memory { pub use outbox_store_memory::*; } }
/// use outbox::memory::MemoryStore;
///
/// let store = MemoryStore::builder().concurrent_writers().history(Duration::from_secs(3_600)).build();
/// # drop(store);
/// ```
#[must_use = "nothing is made before `build`"]
pub struct MemoryStoreBuilder {
    pub(crate) ordering: Ordering,
    pub(crate) options: StoreOptions,
    pub(crate) clock: Option<Arc<dyn Clock>>,
    pub(crate) identity: Option<OutboxId>,
}

impl MemoryStoreBuilder {
    /// Lets several transactions write at once, as PostgreSQL does: they wait for one another only
    /// where they write the same key. Default: one writing transaction at a time, as SQLite does.
    pub fn concurrent_writers(mut self) -> Self {
        self.ordering = Ordering::Writers;
        self
    }

    /// Lets several transactions write at once, as MySQL and MongoDB do: they wait for one another
    /// where they write the same [stripe](outbox_contract::backend::StripeId) of a route. Positions
    /// are in order within a stripe only; some stripes run ahead of others, as clocks do. Default:
    /// one writing transaction at a time, as SQLite does.
    pub fn stripes(mut self) -> Self {
        self.ordering = Ordering::Stripes;
        self
    }

    /// Keeps delivered messages for this long, for replays; at least 1 s. Default: not at all.
    pub fn history(mut self, kept: Duration) -> Self {
        self.options.history = Some(kept);
        self
    }

    /// Keeps ids of handled messages for this long, not counting the time in which their consumer
    /// handles nothing. At least 60 s, default 7 days.
    pub fn handled_ids_kept(mut self, kept: Duration) -> Self {
        self.options.handled_ids_kept = kept;
        self
    }

    /// Keeps the record of admin operations for this long. At least 60 s, default 90 days.
    pub fn audit_kept(mut self, kept: Duration) -> Self {
        self.options.audit_kept = kept;
        self
    }

    /// Removes ids of handled messages at this age, also of a consumer that handles nothing any
    /// more. At least [`handled_ids_kept`](Self::handled_ids_kept), default 90 days.
    pub fn handled_ids_max_age(mut self, max_age: Duration) -> Self {
        self.options.handled_ids_max_age = max_age;
        self
    }

    /// Reads the time of the database from this clock ([`Clock::now`]). Default: the wall clock
    /// when the store was made, carried on by tokio's time, so that paused time pauses leases too.
    pub fn clock(mut self, clock: Arc<dyn Clock>) -> Self {
        self.clock = Some(clock);
        self
    }

    /// Identity of the outbox. Default: a fresh one. For tests that compare two runs.
    pub fn identity(mut self, identity: OutboxId) -> Self {
        self.identity = Some(identity);
        self
    }

    /// Starts the default clock at a given instant, so that two runs under paused time see the same
    /// instants.
    pub fn starting_at(self, start: Timestamp) -> Self {
        self.clock(Arc::new(RuntimeClock::starting_at(start)))
    }

    /// Makes the store, empty. A retention below its minimum is reported by
    /// [`check`](outbox_contract::Store::check), with which relays and inboxes start.
    #[must_use]
    pub fn build(self) -> MemoryStore {
        MemoryStore::with(self)
    }
}

impl Default for MemoryStoreBuilder {
    fn default() -> Self {
        Self { ordering: Ordering::Single, options: StoreOptions::default(), clock: None, identity: None }
    }
}

impl std::fmt::Debug for MemoryStoreBuilder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MemoryStoreBuilder")
            .field("ordering", &self.ordering)
            .field("options", &self.options)
            .finish_non_exhaustive()
    }
}
