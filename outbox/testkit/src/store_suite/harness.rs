//! The harness: the part that the author of a store implements, so that the suite can run against
//! it.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use outbox_contract::Transactional;

/// Gives each test of the suite a store of its own.
///
/// Only [`fresh`](Self::fresh) and [`store`](Self::store) are required. The harness owns everything
/// that has to be cleaned up (a temporary folder, a database made for one test). It cleans up when
/// it is dropped.
pub trait StoreHarness: Send + Sync + Sized + 'static {
    /// The store under test.
    type Store: Transactional;

    /// Creates an empty database for one test, used by no other test. The suite migrates it itself.
    fn fresh() -> impl Future<Output = Self> + Send;

    /// Returns the store in that database. Every call may return the same one.
    fn store(&self) -> Arc<Self::Store>;

    /// Returns the same database as another process sees it: a store with connections and memory of
    /// its own. Where there is no such thing, returns the same store.
    fn as_another_process(&self) -> impl Future<Output = Arc<Self::Store>> + Send {
        async { self.store() }
    }

    /// Returns the same database as another process sees it that is to keep handled ids for this
    /// long. By default there is none: the store has one retention for all processes.
    fn as_another_process_that_keeps_ids(
        &self,
        kept: Duration,
    ) -> impl Future<Output = Option<Arc<Self::Store>>> + Send {
        let _ = kept;
        async { None }
    }

    /// Returns the optional capabilities of this store.
    fn capabilities(&self) -> Capabilities {
        Capabilities::default()
    }

    /// Advances the database's clock by at least this much. By default a sleep of tokio's: real
    /// against a real database, and immediate where the test runs in paused time and the store's
    /// clock is tokio's.
    fn advance(&self, by: Duration) -> impl Future<Output = ()> + Send {
        tokio::time::sleep(by)
    }

    /// Sets the database's clock back. Where that is impossible, moves the ends of lives, leases
    /// and roles in its tables ahead by as much, which has the same effect. A relay then finds them
    /// as after a failover to a server whose clock is behind. Returns true if it was done; by
    /// default it can't be, and the suite does not test such leases.
    fn set_clock_back(&self, by: Duration) -> impl Future<Output = bool> + Send {
        let _ = by;
        async { false }
    }

    /// Makes the audit refuse every entry from now on, as a full disk or a missing right does.
    /// Returns true if it was done; by default it can't be.
    fn refuse_audit(&self) -> impl Future<Output = bool> + Send {
        async { false }
    }

    /// Makes the database count positions on from this one: as after that many appends or, where it
    /// is lower than the last, as after an import or a restore. Returns true if it was done; by
    /// default it can't be, as where a position is a time of the clock.
    fn set_last_position(&self, last: i64) -> impl Future<Output = bool> + Send {
        let _ = last;
        async { false }
    }

    /// Copies every parked row of the database into the hot table, where it stood, as a restore of that
    /// table alone does. Returns true if it was done; by default it can't be.
    fn restore_parked(&self) -> impl Future<Output = bool> + Send {
        async { false }
    }

    /// Makes every parked message of a topic unreadable, as another program's may be: its headers are
    /// no headers. Returns true if it was done; by default it can't be.
    fn spoil_parked(&self, topic: &str) -> impl Future<Output = bool> + Send {
        let _ = topic;
        async { false }
    }

    /// Releases every held key by hand: clears its mark in the table, and nothing else. Returns true if
    /// it was done; by default it can't be.
    fn release_by_hand(&self) -> impl Future<Output = bool> + Send {
        async { false }
    }

    /// Makes every handled id older by this much, and the last renewal of every recorded retention,
    /// as if that time had passed with nothing handled.
    /// By default lets the time pass, which takes days against a real database: there, set back the
    /// times in its table. In paused time, allow for it with [`max_time`](Self::max_time).
    fn age_handled_ids(&self, by: Duration) -> impl Future<Output = ()> + Send {
        self.advance(by)
    }

    /// Returns the time limit after which a single test counts as hanging, by tokio's clock: three
    /// minutes by default. In paused time, where a test that waits for nothing reaches any limit at
    /// once, a year leaves room for [`age_handled_ids`](Self::age_handled_ids).
    fn max_time(&self) -> Duration {
        Duration::from_secs(180)
    }

    /// Returns the reason why this store can't be tested here (the address of its server is not
    /// set). None: it can. A skipped test reports the reason; with `REQUIRE_BACKENDS=1` in the
    /// environment it fails instead.
    #[must_use]
    fn skipped() -> Option<String> {
        None
    }
}

/// Capabilities of a store beyond the required ones. By default nothing is left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Capabilities {
    /// The store under test keeps delivered messages for inspection and replay. Default: yes.
    pub history: bool,
    /// [`check`](outbox_contract::Store::check) distinguishes a database that was never migrated
    /// from one that was. Default: yes; no where there is nothing to migrate.
    pub migrations: bool,
    /// [`wakeups`](outbox_contract::Store::wakeups) yields when a commit of this process has
    /// something to fetch. Default: yes.
    pub wakeups: bool,
}

impl Capabilities {
    /// Sets whether a history is kept.
    #[must_use]
    pub const fn with_history(mut self, history: bool) -> Self {
        self.history = history;
        self
    }

    /// Sets whether there is anything to migrate.
    #[must_use]
    pub const fn with_migrations(mut self, migrations: bool) -> Self {
        self.migrations = migrations;
        self
    }

    /// Sets whether wake-ups arrive at all.
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
