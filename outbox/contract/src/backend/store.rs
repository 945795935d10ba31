//! The store: a database that holds an outbox, from the relay's point of view.

use std::time::Duration;

use async_trait::async_trait;
use futures_core::stream::BoxStream;

use crate::admin::Admin;
use crate::backend::{
    Backlog, Due, DueRequest, FetchRequest, Fetched, Frontier, KeyTransition, Lease, LeaseRequest, Leased,
    LowWater, Maintained, RelayId, RowId, Transitioned, Unserved, Wakeup, WakeupSignal,
};
use crate::error::StoreError;
use crate::name::Route;

/// A database that holds an outbox. Object-safe: the relay holds an `Arc<dyn Store>`.
///
/// # Guarantees of a store
///
/// - A row in the hot table has not been confirmed. Only `settle` and `transition` remove it, by
///   position *and* id.
/// - For one key, the order of positions (and of numbers in a stripe) is the order in which
///   transactions committed.
/// - Leases live on the database's clock. `transition` checks and locks the lease in its own
///   statement. `settle` needs no lease, because it removes only messages that the broker
///   confirmed.
/// - Waiting messages (parked, muted, scheduled, dead letters, history) add no cost to a fetch, at
///   any size.
///
/// Every method is one short transaction of its own. No transaction stays open between calls. No
/// method retries by itself, apart from waiting for a busy lock: the caller decides.
#[async_trait]
pub trait Store: Admin + 'static {
    /// Returns the name of this store in logs and metrics, such as `postgres`.
    fn name(&self) -> &'static str;

    /// Returns the relation between positions and commits, with the means to ask for it. Always the
    /// same one.
    fn frontier(&self) -> Frontier<'_>;

    /// Returns the time for which this handle keeps delivered messages; `None`: it keeps none.
    ///
    /// Whoever delivers a message decides whether it is kept. So relays of one route that differ
    /// leave gaps in the history; their health says so.
    fn history_kept(&self) -> Option<Duration> {
        None
    }

    /// Creates the tables, or upgrades them to this version.
    ///
    /// - *Effect*: the tables exist, and their content is kept. Atomic if the database supports
    ///   transactional schema changes.
    /// - *Ordering*, *Units and limits*: none. May take long on large tables, if a later version
    ///   changes them.
    /// - *Errors*: `NotPermitted` names the missing right; `SchemaTooNew` if a newer version
    ///   created the tables.
    /// - *Cancellation*: safe; call again. *Concurrency*: any number of programs at once; one
    ///   migrates, the others wait.
    /// - *Repeat*: does nothing.
    async fn migrate(&self) -> Result<(), StoreError>;

    /// Checks that the tables exist and match this version. A relay calls it before anything else.
    ///
    /// - *Effect*: none. *Errors*: `NotMigrated`, `SchemaTooNew`, `SchemaAltered`, `Unsupported`,
    ///   each with the remedy.
    /// - *Cancellation*, *Concurrency*, *Repeat*: harmless.
    async fn check(&self) -> Result<(), StoreError>;

    /// Heartbeat: renews the relay's leases, acquires free buckets up to its fair share, and
    /// returns all buckets that it now owns.
    ///
    /// - *Effect*: extends the relay's life to now plus `lasts`. A bucket is free if its owner is
    ///   dead or gone, or if its lease ends implausibly far in the future (more than twice its own
    ///   duration: a failover to a slow clock). The relay acquires free buckets, each under the
    ///   next epoch, while it owns fewer than its share. It never takes a bucket from a live relay.
    ///   An expired lease of the relay itself is free too, so it comes back under the next epoch.
    ///   The low-water mark is saved for the leases that it covers; the others keep theirs, and so
    ///   do expired ones.
    /// - *Ordering*: none. *Units and limits*: acquires at most the fair share.
    /// - *Errors*: `Unavailable`: unknown; leases may have been renewed or acquired. Count the
    ///   lease from before the call; the next answer shows the result.
    /// - *Cancellation*: unknown, as above. *Concurrency*: any number of relays. *Repeat*: renews.
    async fn lease(&self, request: &LeaseRequest) -> Result<Leased, StoreError>;

    /// Releases buckets, so that other relays need not wait for the lease to expire.
    ///
    /// - *Effect*: frees these leases, if this relay still holds them under these epochs. The
    ///   low-water mark is saved for those that it covers; the others keep theirs. An expired lease
    ///   keeps its mark too: another relay may have owned the bucket. `leaving` also removes the
    ///   relay itself: it no longer counts in any share, and its other buckets are free.
    /// - *Errors*: `Unavailable`: unknown; the leases expire by themselves.
    /// - *Cancellation*: unknown. *Concurrency*: any. *Repeat*: harmless.
    async fn give_back(
        &self,
        relay: RelayId,
        route: &Route,
        leases: &[Lease],
        low_water: &LowWater,
        leaving: bool,
    ) -> Result<(), StoreError>;

    /// Reads rows of buckets whose unexpired lease this relay holds.
    ///
    /// - *Effect*: none; locks and marks nothing.
    /// - *Ordering*: ascending position, from one snapshot at least as new as every write of this
    ///   process that had returned before the call.
    /// - *Units and limits*: `limit` rows of any kind, `bytes` of content, the first row always.
    ///   Rows in `except` do not count; the statement itself excludes them. An answer without the
    ///   rows of a requested bucket says so: it is [`lapsed`](Fetched::lapsed).
    /// - *Errors*: `Unavailable`: nothing happened, but discard what is known and read again; also
    ///   in another [`life`](FetchRequest::life) than that of the request. An undecodable row is
    ///   not an error but [`Malformed`](crate::backend::FetchedRow::Malformed).
    /// - *Cancellation*: safe. *Concurrency*: any. *Repeat*: the same rows, unless settled.
    async fn fetch(&self, request: &FetchRequest) -> Result<Fetched, StoreError>;

    /// Reads rows that the relay missed: at or below its cursor, where no row should exist. A
    /// cursor is only the relay's memory; the rows are the truth. Positions go back when a sequence
    /// is set, a table is restored alone, or rows are imported.
    /// If the store orders by stripes, late commits appear there too: the relay recognizes them by
    /// the marks that it reads next.
    ///
    /// - *Effect*: as [`fetch`](Self::fetch), which the provided method calls. A relay calls it at
    ///   its start, and then about twice a minute, in parallel with its work. A store whose calls
    ///   wait for one another should use another connection here.
    /// - *Units and limits*, *Cancellation*, *Concurrency*, *Repeat*: as `fetch`. *Errors*: any;
    ///   the relay continues, and retries later.
    async fn fetch_below(&self, request: &FetchRequest) -> Result<Fetched, StoreError> {
        self.fetch(request).await
    }

    /// Returns failing keys that are due, with their parked messages.
    ///
    /// - *Effect*: none. *Ordering*: keys by due time, parked messages of each by position (with
    ///   stripes: by number).
    /// - *Units and limits*: see [`DueRequest`]. *Errors*: as `fetch`.
    /// - *Cancellation*: safe. *Concurrency*: any. *Repeat*: the same keys, unless a transition
    ///   changed them.
    async fn due(&self, request: &DueRequest) -> Result<Due, StoreError>;

    /// Removes delivered messages from the hot table (to the history, if the store keeps one).
    ///
    /// - *Effect*: removes rows with exactly this position and id. Unfenced: any relay may remove
    ///   messages that the broker confirmed. A database crash may lose the removal (asynchronous
    ///   commit), which costs a duplicate.
    /// - *Ordering*: none. *Units and limits*: up to a few thousand rows a call.
    /// - *Errors*: `Unavailable`: unknown, and some may be removed. Call again.
    /// - *Cancellation*: unknown. *Concurrency*: any. *Repeat*: does nothing.
    async fn settle(&self, route: &Route, delivered: &[RowId]) -> Result<(), StoreError>;

    /// Parks, reschedules, holds, buries and resumes: steps of failing keys.
    ///
    /// - *Effect*: each step happens whole or not at all, durably when this returns (synchronous
    ///   commit). The same statement or transaction checks and locks the lease row. One answer per
    ///   transition, in order.
    /// - *Ordering*: in the order given. *Units and limits*: up to a few hundred steps a call.
    /// - *Errors*: `Unavailable`: unknown for all of them. Discard what is known of these keys and
    ///   read again.
    /// - *Cancellation*: unknown, as above. *Concurrency*: any; one relay never makes two steps of
    ///   one key at once.
    /// - *Repeat*: `Stale` or the same again, never a second effect.
    async fn transition(&self, transitions: &[KeyTransition]) -> Result<Vec<Transitioned>, StoreError>;

    /// Elects one relay for a role (`retention`) for a time.
    ///
    /// - *Effect*: returns true if the role was free, its holder's time is over, or this relay
    ///   already holds it. This relay then holds it until now plus `lasts`.
    /// - *Errors*: `Unavailable`: unknown; treat it as no. *Cancellation*: likewise. *Concurrency*:
    ///   any. *Repeat*: extends.
    async fn elect(&self, role: &str, relay: RelayId, lasts: Duration) -> Result<bool, StoreError>;

    /// Records the retention of handled ids that this store was opened with: [`maintain`] of every
    /// process removes by the longest recorded one. Relays and inboxes call it when they start, and
    /// every hour. A program that deduplicates without either calls it itself.
    ///
    /// - *Effect*: the record counts until its ids are over their maximum age, by the rule of
    ///   [`HandledIdsRetention`]. The provided method does nothing, for a store that has one
    ///   retention for all processes.
    /// - *Errors*: `Unavailable`, `Conflict`: unknown; call again. *Cancellation*: likewise.
    ///   *Concurrency*: any. *Repeat*: renews the record.
    ///
    /// [`maintain`]: Self::maintain
    /// [`HandledIdsRetention`]: super::rules::retention::HandledIdsRetention
    async fn record_retention(&self) -> Result<(), StoreError> {
        Ok(())
    }

    /// Runs one round of maintenance: moves due messages into the outbox through the ordered
    /// append, and removes expired data.
    ///
    /// - *Effect*: at most `limit` rows of each kind, in order, in short transactions; harmless if
    ///   two relays do it at once. Ids of handled messages are removed by the rule of
    ///   [`retention`](super::rules::retention), of each consumer the oldest first; never one that
    ///   another process's [recorded retention](Self::record_retention) keeps.
    /// - *Ordering*: due messages in the order of their due time, then of their scheduling.
    ///   *Errors*: `Unavailable`: part of the work may be done.
    /// - *Cancellation*: safe. *Repeat*: does the next part.
    async fn maintain(&self, limit: usize) -> Result<Maintained, StoreError>;

    /// Returns the backlog of a route, for metrics and the health check.
    ///
    /// - *Effect*: none. *Units and limits*: cheap at any size: counts stop at the store's counting
    ///   limit. *Errors*: `Unavailable`.
    /// - *Cancellation*, *Concurrency*, *Repeat*: harmless.
    async fn backlog(&self, route: &Route) -> Result<Backlog, StoreError>;

    /// Returns routes with messages that no live relay serves. Their messages (hot, parked, or
    /// scheduled and due) wait, however long, until such a relay starts (promise P9). Every other
    /// figure covers one route, and the relay that serves it asks for it; this one covers the whole
    /// store.
    ///
    /// - *Effect*: none; locks nothing. *Ordering*: the longest waiting first. Only routes whose
    ///   oldest message is older than `after`, by the database's clock: a relay has this long to
    ///   reach its first [`lease`](Self::lease). A relay serves its route until its life expires or
    ///   it leaves, whichever buckets it owns.
    /// - *Units and limits*: at most [`Unserved::MOST`] routes. Cheap at any size. A store that
    ///   keeps the hot table by route examines at most that many routes, in the order of their
    ///   names, and the first thousand messages of each unserved one. Other stores examine the
    ///   first messages in the order of positions, up to the store's counting limit (at least
    ///   10,000). A route behind more messages of others is reported once those are gone: unserved
    ///   messages move to the front of the table by themselves. A relay asks once a minute.
    /// - *Errors*: `Unavailable`. *Cancellation*, *Concurrency*, *Repeat*: harmless; it never
    ///   delays [`backlog`](Self::backlog).
    async fn unserved(&self, after: Duration) -> Result<Vec<Unserved>, StoreError>;

    /// Returns the wake-up signal that this store's appends and commits send, within this process.
    fn wakeup_signal(&self) -> &WakeupSignal;

    /// Yields when there may be something to fetch. Never ends. The provided method yields the
    /// wake-ups of [`wakeup_signal`](Self::wakeup_signal); relays then find messages of other
    /// processes by polling. A store whose database can notify adds its notifications.
    ///
    /// A lost wake-up costs a poll interval. Each call creates its own listener.
    fn wakeups(&self) -> BoxStream<'static, Wakeup> {
        Box::pin(self.wakeup_signal().listen().into_stream())
    }
}
