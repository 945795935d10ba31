//! A broker scripted by a test: it delivers the test's messages, and redelivers them until they are
//! acknowledged.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use outbox_contract::backend::{
    Deliveries, Delivery, Lag, Loss, Origin, Outcome, Outcomes, Problem, PublishBatch, Received,
    Subscription, Tag, Undecodable, Unit,
};
use outbox_contract::{
    Failure, Message, MessageId, Rejection, Topic, Transport, TransportError, TransportErrorKind, async_trait,
};
use tokio::sync::Notify;

type Content = Result<Message, Undecodable>;
type Watch = Box<dyn Fn(&Message) + Send>;

/// A broker for consumers only: the test decides which messages it delivers, how often, and when it
/// becomes unavailable. Clones share it.
///
/// Units are queues with one owner, as in RabbitMQ and Kafka: a new owner starts at the first
/// unacknowledged delivery, in order. Subscriptions one after another model a restarted consumer;
/// several at once are its members. Every subscription belongs to the same consumer, whatever its
/// name. It accepts no publishes: each message is *rejected*.
#[derive(Clone, Default)]
pub struct Feed(Arc<Shared>);

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    changed: Notify,
}

#[derive(Default)]
struct State {
    units: BTreeMap<Unit, Queue>,
    members: u64,
    away: bool,
    /// Topics that deliver nothing, with their problem.
    problems: BTreeMap<Topic, Problem>,
    /// Lags and losses that members report.
    lags: Vec<Lag>,
    losses: Vec<Loss>,
    /// Result of a check, if something is wrong.
    wrong: Option<String>,
    subscriptions: Vec<Subscription>,
    acknowledgement_delay: Duration,
    leave_delay: Duration,
    /// Number of acknowledgements by members.
    acknowledgements: u64,
    /// Called with each acknowledged message, for a test that inspects its state at that moment.
    watch: Option<Watch>,
}

#[derive(Default)]
struct Queue {
    entries: Vec<Entry>,
    owner: Option<u64>,
    incarnation: u64,
    delivered: usize,
    /// Number of deliveries that the owner holds unacknowledged. Counted, because members ask for
    /// it at each step.
    in_hand: usize,
    /// The owner has to hear that it no longer owns the unit.
    revoked_from: Option<u64>,
}

struct Entry {
    content: Content,
    origin: Option<Origin>,
    acknowledged: bool,
}

impl fmt::Debug for Feed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Feed").field("unacknowledged", &self.unacknowledged()).finish_non_exhaustive()
    }
}

impl Feed {
    /// Creates a broker with nothing to deliver.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // The test's watch function may panic while the lock is held.
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Appends a message to a unit of its topic.
    pub fn send_to(&self, number: u32, message: Message) {
        let unit = Unit { topic: message.topic.clone(), number };
        self.put(unit, Ok(message), None);
    }

    /// Appends a message of a source that numbers its events to its topic's only unit.
    pub fn send_from(&self, source: &str, sequence: i64, message: Message) {
        let unit = Unit { topic: message.topic.clone(), number: 0 };
        self.put(unit, Ok(message), Some(Origin { source: source.into(), sequence }));
    }

    /// Appends a message to its topic's only unit.
    pub fn send(&self, message: Message) {
        self.send_to(0, message);
    }

    /// Appends an undecodable record to a topic's only unit.
    pub fn send_junk(&self, topic: Topic, junk: Undecodable) {
        self.put(Unit { topic, number: 0 }, Err(junk), None);
    }

    fn put(&self, unit: Unit, content: Content, origin: Option<Origin>) {
        let entry = Entry { content, origin, acknowledged: false };
        self.state().units.entry(unit).or_default().entries.push(entry);
        self.0.changed.notify_waiters();
    }

    /// Revokes all units from their owners; the next member to ask gets them, the same one or
    /// another.
    pub fn rebalance(&self) {
        for queue in self.state().units.values_mut() {
            queue.revoked_from = queue.owner.take();
        }
        self.0.changed.notify_waiters();
    }

    /// Makes the broker unavailable, or available again.
    pub fn away(&self, away: bool) {
        self.state().away = away;
        self.0.changed.notify_waiters();
    }

    /// Makes a topic fail with this error, or deliver again.
    pub fn fail_topic(&self, topic: &Topic, error: Option<&str>) {
        let mut state = self.state();
        match error {
            Some(error) => {
                drop(state.problems.insert(topic.clone(), Problem::new(topic.clone(), None, error)));
            }
            None => drop(state.problems.remove(topic)),
        }
        drop(state);
        self.0.changed.notify_waiters();
    }

    /// Makes members report these lags.
    pub fn lag(&self, lags: Vec<Lag>) {
        self.state().lags = lags;
    }

    /// Makes a member report this loss, once.
    pub fn lose(&self, loss: Loss) {
        self.state().losses.push(loss);
    }

    /// Makes checks of the transport find this wrong, or nothing.
    pub fn misconfigure(&self, wrong: Option<&str>) {
        self.state().wrong = wrong.map(str::to_owned);
    }

    /// Returns all subscriptions that were ever made, in their order.
    #[must_use]
    pub fn subscriptions(&self) -> Vec<Subscription> {
        self.state().subscriptions.clone()
    }

    /// Calls `watch` with each message when it is acknowledged. The broker waits for the call, so
    /// the function must not call the broker.
    pub fn watch(&self, watch: impl Fn(&Message) + Send + 'static) {
        self.state().watch = Some(Box::new(watch));
    }

    /// Lets members gather acknowledgements for this long, as RabbitMQ does. Applies to later
    /// subscriptions.
    pub fn delay_acknowledgements(&self, delay: Duration) {
        self.state().acknowledgement_delay = delay;
    }

    /// Lets members take this long to leave, as Kafka's do in the middle of a rebalance.
    pub fn delay_leaving(&self, delay: Duration) {
        self.state().leave_delay = delay;
    }

    /// Returns the number of acknowledgements received, each for one delivery or several.
    #[must_use]
    pub fn acknowledgements(&self) -> u64 {
        self.state().acknowledgements
    }

    /// Returns the number of unacknowledged deliveries.
    #[must_use]
    pub fn unacknowledged(&self) -> usize {
        let state = self.state();
        state.units.values().flat_map(|queue| &queue.entries).filter(|entry| !entry.acknowledged).count()
    }

    /// Returns the acknowledged messages in the order in which they were sent, repeats included.
    #[must_use]
    pub fn acknowledged(&self) -> Vec<MessageId> {
        let state = self.state();
        let entries = state.units.values().flat_map(|queue| &queue.entries);
        let acknowledged = entries.filter(|entry| entry.acknowledged);
        acknowledged.filter_map(|entry| Some(entry.content.as_ref().ok()?.id)).collect()
    }

    /// Returns the number of deliveries that their owners hold unacknowledged.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        let state = self.state();
        state.units.values().filter(|queue| queue.owner.is_some()).map(|queue| queue.in_hand).sum()
    }
}

#[async_trait]
impl Transport for Feed {
    fn name(&self) -> &'static str {
        "feed"
    }

    async fn check(&self) -> Result<(), TransportError> {
        let wrong = self.state().wrong.clone();
        wrong.map_or(Ok(()), |words| Err(TransportError::new(TransportErrorKind::Invalid, "check", words)))
    }

    fn validate(&self, _message: &Message) -> Result<(), Rejection> {
        Ok(())
    }

    async fn publish(&self, _batch: PublishBatch, outcomes: &Outcomes) {
        let words = "a feed takes nothing from relays; send to it in the test";
        outcomes.report_rest(&Outcome::Rejected(Failure::new("feed", words)));
    }

    async fn subscribe(&self, subscription: Subscription) -> Result<Box<dyn Deliveries>, TransportError> {
        let mut state = self.state();
        check(&state, "subscribe")?;
        state.members += 1;
        state.subscriptions.push(subscription.clone());
        Ok(Box::new(Member {
            feed: self.clone(),
            me: state.members,
            topics: subscription.topics.into_iter().collect(),
            prefetch: subscription.prefetch,
            acknowledgement_delay: state.acknowledgement_delay,
            drained: AtomicBool::new(false),
        }))
    }

    async fn close(&self) {}
}

fn check(state: &State, operation: &'static str) -> Result<(), TransportError> {
    if state.away {
        let words = "the test has taken the broker away";
        return Err(TransportError::new(TransportErrorKind::Unavailable, operation, words));
    }
    Ok(())
}

struct Member {
    feed: Feed,
    me: u64,
    topics: BTreeSet<Topic>,
    prefetch: usize,
    acknowledgement_delay: Duration,
    drained: AtomicBool,
}

impl Member {
    fn take(&self) -> Result<Option<Received>, TransportError> {
        if self.drained.load(Ordering::SeqCst) {
            return Ok(Some(Received::Ended));
        }
        let mut state = self.feed.state();
        check(&state, "next")?;
        let mine = |(unit, _): &(&Unit, &mut Queue)| self.topics.contains(&unit.topic);
        let mut revoked = Vec::new();
        for (unit, queue) in state.units.iter_mut().filter(mine) {
            if queue.revoked_from == Some(self.me) {
                queue.revoked_from = None;
                revoked.push(unit.clone());
            }
        }
        if !revoked.is_empty() {
            return Ok(Some(Received::Revoked(revoked)));
        }
        let mut room = self.prefetch.saturating_sub(self.unacknowledged(&state));
        let mut deliveries = Vec::new();
        let State { units, problems, .. } = &mut *state;
        let gives = |(unit, _): &(&Unit, &mut Queue)| !problems.contains_key(&unit.topic);
        for (unit, queue) in units.iter_mut().filter(mine).filter(gives) {
            if queue.owner.is_none() && queue.revoked_from.is_none() {
                queue.owner = Some(self.me);
                queue.incarnation += 1;
                (queue.delivered, queue.in_hand) = (0, 0);
            }
            while queue.owner == Some(self.me) && room > 0 && queue.delivered < queue.entries.len() {
                let number = queue.delivered;
                queue.delivered += 1;
                if queue.entries[number].acknowledged {
                    continue;
                }
                let tag = Tag { unit: unit.clone(), incarnation: queue.incarnation, number: number as u64 };
                deliveries.push({
                    let Entry { content, origin, .. } = &queue.entries[number];
                    Delivery::new(tag, content.clone(), origin.clone())
                });
                queue.in_hand += 1;
                room -= 1;
            }
        }
        Ok((!deliveries.is_empty()).then_some(Received::Deliveries(deliveries)))
    }

    fn unacknowledged(&self, state: &State) -> usize {
        let mine = state.units.values().filter(|queue| queue.owner == Some(self.me));
        mine.map(|queue| queue.in_hand).sum()
    }
}

#[async_trait]
impl Deliveries for Member {
    async fn next(&self) -> Result<Received, TransportError> {
        loop {
            let changed = self.feed.0.changed.notified();
            if let Some(received) = self.take()? {
                return Ok(received);
            }
            changed.await;
        }
    }

    async fn acknowledge(&self, tags: &[Tag]) -> Result<(), TransportError> {
        let mut state = self.feed.state();
        check(&state, "acknowledge")?;
        state.acknowledgements += 1;
        let State { units, watch, .. } = &mut *state;
        for tag in tags {
            let Some(queue) = units.get_mut(&tag.unit) else { continue };
            if queue.owner != Some(self.me) || queue.incarnation != tag.incarnation {
                continue;
            }
            let number = usize::try_from(tag.number).ok();
            let Some(entry) = number.and_then(|number| queue.entries.get_mut(number)) else { continue };
            if let (Some(watch), Ok(message)) = (&watch, &entry.content) {
                watch(message);
            }
            if !std::mem::replace(&mut entry.acknowledged, true) {
                queue.in_hand = queue.in_hand.saturating_sub(1);
            }
        }
        drop(state);
        self.feed.0.changed.notify_waiters();
        Ok(())
    }

    fn acknowledgement_delay(&self) -> Duration {
        self.acknowledgement_delay
    }

    fn problems(&self) -> Vec<Problem> {
        let state = self.feed.state();
        state.problems.values().filter(|problem| self.topics.contains(&problem.topic)).cloned().collect()
    }

    fn lags(&self) -> Vec<Lag> {
        self.feed.state().lags.clone()
    }

    fn losses(&self) -> Vec<Loss> {
        std::mem::take(&mut self.feed.state().losses)
    }

    async fn pause(&self, _units: &[Unit]) -> Result<(), TransportError> {
        Ok(())
    }

    async fn resume(&self, _units: &[Unit]) -> Result<(), TransportError> {
        Ok(())
    }

    async fn drain(&self) -> Result<(), TransportError> {
        self.drained.store(true, Ordering::SeqCst);
        self.feed.0.changed.notify_waiters();
        Ok(())
    }

    async fn close(self: Box<Self>) -> Result<(), TransportError> {
        let delay = self.feed.state().leave_delay;
        tokio::time::sleep(delay).await;
        Ok(())
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        for queue in self.feed.state().units.values_mut() {
            if queue.owner == Some(self.me) {
                queue.owner = None;
            }
            if queue.revoked_from == Some(self.me) {
                queue.revoked_from = None;
            }
        }
        self.feed.0.changed.notify_waiters();
    }
}
