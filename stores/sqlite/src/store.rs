//! The store: a SQLite file with an outbox in it.

use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_core::stream::BoxStream;
use futures_util::{StreamExt, stream};
use outbox_contract::admin::{Actor, Misplaced};
use outbox_contract::backend::rules::options::refuse;
use outbox_contract::backend::{
    Backlog, Due, DueRequest, FetchRequest, Fetched, Frontier, KeyTransition, Lease, LeaseRequest, Leased,
    LowWater, Maintained, RelayId, RowId, Transitioned, Unserved, Wakeup, WakeupSignal,
};
use outbox_contract::{Admin, Route, Store, StoreError, async_trait};
use outbox_store_sql::Migration;
use outbox_store_sql::looks::Looks;
use sqlx::sqlite::SqlitePool;

use crate::config::SqliteOptions;
use crate::error::store_error;
use crate::migrate::{self, MIGRATIONS};
use crate::pools::Pools;
use crate::watch::Watch;
use crate::{due, fetch, handled, lease, maintain, settle, transition};

/// An outbox in a SQLite file. Cheap to clone: clones share their connections.
///
/// See the [crate](crate) for its promises and how to run it.
#[derive(Clone)]
pub struct SqliteStore {
    inner: Arc<Inner>,
    /// Whoever performs the admin operations of this handle.
    actor: Actor,
}

struct Inner {
    pools: Pools,
    wakeup_signal: WakeupSignal,
    looks: Arc<Looks>,
    /// See [`Watch`].
    seat: Arc<tokio::sync::Mutex<()>>,
    options: SqliteOptions,
}

impl SqliteStore {
    /// Creates a store in the database of a pool, with the default options.
    ///
    /// Appends happen in transactions of this pool. All work of relays runs on four connections of
    /// the store's own to the same file. They are opened when they are first needed with the pool's
    /// options, so that neither waits for the other's connections. A pool of a `:memory:` database
    /// can't have such: there the pool serves for everything, and [`in_memory`](Self::in_memory) is
    /// the better choice.
    #[must_use]
    pub fn new(pool: SqlitePool) -> Self {
        Self::of(Pools::beside(pool, None), SqliteOptions::default())
    }

    /// Like [`new`](Self::new), with options. `busy_timeout` applies to the store's own
    /// connections; those of the pool keep theirs.
    ///
    /// # Errors
    ///
    /// [`Invalid`](StoreErrorKind::Invalid) with every [problem with the
    /// options](SqliteOptions::problems).
    pub fn with_options(pool: SqlitePool, options: SqliteOptions) -> Result<Self, StoreError> {
        refuse("open", &options.problems())?;
        let pools = Pools::beside(pool, Some(&options));
        Ok(Self::of(pools, options))
    }

    /// Opens a store in a file, which is created if it does not exist, with the default options.
    /// `:memory:` is [`in_memory`](Self::in_memory), except for the tables:
    /// [`migrate`](Store::migrate) creates them.
    ///
    /// # Errors
    ///
    /// `Unavailable` for a file that can't be opened; `Other` for one that is not a database.
    pub async fn open(path: impl AsRef<Path>) -> Result<Self, StoreError> {
        Self::open_with(path, SqliteOptions::default()).await
    }

    /// Like [`open`](Self::open), with options.
    ///
    /// # Errors
    ///
    /// The same as of `open`, and `Invalid` with every problem with the options.
    pub async fn open_with(path: impl AsRef<Path>, options: SqliteOptions) -> Result<Self, StoreError> {
        refuse("open", &options.problems())?;
        Ok(Self::of(Pools::open(path.as_ref(), &options).await?, options))
    }

    /// Like [`open`](Self::open), for a URL: `sqlite://path/to/file.db`, relative or absolute;
    /// `sqlite::memory:` is [`in_memory`](Self::in_memory).
    ///
    /// # Errors
    ///
    /// The same as of `open`, and `Invalid` for an invalid URL.
    pub async fn connect(url: &str) -> Result<Self, StoreError> {
        Self::connect_with(url, SqliteOptions::default()).await
    }

    /// Like [`connect`](Self::connect), with options.
    ///
    /// # Errors
    ///
    /// The same as of `connect`, and `Invalid` with every problem with the options.
    pub async fn connect_with(url: &str, options: SqliteOptions) -> Result<Self, StoreError> {
        refuse("open", &options.problems())?;
        Ok(Self::of(Pools::connect(url, &options).await?, options))
    }

    /// Creates a database of this process alone, for tests and experiments. It is migrated, and
    /// deleted with the last clone of the store and of its [`pool`](Self::pool).
    ///
    /// It is really a file in the system's temporary directory, never synced to the disk. A
    /// database that SQLite keeps in memory blocks readers while a writer is active, so that a
    /// relay could not work beside the user. A process that is killed leaves the file.
    ///
    /// # Errors
    ///
    /// `Unavailable` if there is no writable directory for temporary files.
    pub async fn in_memory() -> Result<Self, StoreError> {
        Self::in_memory_with(SqliteOptions::default()).await
    }

    /// Like [`in_memory`](Self::in_memory), with options.
    ///
    /// # Errors
    ///
    /// The same as of `in_memory`, and `Invalid` with every problem with the options.
    pub async fn in_memory_with(options: SqliteOptions) -> Result<Self, StoreError> {
        refuse("open", &options.problems())?;
        let store = Self::of(Pools::temporary(&options).await?, options);
        store.migrate().await?;
        Ok(store)
    }

    /// Returns a handle whose operations another actor performs.
    pub(crate) fn with_actor(&self, actor: Actor) -> Self {
        Self { actor, ..self.clone() }
    }

    pub(crate) fn actor(&self) -> &Actor {
        &self.actor
    }

    fn of(pools: Pools, options: SqliteOptions) -> Self {
        let (wakeup_signal, looks, seat) = (WakeupSignal::new(), Arc::default(), Arc::default());
        let inner = Inner { pools, wakeup_signal, looks, seat, options };
        Self { inner: Arc::new(inner), actor: Actor::default() }
    }

    /// Returns the user's pool: begin transactions here, best with `begin_with("BEGIN IMMEDIATE")`.
    #[must_use]
    pub fn pool(&self) -> &SqlitePool {
        &self.inner.pools.users
    }

    /// Returns the options in force.
    #[must_use]
    pub fn options(&self) -> &SqliteOptions {
        &self.inner.options
    }

    /// Returns the statements that create the tables, for users with a migration tool of their own.
    #[must_use]
    pub const fn migrations() -> &'static [Migration] {
        MIGRATIONS.0
    }

    pub(crate) fn pools(&self) -> &Pools {
        &self.inner.pools
    }

    pub(crate) fn bell(&self) -> &WakeupSignal {
        &self.inner.wakeup_signal
    }

    /// Checks that the file is still the one that was opened.
    fn in_place(&self, operation: &'static str) -> Result<(), StoreError> {
        self.pools().place.as_ref().map_or(Ok(()), |place| place.check(operation))
    }

    fn keeps_history(&self) -> bool {
        self.inner.options.history.is_some()
    }
}

/// Shows the options only: the path of the file may be confidential.
impl fmt::Debug for SqliteStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SqliteStore").field("options", &self.inner.options).finish_non_exhaustive()
    }
}

#[async_trait]
impl Store for SqliteStore {
    fn name(&self) -> &'static str {
        "sqlite"
    }

    fn frontier(&self) -> Frontier<'_> {
        Frontier::Single
    }

    async fn migrate(&self) -> Result<(), StoreError> {
        migrate::migrate(&self.pools().deciding).await?;
        self.identity().await.map(drop)
    }

    async fn check(&self) -> Result<(), StoreError> {
        self.in_place("check")?;
        migrate::check(&self.pools().reads).await?;
        self.misplaced().await?.iter().for_each(Misplaced::warn);
        Ok(())
    }

    async fn lease(&self, request: &LeaseRequest) -> Result<Leased, StoreError> {
        self.in_place("lease")?;
        lease::heartbeat(&self.pools().settling, request).await.map_err(|error| store_error("lease", error))
    }

    async fn give_back(
        &self,
        relay: RelayId,
        route: &Route,
        leases: &[Lease],
        low_water: &LowWater,
        leaving: bool,
    ) -> Result<(), StoreError> {
        lease::give_back(&self.pools().settling, relay, route, leases, low_water, leaving)
            .await
            .map_err(|error| store_error("give_back", error))
    }

    async fn fetch(&self, request: &FetchRequest) -> Result<Fetched, StoreError> {
        self.inner.looks.begins(&request.route, &request.buckets, Instant::now());
        let fetched = fetch::fetch(self.pools(), request).await?;
        self.inner.looks.found(&request.route, &fetched.rows);
        Ok(fetched)
    }

    async fn due(&self, request: &DueRequest) -> Result<Due, StoreError> {
        due::due(&self.pools().reads, request).await.map_err(|error| store_error("due", error))
    }

    async fn settle(&self, _route: &Route, delivered: &[RowId]) -> Result<(), StoreError> {
        settle::settle(&self.pools().settling, delivered, self.keeps_history()).await
    }

    async fn transition(&self, transitions: &[KeyTransition]) -> Result<Vec<Transitioned>, StoreError> {
        transition::transition(&self.pools().deciding, transitions, self.actor(), self.keeps_history())
            .await
            .map_err(|error| store_error("transition", error))
    }

    async fn elect(&self, role: &str, relay: RelayId, lasts: Duration) -> Result<bool, StoreError> {
        lease::elect(&self.pools().settling, role, relay, lasts)
            .await
            .map_err(|error| store_error("elect", error))
    }

    async fn record_retention(&self) -> Result<(), StoreError> {
        handled::record_retention(&self.pools().deciding, self.options())
            .await
            .map_err(|error| store_error("record_retention", error))
    }

    async fn maintain(&self, limit: usize) -> Result<Maintained, StoreError> {
        let maintained = maintain::maintain(&self.pools().deciding, self.options(), limit)
            .await
            .map_err(|error| store_error("maintain", error))?;
        if maintained.promoted > 0 {
            self.bell().committed();
        }
        Ok(maintained)
    }

    async fn backlog(&self, route: &Route) -> Result<Backlog, StoreError> {
        maintain::backlog(&self.pools().reads, route, self.options().counting_limit)
            .await
            .map_err(|error| store_error("backlog", error))
    }

    async fn unserved(&self, after: Duration) -> Result<Vec<Unserved>, StoreError> {
        maintain::unserved(&self.pools().reads, after, self.options().counting_limit)
            .await
            .map_err(|error| store_error("unserved", error))
    }

    fn wakeup_signal(&self) -> &WakeupSignal {
        self.bell()
    }

    /// Yields wake-ups of this process at once, and those of others as far as they are watched for:
    /// see [`watch_interval`](SqliteOptions::watch_interval).
    fn wakeups(&self) -> BoxStream<'static, Wakeup> {
        let own = self.bell().listen().into_stream();
        let (Some(interval), Some(file)) = (self.options().watch_interval, &self.pools().watching) else {
            return own.boxed();
        };
        let watch = Watch {
            file: file.clone(),
            signal: self.bell().clone(),
            looks: Arc::clone(&self.inner.looks),
            interval,
            seat: Arc::clone(&self.inner.seat),
        };
        // What it finds comes by the signal, to all relays of this process.
        let watching = stream::once(watch.run()).map(|never| match never {});
        stream::select(own, watching).boxed()
    }
}
