//! Consumption of a member: its window, and the reading of its units. Pure: knows neither a
//! connection nor a clock.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use outbox_contract::Topic;
use outbox_contract::backend::flow::{Finished, Window, bytes_of};
use outbox_contract::backend::{Delivery, Received, Tag, Unit};

use crate::error::Error;
use crate::lease::{Cursor, Entry, Lease, LeasedUnit, has_forgotten};
use crate::read_size::ReadSize;
use crate::stream_id::StreamId;

/// Maximum number of entries that one read asks for of a unit.
const MAX_AT_ONCE: usize = 500;

/// A read that may be asked for now.
#[derive(Debug)]
pub(crate) struct Plan {
    /// The units, each with its incarnation and where to read on.
    pub(crate) units: Vec<(Unit, u64, Cursor)>,
    /// Maximum number of entries of each.
    pub(crate) count: usize,
    /// Number of units that could be read, of which these are some or all.
    pub(crate) of: usize,
}

/// A unit of this member, as it was when something was asked about it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct KnownUnit {
    pub(crate) epoch: String,
    /// The last entry that the group was given.
    pub(crate) seen: StreamId,
}

/// Entries of a unit that are finished, of which Redis is to be told.
pub(crate) type Unconfirmed = Finished<StreamId>;

#[derive(Debug)]
pub(crate) struct Consumption {
    window: Window<Lease, StreamId>,
    /// Given up, and Redis has not said yet that it knows.
    leaving: BTreeSet<Unit>,
    /// Could not be taken at the last try.
    refused: BTreeSet<Unit>,
    /// Units in which something was seen that was not read yet.
    hinted: BTreeSet<Unit>,
    error: Option<Error>,
    turn: usize,
    read_size: ReadSize,
    /// A unit had as much as the last plan asked for, or more.
    full: bool,
}

impl Consumption {
    pub(crate) fn new(window: Window<Lease, StreamId>) -> Self {
        Self {
            window,
            leaving: BTreeSet::new(),
            refused: BTreeSet::new(),
            hinted: BTreeSet::new(),
            error: None,
            turn: 0,
            read_size: ReadSize::default(),
            full: false,
        }
    }

    // ---- leases

    /// Returns the units of this member, with their epochs.
    pub(crate) fn held(&self) -> Vec<(Unit, String)> {
        self.window.units().map(|(unit, owned)| (unit.clone(), owned.state.epoch.clone())).collect()
    }

    /// Returns those of one topic, by number.
    pub(crate) fn held_of(&self, topic: &Topic) -> BTreeMap<u32, KnownUnit> {
        let of_topic = self.window.units().filter(|(unit, _)| unit.topic == *topic);
        let known = |Lease { epoch, seen, .. }: &Lease| KnownUnit { epoch: epoch.clone(), seen: *seen };
        of_topic.map(|(unit, owned)| (unit.number, known(&owned.state))).collect()
    }

    /// Records that a unit was taken: a new incarnation of it begins.
    pub(crate) fn gain(&mut self, unit: Unit, epoch: String, until: Duration, seen: StreamId) {
        tracing::debug!(%unit, epoch, "a unit was taken");
        self.leaving.remove(&unit);
        self.refused.remove(&unit);
        self.window.assign(unit, Lease::new(epoch, until, seen));
    }

    /// Records that a lease was prolonged, of a unit that was `known` like that when it was asked
    /// for. The group was given entries up to `seen`, says the server. Returns true if the unit is
    /// to be taken anew nevertheless: the server has lost what the group was given, or the
    /// acknowledgment of the entry that is pending first.
    pub(crate) fn prolong(
        &mut self,
        unit: &Unit,
        known: &KnownUnit,
        until: Duration,
        seen: StreamId,
        oldest: Option<StreamId>,
    ) -> bool {
        let owned = self.window.unit_mut(unit).filter(|owned| owned.state.epoch == known.epoch);
        let Some(owned) = owned else { return false };
        owned.state.until = owned.state.until.max(until);
        // Compared with what was known before: a read may have brought more since.
        has_forgotten(owned, oldest) || seen < known.seen
    }

    /// Records that a unit belongs to this member no more.
    pub(crate) fn lose(&mut self, unit: &Unit) {
        if self.window.revoke(unit).is_some() {
            tracing::debug!(%unit, "a unit was given up or lost");
        }
    }

    /// Adds units that are to be given back; returns all of the topic that are.
    pub(crate) fn leave(&mut self, topic: &Topic, units: &[Unit]) -> Vec<Unit> {
        self.leaving.extend(units.iter().cloned());
        self.leaving.iter().filter(|unit| unit.topic == *topic).cloned().collect()
    }

    /// Records that units were given back.
    pub(crate) fn left(&mut self, units: &[Unit]) {
        self.leaving.retain(|unit| !units.contains(unit));
    }

    /// Records that a unit could not be taken.
    pub(crate) fn refuse(&mut self, unit: &Unit) {
        self.refused.insert(unit.clone());
    }

    pub(crate) fn was_refused(&self, unit: &Unit) -> bool {
        self.refused.contains(unit)
    }

    /// Gives up the units whose leases ran out. Returns true if there were any.
    pub(crate) fn expire(&mut self, now: Duration) -> bool {
        let over = self.window.units().filter(|(_, owned)| owned.state.until <= now);
        let over: Vec<Unit> = over.map(|(unit, _)| unit.clone()).collect();
        over.iter().for_each(|unit| self.lose(unit));
        !over.is_empty()
    }

    // ---- reading

    /// Plans the next read; `None` while there is no room, or nothing to read from.
    pub(crate) fn plan(&mut self, now: Duration) -> Option<Plan> {
        let room = self.window.room();
        let is_full = room.messages == 0 || (room.bytes == 0 && !self.window.is_empty());
        if self.window.is_draining() || is_full {
            return None;
        }
        let at_once = self.read_size.next(room);
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
            let owned = self.window.unit(unit)?;
            Some((unit.clone(), owned.incarnation(), owned.state.cursor))
        });
        let units = units.collect();
        self.hinted.clear();
        self.full = false;
        Some(Plan { units, count, of })
    }

    fn readable(&self, now: Duration) -> impl Iterator<Item = (&Unit, &LeasedUnit)> {
        self.window.units().filter(move |(_, owned)| !owned.is_paused() && owned.state.until > now)
    }

    /// Takes in the result of a read of one unit that began at `from` and asked for `count`
    /// entries. Those that are gone from the stream are finished: returns their number.
    pub(crate) fn read(
        &mut self,
        unit: &Unit,
        incarnation: u64,
        from: Cursor,
        count: usize,
        entries: Vec<Entry>,
    ) -> usize {
        let contents = entries.iter().filter_map(|entry| entry.content.as_ref());
        if let Some(largest) = contents.map(|(message, _)| bytes_of(message)).max() {
            self.read_size.saw(largest);
        }
        self.full |= entries.len() >= count;
        let owned = self.window.unit_mut(unit).filter(|owned| owned.incarnation() == incarnation);
        let Some(owned) = owned else { return 0 };
        // Rewound meanwhile. What this read took stands in the group's pending entries, and is read
        // again from there.
        if owned.state.cursor != from || owned.is_paused() {
            self.rewind_unit(unit);
            return 0;
        }
        owned.state.advance(count, entries.len(), entries.last().map(|entry| entry.id));
        let first = owned.state.number + 1;
        owned.state.number += u64::try_from(entries.len()).unwrap_or(u64::MAX);
        let mut gone = 0;
        for (number, Entry { id, content }) in (first..).zip(entries) {
            match content {
                Some((message, origin)) => {
                    self.window.arrived(unit, number, id, |tag| Delivery::new(tag, message, origin));
                }
                None => {
                    gone += 1;
                    self.window.arrived_finished(unit, number, id);
                }
            }
        }
        gone
    }

    /// Returns the entry of each unit behind which to wait for something new. `None` while
    /// something is still to be read.
    pub(crate) fn watchable(&self, now: Duration) -> Option<Vec<(Unit, StreamId)>> {
        let readable: Vec<_> = self.readable(now).collect();
        if readable.is_empty() || readable.iter().any(|(_, owned)| owned.state.cursor != Cursor::New) {
            return None;
        }
        Some(readable.into_iter().map(|(unit, owned)| (unit.clone(), owned.state.seen)).collect())
    }

    /// Records that there is something new in these units.
    pub(crate) fn hint(&mut self, units: impl IntoIterator<Item = Unit>) {
        self.hinted.extend(units);
    }

    /// Records that a read ended, and was taken in. It took so long, of the time that it had.
    pub(crate) fn has_read(&mut self, took: Duration, of: Duration) {
        self.read_size.ended(self.full, took, of);
    }

    /// Records that the reader's connection is gone, perhaps with an answer: what it may have
    /// brought is read again, less of it at once.
    pub(crate) fn rewind(&mut self) {
        self.read_size.failed();
        let units: Vec<Unit> = self.window.units().map(|(unit, _)| unit.clone()).collect();
        units.iter().for_each(|unit| self.rewind_unit(unit));
    }

    /// Drops what waits of a unit, to be read again: it is among the pending entries, behind what
    /// was dispatched.
    fn rewind_unit(&mut self, unit: &Unit) {
        self.window.drop_waiting(unit);
        if let Some(owned) = self.window.unit_mut(unit) {
            owned.state.cursor = Cursor::Pending(owned.last_handed().unwrap_or(StreamId::START));
        }
    }

    /// Keeps an error for whoever receives.
    pub(crate) fn fail(&mut self, error: Error) {
        self.error = Some(error);
    }

    // ---- receiving

    /// Takes what the member is told next. Nothing is lost with the answer's future: it is given in
    /// one step.
    pub(crate) fn take(&mut self, now: Duration) -> Result<Option<Received>, Error> {
        self.expire(now);
        match self.window.receive() {
            Some(received) => Ok(Some(received)),
            None => self.error.take().map_or(Ok(None), Err),
        }
    }

    /// Marks deliveries finished: unconfirmed until Redis knows, or their unit is lost. Returns
    /// true if there is anything to tell of them.
    pub(crate) fn finish(&mut self, tags: &[Tag]) -> bool {
        let mut any = false;
        for tag in tags {
            any |= self.window.finish(tag);
        }
        any
    }

    /// Returns everything that Redis is to be told of.
    pub(crate) fn unconfirmed(&self) -> Vec<Unconfirmed> {
        self.window.finished()
    }

    /// Records that Redis knows of these: there is room again.
    pub(crate) fn confirmed(&mut self, finished: &Unconfirmed) {
        self.window.confirm(finished);
    }

    pub(crate) fn pause(&mut self, units: &[Unit]) {
        self.window.pause(units, true);
        // Waiting entries would take room from others.
        units.iter().for_each(|unit| self.rewind_unit(unit));
    }

    pub(crate) fn resume(&mut self, units: &[Unit]) {
        self.window.pause(units, false);
    }

    pub(crate) fn drain(&mut self) {
        self.window.drain();
    }

    pub(crate) const fn is_draining(&self) -> bool {
        self.window.is_draining()
    }
}

#[cfg(test)]
#[path = "consumption_tests.rs"]
mod tests;
