//! The broker and the store of the model: plain tables.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::OnceLock;

use outbox_contract::backend::{Delivery, Received, Tag, Unit};
use outbox_contract::{Message, MessageId, Topic};

pub(super) const KEYS: usize = 6;
pub(super) const TOPICS: usize = 2;

pub(super) fn topic(number: usize) -> &'static Topic {
    static TOPICS: OnceLock<Vec<Topic>> = OnceLock::new();
    &TOPICS.get_or_init(|| (0..self::TOPICS).map(|n| Topic::new(format!("topic-{n}")).unwrap()).collect())
        [number]
}

/// A message of the model: its number grows along its key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Sent {
    pub(super) key: usize,
    pub(super) id: u128,
}

impl Sent {
    pub(super) fn unit(self) -> Unit {
        let number = u32::try_from(self.key / TOPICS % 2).unwrap();
        Unit { topic: topic(self.key % TOPICS).clone(), number }
    }

    fn message(self) -> Message {
        let id = MessageId::from_uuid(uuid::Uuid::from_u128(self.id));
        let key = format!("key-{}", self.key);
        Message::new(topic(self.key % TOPICS).clone(), "sent").unwrap().with_key(key).unwrap().with_id(id)
    }
}

/// A queue with one owner at a time.
#[derive(Default)]
struct Queue {
    entries: Vec<Sent>,
    acknowledged: BTreeSet<u64>,
    owner: Option<u64>,
    revoked_from: Option<u64>,
    incarnation: u64,
    delivered: usize,
}

#[derive(Default)]
pub(super) struct Broker {
    units: BTreeMap<Unit, Queue>,
    pub(super) is_away: bool,
}

impl Broker {
    pub(super) fn send(&mut self, sent: Sent) {
        self.units.entry(sent.unit()).or_default().entries.push(sent);
    }

    pub(super) fn sent(&self, tag: &Tag) -> Sent {
        self.units[&tag.unit].entries[usize::try_from(tag.number).unwrap()]
    }

    /// Returns what a member receives now.
    pub(super) fn next(&mut self, member: u64, most: usize) -> Option<Received> {
        if self.is_away {
            return None;
        }
        let mut revoked = Vec::new();
        for (unit, queue) in &mut self.units {
            if queue.revoked_from.take_if(|from| *from == member).is_some() {
                revoked.push(unit.clone());
            }
        }
        if !revoked.is_empty() {
            return Some(Received::Revoked(revoked));
        }
        let mut deliveries = Vec::new();
        for (unit, queue) in &mut self.units {
            if queue.owner.is_none() && queue.revoked_from.is_none() {
                (queue.owner, queue.delivered) = (Some(member), 0);
                queue.incarnation += 1;
            }
            while queue.owner == Some(member)
                && queue.delivered < queue.entries.len()
                && deliveries.len() < most
            {
                let number = queue.delivered as u64;
                queue.delivered += 1;
                if !queue.acknowledged.contains(&number) {
                    let tag = Tag { unit: unit.clone(), incarnation: queue.incarnation, number };
                    let message = queue.entries[queue.delivered - 1].message();
                    deliveries.push(Delivery::new(tag, Ok(message), None));
                }
            }
        }
        (!deliveries.is_empty()).then_some(Received::Deliveries(deliveries))
    }

    pub(super) fn acknowledge(&mut self, member: u64, tags: &[Tag]) {
        for tag in tags {
            let Some(queue) = self.units.get_mut(&tag.unit) else { continue };
            if queue.owner == Some(member) && queue.incarnation == tag.incarnation {
                queue.acknowledged.insert(tag.number);
            }
        }
    }

    pub(super) fn rebalance(&mut self, random: &mut fastrand::Rng) {
        for queue in self.units.values_mut().filter(|queue| queue.owner.is_some()) {
            if random.bool() {
                queue.revoked_from = queue.owner.take();
            }
        }
    }

    /// A member is gone: others own its units.
    pub(super) fn leave(&mut self, member: u64) {
        for queue in self.units.values_mut() {
            queue.owner.take_if(|owner| *owner == member);
            queue.revoked_from.take_if(|from| *from == member);
        }
    }

    pub(super) fn unacknowledged(&self) -> usize {
        self.units.values().map(|queue| queue.entries.len() - queue.acknowledged.len()).sum()
    }
}

/// Behavior of a message's handler.
#[derive(Clone, Copy, Debug)]
pub(super) enum Nature {
    /// It fails so often, from now on.
    Fails(u32),
    Conflicts(u32),
    Interrupted(u32),
    Rejected,
    /// Each time, for this program is too old for it.
    TooNew,
}

#[derive(Default)]
pub(super) struct Store {
    pub(super) natures: BTreeMap<u128, Nature>,
    /// Messages whose effect is committed, and dead letters.
    finished: BTreeSet<Sent>,
    /// Messages that wait, in order.
    waiting: BTreeMap<usize, VecDeque<Sent>>,
    pub(super) sent: BTreeMap<usize, Vec<Sent>>,
}

impl Store {
    pub(super) fn is_finished(&self, sent: Sent) -> bool {
        self.finished.contains(&sent)
    }

    pub(super) fn is_kept(&self, sent: Sent) -> bool {
        self.finished.contains(&sent) || self.waiting.get(&sent.key).is_some_and(|of| of.contains(&sent))
    }

    /// Returns true if others of its key wait, so that it goes behind them.
    pub(super) fn is_behind(&self, sent: Sent) -> bool {
        self.waiting.get(&sent.key).is_some_and(|of| !of.is_empty())
    }

    /// Commits the effect of a message.
    pub(super) fn finish(&mut self, sent: Sent) -> super::Judged {
        if let Some(missed) = self.earlier(sent).find(|earlier| !self.finished.contains(earlier)) {
            return Err(format!("out of order: {sent:?} is handled before {missed:?}"));
        }
        self.finished.insert(sent);
        Ok(())
    }

    pub(super) fn keep(&mut self, sent: Sent) -> super::Judged {
        if let Some(missed) = self.earlier(sent).find(|earlier| !self.is_kept(*earlier)) {
            return Err(format!("out of order: {sent:?} is stored before {missed:?}"));
        }
        self.waiting.entry(sent.key).or_default().push_back(sent);
        Ok(())
    }

    fn earlier(&self, sent: Sent) -> impl Iterator<Item = Sent> {
        self.sent[&sent.key].iter().copied().take_while(move |earlier| earlier.id < sent.id)
    }

    /// Handles the first stored message of a key, as the relay does that drains them.
    pub(super) fn drain(&mut self, key: usize) {
        let first = self.waiting.get_mut(&key).and_then(VecDeque::pop_front);
        self.finished.extend(first);
    }

    pub(super) fn is_drained(&self) -> bool {
        self.waiting.values().all(VecDeque::is_empty)
    }

    pub(super) fn unfinished(&self) -> Option<Sent> {
        self.sent.values().flatten().copied().find(|sent| !self.finished.contains(sent))
    }
}
