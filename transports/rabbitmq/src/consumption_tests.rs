#![allow(clippy::unwrap_used, reason = "a panic in a test is a failed test")]

use outbox_contract::backend::{Subscription, Undecodable};
use outbox_contract::{Topic, TransportErrorKind};

use super::*;

fn unit(number: u32) -> Unit {
    Unit { topic: Topic::new("orders").unwrap(), number }
}

fn consumption(queues: u32) -> Consumption {
    let subscription = Subscription::new("inventory", [unit(0).topic]).unwrap();
    Consumption::new(Window::new(&subscription).unwrap(), (0..queues).map(unit).collect())
}

fn arrive(consumption: &mut Consumption, queue: usize, number: u64) {
    let message = Err(Undecodable::new("of no matter", "".into(), Vec::new()));
    consumption.arrived(queue, number, |tag| Delivery::new(tag, message, None));
}

fn dispatched(consumption: &mut Consumption) -> Vec<Tag> {
    match consumption.take().unwrap() {
        Some(Received::Deliveries(deliveries)) => deliveries.into_iter().map(|it| it.tag).collect(),
        None => Vec::new(),
        other => panic!("{other:?}"),
    }
}

fn acknowledged(consumption: &mut Consumption, tags: &[&Tag]) -> Vec<(usize, u64, bool)> {
    let tags: Vec<Tag> = tags.iter().map(|tag| (*tag).clone()).collect();
    consumption.acknowledge(&tags).into_iter().map(|it| (it.queue, it.number, it.multiple)).collect()
}

#[test]
fn only_what_is_finished_is_acknowledged() {
    let mut consumption = consumption(2);
    (1..=6).for_each(|number| arrive(&mut consumption, 0, number));
    arrive(&mut consumption, 1, 1);
    let tags = dispatched(&mut consumption);
    let of = |queue, number| tags.iter().find(|it| (it.unit.number, it.number) == (queue, number)).unwrap();
    assert_eq!(acknowledged(&mut consumption, &[of(0, 4), of(0, 2)]), [(0, 2, false), (0, 4, false)]);
    assert_eq!(
        acknowledged(&mut consumption, &[of(0, 1), of(0, 3), of(0, 6), of(1, 1)]),
        [(0, 3, true), (0, 6, false), (1, 1, true)]
    );
    assert_eq!(acknowledged(&mut consumption, &[of(0, 1), of(0, 3)]), [], "they were acknowledged before");
    assert_eq!(acknowledged(&mut consumption, &[of(0, 5)]), [(0, 5, true)]);
}

#[test]
fn what_an_earlier_connection_brought_is_not_acknowledged_over_the_next() {
    let mut consumption = consumption(1);
    arrive(&mut consumption, 0, 1);
    arrive(&mut consumption, 0, 2);
    let old = dispatched(&mut consumption);
    assert_eq!(acknowledged(&mut consumption, &[&old[0]]), [(0, 1, true)]);
    assert!(consumption.has_moved_on());
    consumption.lost(Fault::blocked("a test"));
    assert!(!consumption.has_moved_on());
    assert!(matches!(consumption.take(), Ok(Some(Received::Revoked(units))) if units == [unit(0)]));
    assert!(consumption.take().is_err());
    consumption.recovered();
    arrive(&mut consumption, 0, 1);
    let new = dispatched(&mut consumption);
    assert_eq!(acknowledged(&mut consumption, &[&old[1]]), []);
    assert_eq!(acknowledged(&mut consumption, &[&new[0]]), [(0, 1, true)]);
}

#[test]
fn a_connection_that_is_lost_while_it_drains_is_said_before_the_end() {
    let mut consumption = consumption(1);
    arrive(&mut consumption, 0, 1);
    dispatched(&mut consumption);
    consumption.drain();
    consumption.lost(Fault::blocked("a test"));
    assert!(matches!(consumption.take(), Ok(Some(Received::Revoked(_)))));
    assert!(matches!(consumption.take(), Ok(Some(Received::Ended))));
    consumption.lost(Fault::blocked("a test"));
    assert!(matches!(consumption.take(), Ok(Some(Received::Ended))));
}

#[test]
fn what_is_over_stays_over() {
    let mut consumption = consumption(1);
    consumption.end(Fault::closed());
    assert!(matches!(consumption.take(), Ok(Some(Received::Revoked(_)))));
    for _ in 0..2 {
        assert!(consumption.take().is_err_and(|fault| fault.kind == TransportErrorKind::Closed));
    }
}

#[test]
fn each_queue_may_send_a_share_of_a_large_prefetch_and_all_of_a_small_one() {
    assert_eq!(prefetch_of_queue(5, 4), 5);
    assert_eq!(prefetch_of_queue(1_000, 4), 250);
    assert_eq!(prefetch_of_queue(1_000, 100), 64);
    assert_eq!(prefetch_of_queue(100_000, 1), u16::MAX);
}
