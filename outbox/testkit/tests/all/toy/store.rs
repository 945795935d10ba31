//! A store in one mutex, as small as one can be that keeps every promise: the example of the book's
//! page on writing a backend. It keeps no history, and is gone with the process.
//!
//! A real store has statements where this one has loops; the rules are the same.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use outbox_contract::admin::{
    Actor, Admin, AuditEntry, Edit, FailingKey, Figure, Filter, HandledFilter, MAX_PER_CALL, OutboxId,
    Ownership, RouteStatus, TopicFigures, TopicTally,
};
use outbox_contract::backend::rules::failing_key::{self, KeyState};
use outbox_contract::backend::rules::leases::{self, BucketRow, Heartbeat, RelayRow};
use outbox_contract::backend::rules::retention::HandledIdsCut;
use outbox_contract::backend::{
    Archive, AuditNote, Backlog, Bucket, BucketSet, Committed, Death, Dedup, Due, DueKey, DueRequest,
    FetchRequest, Fetched, FetchedRow, Frontier, KeyOperation, KeyTransition, Lease, LeaseRequest, Leased,
    Listed, LowWater, Maintained, Paused, Position, RelayId, RowId, Scope, Steered, Step, Stored,
    Transitioned, Unserved, View, Waiting, WakeupSignal, inbox_route,
};
use outbox_contract::{
    AppendError, Consumer, Key, KeyId, Message, MessageId, Outgoing, Route, Store, StoreError,
    StoreErrorKind, Timestamp, Topic, Transactional, async_trait,
};
use tokio::sync::{Mutex as AsyncMutex, OwnedMutexGuard};
use tokio::time::Instant;

/// Time for which the record of operations is kept.
const AUDIT_KEPT: Duration = Duration::from_secs(90 * 24 * 3_600);

/// Time for which ids of handled messages are kept.
const HANDLED_KEPT: Duration = Duration::from_secs(7 * 24 * 3_600);
/// Age at which they are removed, also of a consumer that is gone.
const HANDLED_MAX_AGE: Duration = Duration::from_secs(90 * 24 * 3_600);

// ANCHOR: tables
/// The store. A statement locks the tables, does all of its work and unlocks them: no reader sees a
/// part of it.
#[derive(Clone)]
pub(crate) struct ToyStore {
    tables: Arc<Mutex<Tables>>,
    /// Held by the transaction that writes; the others wait for their turn.
    turn: Arc<AsyncMutex<()>>,
    started: (Timestamp, Instant),
    signal: WakeupSignal,
    /// Whoever performs the operations of this handle.
    actor: Actor,
}

/// A message that a consumer has handled.
struct Handled {
    at: Timestamp,
    topic: Topic,
    key: Option<Key>,
}

#[derive(Default)]
struct Tables {
    routes: BTreeMap<Route, RouteTables>,
    dead: Vec<Listed>,
    /// By due time, then by their scheduling.
    scheduled: BTreeMap<(Timestamp, i64), (Route, Message)>,
    handled: BTreeMap<(Consumer, MessageId), Handled>,
    roles: BTreeMap<String, (RelayId, Timestamp)>,
    /// The last position, version or number given out. It never goes back.
    last: i64,
    identity: Option<OutboxId>,
    audit: Vec<AuditEntry>,
}

#[derive(Default)]
struct RouteTables {
    /// The hot table: what is here has not been confirmed.
    hot: BTreeMap<Position, Arc<Stored>>,
    /// Failing and held keys, with what is parked behind them.
    keys: BTreeMap<KeyId, KeyRow>,
    /// Each with its name for people.
    relays: BTreeMap<RelayId, (String, RelayRow)>,
    buckets: BTreeMap<Bucket, BucketRow>,
    paused: Paused,
}

struct KeyRow {
    state: KeyState,
    /// When each was parked, and the message.
    parked: Parked,
}

type Parked = BTreeMap<Position, (Timestamp, Arc<Stored>)>;
// ANCHOR_END: tables

impl ToyStore {
    pub(crate) fn new() -> Self {
        let started = (Timestamp::now(), Instant::now());
        let (tables, turn, signal) = (Arc::default(), Arc::default(), WakeupSignal::new());
        Self { tables, turn, started, signal, actor: Actor::default() }
    }

    /// Runs a statement, at one instant of the database's clock.
    fn run<T>(&self, statement: impl FnOnce(&mut Tables, Timestamp) -> T) -> T {
        let now = self.started.0.plus(self.started.1.elapsed());
        statement(&mut self.tables.lock().unwrap_or_else(PoisonError::into_inner), now)
    }

    fn ring_if_any(&self, appended: u64) -> u64 {
        if appended > 0 {
            self.signal.committed();
        }
        appended
    }
}

// ANCHOR: store
#[async_trait]
impl Store for ToyStore {
    fn name(&self) -> &'static str {
        "toy"
    }

    /// Positions are given out at the commit, one transaction after the other.
    fn frontier(&self) -> Frontier<'_> {
        Frontier::Single
    }

    fn wakeup_signal(&self) -> &WakeupSignal {
        &self.signal
    }

    async fn migrate(&self) -> Result<(), StoreError> {
        Ok(())
    }

    async fn check(&self) -> Result<(), StoreError> {
        Ok(())
    }

    async fn lease(&self, request: &LeaseRequest) -> Result<Leased, StoreError> {
        Ok(self.run(|tables, now| tables.route(&request.route).lease(request, now)))
    }

    async fn give_back(
        &self,
        relay: RelayId,
        route: &Route,
        leases: &[Lease],
        low_water: &LowWater,
        leaving: bool,
    ) -> Result<(), StoreError> {
        self.run(|tables, now| tables.route(route).give_back(relay, (leases, low_water), leaving, now));
        Ok(())
    }

    async fn fetch(&self, request: &FetchRequest) -> Result<Fetched, StoreError> {
        Ok(self.run(|tables, now| tables.route(&request.route).fetch(request, now)))
    }

    async fn due(&self, request: &DueRequest) -> Result<Due, StoreError> {
        Ok(self.run(|tables, now| tables.route(&request.route).due(request, now)))
    }

    /// By position *and* id: a position may be used again after a restore.
    async fn settle(&self, route: &Route, delivered: &[RowId]) -> Result<(), StoreError> {
        self.run(|tables, _| {
            let hot = &mut tables.route(route).hot;
            for row in delivered {
                take(hot, *row);
            }
        });
        Ok(())
    }

    async fn transition(&self, transitions: &[KeyTransition]) -> Result<Vec<Transitioned>, StoreError> {
        Ok(self.run(|tables, now| transitions.iter().map(|step| tables.transition(step, now)).collect()))
    }

    async fn elect(&self, role: &str, relay: RelayId, lasts: Duration) -> Result<bool, StoreError> {
        Ok(self.run(|tables, now| {
            let free = tables.roles.get(role).is_none_or(|(holder, until)| *holder == relay || *until <= now);
            if free {
                tables.roles.insert(role.to_owned(), (relay, now.plus(lasts)));
            }
            free
        }))
    }

    async fn maintain(&self, limit: usize) -> Result<Maintained, StoreError> {
        let maintained = self.run(|tables, now| tables.maintain(limit, now));
        self.ring_if_any(maintained.promoted);
        Ok(maintained)
    }

    async fn backlog(&self, route: &Route) -> Result<Backlog, StoreError> {
        Ok(self.run(|tables, now| tables.backlog(route, now)))
    }

    async fn unserved(&self, after: Duration) -> Result<Vec<Unserved>, StoreError> {
        Ok(self.run(|tables, now| tables.unserved(after, now)))
    }
}
// ANCHOR_END: store

// ANCHOR: transactional
/// A transaction: what it has written, and what it has seen that must still be true at its commit.
/// Dropping it rolls it back.
#[derive(Default)]
pub(crate) struct ToyTx {
    turn: Option<OwnedMutexGuard<()>>,
    appended: Vec<(Timestamp, Outgoing)>,
    handled: BTreeMap<(Consumer, MessageId), (Topic, Option<Key>)>,
    fenced: Vec<(Route, Stored)>,
}

#[async_trait]
impl Transactional for ToyStore {
    type Tx<'t> = ToyTx;
    type Connection = ToyTx;

    fn connection(tx: &mut ToyTx) -> &mut ToyTx {
        tx
    }

    async fn begin(&self) -> Result<ToyTx, StoreError> {
        Ok(ToyTx::default())
    }

    async fn commit(&self, tx: ToyTx) -> Committed {
        let rings = !tx.appended.is_empty();
        let committed = self.run(|tables, now| tables.commit(tx, now));
        if rings && matches!(committed, Committed::Yes) {
            self.signal.committed();
        }
        committed
    }

    async fn append(&self, tx: &mut Self::Tx<'_>, messages: &[Outgoing]) -> Result<(), AppendError> {
        for outgoing in messages {
            outgoing.message.validate()?;
        }
        if !messages.is_empty() {
            if tx.turn.is_none() {
                tx.turn = Some(Arc::clone(&self.turn).lock_owned().await);
            }
            let now = self.run(|_, now| now);
            tx.appended.extend(messages.iter().map(|outgoing| (now, outgoing.clone())));
            self.signal.appended();
        }
        Ok(())
    }

    async fn fence(
        &self,
        tx: &mut Self::Tx<'_>,
        route: &Route,
        stored: &[&Stored],
    ) -> Result<Vec<bool>, StoreError> {
        let waits: Vec<bool> =
            self.run(|tables, _| stored.iter().map(|stored| tables.waits(route, stored)).collect());
        let waiting = stored.iter().zip(&waits).filter(|(_, waits)| **waits);
        tx.fenced.extend(waiting.map(|(stored, _)| (route.clone(), (*stored).clone())));
        Ok(waits)
    }

    async fn deduplicate(
        &self,
        tx: &mut Self::Tx<'_>,
        consumer: &Consumer,
        messages: &[&Message],
    ) -> Result<Vec<Dedup>, StoreError> {
        Ok(self.run(|tables, _| {
            messages.iter().map(|message| tables.deduplicate(tx, consumer, message)).collect()
        }))
    }

    async fn is_handled(&self, consumer: &Consumer, id: MessageId) -> Result<bool, StoreError> {
        Ok(self.run(|tables, _| tables.handled.contains_key(&(consumer.clone(), id))))
    }
}

impl Tables {
    fn commit(&mut self, tx: ToyTx, now: Timestamp) -> Committed {
        let gone = tx.fenced.iter().any(|(route, stored)| !self.waits(route, stored));
        if gone || tx.handled.keys().any(|id| self.handled.contains_key(id)) {
            let words = "a message that this transaction handles was finished meanwhile";
            return Committed::No(StoreError::new(StoreErrorKind::Conflict, "commit", words));
        }
        for (at, outgoing) in tx.appended {
            match outgoing.due {
                Some(due) => self.schedule(due.at(at), outgoing.route, outgoing.message),
                None => self.append(&outgoing.route, outgoing.message, at),
            }
        }
        let handled = tx.handled.into_iter();
        self.handled.extend(handled.map(|(id, (topic, key))| (id, Handled { at: now, topic, key })));
        Committed::Yes
    }

    /// A message goes behind those of its key that wait for the consumer and are not handled.
    fn deduplicate(&self, tx: &mut ToyTx, consumer: &Consumer, message: &Message) -> Dedup {
        let id = (consumer.clone(), message.id);
        let is_handled =
            |id: &(Consumer, MessageId)| self.handled.contains_key(id) || tx.handled.contains_key(id);
        if is_handled(&id) {
            return Dedup::Duplicate;
        }
        let (route, key) = (inbox_route(consumer), message.key_id());
        let tables = self.routes.get(&route);
        let row = tables.and_then(|tables| tables.keys.get(&key));
        let parked = row.into_iter().flat_map(|row| row.parked.values().map(|(_, stored)| &stored.message));
        let hot = tables.into_iter().flat_map(|tables| tables.hot.values().map(|stored| &stored.message));
        let own = tx.appended.iter().filter(|(_, outgoing)| outgoing.route == route);
        let behind = hot.chain(own.map(|(_, outgoing)| &outgoing.message));
        let mut waiting = parked.chain(behind.filter(|waiting| waiting.key_id() == key));
        let held = row.is_some_and(|row| row.state.held);
        let dedup = match waiting.find(|waiting| !is_handled(&(consumer.clone(), waiting.id))) {
            _ if held => Dedup::OutOfTurn,
            Some(first) if first.id != message.id => Dedup::OutOfTurn,
            _ => Dedup::New,
        };
        if dedup == Dedup::New {
            tx.handled.insert(id, (message.topic.clone(), message.key.clone()));
        }
        dedup
    }
}
// ANCHOR_END: transactional

impl Tables {
    fn route(&mut self, route: &Route) -> &mut RouteTables {
        self.routes.entry(route.clone()).or_default()
    }

    fn next(&mut self) -> i64 {
        self.last += 1;
        self.last
    }

    fn append(&mut self, route: &Route, message: Message, at: Timestamp) {
        let position = Position(self.next());
        self.route(route).hot.insert(position, Arc::new(Stored::new(position, at, message)));
    }

    fn schedule(&mut self, due_at: Timestamp, route: Route, message: Message) {
        let number = self.next();
        self.scheduled.insert((due_at, number), (route, message));
    }

    /// Says whether a message still waits on a route, hot or parked, where it was read.
    fn waits(&self, route: &Route, stored: &Stored) -> bool {
        let Some(tables) = self.routes.get(route) else { return false };
        let key = tables.keys.get(&stored.message.key_id());
        let parked = key.and_then(|row| row.parked.get(&stored.position)).map(|(_, stored)| stored);
        let there = tables.hot.get(&stored.position).or(parked);
        there.is_some_and(|there| there.message.id == stored.message.id)
    }

    fn bury(&mut self, route: &Route, stored: Arc<Stored>, death: Death, now: Timestamp) {
        self.dead.push(Listed::new(route.clone(), stored, now).with_death(death));
    }
}

/// Removes a row, if exactly it is there.
fn take(hot: &mut BTreeMap<Position, Arc<Stored>>, row: RowId) -> Option<Arc<Stored>> {
    hot.get(&row.position).filter(|stored| stored.message.id == row.id)?;
    hot.remove(&row.position)
}

fn content_bytes(message: &Message) -> usize {
    let headers = message.headers.iter().map(|(name, value)| name.len() + value.len());
    message.payload.len() + headers.sum::<usize>()
}

// ANCHOR: leases
impl RouteTables {
    fn owner(&self, bucket: Bucket, now: Timestamp) -> Option<RelayId> {
        self.buckets.get(&bucket)?.owner(|id| self.relays.get(&id).map(|(_, row)| row), now)
    }

    fn owned(&self, relay: RelayId, now: Timestamp) -> BucketSet {
        self.buckets.keys().copied().filter(|bucket| self.owner(*bucket, now) == Some(relay)).collect()
    }

    fn lease(&mut self, request: &LeaseRequest, now: Timestamp) -> Leased {
        let (relays, buckets) = (self.relays.values().map(|(_, row)| *row), self.buckets.values().copied());
        let Heartbeat { relay, changed, mut leased } = leases::heartbeat(relays, buckets, request, now);
        self.relays.insert(relay.relay, (request.label.clone(), relay));
        self.put(changed);
        leased.paused = self.paused.clone();
        leased
    }

    fn give_back(&mut self, relay: RelayId, given: (&[Lease], &LowWater), leaving: bool, now: Timestamp) {
        let (relays, buckets) = (self.relays.values().map(|(_, row)| *row), self.buckets.values().copied());
        self.put(leases::give_back(relays, buckets, relay, given, now));
        if leaving {
            self.relays.remove(&relay);
        }
    }

    fn put(&mut self, changed: Vec<BucketRow>) {
        self.buckets.extend(changed.into_iter().map(|row| (row.bucket, row)));
    }
}
// ANCHOR_END: leases

// ANCHOR: fetch
impl RouteTables {
    fn fetch(&self, request: &FetchRequest, now: Timestamp) -> Fetched {
        let buckets = request.buckets.intersection(&self.owned(request.relay, now));
        let mut fetched = Fetched { lapsed: buckets != request.buckets, ..Fetched::default() };
        let mut bytes = 0;
        for (position, stored) in &self.hot {
            let key = stored.message.key_id();
            let is_asked = *position > request.after
                && *position <= request.until
                && buckets.contains(stored.bucket)
                && request.scope.covers(&key)
                && request.except.binary_search(position).is_err();
            if !is_asked {
                continue;
            }
            let row = if is_muted(&request.muted, &key) {
                FetchedRow::Muted(*position)
            } else if self.keys.contains_key(&key) {
                FetchedRow::Failing(Waiting { at: stored.row(), key, bucket: stored.bucket, stripe: None })
            } else {
                bytes += content_bytes(&stored.message);
                FetchedRow::Message(Arc::clone(stored))
            };
            if bytes > request.bytes && !fetched.rows.is_empty() {
                fetched.full = true;
                break;
            }
            fetched.rows.push(row);
            if fetched.rows.len() == request.limit.max(1) {
                fetched.full = true;
                break;
            }
        }
        if !fetched.full && !fetched.lapsed {
            let last = self.hot.keys().next_back().copied().unwrap_or(Position::START);
            fetched.reached = last.min(request.until);
        }
        fetched
    }

    fn due(&self, request: &DueRequest, now: Timestamp) -> Due {
        let mut due = Due::default();
        let buckets = request.buckets.intersection(&self.owned(request.relay, now));
        let mut keys: Vec<(Timestamp, &KeyId, &KeyRow)> = self
            .keys
            .iter()
            .filter(|(key, _)| buckets.contains(key.bucket()) && !request.except.contains(key))
            .filter(|(key, _)| !is_muted(&request.muted, key))
            .filter_map(|(key, row)| row.state.next_attempt_at.map(|at| (at, key, row)))
            .collect();
        keys.sort_by_key(|(at, ..)| *at);
        let mut room = request.bytes;
        for (at, key, row) in keys {
            if at > now || due.keys.len() >= request.keys.max(1) {
                due.next = Some(at.since(now));
                break;
            }
            let mut parked = Vec::new();
            for (_, stored) in row.parked.values().take(request.messages.max(1)) {
                let bytes = content_bytes(&stored.message);
                if bytes > room && !(due.keys.is_empty() && parked.is_empty()) {
                    break;
                }
                room = room.saturating_sub(bytes);
                parked.push(Arc::clone(stored));
            }
            if parked.is_empty() && !row.parked.is_empty() {
                due.next = Some(Duration::ZERO);
                break;
            }
            due.keys.push(DueKey {
                key: key.clone(),
                bucket: key.bucket(),
                version: row.state.version,
                failing: row.state.failing.filter(|failing| first(&row.parked) == Some(*failing)),
                attempts: row.state.attempts,
                first_failure: row.state.first_failure.clone(),
                parked,
            });
        }
        due
    }
}

fn is_muted(muted: &[Scope], key: &KeyId) -> bool {
    muted.iter().any(|scope| scope.covers(key))
}
// ANCHOR_END: fetch

// ANCHOR: transition
impl Tables {
    /// Checks the lease, and takes the step whole or not at all.
    fn transition(&mut self, transition: &KeyTransition, now: Timestamp) -> Transitioned {
        let KeyTransition { route, relay, bucket, epoch, key, step, .. } = transition;
        let next = self.next();
        let tables = self.route(route);
        let is_of_epoch = tables.buckets.get(bucket).is_some_and(|row| row.epoch == *epoch);
        if !is_of_epoch || tables.owner(*bucket, now) != Some(*relay) {
            return Transitioned::LeaseLost;
        }
        let (state, mut parked) = tables.take_key(key);
        let is_stale = failing_key::is_stale(state.as_ref(), transition);
        let moved = if is_stale { None } else { tables.move_messages(key, &mut parked, step, now) };
        let state = match moved {
            Some(_) => failing_key::after(state, step, first(&parked), next, now),
            None => state,
        };
        let version = state.as_ref().map(|state| state.version);
        tables.keys.extend(state.map(|state| (key.clone(), KeyRow { state, parked })));
        let Some(buried) = moved else { return Transitioned::Stale };
        if let Step::Bury { reason, attempts, first, last, .. } = step {
            for stored in buried {
                let (first_failure, last_failure) = (Some(first.clone()), Some(last.clone()));
                let reason = (*reason).to_owned();
                self.bury(
                    route,
                    stored,
                    Death { reason, attempts: *attempts, first_failure, last_failure },
                    now,
                );
            }
        }
        Transitioned::Done(version)
    }
}

impl RouteTables {
    /// Takes a key out: its state, if it has one, and what is parked behind it.
    fn take_key(&mut self, key: &KeyId) -> (Option<KeyState>, Parked) {
        self.keys.remove(key).map_or_else(Default::default, |row| (Some(row.state), row.parked))
    }

    /// Moves the messages of a step, and returns those that it buries; `None` if its own message is
    /// not there.
    fn move_messages(
        &mut self,
        key: &KeyId,
        parked: &mut Parked,
        step: &Step,
        now: Timestamp,
    ) -> Option<Vec<Arc<Stored>>> {
        match step {
            Step::Fail { row, behind, .. } => {
                self.park(key, parked, &[*row], now);
                parked.get(&row.position).filter(|(_, stored)| stored.message.id == row.id)?;
                self.park(key, parked, behind, now);
            }
            Step::Park { rows } => self.park(key, parked, rows, now),
            Step::Bury { row, .. } => {
                return unpark(parked, *row).or_else(|| self.take_hot(key, *row)).map(|stored| vec![stored]);
            }
            Step::Resume { delivered } => delivered.iter().for_each(|row| drop(unpark(parked, *row))),
        }
        Some(Vec::new())
    }

    /// Removes a hot row, if it is there and of this key.
    fn take_hot(&mut self, key: &KeyId, row: RowId) -> Option<Arc<Stored>> {
        self.hot.get(&row.position).filter(|stored| stored.message.key_id() == *key)?;
        take(&mut self.hot, row)
    }

    /// Moves hot rows behind those parked, and passes over those that are not there.
    fn park(&mut self, key: &KeyId, parked: &mut Parked, rows: &[RowId], now: Timestamp) {
        for row in rows {
            if let Some(stored) = self.take_hot(key, *row) {
                parked.insert(row.position, (now, stored));
            }
        }
    }
}

/// Returns the first parked message.
fn first(parked: &Parked) -> Option<MessageId> {
    parked.values().next().map(|(_, stored)| stored.message.id)
}

fn unpark(parked: &mut Parked, row: RowId) -> Option<Arc<Stored>> {
    parked.get(&row.position).filter(|(_, stored)| stored.message.id == row.id)?;
    parked.remove(&row.position).map(|(_, stored)| stored)
}
// ANCHOR_END: transition

// ANCHOR: admin
#[async_trait]
impl Admin for ToyStore {
    async fn failing_keys(&self, filter: &Filter) -> Result<Vec<FailingKey>, StoreError> {
        let mut found = self.run(|tables, _| {
            let mut found = Vec::new();
            for (route, key, row) in tables.keys() {
                let ids = row.parked.values().map(|(_, stored)| stored.message.id);
                if selects(filter, route, key, ids, row.state.since) {
                    let mut failing = row.state.clone().failing_key(route.clone(), key.clone());
                    failing.parked = row.parked.len() as u64;
                    failing.first = first(&row.parked);
                    found.push(failing);
                }
            }
            found
        });
        found.sort_by_key(|key| key.since);
        Ok(page(found, filter))
    }

    async fn browse(&self, view: View, filter: &Filter) -> Result<Vec<Listed>, StoreError> {
        let mut found: Vec<Listed> = self.run(|tables, _| match view {
            View::Waiting => {
                let hot = tables.routes.iter().flat_map(|(route, tables)| {
                    tables
                        .hot
                        .values()
                        .map(|stored| Listed::new(route.clone(), Arc::clone(stored), stored.appended_at))
                });
                hot.collect()
            }
            View::Parked => {
                let parked = tables.keys().flat_map(|(route, _, row)| {
                    row.parked
                        .values()
                        .map(|(at, stored)| Listed::new(route.clone(), Arc::clone(stored), *at))
                });
                parked.collect()
            }
            View::DeadLetters => tables.dead.clone(),
            View::History => Vec::new(),
            View::Scheduled => {
                let scheduled = tables.scheduled.iter().map(|((due_at, _), (route, message))| {
                    let stored = Stored::new(Position::START, *due_at, message.clone());
                    Listed::new(route.clone(), Arc::new(stored), *due_at)
                });
                scheduled.collect()
            }
        });
        if view == View::Waiting {
            found.sort_by_key(|listed| listed.stored.position);
            if filter.newest {
                found.reverse();
            }
        }
        Ok(page(found.into_iter().filter(|listed| selects_listed(filter, listed)), filter))
    }

    async fn steer(
        &self,
        route: &Route,
        key: &KeyId,
        operation: KeyOperation,
    ) -> Result<Steered, StoreError> {
        let note = AuditNote::on_key(&self.actor, operation, route, key);
        let steered = self.run(|tables, now| {
            let (steered, ids) = tables.steer(route, key, operation, now)?;
            // A skip of nothing changes nothing.
            if operation != KeyOperation::Skip || !ids.is_empty() {
                tables.note(&note, &ids, now);
            }
            Some(steered)
        });
        steered.ok_or_else(|| {
            let words = format!("the key {key} on the route {route} is neither failing nor held");
            StoreError::new(StoreErrorKind::Invalid, operation.name(), words)
        })
    }

    async fn append_again(&self, archive: Archive, filter: &Filter) -> Result<u64, StoreError> {
        if archive == Archive::History {
            return Ok(0);
        }
        let note = AuditNote::on_messages(&self.actor, archive.operation(), filter);
        let appended = self.run(|tables, now| {
            let mut letters = tables.take_dead(filter);
            letters.sort_by_key(|letter| letter.stored.position);
            for letter in &letters {
                tables.append(&letter.route, letter.stored.message.clone(), now);
            }
            tables.note_some(&note, &letters, now)
        });
        Ok(self.ring_if_any(appended))
    }

    async fn requeue_edited(&self, filter: &Filter, edit: &Edit) -> Result<Option<MessageId>, StoreError> {
        let id = self.run(|tables, now| {
            let first = filter.first();
            if first.limit() == 0 {
                return Ok(None);
            }
            let Some(letter) = tables.dead.iter().find(|letter| selects_listed(&first, letter)) else {
                return Ok(None);
            };
            let message = edit.of_message(&letter.stored.message)?;
            let id = message.id;
            if let Some(letter) = tables.take_dead(&first).pop() {
                tables.append(&letter.route, message, now);
                tables.note(&AuditNote::edited(&self.actor, filter, edit), &[id], now);
            }
            Ok(Some(id))
        });
        let id =
            id.map_err(|wrong: String| StoreError::new(StoreErrorKind::Invalid, "requeue_edited", wrong))?;
        self.ring_if_any(u64::from(id.is_some()));
        Ok(id)
    }

    async fn purge(&self, filter: &Filter) -> Result<u64, StoreError> {
        let note = AuditNote::on_messages(&self.actor, "purge", filter);
        Ok(self.run(|tables, now| {
            let letters = tables.take_dead(filter);
            tables.note_some(&note, &letters, now)
        }))
    }

    async fn set_paused(&self, route: &Route, topic: Option<&Topic>, paused: bool) -> Result<(), StoreError> {
        self.run(|tables, now| {
            let pauses = &mut tables.route(route).paused;
            let before = pauses.clone();
            match topic {
                None => pauses.route = paused,
                Some(topic) => {
                    pauses.topics.retain(|there| there != topic);
                    pauses.topics.extend(paused.then(|| topic.clone()));
                    pauses.topics.sort();
                }
            }
            if *pauses != before {
                tables.note(&AuditNote::paused(&self.actor, route, topic, paused), &[], now);
            }
        });
        Ok(())
    }

    async fn cancel_scheduled(&self, ids: &[MessageId]) -> Result<u64, StoreError> {
        Ok(self.run(|tables, now| {
            let is_removed =
                |_: &(Timestamp, i64), scheduled: &mut (Route, Message)| ids.contains(&scheduled.1.id);
            let removed = tables.scheduled.extract_if(.., is_removed);
            let removed: Vec<MessageId> = removed.map(|(_, (_, message))| message.id).collect();
            if !removed.is_empty() {
                tables.note(&AuditNote::canceled(&self.actor), &removed, now);
            }
            removed.len() as u64
        }))
    }

    async fn identity(&self) -> Result<OutboxId, StoreError> {
        Ok(self.run(|tables, _| *tables.identity.get_or_insert_with(OutboxId::new)))
    }

    async fn renew_identity(&self) -> Result<OutboxId, StoreError> {
        let identity = OutboxId::new();
        self.run(|tables, now| {
            tables.identity = Some(identity);
            tables.note(&AuditNote::identity(&self.actor, identity), &[], now);
        });
        Ok(identity)
    }

    fn acting_as(&self, actor: Actor) -> Arc<dyn Admin> {
        Arc::new(Self { actor, ..self.clone() })
    }

    async fn audit(&self, filter: &Filter) -> Result<Vec<AuditEntry>, StoreError> {
        let mut found = self.run(|tables, _| tables.audit.clone());
        if filter.newest {
            found.reverse();
        }
        Ok(page(found.into_iter().filter(|entry| selects_entry(filter, entry)), filter))
    }

    async fn ownership(&self, route: &Route) -> Result<Ownership, StoreError> {
        Ok(self.run(|tables, now| {
            let tables = tables.route(route);
            let (relays, buckets) = (tables.relays.values().cloned(), tables.buckets.values().copied());
            Ownership::of_rows(relays, buckets, tables.paused.clone(), now)
        }))
    }

    async fn routes(&self) -> Result<Vec<RouteStatus>, StoreError> {
        Ok(self.run(|tables, now| tables.status(now)))
    }

    async fn topics(&self, route: &Route) -> Result<Vec<TopicFigures>, StoreError> {
        Ok(self.run(|tables, now| tables.figures(route, now)))
    }

    async fn count_handled(&self, filter: &HandledFilter) -> Result<u64, StoreError> {
        Ok(self.run(|tables, _| tables.selected(filter).len() as u64))
    }

    async fn forget(&self, filter: &HandledFilter) -> Result<u64, StoreError> {
        Ok(self.run(|tables, now| {
            let mut forgotten = tables.selected(filter);
            forgotten.truncate(MAX_PER_CALL);
            for name in &forgotten {
                tables.handled.remove(name);
            }
            let ids: Vec<MessageId> = forgotten.iter().map(|(_, id)| *id).collect();
            if !ids.is_empty() {
                tables.note(&AuditNote::forgotten(&self.actor, filter), &ids, now);
            }
            ids.len() as u64
        }))
    }
}

impl Tables {
    fn keys(&self) -> impl Iterator<Item = (&Route, &KeyId, &KeyRow)> {
        self.routes
            .iter()
            .flat_map(|(route, tables)| tables.keys.iter().map(move |(key, row)| (route, key, row)))
    }

    fn note(&mut self, note: &AuditNote, ids: &[MessageId], now: Timestamp) {
        self.audit.push(note.entry(now, ids.len() as u64, ids));
    }

    /// Records an operation on messages, if there were any. Returns their number.
    fn note_some(&mut self, note: &AuditNote, messages: &[Listed], now: Timestamp) -> u64 {
        let ids: Vec<MessageId> = messages.iter().map(|listed| listed.stored.message.id).collect();
        if !ids.is_empty() {
            self.note(note, &ids, now);
        }
        ids.len() as u64
    }

    fn status(&self, now: Timestamp) -> Vec<RouteStatus> {
        let scheduled = self.scheduled.values().map(|(route, _)| route);
        let known = self.routes.keys().chain(scheduled).chain(self.dead.iter().map(|letter| &letter.route));
        let known: BTreeSet<&Route> = known.collect();
        let status = |route: &Route| {
            let mut status = RouteStatus::new(route.clone());
            if let Some(tables) = self.routes.get(route) {
                status.paused = tables.paused.clone();
                status.relays = tables.relays.values().filter(|(_, relay)| relay.is_live(now)).count();
            }
            status
        };
        known.into_iter().take(RouteStatus::MAX).map(status).collect()
    }

    fn figures(&self, route: &Route, now: Timestamp) -> Vec<TopicFigures> {
        let mut tally = TopicTally::new(now, u64::MAX);
        for letter in self.dead.iter().filter(|letter| letter.route == *route) {
            tally.add(Figure::Dead, letter.stored.message.topic.as_str(), 1, None);
        }
        let tables = self.routes.get(route);
        for stored in tables.into_iter().flat_map(|tables| tables.hot.values()) {
            tally.add(Figure::Waiting, stored.message.topic.as_str(), 1, Some(stored.appended_at));
        }
        for (key, row) in tables.into_iter().flat_map(|tables| &tables.keys) {
            let figure = if row.state.held { Figure::Held } else { Figure::Retrying };
            tally.add(figure, key.topic.as_str(), 1, None);
            for (_, stored) in row.parked.values() {
                tally.add(Figure::Parked, key.topic.as_str(), 1, Some(stored.appended_at));
            }
        }
        tally.finish()
    }

    /// Does what an operator asks, and returns the ids of the messages that this buried; `None` if the
    /// key is neither failing nor held.
    fn steer(
        &mut self,
        route: &Route,
        key: &KeyId,
        operation: KeyOperation,
        now: Timestamp,
    ) -> Option<(Steered, Vec<MessageId>)> {
        let version = self.next();
        let tables = self.route(route);
        let (state, mut parked) = tables.take_key(key);
        let mut put = |state, parked| drop(tables.keys.insert(key.clone(), KeyRow { state, parked }));
        match operation {
            KeyOperation::Hold => {
                put(failing_key::hold(state, version, now), parked);
                Some((Steered::NOTHING, Vec::new()))
            }
            KeyOperation::Release => {
                put(state?.release(version, now), parked);
                Some((Steered::NOTHING, Vec::new()))
            }
            KeyOperation::Skip => {
                let state = state?;
                let Some((_, (_, stored))) = parked.pop_first() else {
                    put(state, parked);
                    return Some((Steered::NOTHING, Vec::new()));
                };
                let id = stored.message.id;
                let death = death(&state, id, "skipped");
                put(state.skip(version, now), parked);
                self.bury(route, stored, death, now);
                Some((Steered::skipped(Some(id)), vec![id]))
            }
            KeyOperation::Discard => {
                let state = state?;
                for (_, stored) in parked.values() {
                    let death = death(&state, stored.message.id, "discarded");
                    self.bury(route, Arc::clone(stored), death, now);
                }
                let ids: Vec<MessageId> = parked.values().map(|(_, stored)| stored.message.id).collect();
                Some((Steered::discarded(ids.len() as u64), ids))
            }
        }
    }

    /// Takes the oldest dead letters that a filter selects.
    fn take_dead(&mut self, filter: &Filter) -> Vec<Listed> {
        let mut left = filter.limit();
        let is_taken = |letter: &mut Listed| {
            let takes = left > 0 && selects_listed(filter, letter);
            left -= usize::from(takes);
            takes
        };
        self.dead.extract_if(.., is_taken).collect()
    }
}

/// Returns the end of a message by an operator: with its attempts, if it is the one that was tried.
fn death(state: &KeyState, id: MessageId, reason: &str) -> Death {
    let reason = reason.to_owned();
    if state.failing == Some(id) {
        let (first_failure, last_failure) = (state.first_failure.clone(), state.last_failure.clone());
        return Death { reason, attempts: state.attempts, first_failure, last_failure };
    }
    Death { reason, ..Death::default() }
}

fn selects_listed(filter: &Filter, listed: &Listed) -> bool {
    let message = &listed.stored.message;
    selects(filter, &listed.route, &message.key_id(), [message.id], listed.at)
}

fn selects(
    filter: &Filter,
    route: &Route,
    key: &KeyId,
    ids: impl IntoIterator<Item = MessageId>,
    at: Timestamp,
) -> bool {
    filter.route.as_ref().is_none_or(|wanted| wanted == route)
        && filter.topic.as_ref().is_none_or(|wanted| *wanted == key.topic)
        && filter.key.as_ref().is_none_or(|wanted| *wanted == key.key)
        && filter.ids.as_ref().is_none_or(|wanted| ids.into_iter().any(|id| wanted.contains(&id)))
        && filter.since.is_none_or(|since| at >= since)
        && filter.before.is_none_or(|before| at < before)
}

fn selects_entry(filter: &Filter, entry: &AuditEntry) -> bool {
    filter.route.as_ref().is_none_or(|wanted| entry.route.as_ref() == Some(wanted))
        && filter.topic.as_ref().is_none_or(|wanted| entry.topic.as_ref() == Some(wanted))
        && filter.key.as_ref().is_none_or(|wanted| entry.key.as_ref() == Some(wanted))
        && filter.ids.as_ref().is_none_or(|ids| entry.ids.iter().any(|id| ids.contains(id)))
        && filter.since.is_none_or(|since| entry.at >= since)
        && filter.before.is_none_or(|before| entry.at < before)
}

fn page<T>(found: impl IntoIterator<Item = T>, filter: &Filter) -> Vec<T> {
    found.into_iter().skip(filter.offset).take(filter.limit()).collect()
}
// ANCHOR_END: admin

// ANCHOR: upkeep
impl Tables {
    /// Messages that a consumer has handled, the oldest first.
    fn selected(&self, filter: &HandledFilter) -> Vec<(Consumer, MessageId)> {
        let of = |((consumer, _), handled): &(&(Consumer, MessageId), &Handled)| {
            *consumer == filter.consumer && filter.selects(&handled.topic, handled.key.as_ref(), handled.at)
        };
        let mut selected: Vec<_> = self.handled.iter().filter(of).collect();
        selected.sort_by_key(|(_, handled)| handled.at);
        selected.into_iter().map(|(id, _)| id.clone()).collect()
    }

    /// The instants up to which each consumer needs its ids no longer.
    fn handled_cuts(&self, now: Timestamp) -> BTreeMap<Consumer, Timestamp> {
        let mut of: BTreeMap<Consumer, Vec<Timestamp>> = BTreeMap::new();
        for ((consumer, _), handled) in &self.handled {
            of.entry(consumer.clone()).or_default().push(handled.at);
        }
        let cut = |(consumer, handled): (Consumer, Vec<Timestamp>)| {
            let mut cut = HandledIdsCut::new(now, HANDLED_KEPT, HANDLED_MAX_AGE);
            while let Some(at) = cut.look() {
                cut.found(handled.iter().copied().filter(|handled| *handled <= at).max());
            }
            (consumer, cut.cut())
        };
        of.into_iter().map(cut).collect()
    }

    fn maintain(&mut self, limit: usize, now: Timestamp) -> Maintained {
        let mut done = Maintained::default();
        let due: Vec<_> =
            self.scheduled.range(..=(now, i64::MAX)).take(limit).map(|(when, _)| *when).collect();
        for when in due {
            if let Some((route, message)) = self.scheduled.remove(&when) {
                self.append(&route, message, now);
                done.promoted += 1;
            }
        }
        let next_due = self.scheduled.keys().next().map(|(due_at, _)| *due_at);
        done.next_due = next_due.map(|due_at| due_at.since(now));
        let mut left = limit;
        let mut is_removed = |is_over: bool| {
            let is_removed = is_over && left > 0;
            left -= usize::from(is_removed);
            is_removed
        };
        let before = self.handled.len();
        let cuts = self.handled_cuts(now);
        self.handled.retain(|(consumer, _), handled| !is_removed(handled.at <= cuts[consumer]));
        done.handled_ids_removed = (before - self.handled.len()) as u64;
        let before = self.audit.len();
        self.audit.retain(|entry| !is_removed(entry.at.plus(AUDIT_KEPT) <= now));
        done.audit_removed = (before - self.audit.len()) as u64;
        for tables in self.routes.values_mut() {
            let before = tables.relays.len();
            tables.relays.retain(|_, (_, relay)| {
                let gone_for = now.since(relay.expires_at);
                !is_removed(!relay.is_live(now) && gone_for > relay.lasts.saturating_mul(10))
            });
            done.relays_removed += (before - tables.relays.len()) as u64;
        }
        done.more = left == 0 || next_due.is_some_and(|due_at| due_at <= now);
        done
    }

    fn backlog(&mut self, route: &Route, now: Timestamp) -> Backlog {
        let mut backlog = Backlog::default();
        backlog.dead = self.dead.iter().filter(|letter| letter.route == *route).count() as u64;
        let of_route = self.scheduled.iter().filter(|(_, (of, _))| of == route);
        let due_times: Vec<Timestamp> = of_route.map(|((due_at, _), _)| *due_at).collect();
        backlog.scheduled = due_times.len() as u64;
        let tables = self.route(route);
        let parked = || tables.keys.values().flat_map(|row| row.parked.values().map(|(_, stored)| stored));
        backlog.pending = tables.hot.len() as u64;
        backlog.parked = parked().count() as u64;
        backlog.held_keys = tables.keys.values().filter(|row| row.state.held).count() as u64;
        backlog.retrying_keys = tables.keys.len() as u64 - backlog.held_keys;
        let waiting = || tables.hot.values().chain(parked());
        let buckets: BTreeSet<Bucket> = waiting().map(|stored| stored.bucket).collect();
        let unowned = buckets.iter().filter(|bucket| tables.owner(**bucket, now).is_none());
        backlog.unowned_buckets = unowned.count() as u64;
        let overdue = due_times.into_iter().filter(|due_at| *due_at <= now);
        let oldest = waiting().map(|stored| stored.appended_at).chain(overdue).min();
        backlog.oldest_age = oldest.map(|oldest| now.since(oldest));
        backlog
    }

    fn unserved(&self, after: Duration, now: Timestamp) -> Vec<Unserved> {
        let is_served = |route: &Route| {
            let relays = self.routes.get(route).into_iter().flat_map(|tables| tables.relays.values());
            relays.into_iter().any(|(_, relay)| relay.is_live(now))
        };
        let due = self.scheduled.range(..=(now, i64::MAX)).map(|((due_at, _), (route, _))| (route, *due_at));
        let there = self.routes.iter().flat_map(|(route, tables)| {
            let parked = tables.keys.values().flat_map(|row| row.parked.values().map(|(_, stored)| stored));
            tables.hot.values().chain(parked).map(move |stored| (route, stored.appended_at))
        });
        let found = there.chain(due).filter(|(route, _)| !is_served(route));
        Unserved::gather(found.map(|(route, since)| (route.as_str(), now.since(since))), after)
    }
}
// ANCHOR_END: upkeep
