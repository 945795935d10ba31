//! What a member has, and what it gives out: partitions with what waits of each, what is in hand, what may be committed.
//!
//! A machine without waiting. The thread of the member puts in, the deliveries take out.
//!
//! Promises: no more than the prefetch is in hand; nothing of a partition that was taken away or is paused is given out; an
//! acknowledgement counts only for the ownership in which its delivery was given out.

use std::collections::{BTreeMap, VecDeque};

use outbox_contract::TransportError;
use outbox_contract::backend::{Delivery, Received, Subscription, Tag, Unit};

use crate::offsets::Offsets;

/// The fewest messages that may wait of a partition.
const FEWEST: usize = 16;
/// What a delivery takes beside its payload, about, where it is no message.
const FIXED: usize = 256;

/// The partitions of a member.
#[derive(Debug)]
pub(crate) struct Dispatch {
    prefetch: usize,
    prefetch_bytes: usize,
    units: BTreeMap<Unit, Owned>,
    /// How often each partition was assigned.
    incarnations: BTreeMap<Unit, u64>,
    revoked: Vec<Unit>,
    in_hand: usize,
    bytes_in_hand: usize,
    /// Which partition is served first: each in its turn.
    turn: usize,
    drained: bool,
    over: bool,
    /// What went wrong, and whether a record that comes shows that it is over.
    problem: Option<(TransportError, bool)>,
}

#[derive(Debug, Default)]
struct Owned {
    incarnation: u64,
    waiting: VecDeque<(i64, Delivery)>,
    waiting_bytes: usize,
    /// The last record that came.
    last: Option<i64>,
    offsets: Offsets,
    paused: bool,
    /// Whether the client fetches nothing of it: it is paused, or enough of it waits.
    stopped: bool,
}

/// What the client is to do with a partition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Flow {
    Stop(Unit),
    Go(Unit),
    /// Fetch from this offset on, at once: what was fetched of it before is not looked at.
    Back(Unit, i64),
}

impl Dispatch {
    pub(crate) fn new(subscription: &Subscription) -> Self {
        Self {
            prefetch: subscription.prefetch.max(1),
            prefetch_bytes: subscription.prefetch_bytes,
            units: BTreeMap::new(),
            incarnations: BTreeMap::new(),
            revoked: Vec::new(),
            in_hand: 0,
            bytes_in_hand: 0,
            turn: 0,
            drained: false,
            over: false,
            problem: None,
        }
    }

    /// A partition is this member's from now on.
    pub(crate) fn assign(&mut self, unit: Unit) {
        let incarnation = self.incarnations.entry(unit.clone()).or_default();
        *incarnation += 1;
        let owned = Owned { incarnation: *incarnation, ..Owned::default() };
        self.units.insert(unit, owned);
    }

    /// Partitions are this member's no more.
    pub(crate) fn revoke(&mut self, units: &[Unit]) {
        for unit in units {
            if let Some(owned) = self.units.remove(unit) {
                let (messages, bytes) = owned.offsets.unfinished();
                self.in_hand = self.in_hand.saturating_sub(messages);
                self.bytes_in_hand = self.bytes_in_hand.saturating_sub(bytes);
                self.revoked.push(unit.clone());
            }
        }
    }

    /// All partitions.
    pub(crate) fn owned(&self) -> Vec<Unit> {
        self.units.keys().cloned().collect()
    }

    /// The offset of the record that is to come next of a partition. None: nothing of it has come yet.
    pub(crate) fn next_of(&self, unit: &Unit) -> Option<i64> {
        Some(self.units.get(unit)?.last? + 1)
    }

    /// Whether something of these partitions is in hand and not finished.
    pub(crate) fn is_busy(&self, units: &[Unit]) -> bool {
        units.iter().filter_map(|unit| self.units.get(unit)).any(|owned| owned.offsets.unfinished().0 > 0)
    }

    /// The log of a partition goes back, within one ownership: it was cut off, or its topic was made anew. Offsets mean other records now, so this is
    /// another ownership, which begins where nothing is left out. Some: at this offset, and not at the one that came.
    fn go_back(&mut self, unit: &Unit, offset: i64) -> Option<Flow> {
        let owned = self.units.get(unit)?;
        let (paused, stopped) = (owned.paused, owned.stopped);
        let waiting = owned.waiting.front().map(|(offset, _)| *offset);
        let first = owned.offsets.first_unfinished().or(waiting);
        self.revoke(std::slice::from_ref(unit));
        self.assign(unit.clone());
        if let Some(owned) = self.units.get_mut(unit) {
            // The client knows nothing of this, and holds back what it held back.
            (owned.paused, owned.stopped) = (paused, stopped);
        }
        first.filter(|first| *first < offset).map(|first| Flow::Back(unit.clone(), first))
    }

    /// A record came. `make` gets the tag.
    pub(crate) fn push(
        &mut self,
        unit: &Unit,
        offset: i64,
        make: impl FnOnce(Tag) -> Delivery,
    ) -> Option<Flow> {
        let (most, max_bytes) = self.share();
        // What still comes of a partition that was taken away belongs to its new owner.
        if self.units.get(unit)?.last.is_some_and(|last| offset <= last)
            && let Some(back) = self.go_back(unit, offset)
        {
            return Some(back);
        }
        let owned = self.units.get_mut(unit)?;
        owned.last = Some(offset);
        let number = u64::try_from(offset).unwrap_or_default();
        let delivery = make(Tag { unit: unit.clone(), incarnation: owned.incarnation, number });
        owned.waiting_bytes += bytes_of(&delivery);
        owned.waiting.push_back((offset, delivery));
        self.problem.take_if(|(_, until_a_record)| *until_a_record);
        let full = owned.waiting.len() >= most || owned.waiting_bytes >= max_bytes;
        (full && !owned.stopped).then(|| {
            owned.stopped = true;
            Flow::Stop(unit.clone())
        })
    }

    /// How much may wait of each partition: together twice what may be in hand.
    fn share(&self) -> (usize, usize) {
        let units = self.units.len().max(1);
        ((2 * self.prefetch / units).max(FEWEST), 2 * self.prefetch_bytes / units)
    }

    /// What the client is to stop or go on with, after something was taken out, paused or resumed.
    pub(crate) fn flow(&mut self) -> Vec<Flow> {
        let (most, max_bytes) = self.share();
        let mut flow = Vec::new();
        for (unit, owned) in &mut self.units {
            let low = owned.waiting.len() <= most / 2 && owned.waiting_bytes <= max_bytes / 2;
            let high = owned.waiting.len() >= most || owned.waiting_bytes >= max_bytes;
            if owned.stopped && low && !owned.paused {
                owned.stopped = false;
                flow.push(Flow::Go(unit.clone()));
            } else if !owned.stopped && (owned.paused || (high && !low)) {
                owned.stopped = true;
                flow.push(Flow::Stop(unit.clone()));
            }
        }
        flow
    }

    /// Whether the client holds back partitions of which little waits now.
    pub(crate) fn has_stopped(&self) -> bool {
        self.units.values().any(|owned| owned.stopped && !owned.paused)
    }

    /// What is to be said next. None: nothing for now.
    ///
    /// # Errors
    ///
    /// What went wrong since the last call.
    pub(crate) fn take(&mut self) -> Result<Option<Received>, TransportError> {
        if !self.revoked.is_empty() {
            return Ok(Some(Received::Revoked(std::mem::take(&mut self.revoked))));
        }
        if self.drained {
            return Ok(Some(Received::Ended));
        }
        if let Some((problem, _)) = self.problem.take_if(|(problem, _)| !problem.is_retryable()) {
            return Err(problem);
        }
        if self.over {
            return Ok(Some(Received::Ended));
        }
        let deliveries = self.hand_out();
        if !deliveries.is_empty() {
            return Ok(Some(Received::Deliveries(deliveries)));
        }
        // Behind what is there: an error that lasts would hold it up for as long.
        self.problem.take().map_or(Ok(None), |(problem, _)| Err(problem))
    }

    fn hand_out(&mut self) -> Vec<Delivery> {
        let mut deliveries = Vec::new();
        let first = self.turn.checked_rem(self.units.len()).unwrap_or_default();
        self.turn = self.turn.wrapping_add(1);
        let order: Vec<Unit> =
            self.units.keys().skip(first).chain(self.units.keys().take(first)).cloned().collect();
        'all: for unit in order {
            let Some(owned) = self.units.get_mut(&unit).filter(|owned| !owned.paused) else { continue };
            while let Some((offset, next)) = owned.waiting.front() {
                let bytes = bytes_of(next);
                let fits = self.bytes_in_hand + bytes <= self.prefetch_bytes || self.in_hand == 0;
                if self.in_hand >= self.prefetch || !fits {
                    // Not skipped either: a large one would wait for ever behind small ones of other partitions.
                    break 'all;
                }
                owned.offsets.handed(*offset, bytes);
                owned.waiting_bytes = owned.waiting_bytes.saturating_sub(bytes);
                self.in_hand += 1;
                self.bytes_in_hand += bytes;
                deliveries.extend(owned.waiting.pop_front().map(|(_, delivery)| delivery));
            }
        }
        deliveries
    }

    /// These deliveries are finished. Those of an earlier ownership are not looked at.
    pub(crate) fn acknowledge(&mut self, tags: &[Tag]) {
        for tag in tags {
            let owned = self.units.get_mut(&tag.unit).filter(|owned| owned.incarnation == tag.incarnation);
            let Some((owned, offset)) = owned.zip(i64::try_from(tag.number).ok()) else { continue };
            if let Some(bytes) = owned.offsets.finish(offset) {
                self.in_hand = self.in_hand.saturating_sub(1);
                self.bytes_in_hand = self.bytes_in_hand.saturating_sub(bytes);
            }
        }
    }

    /// The offsets to commit: where the next owner of each partition is to begin.
    pub(crate) fn to_commit(&self) -> Vec<(Unit, i64)> {
        let units = self.units.iter();
        units.filter_map(|(unit, owned)| Some((unit.clone(), owned.offsets.to_commit()?))).collect()
    }

    /// The broker has these offsets.
    pub(crate) fn committed(&mut self, offsets: &[(Unit, i64)]) {
        for (unit, offset) in offsets {
            if let Some(owned) = self.units.get_mut(unit) {
                owned.offsets.committed(*offset);
            }
        }
    }

    /// Pauses or resumes partitions. Those of others are not looked at.
    pub(crate) fn pause(&mut self, units: &[Unit], paused: bool) {
        for unit in units {
            if let Some(owned) = self.units.get_mut(unit) {
                owned.paused = paused;
            }
        }
    }

    /// Gives nothing more out.
    pub(crate) fn drain(&mut self) {
        self.drained = true;
    }

    pub(crate) fn is_drained(&self) -> bool {
        self.drained
    }

    /// The member has left.
    pub(crate) fn end(&mut self) {
        self.over = true;
    }

    /// Something went wrong; the next call of [`take`](Self::take) says so, unless it is over by then. `until_a_record`: that is when one comes, of
    /// whichever partition.
    pub(crate) fn fail(&mut self, problem: TransportError, until_a_record: bool) {
        // What nobody gets over by waiting may be said by the client but once.
        if self.problem.as_ref().is_none_or(|(last, _)| last.is_retryable()) {
            self.problem = Some((problem, until_a_record));
        }
    }
}

fn bytes_of(delivery: &Delivery) -> usize {
    match &delivery.message {
        Ok(message) => message.bytes(),
        Err(undecodable) => FIXED + undecodable.payload.len(),
    }
}

#[cfg(test)]
#[path = "dispatch_tests.rs"]
mod tests;
