//! The harness: what the author of a store fills in, so that the suite can run against it.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use outbox_contract::Transactional;

/// Gives each test of the suite a store of its own.
///
/// Only [`fresh`](Self::fresh) and [`store`](Self::store) must be written. Whatever has to be cleaned up (a temporary folder, a
/// database made for one test) is owned by the harness and cleaned up when it is dropped.
pub trait StoreHarness: Send + Sync + Sized + 'static {
    /// The store under test.
    type Store: Transactional;

    /// An empty database for one test, with nobody else in it. The suite migrates it itself.
    fn fresh() -> impl Future<Output = Self> + Send;

    /// The store in that database. Every call may give the same one.
    fn store(&self) -> Arc<Self::Store>;

    /// The same database as another process sees it: a store with connections and memory of its own. Where there is no
    /// such thing, the same store.
    fn as_another_process(&self) -> impl Future<Output = Arc<Self::Store>> + Send {
        async { self.store() }
    }

    /// What this store can do beyond what every store must.
    fn capabilities(&self) -> Capabilities {
        Capabilities::default()
    }

    /// Lets the database's clock go on by this much, at least. By default a sleep of tokio's: real against a real
    /// database, and over at once where the test runs in paused time and the store's clock is tokio's.
    fn advance(&self, by: Duration) -> impl Future<Output = ()> + Send {
        tokio::time::sleep(by)
    }

    /// Sets the database's clock back; or, where nobody can, moves what its tables say of the ends of lives, leases and roles ahead by as
    /// much, which comes to the same. So a relay finds them after a failover to a server whose clock is behind. Whether it was done; by
    /// default it can't be, and what is said of such leases is not tested.
    fn set_clock_back(&self, by: Duration) -> impl Future<Output = bool> + Send {
        let _ = by;
        async { false }
    }

    /// Why this store can't be tested here (the address of its server is not set). None: it can. A test that is skipped says so; with
    /// `REQUIRE_BACKENDS=1` in the environment it fails instead.
    #[must_use]
    fn skipped() -> Option<String> {
        None
    }
}

/// What a store can do beyond what every store must. By default nothing is left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Capabilities {
    /// The store under test keeps delivered messages, so that they can be looked at and replayed. Default: yes.
    pub history: bool,
    /// [`check`](outbox_contract::Store::check) tells a database that was never migrated from one that was. Default: yes; no where
    /// there is nothing to migrate.
    pub migrations: bool,
    /// [`wakeups`](outbox_contract::Store::wakeups) yields when a commit of this process has something to fetch. Default: yes.
    pub wakeups: bool,
}

impl Capabilities {
    /// Says whether a history is kept.
    #[must_use]
    pub const fn with_history(mut self, history: bool) -> Self {
        self.history = history;
        self
    }

    /// Says whether there is anything to migrate.
    #[must_use]
    pub const fn with_migrations(mut self, migrations: bool) -> Self {
        self.migrations = migrations;
        self
    }

    /// Says whether wake-ups come at all.
    #[must_use]
    pub const fn with_wakeups(mut self, wakeups: bool) -> Self {
        self.wakeups = wakeups;
        self
    }
}

impl Default for Capabilities {
    fn default() -> Self {
        Self { history: true, migrations: true, wakeups: true }
    }
}
