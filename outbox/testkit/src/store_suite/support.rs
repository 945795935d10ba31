//! Shared parts of the suite's tests: messages to write, a way to commit them, and a minimal relay.

use std::sync::Arc;
use std::time::Duration;

use outbox_contract::backend::{
    BucketSet, Due, DueRequest, Epoch, FetchRequest, Fetched, FetchedRow, KeyTransition, Lease, LeaseRequest,
    Leased, LowWater, Position, RelayId, RowId, Scope, Step, Stored, Then, Transitioned,
};
use outbox_contract::{
    AppendError, Failure, KeyId, Message, Outgoing, Route, Store, StoreError, Timestamp, Topic, Transactional,
};

use super::StoreHarness;

/// A lease that does not expire while a test runs.
pub(super) const LONG: Duration = Duration::from_secs(600);
/// A lease that a test lets expire.
pub(super) const SHORT: Duration = Duration::from_millis(500);
/// Long enough for [`SHORT`] to be over.
pub(super) const OVER: Duration = Duration::from_millis(750);

/// Returns the harness's store, migrated.
pub(super) async fn prepared<H: StoreHarness>(harness: &H) -> Arc<H::Store> {
    let store = harness.store();
    store.migrate().await.expect("an empty database is migrated");
    store
}

pub(super) fn topic(name: &str) -> Topic {
    Topic::new(name).expect("a topic of the suite is valid")
}

pub(super) fn route(name: &str) -> Route {
    Route::new(name).expect("a route of the suite is valid")
}

/// A message with a small payload of its own.
pub(super) fn message(topic_name: &str, key: &str) -> Message {
    let message = Message::new(topic_name, "suite.event").expect("a valid topic");
    let payload = format!(r#"{{"of":"{}"}}"#, message.id);
    message.with_payload(payload).with_key(key).expect("a key of the suite is valid")
}

/// Several messages of one key.
pub(super) fn messages(topic_name: &str, key: &str, count: usize) -> Vec<Message> {
    (0..count).map(|_| message(topic_name, key)).collect()
}

pub(super) fn failure(words: &str) -> Failure {
    Failure::new("suite", words)
}

/// Commits these in a transaction of their own, restarted whenever the database reports a conflict.
pub(super) async fn write<S, I>(store: &S, messages: I)
where
    S: Transactional,
    I: IntoIterator,
    I::Item: Into<Outgoing>,
{
    let outgoing: Vec<Outgoing> = messages.into_iter().map(Into::into).collect();
    for _ in 0..MAX_ATTEMPTS {
        match try_write(store, &outgoing).await {
            Ok(()) => return,
            Err(error) if error.is_retryable() => back_off().await,
            Err(error) => panic!("a valid message was not committed: {error}"),
        }
    }
    panic!("{MAX_ATTEMPTS} transactions in a row ended in a conflict");
}

/// Begins, appends, commits, once.
pub(super) async fn try_write<S: Transactional>(store: &S, outgoing: &[Outgoing]) -> Result<(), AppendError> {
    let mut tx = store.begin().await?;
    if let Err(error) = store.append(&mut tx, outgoing).await {
        // The result of the rollback does not matter: the append's error is the cause.
        let _ = store.rollback(tx).await;
        return Err(error);
    }
    Ok(store.commit(tx).await.into_result()?)
}

/// Maximum number of attempts of a transaction that conflicts before a test gives up.
pub(super) const MAX_ATTEMPTS: usize = 500;

/// Pauses for a short random time before a transaction restarts.
pub(super) async fn back_off() {
    tokio::time::sleep(Duration::from_micros(fastrand::u64(100..5_000))).await;
}

/// The ids of messages, in order.
pub(super) fn ids<'m>(messages: impl IntoIterator<Item = &'m Message>) -> Vec<outbox_contract::MessageId> {
    messages.into_iter().map(|message| message.id).collect()
}

/// The ids of stored messages, in order.
pub(super) fn stored_ids(stored: &[Arc<Stored>]) -> Vec<outbox_contract::MessageId> {
    stored.iter().map(|stored| stored.message.id).collect()
}

/// Sorts stored messages in the order that decides within a key: the number of the stripe if there
/// is one, else the position.
pub(super) fn in_key_order(mut stored: Vec<Arc<Stored>>) -> Vec<Arc<Stored>> {
    stored.sort_by_key(|stored| stored.stripe.map_or(stored.position.0, |stripe| stripe.number));
    stored
}

/// Returns the time by the database's clock, as a heartbeat reads it.
pub(super) async fn database_now<S: Store>(store: &Arc<S>) -> Timestamp {
    let mut relay = Relay::on(store, route("clock"), LONG).await;
    let now = relay.beat().await.now;
    relay.leave().await;
    now
}

/// A minimal relay: acquires leases, reads, and moves the messages that a test names.
pub(super) struct Relay<S> {
    pub(super) store: Arc<S>,
    pub(super) id: RelayId,
    pub(super) route: Route,
    pub(super) lasts: Duration,
    pub(super) leases: Vec<Lease>,
    pub(super) low_water: LowWater,
    pub(super) life: i64,
}

impl<S: Store> Relay<S> {
    /// Starts a relay of the default route after its first heartbeat, with leases that last for the
    /// test.
    pub(super) async fn start(store: &Arc<S>) -> Self {
        Self::on(store, Route::default(), LONG).await
    }

    /// Starts a relay of a route after its first heartbeat.
    pub(super) async fn on(store: &Arc<S>, route: Route, lasts: Duration) -> Self {
        let mut relay = Self {
            store: Arc::clone(store),
            id: RelayId::new(),
            route,
            lasts,
            leases: Vec::new(),
            low_water: LowWater::default(),
            life: 0,
        };
        relay.beat().await;
        relay
    }

    pub(super) fn lease_request(&self) -> LeaseRequest {
        let mut request = LeaseRequest::new(self.id, self.route.clone(), self.lasts);
        request.label = "suite".into();
        request.fingerprint = 7;
        request.low_water = self.low_water.clone();
        request
    }

    /// Performs a heartbeat and keeps the leases that it returns.
    pub(super) async fn beat(&mut self) -> Leased {
        let request = self.lease_request();
        self.beat_with(&request).await
    }

    pub(super) async fn beat_with(&mut self, request: &LeaseRequest) -> Leased {
        let leased = self.store.lease(request).await.expect("a heartbeat is answered");
        self.leases.clone_from(&leased.leases);
        self.life = leased.life;
        leased
    }

    /// Returns a mark of these leases, in the database's present life.
    pub(super) fn mark(&self, leases: &[Lease], position: Position) -> LowWater {
        let covered = leases.iter().map(|lease| (lease.bucket, lease.epoch)).collect();
        LowWater::new(position, covered, self.life)
    }

    pub(super) fn owned(&self) -> BucketSet {
        self.leases.iter().map(|lease| lease.bucket).collect()
    }

    /// Gives these leases back.
    pub(super) async fn release(&self, leases: &[Lease], leaving: bool) {
        self.store
            .give_back(self.id, &self.route, leases, &self.low_water, leaving)
            .await
            .expect("leases are given back");
    }

    /// Shortens its leases and its life to [`SHORT`], right before they are to end: what comes
    /// before may take long on a slow machine.
    pub(super) async fn shorten(&mut self) {
        self.lasts = SHORT;
        self.beat().await;
    }

    /// Gives everything back and leaves.
    pub(super) async fn leave(&self) {
        self.release(&self.leases, true).await;
    }

    pub(super) fn fetch_request(&self) -> FetchRequest {
        FetchRequest::new(self.route.clone(), self.id, BucketSet::ALL)
    }

    pub(super) async fn fetch_with(&self, request: &FetchRequest) -> Fetched {
        let fetched = self.store.fetch(request).await.expect("a fetch is answered");
        let positions: Vec<Position> = fetched.rows.iter().map(FetchedRow::position).collect();
        assert!(
            positions.windows(2).all(|pair| pair[0] < pair[1]),
            "a fetch gives rows in ascending order of position, each once; it gave {positions:?}"
        );
        fetched
    }

    /// Fetches everything, with a limit that does not matter.
    pub(super) async fn fetch(&self) -> Vec<FetchedRow> {
        let mut request = self.fetch_request();
        (request.limit, request.bytes) = (100_000, usize::MAX >> 2);
        self.fetch_with(&request).await.rows
    }

    /// Fetches everything; panics when a row is not a publishable message.
    pub(super) async fn read(&self) -> Vec<Arc<Stored>> {
        self.fetch().await.into_iter().map(published).collect()
    }

    /// Returns the readable rows of one key, in the key's order.
    pub(super) async fn read_key(&self, key: &KeyId) -> Vec<Arc<Stored>> {
        let mut request = self.fetch_request();
        request.scope = Scope::Key(key.clone());
        let rows = self.fetch_with(&request).await.rows;
        in_key_order(rows.into_iter().map(published).collect())
    }

    pub(super) async fn settle(&self, delivered: &[Arc<Stored>]) {
        let rows: Vec<RowId> = delivered.iter().map(|stored| stored.row()).collect();
        self.store.settle(&self.route, &rows).await.expect("what was delivered is settled");
    }

    /// Returns the epoch under which this relay owns a key's bucket.
    pub(super) fn epoch_of(&self, key: &KeyId) -> Epoch {
        let bucket = key.bucket();
        let lease = self.leases.iter().find(|lease| lease.bucket == bucket);
        lease.expect("the relay owns the bucket of the key").epoch
    }

    pub(super) fn key_transition(&self, key: &KeyId, version: Option<i64>, step: Step) -> KeyTransition {
        KeyTransition::new(
            self.route.clone(),
            self.id,
            (key.bucket(), self.epoch_of(key)),
            key.clone(),
            version,
            step,
        )
    }

    pub(super) async fn transition(&self, transition: KeyTransition) -> Transitioned {
        carry_out(&*self.store, transition).await
    }

    /// Performs one step of a key, which must succeed. Returns the new version of the key.
    pub(super) async fn step(&self, key: &KeyId, version: Option<i64>, step: Step) -> Option<i64> {
        let told = format!("{step:?}");
        match self.transition(self.key_transition(key, version, step)).await {
            Transitioned::Done(version) => version,
            refused => panic!("{told} from version {version:?} was refused: {refused:?}"),
        }
    }

    /// Fails the first of these once, with the others behind it. Returns the new version of the
    /// key.
    pub(super) async fn fail(&self, stored: &[Arc<Stored>], then: Then) -> i64 {
        let key = stored[0].message.key_id();
        let version = self.step(&key, None, fail_step(stored, 1, then)).await;
        version.expect("a key that failed has a state")
    }

    pub(super) fn due_request(&self) -> DueRequest {
        let mut request = DueRequest::new(self.route.clone(), self.id, BucketSet::ALL);
        request.bytes = usize::MAX >> 2;
        request
    }

    pub(super) async fn due(&self) -> Due {
        self.due_with(&self.due_request()).await
    }

    pub(super) async fn due_with(&self, request: &DueRequest) -> Due {
        self.store.due(request).await.expect("the question for due keys is answered")
    }

    /// Asserts that a key flows: it has no failing, held or parked messages, and a newly appended
    /// message of it is publishable. First closes a state of the key with nothing parked, as relays
    /// do.
    pub(super) async fn assert_flows(&self, key: &KeyId)
    where
        S: Transactional,
    {
        for due in self.due().await.keys.iter().filter(|due| due.key == *key && due.parked.is_empty()) {
            let closed = self.step(key, Some(due.version), Step::Resume { delivered: Vec::new() }).await;
            assert_eq!(closed, None, "a key with nothing parked has no state after Resume");
        }
        let failing = self
            .store
            .failing_keys(&outbox_contract::admin::Filter::all_routes())
            .await
            .expect("failing keys are listed");
        assert!(failing.iter().all(|failing| failing.key != *key), "{key} still has a state: {failing:?}");
        let fresh = message(key.topic.as_str(), key.key.as_str());
        write(&*self.store, [Outgoing::from(fresh.clone()).by(self.route.clone())]).await;
        let read = self.read_key(key).await;
        assert!(stored_ids(&read).contains(&fresh.id), "a new message of {key} is there to be published");
        self.settle(&read.into_iter().filter(|stored| stored.message.id == fresh.id).collect::<Vec<_>>())
            .await;
    }
}

pub(super) async fn carry_out<S: Store>(store: &S, transition: KeyTransition) -> Transitioned {
    let answers = store.transition(&[transition]).await.expect("a transition is answered");
    assert_eq!(answers.len(), 1, "one transition gets one answer");
    answers[0]
}

/// A step in which the first of these fails, for the `attempts`th time, with the others behind it.
pub(super) fn fail_step(stored: &[Arc<Stored>], attempts: u32, then: Then) -> Step {
    Step::Fail {
        row: stored[0].row(),
        attempts,
        first: failure("first"),
        last: failure("last"),
        then,
        behind: stored[1..].iter().map(|stored| stored.row()).collect(),
    }
}

pub(super) fn bury_step(stored: &Stored, reason: &'static str) -> Step {
    let (first, last) = (failure("first"), failure("last"));
    Step::Bury { row: stored.row(), discard: false, reason, attempts: 3, first, last }
}

pub(super) fn discard_step(stored: &Stored) -> Step {
    let (first, last) = (failure("first"), failure("last"));
    Step::Bury { row: stored.row(), discard: true, reason: "exhausted", attempts: 3, first, last }
}

/// A retry that is due at once.
pub(super) const NOW: Then = Then::RetryAfter(Duration::ZERO);
/// A retry that is not due while the test runs.
pub(super) const LATER: Then = Then::RetryAfter(Duration::from_secs(3_600));

/// Returns the message of a publishable row.
pub(super) fn published(row: FetchedRow) -> Arc<Stored> {
    match row {
        FetchedRow::Message(stored) => stored,
        other => panic!("expected a message to be published, got {other:?}"),
    }
}

/// Returns the kind of the expected error.
pub(super) fn kind_of<T: std::fmt::Debug>(result: Result<T, StoreError>) -> outbox_contract::StoreErrorKind {
    result.expect_err("this call is refused").kind()
}
