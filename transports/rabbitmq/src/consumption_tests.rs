#![allow(clippy::unwrap_used, reason = "a panic in a test is a failed test")]

use outbox_contract::backend::Undecodable;
use outbox_contract::{Consumer, Topic, TransportErrorKind};

use super::*;

fn unit(number: u32) -> Unit {
    Unit { topic: Topic::new("orders").unwrap(), number }
}

fn consumption(queues: u32, prefetch: usize, bytes: usize) -> Consumption {
    let subscription = Subscription::new(Consumer::new("inventory").unwrap(), [unit(0).topic]);
    let subscription = subscription.with_prefetch(prefetch).with_prefetch_bytes(bytes);
    Consumption::new(&subscription, (0..queues).map(unit))
}

fn tag(queue: u32, incarnation: u64, number: u64) -> Tag {
    Tag { unit: unit(queue), incarnation, number }
}

fn arrive(consumption: &mut Consumption, queue: u32, number: u64, bytes: usize) {
    let tag = tag(queue, consumption.incarnation(), number);
    let message = Err(Undecodable::new("of no matter", "".into(), Vec::new()));
    consumption.arrived(queue as usize, Delivery::new(tag, message, None), bytes);
}

/// Queue and number of what is dispatched.
fn dispatched(consumption: &mut Consumption) -> Vec<(u32, u64)> {
    match consumption.take() {
        Taken::Deliveries(deliveries) => {
            deliveries.iter().map(|it| (it.tag.unit.number, it.tag.number)).collect()
        }
        Taken::Nothing => Vec::new(),
        other => panic!("{other:?}"),
    }
}

fn acknowledged(consumption: &mut Consumption, tags: &[(u32, u64)]) -> Vec<(usize, u64, bool)> {
    let incarnation = consumption.incarnation();
    let tags: Vec<Tag> = tags.iter().map(|(queue, number)| tag(*queue, incarnation, *number)).collect();
    consumption.acknowledge(&tags).into_iter().map(|it| (it.queue, it.number, it.multiple)).collect()
}

#[test]
fn no_more_than_the_prefetch_is_in_hand() {
    let mut consumption = consumption(2, 3, 1_000);
    (1..=4).for_each(|number| arrive(&mut consumption, 0, number, 1));
    arrive(&mut consumption, 1, 1, 1);
    assert_eq!(dispatched(&mut consumption), [(0, 1), (0, 2), (0, 3)]);
    assert_eq!(dispatched(&mut consumption), []);
    acknowledged(&mut consumption, &[(0, 1), (0, 2)]);
    assert_eq!(dispatched(&mut consumption), [(0, 4), (1, 1)]);
}

#[test]
fn a_queue_that_had_no_room_has_the_next_turn() {
    let mut consumption = consumption(2, 1, 1_000);
    (1..=3).for_each(|number| arrive(&mut consumption, 0, number, 1));
    arrive(&mut consumption, 1, 1, 1);
    assert_eq!(dispatched(&mut consumption), [(0, 1)]);
    acknowledged(&mut consumption, &[(0, 1)]);
    let next = dispatched(&mut consumption);
    assert_eq!(next.len(), 1);
}

#[test]
fn the_bytes_in_hand_are_bounded_and_what_is_larger_comes_alone() {
    let mut consumption = consumption(1, 10, 100);
    for (number, bytes) in [(1, 60), (2, 40), (3, 500), (4, 1)] {
        arrive(&mut consumption, 0, number, bytes);
    }
    assert_eq!(dispatched(&mut consumption), [(0, 1), (0, 2)]);
    acknowledged(&mut consumption, &[(0, 1)]);
    assert_eq!(dispatched(&mut consumption), [], "something is in hand");
    acknowledged(&mut consumption, &[(0, 2)]);
    assert_eq!(dispatched(&mut consumption), [(0, 3)]);
    acknowledged(&mut consumption, &[(0, 3)]);
    assert_eq!(dispatched(&mut consumption), [(0, 4)]);
}

#[test]
fn only_what_is_finished_is_acknowledged() {
    let mut consumption = consumption(2, 10, 1_000);
    (1..=6).for_each(|number| arrive(&mut consumption, 0, number, 1));
    arrive(&mut consumption, 1, 1, 1);
    dispatched(&mut consumption);
    assert_eq!(acknowledged(&mut consumption, &[(0, 4), (0, 2)]), [(0, 2, false), (0, 4, false)]);
    assert_eq!(
        acknowledged(&mut consumption, &[(0, 1), (0, 3), (0, 6), (1, 1)]),
        [(0, 3, true), (0, 6, false), (1, 1, true)]
    );
    assert_eq!(acknowledged(&mut consumption, &[(0, 1), (0, 3)]), [], "they were acknowledged before");
    assert_eq!(acknowledged(&mut consumption, &[(0, 5)]), [(0, 5, true)]);
}

#[test]
fn what_waits_is_never_acknowledged() {
    let mut consumption = consumption(1, 2, 1_000);
    (1..=3).for_each(|number| arrive(&mut consumption, 0, number, 1));
    dispatched(&mut consumption);
    assert_eq!(acknowledged(&mut consumption, &[(0, 3)]), []);
    assert_eq!(acknowledged(&mut consumption, &[(0, 2), (0, 1)]), [(0, 2, true)]);
}

#[test]
fn what_an_earlier_connection_brought_is_not_acknowledged_over_the_next() {
    let mut consumption = consumption(1, 10, 1_000);
    arrive(&mut consumption, 0, 1, 1);
    dispatched(&mut consumption);
    let old = tag(0, consumption.incarnation(), 1);
    consumption.lost(Fault::blocked("a test"));
    assert!(matches!(consumption.take(), Taken::Revoked(units) if units == [unit(0)]));
    assert!(matches!(consumption.take(), Taken::Trouble(_)));
    consumption.recovered();
    arrive(&mut consumption, 0, 1, 1);
    assert_eq!(dispatched(&mut consumption), [(0, 1)]);
    assert_eq!(consumption.acknowledge(std::slice::from_ref(&old)), []);
    assert_eq!(acknowledged(&mut consumption, &[(0, 1)]), [(0, 1, true)]);
    // What was still on its way from it is dropped.
    let late = Delivery::new(old, Err(Undecodable::new("late", "".into(), Vec::new())), None);
    consumption.arrived(0, late, 1);
    assert_eq!(dispatched(&mut consumption), []);
}

#[test]
fn a_paused_queue_keeps_what_it_has_and_others_go_on() {
    let mut consumption = consumption(2, 10, 1_000);
    consumption.set_paused(&[unit(0)], true);
    arrive(&mut consumption, 0, 1, 1);
    arrive(&mut consumption, 1, 1, 1);
    assert_eq!(dispatched(&mut consumption), [(1, 1)]);
    consumption.set_paused(&[unit(0)], false);
    assert_eq!(dispatched(&mut consumption), [(0, 1)]);
}

#[test]
fn a_drained_member_gets_nothing_more_and_may_acknowledge() {
    let mut consumption = consumption(1, 10, 1_000);
    arrive(&mut consumption, 0, 1, 1);
    dispatched(&mut consumption);
    consumption.drain();
    arrive(&mut consumption, 0, 2, 1);
    assert!(matches!(consumption.take(), Taken::Ended));
    assert_eq!(acknowledged(&mut consumption, &[(0, 1)]), [(0, 1, true)]);
    consumption.lost(Fault::blocked("a test"));
    assert!(matches!(consumption.take(), Taken::Ended));
}

#[test]
fn what_is_over_stays_over() {
    let mut consumption = consumption(1, 10, 1_000);
    consumption.end(Fault::closed());
    assert!(matches!(consumption.take(), Taken::Revoked(_)));
    for _ in 0..2 {
        assert!(
            matches!(consumption.take(), Taken::Trouble(fault) if fault.kind == TransportErrorKind::Closed)
        );
    }
}

#[test]
fn each_queue_may_send_a_share_of_a_large_prefetch_and_all_of_a_small_one() {
    assert_eq!(consumption(4, 5, 1).share(), 5);
    assert_eq!(consumption(4, 1_000, 1).share(), 250);
    assert_eq!(consumption(100, 1_000, 1).share(), 64);
    assert_eq!(consumption(1, 100_000, 1).share(), u16::MAX);
}
