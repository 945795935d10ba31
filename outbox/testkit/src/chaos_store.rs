//! A store that injects faults on purpose: every kind of fault that a database may show, from a
//! seed.
//!
//! Every method may fail before its effect, fail *after* its effect (the connection was lost on the
//! way back), be slow, or never return. The wrapper always keeps the store's contract: it reports
//! results as a real store may. Anything that goes wrong behind it is therefore a fault of its
//! user.

use std::collections::BTreeMap;
use std::fmt;
use std::future::{Future, pending};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use fastrand::Rng;
use futures_util::StreamExt;
use futures_util::stream::BoxStream;
use outbox_contract::backend::{StoreCall, Wakeup};
use outbox_contract::{Message, Outgoing, Store, StoreError, StoreErrorKind};
use tokio::sync::watch;
use tokio::time::sleep;

mod forward;

/// Fault of a single call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum StoreFault {
    /// The call fails as unavailable and has no effect.
    Before,
    /// The call has its effect and fails as unavailable: the answer was lost.
    After,
    /// The call has no effect and never returns.
    HangBefore,
    /// The call has its effect and never returns.
    HangAfter,
}

/// Exact fault of a commit: its reported result and its actual effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum CommitFault {
    /// The commit rolls back and reports that it did.
    No,
    /// The commit rolls back; its reported result is unknown.
    Unknown,
    /// The transaction commits; its reported result is unknown.
    UnknownCommitted,
    /// The reported result is unknown, and the transaction commits this much later, on tokio's
    /// clock: the database completes work that its client has given up. Until then the transaction
    /// keeps its locks.
    UnknownCommitsLater(Duration),
}

/// Rates of faults, from 0 (never, the default) to 1 (always).
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StoreFaultRates {
    /// Rate of [`StoreFault::Before`].
    pub before: f64,
    /// Rate of [`StoreFault::After`].
    pub after: f64,
    /// Rate of [`StoreFault::HangBefore`].
    pub hang_before: f64,
    /// Rate of [`StoreFault::HangAfter`].
    pub hang_after: f64,
    /// Maximum delay of a call before its effect, on tokio's clock; each call waits for a random
    /// part of it.
    pub delay: Duration,
}

/// Counts of the faults so far, in calls.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StoreFaultCounts {
    /// Calls received.
    pub calls: u64,
    /// Calls that failed without an effect.
    pub before: u64,
    /// Calls that failed after their effect.
    pub after: u64,
    /// Calls that never returned, with or without an effect.
    pub hung: u64,
    /// Commits that happened after their result was reported as unknown.
    pub late: u64,
}

/// Wraps a store and injects faults: at random from a seed, or into the next call of a method.
///
/// Without rates and injected faults it forwards every call. [`calm`](Self::calm) ends all faults,
/// so that a test can see the system heal.
///
/// - A failed `commit` without an effect has rolled back; it reports `No` or, as often, `Unknown`.
///   With an effect it reports `Unknown`. A test can [choose](Self::inject_commit) which, and
///   commits may [happen later](Self::set_late_commits).
/// - A failed `rollback` has still rolled back.
/// - A faulty wake-up is lost, whatever its fault.
/// - A call that hangs keeps its resources (an open transaction, its locks) until its future is
///   dropped.
pub struct ChaosStore<S: ?Sized> {
    // A plain mutex: locked while the fate of a call is decided, never across an await. Shared with
    // streams of wake-ups.
    state: Arc<Mutex<State>>,
    // Predicate of the refused messages. Locked while it looks at one.
    refuses: Mutex<Option<Refuses>>,
    /// True once a call hangs forever.
    hangs: watch::Sender<bool>,
    inner: Arc<S>,
}

type Refuses = Box<dyn Fn(&Message) -> bool + Send>;

impl<S: Store + ?Sized> fmt::Debug for ChaosStore<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ChaosStore").field("inner", &self.inner.name()).finish_non_exhaustive()
    }
}

impl<S: ?Sized> ChaosStore<S> {
    /// Wraps a store. The same seed and the same calls, in the same order, give the same faults.
    #[must_use]
    pub fn new(inner: Arc<S>, seed: u64) -> Self {
        let state = State {
            rng: Rng::with_seed(seed),
            rates: StoreFaultRates::default(),
            rates_of: BTreeMap::new(),
            latencies: BTreeMap::new(),
            injected: BTreeMap::new(),
            commits: None,
            late: (0.0, Duration::ZERO),
            late_rng: Rng::with_seed(seed ^ 0x1a7e),
            counts: StoreFaultCounts::default(),
            calls: BTreeMap::new(),
        };
        let (refuses, hangs) = (Mutex::new(None), watch::Sender::new(false));
        Self { state: Arc::new(Mutex::new(state)), refuses, hangs, inner }
    }

    /// Sets the rates of faults from the start.
    #[must_use]
    pub fn with_rates(self, rates: StoreFaultRates) -> Self {
        self.set_rates(rates);
        self
    }

    /// Sets the rates of faults of this method from the start; they override the general rates.
    #[must_use]
    pub fn with_rates_of(self, call: StoreCall, rates: StoreFaultRates) -> Self {
        self.set_rates_of(call, rates);
        self
    }

    /// Sets the rates of faults from now on.
    pub fn set_rates(&self, rates: StoreFaultRates) {
        lock(&self.state).rates = rates;
    }

    /// Sets the rates of faults of this method from now on; they override the general rates.
    pub fn set_rates_of(&self, call: StoreCall, rates: StoreFaultRates) {
        lock(&self.state).rates_of.insert(call, rates);
    }

    /// Latency of each call of this method from now on, on tokio's clock: before its effect, in
    /// addition to random delays. [`calm`](Self::calm) keeps it.
    pub fn set_latency_of(&self, call: StoreCall, latency: Duration) {
        lock(&self.state).latencies.insert(call, latency);
    }

    /// Injects this fault into the next `times` calls of a method.
    pub fn inject(&self, call: StoreCall, fault: StoreFault, times: usize) {
        lock(&self.state).injected.insert(call, (fault, times));
    }

    /// Injects exactly this fault into the next `times` commits that have no other fault.
    pub fn inject_commit(&self, fault: CommitFault, times: usize) {
        lock(&self.state).commits = Some((fault, times));
    }

    /// Sets the share of late commits, from 0 (none) to 1 (all), from now on. They happen up to
    /// this much later than their result is reported as unknown
    /// ([`CommitFault::UnknownCommitsLater`]).
    pub fn set_late_commits(&self, rate: f64, most: Duration) {
        lock(&self.state).late = (rate, most);
    }

    /// Returns the number of injected faults of this method that are still to happen. A test that
    /// ends with some left has not tested what it claims.
    #[must_use]
    pub fn unspent(&self, call: StoreCall) -> usize {
        let state = lock(&self.state);
        let commits = state.commits.filter(|_| call == StoreCall::Commit).map_or(0, |(_, times)| times);
        commits + state.injected.get(&call).map_or(0, |(_, times)| *times)
    }

    /// Refuses to append these messages from now on, with [`Invalid`](StoreErrorKind::Invalid), as
    /// a database refuses a message above its limits.
    pub fn refuse(&self, refuses: impl Fn(&Message) -> bool + Send + 'static) {
        *lock(&self.refuses) = Some(Box::new(refuses));
    }

    fn refuses(&self, messages: &[Outgoing]) -> Result<(), StoreError> {
        let refuses = lock(&self.refuses);
        let Some(refuses) = &*refuses else { return Ok(()) };
        match messages.iter().find(|outgoing| refuses(&outgoing.message)) {
            Some(refused) => {
                let words = format!("the test lets the message {} be refused", refused.message.id);
                Err(StoreError::new(StoreErrorKind::Invalid, "append", words))
            }
            None => Ok(()),
        }
    }

    /// Ends all faults: from now on every call is forwarded. Calls that already hang keep hanging.
    pub fn calm(&self) {
        let mut state = lock(&self.state);
        state.rates = StoreFaultRates::default();
        state.rates_of.clear();
        state.injected.clear();
        (state.commits, state.late) = (None, (0.0, Duration::ZERO));
        drop(state);
        *lock(&self.refuses) = None;
    }

    /// Returns the counts of the faults so far.
    #[must_use]
    pub fn counts(&self) -> StoreFaultCounts {
        lock(&self.state).counts
    }

    /// Returns the number of calls of this method so far.
    #[must_use]
    pub fn calls(&self, call: StoreCall) -> u64 {
        lock(&self.state).calls.get(&call).copied().unwrap_or_default()
    }

    /// Waits until a call has begun to hang; a call with an effect hangs after its effect. From the
    /// first hanging call on it returns at once.
    pub async fn hangs(&self) {
        // The sender is in this store, so it does not end.
        let _ = self.hangs.subscribe().wait_for(|hangs| *hangs).await;
    }

    async fn hang<T>(&self) -> T {
        self.hangs.send_replace(true);
        pending().await
    }

    /// Returns the wrapped store.
    #[must_use]
    pub fn inner(&self) -> &Arc<S> {
        &self.inner
    }

    /// Performs one call: its delay, its effect, and its fault.
    async fn act<T, E: From<StoreError>>(
        &self,
        call: StoreCall,
        effect: impl Future<Output = Result<T, E>> + Send,
    ) -> Result<T, E> {
        let plan = lock(&self.state).plan(call);
        plan.hold_back().await;
        match plan.fault {
            None => effect.await,
            Some(StoreFault::Before) => Err(injected(call).into()),
            Some(StoreFault::After) => {
                effect.await?;
                Err(injected(call).into())
            }
            Some(StoreFault::HangBefore) => self.hang().await,
            Some(StoreFault::HangAfter) => {
                // The caller can no longer hear of a failure of the call itself either.
                let _ = effect.await;
                self.hang().await
            }
        }
    }

    /// Forwards the wake-ups that are not lost.
    fn some_of(&self, wakeups: BoxStream<'static, Wakeup>) -> BoxStream<'static, Wakeup> {
        let state = Arc::clone(&self.state);
        wakeups
            .filter_map(move |wakeup| {
                let plan = lock(&state).plan(StoreCall::Wakeups);
                async move {
                    plan.hold_back().await;
                    plan.fault.is_none().then_some(wakeup)
                }
            })
            .boxed()
    }
}

fn lock<T>(state: &Mutex<T>) -> MutexGuard<'_, T> {
    // Code of this type does not panic while the lock is held.
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

fn injected(call: StoreCall) -> StoreError {
    StoreError::new(StoreErrorKind::Unavailable, "chaos", format!("a fault of {call:?} was injected"))
}

/// Fate of one call.
#[derive(Clone, Copy, Debug)]
struct Plan {
    delay: Duration,
    fault: Option<StoreFault>,
    /// A coin toss, for faults that can show in two ways.
    heads: bool,
}

impl Plan {
    async fn hold_back(self) {
        if !self.delay.is_zero() {
            sleep(self.delay).await;
        }
    }
}

#[derive(Debug)]
struct State {
    rng: Rng,
    rates: StoreFaultRates,
    rates_of: BTreeMap<StoreCall, StoreFaultRates>,
    latencies: BTreeMap<StoreCall, Duration>,
    injected: BTreeMap<StoreCall, (StoreFault, usize)>,
    commits: Option<(CommitFault, usize)>,
    /// Rate and maximum delay of late commits.
    late: (f64, Duration),
    // Separate, so that draws for commits do not shift the faults of other calls.
    late_rng: Rng,
    counts: StoreFaultCounts,
    calls: BTreeMap<StoreCall, u64>,
}

impl State {
    fn plan(&mut self, call: StoreCall) -> Plan {
        // The same draws for each call, whatever is set, so that a chosen fault does not shift
        // later ones.
        let (wait, throw, heads) = (self.rng.f64(), self.rng.f64(), self.rng.bool());
        let rates = self.rates_of.get(&call).unwrap_or(&self.rates);
        let latency = self.latencies.get(&call).copied().unwrap_or_default();
        let delay = rates.delay.mul_f64(wait) + latency;
        let fault = self.injected(call).or_else(|| self.thrown(call, throw));
        self.counts.calls += 1;
        *self.calls.entry(call).or_default() += 1;
        match fault {
            None => {}
            Some(StoreFault::Before) => self.counts.before += 1,
            Some(StoreFault::After) => self.counts.after += 1,
            Some(StoreFault::HangBefore | StoreFault::HangAfter) => self.counts.hung += 1,
        }
        Plan { delay, fault, heads }
    }

    /// Decides the exact fault of this commit if one was injected; else chance decides, as for
    /// every call.
    fn plan_commit(&mut self) -> Option<CommitFault> {
        let (throw, part) = (self.late_rng.f64(), self.late_rng.f64());
        let chosen = self.commits.as_mut().filter(|(_, times)| *times > 0).map(|(fault, times)| {
            *times -= 1;
            *fault
        });
        let (rate, most) = self.late;
        let fault =
            chosen.or_else(|| (throw < rate).then(|| CommitFault::UnknownCommitsLater(most.mul_f64(part))));
        match fault? {
            CommitFault::No | CommitFault::Unknown => self.counts.before += 1,
            CommitFault::UnknownCommitted => self.counts.after += 1,
            CommitFault::UnknownCommitsLater(_) => self.counts.late += 1,
        }
        fault
    }

    fn injected(&mut self, call: StoreCall) -> Option<StoreFault> {
        let (fault, times) = self.injected.get_mut(&call).filter(|(_, times)| *times > 0)?;
        *times -= 1;
        Some(*fault)
    }

    fn thrown(&self, call: StoreCall, mut throw: f64) -> Option<StoreFault> {
        let rates = self.rates_of.get(&call).unwrap_or(&self.rates);
        let faults = [
            (rates.before, StoreFault::Before),
            (rates.after, StoreFault::After),
            (rates.hang_before, StoreFault::HangBefore),
            (rates.hang_after, StoreFault::HangAfter),
        ];
        for (rate, fault) in faults {
            if throw < rate {
                return Some(fault);
            }
            throw -= rate;
        }
        None
    }
}
