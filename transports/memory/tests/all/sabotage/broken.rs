//! A transport that breaks one promise, and otherwise acts as the in-process transport.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use outbox_contract::admin::Diagnosis;
use outbox_contract::backend::{
    Deliveries, Outcome, Outcomes, PublishBatch, Received, Stored, Subscription, Tag, Transport,
    TransportLayer, Unit,
};
use outbox_contract::{Consumer, Topic, TransportError, async_trait};
use outbox_transport_memory::MemoryTransport;

pub(crate) const LIMIT: usize = 1024 * 1024;

/// The broken promise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sabotage {
    CutsPayloads,
    ForgetsTombstones,
    LeavesOutTheOrigin,
    SwapsTwoOfAKey,
    LosesOneOfEachBatch,
    LosesWhatComesBeside,
    LeavesASlotEmpty,
    ConfirmsTheUnroutable,
    GoesOnAfterAFailure,
    SendsTheLastWhenDropped,
    StaysOpen,
    FindsWithoutARemedy,
    MakesWhatItExamines,
    ForgetsRedelivery,
    LosesAcknowledgements,
    AcknowledgesAllBefore,
    TakesStaleAcknowledgements,
    MakesOneConsumerOfAll,
    MakesAConsumerOfEachMember,
    LeavesWhenDrained,
    IgnoresThePrefetch,
    IgnoresPauses,
    LosesADroppedNext,
    StartsWithTheNewest,
    TakesAnySubscription,
    EndsBeforeRevocations,
    SpeaksBehindTheEnd,
    TakesOneCallAtATime,
    StaysWhenDropped,
    NumbersBackwards,
    KeepsRevocationsToItself,
}

pub(crate) struct BrokenHarness {
    transport: Arc<Broken>,
    topics: AtomicUsize,
}

impl BrokenHarness {
    pub(crate) fn new(sabotage: Sabotage) -> Self {
        let inner = MemoryTransport::builder().max_message_bytes(LIMIT).confirm_on_enqueue().build();
        let transport =
            Broken { inner, sabotage, publishing: AtomicUsize::new(0), members: AtomicUsize::new(0) };
        Self { transport: Arc::new(transport), topics: AtomicUsize::new(0) }
    }

    pub(crate) fn transport(&self) -> Arc<dyn Transport> {
        Arc::clone(&self.transport) as Arc<dyn Transport>
    }

    pub(crate) fn topic(&self) -> Topic {
        Topic::new(format!("topic-{}", self.topics.fetch_add(1, Ordering::Relaxed))).unwrap()
    }
}

struct Broken {
    inner: MemoryTransport,
    sabotage: Sabotage,
    publishing: AtomicUsize,
    members: AtomicUsize,
}

impl Broken {
    async fn publish_one(&self, batch: &PublishBatch, stored: &Arc<Stored>) -> Option<Outcome> {
        let outcomes = Outcomes::new(1);
        let mut one = batch.clone();
        one.messages = vec![Arc::clone(stored)];
        self.inner.publish(one, &outcomes).await;
        outcomes.take().into_iter().flatten().next()
    }
}

impl TransportLayer for Broken {
    type Inner = MemoryTransport;

    fn inner(&self) -> &MemoryTransport {
        &self.inner
    }

    fn name(&self) -> &'static str {
        "broken"
    }

    async fn diagnose(&self, topics: &[Topic]) -> Result<Vec<Diagnosis>, TransportError> {
        match self.sabotage {
            Sabotage::FindsWithoutARemedy => Ok(vec![Diagnosis::delivery("something", "")]),
            Sabotage::MakesWhatItExamines => {
                let made = Subscription::new("examiner", topics.iter().cloned()).unwrap();
                std::mem::forget(self.inner.subscribe(made).await?);
                Ok(Vec::new())
            }
            _ => self.inner.diagnose(topics).await,
        }
    }

    async fn publish(&self, mut batch: PublishBatch, outcomes: &Outcomes) {
        match self.sabotage {
            Sabotage::CutsPayloads => {
                for stored in &mut batch.messages {
                    let stored = Arc::make_mut(stored);
                    let kept = stored.message.payload.len().saturating_sub(1);
                    stored.message.payload.truncate(kept);
                }
            }
            Sabotage::ForgetsTombstones => {
                for stored in &mut batch.messages {
                    Arc::make_mut(stored).message.headers.remove("ce-tombstone");
                }
            }
            Sabotage::SwapsTwoOfAKey => {
                let key = |at: usize| batch.messages[at].message.key_id();
                let last = batch.messages.len() - 1;
                if let Some(earlier) = (0..last).find(|at| key(*at) == key(last)) {
                    batch.messages.swap(earlier, last);
                }
            }
            Sabotage::LosesOneOfEachBatch => drop(batch.messages.pop()),
            Sabotage::LosesWhatComesBeside => {
                if self.publishing.fetch_add(1, Ordering::Relaxed) > 0 {
                    batch.messages.clear();
                }
                tokio::task::yield_now().await;
            }
            Sabotage::ConfirmsTheUnroutable | Sabotage::GoesOnAfterAFailure => {
                for (index, stored) in batch.messages.iter().enumerate() {
                    let outcome = self.publish_one(&batch, stored).await;
                    let confirm = self.sabotage == Sabotage::ConfirmsTheUnroutable;
                    match outcome {
                        Some(Outcome::Unavailable(..)) if confirm => {
                            outcomes.report(index, Outcome::Delivered)
                        }
                        Some(outcome) => outcomes.report(index, outcome),
                        None => {}
                    }
                }
                return;
            }
            Sabotage::SendsTheLastWhenDropped => {
                let last = batch.messages.last().map(Arc::clone);
                let mut out_of_turn = OutOfTurn { inner: &self.inner, batch: batch.clone(), last };
                for (index, stored) in batch.messages.iter().enumerate() {
                    // Lets the future be dropped between two messages.
                    tokio::task::yield_now().await;
                    if let Some(outcome) = self.publish_one(&batch, stored).await {
                        outcomes.report(index, outcome);
                    }
                }
                out_of_turn.last = None;
                return;
            }
            _ => {}
        }
        self.inner.publish(batch, outcomes).await;
        match self.sabotage {
            Sabotage::LeavesASlotEmpty => {
                let mut taken = outcomes.take();
                taken.pop();
            }
            Sabotage::LosesOneOfEachBatch | Sabotage::LosesWhatComesBeside => {
                outcomes.report_rest(&Outcome::Delivered);
                self.publishing.store(0, Ordering::Relaxed);
            }
            _ => {}
        }
    }

    async fn subscribe(&self, mut subscription: Subscription) -> Result<Box<dyn Deliveries>, TransportError> {
        let member = self.members.fetch_add(1, Ordering::Relaxed);
        match self.sabotage {
            Sabotage::MakesOneConsumerOfAll => subscription.consumer = Consumer::new("all").unwrap(),
            Sabotage::MakesAConsumerOfEachMember => {
                subscription.consumer = Consumer::new(format!("member-{member}")).unwrap();
            }
            Sabotage::TakesAnySubscription => {
                subscription.prefetch = subscription.prefetch.max(1);
                subscription.topics.push(Topic::new("any").unwrap());
            }
            Sabotage::IgnoresThePrefetch => {
                subscription.prefetch *= 2;
                subscription.prefetch_bytes *= 2;
            }
            _ => {}
        }
        let inner = self.inner.subscribe(subscription).await?;
        let mut joined = Joined { inner: Some(inner), stays: self.sabotage == Sabotage::StaysWhenDropped };
        if joined.stays {
            tokio::task::yield_now().await;
        }
        let Some(inner) = joined.inner.take() else { unreachable!("it has just joined") };
        let deliveries = BrokenDeliveries {
            calls: tokio::sync::Mutex::new(()),
            inner: Mutex::new(Some(inner.into())),
            sabotage: self.sabotage,
            seen: Mutex::new(BTreeMap::new()),
            drained: AtomicBool::new(false),
            has_ended: AtomicBool::new(false),
        };
        Ok(Box::new(deliveries))
    }

    async fn close(&self) {
        if self.sabotage != Sabotage::StaysOpen {
            self.inner.close().await;
        }
    }
}

/// Sends the last message of a batch when the publish is dropped.
struct OutOfTurn<'a> {
    inner: &'a MemoryTransport,
    batch: PublishBatch,
    last: Option<Arc<Stored>>,
}

impl Drop for OutOfTurn<'_> {
    fn drop(&mut self) {
        let (inner, mut batch) = (self.inner.clone(), self.batch.clone());
        batch.messages = self.last.take().into_iter().collect();
        tokio::spawn(async move { inner.publish(batch, &Outcomes::new(1)).await });
    }
}

/// A member whose subscribe is under way.
struct Joined {
    inner: Option<Box<dyn Deliveries>>,
    stays: bool,
}

impl Drop for Joined {
    fn drop(&mut self) {
        if self.stays {
            std::mem::forget(self.inner.take());
        }
    }
}

struct BrokenDeliveries {
    /// Held by the call that runs, where calls don't run beside each other.
    calls: tokio::sync::Mutex<()>,
    // `None` after it has left.
    inner: Mutex<Option<Arc<dyn Deliveries>>>,
    sabotage: Sabotage,
    /// Deliveries of each unit: the latest incarnation, and the numbers.
    seen: Mutex<BTreeMap<Unit, (u64, Vec<u64>)>>,
    drained: AtomicBool,
    has_ended: AtomicBool,
}

impl BrokenDeliveries {
    fn inner(&self) -> Option<Arc<dyn Deliveries>> {
        self.inner.lock().unwrap().clone()
    }

    async fn turn(&self) -> Option<tokio::sync::MutexGuard<'_, ()>> {
        if self.sabotage == Sabotage::TakesOneCallAtATime { Some(self.calls.lock().await) } else { None }
    }

    /// Numbers that fall along a unit, if that is the sabotage; the same again gives the old one.
    fn renumber(&self, tag: &mut Tag) {
        if self.sabotage == Sabotage::NumbersBackwards {
            tag.number = u64::MAX - tag.number;
        }
    }
}

#[async_trait]
impl Deliveries for BrokenDeliveries {
    async fn next(&self) -> Result<Received, TransportError> {
        let Some(inner) = self.inner() else { return Ok(Received::Ended) };
        if self.sabotage == Sabotage::EndsBeforeRevocations && self.drained.load(Ordering::Relaxed) {
            return Ok(Received::Ended);
        }
        let _turn = self.turn().await;
        let mut received = inner.next().await?;
        while self.sabotage == Sabotage::KeepsRevocationsToItself && matches!(received, Received::Revoked(_))
        {
            received = inner.next().await?;
        }
        let is_end = matches!(received, Received::Ended);
        let again = is_end && self.has_ended.fetch_or(true, Ordering::Relaxed);
        if again && self.sabotage == Sabotage::SpeaksBehindTheEnd {
            return Ok(Received::Revoked(self.seen.lock().unwrap().keys().cloned().collect()));
        }
        if self.sabotage == Sabotage::LosesADroppedNext {
            tokio::time::sleep(std::time::Duration::from_millis(1)).await;
        }
        if let Received::Deliveries(deliveries) = &mut received {
            if self.sabotage == Sabotage::StartsWithTheNewest && self.seen.lock().unwrap().is_empty() {
                deliveries.reverse();
            }
            for delivery in deliveries.iter_mut() {
                let mut seen = self.seen.lock().unwrap();
                let (incarnation, numbers) = seen.entry(delivery.tag.unit.clone()).or_default();
                *incarnation = delivery.tag.incarnation;
                numbers.push(delivery.tag.number);
                self.renumber(&mut delivery.tag);
                if self.sabotage == Sabotage::LeavesOutTheOrigin {
                    delivery.origin = None;
                }
            }
            if self.sabotage == Sabotage::ForgetsRedelivery {
                let tags: Vec<Tag> = deliveries.iter().map(|delivery| delivery.tag.clone()).collect();
                inner.acknowledge(&tags).await?;
            }
        }
        Ok(received)
    }

    async fn acknowledge(&self, tags: &[Tag]) -> Result<(), TransportError> {
        let Some(inner) = self.inner() else { return Ok(()) };
        let _turn = self.turn().await;
        let mut tags: Vec<Tag> = match self.sabotage {
            // Releases the prefetch anyway, so that only the crash shows the missing
            // acknowledgment.
            Sabotage::LosesAcknowledgements => return Ok(()),
            Sabotage::AcknowledgesAllBefore => {
                let seen = self.seen.lock().unwrap();
                let before = |tag: &Tag| {
                    let numbers = seen.get(&tag.unit).map(|(_, numbers)| numbers.clone()).unwrap_or_default();
                    let (tag, most) = (tag.clone(), tag.number);
                    numbers
                        .into_iter()
                        .filter(move |it| *it <= most)
                        .map(move |number| Tag { number, ..tag.clone() })
                };
                tags.iter().flat_map(before).collect()
            }
            Sabotage::TakesStaleAcknowledgements => {
                let seen = self.seen.lock().unwrap();
                let renewed = |tag: &Tag| Tag { incarnation: seen[&tag.unit].0, ..tag.clone() };
                tags.iter().map(renewed).collect()
            }
            _ => tags.to_vec(),
        };
        tags.iter_mut().for_each(|tag| self.renumber(tag));
        inner.acknowledge(&tags).await
    }

    async fn pause(&self, units: &[Unit]) -> Result<(), TransportError> {
        match self.inner() {
            Some(inner) if self.sabotage != Sabotage::IgnoresPauses => inner.pause(units).await,
            _ => Ok(()),
        }
    }

    async fn resume(&self, units: &[Unit]) -> Result<(), TransportError> {
        let _turn = self.turn().await;
        match self.inner() {
            Some(inner) => inner.resume(units).await,
            None => Ok(()),
        }
    }

    async fn drain(&self) -> Result<(), TransportError> {
        let _turn = self.turn().await;
        self.drained.store(true, Ordering::Relaxed);
        if self.sabotage == Sabotage::LeavesWhenDrained {
            drop(self.inner.lock().unwrap().take());
        }
        match self.inner() {
            Some(inner) => inner.drain().await,
            None => Ok(()),
        }
    }

    async fn close(self: Box<Self>) -> Result<(), TransportError> {
        Ok(())
    }
}
