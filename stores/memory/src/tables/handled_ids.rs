//! Ids of the messages that a consumer has handled.

use std::collections::{BTreeSet, HashMap, HashSet, VecDeque};
use std::time::Duration;

use outbox_contract::backend::{Dedup, Stored};
use outbox_contract::{Consumer, Message, MessageId, Route, Timestamp, inbox_route};

use super::Tables;
use crate::transaction::Written;

/// The ids of handled messages, and when.
#[derive(Debug)]
pub(super) struct HandledIds {
    /// Only looked up, never walked.
    ids: HashMap<Consumer, HashSet<MessageId>>,
    /// In the order of commits.
    by_time: VecDeque<(Timestamp, Consumer, MessageId)>,
    kept: Duration,
}

impl HandledIds {
    pub(super) fn new(kept: Duration) -> Self {
        Self { ids: HashMap::new(), by_time: VecDeque::new(), kept }
    }

    pub(super) fn add(&mut self, consumer: Consumer, id: MessageId, now: Timestamp) {
        if self.ids.entry(consumer.clone()).or_default().insert(id) {
            self.by_time.push_back((now, consumer, id));
        }
    }

    pub(super) fn contains(&self, consumer: &Consumer, id: MessageId) -> bool {
        self.ids.get(consumer).is_some_and(|ids| ids.contains(&id))
    }

    pub(super) fn len(&self) -> usize {
        self.by_time.len()
    }

    /// Removes what is over its time, the oldest first. Says how many, and whether there is more.
    pub(super) fn expire(&mut self, limit: usize, now: Timestamp) -> (u64, bool) {
        let mut removed = 0;
        while self.by_time.front().is_some_and(|(at, ..)| at.plus(self.kept) <= now) {
            if removed == limit {
                return (removed as u64, true);
            }
            if let Some((_, consumer, id)) = self.by_time.pop_front()
                && let Some(ids) = self.ids.get_mut(&consumer)
            {
                ids.remove(&id);
                removed += 1;
            }
        }
        (removed as u64, false)
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

    /// Decides whether a consumer may handle a message now, as a transaction sees it that has written this so far.
    ///
    /// A message goes behind those of its key that wait for the consumer and are not handled yet. So one that waits itself is
    /// recorded when everything before it has been, and not before.
    pub(crate) fn deduplication(
        &mut self,
        consumer: &Consumer,
        message: &Message,
        written: &Written,
    ) -> Dedup {
        let handled_ids = &self.handled_ids;
        let own: &BTreeSet<(Consumer, MessageId)> = &written.handled;
        let is_handled = |id| handled_ids.contains(consumer, id) || own.contains(&(consumer.clone(), id));
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
        // What this transaction has stored itself comes behind all that.
        let stored = written.rows.iter().find(|(to, row)| *to == route && row.message.key_id() == key);
        let first_waiting = first_waiting.or(stored.map(|(_, row)| row.message.id));
        if held || first_waiting.is_some_and(|first| first != message.id) {
            Dedup::OutOfTurn
        } else {
            Dedup::New
        }
    }
}
