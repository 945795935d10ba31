//! The store: a MongoDB database with an outbox in it.

use std::collections::HashSet;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_core::stream::BoxStream;
use mongodb::{Client, ClientSession};
use outbox_contract::admin::{Actor, Misplaced};
use outbox_contract::backend::{
    Backlog, Blame, BucketSet, Committed, Dedup, Due, DueRequest, FetchRequest, Fetched, Frontier,
    KeyTransition, Lease, LeaseRequest, Leased, LowWater, Maintained, RelayId, RowId, Stored, StripeMark,
    StripeMarks, Transitioned, Unserved, Wakeup, WakeupSignal,
};
use outbox_contract::{
    Admin, AppendError, Consumer, Message, MessageId, Outgoing, Route, Store, StoreError, Transactional,
    async_trait,
};

use tokio::sync::OnceCell;

use crate::config::MongoDbOptions;
use crate::database::Database;
use crate::error::{Failed, is_unknown_commit, store_error, unknown_commit};
use crate::{
    append, backlog, below, blame, deduplicate, due, fetch, handled, lease, maintain, migrate, settle,
    stripes, transaction, transition, unserved, wakeups,
};

/// An outbox in a MongoDB database. Cheap to clone: clones share their client.
///
/// See the [crate](crate) for an example and its features, and its page of the book for all else.
#[derive(Clone)]
pub struct MongoDbStore {
    inner: Arc<Inner>,
    /// Whoever performs the admin operations of this handle.
    actor: Actor,
}

struct Inner {
    database: Arc<Database>,
    wakeup_signal: WakeupSignal,
    /// Routes whose stripes are there, so that an append need not ask. Written by whoever asked.
    striped: Mutex<HashSet<Route>>,
    /// Routes whose document is there.
    known: Mutex<HashSet<Route>>,
    /// Set once the server was found to have transactions: the driver finds out only with the first
    /// statement in one.
    fit: OnceCell<()>,
}

impl MongoDbStore {
    /// Returns a handle whose operations another actor performs.
    pub(crate) fn with_actor(&self, actor: Actor) -> Self {
        Self { actor, ..self.clone() }
    }

    pub(crate) fn actor(&self) -> &Actor {
        &self.actor
    }

    pub(crate) fn of(client: Client, database: &str, options: MongoDbOptions) -> Self {
        let database = Arc::new(Database::new(client, database, options));
        let inner = Inner {
            database,
            wakeup_signal: WakeupSignal::new(),
            striped: Mutex::default(),
            known: Mutex::default(),
            fit: OnceCell::new(),
        };
        Self { inner: Arc::new(inner), actor: Actor::default() }
    }

    /// Returns the client: begin transactions on its sessions.
    #[must_use]
    pub fn client(&self) -> &Client {
        &self.database().client
    }

    /// Returns the options in force.
    #[must_use]
    pub fn options(&self) -> &MongoDbOptions {
        &self.database().options
    }

    pub(crate) fn database(&self) -> &Database {
        &self.inner.database
    }

    pub(crate) fn bell(&self) -> &WakeupSignal {
        &self.inner.wakeup_signal
    }

    /// Sees to it that a route has its stripes, before a transaction needs them.
    pub(crate) async fn know_stripes(
        &self,
        operation: &'static str,
        route: &Route,
    ) -> Result<(), StoreError> {
        if !is_in(&self.inner.striped, route) {
            stripes::make(self.database(), route).await.map_err(|failed| failed.in_step(operation))?;
            put_in(&self.inner.striped, route);
        }
        Ok(())
    }

    /// Sees to it that a route has its document, before a transaction needs it.
    pub(crate) async fn know_route(&self, operation: &'static str, route: &Route) -> Result<(), StoreError> {
        if !is_in(&self.inner.known, route) {
            lease::make(self.database(), route).await.map_err(|failed| failed.in_step(operation))?;
            put_in(&self.inner.known, route);
        }
        Ok(())
    }

    /// Nothing is known any more: somebody may have removed what was there.
    fn forget_routes(&self) {
        self.inner.striped.lock().unwrap_or_else(PoisonError::into_inner).clear();
        self.inner.known.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }
}

fn is_in(routes: &Mutex<HashSet<Route>>, route: &Route) -> bool {
    routes.lock().unwrap_or_else(PoisonError::into_inner).contains(route)
}

fn put_in(routes: &Mutex<HashSet<Route>>, route: &Route) {
    routes.lock().unwrap_or_else(PoisonError::into_inner).insert(route.clone());
}

/// Shows the options only: addresses may hold passwords.
impl fmt::Debug for MongoDbStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MongoDbStore").field("options", self.options()).finish_non_exhaustive()
    }
}

#[async_trait]
impl Store for MongoDbStore {
    fn name(&self) -> &'static str {
        "mongodb"
    }

    fn history_kept(&self) -> Option<Duration> {
        self.options().history
    }

    fn frontier(&self) -> Frontier<'_> {
        Frontier::Stripes(self)
    }

    async fn migrate(&self) -> Result<(), StoreError> {
        self.forget_routes();
        migrate::migrate(self.database()).await?;
        self.identity().await.map(drop)
    }

    async fn check(&self) -> Result<(), StoreError> {
        self.forget_routes();
        migrate::check(self.database()).await?;
        match below::find(self.database()).await {
            Ok(found) => found.iter().for_each(Misplaced::warn),
            // What hinders the look hinders nothing else.
            Err(failed) => {
                let error = failed.in_step("check");
                tracing::debug!(%error, "could not look for messages above the counters of their stripes");
            }
        }
        Ok(())
    }

    async fn lease(&self, request: &LeaseRequest) -> Result<Leased, StoreError> {
        lease::heartbeat(self.database(), request).await
    }

    async fn give_back(
        &self,
        relay: RelayId,
        route: &Route,
        leases: &[Lease],
        low_water: &LowWater,
        leaving: bool,
    ) -> Result<(), StoreError> {
        lease::give_back(self.database(), relay, route, leases, low_water, leaving).await
    }

    async fn fetch(&self, request: &FetchRequest) -> Result<Fetched, StoreError> {
        fetch::fetch(self.database(), request).await.map_err(|failed| failed.in_step("fetch"))
    }

    async fn due(&self, request: &DueRequest) -> Result<Due, StoreError> {
        due::due(self.database(), request).await.map_err(|failed| failed.in_step("due"))
    }

    async fn settle(&self, route: &Route, delivered: &[RowId]) -> Result<(), StoreError> {
        settle::settle(self.database(), route, delivered).await
    }

    async fn transition(&self, transitions: &[KeyTransition]) -> Result<Vec<Transitioned>, StoreError> {
        transition::transition(self.database(), transitions, self.actor()).await
    }

    async fn elect(&self, role: &str, relay: RelayId, lasts: Duration) -> Result<bool, StoreError> {
        lease::elect(self.database(), role, relay, lasts).await.map_err(|failed| failed.in_step("elect"))
    }

    async fn record_retention(&self) -> Result<(), StoreError> {
        handled::record_retention(self.database()).await.map_err(|failed| failed.in_step("record_retention"))
    }

    async fn maintain(&self, limit: usize) -> Result<Maintained, StoreError> {
        let maintained = maintain::maintain(self, limit).await?;
        if maintained.promoted > 0 {
            self.bell().committed();
        }
        Ok(maintained)
    }

    async fn backlog(&self, route: &Route) -> Result<Backlog, StoreError> {
        backlog::backlog(self.database(), route).await.map_err(|failed| failed.in_step("backlog"))
    }

    async fn unserved(&self, after: Duration) -> Result<Vec<Unserved>, StoreError> {
        unserved::unserved(self.database(), after).await.map_err(|failed| failed.in_step("unserved"))
    }

    fn wakeup_signal(&self) -> &WakeupSignal {
        self.bell()
    }

    /// Rings of this process; and of other programs, where the server has change streams.
    fn wakeups(&self) -> BoxStream<'static, Wakeup> {
        wakeups::wakeups(&self.inner.database, self.bell())
    }
}

#[async_trait]
impl StripeMarks for MongoDbStore {
    async fn stripes(&self, route: &Route, buckets: &BucketSet) -> Result<Vec<StripeMark>, StoreError> {
        stripes::marks(self.database(), route, buckets).await.map_err(|failed| failed.in_step("stripes"))
    }
}

#[async_trait]
impl Transactional for MongoDbStore {
    /// The driver's session, which must be in a transaction.
    type Tx<'t> = ClientSession;
    type Connection = ClientSession;

    fn connection<'c>(tx: &'c mut Self::Tx<'_>) -> &'c mut Self::Connection {
        tx
    }

    /// With read concern and write concern *majority*.
    async fn begin(&self) -> Result<Self::Tx<'static>, StoreError> {
        self.inner.fit.get_or_try_init(|| migrate::check_server(self.database(), "begin")).await?;
        let begun = async {
            let mut session = self.database().session().await?;
            transaction::begin(&mut session).await?;
            Ok::<_, Failed>(session)
        };
        begun.await.map_err(|failed| failed.in_step("begin"))
    }

    async fn commit(&self, mut tx: Self::Tx<'static>) -> Committed {
        match tx.commit_transaction().await {
            Ok(()) => {
                self.database().note(&tx);
                self.bell().transaction_committed();
                Committed::Yes
            }
            Err(error) if is_unknown_commit(&error) => Committed::Unknown(unknown_commit(error)),
            Err(error) => Committed::No(store_error("commit", error)),
        }
    }

    async fn rollback(&self, mut tx: Self::Tx<'static>) -> Result<(), StoreError> {
        // The server may have aborted it before: then there is nothing left to do, and the driver
        // says nothing of it.
        tx.abort_transaction().await.map_err(|error| store_error("rollback", error))
    }

    async fn append(&self, tx: &mut Self::Tx<'_>, messages: &[Outgoing]) -> Result<(), AppendError> {
        if messages.is_empty() {
            return Ok(());
        }
        append::check(tx, messages).await?;
        for outgoing in messages {
            self.know_stripes("append", &outgoing.route).await?;
        }
        let rows = append::rows(messages);
        if let Err(failed) = append::write(self.database(), tx, rows).await {
            if matches!(failed, Failed::Store(_)) {
                // Stripes that are not there are made by the next attempt.
                self.forget_routes();
            }
            return Err(failed.in_step("append").into());
        }
        self.bell().appended();
        Ok(())
    }

    async fn fence(
        &self,
        tx: &mut Self::Tx<'_>,
        route: &Route,
        stored: &[&Stored],
    ) -> Result<Vec<bool>, StoreError> {
        deduplicate::fence(self.database(), tx, route, stored).await.map_err(|failed| failed.in_step("fence"))
    }

    async fn deduplicate(
        &self,
        tx: &mut Self::Tx<'_>,
        consumer: &Consumer,
        messages: &[&Message],
    ) -> Result<Vec<Dedup>, StoreError> {
        deduplicate::deduplicate(self.database(), tx, consumer, messages)
            .await
            .map_err(|failed| failed.in_step("deduplicate"))
    }

    async fn is_handled(&self, consumer: &Consumer, id: MessageId) -> Result<bool, StoreError> {
        deduplicate::is_handled(self.database(), consumer, id)
            .await
            .map_err(|failed| failed.in_step("is_handled"))
    }

    fn blame(&self, error: &(dyn std::error::Error + 'static)) -> Blame {
        error.downcast_ref::<mongodb::error::Error>().map_or(Blame::Handler, blame::blame)
    }
}
