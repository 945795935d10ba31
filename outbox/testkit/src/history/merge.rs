//! The comparison itself: appends merged by message, and one pass over the deliveries of each consumer.

use std::collections::HashMap;
use std::hash::Hash;

use outbox_contract::MessageId;

use super::report::{Example, Report};
use super::{Appended, Consumer, Delivered, Fate, Moment, OrderKey};

/// What is known of each message, in the order of ids.
pub(super) struct Merged {
    messages: Vec<Known>,
}

/// All appends of one id taken together.
#[derive(Clone, Copy, Debug)]
struct Known {
    id: MessageId,
    key: u32,
    /// The earliest begin of an append that may have been committed: what it can come after.
    began: Moment,
    /// The earliest moment at which a commit of it had returned: what it must come before. None: no commit is certain.
    committed: Option<Moment>,
    /// Its transaction and its place in it, when that has others and only one append of it may have been committed.
    within: Option<(u32, u32)>,
    /// Whether any append of it may have been committed.
    possible: bool,
    /// Whether it keeps its place: has a key, was neither scheduled nor a dead letter.
    ordered: bool,
    dead: bool,
}

impl Merged {
    /// From appends that are sorted by id.
    pub(super) fn of(
        appended: &[Appended],
        transactions: &[Fate],
        dead: &[MessageId],
        keys: &[OrderKey],
    ) -> Self {
        // Most transactions have one message, and then nothing needs to be remembered about them.
        let mut sizes = vec![0_u32; transactions.len()];
        for append in appended {
            sizes[append.transaction as usize] += 1;
        }
        let mut messages: Vec<Known> = Vec::new();
        for append in appended {
            if messages.last().is_none_or(|last| last.id != append.id) {
                messages.push(Known::unseen(append, keys));
            }
            let Some(known) = messages.last_mut() else { continue };
            let committed = match transactions[append.transaction as usize] {
                Fate::RolledBack => continue,
                Fate::Unknown => None,
                Fate::Committed(at) => Some(at),
            };
            let alone = known.possible || sizes[append.transaction as usize] == 1;
            // A second append that may exist: of which of them a delivery is can't be told.
            known.within = (!alone).then_some((append.transaction, append.order));
            known.possible = true;
            known.ordered &= !append.scheduled;
            known.began = known.began.min(append.began);
            known.committed = match (known.committed, committed) {
                (Some(one), Some(other)) => Some(one.min(other)),
                (one, other) => one.or(other),
            };
        }
        let mut merged = Self { messages };
        for id in dead {
            if let Some(at) = merged.find(*id) {
                merged.messages[at].dead = true;
                // It left its key before its follower was sent, and joins again at the end if an operator says so.
                merged.messages[at].ordered = false;
            }
        }
        merged
    }

    fn find(&self, id: MessageId) -> Option<usize> {
        self.messages.binary_search_by_key(&id, |known| known.id).ok()
    }
}

impl Known {
    fn unseen(append: &Appended, keys: &[OrderKey]) -> Self {
        Self {
            id: append.id,
            key: append.key,
            began: Moment(u64::MAX),
            committed: None,
            within: None,
            possible: false,
            ordered: keys[append.key as usize].key.is_some(),
            dead: false,
        }
    }
}

/// The newest messages that a consumer has been given so far.
#[derive(Default)]
struct Newest {
    /// Of each key, the one whose append began last.
    of_key: HashMap<u32, (Moment, usize)>,
    /// Of each transaction and key, the last one.
    in_transaction: HashMap<(u32, u32), (u32, usize)>,
}

impl Newest {
    fn note(&mut self, known: &Known, at: usize) {
        raise(&mut self.of_key, known.key, (known.began, at));
        if let Some((transaction, order)) = known.within {
            raise(&mut self.in_transaction, (transaction, known.key), (order, at));
        }
    }

    /// A message that was given already, though this one is before it.
    fn behind(&self, known: &Known) -> Option<usize> {
        if !known.ordered {
            return None;
        }
        let began_later = self
            .of_key
            .get(&known.key)
            .filter(|(began, _)| known.committed.is_some_and(|committed| committed < *began));
        if let Some((_, newer)) = began_later {
            return Some(*newer);
        }
        let (transaction, order) = known.within?;
        let (last, newer) = self.in_transaction.get(&(transaction, known.key))?;
        (*last > order).then_some(*newer)
    }
}

fn raise<K: Hash + Eq, T: Ord>(newest: &mut HashMap<K, T>, key: K, candidate: T) {
    match newest.get_mut(&key) {
        Some(newest) if *newest >= candidate => {}
        Some(newest) => *newest = candidate,
        None => {
            newest.insert(key, candidate);
        }
    }
}

/// Goes over the deliveries of one consumer after the other.
pub(super) struct Check<'h> {
    merged: &'h Merged,
    keys: &'h [OrderKey],
    pub(super) report: Report,
}

impl<'h> Check<'h> {
    pub(super) fn new(merged: &'h Merged, keys: &'h [OrderKey]) -> Self {
        let mut report = Report::default();
        for known in &merged.messages {
            report.committed += u64::from(known.committed.is_some());
            report.unknown += u64::from(known.possible && known.committed.is_none());
            report.dead_lettered += u64::from(known.dead);
        }
        Self { merged, keys, report }
    }

    pub(super) fn consumer(&mut self, consumer: &Consumer) {
        let (merged, keys) = (self.merged, self.keys);
        let example = |id: MessageId, key: u32, behind: Option<usize>| Example {
            consumer: consumer.name.clone(),
            id,
            topic: keys[key as usize].topic.clone(),
            key: keys[key as usize].key.clone(),
            behind: behind.map(|at| merged.messages[at].id),
        };
        let report = &mut self.report;
        let mut seen = vec![false; merged.messages.len()];
        let mut newest = Newest::default();

        for delivered in &consumer.deliveries {
            report.deliveries += 1;
            let Some(at) = merged.possible(delivered) else {
                report.phantom.add(|| example(delivered.id, delivered.key, None));
                continue;
            };
            let known = &merged.messages[at];
            let behind = newest.behind(known);
            if seen[at] {
                let repeats =
                    if behind.is_some() { &mut report.stale_repeats } else { &mut report.duplicated };
                repeats.add(|| example(known.id, known.key, behind));
                continue;
            }
            seen[at] = true;
            report.delivered += 1;
            if behind.is_some() {
                report.out_of_order.add(|| example(known.id, known.key, behind));
            }
            if known.ordered {
                newest.note(known, at);
            }
        }

        let is_for = |known: &Known| {
            consumer.topics.is_empty() || consumer.topics.contains(&keys[known.key as usize].topic)
        };
        for (known, seen) in merged.messages.iter().zip(seen) {
            if !seen && known.committed.is_some() && !known.dead && is_for(known) {
                report.lost.add(|| example(known.id, known.key, None));
            }
        }
    }
}

impl Merged {
    /// Which message this is a delivery of, if there can be one: appended before, not rolled back, with this topic and key.
    fn possible(&self, delivered: &Delivered) -> Option<usize> {
        let at = self.find(delivered.id)?;
        let known = &self.messages[at];
        (known.possible && known.key == delivered.key && known.began < delivered.at).then_some(at)
    }
}
