//! Ids of the messages that a consumer has handled.

use std::collections::{BTreeMap, HashSet};
use std::time::Duration;

use outbox_contract::admin::HandledFilter;
use outbox_contract::backend::rules::retention::HandledIdsCut;
use outbox_contract::backend::{Dedup, Stored};
use outbox_contract::{Consumer, Key, Message, MessageId, Route, Timestamp, Topic, inbox_route};

use super::Tables;
use crate::transaction::Written;

/// The ids of handled messages, and when.
#[derive(Debug)]
pub(super) struct HandledIds {
    consumers: BTreeMap<Consumer, OfConsumer>,
    /// Number of ids recorded so far.
    recorded: u64,
    kept: Duration,
    max_age: Duration,
}

/// Ids of the messages that one consumer has handled.
#[derive(Debug, Default)]
struct OfConsumer {
    /// Only looked up, never walked.
    ids: HashSet<MessageId>,
    /// In the order of commits.
    by_time: BTreeMap<(Timestamp, u64), (MessageId, Topic, Option<Key>)>,
}

impl OfConsumer {
    /// Removes those that are chosen. Returns their ids.
    fn remove(&mut self, chosen: &[(Timestamp, u64)]) -> Vec<MessageId> {
        let removed: Vec<_> =
            chosen.iter().filter_map(|at| self.by_time.remove(at)).map(|(id, ..)| id).collect();
        for id in &removed {
            self.ids.remove(id);
        }
        removed
    }

    /// The instant up to which ids can be removed now.
    fn cut(&self, mut cut: HandledIdsCut) -> Option<Timestamp> {
        let ((oldest, _), _) = self.by_time.first_key_value()?;
        if !cut.is_due(*oldest) {
            return None;
        }
        while let Some(at) = cut.look() {
            cut.found(self.by_time.range(..=(at, u64::MAX)).next_back().map(|((at, _), _)| *at));
        }
        Some(cut.cut())
    }

    fn selected<'s>(&'s self, filter: &'s HandledFilter) -> impl Iterator<Item = (Timestamp, u64)> + 's {
        let selects = |((at, _), (_, topic, key)): &(&(Timestamp, u64), &(MessageId, Topic, Option<Key>))| {
            filter.selects(topic, key.as_ref(), *at)
        };
        self.by_time.iter().filter(selects).map(|(at, _)| *at)
    }
}

impl HandledIds {
    pub(super) fn new(kept: Duration, max_age: Duration) -> Self {
        Self { consumers: BTreeMap::new(), recorded: 0, kept, max_age }
    }

    pub(super) fn add(
        &mut self,
        (consumer, id): (Consumer, MessageId),
        (topic, key): (Topic, Option<Key>),
        now: Timestamp,
    ) {
        let of = self.consumers.entry(consumer).or_default();
        if of.ids.insert(id) {
            self.recorded += 1;
            of.by_time.insert((now, self.recorded), (id, topic, key));
        }
    }

    pub(super) fn contains(&self, consumer: &Consumer, id: MessageId) -> bool {
        self.consumers.get(consumer).is_some_and(|of| of.ids.contains(&id))
    }

    pub(super) fn len(&self) -> usize {
        self.consumers.values().map(|of| of.by_time.len()).sum()
    }

    /// Removes what is over its time, the oldest of each consumer first. Says how many, and whether
    /// there is more.
    pub(super) fn expire(&mut self, limit: usize, now: Timestamp) -> (u64, bool) {
        let mut left = limit;
        for of in self.consumers.values_mut() {
            let Some(cut) = of.cut(HandledIdsCut::new(now, self.kept, self.max_age)) else { continue };
            let over: Vec<_> = of
                .by_time
                .range(..=(cut, u64::MAX))
                .map(|(at, _)| *at)
                .take(left.saturating_add(1))
                .collect();
            if over.len() > left {
                of.remove(&over[..left]);
                return (limit as u64, true);
            }
            left -= over.len();
            of.remove(&over);
        }
        self.consumers.retain(|_, of| !of.by_time.is_empty());
        ((limit - left) as u64, false)
    }
}

impl Tables {
    /// Counts what a consumer has handled.
    pub(crate) fn count_handled(&self, filter: &HandledFilter) -> u64 {
        let of = self.handled_ids.consumers.get(&filter.consumer);
        of.map_or(0, |of| of.selected(filter).count()) as u64
    }

    /// Forgets that a consumer has handled messages, the oldest first. Returns their ids.
    pub(crate) fn forget(&mut self, filter: &HandledFilter, limit: usize) -> Vec<MessageId> {
        let Some(of) = self.handled_ids.consumers.get_mut(&filter.consumer) else { return Vec::new() };
        let chosen: Vec<_> = of.selected(filter).take(limit).collect();
        of.remove(&chosen)
    }
}

impl Tables {
    pub(crate) fn is_handled(&self, consumer: &Consumer, id: MessageId) -> bool {
        self.handled_ids.contains(consumer, id)
    }

    /// Returns true if a message waits on a route, hot or parked, where it was read.
    pub(crate) fn waits(&self, route: &Route, stored: &Stored) -> bool {
        let Some(tables) = self.routes.get(route) else { return false };
        let hot = tables.hot.get(&stored.position);
        let parked =
            tables.keys.get(&stored.message.key_id()).and_then(|key| key.parked.get(&stored.position));
        let there = hot.or(parked.map(|parked| &parked.stored));
        there.is_some_and(|there| there.message.id == stored.message.id)
    }

    /// Decides whether a consumer may handle a message now, as a transaction sees it that has
    /// written this so far.
    ///
    /// A message goes behind those of its key that wait for the consumer and are not handled yet.
    /// So one that waits itself is recorded when everything before it has been, and not before.
    pub(crate) fn deduplication(
        &mut self,
        consumer: &Consumer,
        message: &Message,
        written: &Written,
    ) -> Dedup {
        let handled_ids = &self.handled_ids;
        let own = &written.handled;
        let is_handled = |id| handled_ids.contains(consumer, id) || own.contains_key(&(consumer.clone(), id));
        if is_handled(message.id) {
            return Dedup::Duplicate;
        }
        let (route, key) = (inbox_route(consumer), message.key_id());
        let mut first_waiting = None;
        let mut held = false;
        if let Some(tables) = self.routes.get_mut(&route) {
            held = tables.keys.get(&key).is_some_and(|row| row.state.held);
            first_waiting = tables.waiting_of(&key).find(|id| !is_handled(*id));
        }
        // Messages that this transaction has stored itself come behind all others.
        let stored = written.rows.iter().find(|(to, row)| *to == route && row.message.key_id() == key);
        let first_waiting = first_waiting.or(stored.map(|(_, row)| row.message.id));
        if held || first_waiting.is_some_and(|first| first != message.id) {
            Dedup::OutOfTurn
        } else {
            Dedup::New
        }
    }
}
