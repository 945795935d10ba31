#![allow(clippy::unwrap_used, reason = "a panic in a test is a failed test")]

use outbox_contract::Message;
use outbox_contract::backend::Subscription;

use super::*;

/// Size of a message without payload.
const EMPTY: usize = 263;
const NOW: Duration = Duration::from_secs(100);
const LATER: Duration = Duration::from_secs(110);

fn unit(number: u32) -> Unit {
    Unit { topic: Topic::new("orders").unwrap(), number }
}

fn state(prefetch: usize, bytes: usize) -> Consumption {
    let subscription = Subscription::new("reader", ["orders"]).unwrap();
    let subscription = subscription.with_prefetch(prefetch).with_prefetch_bytes(bytes);
    Consumption::new(Window::new(&subscription).unwrap())
}

fn entries(ids: std::ops::RangeInclusive<u64>, bytes: usize) -> Vec<Entry> {
    let message = || Message::new("orders", "x").unwrap().with_payload(vec![b'x'; bytes - EMPTY]);
    let content = || (Ok(message()), None);
    ids.map(|id| Entry { id: format!("1-{id}").parse().unwrap(), content: Some(content()) }).collect()
}

fn gain(state: &mut Consumption, number: u32, epoch: &str) {
    state.gain(unit(number), epoch.to_owned(), LATER, StreamId::START);
}

/// Reads whatever the state asks for, from streams in which there is enough.
fn read(state: &mut Consumption, bytes: usize) -> usize {
    let Some(plan) = state.plan(NOW) else { return 0 };
    let count = plan.count;
    for (unit, incarnation, from) in plan.units {
        let came = entries(1..=u64::try_from(count).unwrap(), bytes);
        state.read(&unit, incarnation, from, count, came);
    }
    state.has_read(Duration::ZERO, Duration::from_secs(5));
    count
}

/// Redis has heard of everything that is finished.
fn confirm(state: &mut Consumption) {
    for finished in state.unconfirmed() {
        state.confirmed(&finished);
    }
}

fn cursor(state: &Consumption) -> Cursor {
    state.window.unit(&unit(0)).unwrap().state.cursor
}

fn deliveries(state: &mut Consumption) -> Vec<Delivery> {
    match state.take(NOW) {
        Ok(Some(Received::Deliveries(deliveries))) => deliveries,
        Ok(None) => Vec::new(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn no_more_is_read_nor_handed_out_than_the_prefetch() {
    let mut state = state(5, usize::MAX);
    gain(&mut state, 0, "1");
    gain(&mut state, 1, "1");
    while read(&mut state, EMPTY) > 0 {}
    let first = deliveries(&mut state);
    assert_eq!(first.len(), 5);
    assert!(state.plan(NOW).is_none(), "there is no room");
    assert!(state.finish(&[first[2].tag.clone()]));
    read(&mut state, EMPTY);
    assert!(deliveries(&mut state).is_empty(), "Redis does not know yet");
    confirm(&mut state);
    read(&mut state, EMPTY);
    assert_eq!(deliveries(&mut state).len(), 1);
}

#[test]
fn bytes_are_bounded_and_what_is_larger_comes_alone() {
    let mut state = state(100, 5 * EMPTY);
    gain(&mut state, 0, "1");
    let from = cursor(&state);
    let mut mixed = entries(1..=3, 2 * EMPTY);
    mixed.extend(entries(4..=4, 10 * EMPTY));
    state.read(&unit(0), 1, from, 10, mixed);
    let first = deliveries(&mut state);
    assert_eq!(first.len(), 2);
    let tags: Vec<Tag> = first.iter().map(|it| it.tag.clone()).collect();
    state.finish(&tags);
    confirm(&mut state);
    let third = deliveries(&mut state);
    assert_eq!(third.len(), 1);
    state.finish(&[third[0].tag.clone()]);
    confirm(&mut state);
    assert_eq!(deliveries(&mut state).len(), 1, "the large one, alone");
}

#[test]
fn a_read_that_failed_is_repeated_with_less() {
    let mut state = state(1_000, usize::MAX);
    gain(&mut state, 0, "1");
    let first = state.plan(NOW).unwrap().count;
    assert!(first < 100, "nothing is known of the entries yet");
    state.rewind();
    let second = state.plan(NOW).unwrap().count;
    assert!(second < first, "{second}");
    read(&mut state, EMPTY);
    assert!(state.plan(NOW).unwrap().count > second, "what came in time lets expect more");
}

#[test]
fn units_that_can_not_be_read_at_once_are_read_in_turn() {
    let mut state = state(1_000, usize::MAX);
    (0..5).for_each(|number| gain(&mut state, number, "1"));
    (0..10).for_each(|_| state.rewind());
    let mut seen = BTreeSet::new();
    for _ in 0..5 {
        let plan = state.plan(NOW).unwrap();
        assert_eq!((plan.units.len(), plan.count, plan.of), (1, 1, 5));
        seen.extend(plan.units.into_iter().map(|(unit, ..)| unit));
    }
    assert_eq!(seen.len(), 5);
}

#[test]
fn nothing_is_handed_out_under_a_lease_that_ran_out() {
    let mut state = state(5, usize::MAX);
    gain(&mut state, 0, "1");
    assert!(read(&mut state, EMPTY) > 0);
    let Ok(Some(Received::Revoked(units))) = state.take(LATER) else { panic!("the unit is revoked") };
    assert_eq!(units, [unit(0)]);
    assert!(matches!(state.take(LATER), Ok(None)), "and what was read of it is gone");
    assert!(state.plan(LATER).is_none());
}

#[test]
fn a_lease_that_is_prolonged_goes_on_as_it_is() {
    let mut state = state(5, usize::MAX);
    gain(&mut state, 0, "7");
    assert!(read(&mut state, EMPTY) > 0);
    let held = |epoch: &str| KnownUnit { epoch: epoch.to_owned(), seen: StreamId::START };
    state.prolong(&unit(0), &held("6"), LATER * 2, StreamId::START, None);
    assert!(state.expire(LATER), "another epoch prolongs nothing");
    gain(&mut state, 0, "8");
    state.prolong(&unit(0), &held("8"), LATER * 2, StreamId::START, None);
    assert!(!state.expire(LATER));
}

/// After a failover that lost entries: what comes now stands before what was handed out, and would
/// be passed.
#[test]
fn a_unit_whose_stream_has_gone_back_is_taken_anew() {
    let mut state = state(100, usize::MAX);
    let id = |number: u64| format!("1-{number}").parse::<StreamId>().unwrap();
    state.gain(unit(0), "1".to_owned(), LATER, id(4));
    let from = cursor(&state);
    state.read(&unit(0), 1, from, 9, Vec::new());
    let before = state.held_of(&unit(0).topic)[&0].clone();
    state.read(&unit(0), 1, Cursor::New, 9, entries(5..=9, EMPTY));
    assert_eq!(deliveries(&mut state).len(), 5);
    assert!(!state.prolong(&unit(0), &before, LATER, id(4), Some(id(5))), "asked before it was read");
    let now = state.held_of(&unit(0).topic)[&0].clone();
    assert!(!state.prolong(&unit(0), &now, LATER, id(9), Some(id(5))));
    assert!(state.prolong(&unit(0), &now, LATER, id(7), Some(id(5))));
}

#[test]
fn an_acknowledgement_of_an_earlier_incarnation_is_ignored() {
    let mut state = state(5, usize::MAX);
    gain(&mut state, 0, "1");
    read(&mut state, EMPTY);
    let old = deliveries(&mut state);
    state.lose(&unit(0));
    gain(&mut state, 0, "3");
    assert!(matches!(state.take(NOW), Ok(Some(Received::Revoked(_)))), "it is told before anything new");
    read(&mut state, EMPTY);
    let new = deliveries(&mut state);
    assert!(!state.finish(&[old[0].tag.clone()]));
    assert!(state.unconfirmed().is_empty());
    assert!(state.finish(&[new[0].tag.clone()]));
}

#[test]
fn a_paused_unit_takes_no_room_from_others() {
    let mut state = state(4, usize::MAX);
    gain(&mut state, 0, "1");
    assert_eq!(read(&mut state, EMPTY), 4);
    state.pause(&[unit(0)]);
    assert!(deliveries(&mut state).is_empty());
    gain(&mut state, 1, "1");
    let plan = state.plan(NOW).unwrap();
    assert_eq!((plan.units.len(), plan.count), (1, 4));
    assert_eq!(plan.units[0].0, unit(1));
    state.resume(&[unit(0)]);
    assert_eq!(state.plan(NOW).unwrap().units.len(), 2);
}

#[test]
fn nobody_waits_while_something_pending_is_still_to_be_read() {
    let mut state = state(100, usize::MAX);
    gain(&mut state, 0, "1");
    assert!(state.watchable(NOW).is_none());
    let from = cursor(&state);
    state.read(&unit(0), 1, from, 10, Vec::new());
    assert_eq!(state.watchable(NOW).map(|units| units.len()), Some(1));
    state.rewind();
    assert!(state.watchable(NOW).is_none());
}

#[test]
fn a_drained_member_has_ended_and_still_acknowledges() {
    let mut state = state(5, usize::MAX);
    gain(&mut state, 0, "1");
    read(&mut state, EMPTY);
    let in_hand = deliveries(&mut state);
    state.drain();
    assert!(matches!(state.take(NOW), Ok(Some(Received::Ended))));
    assert!(state.plan(NOW).is_none());
    assert!(state.finish(&[in_hand[0].tag.clone()]));
}

#[test]
fn what_is_unconfirmed_goes_with_its_unit_and_a_late_answer_confirms_nothing_of_the_next() {
    let mut state = state(5, usize::MAX);
    gain(&mut state, 0, "1");
    read(&mut state, EMPTY);
    let in_hand = deliveries(&mut state);
    state.finish(&[in_hand[0].tag.clone()]);
    let unconfirmed = state.unconfirmed();
    state.lose(&unit(0));
    assert!(state.unconfirmed().is_empty());
    gain(&mut state, 0, "3");
    assert!(matches!(state.take(NOW), Ok(Some(Received::Revoked(_)))));
    read(&mut state, EMPTY);
    let in_hand = deliveries(&mut state);
    state.finish(&[in_hand[0].tag.clone()]);
    for finished in unconfirmed {
        state.confirmed(&finished);
    }
    assert_eq!(state.unconfirmed().len(), 1);
}

fn id(number: u64) -> StreamId {
    format!("1-{number}").parse().unwrap()
}

/// Reads these entries of unit 0, having asked for `count`.
fn read_of_unit(state: &mut Consumption, count: usize, entries: Vec<Entry>) -> usize {
    let from = cursor(state);
    state.read(&unit(0), 1, from, count, entries)
}

#[test]
fn what_is_pending_is_read_to_its_end_before_anything_new() {
    let mut state = state(100, usize::MAX);
    state.gain(unit(0), "1".to_owned(), LATER, id(4));
    assert_eq!(cursor(&state), Cursor::Pending(StreamId::START));
    read_of_unit(&mut state, 2, entries(1..=2, EMPTY));
    assert_eq!(cursor(&state), Cursor::Pending(id(2)), "there may be more");
    read_of_unit(&mut state, 2, entries(3..=3, EMPTY));
    assert_eq!(cursor(&state), Cursor::New);
    assert_eq!(state.held_of(&unit(0).topic)[&0].seen, id(4), "what was pending says nothing of what is new");
    read_of_unit(&mut state, 2, entries(5..=5, EMPTY));
    assert_eq!(state.held_of(&unit(0).topic)[&0].seen, id(5));
}

#[test]
fn a_rewound_unit_reads_again_what_was_not_dispatched() {
    let mut state = state(1, usize::MAX);
    gain(&mut state, 0, "1");
    read_of_unit(&mut state, 9, entries(1..=3, EMPTY));
    assert_eq!(deliveries(&mut state).len(), 1);
    state.rewind();
    assert_eq!(cursor(&state), Cursor::Pending(id(1)));
    let owned = state.window.unit(&unit(0)).unwrap();
    assert_eq!((owned.waiting().messages, owned.in_hand().messages), (0, 1), "what is in hand stays there");
}

#[test]
fn a_read_that_a_pause_overtook_loses_nothing() {
    let mut state = state(9, usize::MAX);
    gain(&mut state, 0, "1");
    read_of_unit(&mut state, 9, entries(1..=1, EMPTY));
    let began = cursor(&state);
    state.pause(&[unit(0)]);
    state.read(&unit(0), 1, began, 9, entries(5..=6, EMPTY));
    state.resume(&[unit(0)]);
    assert!(deliveries(&mut state).is_empty());
    assert_eq!(cursor(&state), Cursor::Pending(StreamId::START), "it is read from what is pending");
}

#[test]
fn what_is_finished_is_unconfirmed_until_redis_knows() {
    let mut state = state(3, usize::MAX);
    gain(&mut state, 0, "1");
    read_of_unit(&mut state, 9, entries(1..=3, EMPTY));
    let tags: Vec<Tag> = deliveries(&mut state).into_iter().map(|it| it.tag).collect();
    let third = std::slice::from_ref(&tags[2]);
    assert!(!state.finish(&[Tag { number: 4, ..tags[2].clone() }]), "no member has it");
    assert!(state.finish(third) && state.finish(third), "however often it is said");
    assert_eq!(state.unconfirmed()[0].deliveries, [(3, id(3))]);
    assert_eq!(state.window.room().messages, 0, "it makes no room yet");
    confirm(&mut state);
    assert_eq!(state.window.room().messages, 1);
    assert!(!state.finish(third) && state.unconfirmed().is_empty());
}

#[test]
fn what_is_pending_and_with_nobody_was_forgotten() {
    let mut state = state(2, usize::MAX);
    gain(&mut state, 0, "1");
    read_of_unit(&mut state, 9, entries(1..=3, EMPTY));
    let tags: Vec<Tag> = deliveries(&mut state).into_iter().map(|it| it.tag).collect();
    let forgotten = |state: &mut Consumption, oldest: Option<u64>| {
        has_forgotten(state.window.unit_mut(&unit(0)).unwrap(), oldest.map(id))
    };
    assert!(!forgotten(&mut state, Some(1)) && !forgotten(&mut state, Some(1)), "it is in hand");
    state.finish(&tags[..1]);
    assert!(!forgotten(&mut state, Some(1)) && !forgotten(&mut state, Some(1)), "it is unconfirmed");
    confirm(&mut state);
    assert!(!forgotten(&mut state, Some(1)), "the look may be older than the confirmation");
    assert!(!forgotten(&mut state, None), "and so it was");
    assert!(!forgotten(&mut state, Some(1)));
    assert!(forgotten(&mut state, Some(1)), "it was lost");
    assert!(!forgotten(&mut state, Some(3)) && !forgotten(&mut state, Some(3)), "it is still to come");
}

#[test]
fn what_is_gone_from_the_stream_is_named_and_passed() {
    let mut state = state(9, usize::MAX);
    gain(&mut state, 0, "1");
    let mut read = entries(1..=2, EMPTY);
    read[0].content = None;
    assert_eq!(read_of_unit(&mut state, 9, read), 1);
    assert_eq!(state.unconfirmed()[0].deliveries, [(1, id(1))], "it must not look pending");
    assert_eq!(deliveries(&mut state).len(), 1);
}
