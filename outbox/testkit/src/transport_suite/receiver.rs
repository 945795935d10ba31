//! The receiving side of the suite: members that record their deliveries in one log, and the checks
//! of it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use outbox_contract::backend::{Deliveries, Delivery, Received, Stored, Subscription, Tag, Transport, Unit};
use outbox_contract::{KeyId, Message, MessageId, Topic};
use tokio::time::{sleep, timeout};

use super::PATIENCE;

/// One member of a consumer.
pub(super) struct Receiver {
    deliveries: Box<dyn Deliveries>,
    member: usize,
    log: Log,
    told: Mutex<Told>,
}

/// Units of a member, as it was told of them.
#[derive(Default)]
struct Told {
    /// The last delivery of each unit.
    last: BTreeMap<Unit, Tag>,
    /// Units that were revoked since their last delivery.
    revoked: BTreeSet<Unit>,
}

impl Receiver {
    /// Joins a consumer.
    pub(super) async fn join(transport: &dyn Transport, subscription: Subscription, log: &Log) -> Self {
        let deliveries = transport.subscribe(subscription).await.expect("a valid subscription is taken");
        Self { deliveries, member: log.new_member(), log: log.clone(), told: Mutex::default() }
    }

    pub(super) fn inner(&self) -> &dyn Deliveries {
        self.deliveries.as_ref()
    }

    /// Receives the next event and records it.
    pub(super) async fn next(&self) -> Received {
        let next = self.try_next().await;
        next.unwrap_or_else(|| {
            panic!("nothing came within {PATIENCE:?}; so far {} deliveries came", self.log.len())
        })
    }

    async fn try_next(&self) -> Option<Received> {
        let next = async {
            loop {
                match self.deliveries.next().await {
                    Ok(received) => return received,
                    Err(error) if error.is_retryable() => sleep(Duration::from_millis(50)).await,
                    Err(error) => panic!("receiving failed: {error}"),
                }
            }
        };
        let received = timeout(PATIENCE, next).await.ok()?;
        self.write_down(&received);
        Some(received)
    }

    pub(super) fn write_down(&self, received: &Received) {
        let mut told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        match received {
            Received::Deliveries(deliveries) => {
                assert!(!deliveries.is_empty(), "deliveries are never an empty list");
                deliveries.iter().for_each(|delivery| told.hear(&delivery.tag));
                self.log.extend(self.member, deliveries);
            }
            Received::Revoked(units) => told.revoked.extend(units.iter().cloned()),
            _ => {}
        }
    }

    /// Receives the next deliveries, skipping revocations before them.
    pub(super) async fn deliveries(&self) -> Vec<Delivery> {
        loop {
            if let Some(deliveries) = deliveries_of(self.next().await) {
                return deliveries;
            }
        }
    }

    /// Receives this many deliveries or a few more, and acknowledges none.
    pub(super) async fn receive(&self, count: usize) -> Vec<Delivery> {
        let mut received = Vec::new();
        while received.len() < count {
            received.extend(self.deliveries().await);
        }
        received
    }

    /// Receives and acknowledges until each of these messages was logged, by any member.
    pub(super) async fn finish(&self, messages: &[Arc<Stored>]) {
        while !self.log.has_all(messages) {
            let Some(received) = self.try_next().await else {
                panic!("nothing came within {PATIENCE:?}, and {}", self.log.missing(messages));
            };
            if let Some(deliveries) = deliveries_of(received) {
                self.acknowledge(&deliveries).await;
            }
        }
    }

    pub(super) async fn acknowledge(&self, deliveries: &[Delivery]) {
        let tags: Vec<Tag> = deliveries.iter().map(|delivery| delivery.tag.clone()).collect();
        self.acknowledge_tags(&tags).await;
    }

    pub(super) async fn acknowledge_tags(&self, tags: &[Tag]) {
        let done = timeout(PATIENCE, self.deliveries.acknowledge(tags)).await;
        done.expect("an acknowledgement returns").expect("an acknowledgement is taken");
    }

    /// Asserts that no delivery arrives for this long.
    pub(super) async fn assert_quiet(&self, quiet: Duration, why: &str) {
        if let Ok(came) = timeout(quiet, self.deliveries()).await {
            panic!("{why}, but {:?} came", came.iter().map(|delivery| &delivery.tag).collect::<Vec<_>>());
        }
    }

    pub(super) async fn drain(&self) {
        self.deliveries.drain().await.expect("a subscription can be drained");
    }

    pub(super) async fn close(self) {
        self.deliveries.close().await.expect("a subscription can be closed");
    }
}

/// The deliveries among what is received; `None`: it is a revocation.
fn deliveries_of(received: Received) -> Option<Vec<Delivery>> {
    match received {
        Received::Deliveries(deliveries) => Some(deliveries),
        Received::Revoked(_) => None,
        other => panic!("deliveries were expected, {other:?} came"),
    }
}

impl Told {
    fn hear(&mut self, tag: &Tag) {
        let is_revoked = self.revoked.remove(&tag.unit);
        let Some(last) = self.last.insert(tag.unit.clone(), tag.clone()) else { return };
        if last.incarnation == tag.incarnation && !is_revoked {
            assert!(
                last.number < tag.number,
                "the numbers of deliveries grow along a unit, but {tag:?} came behind {last:?}"
            );
        } else {
            assert!(
                last.incarnation < tag.incarnation && is_revoked,
                "a revocation comes before a later ownership, which has a larger incarnation, but {tag:?} came behind {last:?}"
            );
        }
    }
}

/// Deliveries to all members of a test, in the order of reception.
#[derive(Clone, Default)]
pub(super) struct Log {
    seen: Arc<Mutex<Seen>>,
}

#[derive(Default)]
struct Seen {
    members: usize,
    entries: Vec<(usize, Delivery)>,
}

impl Log {
    fn lock(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn new_member(&self) -> usize {
        let mut seen = self.lock();
        seen.members += 1;
        seen.members
    }

    fn extend(&self, member: usize, deliveries: &[Delivery]) {
        self.lock().entries.extend(deliveries.iter().map(|delivery| (member, delivery.clone())));
    }

    pub(super) fn len(&self) -> usize {
        self.lock().entries.len()
    }

    /// Returns the number of members that received something.
    pub(super) fn members(&self) -> usize {
        let members: BTreeSet<usize> = self.lock().entries.iter().map(|(member, _)| *member).collect();
        members.len()
    }

    /// Returns the ids of the received messages, in order, repeats included.
    pub(super) fn ids(&self) -> Vec<MessageId> {
        self.lock().entries.iter().map(|(_, delivery)| received(delivery).id).collect()
    }

    fn has_all(&self, messages: &[Arc<Stored>]) -> bool {
        let ids: BTreeSet<MessageId> = self.ids().into_iter().collect();
        messages.iter().all(|stored| ids.contains(&stored.message.id))
    }

    /// Says which messages did not arrive.
    fn missing(&self, messages: &[Arc<Stored>]) -> String {
        let came: BTreeSet<MessageId> = self.ids().into_iter().collect();
        let missing: Vec<_> = messages.iter().filter(|stored| !came.contains(&stored.message.id)).collect();
        let first = missing.first().map(|stored| (stored.position.0, stored.message.key_id()));
        format!(
            "{} of {} messages did not arrive; the first (sequence and key): {first:?}",
            missing.len(),
            messages.len()
        )
    }

    /// Asserts that every message arrived and no other, and that the first deliveries of each key
    /// are in the order of the store.
    pub(super) fn assert_complete_and_in_order(&self, messages: &[Arc<Stored>]) {
        let mut first: BTreeMap<KeyId, Vec<MessageId>> = BTreeMap::new();
        for (_, delivery) in &self.lock().entries {
            let message = received(delivery);
            let ids = first.entry(message.key_id()).or_default();
            if !ids.contains(&message.id) {
                ids.push(message.id);
            }
        }
        let mut sent: BTreeMap<KeyId, Vec<MessageId>> = BTreeMap::new();
        for stored in messages {
            sent.entry(stored.message.key_id()).or_default().push(stored.message.id);
        }
        for (key, ids) in &sent {
            let places = |of: &[MessageId]| -> Vec<Option<usize>> {
                of.iter().map(|id| ids.iter().position(|sent| sent == id)).collect()
            };
            let came = first.get(key).map(Vec::as_slice).unwrap_or_default();
            assert_eq!(
                places(came),
                places(ids),
                "first deliveries of key {key}, as places in the order in which they were sent"
            );
        }
        assert_eq!(first.len(), sent.len(), "nothing came but what was sent");
    }

    /// Asserts that from the `since`-th delivery on each unit had one member, and no incarnation
    /// decreased.
    pub(super) fn assert_one_owner_for_each_unit(&self, since: usize) {
        let mut owners: BTreeMap<Unit, (usize, u64)> = BTreeMap::new();
        for (member, delivery) in &self.lock().entries[since..] {
            let Tag { unit, incarnation, .. } = &delivery.tag;
            let (owner, latest) = owners.entry(unit.clone()).or_insert((*member, *incarnation));
            assert_eq!(owner, member, "unit {unit} has one owner while no member joins or leaves");
            assert!(*latest <= *incarnation, "the incarnation of unit {unit} went back");
            *latest = *incarnation;
        }
    }
}

/// Returns the message of a delivery.
pub(super) fn received(delivery: &Delivery) -> &Message {
    match &delivery.message {
        Ok(message) => message,
        Err(undecodable) => panic!("what was published as a message came as none: {undecodable}"),
    }
}

pub(super) fn ids(deliveries: &[Delivery]) -> Vec<MessageId> {
    deliveries.iter().map(|delivery| received(delivery).id).collect()
}

pub(super) fn stored_ids(messages: &[Arc<Stored>]) -> Vec<MessageId> {
    messages.iter().map(|stored| stored.message.id).collect()
}

/// Returns a subscription of a consumer of the suite.
pub(super) fn subscription(consumer: &str, topic: &Topic) -> Subscription {
    Subscription::new(consumer, [topic.clone()]).expect("a consumer of the suite is valid")
}
