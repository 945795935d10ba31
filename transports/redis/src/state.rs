//! What a member has: its units, what it was given of them, and how much more it may get. Pure: knows neither a connection nor a clock.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use outbox_contract::Topic;
use outbox_contract::backend::{Delivery, Received, Subscription, Tag, Unit};

use crate::error::Trouble;
use crate::pace::Pace;
use crate::stream_id::StreamId;
use crate::unit::{Cursor, Entry, Load, Owned};

/// The most entries that one read asks for of a unit.
const MAX_AT_ONCE: usize = 500;

/// What a reader may ask for now.
#[derive(Debug)]
pub(crate) struct Plan {
    /// The units, each with its incarnation and where to read on.
    pub(crate) units: Vec<(Unit, u64, Cursor)>,
    /// How many entries of each, at most.
    pub(crate) count: usize,
    /// How many units could be read, of which these are some or all.
    pub(crate) of: usize,
}

/// What a member knows of a unit that it holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Held {
    pub(crate) epoch: String,
    /// The last entry that the group was given.
    pub(crate) seen: StreamId,
}

/// What Redis is to be told of: of each unit its incarnation, and entries that are finished, each with its number.
pub(crate) type Owed = BTreeMap<Unit, (u64, Vec<(u64, StreamId)>)>;

#[derive(Debug)]
pub(crate) struct State {
    prefetch: Load,
    units: BTreeMap<Unit, Owned>,
    revoked: BTreeSet<Unit>,
    /// Given up, and Redis has not said yet that it knows.
    leaving: BTreeSet<Unit>,
    /// Could not be taken at the last try.
    refused: BTreeSet<Unit>,
    /// Units in which something was seen that was not read yet.
    hinted: BTreeSet<Unit>,
    incarnations: u64,
    draining: bool,
    trouble: Option<Trouble>,
    turn: usize,
    pace: Pace,
    /// A unit had as much as the last plan asked for, or more.
    full: bool,
}

impl State {
    pub(crate) fn new(subscription: &Subscription) -> Self {
        Self {
            prefetch: Load { messages: subscription.prefetch, bytes: subscription.prefetch_bytes },
            units: BTreeMap::new(),
            revoked: BTreeSet::new(),
            leaving: BTreeSet::new(),
            refused: BTreeSet::new(),
            hinted: BTreeSet::new(),
            incarnations: 0,
            draining: false,
            trouble: None,
            turn: 0,
            pace: Pace::default(),
            full: false,
        }
    }

    // ---- leases

    /// The units of this member, with their epochs.
    pub(crate) fn held(&self) -> Vec<(Unit, String)> {
        self.units.iter().map(|(unit, owned)| (unit.clone(), owned.epoch.clone())).collect()
    }

    /// Those of one topic, by number.
    pub(crate) fn held_of(&self, topic: &Topic) -> BTreeMap<u32, Held> {
        let of_topic = self.units.iter().filter(|(unit, _)| unit.topic == *topic);
        let held = |owned: &Owned| Held { epoch: owned.epoch.clone(), seen: owned.seen };
        of_topic.map(|(unit, owned)| (unit.number, held(owned))).collect()
    }

    /// A unit was taken: a new incarnation of it begins.
    pub(crate) fn gain(&mut self, unit: Unit, epoch: String, until: Duration, seen: StreamId) {
        self.incarnations += 1;
        tracing::debug!(%unit, epoch, "a unit was taken");
        self.leaving.remove(&unit);
        self.refused.remove(&unit);
        self.units.insert(unit, Owned::new(epoch, self.incarnations, until, seen));
    }

    /// A lease was prolonged, of a unit that was `held` like that when it was asked for. The group was given entries up to `seen`, says the
    /// server. Says whether the unit is to be taken anew all the same: the server has lost what the group was given, or the acknowledgement of
    /// the entry that is pending first.
    pub(crate) fn prolong(
        &mut self,
        unit: &Unit,
        held: &Held,
        until: Duration,
        seen: StreamId,
        oldest: Option<StreamId>,
    ) -> bool {
        let owned = self.units.get_mut(unit).filter(|owned| owned.epoch == held.epoch);
        let Some(owned) = owned else { return false };
        owned.until = owned.until.max(until);
        // Compared with what was known before: a read may have brought more since.
        owned.has_forgotten(oldest) || seen < held.seen
    }

    /// A unit belongs to this member no more.
    pub(crate) fn lose(&mut self, unit: &Unit) {
        if self.units.remove(unit).is_some() {
            tracing::debug!(%unit, "a unit was given up or lost");
            self.revoked.insert(unit.clone());
        }
    }

    /// These are to be given back. Answers all of the topic that are.
    pub(crate) fn leave(&mut self, topic: &Topic, units: &[Unit]) -> Vec<Unit> {
        self.leaving.extend(units.iter().cloned());
        self.leaving.iter().filter(|unit| unit.topic == *topic).cloned().collect()
    }

    /// They were given back.
    pub(crate) fn left(&mut self, units: &[Unit]) {
        self.leaving.retain(|unit| !units.contains(unit));
    }

    /// A unit could not be taken.
    pub(crate) fn refuse(&mut self, unit: &Unit) {
        self.refused.insert(unit.clone());
    }

    pub(crate) fn was_refused(&self, unit: &Unit) -> bool {
        self.refused.contains(unit)
    }

    /// Gives up the units whose leases ran out. Says whether there were any.
    pub(crate) fn expire(&mut self, now: Duration) -> bool {
        let over: Vec<Unit> =
            self.units.iter().filter(|(_, it)| it.until <= now).map(|(unit, _)| unit.clone()).collect();
        over.iter().for_each(|unit| self.lose(unit));
        !over.is_empty()
    }

    // ---- reading

    /// What to read now; None while there is no room, or nothing to read from.
    pub(crate) fn plan(&mut self, now: Duration) -> Option<Plan> {
        let mut held = Load::default();
        for owned in self.units.values() {
            held.add(owned.in_hand());
            held.add(owned.waiting());
        }
        let room = Load {
            messages: self.prefetch.messages.saturating_sub(held.messages),
            bytes: self.prefetch.bytes.saturating_sub(held.bytes),
        };
        if self.draining || room.messages == 0 || (room.bytes == 0 && held.messages > 0) {
            return None;
        }
        let at_once = self.pace.next(room);
        self.turn = self.turn.wrapping_add(1);
        let mut ready: Vec<&Unit> = self.readable(now).map(|(unit, _)| unit).collect();
        if ready.is_empty() {
            return None;
        }
        // Where not all can be read at once, the next ones.
        let of = ready.len();
        let first = self.turn.wrapping_mul(at_once.min(of - 1).max(1)) % of;
        ready.rotate_left(first);
        // Stable: where something is known to be comes first, in turn.
        ready.sort_by_key(|unit| !self.hinted.contains(*unit));
        ready.truncate(at_once);
        let count = (at_once / ready.len()).clamp(1, MAX_AT_ONCE);
        let units = ready.into_iter().filter_map(|unit| {
            let owned = self.units.get(unit)?;
            Some((unit.clone(), owned.incarnation, owned.cursor))
        });
        let units = units.collect();
        self.hinted.clear();
        self.full = false;
        Some(Plan { units, count, of })
    }

    fn readable(&self, now: Duration) -> impl Iterator<Item = (&Unit, &Owned)> {
        self.units.iter().filter(move |(_, owned)| !owned.paused && owned.until > now)
    }

    /// Takes in what a read brought of one unit. Says how many entries are gone from the stream.
    pub(crate) fn read(
        &mut self,
        unit: &Unit,
        incarnation: u64,
        from: Cursor,
        count: usize,
        entries: Vec<Entry>,
    ) -> usize {
        let largest = entries.iter().filter_map(|entry| Some(entry.content.as_ref()?.bytes)).max();
        if let Some(largest) = largest {
            self.pace.saw(largest);
        }
        self.full |= entries.len() >= count;
        let owned = self.units.get_mut(unit).filter(|owned| owned.incarnation == incarnation);
        owned.map(|owned| owned.read(from, count, entries)).unwrap_or_default()
    }

    /// Where to wait for something new: behind which entry of each unit. None while something is still to be read.
    pub(crate) fn watchable(&self, now: Duration) -> Option<Vec<(Unit, StreamId)>> {
        let readable: Vec<_> = self.readable(now).collect();
        if readable.is_empty() || readable.iter().any(|(_, owned)| owned.cursor != Cursor::New) {
            return None;
        }
        Some(readable.into_iter().map(|(unit, owned)| (unit.clone(), owned.seen)).collect())
    }

    /// There is something new in these units.
    pub(crate) fn hint(&mut self, units: impl IntoIterator<Item = Unit>) {
        self.hinted.extend(units);
    }

    /// A read ended, and what it brought was taken in. It took so long, of the time that it had.
    pub(crate) fn has_read(&mut self, took: Duration, of: Duration) {
        self.pace.ended(self.full, took, of);
    }

    /// The reader's connection is gone, and an answer with it, perhaps: what it may have brought is read again, less of it at once.
    pub(crate) fn rewind(&mut self) {
        self.pace.failed();
        self.units.values_mut().for_each(Owned::rewind);
    }

    /// Something went wrong, to be told to whoever receives.
    pub(crate) fn fail(&mut self, trouble: Trouble) {
        self.trouble = Some(trouble);
    }

    // ---- receiving

    /// What there is for this member now. Nothing is lost with the answer's future: it is given in one step.
    pub(crate) fn take(&mut self, now: Duration) -> Result<Option<Received>, Trouble> {
        if self.draining {
            return Ok(Some(Received::Ended));
        }
        self.expire(now);
        if !self.revoked.is_empty() {
            return Ok(Some(Received::Revoked(std::mem::take(&mut self.revoked).into_iter().collect())));
        }
        let deliveries = self.hand_out();
        if !deliveries.is_empty() {
            return Ok(Some(Received::Deliveries(deliveries)));
        }
        self.trouble.take().map_or(Ok(None), Err)
    }

    fn hand_out(&mut self) -> Vec<Delivery> {
        let mut in_hand = Load::default();
        self.units.values().for_each(|owned| in_hand.add(owned.in_hand()));
        let mut deliveries = Vec::new();
        let count = self.units.len();
        let first = if count == 0 { 0 } else { self.turn % count };
        let mut units: Vec<(&Unit, &mut Owned)> = self.units.iter_mut().collect();
        units.rotate_left(first);
        for (unit, owned) in units {
            while let Some(next) = owned.peek() {
                let full = in_hand.messages >= self.prefetch.messages
                    || in_hand.bytes.saturating_add(next.bytes) > self.prefetch.bytes;
                // What is larger than the bound comes alone.
                if owned.paused || (full && in_hand.messages > 0) {
                    break;
                }
                let Some((number, content)) = owned.hand_out() else { break };
                in_hand.add(Load { messages: 1, bytes: content.bytes });
                let tag = Tag { unit: unit.clone(), incarnation: owned.incarnation, number };
                deliveries.push(Delivery::new(tag, content.message, content.origin));
            }
        }
        deliveries
    }

    /// These deliveries are finished: they are owed until Redis knows, or their unit is lost. Says whether there is anything to pay of them.
    pub(crate) fn finish(&mut self, tags: &[Tag]) -> bool {
        let mut any = false;
        for tag in tags {
            let owned = self.units.get_mut(&tag.unit).filter(|owned| owned.incarnation == tag.incarnation);
            any |= owned.is_some_and(|owned| owned.finish(tag.number));
        }
        any
    }

    /// All that is owed.
    pub(crate) fn owed(&self) -> Owed {
        let owed = self.units.iter().map(|(unit, owned)| (unit.clone(), (owned.incarnation, owned.owed())));
        owed.filter(|(_, (_, entries))| !entries.is_empty()).collect()
    }

    /// Redis knows of these: there is room again.
    pub(crate) fn paid(&mut self, unit: &Unit, incarnation: u64, entries: &[(u64, StreamId)]) {
        if let Some(owned) = self.units.get_mut(unit).filter(|owned| owned.incarnation == incarnation) {
            entries.iter().for_each(|(number, _)| owned.paid(*number));
        }
    }

    pub(crate) fn pause(&mut self, units: &[Unit]) {
        for unit in units {
            if let Some(owned) = self.units.get_mut(unit) {
                owned.paused = true;
                // What waits would take room from others.
                owned.rewind();
            }
        }
    }

    pub(crate) fn resume(&mut self, units: &[Unit]) {
        for unit in units {
            if let Some(owned) = self.units.get_mut(unit) {
                owned.paused = false;
            }
        }
    }

    pub(crate) fn drain(&mut self) {
        self.draining = true;
    }

    pub(crate) const fn is_draining(&self) -> bool {
        self.draining
    }
}

#[cfg(test)]
mod tests;
