//! A transport that injects faults on purpose: every kind of fault that a broker may show, from a
//! seed.
//!
//! The wrapper always keeps the key-prefix property: after a message that it does not send, it
//! sends no message of that key in the batch. Anything that goes wrong behind it is therefore a
//! fault of its user.

use std::collections::{BTreeMap, BTreeSet};
use std::future::pending;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use fastrand::Rng;
use outbox_contract::admin::Diagnosis;
use outbox_contract::backend::{
    Deliveries, Outcome, Outcomes, PublishBatch, Stored, Subscription, TransportLayer, Unavailable,
};
use outbox_contract::{Failure, KeyId, MessageId, Topic, Transport, TransportError, TransportErrorKind};
use tokio::time::{Instant, sleep};

/// Fault of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Fault {
    /// The message is reported failed, and not sent.
    Failed,
    /// The message is reported rejected, and not sent.
    Rejected,
    /// As `Failed`, with this class of failure.
    FailedAs(&'static str),
    /// As `Rejected`, with this class of failure.
    RejectedAs(&'static str),
    /// The message is reported unknown, and not sent: the request was lost.
    UnknownWithoutEffect,
    /// The message and its followers of the same key in the batch are sent, but reported unknown:
    /// the confirmation was lost.
    UnknownWithEffect,
    /// The message and its followers of the same key are neither sent nor reported, and `publish`
    /// does not return.
    Hang,
    /// `publish` panics before it sends anything of the batch.
    PanicBefore,
    /// `publish` panics after it has sent the batch, and before it reports the outcomes.
    PanicAfter,
}

/// Rates of faults, from 0 (never, the default) to 1 (always).
#[derive(Clone, Debug, Default, PartialEq)]
pub struct FaultRates {
    /// Rate of [`Fault::Failed`], of messages.
    pub failed: f64,
    /// Rate of [`Fault::Rejected`], of messages.
    pub rejected: f64,
    /// Rate of [`Fault::UnknownWithoutEffect`], of messages.
    pub unknown_without_effect: f64,
    /// Rate of [`Fault::UnknownWithEffect`], of messages.
    pub unknown_with_effect: f64,
    /// Rate of [`Fault::Hang`], of messages.
    pub hang: f64,
    /// Rate of [`Fault::PanicBefore`], of messages.
    pub panic_before: f64,
    /// Rate of [`Fault::PanicAfter`], of messages.
    pub panic_after: f64,
    /// Rate of outages of the whole route, of batches.
    pub outage: f64,
    /// Duration of such an outage.
    pub outage_lasts: Duration,
    /// Maximum delay of a batch before it is sent; each batch waits for a random part of it.
    pub delay: Duration,
}

/// Counts of the faults so far, in messages unless noted otherwise.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FaultCounts {
    /// Batches received.
    pub batches: u64,
    /// Messages given to the wrapped transport.
    pub sent: u64,
    /// Messages reported failed.
    pub failed: u64,
    /// Messages reported rejected.
    pub rejected: u64,
    /// Messages reported unknown and not sent.
    pub unknown_without_effect: u64,
    /// Messages sent and reported unknown.
    pub unknown_with_effect: u64,
    /// Messages reported unavailable.
    pub unavailable: u64,
    /// Messages reported blocked.
    pub blocked: u64,
    /// Messages neither sent nor reported.
    pub hung: u64,
    /// Panics, in batches.
    pub panics: u64,
}

/// Wraps a transport and injects faults: at random from a seed, or into chosen messages.
///
/// Without rates and injected faults it forwards every message. [`calm`](Self::calm) ends all
/// faults, so that a test can see the system heal.
pub struct ChaosTransport {
    inner: Arc<dyn Transport>,
    // A plain mutex: locked while the fate of a batch is decided, never across an await.
    state: Mutex<State>,
}

impl std::fmt::Debug for ChaosTransport {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ChaosTransport").field("inner", &self.inner.name()).finish_non_exhaustive()
    }
}

impl ChaosTransport {
    /// Wraps a transport. The same seed and the same calls give the same faults.
    #[must_use]
    pub fn new(inner: Arc<dyn Transport>, seed: u64) -> Self {
        Self { inner, state: Mutex::new(State::new(seed)) }
    }

    /// Sets the rates of faults from the start.
    #[must_use]
    pub fn with_rates(self, rates: FaultRates) -> Self {
        self.set_rates(rates);
        self
    }

    /// Sets the rates of faults from now on.
    pub fn set_rates(&self, rates: FaultRates) {
        self.state().rates = rates;
    }

    /// Injects this fault into every publish of this message until [`lift`](Self::lift).
    pub fn inject(&self, id: MessageId, fault: Fault) {
        self.inject_times(id, fault, usize::MAX);
    }

    /// Injects this fault into the next `times` publishes of this message; later publishes send it.
    pub fn inject_times(&self, id: MessageId, fault: Fault, times: usize) {
        self.state().injected.insert(id, (fault, times));
    }

    /// Removes the injected fault of this message.
    pub fn lift(&self, id: MessageId) {
        self.state().injected.remove(&id);
    }

    /// Makes a topic unavailable until it is [healed](Self::heal_topic).
    pub fn break_topic(&self, topic: Topic) {
        self.state().broken.insert(topic);
    }

    /// Makes a topic available again.
    pub fn heal_topic(&self, topic: &Topic) {
        self.state().broken.remove(topic);
    }

    /// Makes the whole route unavailable until it [comes back](Self::come_back).
    pub fn go_down(&self) {
        self.state().outage = Outage::UntilSaid;
    }

    /// Makes the whole route unavailable for this span, on tokio's clock.
    pub fn go_down_for(&self, span: Duration) {
        self.state().outage = Outage::Until(Instant::now() + span);
    }

    /// Makes the route available again.
    pub fn come_back(&self) {
        self.state().outage = Outage::None;
    }

    /// Ends all faults: rates, injected faults, broken topics and outages. Publishes that already
    /// hang keep hanging.
    pub fn calm(&self) {
        let mut state = self.state();
        state.rates = FaultRates::default();
        state.injected.clear();
        state.broken.clear();
        state.outage = Outage::None;
    }

    /// Returns the counts of the faults so far.
    #[must_use]
    pub fn counts(&self) -> FaultCounts {
        self.state().counts
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // The panics that this type is for are raised outside of the lock.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn reachable(&self, operation: &'static str) -> Result<(), TransportError> {
        if self.state().is_down() {
            return Err(TransportError::new(
                TransportErrorKind::Unavailable,
                operation,
                "an outage was injected",
            ));
        }
        Ok(())
    }
}

impl TransportLayer for ChaosTransport {
    type Inner = dyn Transport;

    fn inner(&self) -> &dyn Transport {
        &*self.inner
    }

    async fn check(&self) -> Result<(), TransportError> {
        self.reachable("check")?;
        self.inner.check().await
    }

    async fn diagnose(&self, topics: &[Topic]) -> Result<Vec<Diagnosis>, TransportError> {
        self.reachable("diagnose")?;
        self.inner.diagnose(topics).await
    }

    async fn publish(&self, batch: PublishBatch, outcomes: &Outcomes) {
        let plan = self.state().plan(&batch.messages);
        if plan.panics == Some(Fault::PanicBefore) {
            panic!("a panic before sending was injected");
        }
        if !plan.delay.is_zero() {
            sleep(plan.delay).await;
        }
        for (index, fate) in plan.fates.iter().enumerate() {
            if let Fate::Report(outcome) = fate {
                outcomes.report(index, outcome.clone());
            }
        }

        let sent: Vec<usize> = (0..plan.fates.len()).filter(|index| plan.fates[*index].is_sent()).collect();
        if plan.fates.iter().all(|fate| *fate == Fate::Send) && plan.panics.is_none() {
            // Without faults, each outcome is reported as soon as it is known.
            return self.inner.publish(batch, outcomes).await;
        }
        let mut pass_on = PassOn { outcomes, inner: Outcomes::new(sent.len()), sent: &sent, plan: &plan };
        if !sent.is_empty() {
            let mut rest = batch.clone();
            rest.messages = sent.iter().map(|index| Arc::clone(&batch.messages[*index])).collect();
            self.inner.publish(rest, &pass_on.inner).await;
        }
        if plan.panics.is_some() {
            pass_on.sent = &[];
            panic!("a panic after sending was injected");
        }
        drop(pass_on);
        if plan.fates.contains(&Fate::Silence) {
            pending::<()>().await;
        }
    }

    async fn subscribe(&self, subscription: Subscription) -> Result<Box<dyn Deliveries>, TransportError> {
        self.reachable("subscribe")?;
        self.inner.subscribe(subscription).await
    }
}

/// Forwards the reports of the wrapped transport when it ends, and also when the batch's future is
/// dropped.
struct PassOn<'a> {
    outcomes: &'a Outcomes,
    inner: Outcomes,
    sent: &'a [usize],
    plan: &'a Plan,
}

impl Drop for PassOn<'_> {
    fn drop(&mut self) {
        for (index, outcome) in self.sent.iter().zip(self.inner.take()) {
            match (&self.plan.fates[*index], outcome) {
                (Fate::SendInSilence, _) => self.outcomes.report(*index, unknown()),
                (_, Some(outcome)) => self.outcomes.report(*index, outcome),
                (_, None) => {}
            }
        }
    }
}

#[derive(Clone, Copy, Debug)]
enum Outage {
    None,
    Until(Instant),
    UntilSaid,
}

/// Fate of one message.
#[derive(Clone, Debug, PartialEq)]
enum Fate {
    Send,
    /// The message is sent, and reported unknown.
    SendInSilence,
    /// The message is not sent, and this outcome is reported.
    Report(Outcome),
    /// The message is neither sent nor reported.
    Silence,
}

impl Fate {
    fn is_sent(&self) -> bool {
        matches!(self, Self::Send | Self::SendInSilence)
    }
}

/// Fate of one batch.
#[derive(Debug)]
struct Plan {
    fates: Vec<Fate>,
    delay: Duration,
    panics: Option<Fault>,
}

#[derive(Debug)]
struct State {
    rng: Rng,
    rates: FaultRates,
    injected: BTreeMap<MessageId, (Fault, usize)>,
    broken: BTreeSet<Topic>,
    outage: Outage,
    counts: FaultCounts,
}

impl State {
    fn new(seed: u64) -> Self {
        Self {
            rng: Rng::with_seed(seed),
            rates: FaultRates::default(),
            injected: BTreeMap::new(),
            broken: BTreeSet::new(),
            outage: Outage::None,
            counts: FaultCounts::default(),
        }
    }

    fn is_down(&self) -> bool {
        match self.outage {
            Outage::None => false,
            Outage::Until(end) => Instant::now() < end,
            Outage::UntilSaid => true,
        }
    }

    fn plan(&mut self, messages: &[Arc<Stored>]) -> Plan {
        self.counts.batches += 1;
        let delay = self.rates.delay.mul_f64(self.rng.f64());
        if self.rng.f64() < self.rates.outage && !self.is_down() {
            self.outage = Outage::Until(Instant::now() + self.rates.outage_lasts);
        }
        let down = self.is_down();
        let mut plan = Plan { fates: Vec::with_capacity(messages.len()), delay, panics: None };
        // Shared fate of the later messages of a key whose message failed.
        let mut followers: BTreeMap<KeyId, Fate> = BTreeMap::new();
        for stored in messages {
            let key = stored.message.key_id();
            let fate = match followers.get(&key) {
                _ if down => Fate::Report(unavailable(Unavailable::Route)),
                Some(fate) => fate.clone(),
                None if self.broken.contains(&key.topic) => Fate::Report(unavailable(Unavailable::Topic)),
                None => match self.fault(stored.message.id) {
                    None => Fate::Send,
                    Some(Fault::Failed) => Fate::Report(Outcome::Failed(failure("a failure was injected"))),
                    Some(Fault::FailedAs(class)) => {
                        Fate::Report(Outcome::Failed(Failure::new(class, "a failure was injected")))
                    }
                    Some(Fault::RejectedAs(class)) => {
                        Fate::Report(Outcome::Rejected(Failure::new(class, "a rejection was injected")))
                    }
                    Some(Fault::Rejected) => {
                        Fate::Report(Outcome::Rejected(failure("a rejection was injected")))
                    }
                    Some(Fault::UnknownWithoutEffect) => Fate::Report(unknown()),
                    Some(Fault::UnknownWithEffect) => Fate::SendInSilence,
                    Some(Fault::Hang) => Fate::Silence,
                    Some(panic @ (Fault::PanicBefore | Fault::PanicAfter)) => {
                        plan.panics.get_or_insert(panic);
                        Fate::Send
                    }
                },
            };
            let shared = match &fate {
                Fate::Send => None,
                Fate::Report(_) => Some(Fate::Report(Outcome::Blocked)),
                Fate::SendInSilence | Fate::Silence => Some(fate.clone()),
            };
            if let Some(shared) = shared {
                followers.entry(key).or_insert(shared);
            }
            plan.fates.push(fate);
        }
        self.count(&plan);
        plan
    }

    /// Decides the fault of this message for this publish.
    fn fault(&mut self, id: MessageId) -> Option<Fault> {
        // One draw for each message, whatever is set, so that a chosen fault does not shift later
        // ones.
        let mut throw = self.rng.f64();
        if let Some((fault, times)) = self.injected.get_mut(&id) {
            let fault = *fault;
            *times = times.saturating_sub(1);
            if *times == 0 {
                self.injected.remove(&id);
            }
            return Some(fault);
        }
        let rates = [
            (self.rates.failed, Fault::Failed),
            (self.rates.rejected, Fault::Rejected),
            (self.rates.unknown_without_effect, Fault::UnknownWithoutEffect),
            (self.rates.unknown_with_effect, Fault::UnknownWithEffect),
            (self.rates.hang, Fault::Hang),
            (self.rates.panic_before, Fault::PanicBefore),
            (self.rates.panic_after, Fault::PanicAfter),
        ];
        for (rate, fault) in rates {
            if throw < rate {
                return Some(fault);
            }
            throw -= rate;
        }
        None
    }

    fn count(&mut self, plan: &Plan) {
        let counts = &mut self.counts;
        counts.panics += u64::from(plan.panics.is_some());
        if plan.panics == Some(Fault::PanicBefore) {
            return;
        }
        for fate in &plan.fates {
            counts.sent += u64::from(fate.is_sent());
            match fate {
                Fate::Send | Fate::Report(Outcome::Delivered) => {}
                Fate::SendInSilence => counts.unknown_with_effect += 1,
                Fate::Silence => counts.hung += 1,
                Fate::Report(Outcome::Failed(_) | Outcome::Postponed(..)) => counts.failed += 1,
                Fate::Report(Outcome::Rejected(_)) => counts.rejected += 1,
                Fate::Report(Outcome::Unknown(_)) => counts.unknown_without_effect += 1,
                Fate::Report(Outcome::Unavailable(..)) => counts.unavailable += 1,
                Fate::Report(Outcome::Blocked) => counts.blocked += 1,
            }
        }
    }
}

fn failure(words: &'static str) -> Failure {
    Failure::new("chaos", words)
}

fn unknown() -> Outcome {
    Outcome::Unknown(failure("a lost confirmation was injected"))
}

fn unavailable(what: Unavailable) -> Outcome {
    Outcome::Unavailable(what, failure("an outage was injected"))
}
