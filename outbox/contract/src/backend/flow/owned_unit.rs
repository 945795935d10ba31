//! Unit that a member owns, for one ownership: its waiting, unacknowledged and finished deliveries.

use std::collections::{BTreeMap, VecDeque};

use super::load::{Load, bytes_of};
use crate::backend::Delivery;

/// A unit of a member, for one ownership.
///
/// `U` is what the transport keeps for it, `P` the place of a delivery on the broker.
#[derive(Debug)]
pub struct OwnedUnit<U, P> {
    /// State of the transport for this unit.
    pub state: U,
    incarnation: u64,
    pub(super) is_paused: bool,
    waiting: VecDeque<(P, Delivery, usize)>,
    waiting_load: Load,
    /// Dispatched and not finished, by number.
    open: BTreeMap<u64, InHand<P>>,
    /// Finished and not confirmed, by number.
    finished: BTreeMap<u64, InHand<P>>,
    /// Load of both that counts against the prefetch.
    in_hand_load: Load,
    last_handed: Option<P>,
    /// Last delivery of the finished prefix, for brokers that keep an offset.
    through: Option<u64>,
}

#[derive(Debug)]
struct InHand<P> {
    place: P,
    load: Load,
}

impl<U, P: Copy + PartialEq> OwnedUnit<U, P> {
    pub(super) fn new(incarnation: u64, state: U) -> Self {
        Self {
            state,
            incarnation,
            is_paused: false,
            waiting: VecDeque::new(),
            waiting_load: Load::default(),
            open: BTreeMap::new(),
            finished: BTreeMap::new(),
            in_hand_load: Load::default(),
            last_handed: None,
            through: None,
        }
    }

    /// Returns the number of this ownership.
    #[must_use]
    pub const fn incarnation(&self) -> u64 {
        self.incarnation
    }

    /// Returns true if nothing of the unit is dispatched.
    #[must_use]
    pub const fn is_paused(&self) -> bool {
        self.is_paused
    }

    /// Returns the load that arrived and was not dispatched.
    #[must_use]
    pub const fn waiting(&self) -> Load {
        self.waiting_load
    }

    /// Returns the unacknowledged load.
    #[must_use]
    pub const fn in_hand(&self) -> Load {
        self.in_hand_load
    }

    /// Returns the place of the last dispatched delivery.
    #[must_use]
    pub const fn last_handed(&self) -> Option<P> {
        self.last_handed
    }

    /// Returns true if the delivery at this place is here: waiting, or not confirmed.
    #[must_use]
    pub fn contains(&self, place: P) -> bool {
        let mut in_hand = self.open.values().chain(self.finished.values());
        in_hand.any(|it| it.place == place) || self.waiting.iter().any(|it| it.0 == place)
    }

    /// Returns the number of the first delivery that is not finished.
    #[must_use]
    pub fn first_unfinished(&self) -> Option<u64> {
        let open = self.open.keys().next().copied();
        open.or_else(|| self.waiting.front().map(|(_, delivery, _)| delivery.tag.number))
    }

    pub(super) fn push(&mut self, place: P, delivery: Delivery) -> Load {
        let bytes = bytes_of(&delivery.message);
        self.waiting_load.add(Load::one(bytes));
        self.waiting.push_back((place, delivery, bytes));
        Load::one(bytes)
    }

    /// Adds a delivery that is finished already.
    pub(super) fn push_finished(&mut self, number: u64, place: P) -> Load {
        self.finished.insert(number, InHand { place, load: Load::one(0) });
        self.in_hand_load.add(Load::one(0));
        Load::one(0)
    }

    pub(super) fn drop_waiting(&mut self) -> Load {
        self.waiting.clear();
        std::mem::take(&mut self.waiting_load)
    }

    /// Returns the size of the next delivery to dispatch.
    pub(super) fn peek(&self) -> Option<usize> {
        self.waiting.front().filter(|_| !self.is_paused).map(|(_, _, bytes)| *bytes)
    }

    pub(super) fn hand_out(&mut self) -> Option<(Delivery, Load)> {
        let (place, delivery, bytes) = self.waiting.pop_front()?;
        let load = Load::one(bytes);
        self.waiting_load.remove(load);
        self.in_hand_load.add(load);
        self.last_handed = Some(place);
        self.open.insert(delivery.tag.number, InHand { place, load });
        Some((delivery, load))
    }

    /// Marks a delivery finished; returns false if it is not in hand.
    pub(super) fn finish(&mut self, number: u64) -> bool {
        let Some(delivery) = self.open.remove(&number) else { return self.finished.contains_key(&number) };
        self.finished.insert(number, delivery);
        true
    }

    /// Marks a delivery finished where an offset says so, and advances the offset over the finished
    /// prefix. Returns the released load.
    pub(super) fn finish_by_offset(&mut self, number: u64) -> Option<Load> {
        let InHand { place, load } = self.open.remove(&number)?;
        self.in_hand_load.remove(load);
        self.finished.insert(number, InHand { place, load: Load::default() });
        let end = self.open.keys().next().copied();
        while let Some(first) = self.finished.first_entry().filter(|it| end.is_none_or(|end| *it.key() < end))
        {
            self.through = Some(*first.key());
            first.remove();
        }
        Some(load)
    }

    /// Returns the last delivery up to which everything is finished, where an offset says so.
    pub(super) const fn finished_by_offset(&self) -> Option<u64> {
        self.through
    }

    /// Returns the last delivery up to which everything is finished, and all finished deliveries
    /// that the broker has not confirmed.
    pub(super) fn finished(&self) -> (Option<u64>, Vec<(u64, P)>) {
        let end = self.first_unfinished().unwrap_or(u64::MAX);
        let through = self.finished.range(..end).next_back().map(|(number, _)| *number);
        (through, self.finished.iter().map(|(number, it)| (*number, it.place)).collect())
    }

    /// Forgets finished deliveries. Returns the released load.
    pub(super) fn confirm(&mut self, through: Option<u64>, deliveries: &[(u64, P)]) -> Load {
        self.through.take_if(|it| Some(*it) == through);
        let mut released = Load::default();
        for (number, _) in deliveries {
            if let Some(delivery) = self.finished.remove(number) {
                self.in_hand_load.remove(delivery.load);
                released.add(delivery.load);
            }
        }
        released
    }
}
