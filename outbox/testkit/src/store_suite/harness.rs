//! The harness: the part that the author of a store implements, so that the suite can run against
//! it.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use outbox_contract::Transactional;

/// Gives each test of the suite a store of its own.
///
/// Every method without a default is required, and so is each that a [`Capability`] names, unless
/// [`LACKS`](Self::LACKS) has it: without either, the properties that need it fail. The harness owns
/// everything that has to be cleaned up (a temporary folder, a database made for one test). It cleans
/// up when it is dropped.
pub trait StoreHarness: Send + Sync + Sized + 'static {
    /// The store under test.
    type Store: Transactional;

    /// Capabilities that the store or this harness lacks. The suite does not test the properties that
    /// need them. Default: none.
    const LACKS: &'static [Capability] = &[];

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
    /// long. See [`Capability::OtherRetention`].
    fn as_another_process_that_keeps_ids(
        &self,
        kept: Duration,
    ) -> impl Future<Output = Arc<Self::Store>> + Send {
        let _ = kept;
        async { missing(Capability::OtherRetention) }
    }

    /// Advances the database's clock by at least this much. By default a sleep of tokio's: real
    /// against a real database, and immediate where the test runs in paused time and the store's
    /// clock is tokio's.
    fn advance(&self, by: Duration) -> impl Future<Output = ()> + Send {
        tokio::time::sleep(by)
    }

    /// Sets the database's clock back. Where that is impossible, moves the ends of lives, leases
    /// and roles in its tables ahead by as much, which has the same effect. A relay then finds them
    /// as after a failover to a server whose clock is behind. See [`Capability::ClockBack`].
    fn set_clock_back(&self, by: Duration) -> impl Future<Output = ()> + Send {
        let _ = by;
        async { missing(Capability::ClockBack) }
    }

    /// Makes the audit refuse every entry from now on, as a full disk or a missing right does. See
    /// [`Capability::RefusedAudit`].
    fn refuse_audit(&self) -> impl Future<Output = ()> + Send {
        async { missing(Capability::RefusedAudit) }
    }

    /// Makes the database count positions on from this one: as after that many appends or, where it
    /// is lower than the last, as after an import or a restore. See [`Capability::LastPosition`].
    fn set_last_position(&self, last: i64) -> impl Future<Output = ()> + Send {
        let _ = last;
        async { missing(Capability::LastPosition) }
    }

    /// Copies every parked row of the database into the hot table, where it stood, as a restore of that
    /// table alone does. See [`Capability::RestoredParked`].
    fn restore_parked(&self) -> impl Future<Output = ()> + Send {
        async { missing(Capability::RestoredParked) }
    }

    /// Makes every parked message of a topic unreadable, as another program's may be: its headers are
    /// no headers. See [`Capability::SpoiledParked`].
    fn spoil_parked(&self, topic: &str) -> impl Future<Output = ()> + Send {
        let _ = topic;
        async { missing(Capability::SpoiledParked) }
    }

    /// Releases every held key by hand: clears its mark in the table, and nothing else. See
    /// [`Capability::ReleaseByHand`].
    fn release_by_hand(&self) -> impl Future<Output = ()> + Send {
        async { missing(Capability::ReleaseByHand) }
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

/// Something that not every store has, or that not every harness can do. Every property of the suite
/// is tested unless [`StoreHarness::LACKS`] names what it needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Capability {
    /// The store under test keeps delivered messages for inspection and replay.
    History,
    /// [`check`](outbox_contract::Store::check) distinguishes a database that was never migrated
    /// from one that was. Lacking where there is nothing to migrate.
    Migrations,
    /// [`wakeups`](outbox_contract::Store::wakeups) yields when a commit of this process has
    /// something to fetch.
    Wakeups,
    /// [`StoreHarness::as_another_process_that_keeps_ids`]. Lacking where the store has one retention
    /// for all processes.
    OtherRetention,
    /// [`StoreHarness::set_clock_back`].
    ClockBack,
    /// [`StoreHarness::refuse_audit`].
    RefusedAudit,
    /// [`StoreHarness::set_last_position`]. Lacking where a position is a time of the clock.
    LastPosition,
    /// [`StoreHarness::restore_parked`].
    RestoredParked,
    /// [`StoreHarness::spoil_parked`].
    SpoiledParked,
    /// [`StoreHarness::release_by_hand`].
    ReleaseByHand,
    /// Of the suite of inboxes: a test can let the maximum age of handled ids pass. Lacking where the
    /// clock is real.
    ExpiredIds,
    /// Of the suite of inboxes: the store has a limit of open transactions.
    TransactionLimit,
}

/// Returns true if a harness does not lack this capability.
pub(crate) fn has<H: StoreHarness>(capability: Capability) -> bool {
    !H::LACKS.contains(&capability)
}

fn missing<T>(capability: Capability) -> T {
    panic!("implement the method of the harness that Capability::{capability:?} names, or add it to LACKS")
}
