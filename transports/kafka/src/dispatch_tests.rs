#![allow(clippy::unwrap_used, reason = "a panic in a test is a failed test")]

use super::*;
use outbox_contract::{Message, Topic, TransportErrorKind};

fn unit(number: u32) -> Unit {
    Unit { topic: Topic::new("orders").unwrap(), number }
}

fn dispatch(prefetch: usize) -> Dispatch {
    let topics = [unit(0).topic];
    let subscription = Subscription::new("c", topics).unwrap().with_prefetch(prefetch);
    Dispatch::new(&subscription).unwrap()
}

fn push(dispatch: &mut Dispatch, number: u32, offset: i64) -> Option<Flow> {
    let message = Message::new(unit(number).topic, "x").unwrap();
    dispatch.push(&unit(number), offset, |tag| Delivery::new(tag, Ok(message), None))
}

fn take(dispatch: &mut Dispatch) -> Vec<Tag> {
    match dispatch.take() {
        Ok(Some(Received::Deliveries(deliveries))) => deliveries.into_iter().map(|it| it.tag).collect(),
        Ok(None) => Vec::new(),
        other => panic!("deliveries or nothing were expected, not {other:?}"),
    }
}

/// The offsets to commit.
fn to_commit(dispatch: &Dispatch) -> Vec<(Unit, i64)> {
    let next = |through: Option<u64>| i64::try_from(through.unwrap() + 1).unwrap();
    dispatch.to_commit().into_iter().map(|it| (it.unit, next(it.through))).collect()
}

#[test]
fn a_log_that_begins_anew_is_another_ownership() {
    let mut dispatch = dispatch(100);
    dispatch.assign(unit(0));
    (995..=999).for_each(|offset| drop(push(&mut dispatch, 0, offset)));
    let old = take(&mut dispatch);
    (0..=20).for_each(|offset| assert_eq!(push(&mut dispatch, 0, offset), None));
    assert!(matches!(dispatch.take(), Ok(Some(Received::Revoked(units))) if units == [unit(0)]));
    let new = take(&mut dispatch);
    assert_eq!((old.len(), new.len()), (5, 21));
    dispatch.acknowledge(&old);
    assert!(dispatch.to_commit().is_empty());
    dispatch.acknowledge(&new);
    assert_eq!(to_commit(&dispatch), [(unit(0), 21)]);
    assert!(!dispatch.is_busy(&[unit(0)]));
}

/// The client goes on behind what is left of the log: of that, what is not finished has to come
/// again.
#[test]
fn a_log_that_was_cut_off_is_read_from_what_is_not_finished() {
    for (taken, finished, back) in [(3, 1, 996), (5, 5, 1_000), (0, 0, 995)] {
        let mut dispatch = dispatch(taken.max(1));
        dispatch.assign(unit(0));
        (995..=1_000).for_each(|offset| drop(push(&mut dispatch, 0, offset)));
        let old = if taken > 0 { take(&mut dispatch) } else { Vec::new() };
        dispatch.acknowledge(&old[..finished]);
        if back < 998 {
            assert_eq!(push(&mut dispatch, 0, 998), Some(Flow::Back(unit(0), back)));
        } else {
            // All that is left of the log is finished.
            assert_eq!(push(&mut dispatch, 0, 998), None);
        }
        assert!(matches!(dispatch.take(), Ok(Some(Received::Revoked(_)))));
        let first = if back < 998 { back } else { 999 };
        (first..=1_000).for_each(|offset| drop(push(&mut dispatch, 0, offset)));
        let new = take(&mut dispatch);
        assert_eq!(new[0].number, u64::try_from(back.min(998)).unwrap());
        dispatch.acknowledge(&new[..1]);
        assert_eq!(to_commit(&dispatch), [(unit(0), back.min(998) + 1)]);
    }
}

#[test]
fn a_partition_that_was_stopped_goes_on_though_its_log_begins_anew() {
    let mut dispatch = dispatch(20);
    dispatch.assign(unit(0));
    let stops: Vec<_> = (100..145).filter_map(|offset| push(&mut dispatch, 0, offset)).collect();
    assert_eq!(stops, [Flow::Stop(unit(0))]);
    assert_eq!(push(&mut dispatch, 0, 0), None);
    assert_eq!(dispatch.flow(), [Flow::Go(unit(0))]);
}

/// The client says but once that it may not read a partition.
#[test]
fn what_is_wrong_with_one_partition_is_not_over_with_a_record_of_another() {
    let problem = |kind| TransportError::new(kind, "next", "no");
    let away = TransportErrorKind::Unavailable;
    let mut dispatch = dispatch(10);
    dispatch.assign(unit(0));
    dispatch.fail(problem(TransportErrorKind::NotPermitted), false);
    dispatch.fail(problem(away), true);
    push(&mut dispatch, 0, 0);
    assert_eq!(dispatch.take().unwrap_err().kind(), TransportErrorKind::NotPermitted);
    dispatch.fail(problem(away), true);
    push(&mut dispatch, 0, 1);
    assert_eq!(take(&mut dispatch).len(), 2, "the broker is there");
}

#[test]
fn a_paused_partition_gives_nothing_and_stops_no_other() {
    let mut dispatch = dispatch(10);
    dispatch.assign(unit(0));
    dispatch.assign(unit(1));
    push(&mut dispatch, 0, 0);
    push(&mut dispatch, 1, 0);
    dispatch.pause(&[unit(0)], true);
    assert_eq!(dispatch.flow(), [Flow::Stop(unit(0))]);
    assert_eq!(take(&mut dispatch).iter().map(|tag| tag.unit.number).collect::<Vec<_>>(), [1]);
    dispatch.pause(&[unit(0)], false);
    assert_eq!(dispatch.flow(), [Flow::Go(unit(0))]);
    assert_eq!(take(&mut dispatch).len(), 1);
}

#[test]
fn a_partition_of_which_much_waits_is_stopped_until_half_of_it_is_gone() {
    let mut dispatch = dispatch(20);
    dispatch.assign(unit(0));
    let stops: Vec<_> = (0..45).filter_map(|offset| push(&mut dispatch, 0, offset)).collect();
    assert_eq!(stops, [Flow::Stop(unit(0))], "once, at twice the prefetch");
    assert!(dispatch.flow().is_empty());
    let taken = take(&mut dispatch);
    assert!(dispatch.flow().is_empty(), "25 wait");
    dispatch.acknowledge(&taken);
    take(&mut dispatch);
    assert_eq!(dispatch.flow(), [Flow::Go(unit(0))], "5 wait");
}
