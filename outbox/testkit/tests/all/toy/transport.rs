//! A transport over logs in memory, as small as one can be that keeps every promise: the other
//! example of the book's page on writing a backend.
//!
//! A topic has two logs, its ordering units. Each consumer has its own progress in each of them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use outbox_contract::backend::{
    Deliveries, Delivery, Origin, Outcome, Outcomes, PublishBatch, Received, Stored, Subscription, Tag,
    Unavailable, Unit,
};
use outbox_contract::{
    Consumer, Failure, Message, Rejection, Topic, Transport, TransportError, TransportErrorKind, async_trait,
};
use tokio::sync::Notify;

const UNITS: u32 = 2;
const MAX_BYTES: usize = 1024 * 1024;

// ANCHOR: broker
/// The broker, and the transport in one. Clones share it.
#[derive(Clone, Default)]
pub(crate) struct ToyTransport(Arc<Mutex<Broker>>);

/// A message, and the source that it came from.
type Record = (Arc<Stored>, Arc<str>);

#[derive(Default)]
struct Broker {
    logs: BTreeMap<Unit, Vec<Record>>,
    progress: BTreeMap<(Consumer, Unit), Progress>,
    members: BTreeMap<u64, Member>,
    last_member: u64,
    closed: bool,
}

/// Progress of a consumer in a unit, and who owns the unit.
#[derive(Default)]
struct Progress {
    owner: Option<u64>,
    incarnation: u64,
    /// Everything before it was dispatched to the owner.
    next: usize,
    /// Acknowledged in any order, so there may be gaps.
    finished: BTreeSet<usize>,
}

struct Member {
    subscription: Subscription,
    wake: Arc<Notify>,
    revoked: Vec<Unit>,
    paused: BTreeSet<Unit>,
    /// It finishes what it has, and keeps its units until it leaves.
    draining: bool,
}
// ANCHOR_END: broker

impl ToyTransport {
    /// Creates a topic.
    pub(crate) fn create(&self, topic: &Topic) {
        let mut broker = self.broker();
        for number in 0..UNITS {
            broker.logs.entry(Unit { topic: topic.clone(), number }).or_default();
        }
        broker.share_out();
    }

    fn broker(&self) -> MutexGuard<'_, Broker> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn open(&self, operation: &'static str) -> Result<MutexGuard<'_, Broker>, TransportError> {
        let broker = self.broker();
        if broker.closed {
            return Err(TransportError::new(TransportErrorKind::Closed, operation, "it was closed"));
        }
        Ok(broker)
    }

    /// Puts one message into its log, if it can be there.
    fn put(&self, stored: &Arc<Stored>, source: &Arc<str>) -> Outcome {
        if let Err(Rejection(failure)) = self.validate(&stored.message) {
            return Outcome::Rejected(failure);
        }
        let Ok(mut broker) = self.open("publish") else {
            return Outcome::Unavailable(Unavailable::Route, Failure::new("closed", "it was closed"));
        };
        // Messages of a key are in one unit: its order is theirs.
        let number = u32::from(stored.bucket.0) % UNITS;
        let unit = Unit { topic: stored.message.topic.clone(), number };
        let Some(log) = broker.logs.get_mut(&unit) else {
            let failure = Failure::new("unknown-topic", "create the topic");
            return Outcome::Unavailable(Unavailable::Topic, failure);
        };
        log.push((Arc::clone(stored), Arc::clone(source)));
        broker.wake_all();
        Outcome::Delivered
    }
}

#[async_trait]
impl Transport for ToyTransport {
    fn name(&self) -> &'static str {
        "toy"
    }

    async fn check(&self) -> Result<(), TransportError> {
        self.open("check").map(drop)
    }

    fn validate(&self, message: &Message) -> Result<(), Rejection> {
        if message.bytes() < MAX_BYTES {
            return Ok(());
        }
        let words = format!("the message has {} bytes; at most {MAX_BYTES} are taken", message.bytes());
        Err(Rejection(Failure::new("too-large", words)))
    }

    /// The key-prefix property: what follows a message of its key that was not delivered is
    /// blocked.
    async fn publish(&self, batch: PublishBatch, outcomes: &Outcomes) {
        let mut blocked = BTreeSet::new();
        for (index, stored) in batch.messages.iter().enumerate() {
            let key = stored.message.key_id();
            let outcome =
                if blocked.contains(&key) { Outcome::Blocked } else { self.put(stored, &batch.source) };
            if outcome != Outcome::Delivered {
                blocked.insert(key);
            }
            outcomes.report(index, outcome);
            tokio::task::yield_now().await;
        }
    }

    async fn subscribe(&self, subscription: Subscription) -> Result<Box<dyn Deliveries>, TransportError> {
        let mut broker = self.open("subscribe")?;
        if subscription.topics.is_empty() || subscription.prefetch == 0 {
            let words = "a subscription needs topics, and a prefetch of at least 1";
            return Err(TransportError::new(TransportErrorKind::Invalid, "subscribe", words));
        }
        broker.last_member += 1;
        let (id, wake) = (broker.last_member, Arc::new(Notify::new()));
        let member = Member {
            subscription,
            wake: Arc::clone(&wake),
            revoked: Vec::new(),
            paused: BTreeSet::new(),
            draining: false,
        };
        broker.members.insert(id, member);
        broker.share_out();
        Ok(Box::new(ToyDeliveries { transport: self.clone(), id, wake }))
    }

    async fn close(&self) {
        let mut broker = self.broker();
        broker.closed = true;
        broker.wake_all();
    }
}

struct ToyDeliveries {
    transport: ToyTransport,
    id: u64,
    /// It keeps one signal while no task waits, so that none is lost with a dropped `next`.
    wake: Arc<Notify>,
}

#[async_trait]
impl Deliveries for ToyDeliveries {
    async fn next(&self) -> Result<Received, TransportError> {
        loop {
            let taken = self.transport.open("next")?.take(self.id);
            match taken {
                Some(received) => return Ok(received),
                None => self.wake.notified().await,
            }
        }
    }

    async fn acknowledge(&self, tags: &[Tag]) -> Result<(), TransportError> {
        let mut broker = self.transport.open("acknowledge")?;
        for tag in tags {
            broker.finish(self.id, tag);
        }
        Ok(())
    }

    async fn pause(&self, units: &[Unit]) -> Result<(), TransportError> {
        if let Some(member) = self.transport.open("pause")?.members.get_mut(&self.id) {
            member.paused.extend(units.iter().cloned());
        }
        Ok(())
    }

    async fn resume(&self, units: &[Unit]) -> Result<(), TransportError> {
        if let Some(member) = self.transport.open("resume")?.members.get_mut(&self.id) {
            member.paused.retain(|unit| !units.contains(unit));
        }
        self.wake.notify_one();
        Ok(())
    }

    async fn drain(&self) -> Result<(), TransportError> {
        if let Some(member) = self.transport.open("drain")?.members.get_mut(&self.id) {
            member.draining = true;
        }
        self.wake.notify_one();
        Ok(())
    }

    async fn close(self: Box<Self>) -> Result<(), TransportError> {
        // Dropping it leaves the consumer.
        self.transport.open("close").map(drop)
    }
}

impl Drop for ToyDeliveries {
    fn drop(&mut self) {
        let mut broker = self.transport.broker();
        broker.members.remove(&self.id);
        broker.share_out();
    }
}

impl Broker {
    fn wake_all(&self) {
        self.members.values().for_each(|member| member.wake.notify_one());
    }

    /// Gives each unit to a member of each consumer: evenly, and not while a member drains.
    fn share_out(&mut self) {
        let consumers: BTreeSet<Consumer> =
            self.members.values().map(|member| member.subscription.consumer.clone()).collect();
        let former = self.progress.keys().map(|(consumer, _)| consumer.clone());
        for consumer in consumers.iter().cloned().chain(former).collect::<BTreeSet<_>>() {
            for (rank, unit) in self.logs.keys().enumerate() {
                let takes = |member: &Member| {
                    let subscription = &member.subscription;
                    let is_member =
                        subscription.consumer == consumer && subscription.topics.contains(&unit.topic);
                    is_member && !member.draining
                };
                let takers: Vec<u64> =
                    self.members.iter().filter(|(_, member)| takes(member)).map(|(id, _)| *id).collect();
                let to = takers.get(rank % takers.len().max(1)).copied();
                let progress = self.progress.entry((consumer.clone(), unit.clone())).or_default();
                let from = progress.owner.and_then(|owner| self.members.get_mut(&owner));
                if progress.owner == to || from.as_ref().is_some_and(|from| from.draining) {
                    continue;
                }
                if let Some(from) = from {
                    from.revoked.push(unit.clone());
                }
                // The new owner starts at the first unacknowledged message.
                (progress.owner, progress.next) = (to, 0);
                progress.incarnation += 1;
            }
        }
        self.wake_all();
    }

    /// Takes what a member may have now: within its prefetch, in the order of each unit.
    fn take(&mut self, id: u64) -> Option<Received> {
        let member = self.members.get_mut(&id)?;
        if !member.revoked.is_empty() {
            return Some(Received::Revoked(std::mem::take(&mut member.revoked)));
        }
        if member.draining {
            return Some(Received::Ended);
        }
        let (most, most_bytes) = (member.subscription.prefetch, member.subscription.prefetch_bytes);
        let owned = self.progress.iter_mut().filter(|(_, progress)| progress.owner == Some(id));
        let mut owned: Vec<_> =
            owned.map(|((_, unit), progress)| (unit, &self.logs[unit], progress)).collect();
        let (mut held, mut bytes) = (0, 0);
        for (_, log, progress) in &owned {
            let in_hand = (0..progress.next).filter(|number| !progress.finished.contains(number));
            for number in in_hand {
                held += 1;
                bytes += log[number].0.message.bytes();
            }
        }
        let mut deliveries = Vec::new();
        for (unit, log, progress) in &mut owned {
            while let Some((stored, source)) =
                log.get(progress.next).filter(|_| !member.paused.contains(unit))
            {
                let number = progress.next;
                if !progress.finished.contains(&number) {
                    let size = stored.message.bytes();
                    if held >= most || held > 0 && bytes + size > most_bytes {
                        break;
                    }
                    (held, bytes) = (held + 1, bytes + size);
                    let tag = Tag {
                        unit: (*unit).clone(),
                        incarnation: progress.incarnation,
                        number: number as u64,
                    };
                    let origin = Origin { source: Arc::clone(source), sequence: stored.position.0 };
                    deliveries.push(Delivery::new(tag, Ok(stored.message.clone()), Some(origin)));
                }
                progress.next += 1;
            }
        }
        (!deliveries.is_empty()).then_some(Received::Deliveries(deliveries))
    }

    /// Finishes a delivery, unless the unit was given to another meanwhile.
    fn finish(&mut self, id: u64, tag: &Tag) {
        let Some(member) = self.members.get(&id) else { return };
        let place = (member.subscription.consumer.clone(), tag.unit.clone());
        if let Some(progress) = self.progress.get_mut(&place)
            && (progress.owner, progress.incarnation) == (Some(id), tag.incarnation)
        {
            progress.finished.insert(usize::try_from(tag.number).unwrap_or(usize::MAX));
            member.wake.notify_one();
        }
    }
}
