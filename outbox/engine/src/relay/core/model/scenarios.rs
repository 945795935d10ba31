//! Single events, by hand: what one answer, or one that is missing, does to a core.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use outbox_contract::Failure;
use outbox_contract::backend::{
    Due, DueKey, Epoch, Fetched, FetchedRow, Ordering, Outcome, Position, Scope, Step, Stripe, StripeMark,
    Transitioned, Unavailable,
};

use super::super::{Answer, Command, Event, PublishCommand, Question};
use super::cast::{bucket, stripe_of, the_key};
use crate::relay::config::RelayConfig;
use bench::{Bench, MS, failed, failing, message, parked, positions, row};

mod bench;
mod blocked;
mod due_keys;
mod mass_release;

#[test]
fn an_answer_to_no_known_command_is_dropped() {
    let mut bench = Bench::small();
    let (number, _) = bench.fetch();
    bench.shows(number + 1_000, vec![message(1, 0)]);
    bench.feed(Event::Removed { number: 99 });
    bench.feed(Event::Transitioned { number: 98, answer: Transitioned::LeaseLost });
    bench.feed(Event::Published { batch: 97, outcomes: Vec::new(), refused: BTreeSet::new(), broke: true });
    assert_eq!(bench.core.in_flight(), (0, 0));
    bench.shows(number, vec![message(1, 0)]);
    assert_eq!(bench.core.in_flight().0, 1);
    bench.shows(number, vec![message(2, 0)]);
    assert_eq!(bench.core.in_flight().0, 1, "it was answered before");
}

/// Its followers are dropped with it in one step; the fetch that is under way counts for all other
/// keys.
#[test]
fn a_fetch_that_is_under_way_when_a_key_is_forgotten_counts_for_the_others() {
    let mut bench = Bench::small();
    bench.reads(vec![message(1, 0)]);
    let batch = bench.batch().unwrap();
    let (number, _) = bench.fetch();
    bench.is_back(&batch, failed());
    let (step, transition) = bench.step().unwrap();
    assert!(parked(&transition).is_empty());
    bench.feed(Event::Transitioned { number: step, answer: Transitioned::Stale });
    bench.shows(number, vec![message(2, 0), message(3, 1)]);
    assert_eq!(positions(&bench.batch().unwrap()), [3], "the other one is read again");
    let (_, request) = bench.fetch();
    assert_eq!((request.after, request.buckets), (Position(0), [bucket(0)].into_iter().collect()));
}

#[test]
fn what_a_fetch_shows_that_began_before_a_key_failed_is_read_again() {
    let mut bench = Bench::small();
    bench.reads(vec![message(1, 0)]);
    let batch = bench.batch().unwrap();
    let (number, _) = bench.fetch();
    bench.is_back(&batch, failed());
    let (step, _) = bench.step().unwrap();
    bench.is_made(step, Some(1));
    bench.shows(number, vec![message(2, 0)]);
    assert!(bench.batch().is_none(), "it would overtake the first one");
    bench.reads(vec![failing(2, 0)]);
    assert_eq!(parked(&bench.step().unwrap().1), [Position(2)]);
}

/// Parked messages are settled then, however fast new ones come.
#[test]
fn while_a_key_is_tried_and_catches_up_nothing_is_parked() {
    let mut bench = Bench::small();
    let (number, _) = bench.fetch();
    bench.shows(number, Vec::new());
    bench.now += Duration::from_secs(6);
    bench.feed(Event::Tick);
    let due = |version, failing: Option<i64>, parked: &[i64]| {
        let parked = parked.iter().map(|position| row(*position, 0)).collect();
        let failing = failing.map(|position| row(position, 0).message.id);
        DueKey::new(the_key(0).clone(), bucket(0), version, parked).with_failing(failing, 1, None)
    };
    let answer = |bench: &mut Bench, key| {
        let asks = |want: &Command| matches!(want, Command::Ask { question: Question::Due(_), .. });
        let at = bench.wants.iter().position(asks).expect("due keys are asked for");
        let Command::Ask { number, .. } = bench.wants.swap_remove(at) else { unreachable!() };
        let due = Due::new(vec![key], None);
        bench.feed(Event::Answered { number, answer: Answer::Due(due) });
    };
    answer(&mut bench, due(1, Some(1), &[1, 2]));
    let batch = bench.batch().unwrap();
    assert_eq!(positions(&batch), [1], "alone");
    bench.reads(vec![failing(3, 0), failing(4, 0)]);
    assert!(bench.step().is_none(), "it is tried");
    bench.is_back(&batch, Some(Outcome::Delivered));
    let (step, transition) = bench.step().unwrap();
    assert!(matches!(transition.step, Step::Resume { .. }), "{transition:?}");
    bench.is_made(step, Some(2));
    bench.now += MS * 10;
    bench.feed(Event::Tick);
    assert!(bench.step().is_none(), "it catches up");
    answer(&mut bench, due(2, None, &[2]));
    let batch = bench.batch().unwrap();
    bench.is_back(&batch, Some(Outcome::Delivered));
    let (step, _) = bench.step().unwrap();
    bench.is_made(step, None);
    let (mut number, mut request) = bench.fetch();
    if request.scope == Scope::Everything {
        bench.shows(number, Vec::new());
        (number, request) = bench.fetch();
    }
    assert_eq!(
        (request.after, request.scope),
        (Position(2), Scope::Key(the_key(0).clone())),
        "what came meanwhile"
    );
    bench.shows(number, vec![message(3, 0), message(4, 0)]);
    assert_eq!(positions(&bench.batch().unwrap()), [3, 4], "it flows again");
}

/// A few seconds of silence, and what stands behind it makes room.
#[test]
fn keys_of_which_nothing_is_heard_make_room_for_others() {
    let mut bench = Bench::of_inbox(4, 4);
    bench.reads((0..4).map(|of| message(1 + i64::try_from(of).unwrap(), of)).collect());
    let batch = bench.batch().unwrap();
    assert_eq!(bench.core.in_flight().0, 4);
    bench.is_back(&batch, None);
    bench.now += MS * 5;
    bench.feed(Event::Tick);
    let (_, transition) = bench.step().unwrap();
    assert!(matches!(transition.step, Step::Fail { attempts: 0, .. }), "{transition:?}");
    assert_eq!(bench.core.in_flight().0, 2);
    bench.reads(vec![message(9, 4)]);
    let others: Vec<_> = std::iter::from_fn(|| bench.step()).collect();
    assert_eq!((others.len(), bench.core.in_flight().0), (2, 2), "one more has made room for it");
}

/// Its credit stays taken until the row is gone: so what could be repeated after a kill is bounded.
#[test]
fn what_is_delivered_keeps_its_credit_until_it_is_removed() {
    let mut bench = Bench::small();
    bench.feed(Event::Owed { messages: 5, bytes: 500 });
    assert_eq!(bench.core.in_flight(), (5, 500), "of an earlier incarnation");
    bench.feed(Event::Owed { messages: 0, bytes: 0 });
    bench.reads(vec![message(1, 0)]);
    let batch = bench.batch().unwrap();
    bench.is_back(&batch, Some(Outcome::Delivered));
    assert_eq!(bench.core.in_flight().0, 1);
    bench.feed(Event::Removed { number: bench.removal() });
    assert!(bench.core.is_idle());
}

/// The question was asked before the store knew that the key is due.
#[test]
fn a_key_that_is_due_while_due_keys_are_asked_for_is_asked_for_again() {
    let mut bench = Bench::small();
    bench.reads(vec![message(1, 0)]);
    let batch = bench.batch().unwrap();
    bench.is_back(&batch, failed());
    let (step, _) = bench.step().unwrap();
    let asks = |want: &Command| matches!(want, Command::Ask { question: Question::Due(_), .. });
    let ask = |bench: &mut Bench| {
        for _ in 0..1_000 {
            if let Some(at) = bench.wants.iter().position(asks) {
                let Command::Ask { number, .. } = bench.wants.swap_remove(at) else { unreachable!() };
                return number;
            }
            if bench.wants.iter().any(|want| matches!(want, Command::Ask { .. })) {
                bench.reads(Vec::new());
            }
            bench.now += MS * 10;
            bench.feed(Event::Tick);
        }
        panic!("due keys are not asked for");
    };
    let number = ask(&mut bench);
    bench.is_made(step, Some(1));
    bench.feed(Event::Answered { number, answer: Answer::Due(Due::default()) });
    let before = bench.now;
    ask(&mut bench);
    // The first wait is drawn from at most a second; without word of it the next question comes
    // after `due_poll`.
    assert!(bench.now - before < Duration::from_secs(2), "{:?}", bench.now - before);
}

/// It was counted into a batch with nothing of it inside, and the answer to its transition found it
/// there: it stood still for good.
#[test]
fn a_silent_key_that_makes_room_while_it_stands_in_line_is_in_no_batch() {
    let config = RelayConfig {
        max_in_flight: 4,
        fetch_batch: 4,
        publish_batch: 1,
        max_unconfirmed_batches: 4,
        ..RelayConfig::default()
    };
    let mut bench = Bench::new(Ordering::Single, &config);
    bench.reads((0..4).map(|of| message(1 + i64::try_from(of).unwrap(), of)).collect());
    let mut made_room = 0;
    for _ in 0..20 {
        let asked: Vec<u64> = std::iter::from_fn(|| bench.step()).map(|(number, _)| number).collect();
        let out: Vec<PublishCommand> = std::iter::from_fn(|| bench.batch()).collect();
        out.iter().for_each(|batch| bench.is_back(batch, None));
        made_room += asked.len();
        asked.into_iter().for_each(|number| bench.is_made(number, Some(1)));
        bench.now += Duration::from_secs(1);
        bench.feed(Event::Tick);
    }
    assert!(made_room > 0, "others need their room");
    for batch in std::iter::from_fn(|| bench.batch()).collect::<Vec<_>>() {
        bench.is_back(&batch, None);
    }
    let out: BTreeSet<u64> = std::iter::from_fn(|| bench.batch()).map(|batch| batch.number).collect();
    for of in 0..4 {
        let known = bench.core.tell(of);
        let is_out = out.iter().any(|number| known.contains(&format!("doing: Batch({number})")));
        assert!(is_out || !known.contains("doing: Batch"), "{known}");
    }
}

/// The store was asked before anybody paused the topic.
#[test]
fn a_retry_that_is_shown_while_its_topic_is_paused_waits_until_it_is_resumed() {
    let mut bench = Bench::small();
    bench.now += Duration::from_secs(6);
    bench.feed(Event::Tick);
    let asks = |want: &Command| matches!(want, Command::Ask { question: Question::Due(_), .. });
    let ask = |bench: &mut Bench| {
        for _ in 0..1_000 {
            if let Some(at) = bench.wants.iter().position(asks) {
                let Command::Ask { number, .. } = bench.wants.swap_remove(at) else { unreachable!() };
                return number;
            }
            if bench.wants.iter().any(|want| matches!(want, Command::Ask { .. })) {
                bench.reads(Vec::new());
            }
            bench.now += MS * 100;
            bench.feed(Event::Tick);
        }
        panic!("due keys are not asked for");
    };
    let due = || {
        let parked = vec![row(1, 0)];
        let failing = Some(parked[0].message.id);
        let key = the_key(0).clone();
        let key = DueKey::new(key, bucket(0), 1, parked).with_failing(failing, 1, None);
        Answer::Due(Due::new(vec![key], None))
    };
    let number = ask(&mut bench);
    bench.pause(vec![the_key(0).topic.clone()]);
    bench.feed(Event::Answered { number, answer: due() });
    assert!(bench.batch().is_none(), "its topic is paused");
    assert_eq!(bench.core.in_flight(), (0, 0));
    bench.pause(Vec::new());
    let number = ask(&mut bench);
    bench.feed(Event::Answered { number, answer: due() });
    assert_eq!(positions(&bench.batch().unwrap()), [1]);
}

/// A message put back by hand is astray. Its successors wait, in the window of its topic too, until
/// all windows go back.
#[test]
fn a_topic_that_is_closed_while_rows_of_it_are_astray_is_read_from_the_beginning() {
    let mut bench = Bench::new(Ordering::Stripes, &RelayConfig::default());
    let in_shard = |position: i64, of: usize, number: i64| {
        let mut stored = row(position, of);
        Arc::make_mut(&mut stored).stripe = Some(Stripe { stripe: stripe_of(of), number });
        FetchedRow::Message(stored)
    };
    let mark =
        |of: usize, previous, (first_number, first): (i64, i64), (number, position): (i64, i64)| StripeMark {
            last: Stripe { stripe: stripe_of(of), number },
            position: Position(position),
            first_number,
            first_position: Position(first),
            previous_position: Position(previous),
        };
    bench.marks = vec![mark(0, 0, (1, 10), (1, 10))];
    bench.reads(vec![in_shard(10, 0, 1)]);
    let batch = bench.batch().unwrap();
    bench.is_back(&batch, Some(Outcome::Delivered));
    bench.feed(Event::Removed { number: bench.removal() });
    // A late commit of another shard has it read from below; there the first one stands again.
    bench.marks = vec![mark(0, 10, (2, 20), (3, 30)), mark(2, 0, (1, 5), (1, 5))];
    bench.reads(vec![in_shard(5, 2, 1), in_shard(10, 0, 1), in_shard(20, 0, 2), in_shard(30, 0, 3)]);
    assert_eq!(positions(&bench.batch().unwrap()), [5], "the others wait");
    bench.pause(vec![the_key(0).topic.clone()]);
    bench.pause(Vec::new());
    for _ in 0..20 {
        let (number, request) = bench.fetch();
        if request.after == Position::START {
            bench.shows(number, vec![in_shard(10, 0, 1), in_shard(20, 0, 2), in_shard(30, 0, 3)]);
            break;
        }
        let catches_up = matches!(request.scope, Scope::Topic(_));
        bench.shows(number, if catches_up { vec![in_shard(30, 0, 3)] } else { Vec::new() });
        assert!(bench.batch().is_none(), "they wait in its window, too");
    }
    assert_eq!(positions(&bench.batch().unwrap()), [10, 20, 30]);
}

/// The store shows nothing while the leases are over by its clock. The relay need not have heard of
/// it.
#[test]
fn a_fetch_over_expired_leases_has_seen_nothing_and_waits_for_a_heartbeat() {
    let mut bench = Bench::small();
    let (number, request) = bench.fetch();
    let mut lapsed = Fetched::default();
    lapsed.lapsed = true;
    lapsed.reached = Position(9);
    bench.feed(Event::Answered { number, answer: Answer::Fetched(lapsed) });
    let asks = |bench: &Bench| bench.wants.iter().any(|want| matches!(want, Command::Ask { .. }));
    assert!(!asks(&bench), "the same question has the same answer");
    bench.wants.clear();
    bench.pause(Vec::new());
    let saved = bench.wants.iter().find_map(|want| match want {
        Command::Save(mark) => Some(mark.position),
        _ => None,
    });
    assert_eq!(saved, Some(Position::START), "the next owner begins where this one did");
    assert_eq!(bench.fetch().1.after, request.after, "the heartbeat found the leases alive");
}

/// The broker knows an owner whose lease the store has lost, in a failover or a restore.
#[test]
fn a_bucket_that_the_broker_refuses_to_its_owner_is_taken_anew() {
    let mut bench = Bench::small();
    let given = |bench: &Bench| {
        bench.wants.iter().find_map(|want| match want {
            Command::GiveBack { buckets, .. } => Some(*buckets),
            _ => None,
        })
    };
    bench.reads(vec![message(1, 0), message(2, 1)]);
    let batch = bench.batch().unwrap();
    let refused =
        Outcome::Unavailable(Unavailable::Topic, Failure::new(Failure::FENCED, "as the model has it"));
    let outcomes = vec![Some(refused), Some(Outcome::Delivered)];
    bench.feed(Event::Published { batch: batch.number, outcomes, refused: BTreeSet::new(), broke: false });
    bench.feed(Event::Removed { number: bench.removal() });
    // A heartbeat that began before may not know of the other owner.
    bench.pause(Vec::new());
    assert_eq!(given(&bench), None);
    bench.now += MS;
    bench.pause(Vec::new());
    assert_eq!(given(&bench), Some([bucket(0)].into_iter().collect()));
    bench.wants.clear();
    bench.now += MS;
    bench.pause(Vec::new());
    assert_eq!(given(&bench), None, "once");
    assert!(!bench.core.reading.owned.contains(bucket(0)), "this heartbeat may have run before the release");
    bench.beat(Vec::new(), |of| Epoch(if of == bucket(0) { 2 } else { 1 }));
    assert!(bench.core.reading.owned.contains(bucket(0)));
}

/// Another relay may have owned the bucket in between.
#[test]
fn a_bucket_that_comes_back_under_another_epoch_is_read_anew_when_its_batch_is_back() {
    let mut bench = Bench::small();
    let again = |of| Epoch(if of == bucket(0) { 2 } else { 1 });
    bench.reads(vec![message(1, 0), message(2, 1)]);
    let batch = bench.batch().unwrap();
    bench.beat(Vec::new(), again);
    assert!(!bench.core.reading.owned.contains(bucket(0)), "a batch of it is out");
    bench.is_back(&batch, Some(Outcome::Delivered));
    bench.feed(Event::Removed { number: bench.removal() });
    bench.beat(Vec::new(), again);
    assert!(bench.core.reading.owned.contains(bucket(0)));
    assert_eq!(bench.core.leases.epoch(bucket(0)), Epoch(2));
    assert_eq!(bench.fetch().1.after, Position::START, "from its mark");
}
