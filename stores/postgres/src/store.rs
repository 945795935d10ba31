//! The store: a PostgreSQL database with an outbox in it.

use std::fmt;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use futures_core::stream::BoxStream;
use futures_util::{StreamExt, stream};
use outbox_contract::admin::Actor;
use outbox_contract::backend::{
    Backlog, Due, DueRequest, FetchRequest, Fetched, Frontier, KeyTransition, Lease, LeaseRequest, Leased,
    LowWater, Maintained, OpenWriters, RelayId, RowId, Transitioned, Unserved, Wakeup, WakeupSignal, Writers,
};
use outbox_contract::{Route, Store, StoreError, StoreErrorKind, async_trait};
use outbox_store_sql::Migration;
use sqlx::postgres::{PgConnection, PgPool};
use sqlx::{AssertSqlSafe, SqlSafeStr, SqlStr};
use uuid::Uuid;

use crate::below::Below;
use crate::config::PostgresOptions;
use crate::error::{ANOTHER_LIFE, store_error};
use crate::lines::{Door, Lines};
use crate::migrate::{self, MIGRATIONS};
use crate::notifier::{Notifier, Way};
use crate::sql::Statements;
use crate::transactions::commit_and_begin;
use crate::unserved::Beginning;
use crate::weed::Weeds;
use crate::{
    check, due, fetch, identity, lease, maintain, pooler, settle, transition, unserved, wakeups, writers,
};

/// Interval of the maintenance of the history's partitions.
const TURNS: Duration = Duration::from_secs(60);

/// No life of the database: a server has been started since 1970.
const NO_LIFE: i64 = 0;

/// An outbox in a PostgreSQL database. Cheap to clone: clones share their connections.
///
/// See the [crate](crate) for an example and its features, and its page of the book for all else.
#[derive(Clone)]
pub struct PostgresStore {
    inner: Arc<Inner>,
    /// Whoever performs the admin operations of this handle.
    actor: Actor,
}

struct Inner {
    pool: PgPool,
    door: Door,
    lines: Lines,
    sql: Statements,
    /// Statement with which [`begin`](outbox_contract::Transactional::begin) begins.
    begin: SqlStr,
    commit_and_begin: SqlStr,
    wakeup_signal: WakeupSignal,
    options: PostgresOptions,
    /// Id of this store, among all that wake one another.
    sender: String,
    notifier: Mutex<Option<Notifier>>,
    /// Time of the last maintenance of the history's partitions.
    turned: Mutex<Option<Instant>>,
    /// Start of the search for unserved routes.
    unserved: Beginning,
    /// Messages below the marks of relays.
    below: Below,
    /// Life of the database that the last heartbeat reported, while its connection is not known to
    /// be lost.
    life: AtomicI64,
    /// Detection of pool connections that lead to a server that takes no writes.
    weeds: Weeds,
}

impl PostgresStore {
    /// Returns a handle whose operations another actor performs.
    pub(crate) fn with_actor(&self, actor: Actor) -> Self {
        Self { actor, ..self.clone() }
    }

    pub(crate) fn actor(&self) -> &Actor {
        &self.actor
    }

    pub(crate) fn of(pool: PgPool, options: PostgresOptions) -> Self {
        let door = Door::new(pool.clone(), &options);
        let lines = Lines::new(&door);
        let begin = format!(
            "begin; set local lock_timeout = {}; set local idle_in_transaction_session_timeout = {}",
            options.lock_timeout.as_millis(),
            options.transaction_idle_timeout.as_millis()
        );
        Self {
            inner: Arc::new(Inner {
                sql: Statements::of(options.schema.as_deref(), !options.transaction_pooler),
                commit_and_begin: AssertSqlSafe(commit_and_begin(&begin)).into_sql_str(),
                begin: AssertSqlSafe(begin).into_sql_str(),
                wakeup_signal: WakeupSignal::new(),
                sender: Uuid::now_v7().to_string(),
                notifier: Mutex::new(None),
                turned: Mutex::new(None),
                unserved: Beginning::default(),
                below: Below::default(),
                weeds: Weeds::default(),
                life: AtomicI64::new(NO_LIFE),
                pool,
                door,
                lines,
                options,
            }),
            actor: Actor::default(),
        }
    }

    /// Returns the user's pool: begin transactions here.
    #[must_use]
    pub fn pool(&self) -> &PgPool {
        &self.inner.pool
    }

    /// Returns the options in force.
    #[must_use]
    pub fn options(&self) -> &PostgresOptions {
        &self.inner.options
    }

    /// Returns the statements that create the tables, for users with a migration tool of their own:
    /// run each once, in order, with the schema of the outbox first in the `search_path`.
    #[must_use]
    pub const fn migrations() -> &'static [Migration] {
        MIGRATIONS.0
    }

    pub(crate) fn lines(&self) -> &Lines {
        &self.inner.lines
    }

    pub(crate) fn sql(&self) -> &Statements {
        &self.inner.sql
    }

    pub(crate) fn weeds(&self) -> &Weeds {
        &self.inner.weeds
    }

    pub(crate) fn bell(&self) -> &WakeupSignal {
        &self.inner.wakeup_signal
    }

    pub(crate) fn begin_statement(&self) -> SqlStr {
        self.inner.begin.clone()
    }

    pub(crate) fn commit_and_begin_statement(&self) -> SqlStr {
        self.inner.commit_and_begin.clone()
    }

    /// Wakes relays, here and in other programs, after a commit.
    pub(crate) fn ring_committed(&self) {
        self.tell_others();
        self.bell().committed();
    }

    /// Wakes relays, here and in other programs, after an append.
    pub(crate) fn ring_appended(&self) {
        self.tell_others();
        self.bell().appended();
    }

    /// Starts the forwarding of wake-ups to other programs. Called in a runtime, before a wake-up.
    fn tell_others(&self) {
        let Some(interval) = self.options().notify_interval else { return };
        let mut notifier = self.inner.notifier.lock().unwrap_or_else(PoisonError::into_inner);
        if notifier.as_ref().is_some_and(Notifier::is_running) {
            return;
        }
        let way = Way {
            door: self.inner.door.clone(),
            schema: self.options().schema.clone(),
            sender: self.inner.sender.clone(),
            interval,
        };
        *notifier = Some(Notifier::start(way, self.bell()));
    }

    fn keeps_history(&self) -> bool {
        self.inner.options.history.is_some()
    }

    /// Maintains the partitions of the history at intervals. A failure costs time and space, but no
    /// message: rows go to the default partition.
    async fn turn_history(&self) -> u64 {
        let Some(kept) = self.options().history else { return 0 };
        {
            let mut turned = self.inner.turned.lock().unwrap_or_else(PoisonError::into_inner);
            if turned.is_some_and(|turned| turned.elapsed() < TURNS) {
                return 0;
            }
            *turned = Some(Instant::now());
        }
        let turn =
            async |connection: &mut PgConnection| maintain::turn_history(connection, self.sql(), kept).await;
        self.on("maintain", &self.lines().operating, turn).await.unwrap_or_else(|error| {
            if error.kind() == StoreErrorKind::Conflict {
                tracing::debug!(%error, "the history is being read; its partitions will be maintained next time");
            } else {
                tracing::warn!(%error, "could not create or drop partitions of the history; this role has to own outbox_history");
            }
            0
        })
    }
}

/// Shows the options only: the address and the user of the database may be confidential.
impl fmt::Debug for PostgresStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PostgresStore").field("options", &self.inner.options).finish_non_exhaustive()
    }
}

#[async_trait]
impl Store for PostgresStore {
    fn name(&self) -> &'static str {
        "postgres"
    }

    fn history_kept(&self) -> Option<Duration> {
        self.options().history
    }

    fn frontier(&self) -> Frontier<'_> {
        Frontier::Writers(self)
    }

    /// Uses a connection of its own, as the pool opens them.
    async fn migrate(&self) -> Result<(), StoreError> {
        let connected = self.inner.door.open().await;
        let mut connection = connected.map_err(|error| store_error("migrate", error))?;
        migrate::migrate(&mut connection, self.options()).await?;
        let made = identity::read(&mut connection, self.sql()).await;
        made.map(drop).map_err(|error| store_error("migrate", error))
    }

    async fn check(&self) -> Result<(), StoreError> {
        let failed = |error| store_error("check", error);
        // A connection without prepared statements: an earlier parse says nothing of the present
        // tables.
        let mut connection = self.inner.door.open().await.map_err(failed)?;
        if self.options().transaction_pooler {
            migrate::run(&mut connection, "begin".to_owned()).await.map_err(failed)?;
        } else {
            pooler::refuse("check", &mut connection, &self.inner.door.connect_options()).await?;
        }
        check::check(&mut connection, self.pool(), self.sql(), self.options()).await
    }

    async fn lease(&self, request: &LeaseRequest) -> Result<Leased, StoreError> {
        let work =
            async |connection: &mut PgConnection| lease::heartbeat(connection, self.sql(), request).await;
        let leased = self.on("lease", &self.lines().leasing, work).await?;
        self.inner.life.store(leased.life, Ordering::Relaxed);
        Ok(leased)
    }

    async fn give_back(
        &self,
        relay: RelayId,
        route: &Route,
        leases: &[Lease],
        low_water: &LowWater,
        leaving: bool,
    ) -> Result<(), StoreError> {
        let work = async |connection: &mut PgConnection| {
            lease::give_back(connection, self.sql(), relay, route, leases, low_water, leaving).await
        };
        self.on("give_back", &self.lines().leasing, work).await
    }

    async fn fetch(&self, request: &FetchRequest) -> Result<Fetched, StoreError> {
        let Lines { fetching, leasing, .. } = self.lines();
        let opened = fetching.opened();
        let work = async |connection: &mut PgConnection| fetch::fetch(connection, self.sql(), request).await;
        let fetched = self.on("fetch", fetching, work).await?;
        // A connection may be lost alone. If the server ended that of heartbeats too, commits may
        // be lost, and the relay has to begin anew before anything that was read here is sent.
        if fetching.opened() != opened && !leasing.answers().await {
            self.inner.life.store(NO_LIFE, Ordering::Relaxed);
        }
        if request.life.is_some_and(|life| life != self.inner.life.load(Ordering::Relaxed)) {
            return Err(StoreError::new(StoreErrorKind::Unavailable, "fetch", ANOTHER_LIFE));
        }
        Ok(fetched)
    }

    /// Not on the connection of fetches: it may scan all dead rows below the mark.
    async fn fetch_below(&self, request: &FetchRequest) -> Result<Fetched, StoreError> {
        let work = async |connection: &mut PgConnection| fetch::fetch(connection, self.sql(), request).await;
        self.on("fetch_below", &self.lines().browsing, work).await
    }

    async fn due(&self, request: &DueRequest) -> Result<Due, StoreError> {
        let work = async |connection: &mut PgConnection| due::due(connection, self.sql(), request).await;
        self.on("due", &self.lines().looking, work).await
    }

    async fn settle(&self, _route: &Route, delivered: &[RowId]) -> Result<(), StoreError> {
        if delivered.is_empty() {
            return Ok(());
        }
        let work = async |connection: &mut PgConnection| {
            settle::settle(connection, self.sql(), delivered, self.keeps_history()).await
        };
        self.on("settle", &self.lines().settling, work).await
    }

    async fn transition(&self, transitions: &[KeyTransition]) -> Result<Vec<Transitioned>, StoreError> {
        if transitions.is_empty() {
            return Ok(Vec::new());
        }
        let work = async |connection: &mut PgConnection| {
            transition::transition(connection, self.sql(), transitions, self.actor(), self.keeps_history())
                .await
        };
        self.on("transition", &self.lines().transitioning, work).await
    }

    async fn elect(&self, role: &str, relay: RelayId, lasts: Duration) -> Result<bool, StoreError> {
        let work = async |connection: &mut PgConnection| {
            lease::elect(connection, self.sql(), role, relay, lasts).await
        };
        self.on("elect", &self.lines().operating, work).await
    }

    async fn record_retention(&self) -> Result<(), StoreError> {
        let work = async |connection: &mut PgConnection| {
            maintain::record_retention(connection, self.sql(), self.options()).await
        };
        self.on("record_retention", &self.lines().operating, work).await
    }

    async fn maintain(&self, limit: usize) -> Result<Maintained, StoreError> {
        let work = async |connection: &mut PgConnection| {
            maintain::maintain(connection, self.sql(), self.options(), limit).await
        };
        let mut maintained = self.on("maintain", &self.lines().operating, work).await?;
        if maintained.promoted > 0 {
            self.ring_committed();
        }
        maintained.history_removed += self.turn_history().await;
        Ok(maintained)
    }

    async fn backlog(&self, route: &Route) -> Result<Backlog, StoreError> {
        let (limit, below) = (self.options().counting_limit, self.inner.below.lowest(self, route).await);
        let work = async |connection: &mut PgConnection| {
            maintain::backlog(connection, self.sql(), route, limit, below).await
        };
        self.on("backlog", &self.lines().measuring, work).await
    }

    /// Not on the connection of figures, which are requested far more often.
    async fn unserved(&self, after: Duration) -> Result<Vec<Unserved>, StoreError> {
        let (limit, behind) = (self.options().counting_limit, self.inner.unserved.behind());
        let began = Instant::now();
        let work = async |connection: &mut PgConnection| {
            unserved::unserved(connection, self.sql(), behind, after, limit).await
        };
        let (found, next) = self.on("unserved", &self.lines().browsing, work).await?;
        self.inner.unserved.came_through(behind, next, began.elapsed());
        Ok(found)
    }

    fn wakeup_signal(&self) -> &WakeupSignal {
        self.bell()
    }

    /// Yields wake-ups of this process at once. Those of other programs arrive through LISTEN, on a
    /// connection of its own that is reopened when it is lost. A transaction pooler does not
    /// support LISTEN: there, relays find other programs' messages by polling.
    fn wakeups(&self) -> BoxStream<'static, Wakeup> {
        let own = self.bell().listen().into_stream();
        if self.options().transaction_pooler {
            tracing::info!(
                "LISTEN does not work behind a transaction pooler: messages of other programs are found by polling"
            );
            return own.boxed();
        }
        let others = wakeups::of_other_programs(
            self.inner.door.clone(),
            self.options().schema.clone(),
            self.inner.sender.clone(),
        );
        stream::select(own, others).boxed()
    }
}

#[async_trait]
impl OpenWriters for PostgresStore {
    async fn writers(&self) -> Result<Writers, StoreError> {
        let work = async |connection: &mut PgConnection| writers::writers(connection, self.sql()).await;
        self.on("writers", &self.lines().looking, work).await
    }
}
