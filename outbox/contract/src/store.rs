//! The store: a database that holds an outbox, as the relay sees it.

use std::time::Duration;

use async_trait::async_trait;
use futures_core::stream::BoxStream;

use crate::admin::Admin;
use crate::backlog::Backlog;
use crate::bucket::BucketSet;
use crate::divert::{Diversion, Diverted};
use crate::error::StoreError;
use crate::fetch::{Due, DueRequest, FetchRequest, Fetched, Ordering, RowId, Writers};
use crate::hints::Wakeup;
use crate::id::RelayId;
use crate::lease::{Lease, LeaseRequest, Leased, LowWater};
use crate::maintain::Maintained;
use crate::name::Route;
use crate::stripe::StripeMark;
use crate::unserved::Unserved;

/// A database that holds an outbox. Object-safe: the relay holds an `Arc<dyn Store>`.
///
/// # What a store promises
///
/// - A row that is in the hot table has not been confirmed. Nothing removes it but `settle` and `divert`, by position *and* id.
/// - For one key, the order of positions (and of numbers in a stripe) is the order in which transactions committed.
/// - Leases live on the database's clock. `divert` checks and locks the lease in its own statement; `settle` needs none, because it
///   removes only what the broker confirmed.
/// - What waits (parked messages, muted topics, scheduled messages, dead letters, history) costs a fetch nothing to walk over, at any size.
///
/// Every method is one short transaction of its own. None is held open between calls, and none retries by itself beyond the
/// waiting for a busy lock: the caller decides.
#[async_trait]
pub trait Store: Admin {
    /// What this store is called in logs and metrics, such as `postgres`.
    fn name(&self) -> &'static str;

    /// How positions relate to commits here.
    fn ordering(&self) -> Ordering;

    /// Creates the tables, or brings them to this version.
    ///
    /// - *Effect*: the tables are there, and what they hold is kept. Atomic where the database can change tables in a transaction.
    /// - *Ordering*, *Units and limits*: none. May take long on large tables when a later version changes them.
    /// - *Errors*: `NotPermitted` names the missing right; `SchemaTooNew` when a newer version made the tables.
    /// - *Cancellation*: safe; call again. *Concurrency*: any number of programs at once; one does it, the others wait.
    /// - *Repeat*: does nothing.
    async fn migrate(&self) -> Result<(), StoreError>;

    /// Says whether the tables are there and are the ones that this version needs. A relay calls it before anything else.
    ///
    /// - *Effect*: none. *Errors*: `NotMigrated`, `SchemaTooNew`, `SchemaAltered`, `Unsupported`, each with the remedy.
    /// - *Cancellation*, *Concurrency*, *Repeat*: harmless.
    async fn check(&self) -> Result<(), StoreError>;

    /// Heartbeat: renews what the relay owns, acquires free buckets up to its fair share, and says what it owns now.
    ///
    /// - *Effect*: the relay's life is extended to now + `lasts`; buckets whose owner is dead, gone or implausibly far in the future (more
    ///   than twice its own lease: a failover to a slow clock) are free and are acquired, each under the next epoch, while the relay owns
    ///   fewer than its share. Never takes a bucket from a live relay. The low-water mark is saved for the leases that it covers, and
    ///   the others keep theirs.
    /// - *Ordering*: none. *Units and limits*: at most the fair share is acquired.
    /// - *Errors*: `Unavailable`: unknown; leases may have been renewed or acquired. Count from before the call; the next answer tells.
    /// - *Cancellation*: unknown, as above. *Concurrency*: any number of relays. *Repeat*: renews.
    async fn lease(&self, request: &LeaseRequest) -> Result<Leased, StoreError>;

    /// Gives buckets back, so that others need not wait for the lease to run out.
    ///
    /// - *Effect*: these leases, if they are still this relay's under these epochs, are free. The low-water mark is saved for those that it
    ///   covers, and the others keep theirs. With `leaving` the relay itself is removed too: it counts in no share any more, and whatever else
    ///   it owned is free.
    /// - *Errors*: `Unavailable`: unknown; they run out by themselves.
    /// - *Cancellation*: unknown. *Concurrency*: any. *Repeat*: harmless.
    async fn give_back(
        &self,
        relay: RelayId,
        route: &Route,
        leases: &[Lease],
        low_water: &LowWater,
        leaving: bool,
    ) -> Result<(), StoreError>;

    /// Reads rows of buckets that this relay holds an unexpired lease of.
    ///
    /// - *Effect*: none; nothing is locked or marked.
    /// - *Ordering*: ascending position, from one snapshot that is at least as new as every write of this process that had returned
    ///   before the call.
    /// - *Units and limits*: `limit` rows of any kind, `bytes` of content, the first row always; rows in `except` count for nothing and are left
    ///   out in the statement itself.
    /// - *Errors*: `Unavailable`: nothing happened, but forget what is known and read again. A row that can't be decoded is no error but
    ///   [`Malformed`](crate::FetchedRow::Malformed).
    /// - *Cancellation*: safe. *Concurrency*: any. *Repeat*: the same rows, unless settled.
    async fn fetch(&self, request: &FetchRequest) -> Result<Fetched, StoreError>;

    /// Reads rows at or below a relay's cursor, where none should stand: what it has missed. A cursor is what a relay remembers; the rows are the truth.
    /// Positions go back when a sequence is set, a table is restored alone, or rows are imported.
    ///
    /// - *Effect*: as [`fetch`](Self::fetch), which the provided method calls. A relay asks at its start, and then about twice a minute, while it goes on
    ///   with its work: a store whose calls wait for one another answers on another connection.
    /// - *Units and limits*, *Cancellation*, *Concurrency*, *Repeat*: as `fetch`. *Errors*: any; the relay goes on, and asks again later.
    async fn fetch_below(&self, request: &FetchRequest) -> Result<Fetched, StoreError> {
        self.fetch(request).await
    }

    /// Who may still commit a row below a position that can be seen already. Needed where [`ordering`](Self::ordering) is
    /// [`Writers`](Ordering::Writers); empty elsewhere.
    ///
    /// - *Effect*: none. *Ordering*: every transaction is in the answer that had taken a position before the call and is not over at its return;
    ///   so is every one that had taken a position up to `last`, which is read first. A transaction that is over is in none that begins later.
    /// - *Units and limits*: at most five calls a second by a relay. *Errors*: `Unavailable`.
    /// - *Cancellation*, *Concurrency*, *Repeat*: harmless.
    async fn writers(&self) -> Result<Writers, StoreError>;

    /// How far the stripes of these buckets were committed. Needed where [`ordering`](Self::ordering) is
    /// [`Stripes`](Ordering::Stripes); empty elsewhere, which is what the provided method says. A relay asks before each fetch.
    ///
    /// - *Effect*: none; nothing is locked. *Ordering*: by stripe; a stripe in which nothing was ever committed for the route is left out. Every
    ///   row up to a mark's number is visible to each fetch that begins after this returns, unless it was removed.
    /// - *Units and limits*: at most four for each bucket. *Errors*: as [`fetch`](Self::fetch).
    /// - *Cancellation*, *Concurrency*, *Repeat*: harmless.
    async fn stripes(&self, route: &Route, buckets: &BucketSet) -> Result<Vec<StripeMark>, StoreError> {
        let _ = (route, buckets);
        Ok(Vec::new())
    }

    /// Failing keys that are due, with their parked messages.
    ///
    /// - *Effect*: none. *Ordering*: keys by due time, parked messages of each by position (where there are stripes: by number).
    /// - *Units and limits*: see [`DueRequest`]. *Errors*: as `fetch`.
    /// - *Cancellation*: safe. *Concurrency*: any. *Repeat*: the same keys, unless diverted.
    async fn due(&self, request: &DueRequest) -> Result<Due, StoreError>;

    /// Removes delivered messages from the hot table (to the history where one is kept).
    ///
    /// - *Effect*: rows with exactly this position and id are gone. Unfenced: what the broker confirmed may be removed by anybody. The removal
    ///   may be lost in a crash of the database (asynchronous commit): that costs a repeat.
    /// - *Ordering*: none. *Units and limits*: up to a few thousand rows a call.
    /// - *Errors*: `Unavailable`: unknown, and some may be removed. Call again.
    /// - *Cancellation*: unknown. *Concurrency*: any. *Repeat*: does nothing.
    async fn settle(&self, route: &Route, delivered: &[RowId]) -> Result<(), StoreError>;

    /// Parks, reschedules, holds, buries and resumes: steps of failing keys.
    ///
    /// - *Effect*: each step is done whole or not at all, durably when this returns (synchronous commit), with the lease row
    ///   checked and locked by the same statement or transaction. One answer per diversion, in order.
    /// - *Ordering*: in the order given. *Units and limits*: up to a few hundred steps a call.
    /// - *Errors*: `Unavailable`: unknown for all of them. Forget what is known of these keys and read again.
    /// - *Cancellation*: unknown, as above. *Concurrency*: any; two steps of one key never come at once from one relay.
    /// - *Repeat*: `Stale` or the same again, never a second effect.
    async fn divert(&self, diversions: &[Diversion]) -> Result<Vec<Diverted>, StoreError>;

    /// Elects one relay for a role (`janitor`) for a time.
    ///
    /// - *Effect*: true when the role was free, its holder's time is over, or it is this relay's already; then it is this relay's until now + `lasts`.
    /// - *Errors*: `Unavailable`: unknown; take it as no. *Cancellation*: as such. *Concurrency*: any. *Repeat*: extends.
    async fn elect(&self, role: &str, relay: RelayId, lasts: Duration) -> Result<bool, StoreError>;

    /// One round of maintenance: moves due messages into the outbox through the ordered append, removes what is over its time.
    ///
    /// - *Effect*: at most `limit` rows of each kind, in order, in short transactions; harmless if two relays do it at once.
    /// - *Ordering*: due messages in the order of their due time, then of their scheduling. *Errors*: `Unavailable`: some may be done.
    /// - *Cancellation*: safe. *Repeat*: does the next.
    async fn maintain(&self, limit: usize) -> Result<Maintained, StoreError>;

    /// What waits for a route, for metrics and the health check.
    ///
    /// - *Effect*: none. *Units and limits*: cheap at any size: counts stop at the store's counting limit. *Errors*: `Unavailable`.
    /// - *Cancellation*, *Concurrency*, *Repeat*: harmless.
    async fn backlog(&self, route: &Route) -> Result<Backlog, StoreError>;

    /// Routes with messages that no live relay serves: what waits there, hot, parked or scheduled and due, waits until one is started, however long
    /// that is (promise P9). Every other figure is of one route, and is asked for by who serves it; this one is of all that the store holds.
    ///
    /// - *Effect*: none; nothing is locked. *Ordering*: the longest waiting first. Only those whose oldest message is older than `after`, by the
    ///   database's clock: a relay has so long to come to its first [`lease`](Self::lease). A relay serves its route until its life runs out or it
    ///   leaves, whichever buckets it owns.
    /// - *Units and limits*: at most [`Unserved::MOST`] routes. Cheap at any size. Where the hot table is kept by route, so many routes are looked
    ///   at, in the order of their names, and the first thousand messages of each that is not served; elsewhere the first messages in the order
    ///   of positions, up to the store's counting limit (at least 10,000). A route behind more than that of others is told of when they are gone: what
    ///   nobody serves comes to the front of the table by itself. A relay asks once a minute.
    /// - *Errors*: `Unavailable`. *Cancellation*, *Concurrency*, *Repeat*: harmless; it keeps no [`backlog`](Self::backlog) waiting.
    async fn unserved(&self, after: Duration) -> Result<Vec<Unserved>, StoreError>;

    /// Yields when there may be something to fetch. Never ends; where nothing can tell, never yields, and polling alone serves.
    ///
    /// Losing a wake-up costs a poll interval. Each call is a listener of its own.
    fn wakeups(&self) -> BoxStream<'static, Wakeup>;
}
