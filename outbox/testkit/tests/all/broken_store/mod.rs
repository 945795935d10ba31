//! The memory store with one bug, chosen by name. Everything else is passed on.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use outbox_contract::admin::{Edit, Filter, HandledFilter, OutboxId};
use outbox_contract::backend::{
    Archive, Backlog, Bucket, BucketSet, Clock, Committed, Death, Dedup, Due, DueRequest, Epoch,
    FetchRequest, Fetched, FetchedRow, KeyOperation, KeyTransition, Lease, LeaseRequest, Leased, Listed,
    LowWater, Maintained, Position, RelayId, RowId, Steered, Step, StoreLayer, Stored, Stripe, StripeMark,
    Transitioned, Unserved, View, WakeupSignal, Writers,
};
use outbox_contract::{
    Admin, AdminExt, AppendError, Consumer, DueTime, KeyId, Message, MessageId, Outgoing, Route, Store,
    StoreError, StoreErrorKind, Timestamp, Topic, Transactional, async_trait,
};
use outbox_store_memory::{MemoryStore, MemoryStoreBuilder, MemoryTx};
use outbox_testkit::TestClock;
use outbox_testkit::store_suite::StoreHarness;

mod admin;
mod bug;
mod halves;
mod handled;
mod transactional;

pub(crate) use bug::Bug;

/// A harness of the store with this bug, or without one.
pub(crate) struct Broken(Arc<BrokenStore>);

impl Broken {
    /// On a store that orders by position.
    pub(crate) fn fresh_with(bug: Option<Bug>) -> Self {
        Self::on(MemoryStore::builder().concurrent_writers(), bug)
    }

    /// On a store that orders by stripes.
    pub(crate) fn striped_with(bug: Option<Bug>) -> Self {
        Self::on(MemoryStore::builder().stripes(), bug)
    }

    fn on(store: MemoryStoreBuilder, bug: Option<Bug>) -> Self {
        let clock = Arc::new(TestClock::starting_at(Timestamp::from_micros(1_800_000_000_000_000)));
        let store = store.history(Duration::from_secs(3_600)).clock(Arc::<TestClock>::clone(&clock));
        let forever = bug == Some(Bug::RemembersTheGone);
        let inner = if forever { store.handled_ids_max_age(Duration::MAX).build() } else { store.build() };
        Self(Arc::new(BrokenStore { inner, clock, bug, silent: WakeupSignal::new(), seen: Mutex::default() }))
    }
}

impl StoreHarness for Broken {
    type Store = BrokenStore;

    async fn fresh() -> Self {
        Self::fresh_with(None)
    }

    fn store(&self) -> Arc<BrokenStore> {
        Arc::clone(&self.0)
    }

    async fn set_clock_back(&self, by: Duration) {
        // To believe every end is as if no clock had been set back.
        if !self.0.has(Bug::BelievesEveryEnd) {
            self.0.clock.set_back(by);
        }
    }
}

pub(crate) struct BrokenStore {
    inner: MemoryStore,
    clock: Arc<TestClock>,
    bug: Option<Bug>,
    silent: WakeupSignal,
    seen: Mutex<Seen>,
}

/// State of earlier calls that the bugs need.
#[derive(Default)]
struct Seen {
    ids: HashMap<Position, MessageId>,
    leases: HashMap<RelayId, Vec<Lease>>,
    owners: HashMap<Bucket, (RelayId, Epoch)>,
    unsettled: Vec<(Route, Vec<RowId>)>,
    attempts: HashMap<KeyId, u32>,
    late_mark: Position,
    /// The latest message of each key that a consumer has handled.
    handled: HashMap<Consumer, HashMap<KeyId, MessageId>>,
    appends: i64,
}

/// The transaction, and what a bug writes only when it commits.
pub(crate) struct BrokenTx<'t> {
    pub(crate) inner: <MemoryStore as Transactional>::Tx<'t>,
    late: Vec<Outgoing>,
}

impl BrokenStore {
    fn has(&self, bug: Bug) -> bool {
        self.bug == Some(bug)
    }

    /// The transition as this store carries it out.
    async fn step(&self, mut transition: KeyTransition) -> Result<Transitioned, StoreError> {
        let key = transition.key.clone();
        match &mut transition.step {
            Step::Fail { attempts, .. } => {
                if self.has(Bug::AddsAttempts) {
                    let mut seen = self.seen.lock().unwrap();
                    let sum = seen.attempts.entry(key.clone()).or_default();
                    *sum += *attempts;
                    *attempts = *sum;
                }
                if self.has(Bug::FailsThroughHolds) {
                    let _ = self.inner.release(&transition.route, &key).await;
                }
            }
            Step::Park { rows } if self.has(Bug::ParksFirstOnly) => rows.truncate(1),
            Step::Bury { discard, .. } if self.has(Bug::BuriesDiscarded) => *discard = false,
            Step::Park { .. } | Step::Bury { .. } | Step::Resume { .. } => {}
        }
        if self.has(Bug::StepsByHalves) {
            return self.step_by_halves(transition).await;
        }
        let answer = self.one(transition.clone()).await?;
        if answer == Transitioned::Stale && self.has(Bug::ParksBehindTheGone) {
            self.park_behind_the_gone(transition.clone()).await?;
        }
        match answer {
            Transitioned::LeaseLost if self.has(Bug::TransitionsWithoutLease) => {
                self.with_some_lease(transition).await
            }
            Transitioned::Stale if self.has(Bug::TransitionsAnyVersion) => {
                transition.version = None;
                self.one(transition).await
            }
            answer => Ok(answer),
        }
    }

    async fn one(&self, transition: KeyTransition) -> Result<Transitioned, StoreError> {
        Ok(self.inner.transition(&[transition]).await?[0])
    }

    /// Under the lease of whoever has one, or under a fresh one.
    async fn with_some_lease(&self, mut transition: KeyTransition) -> Result<Transitioned, StoreError> {
        let owner = self.seen.lock().unwrap().owners.get(&transition.bucket).copied();
        if let Some((relay, epoch)) = owner {
            let (asked, asked_epoch) = (transition.relay, transition.epoch);
            (transition.relay, transition.epoch) = (relay, epoch);
            let answer = self.one(transition.clone()).await?;
            if answer != Transitioned::LeaseLost {
                return Ok(answer);
            }
            (transition.relay, transition.epoch) = (asked, asked_epoch);
        }
        let lasts = Duration::from_secs(600);
        let mut request = LeaseRequest::new(transition.relay, transition.route.clone(), lasts);
        request.fingerprint = 7;
        let leased = self.inner.lease(&request).await?;
        match leased.leases.iter().find(|lease| lease.bucket == transition.bucket) {
            Some(lease) => {
                transition.epoch = lease.epoch;
                self.one(transition).await
            }
            None => Ok(Transitioned::LeaseLost),
        }
    }
}

/// The rows with other numbers, or none.
fn renumber(rows: &mut [FetchedRow], number: impl Fn(Stripe) -> Option<Stripe>) {
    for row in rows {
        if let FetchedRow::Message(stored) = row {
            let mut renumbered = (**stored).clone();
            renumbered.stripe = renumbered.stripe.and_then(&number);
            *stored = Arc::new(renumbered);
        }
    }
}

/// The messages of each key in the opposite order, at the same positions.
fn reverse_keys(rows: &mut [FetchedRow]) {
    let mut of_key: HashMap<KeyId, Vec<usize>> = HashMap::new();
    for (at, row) in rows.iter().enumerate() {
        if let FetchedRow::Message(stored) = row {
            of_key.entry(stored.message.key_id()).or_default().push(at);
        }
    }
    for places in of_key.into_values() {
        let originals: Vec<FetchedRow> = places.iter().map(|at| rows[*at].clone()).collect();
        for (at, original) in places.into_iter().zip(originals.into_iter().rev()) {
            if let FetchedRow::Message(original) = original {
                let mut stored = (*original).clone();
                stored.position = rows[at].position();
                rows[at] = FetchedRow::Message(Arc::new(stored));
            }
        }
    }
}

impl StoreLayer for BrokenStore {
    type Inner = MemoryStore;

    fn inner(&self) -> &MemoryStore {
        &self.inner
    }

    fn name(&self) -> &'static str {
        "broken"
    }

    fn wakeup_signal(&self) -> &WakeupSignal {
        if self.has(Bug::KeepsSilent) { &self.silent } else { self.inner.wakeup_signal() }
    }

    async fn lease(&self, request: &LeaseRequest) -> Result<Leased, StoreError> {
        let mut request = request.clone();
        if self.has(Bug::ForgetsLowWater) {
            request.low_water = LowWater::default();
        }
        if self.has(Bug::PromisesMoreOfWhatIsGivenUp) {
            request.yielding = BucketSet::EMPTY;
        }
        if self.has(Bug::MarksEverything)
            && let Some(leases) = self.seen.lock().unwrap().leases.get(&request.relay)
        {
            request.low_water.covered = leases.iter().map(|lease| (lease.bucket, lease.epoch)).collect();
        }
        if self.has(Bug::StealsLeases) {
            let others: Vec<_> = self.seen.lock().unwrap().leases.drain().collect();
            for (relay, leases) in others.into_iter().filter(|(relay, _)| *relay != request.relay) {
                self.inner.give_back(relay, &request.route, &leases, &LowWater::default(), false).await?;
            }
        }
        let mut leased = self.inner.lease(&request).await?;
        let mut seen = self.seen.lock().unwrap();
        for lease in &mut leased.leases {
            let before = seen.owners.get(&lease.bucket).filter(|(owner, _)| *owner == request.relay);
            match before {
                Some((_, epoch)) if self.has(Bug::KeepsEpochs) => lease.epoch = *epoch,
                _ => {}
            }
            if self.has(Bug::BelievesLateMarks) {
                lease.low_water = lease.low_water.max(seen.late_mark);
            }
        }
        for lease in &leased.leases {
            seen.owners.insert(lease.bucket, (request.relay, lease.epoch));
        }
        seen.leases.insert(request.relay, leased.leases.clone());
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
        let nothing = LowWater::default();
        let low_water = if self.has(Bug::ForgetsLowWater) { &nothing } else { low_water };
        let leaving = leaving && !self.has(Bug::NeverLeaves);
        self.seen.lock().unwrap().late_mark = low_water.position;
        self.inner.give_back(relay, route, leases, low_water, leaving).await
    }

    async fn fetch(&self, request: &FetchRequest) -> Result<Fetched, StoreError> {
        let mut asked = request.clone();
        if self.has(Bug::FiltersInFlightAfterwards) {
            asked.except.clear();
        }
        if self.has(Bug::ForgetsMuted) {
            asked.muted.clear();
        }
        let mut fetched = self.inner.fetch(&asked).await?;
        fetched.rows.retain(|row| !request.except.contains(&row.position()));
        if self.has(Bug::ReversesKeys) {
            reverse_keys(&mut fetched.rows);
        }
        match self.bug {
            Some(Bug::LeavesGapsInNumbers) => {
                renumber(&mut fetched.rows, |at| Some(Stripe { number: at.number * 2 - 1, ..at }))
            }
            Some(Bug::GivesNoNumbers) => renumber(&mut fetched.rows, |_| None),
            _ => {}
        }
        if self.has(Bug::ReachesTheEnd) && fetched.reached != Position::START {
            fetched.reached = request.until;
        }
        let hides = self.has(Bug::HidesMissingLeasesOfCutPages) && fetched.full;
        fetched.lapsed &= !self.has(Bug::HidesMissingLeases) && !hides;
        let mut seen = self.seen.lock().unwrap();
        for row in &fetched.rows {
            if let FetchedRow::Message(stored) = row {
                seen.ids.insert(stored.position, stored.message.id);
            }
        }
        Ok(fetched)
    }

    async fn fetch_below(&self, request: &FetchRequest) -> Result<Fetched, StoreError> {
        StoreLayer::fetch(self, request).await
    }

    async fn writers(&self) -> Result<Writers, StoreError> {
        let mut writers = self.inner.frontier().writers().await?;
        if self.has(Bug::HidesWriters) {
            writers.open.clear();
        }
        if self.has(Bug::CountsAhead) {
            writers.last = Position(writers.last.0 + 1);
        }
        Ok(writers)
    }

    async fn stripes(&self, route: &Route, buckets: &BucketSet) -> Result<Vec<StripeMark>, StoreError> {
        let route = if self.has(Bug::MarksOfEveryRoute) { &Route::default() } else { route };
        let buckets = if self.has(Bug::MarksOfEveryBucket) { &BucketSet::ALL } else { buckets };
        let mut marks = self.inner.frontier().stripes(route, buckets).await?;
        let hot = self.inner.snapshot().hot;
        if self.has(Bug::MarksOfRowsOnly) {
            marks.retain(|mark| hot.iter().any(|(_, row)| row.stripe == Some(mark.last)));
        }
        let appends = self.seen.lock().unwrap().appends;
        for mark in &mut marks {
            match self.bug {
                Some(Bug::MarksAhead) => mark.last.number += 1,
                Some(Bug::MarksOfOpenTransactions) => mark.last.number = appends,
                Some(Bug::MarksWithoutFirstRow) => {
                    (mark.first_number, mark.first_position) = (mark.last.number, mark.position);
                }
                Some(Bug::MarksWithoutThePrevious) => mark.previous_position = Position::START,
                _ => {}
            }
        }
        Ok(marks)
    }

    async fn due(&self, request: &DueRequest) -> Result<Due, StoreError> {
        if self.has(Bug::CountsWhatIsLeftOut) {
            return self.due_of_all(request).await;
        }
        let mut request = request.clone();
        if self.has(Bug::ForgetsMuted) {
            request.muted.clear();
        }
        let mut due = self.inner.due(&request).await?;
        if self.has(Bug::GivesParkedBackwards) {
            due.keys.iter_mut().for_each(|due| due.parked.reverse());
        }
        Ok(due)
    }

    async fn settle(&self, route: &Route, delivered: &[RowId]) -> Result<(), StoreError> {
        let mut rows = delivered.to_vec();
        let mut first = Vec::new();
        {
            let mut seen = self.seen.lock().unwrap();
            if self.has(Bug::SettlesByPosition) {
                for row in &mut rows {
                    row.id = seen.ids.get(&row.position).copied().unwrap_or(row.id);
                }
            }
            if self.has(Bug::SettlesLate) {
                first =
                    std::mem::replace(&mut seen.unsettled, vec![(route.clone(), std::mem::take(&mut rows))]);
            }
        }
        for (route, rows) in first {
            self.inner.settle(&route, &rows).await?;
        }
        self.inner.settle(route, &rows).await
    }

    async fn transition(&self, transitions: &[KeyTransition]) -> Result<Vec<Transitioned>, StoreError> {
        let mut answers = Vec::new();
        for transition in transitions {
            answers.push(self.step(transition.clone()).await?);
        }
        Ok(answers)
    }

    async fn backlog(&self, route: &Route) -> Result<Backlog, StoreError> {
        let mut backlog = self.inner.backlog(route).await?;
        backlog.pending += if self.has(Bug::CountsParkedTwice) { backlog.parked } else { 0 };
        Ok(backlog)
    }

    async fn browse(&self, view: View, filter: &Filter) -> Result<Vec<Listed>, StoreError> {
        let mut listed = self.inner.browse(view, filter).await?;
        for death in listed.iter_mut().filter_map(|listed| listed.death.as_mut()) {
            if self.has(Bug::ForgetsAttempts) {
                *death = Death::new(death.reason.clone(), 0, None, None);
            }
        }
        Ok(listed)
    }

    async fn elect(&self, role: &str, relay: RelayId, lasts: Duration) -> Result<bool, StoreError> {
        Ok(self.inner.elect(role, relay, lasts).await? || self.has(Bug::ElectsEverybody))
    }

    async fn unserved(&self, after: Duration) -> Result<Vec<Unserved>, StoreError> {
        let mut unserved = self.inner.unserved(after).await?;
        if self.has(Bug::ForgetsUnserved) {
            unserved.retain(|unserved| unserved.route != "attic");
        }
        Ok(unserved)
    }

    async fn steer(
        &self,
        route: &Route,
        key: &KeyId,
        operation: KeyOperation,
    ) -> Result<Steered, StoreError> {
        if operation == KeyOperation::Hold && self.has(Bug::IgnoresHolds) {
            return Ok(Steered::NOTHING);
        }
        match self.inner.steer(route, key, operation).await {
            Err(error) if self.has(Bug::AllowsEveryVerb) && error.kind() == StoreErrorKind::Invalid => {
                Ok(Steered::NOTHING)
            }
            steered => steered,
        }
    }

    async fn append_again(&self, archive: Archive, filter: &Filter) -> Result<u64, StoreError> {
        match (archive, self.bug) {
            (Archive::DeadLetters, Some(Bug::RequeuesBackwards)) => self.requeue_backwards(filter).await,
            (Archive::DeadLetters, Some(Bug::RequeuesEveryType)) => {
                let every = Filter { event_type: None, ..filter.clone() };
                self.inner.append_again(archive, &every).await
            }
            (Archive::History, Some(Bug::ReplaysUnderNewIds)) => self.replay_under_new_ids(filter).await,
            _ => self.inner.append_again(archive, filter).await,
        }
    }

    async fn requeue_edited(&self, filter: &Filter, edit: &Edit) -> Result<Option<MessageId>, StoreError> {
        if self.has(Bug::EditsNothing) {
            return self.inner.requeue_edited(filter, &Edit::default()).await;
        }
        let done = self.inner.requeue_edited(filter, edit).await;
        if done.is_err() && self.has(Bug::LosesRefusedEdits) {
            self.inner.purge(&filter.first()).await?;
        }
        done
    }

    async fn set_paused(&self, route: &Route, topic: Option<&Topic>, paused: bool) -> Result<(), StoreError> {
        if paused && self.has(Bug::IgnoresPauses) {
            return Ok(());
        }
        self.inner.set_paused(route, topic, paused).await
    }

    async fn identity(&self) -> Result<OutboxId, StoreError> {
        if self.has(Bug::MakesIdentitiesAtWill) { Ok(OutboxId::new()) } else { self.inner.identity().await }
    }

    async fn renew_identity(&self) -> Result<OutboxId, StoreError> {
        if self.has(Bug::RenewsForItselfOnly) {
            Ok(OutboxId::new())
        } else {
            self.inner.renew_identity().await
        }
    }

    async fn maintain(&self, limit: usize) -> Result<Maintained, StoreError> {
        if self.has(Bug::ForgetsEarly) {
            self.forget_early().await?;
        }
        self.inner.maintain(limit).await
    }

    async fn forget(&self, filter: &HandledFilter) -> Result<u64, StoreError> {
        self.forget_wrongly(filter).await
    }
}
