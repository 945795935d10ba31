//! Consumption of a member: its window, over one connection after the other. Pure: it does no I/O.

use outbox_contract::backend::flow::Window;
use outbox_contract::backend::{Delivery, Received, Tag, Unit};

use crate::error::Fault;

/// An acknowledgment over the channel of a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Acknowledgment {
    /// Index of the queue.
    pub(crate) queue: usize,
    /// The last delivery that is finished.
    pub(crate) number: u64,
    /// True if everything before it is finished as well.
    pub(crate) multiple: bool,
}

#[derive(Debug)]
pub(crate) struct Consumption {
    window: Window,
    /// The queues, in the order of their channels.
    units: Vec<Unit>,
    /// Something that came over this connection was acknowledged.
    has_moved_on: bool,
    /// An error that the member has yet to hear.
    error: Option<Fault>,
    /// The final error: nothing more comes.
    end: Option<Fault>,
}

/// Returns the number of unacknowledged deliveries of one queue that the broker may send.
///
/// AMQP counts them for each queue. A small prefetch is given to each, so that a single busy queue
/// can use all of it; a large one is shared out, so that not much more than the prefetch is in
/// memory.
pub(crate) fn prefetch_of_queue(prefetch: usize, queues: usize) -> u16 {
    const SMALL: usize = 64;
    let share = prefetch.div_ceil(queues.max(1));
    u16::try_from(share.max(SMALL).min(prefetch)).unwrap_or(u16::MAX)
}

impl Consumption {
    pub(crate) fn new(window: Window, units: Vec<Unit>) -> Self {
        let mut new = Self { window, units, has_moved_on: false, error: None, end: None };
        new.assign_all();
        new
    }

    /// Begins an ownership of every queue: their deliveries come over another connection.
    fn assign_all(&mut self) {
        for unit in &self.units {
            self.window.assign(unit.clone(), ());
        }
    }

    /// Returns true if something that came over this connection was acknowledged.
    pub(crate) const fn has_moved_on(&self) -> bool {
        self.has_moved_on
    }

    /// Returns the number of deliveries of a queue that this member has, and that are not
    /// acknowledged.
    pub(crate) fn held(&self, unit: &Unit) -> u64 {
        let owned = self.window.unit(unit);
        let held = owned.map_or(0, |owned| owned.waiting().messages.saturating_add(owned.in_hand().messages));
        u64::try_from(held).unwrap_or(u64::MAX)
    }

    pub(crate) const fn is_draining(&self) -> bool {
        self.window.is_draining()
    }

    /// Adds a delivery that came over the present connection.
    pub(crate) fn arrived(&mut self, queue: usize, number: u64, make: impl FnOnce(Tag) -> Delivery) {
        if let Some(unit) = self.units.get(queue) {
            self.window.arrived(unit, number, (), make);
        }
    }

    /// Records that the connection is lost, with all that is not acknowledged.
    pub(crate) fn lost(&mut self, why: Fault) {
        self.has_moved_on = false;
        self.error = Some(why);
        self.assign_all();
    }

    /// Records that the connection is given up to be made anew: nothing is wrong.
    pub(crate) fn given_up(&mut self) {
        self.lost(Fault::closed());
        self.error = None;
    }

    /// Records that an attempt to connect failed.
    pub(crate) fn still_lost(&mut self, why: Fault) {
        self.error = Some(why);
    }

    /// Records that there is a connection again.
    pub(crate) fn recovered(&mut self) {
        self.error = None;
    }

    /// Records that the member has ended.
    pub(crate) fn end(&mut self, why: Fault) {
        self.lost(why.clone());
        self.end = Some(why);
    }

    pub(crate) fn drain(&mut self) {
        self.window.drain();
    }

    pub(crate) fn pause(&mut self, units: &[Unit], paused: bool) {
        self.window.pause(units, paused);
    }

    /// Takes what the member is to hear next.
    ///
    /// # Errors
    ///
    /// An error since the last call.
    pub(crate) fn take(&mut self) -> Result<Option<Received>, Fault> {
        if let Some(notice) = self.window.notice() {
            return Ok(Some(notice));
        }
        match self.end.clone().or_else(|| self.error.take()) {
            Some(error) => Err(error),
            None => Ok(self.window.receive()),
        }
    }

    /// Takes finished deliveries out of the window, and returns what to tell the broker. What
    /// belongs to an earlier connection, or was acknowledged before, is left out: for the broker it
    /// would be an error.
    pub(crate) fn acknowledge(&mut self, tags: &[Tag]) -> Vec<Acknowledgment> {
        for tag in tags {
            self.has_moved_on |= self.window.finish(tag);
        }
        let mut acknowledgments = Vec::new();
        for finished in self.window.take_finished() {
            let Some(queue) = self.units.iter().position(|unit| *unit == finished.unit) else { continue };
            let one = |number, multiple| Acknowledgment { queue, number, multiple };
            acknowledgments.extend(finished.through.map(|number| one(number, true)));
            let beyond = finished.deliveries.iter().map(|(number, ())| *number);
            let beyond = beyond.filter(|number| Some(*number) > finished.through);
            acknowledgments.extend(beyond.map(|number| one(number, false)));
        }
        acknowledgments
    }
}

#[cfg(test)]
#[path = "consumption_tests.rs"]
mod tests;
