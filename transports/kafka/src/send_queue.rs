//! Whose turn it is on each partition: what the client has of it, and what waits here until that is
//! confirmed.
//!
//! The client sends nothing more to a partition while five messages of it are under way (it counts
//! messages, not requests). What it was given by then and has lingered over, its thread looks at
//! again and again without a pause, until the answer is there: measured, most of the processor time
//! of a relay on a busy machine. So no more than one round's worth is given to it, and what waits
//! here goes out together.
//!
//! Nothing in here waits or calls: the lock around it is the gate of the producer.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use rdkafka::message::OwnedHeaders;

use crate::flight::Flight;
use crate::gapless::Partition;
use crate::record::Record;

/// From how many messages under way on, the client sends no more to a partition.
const FULL: usize = 5;

/// Result of handing messages over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HandedOver {
    /// All are under way.
    All,
    /// All of them, and they have been reported too.
    Reported,
    /// The client refused one, and none behind it was handed over.
    Refused,
}

/// The partitions of a producer.
#[derive(Debug)]
pub(crate) struct SendQueue {
    partitions: HashMap<Partition, PartitionQueue>,
    max_bytes: usize,
}

#[derive(Debug, Default)]
struct PartitionQueue {
    /// Number of messages at the client that are not all reported, flight by flight.
    at_client: usize,
    waiting: VecDeque<Parcel>,
}

/// Messages of one partition that wait for their turn.
#[derive(Debug)]
pub(crate) struct Parcel {
    /// The number of the flight.
    pub(crate) number: usize,
    pub(crate) flight: Arc<Flight>,
    /// With the headers of each.
    pub(crate) records: Vec<(Record, OwnedHeaders)>,
}

impl SendQueue {
    /// `max_bytes`: how much is given to the client in one turn, about; a flight that has more goes
    /// whole.
    pub(crate) fn new(max_bytes: usize) -> Self {
        Self { partitions: HashMap::new(), max_bytes }
    }

    /// Returns true if so many messages of this partition may be handed over now; then they count
    /// as handed over. Else they are to [`wait`](Self::wait).
    pub(crate) fn take(&mut self, partition: &Partition, messages: usize) -> bool {
        let line = self.line(partition);
        let free = line.at_client < FULL && line.waiting.is_empty();
        if free {
            line.at_client += messages;
        }
        free
    }

    /// Keeps messages until it is their turn.
    pub(crate) fn wait(&mut self, parcel: Parcel) {
        let flight = Arc::clone(&parcel.flight);
        self.line(flight.partition()).waiting.push_back(parcel);
    }

    fn line(&mut self, partition: &Partition) -> &mut PartitionQueue {
        self.partitions.entry(partition.clone()).or_default()
    }

    /// So many messages of this partition are reported: hands over what waits, as long as there is
    /// room. What is reported while it is handed over makes room as well, since no other event
    /// does. Says whether the client refused something; behind that nothing is handed over.
    pub(crate) fn go_on(
        &mut self,
        partition: &Partition,
        messages: usize,
        mut hand_over: impl FnMut(Parcel) -> HandedOver,
    ) -> bool {
        let (mut reported, mut refused) = (messages, false);
        while reported > 0 && !refused {
            let next = self.over(partition, reported);
            reported = 0;
            for parcel in next {
                let (flight, messages) = (Arc::clone(&parcel.flight), parcel.records.len());
                if refused {
                    flight.handed_over(0);
                    continue;
                }
                match hand_over(parcel) {
                    HandedOver::All => {}
                    HandedOver::Reported => reported += messages,
                    HandedOver::Refused => refused = true,
                }
            }
        }
        refused
    }

    /// So many messages of this partition are reported: what is to be handed over now, in order.
    fn over(&mut self, partition: &Partition, messages: usize) -> Vec<Parcel> {
        let Some(line) = self.partitions.get_mut(partition) else { return Vec::new() };
        line.at_client = line.at_client.saturating_sub(messages);
        let mut next = Vec::new();
        if line.at_client >= FULL {
            return next;
        }
        let mut bytes = 0;
        while let Some(parcel) = line.waiting.front() {
            bytes += parcel.records.iter().map(|(record, _)| record.bytes()).sum::<usize>();
            if bytes > self.max_bytes && !next.is_empty() {
                break;
            }
            line.at_client += parcel.records.len();
            next.extend(line.waiting.pop_front());
        }
        next
    }

    /// Everything that waits, on all partitions: nothing more is handed over.
    pub(crate) fn clear(&mut self) -> Vec<Parcel> {
        self.partitions.drain().flat_map(|(_, line)| line.waiting).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use outbox_contract::backend::{Position, Stored};
    use outbox_contract::{Message, Timestamp, Topic};

    use super::*;

    fn partition(number: i32) -> Partition {
        (Topic::new("orders").unwrap(), number)
    }

    fn parcel(number: usize, messages: usize) -> Parcel {
        let message = Message::new(partition(0).0, "x").unwrap();
        let stored = Arc::new(Stored::new(Position(1), Timestamp::default(), message));
        let record = Record::new(stored, "/test".into(), 0);
        let records = vec![(record, OwnedHeaders::new()); messages];
        Parcel { number, flight: Flight::new(partition(0), vec![0; messages]), records }
    }

    fn numbers(parcels: &[Parcel]) -> Vec<usize> {
        parcels.iter().map(|parcel| parcel.number).collect()
    }

    #[test]
    fn what_comes_while_the_client_is_full_waits_and_goes_out_together() {
        let mut queue = SendQueue::new(1_000_000);
        let (one, other) = (partition(0), partition(1));
        assert!(queue.take(&one, 3));
        assert!(queue.take(&one, 10), "fewer than five are under way");
        assert!(!queue.take(&one, 1));
        queue.wait(parcel(3, 1));
        assert!(!queue.take(&one, 2));
        queue.wait(parcel(4, 2));
        assert!(queue.take(&other, 1), "another partition has its own turn");
        assert!(queue.over(&one, 3).is_empty(), "ten are under way");
        assert_eq!(numbers(&queue.over(&one, 10)), [3, 4]);
        assert!(queue.over(&one, 3).is_empty());
        assert!(queue.take(&one, 1));
    }

    #[test]
    fn nothing_passes_what_waits() {
        let bytes = parcel(1, 1).records[0].0.bytes();
        let mut queue = SendQueue::new(bytes * 6);
        let partition = partition(0);
        assert!(queue.take(&partition, 5));
        assert!(!queue.take(&partition, 7));
        queue.wait(parcel(2, 7));
        assert!(!queue.take(&partition, 1));
        queue.wait(parcel(3, 1));
        assert_eq!(numbers(&queue.over(&partition, 5)), [2], "larger than a turn: it goes whole, and alone");
        assert!(!queue.take(&partition, 1));
        queue.wait(parcel(4, 1));
        assert_eq!(numbers(&queue.clear()), [3, 4]);
        assert!(queue.over(&partition, 7).is_empty(), "of what was cleared nothing comes");
    }

    #[test]
    fn what_stays_behind_for_its_size_is_not_passed_either() {
        let mut queue = SendQueue::new(1);
        let partition = partition(0);
        assert!(queue.take(&partition, FULL));
        queue.wait(parcel(1, 1));
        queue.wait(parcel(2, 1));
        assert_eq!(numbers(&queue.over(&partition, FULL)), [1]);
        assert!(!queue.take(&partition, 1), "the client is far from full, but another one is first");
        assert_eq!(numbers(&queue.over(&partition, 1)), [2]);
        assert!(queue.take(&partition, 1));
    }

    #[test]
    fn what_is_reported_while_it_is_handed_over_makes_room_too() {
        let mut queue = SendQueue::new(1);
        let partition = partition(0);
        assert!(queue.take(&partition, FULL));
        (1..5).for_each(|number| queue.wait(parcel(number, FULL)));
        let mut handed = Vec::new();
        let refused = queue.go_on(&partition, FULL, |parcel| {
            handed.push(parcel.number);
            if parcel.number < 3 { HandedOver::Reported } else { HandedOver::All }
        });
        assert_eq!((handed, refused), (vec![1, 2, 3], false));
        assert!(queue.go_on(&partition, FULL, |_| HandedOver::Refused));
    }

    #[test]
    fn behind_what_is_refused_nothing_is_handed_over() {
        let mut queue = SendQueue::new(1_000_000);
        let partition = partition(0);
        assert!(queue.take(&partition, FULL));
        (1..4).for_each(|number| queue.wait(parcel(number, 1)));
        let mut handed = Vec::new();
        let refused = queue.go_on(&partition, FULL, |parcel| {
            handed.push(parcel.number);
            if parcel.number == 2 { HandedOver::Refused } else { HandedOver::All }
        });
        assert_eq!((handed, refused), (vec![1, 2], true));
    }
}
