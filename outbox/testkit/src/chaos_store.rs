//! A store that goes wrong on purpose, in every way that a database may, and from a seed.
//!
//! Every method may fail before it has an effect, fail *after* it had its effect (the connection was lost on the way back), be
//! slow, or never return. Whatever it does, it keeps the contract: it reports what it does as a store may, so everything that goes wrong
//! behind it is the fault of who uses it.

use std::collections::BTreeMap;
use std::fmt;
use std::future::{Future, pending};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use fastrand::Rng;
use futures_util::StreamExt;
use futures_util::stream::BoxStream;
use outbox_contract::hints::Wakeup;
use outbox_contract::{Message, Outgoing, Store, StoreError, StoreErrorKind};
use tokio::sync::watch;
use tokio::time::sleep;

mod forward;

/// What can go wrong with one call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum StoreFault {
    /// It fails as unavailable and has had no effect.
    Before,
    /// It has its effect and fails as unavailable: the answer was lost.
    After,
    /// It has no effect and never returns.
    HangBefore,
    /// It has its effect and never returns.
    HangAfter,
}

/// What can go wrong with a commit, exactly: what is told of it, and what it does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum CommitFault {
    /// It rolls back, and says so.
    No,
    /// It rolls back, and what became of it is unknown.
    Unknown,
    /// It commits, and what became of it is unknown.
    UnknownCommitted,
    /// What becomes of it is unknown, and it commits this much later, on tokio's clock: the database goes on with what nobody waits for any
    /// more. Until then the transaction holds what it holds.
    UnknownCommitsLater(Duration),
}

/// How often calls go wrong, from 0 (never, the default) to 1 (always).
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StoreFaultRates {
    /// [`StoreFault::Before`].
    pub before: f64,
    /// [`StoreFault::After`].
    pub after: f64,
    /// [`StoreFault::HangBefore`].
    pub hang_before: f64,
    /// [`StoreFault::HangAfter`].
    pub hang_after: f64,
    /// The longest that a call is held back before its effect, on tokio's clock; each one waits for a part of it.
    pub delay: Duration,
}

/// What went wrong so far, in calls.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StoreFaultCounts {
    /// Calls that came in.
    pub calls: u64,
    /// Failed without an effect.
    pub before: u64,
    /// Failed after their effect.
    pub after: u64,
    /// Never returned, with or without an effect.
    pub hung: u64,
    /// Commits that happened after it was told that nobody knows of them.
    pub late: u64,
}

/// A method of [`Store`], [`Admin`](outbox_contract::Admin) or [`Transactional`](outbox_contract::Transactional) that can go wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
#[expect(missing_docs, reason = "each is the method of that name")]
pub enum StoreCall {
    Migrate,
    Check,
    Lease,
    GiveBack,
    Fetch,
    Writers,
    Stripes,
    Due,
    Settle,
    Divert,
    Elect,
    Maintain,
    Backlog,
    Unserved,
    /// Single wake-ups, which are lost.
    Wakeups,
    FailingKeys,
    Parked,
    DeadLetters,
    History,
    Hold,
    Release,
    Skip,
    Discard,
    Requeue,
    Purge,
    Replay,
    Pause,
    Resume,
    Scheduled,
    CancelScheduled,
    Begin,
    Commit,
    Rollback,
    Append,
    Admit,
    Admitted,
}

/// Wraps a store and lets things go wrong: at random from a seed, or for the next call of a method.
///
/// Without rates and faults it passes everything on. [`calm`](Self::calm) ends all faults, so that a test can see the system heal.
///
/// - A failed `commit` without an effect has rolled back; it says `No` or, as often, `Unknown`. With an effect it says `Unknown`. Which of these
///   it is can be [chosen](Self::inject_commit), and it may [commit later](Self::set_late_commits).
/// - A `rollback` that fails has rolled back all the same.
/// - A wake-up that goes wrong, in whatever way, is lost.
/// - A call that hangs holds what it holds (an open transaction, its locks) until its future is dropped.
pub struct ChaosStore<S: ?Sized> {
    // A plain mutex: held while a call's fate is decided, never across an await. Shared with streams of wake-ups.
    state: Arc<Mutex<State>>,
    // Which messages are refused. Held while one is looked at.
    refuses: Mutex<Option<Refuses>>,
    /// Whether a call hangs for good.
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

    /// Sets how often calls go wrong from the start.
    #[must_use]
    pub fn with_rates(self, rates: StoreFaultRates) -> Self {
        self.set_rates(rates);
        self
    }

    /// Sets how often calls of this method go wrong from the start, whatever is set for all.
    #[must_use]
    pub fn with_rates_of(self, call: StoreCall, rates: StoreFaultRates) -> Self {
        self.set_rates_of(call, rates);
        self
    }

    /// Sets how often calls go wrong from now on.
    pub fn set_rates(&self, rates: StoreFaultRates) {
        lock(&self.state).rates = rates;
    }

    /// Sets how often calls of this method go wrong from now on, whatever is set for all.
    pub fn set_rates_of(&self, call: StoreCall, rates: StoreFaultRates) {
        lock(&self.state).rates_of.insert(call, rates);
    }

    /// Lets this go wrong with the next `times` calls of a method.
    pub fn inject(&self, call: StoreCall, fault: StoreFault, times: usize) {
        lock(&self.state).injected.insert(call, (fault, times));
    }

    /// Lets exactly this go wrong with the next `times` commits to which nothing else happens.
    pub fn inject_commit(&self, fault: CommitFault, times: usize) {
        lock(&self.state).commits = Some((fault, times));
    }

    /// From now on so many commits, from 0 (none) to 1 (all), happen up to this much later than it is told that nobody knows of them
    /// ([`CommitFault::UnknownCommitsLater`]).
    pub fn set_late_commits(&self, rate: f64, most: Duration) {
        lock(&self.state).late = (rate, most);
    }

    /// How many calls of this method are still to go wrong of those that were injected. A test that injects a fault and ends with some left has
    /// not tried what it says.
    #[must_use]
    pub fn unspent(&self, call: StoreCall) -> usize {
        let state = lock(&self.state);
        let commits = state.commits.filter(|_| call == StoreCall::Commit).map_or(0, |(_, times)| times);
        commits + state.injected.get(&call).map_or(0, |(_, times)| *times)
    }

    /// Refuses to append these messages from now on, as [`Invalid`](StoreErrorKind::Invalid): as a database does what is above its limits.
    pub fn refuse(&self, refuses: impl Fn(&Message) -> bool + Send + 'static) {
        *lock(&self.refuses) = Some(Box::new(refuses));
    }

    fn check(&self, messages: &[Outgoing]) -> Result<(), StoreError> {
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

    /// Ends all faults: from now on everything is passed on. What hangs already hangs on.
    pub fn calm(&self) {
        let mut state = lock(&self.state);
        state.rates = StoreFaultRates::default();
        state.rates_of.clear();
        state.injected.clear();
        (state.commits, state.late) = (None, (0.0, Duration::ZERO));
        drop(state);
        *lock(&self.refuses) = None;
    }

    /// What went wrong so far.
    #[must_use]
    pub fn counts(&self) -> StoreFaultCounts {
        lock(&self.state).counts
    }

    /// How often this method was called so far.
    #[must_use]
    pub fn calls(&self, call: StoreCall) -> u64 {
        lock(&self.state).calls.get(&call).copied().unwrap_or_default()
    }

    /// Waits until a call has begun to hang: one that has an effect, behind it. From the first one on it returns at once.
    pub async fn hangs(&self) {
        // The sender is in this store, so it does not end.
        let _ = self.hangs.subscribe().wait_for(|hangs| *hangs).await;
    }

    async fn hang<T>(&self) -> T {
        self.hangs.send_replace(true);
        pending().await
    }

    /// The store behind.
    #[must_use]
    pub fn inner(&self) -> &Arc<S> {
        &self.inner
    }

    /// One call: its delay, its effect, and what goes wrong.
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
                // Whether it failed by itself can't be heard any more either.
                let _ = effect.await;
                self.hang().await
            }
        }
    }

    /// Passes on the wake-ups that are not lost.
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
    // Nothing of ours panics while it is held.
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

fn injected(call: StoreCall) -> StoreError {
    StoreError::new(StoreErrorKind::Unavailable, "chaos", format!("a fault of {call:?} was injected"))
}

/// What happens to one call.
#[derive(Clone, Copy, Debug)]
struct Plan {
    delay: Duration,
    fault: Option<StoreFault>,
    /// A throw of a coin, for faults that can show in two ways.
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
    injected: BTreeMap<StoreCall, (StoreFault, usize)>,
    commits: Option<(CommitFault, usize)>,
    /// How often commits happen later, and how much.
    late: (f64, Duration),
    // Of its own, so that what commits throw does not shift what other calls do.
    late_rng: Rng,
    counts: StoreFaultCounts,
    calls: BTreeMap<StoreCall, u64>,
}

impl State {
    fn plan(&mut self, call: StoreCall) -> Plan {
        // The same throws for each call, whatever is set, so that a chosen fault does not shift those that follow.
        let (wait, throw, heads) = (self.rng.f64(), self.rng.f64(), self.rng.bool());
        let rates = self.rates_of.get(&call).unwrap_or(&self.rates);
        let delay = rates.delay.mul_f64(wait);
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

    /// What exactly goes wrong with this commit, if that was chosen; else chance decides, as for every call.
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
