//! The comparison itself: appends merged by message, and one pass over the deliveries of each
//! consumer.

use std::collections::HashMap;
use std::hash::Hash;

use outbox_contract::MessageId;

use super::report::{Example, Report};
use super::{Appended, Consumer, Delivered, Died, Fate, Moment, OrderKey, Requeued, Transaction};

/// Merged knowledge of each message, in the order of ids.
pub(super) struct Merged {
    messages: Vec<Known>,
    /// Dead messages, with the last moment at which each certainly lived before its first death; in
    /// the order of these moments.
    deaths: Vec<(Moment, usize)>,
}

/// All appends of one id taken together.
#[derive(Clone, Copy, Debug)]
struct Known {
    id: MessageId,
    key: u32,
    /// Earliest begin of an append that may have been committed: a message committed before it is
    /// before this one.
    began: Moment,
    /// Earliest moment at which a transaction of it may have been committed: no delivery can be
    /// earlier.
    committing: Moment,
    /// Earliest moment at which a commit of it had returned: an append that began later is after
    /// it. None: no commit is certain.
    committed: Option<Moment>,
    /// Its transaction and its place in it, if the transaction has other messages and only one
    /// append of it may have been committed.
    within: Option<(u32, u32)>,
    /// True if any append of it may have been committed.
    possible: bool,
    /// True if it has a place in the order: it has a key, and was not scheduled.
    ordered: bool,
    /// Until then it certainly was no dead letter. None: it never was one. A lower bound: messages
    /// that overtake it until then are out of order, and an upper bound would report false
    /// positives.
    lived: Option<Moment>,
    /// It was requeued after this moment and did not die after it: it must be delivered from then
    /// on.
    owed_since: Option<Moment>,
}

impl Merged {
    /// Merges appends that are sorted by id.
    pub(super) fn of(appended: &[Appended], transactions: &[Transaction], keys: &[OrderKey]) -> Self {
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
            let transaction = transactions[append.transaction as usize];
            let committed = match transaction.fate {
                Fate::RolledBack => continue,
                Fate::Unknown => None,
                Fate::Committed(at) => Some(at),
            };
            let alone = known.possible || sizes[append.transaction as usize] == 1;
            // A second append that may exist: a delivery does not tell of which one it is.
            known.within = (!alone).then_some((append.transaction, append.order));
            known.possible = true;
            known.ordered &= !append.scheduled;
            known.began = known.began.min(append.began);
            known.committing = known.committing.min(transaction.committing.unwrap_or(append.began));
            known.committed = match (known.committed, committed) {
                (Some(one), Some(other)) => Some(one.min(other)),
                (one, other) => one.or(other),
            };
        }
        Self { messages, deaths: Vec::new() }
    }

    /// Adds dead and requeued messages. Returns the dead letters of messages that were never
    /// committed.
    pub(super) fn bury(&mut self, dead: &[Died], requeued: &[Requeued]) -> Vec<Died> {
        let mut made_up = Vec::new();
        let mut died_last: HashMap<usize, Moment> = HashMap::new();
        for died in dead {
            let Some(at) = self.committable(died.id, died.key) else {
                made_up.push(*died);
                continue;
            };
            let lived = &mut self.messages[at].lived;
            *lived = Some(lived.map_or(died.since, |lived| lived.min(died.since)));
            raise(&mut died_last, at, died.since);
        }
        for requeued in requeued {
            let Some(at) = self.find(requeued.id).filter(|at| self.messages[*at].possible) else { continue };
            let died_again = died_last.get(&at).is_some_and(|died| *died >= requeued.since);
            let owed_since = &mut self.messages[at].owed_since;
            if !died_again {
                *owed_since = (*owed_since).max(Some(requeued.since));
            }
        }
        let messages = self.messages.iter().enumerate();
        self.deaths = messages.filter_map(|(at, known)| known.lived.map(|lived| (lived, at))).collect();
        self.deaths.sort_unstable();
        made_up
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
            committing: Moment(u64::MAX),
            committed: None,
            within: None,
            possible: false,
            ordered: keys[append.key as usize].key.is_some(),
            lived: None,
            owed_since: None,
        }
    }

    /// Returns true if it keeps its place at this moment: it has one, and it is not known to be a
    /// dead letter.
    fn keeps_its_place(&self, at: Moment) -> bool {
        self.ordered && self.lived.is_none_or(|lived| at < lived)
    }
}

/// Newest messages delivered to a consumer so far.
#[derive(Default)]
struct Newest {
    /// Of each key, the message whose append began last.
    of_key: HashMap<u32, (Moment, usize)>,
    /// Of each transaction and key, the last message.
    in_transaction: HashMap<(u32, u32), (u32, usize)>,
}

impl Newest {
    fn note(&mut self, known: &Known, at: usize) {
        raise(&mut self.of_key, known.key, (known.began, at));
        if let Some((transaction, order)) = known.within {
            raise(&mut self.in_transaction, (transaction, known.key), (order, at));
        }
    }

    /// Returns an already delivered message that must come after this one.
    fn behind(&self, known: &Known) -> Option<usize> {
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

/// Checks the deliveries of one consumer after the other.
pub(super) struct Check<'h> {
    merged: &'h Merged,
    keys: &'h [OrderKey],
    pub(super) report: Report,
}

impl<'h> Check<'h> {
    pub(super) fn new(merged: &'h Merged, keys: &'h [OrderKey], made_up: &[Died]) -> Self {
        let mut report = Report::default();
        for died in made_up {
            let OrderKey { topic, key } = keys[died.key as usize].clone();
            let consumer = "dead letters".to_owned();
            report.phantom.add(|| Example { consumer, id: died.id, topic, key, behind: None });
        }
        for known in &merged.messages {
            report.committed += u64::from(known.committed.is_some());
            report.unknown += u64::from(known.possible && known.committed.is_none());
            report.dead_lettered += u64::from(known.lived.is_some());
        }
        Self { merged, keys, report }
    }

    pub(super) fn consumer(&mut self, consumer: &Consumer) {
        let (merged, keys) = (self.merged, self.keys);
        let example = |id, key, behind: Option<usize>| {
            example(consumer, keys, (id, key), behind.map(|at| merged.messages[at].id))
        };
        let report = &mut self.report;
        // Moment of the last delivery of each message.
        let mut seen: Vec<Option<Moment>> = vec![None; merged.messages.len()];
        let mut newest = Newest::default();
        let mut deaths = merged.deaths.iter().peekable();
        // A message that was not delivered while it certainly lived was overtaken by any delivery
        // that comes after it in order.
        let overtaken = |report: &mut Report, seen: &[Option<Moment>], newest: &Newest, at: usize| {
            let known = &merged.messages[at];
            if seen[at].is_none()
                && known.ordered
                && let Some(behind) = newest.behind(known)
            {
                report.out_of_order.add(|| example(known.id, known.key, Some(behind)));
            }
        };

        for delivered in &consumer.deliveries {
            while let Some((_, died)) = deaths.next_if(|(lived, _)| *lived <= delivered.at) {
                overtaken(report, &seen, &newest, *died);
            }
            report.deliveries += 1;
            let Some(at) = merged.possible(delivered) else {
                report.phantom.add(|| example(delivered.id, delivered.key, None));
                continue;
            };
            let known = &merged.messages[at];
            let behind = known.keeps_its_place(delivered.at).then(|| newest.behind(known)).flatten();
            if seen[at].replace(delivered.at).is_some() {
                let repeats =
                    if behind.is_some() { &mut report.stale_repeats } else { &mut report.duplicated };
                repeats.add(|| example(known.id, known.key, behind));
                continue;
            }
            report.delivered += 1;
            if behind.is_some() {
                report.out_of_order.add(|| example(known.id, known.key, behind));
            }
            if known.ordered {
                newest.note(known, at);
            }
        }

        for (_, died) in deaths {
            overtaken(report, &seen, &newest, *died);
        }
        self.lost(consumer, seen);
    }

    /// Reports what was not delivered to a consumer, and should have been. `seen`: the last
    /// delivery of each message.
    fn lost(&mut self, consumer: &Consumer, seen: Vec<Option<Moment>>) {
        let keys = self.keys;
        let is_for = |known: &Known| {
            consumer.topics.is_empty() || consumer.topics.contains(&keys[known.key as usize].topic)
        };
        for (known, seen) in self.merged.messages.iter().zip(seen) {
            let owed = match (known.lived, known.owed_since) {
                (_, Some(requeued)) => seen.is_none_or(|last| last < requeued),
                (Some(_), None) => false,
                (None, None) => seen.is_none() && known.committed.is_some(),
            };
            if owed && is_for(known) {
                self.report.lost.add(|| example(consumer, keys, (known.id, known.key), None));
            }
        }
    }
}

fn example(
    consumer: &Consumer,
    keys: &[OrderKey],
    (id, key): (MessageId, u32),
    behind: Option<MessageId>,
) -> Example {
    let OrderKey { topic, key } = keys[key as usize].clone();
    Example { consumer: consumer.name.clone(), id, topic, key, behind }
}

impl Merged {
    /// Returns the message of this delivery, if one is possible: committing before, not rolled
    /// back, with this topic and key.
    fn possible(&self, delivered: &Delivered) -> Option<usize> {
        let at = self.committable(delivered.id, delivered.key)?;
        let known = &self.messages[at];
        (known.began < delivered.at && known.committing < delivered.at).then_some(at)
    }

    /// Returns the message of this id, if it may have been committed with this topic and key.
    fn committable(&self, id: MessageId, key: u32) -> Option<usize> {
        let at = self.find(id)?;
        let known = &self.messages[at];
        (known.possible && known.key == key).then_some(at)
    }
}
