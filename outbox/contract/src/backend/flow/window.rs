//! Window of a member: its units, its unacknowledged deliveries, and what it is told next.
//!
//! Promises:
//!
//! - No more than the prefetch is unacknowledged, in messages and bytes; a larger delivery comes
//!   alone. No unit waits forever behind another one.
//! - Deliveries of a unit are dispatched in order, under the ownership under which they arrived.
//! - An acknowledgment counts once, and only for the ownership of its delivery.
//! - *Revoked* is said before anything of a later ownership, and before *Ended*, which is the last
//!   word.

use std::collections::{BTreeMap, BTreeSet};

use super::load::Load;
use super::owned_unit::OwnedUnit;
use crate::backend::{Delivery, Received, Subscription, Tag, Unit};
use crate::error::{TransportError, TransportErrorKind};

/// Finished deliveries of a unit that the broker has not confirmed.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Finished<P> {
    /// The unit.
    pub unit: Unit,
    /// Its ownership.
    pub incarnation: u64,
    /// Number of the last delivery up to which everything is finished: an offset to commit, or one
    /// acknowledgment for several.
    pub through: Option<u64>,
    /// All of them, by number, with their places. Empty where an offset says it.
    pub deliveries: Vec<(u64, P)>,
}

/// Window of a member of a consumer.
///
/// The transport [assigns](Self::assign) and [revokes](Self::revoke) units and adds what
/// [arrived](Self::arrived); the member [receives](Self::receive) and
/// [finishes](Self::finish) deliveries; the transport tells the broker what is
/// [finished](Self::finished), and [confirms](Self::confirm) it.
///
/// `U` is what the transport keeps for each unit, `P` the place of a delivery on the broker.
#[derive(Debug)]
pub struct Window<U = (), P = ()> {
    limit: Load,
    by_offset: bool,
    units: BTreeMap<Unit, OwnedUnit<U, P>>,
    incarnations: u64,
    in_hand: Load,
    waiting: Load,
    /// The unit that is dispatched from first.
    first: Option<Unit>,
    revoked: BTreeSet<Unit>,
    is_draining: bool,
    has_ended: bool,
}

/// The reason why a unit stopped dispatching.
enum Stop {
    Empty,
    Share,
    NoRoom,
}

impl<U, P: Copy + PartialEq> Window<U, P> {
    /// Creates the window of a subscription, without units.
    ///
    /// A finished delivery counts against the prefetch until it is [confirmed](Self::confirm): so
    /// a member never owes the broker more acknowledgments than its prefetch.
    ///
    /// # Errors
    ///
    /// [`Invalid`](TransportErrorKind::Invalid): no topics, or a prefetch of 0. Nothing could ever
    /// be delivered.
    pub fn new(subscription: &Subscription) -> Result<Self, TransportError> {
        let invalid = |why: &str| Err(TransportError::new(TransportErrorKind::Invalid, "subscribe", why));
        if subscription.topics.is_empty() {
            return invalid("the subscription has no topics; name at least one");
        }
        if subscription.prefetch == 0 {
            return invalid("the prefetch is 0, so no message could be delivered; set it to 1 or more");
        }
        Ok(Self {
            limit: Load { messages: subscription.prefetch, bytes: subscription.prefetch_bytes },
            by_offset: false,
            units: BTreeMap::new(),
            incarnations: 0,
            in_hand: Load::default(),
            waiting: Load::default(),
            first: None,
            revoked: BTreeSet::new(),
            is_draining: false,
            has_ended: false,
        })
    }

    /// Acknowledges by an offset, which advances over finished deliveries without a gap. A finished
    /// delivery makes room at once: one that is handled for long holds up the offset, not the rest.
    #[must_use]
    pub fn by_offset(mut self) -> Self {
        self.by_offset = true;
        self
    }

    /// Returns the limit of unacknowledged deliveries.
    #[must_use]
    pub const fn limit(&self) -> Load {
        self.limit
    }

    /// Returns the load that may still be read: neither unacknowledged nor waiting.
    #[must_use]
    pub const fn room(&self) -> Load {
        Load {
            messages: self.limit.messages.saturating_sub(self.in_hand.messages + self.waiting.messages),
            bytes: self.limit.bytes.saturating_sub(self.in_hand.bytes.saturating_add(self.waiting.bytes)),
        }
    }

    /// Returns true if nothing is unacknowledged and nothing waits.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.in_hand.messages == 0 && self.waiting.messages == 0
    }

    // ---- units

    /// Assigns a unit to the member: a new ownership begins. Revokes an earlier one.
    pub fn assign(&mut self, unit: Unit, state: U) {
        self.revoke(&unit);
        self.incarnations += 1;
        self.units.insert(unit, OwnedUnit::new(self.incarnations, state));
    }

    /// Takes a unit away from the member, with its waiting and unacknowledged deliveries and its
    /// pause; returns the transport's state for it.
    pub fn revoke(&mut self, unit: &Unit) -> Option<U> {
        let owned = self.units.remove(unit)?;
        self.in_hand.remove(owned.in_hand());
        self.waiting.remove(owned.waiting());
        self.revoked.insert(unit.clone());
        Some(owned.state)
    }

    /// Returns a unit of the member.
    #[must_use]
    pub fn unit(&self, unit: &Unit) -> Option<&OwnedUnit<U, P>> {
        self.units.get(unit)
    }

    /// Returns a unit of the member for changes of the transport's state.
    pub fn unit_mut(&mut self, unit: &Unit) -> Option<&mut OwnedUnit<U, P>> {
        self.units.get_mut(unit)
    }

    /// Returns the units of the member.
    #[must_use]
    pub fn units(&self) -> impl ExactSizeIterator<Item = (&Unit, &OwnedUnit<U, P>)> {
        self.units.iter()
    }

    /// Returns the units of the member for changes of the transport's state.
    pub fn units_mut(&mut self) -> impl Iterator<Item = (&Unit, &mut OwnedUnit<U, P>)> {
        self.units.iter_mut()
    }

    /// Stops or resumes dispatching from units. Units of others are ignored: a pause belongs to an
    /// ownership.
    pub fn pause(&mut self, units: &[Unit], paused: bool) {
        for unit in units {
            if let Some(owned) = self.units.get_mut(unit) {
                owned.is_paused = paused;
            }
        }
    }

    // ---- arriving

    /// Adds a delivery that arrived from the broker, behind all others of its unit. Numbers grow
    /// along the unit. Ignored if the unit belongs to another member.
    pub fn arrived(&mut self, unit: &Unit, number: u64, place: P, make: impl FnOnce(Tag) -> Delivery) {
        if let Some(owned) = self.units.get_mut(unit) {
            let tag = Tag { unit: unit.clone(), incarnation: owned.incarnation(), number };
            self.waiting.add(owned.push(place, make(tag)));
        }
    }

    /// Adds a delivery that has nothing to dispatch: it is finished at once.
    pub fn arrived_finished(&mut self, unit: &Unit, number: u64, place: P) {
        if let Some(owned) = self.units.get_mut(unit) {
            self.in_hand.add(owned.push_finished(number, place));
        }
    }

    /// Drops the waiting deliveries of a unit: they will arrive again.
    pub fn drop_waiting(&mut self, unit: &Unit) {
        if let Some(owned) = self.units.get_mut(unit) {
            self.waiting.remove(owned.drop_waiting());
        }
    }

    // ---- receiving

    /// Takes what the member is told next.
    pub fn receive(&mut self) -> Option<Received> {
        self.notice().or_else(|| {
            let deliveries = self.hand_out();
            (!deliveries.is_empty()).then_some(Received::Deliveries(deliveries))
        })
    }

    /// Takes what the member is told before any delivery: a revocation, then the end.
    pub fn notice(&mut self) -> Option<Received> {
        if !self.has_ended && !self.revoked.is_empty() {
            return Some(Received::Revoked(std::mem::take(&mut self.revoked).into_iter().collect()));
        }
        self.has_ended |= self.is_draining;
        self.has_ended.then_some(Received::Ended)
    }

    /// Dispatches waiting deliveries as far as there is room. In rounds: each unit gives its share
    /// of the room, and the next round shares the rest. A delivery without room is not passed by
    /// those of other units, and has the next turn: a large one would wait forever behind small
    /// ones.
    pub fn hand_out(&mut self) -> Vec<Delivery> {
        let mut handed = Vec::new();
        let mut ready = self.ready();
        self.first = ready.get(1).or(ready.first()).cloned();
        while !ready.is_empty() {
            let room = self.limit.messages.saturating_sub(self.in_hand.messages);
            let (share, mut left) = ((room / ready.len()).max(1), Vec::new());
            for unit in ready {
                match self.hand_out_of(&unit, share, &mut handed) {
                    Stop::Empty => {}
                    Stop::Share => left.push(unit),
                    Stop::NoRoom => {
                        self.first = Some(unit);
                        return handed;
                    }
                }
            }
            ready = left;
        }
        handed
    }

    /// Returns the units with something to dispatch, from the one whose turn it is.
    fn ready(&self) -> Vec<Unit> {
        let ready = self.units.iter().filter(|(_, owned)| owned.peek().is_some()).map(|(unit, _)| unit);
        let mut ready: Vec<Unit> = ready.cloned().collect();
        let first = self.first.as_ref().and_then(|first| ready.iter().position(|unit| unit >= first));
        ready.rotate_left(first.unwrap_or_default());
        ready
    }

    fn hand_out_of(&mut self, unit: &Unit, share: usize, handed: &mut Vec<Delivery>) -> Stop {
        let Some(owned) = self.units.get_mut(unit) else { return Stop::Empty };
        for _ in 0..share {
            let Some(bytes) = owned.peek() else { return Stop::Empty };
            if !self.in_hand.has_room_for(bytes, self.limit) {
                return Stop::NoRoom;
            }
            let Some((delivery, load)) = owned.hand_out() else { return Stop::Empty };
            self.waiting.remove(load);
            self.in_hand.add(load);
            handed.push(delivery);
        }
        Stop::Share
    }

    /// Ends dispatching. Acknowledgments still count.
    pub fn drain(&mut self) {
        self.is_draining = true;
    }

    /// Returns true if the member drains.
    #[must_use]
    pub const fn is_draining(&self) -> bool {
        self.is_draining
    }

    // ---- acknowledging

    /// Marks a delivery finished. Returns true if the broker has to hear of it: not for one of an
    /// earlier ownership, nor for one that was finished and confirmed before.
    pub fn finish(&mut self, tag: &Tag) -> bool {
        let owned = self.units.get_mut(&tag.unit).filter(|owned| owned.incarnation() == tag.incarnation);
        let Some(owned) = owned else { return false };
        if !self.by_offset {
            return owned.finish(tag.number);
        }
        let released = owned.finish_by_offset(tag.number);
        self.in_hand.remove(released.unwrap_or_default());
        released.is_some()
    }

    /// Returns the finished deliveries that the broker has not confirmed.
    #[must_use]
    pub fn finished(&self) -> Vec<Finished<P>> {
        let finished = self.units.iter().map(|(unit, owned)| {
            let (through, deliveries) =
                if self.by_offset { (owned.finished_by_offset(), Vec::new()) } else { owned.finished() };
            Finished { unit: unit.clone(), incarnation: owned.incarnation(), through, deliveries }
        });
        finished.filter(|it| it.through.is_some() || !it.deliveries.is_empty()).collect()
    }

    /// Confirms that the broker knows of finished deliveries. Ignored for an earlier ownership.
    pub fn confirm(&mut self, finished: &Finished<P>) {
        let owned = self.units.get_mut(&finished.unit);
        if let Some(owned) = owned.filter(|owned| owned.incarnation() == finished.incarnation) {
            self.in_hand.remove(owned.confirm(finished.through, &finished.deliveries));
        }
    }

    /// Takes the finished deliveries as confirmed: for brokers that give no answer to an
    /// acknowledgment.
    pub fn take_finished(&mut self) -> Vec<Finished<P>> {
        let finished = self.finished();
        finished.iter().for_each(|it| self.confirm(it));
        finished
    }
}

#[cfg(test)]
#[path = "window_tests.rs"]
mod tests;
