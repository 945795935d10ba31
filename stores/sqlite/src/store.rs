//! The store: a SQLite file with an outbox in it.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_core::stream::BoxStream;
use futures_util::{StreamExt, stream};
use outbox_contract::admin::{Actor, Misplaced};
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
/// See the [crate](crate) for an example and its features, and its page of the book for all else.
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
    /// Returns a handle whose operations another actor performs.
    pub(crate) fn with_actor(&self, actor: Actor) -> Self {
        Self { actor, ..self.clone() }
    }

    pub(crate) fn actor(&self) -> &Actor {
        &self.actor
    }

    pub(crate) fn of(pools: Pools, options: SqliteOptions) -> Self {
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

    /// Returns the statements that create the tables, for users with a migration tool of their own:
    /// run each once, in order.
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

    fn history_kept(&self) -> Option<Duration> {
        self.options().history
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
