//! A store in one mutex, as small as one can be that keeps every promise: the example of the book's
//! page on writing a backend. It keeps no history, and is gone with the process.
//!
//! A real store has statements where this one has loops; the rules are the same.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use outbox_contract::admin::{
    Actor, Admin, AuditEntry, Edit, FailingKey, Filter, HandledFilter, MAX_PER_CALL, OutboxId, Ownership,
    RouteStatus, TopicFigures,
};
use outbox_contract::backend::rules::failing_key::{self, KeyState};
use outbox_contract::backend::rules::leases::{self, BucketRow, Heartbeat, RelayRow};
use outbox_contract::backend::rules::options::StoreOptions;
use outbox_contract::backend::rules::retention::HandledIdsCut;
use outbox_contract::backend::{
    Archive, AuditNote, Backlog, Bucket, BucketSet, Committed, Death, Dedup, Due, DueKey, DueRequest,
    FetchRequest, Fetched, FetchedRow, Figure, Frontier, KeyOperation, KeyTransition, Lease, LeaseRequest,
    Leased, Listed, LowWater, Maintained, Paused, Position, RelayId, RowId, Scope, Steered, Step, Stored,
    TopicTally, Transitioned, Unserved, View, Waiting, WakeupSignal, inbox_route,
};
use outbox_contract::{
    AppendError, Consumer, Key, KeyId, Message, MessageId, Outgoing, Route, Store, StoreError,
    StoreErrorKind, Timestamp, Topic, Transactional, async_trait,
};
use tokio::sync::{Mutex as AsyncMutex, OwnedMutexGuard};
use tokio::time::Instant;

mod admin;
mod route;
mod upkeep;

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
        Ok(self.run(|tables, now| {
            transitions.iter().map(|step| tables.transition(step, &self.actor, now)).collect()
        }))
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
