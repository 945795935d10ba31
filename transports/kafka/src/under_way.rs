//! Flights of a producer that are under way, in the order in which they were handed over: by it can
//! be seen whether a partition comes nearer to its next answer. Pure.
//!
//! The client serves partitions in an order of its own, and one after the other where the broker is
//! slow: what came later may go first. So a flight waits for those that were handed over before it;
//! and the oldest of all for those that were there when it became the oldest, a few times over.
//! Everything that came after those says nothing of it: beside a partition that hangs, others may
//! go on for ever.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::flight::Flight;
use crate::gapless::Partition;

/// Number of times that all that is there may go in front of the oldest flight. The client takes
/// about any partition next: of fifty, one in fifty is the last, and so it is that one in two
/// thousand again in the next round. Where answers are quick, all rounds are over at once.
const ROUNDS: u32 = 3;

/// Distance of a partition from its next answer. Another one than before: it has come nearer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ahead {
    /// Its flight that is to be answered next.
    flight: u64,
    /// It may wait for flights below this one.
    below: u64,
    /// Number of messages of those that are not reported.
    messages: usize,
}

/// Flights that were handed over, and of which not everything is reported.
#[derive(Debug, Default)]
pub(crate) struct UnderWay {
    flights: BTreeMap<u64, Arc<Flight>>,
    next: u64,
    /// The oldest may wait for flights below this one.
    below: u64,
    rounds: u32,
}

impl UnderWay {
    /// A flight is handed over; gives its number.
    pub(crate) fn add(&mut self, flight: &Arc<Flight>) -> u64 {
        let number = self.next;
        self.next += 1;
        self.flights.insert(number, Arc::clone(flight));
        if self.flights.len() == 1 {
            self.oldest_is_new();
        }
        number
    }

    /// All of a flight is reported.
    pub(crate) fn remove(&mut self, number: u64) {
        let oldest = self.flights.keys().next().copied();
        if self.flights.remove(&number).is_none() {
            return;
        }
        if oldest == Some(number) {
            self.oldest_is_new();
        } else {
            self.next_round();
        }
    }

    fn oldest_is_new(&mut self) {
        (self.below, self.rounds) = (self.next, ROUNDS);
        self.next_round();
    }

    /// Begins the next round, if nothing is left in this one that the oldest could wait for.
    fn next_round(&mut self) {
        while self.rounds > 0 && self.is_over() {
            self.below = self.next;
            self.rounds -= 1;
        }
    }

    fn is_over(&self) -> bool {
        let mut round = self.flights.range(..self.below).map(|(_, flight)| flight.partition());
        round.next().is_none_or(|oldest| round.all(|partition| partition == oldest))
    }

    /// Returns the distance of each partition to which something is under way.
    pub(crate) fn ahead(&self) -> BTreeMap<Partition, Ahead> {
        let mut ahead = BTreeMap::new();
        let mut messages = 0;
        for (number, flight) in &self.flights {
            messages += flight.open();
            let next = Ahead { flight: *number, below: number + 1, messages };
            ahead.entry(flight.partition().clone()).or_insert(next);
        }
        if let Some((number, oldest)) = self.flights.first_key_value() {
            let messages = self.flights.range(..self.below).map(|(_, flight)| flight.open()).sum();
            ahead.insert(oldest.partition().clone(), Ahead { flight: *number, below: self.below, messages });
        }
        ahead
    }
}

#[cfg(test)]
mod tests {
    use outbox_contract::Topic;

    use super::*;

    fn partition(number: i32) -> Partition {
        (Topic::new("orders").unwrap(), number)
    }

    /// Something of a partition is handed over.
    fn hand_over(under_way: &mut UnderWay, number: i32) -> u64 {
        let flight = Flight::new(partition(number), vec![0; 2]);
        let number = under_way.add(&flight);
        flight.sending(number);
        number
    }

    fn ahead(under_way: &UnderWay, number: i32) -> Option<Ahead> {
        under_way.ahead().get(&partition(number)).copied()
    }

    #[test]
    fn what_was_handed_over_before_stands_before_an_answer() {
        let mut under_way = UnderWay::default();
        let [first, second, _] = [0, 1, 2].map(|of| hand_over(&mut under_way, of));
        let before = [1, 2].map(|of| ahead(&under_way, of));
        under_way.remove(second);
        assert_ne!(ahead(&under_way, 2), before[1], "one of those before it is answered");
        let before = ahead(&under_way, 2);
        hand_over(&mut under_way, 2);
        assert_eq!(ahead(&under_way, 2), before);
        under_way.remove(first);
        assert_ne!(ahead(&under_way, 2), before, "it is the oldest");
    }

    #[test]
    fn what_is_reported_of_a_flight_brings_it_nearer() {
        let mut under_way = UnderWay::default();
        let flight = Flight::new(partition(0), vec![0; 2]);
        flight.sending(under_way.add(&flight));
        let before = ahead(&under_way, 0);
        flight.heard(0, crate::flight::Heard::Acknowledged);
        assert_ne!(ahead(&under_way, 0), before);
    }

    #[test]
    fn what_is_quick_stands_before_nothing_that_hangs() {
        let mut under_way = UnderWay::default();
        let other = hand_over(&mut under_way, 1);
        hand_over(&mut under_way, 0);
        hand_over(&mut under_way, 0);
        under_way.remove(other);
        let before = ahead(&under_way, 0);
        for of in (1..1_000).map(|round| 1 + round % 7) {
            let other = hand_over(&mut under_way, of);
            assert_eq!(ahead(&under_way, 0), before);
            under_way.remove(other);
            assert_eq!(ahead(&under_way, 0), before);
        }
    }

    /// Others always have something under way too, and each goes in front a few times; then it
    /// counts no more.
    #[test]
    fn the_oldest_is_passed_a_few_times() {
        let mut under_way = UnderWay::default();
        let mut others = [1, 2, 3].map(|of| hand_over(&mut under_way, of)).to_vec();
        hand_over(&mut under_way, 0);
        let mut nearer = 0_u32;
        for turn in 0..100 {
            let before = ahead(&under_way, 0);
            let of = 1 + turn % 3;
            others.push(hand_over(&mut under_way, of));
            under_way.remove(others.remove(0));
            nearer += u32::from(ahead(&under_way, 0) != before);
        }
        // Those before it, and in each round those that are there.
        assert_eq!(nearer, 3 + 4 * ROUNDS);
    }
}
