#![allow(clippy::unwrap_used, reason = "a panic in a test is a failed test")]

use std::collections::VecDeque;

use proptest::prelude::*;

use super::*;
use crate::message::Message;
use crate::name::Topic;

/// Size of a message without payload.
const EMPTY: usize = 263;

fn unit(number: u32) -> Unit {
    Unit { topic: Topic::new("orders").unwrap(), number }
}

fn subscription(prefetch: usize, bytes: usize) -> Subscription {
    let subscription = Subscription::new("reader", [unit(0).topic]).unwrap();
    subscription.with_prefetch(prefetch).with_prefetch_bytes(bytes)
}

fn window(units: u32, prefetch: usize, bytes: usize) -> Window {
    let mut window = Window::new(&subscription(prefetch, bytes)).unwrap();
    (0..units).for_each(|number| window.assign(unit(number), ()));
    window
}

fn arrive(window: &mut Window, of: u32, number: u64, payload: usize) {
    let message = Message::new(unit(of).topic, "x").unwrap().with_payload(vec![b'x'; payload]);
    window.arrived(&unit(of), number, (), |tag| Delivery::new(tag, Ok(message), None));
}

fn tags(received: Option<Received>) -> Vec<Tag> {
    match received {
        Some(Received::Deliveries(deliveries)) => deliveries.into_iter().map(|it| it.tag).collect(),
        None => Vec::new(),
        other => panic!("deliveries or nothing were expected, {other:?} came"),
    }
}

/// Unit and number of what is dispatched.
fn dispatched(window: &mut Window) -> Vec<(u32, u64)> {
    tags(window.receive()).into_iter().map(|tag| (tag.unit.number, tag.number)).collect()
}

fn finish(window: &mut Window, of: u32, numbers: &[u64]) {
    let incarnation = window.unit(&unit(of)).unwrap().incarnation();
    numbers.iter().for_each(|number| {
        assert!(window.finish(&Tag { unit: unit(of), incarnation, number: *number }));
    });
}

#[test]
fn a_subscription_that_could_get_nothing_is_refused() {
    let error = Window::<(), ()>::new(&subscription(0, 1)).unwrap_err();
    assert_eq!(error.kind(), TransportErrorKind::Invalid);
    assert!(error.to_string().contains("prefetch is 0"), "{error}");
    let mut without_topics = subscription(1, 1);
    without_topics.topics.clear();
    let error = Window::<(), ()>::new(&without_topics).unwrap_err();
    assert_eq!(error.kind(), TransportErrorKind::Invalid);
    assert!(error.to_string().contains("no topics"), "{error}");
}

#[test]
fn no_more_than_the_prefetch_is_in_hand_and_units_share_it() {
    let mut window = window(2, 4, usize::MAX);
    (1..=6).for_each(|number| arrive(&mut window, 0, number, 0));
    arrive(&mut window, 1, 1, 0);
    assert_eq!(dispatched(&mut window), [(0, 1), (0, 2), (1, 1), (0, 3)]);
    assert_eq!(dispatched(&mut window), []);
    finish(&mut window, 0, &[2]);
    assert_eq!(dispatched(&mut window), [], "the broker has not confirmed it");
    window.take_finished();
    assert_eq!(dispatched(&mut window), [(0, 4)]);
}

#[test]
fn a_unit_that_had_no_room_has_the_next_turn() {
    let mut window = window(3, 1, usize::MAX);
    for number in 1..=9 {
        (0..3).for_each(|of| arrive(&mut window, of, number, 0));
    }
    let mut turns = Vec::new();
    for _ in 0..9 {
        let [(of, number)] = dispatched(&mut window)[..] else { panic!("one at a time") };
        turns.push(of);
        finish(&mut window, of, &[number]);
        window.take_finished();
    }
    assert!((0..3).all(|of| turns.iter().filter(|turn| **turn == of).count() == 3), "{turns:?}");
}

#[test]
fn a_large_delivery_comes_alone_and_is_not_passed() {
    let mut window = window(2, 10, 3 * EMPTY);
    arrive(&mut window, 0, 1, 0);
    arrive(&mut window, 0, 2, 10 * EMPTY);
    (1..=9).for_each(|number| arrive(&mut window, 1, number, 0));
    let mut order = Vec::new();
    for _ in 0..9 {
        let came = dispatched(&mut window);
        assert!(!came.contains(&(0, 2)) || came.len() == 1, "{came:?}");
        came.iter().for_each(|(of, number)| finish(&mut window, *of, &[*number]));
        window.take_finished();
        order.extend(came);
    }
    let large = order.iter().position(|it| *it == (0, 2)).unwrap();
    assert!(large < 5, "{order:?}");
    assert_eq!(order.len(), 11);
}

#[test]
fn one_acknowledgment_covers_a_prefix_and_no_more() {
    let mut window = window(1, 10, usize::MAX);
    (1..=7).for_each(|number| arrive(&mut window, 0, number, 0));
    dispatched(&mut window);
    let mut told = |numbers: &[u64]| {
        finish(&mut window, 0, numbers);
        let finished = window.take_finished().remove(0);
        let numbers: Vec<u64> = finished.deliveries.iter().map(|(number, ())| *number).collect();
        (finished.through, numbers)
    };
    assert_eq!(told(&[4, 2]), (None, vec![2, 4]));
    assert_eq!(told(&[1, 3, 6]), (Some(3), vec![1, 3, 6]));
    assert_eq!(told(&[5]), (Some(5), vec![5]));
}

#[test]
fn what_waits_is_behind_what_is_acknowledged() {
    let mut window = window(1, 2, usize::MAX);
    (1..=3).for_each(|number| arrive(&mut window, 0, number, 0));
    let tag = tags(window.receive()).remove(0);
    assert!(!window.finish(&Tag { number: 3, ..tag }), "it was not dispatched");
    finish(&mut window, 0, &[2, 1]);
    assert_eq!(window.take_finished()[0].through, Some(2));
}

#[test]
fn an_offset_advances_only_over_what_is_finished_without_a_gap() {
    let mut window = window(1, 4, usize::MAX).by_offset();
    [3, 4, 7, 8, 9].into_iter().for_each(|number| arrive(&mut window, 0, number, 0));
    assert_eq!(dispatched(&mut window).len(), 4);
    finish(&mut window, 0, &[4, 8]);
    assert!(window.finished().is_empty(), "3 is not finished");
    assert_eq!(dispatched(&mut window), [(0, 9)], "what is finished makes room at once");
    finish(&mut window, 0, &[3]);
    let asked = window.finished();
    assert_eq!(asked[0].through, Some(4), "7 is not finished");
    finish(&mut window, 0, &[7]);
    window.confirm(&asked[0]);
    assert_eq!(window.finished()[0].through, Some(8), "it advanced meanwhile");
    let asked = window.finished();
    window.confirm(&asked[0]);
    assert!(window.finished().is_empty());
}

#[test]
fn a_revocation_takes_everything_of_its_unit() {
    let mut window = window(1, 2, usize::MAX);
    (1..=3).for_each(|number| arrive(&mut window, 0, number, 0));
    let old = tags(window.receive());
    window.pause(&[unit(0)], true);
    window.finish(&old[0]);
    let finished = window.finished();
    window.revoke(&unit(0));
    assert!(window.is_empty() && window.finished().is_empty());
    arrive(&mut window, 0, 4, 0);
    window.assign(unit(0), ());
    arrive(&mut window, 0, 1, 0);
    assert!(matches!(window.receive(), Some(Received::Revoked(units)) if units == [unit(0)]));
    let new = tags(window.receive());
    assert_eq!(new.len(), 1, "the pause ended with the ownership, and what came in between is not ours");
    assert!(new[0].incarnation > old[0].incarnation);
    window.confirm(&finished[0]);
    assert!(!window.finish(&old[0]) && window.finish(&new[0]));
}

#[test]
fn revoked_is_said_before_ended_which_is_the_last_word() {
    let mut window = window(2, 2, usize::MAX);
    arrive(&mut window, 0, 1, 0);
    let tags = tags(window.receive());
    window.drain();
    window.revoke(&unit(1));
    arrive(&mut window, 0, 2, 0);
    assert!(matches!(window.receive(), Some(Received::Revoked(units)) if units == [unit(1)]));
    assert!(matches!(window.receive(), Some(Received::Ended)));
    assert!(window.finish(&tags[0]), "acknowledgments still count");
    window.revoke(&unit(0));
    assert!(matches!(window.receive(), Some(Received::Ended)), "and nothing behind it");
}

#[derive(Clone, Debug)]
enum Step {
    Assign(u32),
    Revoke(u32),
    Arrive(u32, usize),
    DropWaiting(u32),
    Next,
    Finish(proptest::sample::Index),
    Confirm,
    Pause(u32, bool),
    Drain,
}

fn step() -> impl Strategy<Value = Step> {
    let of = || 0..3_u32;
    prop_oneof![
        2 => of().prop_map(Step::Assign),
        1 => of().prop_map(Step::Revoke),
        9 => (of(), prop_oneof![Just(0), Just(EMPTY), Just(9 * EMPTY)]).prop_map(|(of, n)| Step::Arrive(of, n)),
        1 => of().prop_map(Step::DropWaiting),
        6 => Just(Step::Next),
        5 => any::<proptest::sample::Index>().prop_map(Step::Finish),
        3 => Just(Step::Confirm),
        1 => (of(), any::<bool>()).prop_map(|(of, paused)| Step::Pause(of, paused)),
        1 => proptest::bool::weighted(0.1).prop_map(|drain| if drain { Step::Drain } else { Step::Next }),
    ]
}

/// A unit, kept the simple way.
#[derive(Debug, Default)]
struct Model {
    incarnation: u64,
    paused: bool,
    waiting: VecDeque<(u64, usize)>,
    /// In hand: size, and whether it counts against the prefetch and is finished.
    in_hand: BTreeMap<u64, (usize, bool, bool)>,
}

proptest! {
    #[test]
    fn every_promise_holds_whatever_happens(
        by_offset in any::<bool>(),
        prefetch in 1..5_usize,
        steps in proptest::collection::vec(step(), 1..150),
    ) {
        let limit = 4 * EMPTY;
        let mut window: Window = Window::new(&subscription(prefetch, limit)).unwrap();
        if by_offset {
            window = window.by_offset();
        }
        let mut models: BTreeMap<u32, Model> = BTreeMap::new();
        let (mut revoked, mut number) = (BTreeSet::new(), 0);
        let (mut drained, mut ended) = (false, false);
        let mut given: Vec<Tag> = Vec::new();
        for step in steps {
            match step {
                Step::Assign(of) => {
                    if models.remove(&of).is_some() {
                        revoked.insert(unit(of));
                    }
                    window.assign(unit(of), ());
                    let incarnation = window.unit(&unit(of)).unwrap().incarnation();
                    models.insert(of, Model { incarnation, ..Model::default() });
                }
                Step::Revoke(of) => {
                    let was_ours = models.remove(&of).is_some();
                    prop_assert_eq!(window.revoke(&unit(of)).is_some(), was_ours);
                    if was_ours {
                        revoked.insert(unit(of));
                    }
                }
                Step::Arrive(of, payload) => {
                    number += 1;
                    arrive(&mut window, of, number, payload);
                    if let Some(model) = models.get_mut(&of) {
                        model.waiting.push_back((number, EMPTY + payload));
                    }
                }
                Step::DropWaiting(of) => {
                    window.drop_waiting(&unit(of));
                    if let Some(model) = models.get_mut(&of) {
                        model.waiting.clear();
                    }
                }
                Step::Next => {
                    let received = window.receive();
                    match &received {
                        _ if ended => prop_assert!(matches!(received, Some(Received::Ended)), "the last word"),
                        _ if !revoked.is_empty() => {
                            let Some(Received::Revoked(units)) = &received else {
                                return Err(TestCaseError::fail(format!("{received:?} before {revoked:?}")));
                            };
                            prop_assert_eq!(units.iter().cloned().collect::<BTreeSet<_>>(), std::mem::take(&mut revoked));
                        }
                        _ if drained => {
                            prop_assert!(matches!(received, Some(Received::Ended)));
                            ended = true;
                        }
                        _ => for tag in tags(received) {
                            let model = models.get_mut(&tag.unit.number).unwrap();
                            prop_assert!(!model.paused && model.incarnation == tag.incarnation);
                            let (next, bytes) = model.waiting.pop_front().unwrap();
                            prop_assert_eq!(next, tag.number, "in order, without a gap");
                            model.in_hand.insert(next, (bytes, true, false));
                            given.push(tag);
                        }
                    }
                }
                Step::Finish(index) if !given.is_empty() => {
                    let tag = given[index.index(given.len())].clone();
                    let model = models.get_mut(&tag.unit.number).filter(|it| it.incarnation == tag.incarnation);
                    let in_hand = model.and_then(|it| it.in_hand.get_mut(&tag.number));
                    // By an offset, only once; else until it is confirmed.
                    let news = in_hand.as_ref().is_some_and(|(_, _, finished)| !by_offset || !*finished);
                    prop_assert_eq!(window.finish(&tag), news);
                    if let Some((_, counts, finished)) = in_hand {
                        (*finished, *counts) = (true, !by_offset);
                    }
                }
                Step::Finish(_) => {}
                Step::Confirm => for finished in window.take_finished() {
                    let model = models.get_mut(&finished.unit.number).unwrap();
                    prop_assert_eq!(model.incarnation, finished.incarnation);
                    if let Some(through) = finished.through {
                        prop_assert!(model.in_hand.range(..=through).all(|(_, (_, _, finished))| *finished));
                        prop_assert!(model.waiting.front().is_none_or(|(first, _)| *first > through));
                    }
                    if by_offset {
                        model.in_hand.retain(|number, _| Some(*number) > finished.through);
                    } else {
                        let count = model.in_hand.len();
                        model.in_hand.retain(|_, (_, _, finished)| !*finished);
                        prop_assert_eq!(count - model.in_hand.len(), finished.deliveries.len());
                    }
                },
                Step::Pause(of, paused) => {
                    window.pause(&[unit(of)], paused);
                    if let Some(model) = models.get_mut(&of) {
                        model.paused = paused;
                    }
                }
                Step::Drain => {
                    window.drain();
                    drained = true;
                }
            }
            let counted: Vec<usize> = models.values().flat_map(|model| model.in_hand.values())
                .filter(|(_, counts, _)| *counts).map(|(bytes, ..)| *bytes).collect();
            let bytes: usize = counted.iter().sum();
            prop_assert!(counted.len() <= prefetch);
            prop_assert!(bytes <= limit || counted.len() == 1, "{} bytes", bytes);
            prop_assert_eq!(window.in_hand, Load { messages: counted.len(), bytes });
        }
        // Whoever finishes what it has gets the rest, unless it drains.
        models.keys().for_each(|of| window.pause(&[unit(*of)], false));
        if !drained {
            let mut left: usize = models.values().map(|model| model.waiting.len()).sum();
            for (of, model) in &models {
                for number in model.in_hand.keys() {
                    window.finish(&Tag { unit: unit(*of), incarnation: model.incarnation, number: *number });
                }
            }
            window.take_finished();
            window.notice();
            while left > 0 {
                let came = tags(window.receive());
                prop_assert!(!came.is_empty(), "{} wait forever", left);
                left -= came.len();
                came.iter().for_each(|tag| assert!(window.finish(tag)));
                window.take_finished();
            }
        }
    }
}
