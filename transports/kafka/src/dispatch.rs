//! Dispatch of a member: its window, and the control of the client's fetching.
//!
//! A machine without waiting. The thread of the member puts in, the deliveries take out.

use std::collections::VecDeque;

use outbox_contract::TransportError;
use outbox_contract::backend::flow::{Finished, Load, OwnedUnit, Window};
use outbox_contract::backend::{Delivery, Received, Subscription, Tag, Unit};

/// Minimum number of messages that may wait of a partition.
const FEWEST: usize = 16;

/// The partitions of a member.
#[derive(Debug)]
pub(crate) struct Dispatch {
    window: Window<Fetching>,
    over: bool,
    /// Error to tell, and whether a record that comes shows that it is over.
    problem: Option<(TransportError, bool)>,
}

/// Progress of the client in a partition.
#[derive(Debug, Default)]
pub(crate) struct Fetching {
    /// Offset of the last record that came.
    last: Option<i64>,
    /// The client fetches nothing of it: it is paused, or enough of it waits.
    is_stopped: bool,
    /// Offsets from which records are of another second than those before, with the milliseconds of
    /// each.
    written: VecDeque<(i64, i64)>,
}

impl Fetching {
    /// Notes when a record was written. Once a second of the log is enough.
    fn note(&mut self, offset: i64, millis: i64) {
        if self.written.back().is_none_or(|(_, last)| millis - last >= 1_000) {
            self.written.push_back((offset, millis));
        }
    }

    /// Forgets what is finished.
    fn forget_before(&mut self, offset: i64) {
        while self.written.get(1).is_some_and(|(next, _)| *next <= offset) {
            self.written.pop_front();
        }
    }

    fn written_at(&self, offset: i64) -> Option<i64> {
        self.written.iter().take_while(|(from, _)| *from <= offset).last().map(|(_, millis)| *millis)
    }
}

/// Instruction to the client for a partition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Flow {
    Stop(Unit),
    Go(Unit),
    /// Fetch from this offset on, at once: what was fetched of it before is not looked at.
    Back(Unit, i64),
}

impl Dispatch {
    /// # Errors
    ///
    /// A subscription that could get nothing.
    pub(crate) fn new(subscription: &Subscription) -> Result<Self, TransportError> {
        Ok(Self { window: Window::new(subscription)?.by_offset(), over: false, problem: None })
    }

    /// Assigns a partition to this member.
    pub(crate) fn assign(&mut self, unit: Unit) {
        self.window.assign(unit, Fetching::default());
    }

    /// Takes partitions away from this member.
    pub(crate) fn revoke(&mut self, units: &[Unit]) {
        for unit in units {
            self.window.revoke(unit);
        }
    }

    /// Returns all partitions.
    pub(crate) fn owned(&self) -> Vec<Unit> {
        self.window.units().map(|(unit, _)| unit.clone()).collect()
    }

    /// Returns the offset of the record that is to come next of a partition, unless nothing of it
    /// has come yet.
    pub(crate) fn next_of(&self, unit: &Unit) -> Option<i64> {
        Some(self.window.unit(unit)?.state.last? + 1)
    }

    /// Returns the first offset of a partition that is not finished, and when it was written.
    pub(crate) fn unfinished(&self, unit: &Unit) -> Option<(i64, Option<i64>)> {
        let owned = self.window.unit(unit)?;
        let offset = i64::try_from(owned.first_unfinished()?).ok()?;
        Some((offset, owned.state.written_at(offset)))
    }

    /// A record that came was written then.
    pub(crate) fn written(&mut self, unit: &Unit, offset: i64, millis: i64) {
        if let Some(owned) = self.window.unit_mut(unit) {
            owned.state.note(offset, millis);
        }
    }

    /// Returns the partitions of which the client fetches nothing now.
    pub(crate) fn stopped(&self) -> Vec<Unit> {
        let stopped = self.window.units().filter(|(_, owned)| owned.state.is_stopped);
        stopped.map(|(unit, _)| unit.clone()).collect()
    }

    /// Returns true if something of these partitions is in hand and not finished.
    pub(crate) fn is_busy(&self, units: &[Unit]) -> bool {
        units.iter().filter_map(|unit| self.window.unit(unit)).any(|owned| owned.in_hand().messages > 0)
    }

    /// Begins another ownership: the log of a partition goes back, as it was cut off, or its topic
    /// was made anew. Offsets mean other records now. Returns where to fetch from so that nothing
    /// is left out, unless that is the offset that came.
    fn go_back(&mut self, unit: &Unit, offset: i64) -> Option<Flow> {
        let owned = self.window.unit(unit)?;
        let (is_paused, is_stopped) = (owned.is_paused(), owned.state.is_stopped);
        let first = owned.first_unfinished().and_then(|number| i64::try_from(number).ok());
        // The client knows nothing of this, and holds back what it held back.
        self.window.assign(unit.clone(), Fetching { is_stopped, ..Fetching::default() });
        self.window.pause(std::slice::from_ref(unit), is_paused);
        first.filter(|first| *first < offset).map(|first| Flow::Back(unit.clone(), first))
    }

    /// Adds a record that came. `make` gets the tag.
    pub(crate) fn push(
        &mut self,
        unit: &Unit,
        offset: i64,
        make: impl FnOnce(Tag) -> Delivery,
    ) -> Option<Flow> {
        let limit = self.share();
        // Records that still arrive from a revoked partition belong to its new owner.
        if self.window.unit(unit)?.state.last.is_some_and(|last| offset <= last)
            && let Some(back) = self.go_back(unit, offset)
        {
            return Some(back);
        }
        self.window.arrived(unit, u64::try_from(offset).unwrap_or_default(), (), make);
        self.problem.take_if(|(_, until_a_record)| *until_a_record);
        let owned = self.window.unit_mut(unit)?;
        owned.state.last = Some(offset);
        (is_full(owned, limit) && !owned.state.is_stopped).then(|| {
            owned.state.is_stopped = true;
            Flow::Stop(unit.clone())
        })
    }

    /// Returns how much may wait of each partition: together twice what may be in hand.
    fn share(&self) -> Load {
        let (units, Load { messages, bytes }) = (self.window.units().len().max(1), self.window.limit());
        Load {
            messages: (messages.saturating_mul(2) / units).max(FEWEST),
            bytes: bytes.saturating_mul(2) / units,
        }
    }

    /// Returns what the client is to stop or go on with, after something was taken out, paused or
    /// resumed.
    pub(crate) fn flow(&mut self) -> Vec<Flow> {
        let limit = self.share();
        let half = Load { messages: limit.messages / 2, bytes: limit.bytes / 2 };
        let mut flow = Vec::new();
        for (unit, owned) in self.window.units_mut() {
            let Load { messages, bytes } = owned.waiting();
            let low = messages <= half.messages && bytes <= half.bytes;
            if owned.state.is_stopped && low && !owned.is_paused() {
                owned.state.is_stopped = false;
                flow.push(Flow::Go(unit.clone()));
            } else if !owned.state.is_stopped && (owned.is_paused() || (is_full(owned, limit) && !low)) {
                owned.state.is_stopped = true;
                flow.push(Flow::Stop(unit.clone()));
            }
        }
        flow
    }

    /// Returns true if the client holds back partitions of which little waits now.
    pub(crate) fn has_stopped(&self) -> bool {
        self.window.units().any(|(_, owned)| owned.state.is_stopped && !owned.is_paused())
    }

    /// Takes what is to be said next.
    ///
    /// # Errors
    ///
    /// An error since the last call.
    pub(crate) fn take(&mut self) -> Result<Option<Received>, TransportError> {
        if let Some(notice) = self.window.notice() {
            return Ok(Some(notice));
        }
        if let Some((problem, _)) = self.problem.take_if(|(problem, _)| !problem.is_retryable()) {
            return Err(problem);
        }
        if self.over {
            self.window.drain();
            return Ok(self.window.notice());
        }
        match self.window.receive() {
            Some(deliveries) => Ok(Some(deliveries)),
            // Behind what is there: an error that lasts would hold it up for as long.
            None => self.problem.take().map_or(Ok(None), |(problem, _)| Err(problem)),
        }
    }

    /// Marks deliveries finished. Those of an earlier ownership are ignored.
    pub(crate) fn acknowledge(&mut self, tags: &[Tag]) {
        for tag in tags {
            self.window.finish(tag);
        }
    }

    /// Returns what is finished, and not committed.
    pub(crate) fn to_commit(&self) -> Vec<Finished<()>> {
        self.window.finished()
    }

    /// Records that the broker has these offsets.
    pub(crate) fn committed(&mut self, finished: &[Finished<()>]) {
        for it in finished {
            self.window.confirm(it);
            if let (Some(owned), Some(through)) = (self.window.unit_mut(&it.unit), it.through) {
                owned.state.forget_before(i64::try_from(through).unwrap_or(i64::MAX));
            }
        }
    }

    /// Pauses or resumes partitions. Those of others are ignored.
    pub(crate) fn pause(&mut self, units: &[Unit], paused: bool) {
        self.window.pause(units, paused);
    }

    /// Ends dispatching.
    pub(crate) fn drain(&mut self) {
        self.window.drain();
    }

    pub(crate) const fn is_drained(&self) -> bool {
        self.window.is_draining()
    }

    /// Records that the member has left.
    pub(crate) fn end(&mut self) {
        self.over = true;
    }

    /// Keeps an error for the next call of [`take`](Self::take), unless it is over by then.
    /// `until_a_record`: that is when one comes, of whichever partition.
    pub(crate) fn fail(&mut self, problem: TransportError, until_a_record: bool) {
        // The client may report an error that does not pass by waiting only once.
        if self.problem.as_ref().is_none_or(|(last, _)| last.is_retryable()) {
            self.problem = Some((problem, until_a_record));
        }
    }
}

fn is_full(owned: &OwnedUnit<Fetching, ()>, limit: Load) -> bool {
    let Load { messages, bytes } = owned.waiting();
    messages >= limit.messages || bytes >= limit.bytes
}

#[cfg(test)]
#[path = "dispatch_tests.rs"]
mod tests;
