//! What one member has received: what waits, what is in its hands, and what of that is finished. Pure: it talks to nobody.
//!
//! Promises: no more than the prefetch is in the member's hands, in messages and bytes; each queue in order; what belongs to an
//! earlier connection is never acknowledged over a later one.

use std::collections::{BTreeMap, VecDeque};

use outbox_contract::backend::{Delivery, Subscription, Tag, Unit};

use crate::error::Fault;

/// What the member is to hear next.
#[derive(Debug)]
pub(crate) enum Taken {
    Deliveries(Vec<Delivery>),
    Revoked(Vec<Unit>),
    Trouble(Fault),
    Ended,
    Nothing,
}

/// One acknowledgement over the channel of a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Acknowledgement {
    /// The queue, by its place.
    pub(crate) queue: usize,
    /// The last delivery that is finished.
    pub(crate) number: u64,
    /// Whether everything before it is finished as well.
    pub(crate) multiple: bool,
}

/// Deliveries of one queue.
#[derive(Debug)]
struct Line {
    unit: Unit,
    /// Came, and is in nobody's hands yet. With its size in bytes.
    waiting: VecDeque<(Delivery, usize)>,
    /// In the member's hands: number and size.
    in_hand: BTreeMap<u64, usize>,
    paused: bool,
}

#[derive(Debug)]
pub(crate) struct Consumption {
    lines: Vec<Line>,
    prefetch: usize,
    prefetch_bytes: usize,
    in_hand: usize,
    in_hand_bytes: usize,
    /// Which connection this is, from 1.
    incarnation: u64,
    /// Where dispatching begins: each queue has its turn.
    turn: usize,
    /// Whether something that came over this connection was acknowledged.
    moved_on: bool,
    /// A connection was lost, and the member does not know.
    revoked: bool,
    /// What the member has yet to hear.
    trouble: Option<Fault>,
    /// Nothing more is dispatched: drained.
    draining: bool,
    /// Nothing more comes, ever.
    ended: Option<Fault>,
}

impl Consumption {
    pub(crate) fn new(subscription: &Subscription, units: impl IntoIterator<Item = Unit>) -> Self {
        let line = |unit| Line { unit, waiting: VecDeque::new(), in_hand: BTreeMap::new(), paused: false };
        Self {
            lines: units.into_iter().map(line).collect(),
            prefetch: subscription.prefetch.max(1),
            prefetch_bytes: subscription.prefetch_bytes,
            in_hand: 0,
            in_hand_bytes: 0,
            incarnation: 1,
            turn: 0,
            moved_on: false,
            revoked: false,
            trouble: None,
            draining: false,
            ended: None,
        }
    }

    /// How many deliveries of one queue the broker may have sent that are not acknowledged.
    ///
    /// AMQP counts them for each queue. A small prefetch is given to each, so that a single busy queue can use all of it; a large one is shared
    /// out, so that not much more than the prefetch is in memory.
    pub(crate) fn share(&self) -> u16 {
        const SMALL: usize = 64;
        let share = self.prefetch.div_ceil(self.lines.len().max(1));
        u16::try_from(share.max(SMALL).min(self.prefetch)).unwrap_or(u16::MAX)
    }

    pub(crate) const fn incarnation(&self) -> u64 {
        self.incarnation
    }

    /// Whether something that came over this connection was acknowledged.
    pub(crate) const fn has_moved_on(&self) -> bool {
        self.moved_on
    }

    pub(crate) const fn is_draining(&self) -> bool {
        self.draining
    }

    /// A delivery came over a connection. One of an earlier connection is dropped: it comes again.
    pub(crate) fn arrived(&mut self, queue: usize, delivery: Delivery, bytes: usize) {
        if delivery.tag.incarnation == self.incarnation
            && let Some(line) = self.lines.get_mut(queue)
        {
            line.waiting.push_back((delivery, bytes));
        }
    }

    /// The connection is lost, with all that is not acknowledged. What comes over the next one is of another incarnation.
    pub(crate) fn lost(&mut self, why: Fault) {
        self.incarnation += 1;
        self.moved_on = false;
        self.revoked = true;
        self.trouble = Some(why);
        (self.in_hand, self.in_hand_bytes) = (0, 0);
        for line in &mut self.lines {
            line.waiting.clear();
            line.in_hand.clear();
        }
    }

    /// The connection is given up to be made anew: nothing is wrong.
    pub(crate) fn given_up(&mut self) {
        self.lost(Fault::closed());
        self.trouble = None;
    }

    /// An attempt to connect failed.
    pub(crate) fn still_lost(&mut self, why: Fault) {
        self.trouble = Some(why);
    }

    /// Connected again.
    pub(crate) fn recovered(&mut self) {
        self.trouble = None;
    }

    /// The connection is gone for good.
    pub(crate) fn end(&mut self, why: Fault) {
        self.lost(why.clone());
        self.ended = Some(why);
    }

    pub(crate) fn drain(&mut self) {
        self.draining = true;
    }

    pub(crate) fn set_paused(&mut self, units: &[Unit], paused: bool) {
        for line in self.lines.iter_mut().filter(|line| units.contains(&line.unit)) {
            line.paused = paused;
        }
    }

    /// What the member is to hear next; what it gets is in its hands from now on.
    pub(crate) fn take(&mut self) -> Taken {
        if self.draining {
            return Taken::Ended;
        }
        if std::mem::take(&mut self.revoked) {
            return Taken::Revoked(self.lines.iter().map(|line| line.unit.clone()).collect());
        }
        if let Some(fault) = self.ended.clone().or_else(|| self.trouble.take()) {
            return Taken::Trouble(fault);
        }
        let mut taken = Vec::new();
        let first = self.turn;
        for at in 0..self.lines.len() {
            let place = (first + at) % self.lines.len();
            if !self.dispatch(place, &mut taken) {
                // There was no room for all of it: it has the next turn.
                self.turn = place;
                break;
            }
            self.turn = (place + 1) % self.lines.len();
        }
        if taken.is_empty() { Taken::Nothing } else { Taken::Deliveries(taken) }
    }

    /// Hands out what waits in a line, as far as there is room. Says whether there was room for all of it.
    fn dispatch(&mut self, place: usize, taken: &mut Vec<Delivery>) -> bool {
        let line = &mut self.lines[place];
        while !line.paused
            && let Some((_, bytes)) = line.waiting.front()
        {
            let fits = self.in_hand < self.prefetch && self.in_hand_bytes + bytes <= self.prefetch_bytes;
            // What is larger than the bound comes alone.
            if !fits && self.in_hand > 0 {
                return false;
            }
            let Some((delivery, bytes)) = line.waiting.pop_front() else { break };
            line.in_hand.insert(delivery.tag.number, bytes);
            self.in_hand += 1;
            self.in_hand_bytes += bytes;
            taken.push(delivery);
        }
        true
    }

    /// Takes finished deliveries out of the member's hands, and says what to tell the broker. What belongs to an earlier connection, or was
    /// acknowledged before, is left out: for the broker it would be an error.
    pub(crate) fn acknowledge(&mut self, tags: &[Tag]) -> Vec<Acknowledgement> {
        let mut finished: BTreeMap<usize, BTreeMap<u64, usize>> = BTreeMap::new();
        for tag in tags.iter().filter(|tag| tag.incarnation == self.incarnation) {
            let Some(place) = self.lines.iter().position(|line| line.unit == tag.unit) else { continue };
            if let Some(bytes) = self.lines[place].in_hand.remove(&tag.number) {
                finished.entry(place).or_default().insert(tag.number, bytes);
                self.moved_on = true;
            }
        }
        let mut acknowledgements = Vec::new();
        for (queue, finished) in finished {
            self.in_hand -= finished.len();
            self.in_hand_bytes -= finished.values().sum::<usize>();
            // What waits came later than all that is in hand, so up to the first that is still in hand everything is finished.
            let first_left = self.lines[queue].in_hand.keys().next().copied().unwrap_or(u64::MAX);
            let head = finished.range(..first_left).next_back();
            acknowledgements.extend(head.map(|(number, _)| Acknowledgement {
                queue,
                number: *number,
                multiple: true,
            }));
            let rest = finished.range(first_left..);
            acknowledgements.extend(rest.map(|(number, _)| Acknowledgement {
                queue,
                number: *number,
                multiple: false,
            }));
        }
        acknowledgements
    }
}

#[cfg(test)]
#[path = "consumption_tests.rs"]
mod tests;
