//! Publish batches: decides which messages are sent together.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use outbox_contract::backend::{BucketSet, Epoch};

use super::breaker::Permission;
use super::event::{Command, PublishCommand};
use super::key::{Doing, Held};
use super::lines::Line;
use super::table::KeyRef;
use super::{Core, sabotaged};

/// Unconfirmed batches, by number.
#[derive(Debug, Default)]
pub(super) struct Batches {
    out: BTreeMap<u64, Batch>,
    messages: usize,
}

/// An unconfirmed batch.
#[derive(Debug)]
pub(super) struct Batch {
    pub(super) began: Duration,
    // By slot of the batch; `None` where a message was confirmed early.
    pub(super) sent: Vec<Option<Sent>>,
}

/// Message in an unconfirmed batch.
#[derive(Debug)]
pub(super) struct Sent {
    pub(super) key: KeyRef,
    pub(super) epoch: Epoch,
    pub(super) held: Held,
    pub(super) parked: bool,
}

/// Number of messages below which a backlog is not divided among publishers: a small rest would
/// cost brokers as much as a full batch.
const MIN_SHARE: usize = 100;

impl Batches {
    pub(super) fn take(&mut self, number: u64) -> Option<Batch> {
        let batch = self.out.remove(&number)?;
        self.messages -= batch.sent.iter().flatten().count();
        Some(batch)
    }

    /// Takes confirmed messages out of a batch, for each key whose consecutive messages are all
    /// confirmed. Returns the size of the batch and these messages.
    pub(super) fn take_confirmed(&mut self, number: u64, delivered: &[bool]) -> Option<(usize, Vec<Sent>)> {
        let sent = &mut self.out.get_mut(&number)?.sent;
        let mut through = Vec::new();
        let mut start = 0;
        while start < sent.len() {
            let key = sent[start].as_ref().map(|sent| sent.key);
            let others = |other: &Option<Sent>| other.as_ref().map(|sent| sent.key) != key;
            let end = sent[start..].iter().position(others).map_or(sent.len(), |length| start + length);
            if delivered.get(start..end).is_some_and(|delivered| delivered.iter().all(|delivered| *delivered))
            {
                through.extend(sent[start..end].iter_mut().filter_map(Option::take));
            }
            start = end;
        }
        self.messages -= through.len();
        Some((sent.len(), through))
    }

    fn insert(&mut self, number: u64, began: Duration, sent: Vec<Sent>) {
        self.messages += sent.len();
        self.out.insert(number, Batch { began, sent: sent.into_iter().map(Some).collect() });
    }

    fn sent(&self) -> impl Iterator<Item = &Sent> {
        self.out.values().flat_map(|batch| batch.sent.iter().flatten())
    }

    /// Returns the buckets of the messages in unconfirmed batches.
    pub(super) fn buckets(&self) -> BucketSet {
        self.sent().map(|sent| sent.held.stored.bucket).collect()
    }

    /// Returns true if no message of these buckets is in an unconfirmed batch.
    pub(super) fn is_quiet(&self, buckets: &BucketSet) -> bool {
        !self.sent().any(|sent| buckets.contains(sent.held.stored.bucket))
    }

    #[cfg(any(test, feature = "_simulation"))]
    pub(super) fn sent_in(&self, number: u64) -> Option<&[Option<Sent>]> {
        self.out.get(&number).map(|batch| batch.sent.as_slice())
    }

    #[cfg(any(test, feature = "_simulation"))]
    pub(super) fn in_flight(&self) -> (usize, usize) {
        (self.messages, self.sent().map(|sent| sent.held.bytes).sum())
    }
}

impl Core {
    /// Returns when the next batch of a line may start; `None` if another event must come first.
    fn may_publish_at(&self, line: Line) -> Option<Duration> {
        if self.leases.is_paused() && !sabotaged!(self, PauseIgnored) {
            return None;
        }
        if !self.leases.holds(self.now) && !sabotaged!(self, PublishesWithoutLease) {
            // The keeper is about to renew, or the leases are lost. Either way its next message
            // tells.
            return Some(self.now + self.limits.heartbeat);
        }
        let permission = match line {
            Line::Silent => self.breaker.permission_of_silent(self.now),
            Line::Ready | Line::Failed | Line::Transition => self.breaker.permission(self.now),
        };
        match permission {
            Permission::Granted => Some(self.now),
            Permission::Later(until) => Some(until),
        }
    }

    /// Returns when the next batch may start, if keys are waiting and a publisher is free.
    pub(super) fn next_batch_at(&self) -> Option<Duration> {
        let of_a_line = |line| {
            self.lines.next(|other| other == line)?;
            self.may_publish_at(line)
        };
        [Line::Ready, Line::Failed, Line::Silent].into_iter().filter_map(of_a_line).min()
    }

    /// Sends batches to idle publishers.
    pub(super) fn begin_batches(&mut self) {
        if self.draining.is_some() {
            return;
        }
        let mut share = None;
        loop {
            let may_go = |line| self.may_publish_at(line).is_some_and(|at| at <= self.now);
            let Some(line) = self.lines.next(may_go) else { return };
            let max = *share.get_or_insert_with(|| self.share());
            let sent = match line {
                Line::Failed | Line::Silent => self.next_suspects(line),
                Line::Ready | Line::Transition => self.next_ready(max),
            };
            // An empty batch means that all keys in the line had moved elsewhere.
            if !sent.is_empty() {
                self.publish(sent, line);
            }
        }
    }

    /// Returns the size of a batch that spreads the waiting messages over the publishers.
    fn share(&self) -> usize {
        let waiting = self.in_flight().0.saturating_sub(self.batches.messages + self.removals.messages());
        waiting.div_ceil(self.limits.shares.max(1)).max(MIN_SHARE).min(self.paced(self.limits.batch))
    }

    /// Takes the next messages of keys that are not suspect.
    fn next_ready(&mut self, max: usize) -> Vec<Sent> {
        let mut sent = Vec::new();
        let mut bytes = 0;
        while sent.len() < max && bytes < self.limits.batch_bytes {
            let Some(key) = self.lines.pop(Line::Ready) else { break };
            if self.leave_line(key, Line::Ready) {
                let room = (max - sent.len(), self.limits.batch_bytes.saturating_sub(bytes));
                bytes += self.take_messages(key, room, &mut sent);
            }
        }
        sent
    }

    /// Takes the next message of each suspect key.
    ///
    /// Keys with a single unanswered attempt share a batch: mostly the broker or the network was
    /// unavailable, and none of them was the cause. After that, each is sent alone.
    fn next_suspects(&mut self, line: Line) -> Vec<Sent> {
        let delivered = self.delivered;
        let mut sent = Vec::new();
        let mut bytes = 0;
        while sent.len() < self.limits.batch && bytes < self.limits.batch_bytes {
            let Some(key) = self.lines.pop(line) else { break };
            if !self.leave_line(key, line) {
                continue;
            }
            let Some(state) = self.table.get_mut(key) else { continue };
            if state.unknown == 0 {
                // Without a record of an earlier stay in memory, messages delivered before this
                // attempt prove nothing about this one.
                let silence = self.silent.get(&state.name);
                state.delivered_by_then = silence.map_or(delivered, |silence| silence.delivered);
            }
            let alone = state.goes_alone();
            if alone && !sent.is_empty() {
                state.line = Some(line);
                self.lines.push_front(line, key);
                break;
            }
            let room = self.limits.batch_bytes.saturating_sub(bytes);
            bytes += self.take_messages(key, (1, room), &mut sent);
            if alone {
                break;
            }
        }
        sent
    }

    /// Takes a key out of its line. Returns false if it was no longer in it.
    pub(super) fn leave_line(&mut self, key: KeyRef, line: Line) -> bool {
        let Some(state) = self.table.get_mut(key) else { return false };
        state.line.take_if(|stands| *stands == line).is_some()
    }

    /// Moves messages of a key into a batch. Returns their number of bytes.
    fn take_messages(
        &mut self,
        key: KeyRef,
        (room, room_bytes): (usize, usize),
        sent: &mut Vec<Sent>,
    ) -> usize {
        // The number that the batch will get, so that the key can refer to it.
        let number = self.numbers + 1;
        let Some(state) = self.table.get_mut(key) else { return 0 };
        let (epoch, parked) = (state.epoch, state.retry.is_some());
        let mut bytes = 0;
        for taken in 0..room {
            let Some(held) = state.take() else { break };
            if taken > 0 && bytes + held.bytes > room_bytes {
                state.give_back(vec![held]);
                break;
            }
            bytes += held.bytes;
            sent.push(Sent { key, epoch, held, parked });
        }
        state.doing = Doing::Batch(number);
        bytes
    }

    fn publish(&mut self, sent: Vec<Sent>, line: Line) {
        let number = self.next_number();
        let messages = sent.iter().map(|sent| Arc::clone(&sent.held.stored)).collect();
        let epochs = sent.iter().map(|sent| (sent.held.stored.bucket, sent.epoch)).collect();
        let attempts = sent.first().map_or(0, |first| self.attempts(first));
        self.batches.insert(number, self.now, sent);
        self.lines.began(number, line);
        if line == Line::Silent {
            self.breaker.began_silent(self.now);
        } else {
            self.breaker.began(self.now);
        }
        self.commands.push(Command::Publish(PublishCommand { number, messages, attempts, epochs, line }));
    }

    /// Returns the number of earlier attempts of a message, according to its key's row.
    fn attempts(&self, sent: &Sent) -> u32 {
        let retry = self.table.get(sent.key).and_then(|state| state.retry.as_ref());
        let retry = retry.filter(|retry| retry.failing == Some(sent.held.stored.message.id));
        retry.map_or(0, |retry| retry.attempts)
    }
}
