//! Messages that were handed to the client together, and what was heard of each: a slot for each message, no future for each.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rdkafka::types::RDKafkaErrorCode;
use tokio::sync::Notify;

/// What was heard of one message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Heard {
    /// It was not handed to the client.
    NotSent,
    /// It was, and no report came.
    Nothing,
    /// The broker has it, at an offset that it named.
    Acknowledged,
    /// The client says that the broker has it, and the broker named no offset. Such a message can be lost: what is acknowledged in this
    /// way was never seen to be in the log.
    WithoutOffset,
    /// Not delivered, as far as the code tells.
    Failed(RDKafkaErrorCode),
}

/// Messages under way together.
#[derive(Debug)]
pub(crate) struct Flight {
    /// Where each message stands in its chunk.
    indices: Vec<usize>,
    // A plain mutex: held for a store into a slot, by the thread of the client.
    slots: Mutex<Slots>,
    done: Notify,
}

#[derive(Debug)]
struct Slots {
    heard: Vec<Heard>,
    /// How many were handed over and not reported.
    open: usize,
}

impl Flight {
    /// A flight of the messages at these places of a chunk.
    pub(crate) fn new(indices: Vec<usize>) -> Arc<Self> {
        let slots = Slots { heard: vec![Heard::NotSent; indices.len()], open: 0 };
        Arc::new(Self { indices, slots: Mutex::new(slots), done: Notify::new() })
    }

    fn slots(&self) -> MutexGuard<'_, Slots> {
        // Each slot is written in one assignment, so a panic leaves them valid.
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The message in this slot is about to be handed over.
    pub(crate) fn sending(&self, slot: usize) {
        let mut slots = self.slots();
        if let Some(heard) = slots.heard.get_mut(slot) {
            *heard = Heard::Nothing;
            slots.open += 1;
        }
    }

    /// Something was heard of the message in this slot. Only the first report of a slot counts.
    pub(crate) fn heard(&self, slot: usize, what: Heard) {
        let mut slots = self.slots();
        if let Some(heard) = slots.heard.get_mut(slot)
            && *heard == Heard::Nothing
        {
            *heard = what;
            slots.open -= 1;
        }
        // One permit is kept while nobody waits.
        if slots.open == 0 {
            self.done.notify_one();
        }
    }

    /// Whether everything that was handed over has been reported.
    pub(crate) fn is_done(&self) -> bool {
        self.slots().open == 0
    }

    /// Waits until everything that was handed over has been reported. For one waiter; dropping it loses nothing.
    pub(crate) async fn done(&self) {
        while !self.is_done() {
            self.done.notified().await;
        }
    }

    /// What was heard, with the place of each message in the chunk.
    pub(crate) fn all(&self) -> Vec<(usize, Heard)> {
        self.indices.iter().copied().zip(self.slots().heard.iter().copied()).collect()
    }

    /// Whether every message was acknowledged.
    pub(crate) fn is_delivered(&self) -> bool {
        self.slots().heard.iter().all(|heard| *heard == Heard::Acknowledged)
    }
}

/// The flights of one producer, by the numbers that the client carries along with each message.
#[derive(Debug, Default)]
pub(crate) struct Flights {
    table: Mutex<Table>,
}

#[derive(Debug, Default)]
struct Table {
    next: usize,
    flights: HashMap<usize, Arc<Flight>>,
}

/// Which flight and which slot of it, in the one number that the client carries along.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ticket(pub(crate) usize);

impl Ticket {
    const SLOT_BITS: u32 = usize::BITS / 2;
    /// The most messages that a flight may have: 65,536 where addresses have 32 bits, more than there is memory for elsewhere.
    pub(crate) const MOST_SLOTS: usize = 1 << Self::SLOT_BITS;

    const fn new(flight: usize, slot: usize) -> Self {
        Self((flight << Self::SLOT_BITS) | slot)
    }

    const fn flight(self) -> usize {
        self.0 >> Self::SLOT_BITS
    }

    const fn slot(self) -> usize {
        self.0 & (Self::MOST_SLOTS - 1)
    }
}

impl Flights {
    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a flight up; gives its number.
    pub(crate) fn add(&self, flight: &Arc<Flight>) -> usize {
        let mut table = self.table();
        while table.flights.contains_key(&table.next) {
            table.next = (table.next + 1) % Ticket::MOST_SLOTS;
        }
        let number = table.next;
        table.next = (table.next + 1) % Ticket::MOST_SLOTS;
        table.flights.insert(number, Arc::clone(flight));
        number
    }

    /// The number of a message of a flight.
    pub(crate) const fn ticket(flight: usize, slot: usize) -> Ticket {
        Ticket::new(flight, slot)
    }

    /// Something was heard of a message.
    pub(crate) fn heard(&self, ticket: Ticket, what: Heard) {
        let flight = self.table().flights.get(&ticket.flight()).map(Arc::clone);
        if let Some(flight) = flight {
            flight.heard(ticket.slot(), what);
        }
    }

    /// Forgets a flight: later reports go nowhere.
    pub(crate) fn remove(&self, number: usize) {
        self.table().flights.remove(&number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_finds_its_slot_and_only_the_first_counts() {
        let flights = Flights::default();
        let (one, other) = (Flight::new(vec![7, 9]), Flight::new(vec![8]));
        let (a, b) = (flights.add(&one), flights.add(&other));
        one.sending(0);
        one.sending(1);
        other.sending(0);
        flights.heard(Flights::ticket(a, 1), Heard::Acknowledged);
        flights.heard(Flights::ticket(a, 1), Heard::Failed(RDKafkaErrorCode::PurgeQueue));
        flights.heard(Flights::ticket(b, 0), Heard::WithoutOffset);
        assert_eq!(one.all(), [(7, Heard::Nothing), (9, Heard::Acknowledged)]);
        assert!(!one.is_done());
        assert!(other.is_done() && !other.is_delivered());
    }

    #[test]
    fn a_number_in_use_is_not_given_out_again() {
        let flights = Flights::default();
        let numbers: Vec<usize> = (0..3).map(|_| flights.add(&Flight::new(vec![0]))).collect();
        flights.table().next = numbers[0];
        assert!(!numbers.contains(&flights.add(&Flight::new(vec![0]))));
    }
}
