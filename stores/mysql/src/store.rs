//! The store: a MySQL or MariaDB database with an outbox in it.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use futures_core::stream::BoxStream;
use futures_util::{StreamExt, stream};
use outbox_contract::admin::{Actor, Misplaced};
use outbox_contract::backend::{
    Backlog, BucketSet, Due, DueRequest, FetchRequest, Fetched, Frontier, KeyTransition, Lease, LeaseRequest,
    Leased, LowWater, Maintained, RelayId, RowId, StripeMark, StripeMarks, Transitioned, Unserved, Wakeup,
    WakeupSignal,
};
use outbox_contract::{Route, Store, StoreError, async_trait};
use outbox_store_sql::Migration;
use outbox_store_sql::looks::Looks;
use sqlx::mysql::{MySqlConnection, MySqlPool};

use crate::cluster::Kind;
use crate::config::MySqlOptions;
use crate::error::store_error;
use crate::fenced::Fenced;
use crate::line::{Line, Way};
use crate::lines::Lines;
use crate::migrate::{self, MIGRATIONS};
use crate::runs::Runs;
use crate::settle::Settling;
use crate::stripes::{self, KnownRoutes};
use crate::watch::Watch;
use crate::{below, check, due, fetch, handled, history, identity, lease, maintain, transition, unserved};

/// Interval at which partitions of the history are looked after.
const TURNS: Duration = Duration::from_secs(60);

/// An outbox in a MySQL or MariaDB database. Cheap to clone: clones share their connections.
///
/// See the [crate](crate) for an example and its features, and its page of the book for all else.
#[derive(Clone)]
pub struct MySqlStore {
    inner: Arc<Inner>,
    /// Whoever performs the admin operations of this handle.
    actor: Actor,
}

struct Inner {
    pool: MySqlPool,
    /// True if connections that come back to the pool are surely restored.
    is_tidy: bool,
    way: Way,
    lines: Lines,
    wakeup_signal: WakeupSignal,
    looks: Arc<Looks>,
    /// See [`Watch`].
    seat: Arc<tokio::sync::Mutex<()>>,
    options: MySqlOptions,
    routes: KnownRoutes,
    fenced: Fenced,
    runs: Mutex<Runs>,
    /// Time at which partitions of the history were looked after.
    turned: Mutex<Option<Instant>>,
}

impl MySqlStore {
    /// Returns a handle whose operations another actor performs.
    pub(crate) fn with_actor(&self, actor: Actor) -> Self {
        Self { actor, ..self.clone() }
    }

    pub(crate) fn actor(&self) -> &Actor {
        &self.actor
    }

    pub(crate) fn of(pool: MySqlPool, options: MySqlOptions, is_tidy: bool) -> Self {
        let way = Way::new(pool.clone(), &options);
        Self {
            inner: Arc::new(Inner {
                lines: Lines::new(&way),
                wakeup_signal: WakeupSignal::new(),
                looks: Arc::default(),
                seat: Arc::default(),
                routes: KnownRoutes::default(),
                fenced: Fenced::default(),
                runs: Mutex::default(),
                turned: Mutex::new(None),
                pool,
                is_tidy,
                way,
                options,
            }),
            actor: Actor::default(),
        }
    }

    /// Returns the user's pool: begin transactions here.
    #[must_use]
    pub fn pool(&self) -> &MySqlPool {
        &self.inner.pool
    }

    pub(crate) fn is_tidy(&self) -> bool {
        self.inner.is_tidy
    }

    /// Returns the options in force.
    #[must_use]
    pub fn options(&self) -> &MySqlOptions {
        &self.inner.options
    }

    /// Returns the statements that create the tables, for users with a migration tool of their own:
    /// run each once, in order.
    #[must_use]
    pub const fn migrations() -> &'static [Migration] {
        MIGRATIONS.0
    }

    pub(crate) fn lines(&self) -> &Lines {
        &self.inner.lines
    }

    pub(crate) fn way(&self) -> &Way {
        &self.inner.way
    }

    /// Knowledge of the server.
    pub(crate) fn kind(&self) -> &Kind {
        self.way().kind()
    }

    pub(crate) fn bell(&self) -> &WakeupSignal {
        &self.inner.wakeup_signal
    }

    pub(crate) fn routes(&self) -> &KnownRoutes {
        &self.inner.routes
    }

    pub(crate) fn fenced(&self) -> &Fenced {
        &self.inner.fenced
    }

    fn keeps_history(&self) -> bool {
        self.inner.options.history.is_some()
    }

    /// Runs something on one of the store's own connections.
    pub(crate) async fn on<T>(
        &self,
        operation: &'static str,
        line: &Line,
        work: impl AsyncFnOnce(&mut MySqlConnection) -> Result<T, sqlx::Error>,
    ) -> Result<T, StoreError> {
        let failed = |error| store_error(operation, error);
        let mut line = line.hold().await.map_err(failed)?;
        let done = work(&mut line.connection).await;
        line.finish(done).map_err(failed)
    }

    /// Looks after the partitions of the history, now and then. Failing costs space, no message:
    /// rows go to the last partition.
    async fn turn_history(&self) -> u64 {
        let Some(kept) = self.options().history else { return 0 };
        {
            let mut turned = self.inner.turned.lock().unwrap_or_else(PoisonError::into_inner);
            if turned.is_some_and(|turned| turned.elapsed() < TURNS) {
                return 0;
            }
            *turned = Some(Instant::now());
        }
        let turn = async |connection: &mut MySqlConnection| history::turn(connection, kept).await;
        self.on("maintain", &self.lines().operating, turn).await.unwrap_or_else(|error| {
            tracing::warn!(%error, "could not create or drop partitions of the history; this user needs alter and drop on outbox_history");
            0
        })
    }
}

/// Shows the options only: the address and user of the database may be secret.
impl fmt::Debug for MySqlStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MySqlStore").field("options", &self.inner.options).finish_non_exhaustive()
    }
}

#[async_trait]
impl Store for MySqlStore {
    fn name(&self) -> &'static str {
        "mysql"
    }

    fn history_kept(&self) -> Option<Duration> {
        self.options().history
    }

    fn frontier(&self) -> Frontier<'_> {
        Frontier::Stripes(self)
    }

    /// On a connection of its own, as the pool opens them.
    async fn migrate(&self) -> Result<(), StoreError> {
        let mut connection = self.inner.way.open().await.map_err(|error| store_error("migrate", error))?;
        migrate::migrate(&mut connection).await?;
        let made = identity::read(&mut connection).await;
        made.map(drop).map_err(|error| store_error("migrate", error))
    }

    async fn check(&self) -> Result<(), StoreError> {
        // A connection that has prepared nothing: what was prepared before says nothing of the
        // tables as they are now.
        let mut connection = self.inner.way.open().await.map_err(|error| store_error("check", error))?;
        check::check(&mut connection).await?;
        match below::find(&mut connection).await {
            Ok(found) => found.iter().for_each(Misplaced::warn),
            // What hinders the look hinders nothing else.
            Err(error) => {
                tracing::debug!(%error, "could not look for messages above the counters of their stripes")
            }
        }
        Ok(())
    }

    async fn lease(&self, request: &LeaseRequest) -> Result<Leased, StoreError> {
        let work = async |connection: &mut MySqlConnection| {
            // Nodes of a cluster do not share their locks.
            let is_node = match self.kind().last() {
                Some(is_node) => is_node,
                None => self.kind().learn(&mut *connection).await?,
            };
            lease::heartbeat(connection, request, !is_node).await
        };
        self.on("lease", &self.lines().leasing, work).await
    }

    async fn give_back(
        &self,
        relay: RelayId,
        route: &Route,
        leases: &[Lease],
        low_water: &LowWater,
        leaving: bool,
    ) -> Result<(), StoreError> {
        let work = async |connection: &mut MySqlConnection| {
            lease::give_back(connection, relay, route, leases, low_water, leaving).await
        };
        self.on("give_back", &self.lines().leasing, work).await
    }

    async fn fetch(&self, request: &FetchRequest) -> Result<Fetched, StoreError> {
        self.inner.looks.begins(&request.route, &request.buckets, Instant::now());
        let work = async |connection: &mut MySqlConnection| fetch::fetch(connection, request).await;
        let (fetched, clock) = self.on("fetch", &self.lines().fetching, work).await?;
        self.inner.looks.found(&request.route, &fetched.rows);
        // A node of a cluster may abort whoever holds a lock that another node's transaction needs:
        // there a row is settled by its own position alone.
        if self.kind().last() == Some(false) {
            let mut runs = self.inner.runs.lock().unwrap_or_else(PoisonError::into_inner);
            runs.read(request, &fetched, clock);
        }
        Ok(fetched)
    }

    /// On another connection: a look may take long where the server has not purged yet what was
    /// deleted.
    async fn fetch_below(&self, request: &FetchRequest) -> Result<Fetched, StoreError> {
        let work = async |connection: &mut MySqlConnection| fetch::fetch(connection, request).await;
        self.on("fetch_below", &self.lines().looking, work).await.map(|(fetched, _)| fetched)
    }

    async fn due(&self, request: &DueRequest) -> Result<Due, StoreError> {
        let work = async |connection: &mut MySqlConnection| due::due(connection, request).await;
        self.on("due", &self.lines().looking, work).await
    }

    async fn settle(&self, route: &Route, delivered: &[RowId]) -> Result<(), StoreError> {
        if delivered.is_empty() {
            return Ok(());
        }
        let work = async |connection: &mut MySqlConnection| {
            let settling = Settling {
                route,
                history: self.keeps_history(),
                is_mysql: self.kind().is_mysql(),
                runs: &self.inner.runs,
            };
            settling.settle(connection, delivered).await
        };
        self.on("settle", &self.lines().settling, work).await
    }

    async fn transition(&self, transitions: &[KeyTransition]) -> Result<Vec<Transitioned>, StoreError> {
        if transitions.is_empty() {
            return Ok(Vec::new());
        }
        let work = async |connection: &mut MySqlConnection| {
            transition::transition(connection, transitions, self.actor(), self.keeps_history()).await
        };
        self.on("transition", &self.lines().transitioning, work).await
    }

    async fn elect(&self, role: &str, relay: RelayId, lasts: Duration) -> Result<bool, StoreError> {
        let work =
            async |connection: &mut MySqlConnection| lease::elect(connection, role, relay, lasts).await;
        self.on("elect", &self.lines().operating, work).await
    }

    async fn record_retention(&self) -> Result<(), StoreError> {
        let work = async |connection: &mut MySqlConnection| {
            handled::record_retention(connection, self.options()).await
        };
        self.on("record_retention", &self.lines().operating, work).await
    }

    async fn maintain(&self, limit: usize) -> Result<Maintained, StoreError> {
        let work = async |connection: &mut MySqlConnection| {
            maintain::maintain(connection, self.options(), limit).await
        };
        let mut maintained = self.on("maintain", &self.lines().operating, work).await?;
        if maintained.promoted > 0 {
            self.bell().committed();
        }
        maintained.history_removed += self.turn_history().await;
        Ok(maintained)
    }

    async fn backlog(&self, route: &Route) -> Result<Backlog, StoreError> {
        let limit = self.options().counting_limit;
        let work = async |connection: &mut MySqlConnection| maintain::backlog(connection, route, limit).await;
        self.on("backlog", &self.lines().looking, work).await
    }

    async fn unserved(&self, after: Duration) -> Result<Vec<Unserved>, StoreError> {
        let limit = self.options().counting_limit;
        let work =
            async |connection: &mut MySqlConnection| unserved::unserved(connection, after, limit).await;
        // Who asks for the backlog, or appends to a new route, does not wait for it.
        self.on("unserved", &self.lines().operating, work).await
    }

    fn wakeup_signal(&self) -> &WakeupSignal {
        self.bell()
    }

    /// Yields wake-ups of this process at once, and those of others as far as they are watched for:
    /// see [`watch_interval`](MySqlOptions::watch_interval).
    fn wakeups(&self) -> BoxStream<'static, Wakeup> {
        let own = self.bell().listen().into_stream();
        let Some(interval) = self.options().watch_interval else { return own.boxed() };
        let watch = Watch {
            way: self.inner.way.clone(),
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

#[async_trait]
impl StripeMarks for MySqlStore {
    async fn stripes(&self, route: &Route, buckets: &BucketSet) -> Result<Vec<StripeMark>, StoreError> {
        self.inner.looks.begins(route, buckets, Instant::now());
        let work = async |connection: &mut MySqlConnection| stripes::marks(connection, route, buckets).await;
        self.on("stripes", &self.lines().fetching, work).await
    }
}
