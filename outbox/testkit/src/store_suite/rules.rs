//! Generated histories: what a store makes of them is what the
//! [rules](outbox_contract::backend::rules) make of them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use fastrand::Rng;
use outbox_contract::admin::{DeadLetter, Filter};
use outbox_contract::backend::rules::failing_key::{self, KeyState};
use outbox_contract::backend::rules::leases::{self, BucketRow, RelayRow};
use outbox_contract::backend::{
    Bucket, BucketSet, FetchedRow, Lease, LeaseRequest, Leased, LowWater, Ordering, Position, RelayId, RowId,
    Scope, Step, Stored, Then, Transitioned,
};
use outbox_contract::{Admin, AdminExt, Failure, KeyId, MessageId, Route, Store, Timestamp, Transactional};

use super::support::{LONG, Relay, failure, message, messages, prepared, write};
use super::{Capability, StoreHarness, has};

/// A delay that is over in no test.
const LATER: Duration = Duration::from_secs(36_000);
/// The clock of a key's model: it stands still.
const NOW: Timestamp = Timestamp::from_micros(0);

/// Steps of relays and operations of operators change failing keys as the rule says, in every
/// order.
pub async fn failing_keys_follow_the_rule<H: StoreHarness>(harness: &H) {
    let store = prepared(harness).await;
    let relay = Relay::start(&store).await;
    for seed in 0..3 {
        let mut key = ModelKey::new(&relay, seed).await;
        for _ in 0..40 {
            key.something_happens().await;
        }
    }
}

/// A dead letter: its id and reason, its attempts, first and last failure.
type Dead = (MessageId, String, u32, Option<Failure>, Option<Failure>);

/// A key, as the rule has it.
struct ModelKey<'r, S> {
    relay: &'r Relay<S>,
    seed: u64,
    rng: Rng,
    key: KeyId,
    hot: BTreeMap<Position, Arc<Stored>>,
    parked: BTreeMap<Position, Arc<Stored>>,
    state: Option<KeyState>,
    dead: Vec<Dead>,
    versions: BTreeSet<i64>,
    done: Vec<String>,
}

impl<'r, S: Transactional> ModelKey<'r, S> {
    async fn new(relay: &'r Relay<S>, seed: u64) -> Self {
        let key = message("orders", &format!("rule-{seed}")).key_id();
        Self {
            relay,
            seed,
            rng: Rng::with_seed(seed),
            key,
            hot: BTreeMap::new(),
            parked: BTreeMap::new(),
            state: None,
            dead: Vec::new(),
            versions: BTreeSet::new(),
            done: Vec::new(),
        }
    }

    async fn something_happens(&mut self) {
        match self.rng.u8(0..18) {
            0..4 => self.append().await,
            4..9 => {
                let (row, mut behind) = (self.some_row(), self.some_hot());
                behind.retain(|other| *other != row);
                let then = if self.rng.u8(0..4) == 0 { Then::Hold } else { Then::RetryAfter(self.delay()) };
                let (first, last) = (failure("first"), failure(&format!("last {}", self.done.len())));
                let attempts = self.rng.u32(1..9);
                self.step(Step::Fail { row, attempts, first, last, then, behind }).await;
            }
            9..11 => {
                let rows = self.some_hot();
                self.step(Step::Park { rows }).await;
            }
            11..13 => {
                let (row, attempts) = (self.some_row(), self.rng.u32(1..9));
                let (first, last) = (failure("first"), failure("the end"));
                let discard = self.rng.u8(0..3) == 0;
                self.step(Step::Bury { row, discard, reason: "rejected", attempts, first, last }).await;
            }
            13..15 => {
                let most = self.rng.usize(0..4);
                let delivered = self.parked.values().take(most).map(|stored| stored.row()).collect();
                self.step(Step::Resume { delivered }).await;
            }
            15 => self.hold().await,
            16 => self.release().await,
            _ => self.bury_by_hand().await,
        }
        self.compare().await;
    }

    async fn append(&mut self) {
        let count = self.rng.usize(1..4);
        write(&*self.relay.store, messages("orders", self.key.key.as_str(), count)).await;
        let written = self.fetch().await;
        assert!(written.len() >= count, "what was appended is there: {self}");
        // A row of a failing key comes without content, so its id is all that is known of it.
        for row in written {
            let stored = match row {
                FetchedRow::Message(stored) => stored,
                FetchedRow::Failing(row) => {
                    let mut bare = message("orders", self.key.key.as_str());
                    bare.id = row.at.id;
                    Arc::new(Stored::new(row.at.position, NOW, bare))
                }
                other => panic!("a row of {self} is {other:?}"),
            };
            self.hot.insert(stored.position, stored);
        }
        self.done.push(format!("append {count}"));
    }

    fn delay(&mut self) -> Duration {
        if self.rng.bool() { Duration::ZERO } else { LATER }
    }

    /// A row that is parked or hot, or was.
    fn some_row(&mut self) -> RowId {
        let rows: Vec<RowId> =
            self.parked.values().chain(self.hot.values()).take(4).map(|stored| stored.row()).collect();
        let gone = RowId { position: Position(1), id: MessageId::new() };
        rows.get(self.rng.usize(0..5)).copied().unwrap_or(gone)
    }

    fn some_hot(&mut self) -> Vec<RowId> {
        let most = self.rng.usize(0..4);
        self.hot.values().take(most).map(|stored| stored.row()).collect()
    }

    /// Performs a step from this version of the key, or another one.
    async fn step(&mut self, step: Step) {
        let known = self.state.as_ref().map(|state| state.version);
        let version = match self.rng.u8(0..6) {
            0 => self.versions.iter().rev().nth(1).copied(),
            1 if !matches!(step, Step::Resume { .. }) => None,
            _ => known,
        };
        self.done.push(format!("{step:?} from {version:?}"));
        let transition = self.relay.key_transition(&self.key, version, step.clone());
        let answer = self.relay.transition(transition.clone()).await;
        if failing_key::is_stale(self.state.as_ref(), &transition) || !self.move_messages(&step) {
            assert_eq!(answer, Transitioned::Stale, "{self}");
            return;
        }
        let fresh = match answer {
            Transitioned::Done(version) => version.unwrap_or_default(),
            refused => panic!("{refused:?}: {self}"),
        };
        let first = self.parked.values().next().map(|stored| stored.message.id);
        let next = failing_key::after(self.state.clone(), &step, first, fresh, NOW);
        assert_eq!(answer, Transitioned::Done(next.as_ref().map(|state| state.version)), "{self}");
        self.becomes(next);
    }

    fn move_messages(&mut self, step: &Step) -> bool {
        match step {
            Step::Fail { row, behind, .. } => {
                let is_there = self.is_there(*row);
                if is_there {
                    self.park(&[*row]);
                    self.park(behind);
                }
                is_there
            }
            Step::Park { rows } => {
                self.park(rows);
                true
            }
            Step::Bury { row, .. } if !self.is_there(*row) => false,
            Step::Bury { row, discard, reason, attempts, first, last } => {
                let hot = self.hot.remove(&row.position);
                let Some(stored) = hot.or_else(|| self.parked.remove(&row.position)) else { return false };
                if *discard {
                    return true;
                }
                let (first, last) = (Some(first.clone()), Some(last.clone()));
                self.dead.push((stored.message.id, (*reason).to_owned(), *attempts, first, last));
                true
            }
            Step::Resume { delivered } => {
                delivered.iter().for_each(|row| drop(self.parked.remove(&row.position)));
                true
            }
        }
    }

    fn is_there(&self, row: RowId) -> bool {
        let at = self.hot.get(&row.position).or_else(|| self.parked.get(&row.position));
        at.is_some_and(|stored| stored.message.id == row.id)
    }

    fn park(&mut self, rows: &[RowId]) {
        for row in rows {
            self.parked.extend(self.hot.remove_entry(&row.position));
        }
    }

    /// Takes over a state; one that changed has a version that none had before.
    fn becomes(&mut self, next: Option<KeyState>) {
        if let Some(next) = next.as_ref().filter(|next| Some(*next) != self.state.as_ref()) {
            assert!(self.versions.insert(next.version), "the version {} came back: {self}", next.version);
        }
        self.state = next;
    }

    /// Returns its rows in the hot table.
    async fn fetch(&self) -> Vec<FetchedRow> {
        let mut request = self.relay.fetch_request();
        request.scope = Scope::Key(self.key.clone());
        self.relay.fetch_with(&request).await.rows
    }

    /// Returns the version of the key's row: parking nothing tells it and changes nothing.
    async fn version(&self) -> i64 {
        let nothing = Step::Park { rows: Vec::new() };
        match self.relay.transition(self.relay.key_transition(&self.key, None, nothing)).await {
            Transitioned::Done(version) => version.unwrap_or_default(),
            _ => 0,
        }
    }

    async fn hold(&mut self) {
        self.done.push("hold".to_owned());
        self.relay.store.hold(&self.relay.route, &self.key).await.expect("every key can be held");
        let version = self.version().await;
        let next = failing_key::hold(self.state.clone(), version, NOW);
        self.becomes(Some(next));
    }

    async fn release(&mut self) {
        self.done.push("release".to_owned());
        let released = self.relay.store.release(&self.relay.route, &self.key).await;
        assert_eq!(released.is_ok(), self.state.is_some(), "{self}");
        let version = self.version().await;
        let next = self.state.clone().map(|state| state.release(version, NOW));
        self.becomes(next);
    }

    /// An operator skips the first parked message, or discards all.
    async fn bury_by_hand(&mut self) {
        let (store, route) = (&self.relay.store, &self.relay.route);
        let skips = self.rng.bool();
        self.done.push(if skips { "skip" } else { "discard" }.to_owned());
        let most = if skips { 1 } else { usize::MAX };
        let done = if skips {
            store.skip(route, &self.key).await.map(|skipped| usize::from(skipped.is_some()))
        } else {
            let discarded = store.discard(route, &self.key).await;
            discarded.map(|count| usize::try_from(count).unwrap_or_default())
        };
        let Some(state) = self.state.clone() else {
            assert!(done.is_err(), "{self}");
            return;
        };
        let gone: Vec<_> =
            self.parked.values().take(most).map(|stored| (stored.position, stored.message.id)).collect();
        assert_eq!(done.ok(), Some(gone.len()), "{self}");
        for (position, id) in &gone {
            self.parked.remove(position);
            let failed = state.failing == Some(*id);
            let reason = if skips { "skipped" } else { "discarded" }.to_owned();
            let (first, last) = (state.first_failure.clone(), state.last_failure.clone());
            let attempts = if failed { state.attempts } else { 0 };
            self.dead.push((*id, reason, attempts, first.filter(|_| failed), last.filter(|_| failed)));
        }
        let version = self.version().await;
        self.becomes(match skips {
            true if gone.is_empty() => Some(state),
            true => Some(state.skip(version, NOW)),
            false => None,
        });
    }

    /// Compares everything that can be seen of the key.
    async fn compare(&self) {
        let store = &self.relay.store;
        let filter = || Filter { key: Some(self.key.key.clone()), ..Filter::all_routes() };
        let keys = store.failing_keys(&filter()).await.expect("failing keys are listed");
        let seen = keys.iter().map(|key| {
            let later = key.next_attempt_at.map(|at| at.since(key.since) >= LATER / 2);
            (key.held, later, key.attempts, &key.first_failure, &key.last_failure, key.parked, key.first)
        });
        let parked = self.parked.len() as u64;
        let first = self.parked.values().next().map(|stored| stored.message.id);
        let expected = self.state.iter().map(|state| {
            let later = state.next_attempt_at.map(|at| at.since(NOW) >= LATER / 2);
            let (first_failure, last_failure) = (&state.first_failure, &state.last_failure);
            (state.held, later, state.attempts, first_failure, last_failure, parked, first)
        });
        assert_eq!(seen.collect::<Vec<_>>(), expected.collect::<Vec<_>>(), "{self}");

        let there: Vec<Position> = self.fetch().await.iter().map(FetchedRow::position).collect();
        assert_eq!(there, self.hot.keys().copied().collect::<Vec<_>>(), "{self}");
        let there = store.parked(&filter()).await.expect("parked messages are listed");
        let there: Vec<MessageId> = there.iter().map(|stored| stored.message.id).collect();
        let expected: Vec<MessageId> = self.parked.values().map(|stored| stored.message.id).collect();
        assert_eq!(there, expected, "{self}");

        let dead = store.dead_letters(&filter()).await.expect("dead letters are listed");
        let record = |letter: DeadLetter| {
            let id = letter.stored.message.id;
            (id, letter.reason, letter.attempts, letter.first_failure, letter.last_failure)
        };
        assert_eq!(dead.into_iter().map(record).collect::<Vec<_>>(), self.dead, "{self}");
    }
}

impl<S> std::fmt::Display for ModelKey<'_, S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "seed {}, state {:?}, after {:#?}", self.seed, self.state, self.done)
    }
}

/// Relays of a generated history.
const RELAYS: usize = 4;
/// A lease that is over before the next heartbeat.
const INSTANT: Duration = Duration::from_millis(1);
/// The time between two heartbeats, at least.
const BETWEEN: Duration = Duration::from_millis(5);

/// Heartbeats and releases share the buckets of a route as the rule says, in every order.
pub async fn leases_follow_the_rule<H: StoreHarness>(harness: &H) {
    let store = prepared(harness).await;
    for seed in 0..4 {
        let mut route = ModelRoute::new(&*store, seed);
        for _ in 0..30 {
            route.something_happens(harness).await;
        }
    }
}

/// The relays and buckets of a route, as the rule has them.
struct ModelRoute<'s, S> {
    store: &'s S,
    seed: u64,
    rng: Rng,
    route: Route,
    ids: Vec<RelayId>,
    answers: BTreeMap<RelayId, Leased>,
    relays: BTreeMap<RelayId, RelayRow>,
    buckets: BTreeMap<Bucket, BucketRow>,
    now: Timestamp,
    done: Vec<String>,
}

impl<'s, S: Store> ModelRoute<'s, S> {
    fn new(store: &'s S, seed: u64) -> Self {
        Self {
            store,
            seed,
            rng: Rng::with_seed(seed),
            route: super::support::route(&format!("rule-{seed}")),
            ids: (0..RELAYS).map(|_| RelayId::new()).collect(),
            answers: BTreeMap::new(),
            relays: BTreeMap::new(),
            buckets: BTreeMap::new(),
            now: Timestamp::from_micros(1 << 50),
            done: Vec::new(),
        }
    }

    async fn something_happens<H: StoreHarness>(&mut self, harness: &H) {
        let at = self.rng.usize(0..RELAYS);
        match self.rng.u8(0..12) {
            0..8 => self.beat(at).await,
            8..11 => self.give_back(at).await,
            _ => {
                if has::<H>(Capability::ClockBack) {
                    harness.set_clock_back(LONG * 6).await;
                    self.done.push("the clock is set back".to_owned());
                    self.now = Timestamp::from_micros(self.now.as_micros() - 3_600_000_000);
                }
            }
        }
        harness.advance(BETWEEN).await;
        self.now = self.now.plus(BETWEEN);
    }

    /// The last answer to a relay.
    fn last(&self, relay: RelayId) -> Leased {
        self.answers.get(&relay).cloned().unwrap_or_default()
    }

    fn mark(&mut self, leases: &[Lease], life: i64) -> LowWater {
        let covered = leases.iter().map(|lease| (lease.bucket, lease.epoch)).collect();
        LowWater::new(Position(self.rng.i64(1..1_000)), covered, life)
    }

    async fn beat(&mut self, at: usize) {
        let relay = self.ids[at];
        let last = self.last(relay);
        let is_short = self.rng.u8(0..4) == 0;
        let yields = self.rng.u8(0..3) == 0;
        let mut request = LeaseRequest::new(relay, self.route.clone(), if is_short { INSTANT } else { LONG });
        request.label = format!("relay {at}");
        request.transport_available = is_short || self.rng.u8(0..4) > 0;
        request.fingerprint = self.rng.i64(0..2);
        request.low_water = self.mark(&last.leases, last.life);
        request.yielding =
            last.leases.iter().filter(|_| yields).take(7).map(|lease| lease.bucket).collect::<BucketSet>();
        self.done.push(format!(
            "{at} beats for {:?}, transport {}, yields {yields}",
            request.lasts, request.transport_available
        ));
        let answer = self.store.lease(&request).await.expect("a heartbeat is answered");
        let (relays, buckets) = (self.relays.values().copied(), self.buckets.values().copied());
        let beat = leases::heartbeat(relays, buckets, &request, self.now);
        self.relays.insert(relay, beat.relay);
        self.buckets.extend(beat.changed.iter().map(|row| (row.bucket, *row)));
        let (mut seen, mut expected) = (answer.leases.clone(), beat.leased.leases);
        if self.store.frontier().ordering() == Ordering::Stripes {
            // A bucket that is taken over is read from the start.
            seen.iter_mut().chain(&mut expected).for_each(|lease| lease.low_water = Position::START);
        }
        let differs = seen.iter().zip(&expected).find(|(seen, expected)| seen != expected);
        assert!(
            seen == expected,
            "{} leases, {} by the rule, {differs:?}, {self}",
            seen.len(),
            expected.len()
        );
        assert_eq!(
            (answer.fair_share, answer.relays, answer.fingerprints_agree),
            (beat.leased.fair_share, beat.leased.relays, beat.leased.fingerprints_agree),
            "{self}"
        );
        self.answers.insert(relay, answer);
    }

    async fn give_back(&mut self, at: usize) {
        let relay = self.ids[at];
        let last = self.last(relay);
        let (most, leaving) = (self.rng.usize(0..256), self.rng.u8(0..4) == 0);
        self.done.push(format!("{at} gives {most} back, leaving {leaving}"));
        let given: Vec<Lease> = last.leases.iter().rev().take(most).copied().collect();
        let mark = self.mark(&given, last.life);
        let given_back = self.store.give_back(relay, &self.route, &given, &mark, leaving).await;
        given_back.expect("leases are given back");
        let (relays, buckets) = (self.relays.values().copied(), self.buckets.values().copied());
        let changed = leases::give_back(relays, buckets, relay, (&given, &mark), self.now);
        self.buckets.extend(changed.iter().map(|row| (row.bucket, *row)));
        if leaving {
            self.relays.remove(&relay);
        }
    }
}

impl<S> std::fmt::Display for ModelRoute<'_, S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "seed {}, after {:#?}", self.seed, self.done)
    }
}
