//! Messages that were handed to the client together, and what was heard of each: a slot for each
//! message, no future for each.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rdkafka::types::RDKafkaErrorCode;
use tokio::sync::Notify;

use crate::gapless::Partition;
use crate::under_way::{Ahead, UnderWay};

/// Report of one message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Heard {
    /// It was not handed to the client.
    NotSent,
    /// It was, and no report came.
    Nothing,
    /// The broker has it, at an offset that it named.
    Acknowledged,
    /// The client says that the broker has it, and the broker named no offset. Such a message can
    /// be lost: what is acknowledged in this way was never seen to be in the log.
    WithoutOffset,
    /// Not delivered, as far as the code tells.
    Failed(RDKafkaErrorCode),
}

/// Messages of one partition under way together.
#[derive(Debug)]
pub(crate) struct Flight {
    partition: Partition,
    /// Index of each message in its batch.
    indices: Vec<usize>,
    // A plain mutex: held for a store into a slot, by the thread of the client.
    slots: Mutex<Slots>,
    done: Notify,
}

#[derive(Debug)]
struct Slots {
    heard: Vec<Heard>,
    /// Number of messages that were handed over and not reported.
    open: usize,
    /// True if messages are still to be handed over.
    handing: bool,
    /// Its number among those that were handed over by the same producer. None: it was not.
    under_way: Option<u64>,
}

impl Slots {
    const fn is_done(&self) -> bool {
        !self.handing && self.open == 0
    }
}

impl Flight {
    /// A flight to this partition, of the messages at these places of a batch.
    pub(crate) fn new(partition: Partition, indices: Vec<usize>) -> Arc<Self> {
        let slots =
            Slots { heard: vec![Heard::NotSent; indices.len()], open: 0, handing: true, under_way: None };
        Arc::new(Self { partition, indices, slots: Mutex::new(slots), done: Notify::new() })
    }

    fn slots(&self) -> MutexGuard<'_, Slots> {
        // Each slot is written in one assignment, so a panic leaves them valid.
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Their destinations.
    pub(crate) fn partition(&self) -> &Partition {
        &self.partition
    }

    /// Index of each message in its batch.
    pub(crate) fn indices(&self) -> &[usize] {
        &self.indices
    }

    /// Returns the number of messages.
    pub(crate) fn len(&self) -> usize {
        self.indices.len()
    }

    /// The messages are about to be handed over, from the first one on. `number`: that of the
    /// flight among those under way.
    pub(crate) fn sending(&self, number: u64) {
        let mut slots = self.slots();
        slots.under_way = Some(number);
        slots.open = slots.heard.len();
        slots.heard.fill(Heard::Nothing);
    }

    /// So many messages were handed over, or refused, and no more will be. Says whether all of
    /// those have been reported.
    pub(crate) fn handed_over(&self, count: usize) -> bool {
        let mut slots = self.slots();
        let left = slots.heard.get_mut(count..).unwrap_or_default();
        let taken_back = left.iter().filter(|heard| **heard == Heard::Nothing).count();
        left.fill(Heard::NotSent);
        slots.open -= taken_back;
        slots.handing = false;
        let is_done = slots.is_done();
        if is_done {
            self.done.notify_one();
        }
        is_done
    }

    /// Something was heard of the message in this slot. Only the first report of a slot counts.
    /// Says whether it was the last one that was waited for.
    pub(crate) fn heard(&self, slot: usize, what: Heard) -> bool {
        let mut slots = self.slots();
        let counts = slots.heard.get(slot) == Some(&Heard::Nothing);
        if counts {
            slots.heard[slot] = what;
            slots.open -= 1;
        }
        let is_done = slots.is_done();
        // One permit is kept while no task waits.
        if is_done {
            self.done.notify_one();
        }
        counts && is_done
    }

    /// Returns true if everything that was handed over has been reported, and nothing is still to
    /// be.
    pub(crate) fn is_done(&self) -> bool {
        self.slots().is_done()
    }

    /// Waits until everything that was handed over has been reported. For one waiter; dropping it
    /// loses nothing.
    pub(crate) async fn done(&self) {
        while !self.is_done() {
            self.done.notified().await;
        }
    }

    /// Returns what was heard, with the place of each message in the batch.
    pub(crate) fn all(&self) -> Vec<(usize, Heard)> {
        self.indices.iter().copied().zip(self.slots().heard.iter().copied()).collect()
    }

    /// Returns the number of messages that were handed over and are not reported.
    pub(crate) fn open(&self) -> usize {
        self.slots().open
    }

    /// Returns true if every message was acknowledged.
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
    under_way: UnderWay,
}

impl Table {
    /// A flight is not under way any more.
    fn landed(&mut self, flight: &Flight) {
        let number = flight.slots().under_way;
        if let Some(number) = number {
            self.under_way.remove(number);
        }
    }
}

/// Flight and slot, in the one number that the client carries along.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ticket(pub(crate) usize);

impl Ticket {
    const SLOT_BITS: u32 = usize::BITS / 2;
    /// The most messages that a flight may have: 65,536 where addresses have 32 bits, more than
    /// there is memory for elsewhere.
    pub(crate) const MAX_SLOTS: usize = 1 << Self::SLOT_BITS;

    const fn new(flight: usize, slot: usize) -> Self {
        Self((flight << Self::SLOT_BITS) | slot)
    }

    const fn flight(self) -> usize {
        self.0 >> Self::SLOT_BITS
    }

    const fn slot(self) -> usize {
        self.0 & (Self::MAX_SLOTS - 1)
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
            table.next = (table.next + 1) % Ticket::MAX_SLOTS;
        }
        let number = table.next;
        table.next = (table.next + 1) % Ticket::MAX_SLOTS;
        table.flights.insert(number, Arc::clone(flight));
        number
    }

    /// The messages of a flight are about to be handed over, from the first one on.
    pub(crate) fn sending(&self, flight: &Arc<Flight>) {
        let number = self.table().under_way.add(flight);
        flight.sending(number);
    }

    /// So many messages of a flight were handed over, or refused, and no more will be. Says whether
    /// all of those have been reported.
    pub(crate) fn handed_over(&self, flight: &Flight, count: usize) -> bool {
        let is_done = flight.handed_over(count);
        if is_done {
            self.table().landed(flight);
        }
        is_done
    }

    /// Returns what stands before the next answer of each partition to which something is under
    /// way.
    pub(crate) fn ahead(&self) -> BTreeMap<Partition, Ahead> {
        self.table().under_way.ahead()
    }

    /// The number of a message of a flight.
    pub(crate) const fn ticket(flight: usize, slot: usize) -> Ticket {
        Ticket::new(flight, slot)
    }

    /// Something was heard of a message. Gives its flight, where it was the last one that was
    /// waited for.
    pub(crate) fn heard(&self, ticket: Ticket, what: Heard) -> Option<Arc<Flight>> {
        let flight = self.table().flights.get(&ticket.flight()).map(Arc::clone)?;
        let is_done = flight.heard(ticket.slot(), what);
        if is_done {
            self.table().landed(&flight);
        }
        is_done.then_some(flight)
    }

    /// Forgets a flight: later reports go nowhere.
    pub(crate) fn remove(&self, number: usize) {
        let mut table = self.table();
        if let Some(flight) = table.flights.remove(&number) {
            table.landed(&flight);
        }
    }
}

#[cfg(test)]
mod tests {
    use outbox_contract::Topic;

    use super::*;

    fn flight(indices: Vec<usize>) -> Arc<Flight> {
        Flight::new((Topic::new("orders").unwrap(), 0), indices)
    }

    #[test]
    fn a_report_finds_its_slot_and_only_the_first_counts() {
        let flights = Flights::default();
        let (one, other) = (flight(vec![7, 9]), flight(vec![8]));
        let (a, b) = (flights.add(&one), flights.add(&other));
        flights.sending(&one);
        flights.handed_over(&one, 2);
        flights.sending(&other);
        assert!(flights.heard(Flights::ticket(a, 1), Heard::Acknowledged).is_none());
        assert!(flights.heard(Flights::ticket(a, 1), Heard::Failed(RDKafkaErrorCode::PurgeQueue)).is_none());
        assert!(flights.heard(Flights::ticket(b, 0), Heard::WithoutOffset).is_none());
        assert!(!other.is_done(), "more of it may still be handed over");
        assert!(other.handed_over(1));
        assert_eq!(one.all(), [(7, Heard::Nothing), (9, Heard::Acknowledged)]);
        assert!(!one.is_done());
        assert!(other.is_done() && !other.is_delivered());
        assert!(
            flights.heard(Flights::ticket(a, 0), Heard::Acknowledged).is_some_and(|it| it.is_delivered())
        );
    }

    #[test]
    fn what_is_not_handed_over_is_waited_for_no_longer() {
        let some = flight(vec![0, 1, 2]);
        some.sending(0);
        some.heard(0, Heard::Acknowledged);
        some.heard(1, Heard::Failed(RDKafkaErrorCode::QueueFull));
        assert!(some.handed_over(2));
        assert_eq!(some.all()[2], (2, Heard::NotSent));
        let never = flight(vec![0]);
        assert!(!never.is_done());
        assert!(never.handed_over(0) && never.all() == [(0, Heard::NotSent)]);
    }

    #[test]
    fn a_number_in_use_is_not_given_out_again() {
        let flights = Flights::default();
        let numbers: Vec<usize> = (0..3).map(|_| flights.add(&flight(vec![0]))).collect();
        flights.table().next = numbers[0];
        assert!(!numbers.contains(&flights.add(&flight(vec![0]))));
    }

    #[test]
    fn what_is_forgotten_is_not_under_way() {
        let flights = Flights::default();
        let [one, other] = [flight(vec![0]), flight(vec![0])];
        let [a, b] = [&one, &other].map(|flight| flights.add(flight));
        assert!(flights.ahead().is_empty(), "nothing was handed over");
        [&one, &other].into_iter().for_each(|flight| flights.sending(flight));
        flights.heard(Flights::ticket(a, 0), Heard::Acknowledged);
        assert!(!flights.handed_over(&other, 1) && flights.handed_over(&one, 1));
        assert!(!flights.ahead().is_empty());
        flights.remove(b);
        assert!(flights.ahead().is_empty());
    }
}
