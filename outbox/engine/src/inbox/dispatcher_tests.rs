use outbox_contract::{Failure, Message};
use proptest::prelude::*;

use super::super::verdict::Done;
use super::*;
use crate::inbox::credit::Credit;

const S: Duration = Duration::from_secs(1);

fn limits() -> Limits {
    Limits {
        batch: 1,
        tries: 2,
        first_delay: S,
        max_delay: S * 4,
        suspects: 2,
        by_handler: vec![usize::MAX, usize::MAX],
    }
}

fn unit() -> Unit {
    Unit { topic: "orders".parse().unwrap(), number: 0 }
}

fn item(key: &str, number: u64, handler: usize) -> Item {
    item_of(key, number, handler, 1)
}

fn item_of(key: &str, number: u64, handler: usize, incarnation: u64) -> Item {
    let message = Message::new("orders".parse().unwrap(), "tested").with_key(key).unwrap();
    Item {
        tag: Tag { unit: unit(), incarnation, number },
        key: message.key_id(),
        message: Arc::new(message),
        handler: Some(handler),
        _hold: Arc::new(Credit::default()).take(1),
    }
}

fn numbers(job: &Job) -> Vec<u64> {
    job.items.iter().map(|item| item.tag.number).collect()
}

fn handled() -> Verdict {
    Verdict::Done(Done::Handled)
}

fn failed() -> Verdict {
    Verdict::Failed(Failure::new("tested", "tested"))
}

fn finish(dispatcher: &mut Dispatcher, job: Job, verdicts: impl IntoIterator<Item = Verdict>, now: Duration) {
    let results = job.items.into_iter().zip(verdicts).collect();
    dispatcher.finished(job.number, results, now, || 1.0);
}

#[test]
fn keys_run_side_by_side_and_one_key_in_order() {
    let mut dispatcher = Dispatcher::new(limits());
    for (number, key) in ["a", "a", "b"].into_iter().enumerate() {
        dispatcher.push(item(key, number as u64, 0));
    }
    let (first, second) = (dispatcher.next().unwrap(), dispatcher.next().unwrap());
    assert_eq!((numbers(&first), numbers(&second)), (vec![0], vec![2]));
    assert!(dispatcher.next().is_none(), "the follower waits for the first");
    finish(&mut dispatcher, first, [handled()], S);
    assert_eq!(numbers(&dispatcher.next().unwrap()), [1]);
}

#[test]
fn a_failed_message_is_tried_again_after_a_rest_then_stored_with_what_follows() {
    let mut dispatcher = Dispatcher::new(limits());
    (0..3).for_each(|number| dispatcher.push(item("a", number, 0)));
    let job = dispatcher.next().unwrap();
    finish(&mut dispatcher, job, [failed()], S);
    assert!(dispatcher.next().is_none(), "it rests, and its followers with it");
    assert_eq!(dispatcher.wake(S), Some(S * 2));
    assert_eq!(dispatcher.wake(S * 2), None);
    let again = dispatcher.next().unwrap();
    assert_eq!((numbers(&again), again.attempt, again.what), (vec![0], 2, What::Handle));
    dispatcher.push(item("a", 3, 0));
    finish(&mut dispatcher, again, [failed()], S * 2);
    let store = dispatcher.next().unwrap();
    assert_eq!((numbers(&store), store.what), (vec![0, 1, 2, 3], What::Store));
    dispatcher.push(item("a", 4, 0));
    finish(&mut dispatcher, store, vec![Verdict::Done(Done::Stored); 4], S * 3);
    let next = dispatcher.next().unwrap();
    assert_eq!((numbers(&next), next.what, next.attempt), (vec![4], What::Handle, 1));
}

#[test]
fn suspects_leave_jobs_to_the_others_and_storing_is_none_of_theirs() {
    let mut dispatcher = Dispatcher::new(Limits { suspects: 1, ..limits() });
    for (number, key) in ["a", "b", "c"].into_iter().enumerate() {
        dispatcher.push(item(key, number as u64, 0));
    }
    for _ in 0..3 {
        let job = dispatcher.next().unwrap();
        assert!(!job.is_suspect);
        finish(&mut dispatcher, job, [failed()], S);
    }
    dispatcher.wake(S * 9);
    (3..5).for_each(|number| dispatcher.push(item(&number.to_string(), number, 0)));
    let jobs: Vec<Job> = std::iter::from_fn(|| dispatcher.next()).collect();
    let out: Vec<_> = jobs.iter().map(|job| (job.is_suspect, numbers(job))).collect();
    assert_eq!(out, [(true, vec![0]), (false, vec![3]), (false, vec![4])]);
    let mut jobs = jobs.into_iter();
    finish(&mut dispatcher, jobs.next().unwrap(), [failed()], S * 9);
    let out: Vec<_> = std::iter::from_fn(|| dispatcher.next()).map(|job| (job.what, numbers(&job))).collect();
    assert_eq!(out, [(What::Handle, vec![1]), (What::Store, vec![0])]);
}

#[test]
fn a_rejected_message_is_stored_at_once() {
    let mut dispatcher = Dispatcher::new(limits());
    dispatcher.push(item("a", 0, 0));
    let job = dispatcher.next().unwrap();
    finish(&mut dispatcher, job, [Verdict::Rejected(Failure::new("tested", "tested"))], S);
    assert_eq!(dispatcher.next().unwrap().what, What::Store);
}

#[test]
fn conflicts_are_no_attempts_and_one_that_lasts_is_stored() {
    let mut dispatcher = Dispatcher::new(limits());
    (0..3).for_each(|number| dispatcher.push(item("a", number, 0)));
    let conflict = || Failure::new("conflict", "tested");
    for n in 1..=MAX_CONFLICTS {
        let job = dispatcher.next().unwrap();
        assert_eq!((numbers(&job), job.what, job.attempt), (vec![0], What::Handle, 1));
        let verdict = if n % 2 == 0 { Verdict::Again(conflict()) } else { Verdict::Outdated(conflict()) };
        finish(&mut dispatcher, job, [verdict], S * n * 10);
        dispatcher.wake(S * (n * 10 + 4));
    }
    let job = dispatcher.next().unwrap();
    assert_eq!((numbers(&job), job.what), (vec![0, 1, 2], What::Store), "what follows it too");
}

#[test]
fn what_was_not_tried_goes_back_in_front_of_what_came_since() {
    let mut dispatcher = Dispatcher::new(Limits { batch: 3, ..limits() });
    (0..3).for_each(|number| dispatcher.push(item("a", number, 0)));
    let job = dispatcher.next().unwrap();
    assert_eq!(numbers(&job), [0, 1, 2]);
    dispatcher.push(item("a", 3, 0));
    finish(&mut dispatcher, job, [handled(), failed(), Verdict::NotTried], S);
    dispatcher.wake(S * 9);
    let alone = dispatcher.next().unwrap();
    assert_eq!((numbers(&alone), alone.attempt), (vec![1], 2), "alone, so that it spoils no batch");
    finish(&mut dispatcher, alone, [handled()], S * 9);
    assert_eq!(numbers(&dispatcher.next().unwrap()), [2, 3]);
}

#[test]
fn a_handler_at_its_bound_holds_up_only_its_own() {
    let mut dispatcher = Dispatcher::new(Limits { by_handler: vec![1, usize::MAX], ..limits() });
    for (number, (key, handler)) in [("a", 0), ("b", 0), ("c", 1)].into_iter().enumerate() {
        dispatcher.push(item(key, number as u64, handler));
    }
    let first = dispatcher.next().unwrap();
    assert_eq!(numbers(&first), [0]);
    assert_eq!(numbers(&dispatcher.next().unwrap()), [2]);
    assert!(dispatcher.next().is_none());
    finish(&mut dispatcher, first, [handled()], S);
    assert_eq!(numbers(&dispatcher.next().unwrap()), [1]);
}

#[test]
fn a_pause_and_a_halt_let_nothing_begin() {
    let mut dispatcher = Dispatcher::new(limits());
    dispatcher.push(item("a", 0, 0));
    dispatcher.pause(Paused { route: true, topics: Vec::new() });
    assert!(dispatcher.next().is_none());
    dispatcher.pause(Paused::default());
    let job = dispatcher.next().unwrap();
    dispatcher.push(item("b", 1, 0));
    dispatcher.halt();
    assert!(dispatcher.next().is_none() && !dispatcher.is_idle());
    finish(&mut dispatcher, job, [handled()], S);
    assert!(dispatcher.next().is_none() && dispatcher.is_idle());
}

#[test]
fn a_topic_that_is_paused_waits_and_holds_up_no_other() {
    let topic = |name: &str| -> outbox_contract::Topic { name.parse().unwrap() };
    let item = |name: &str, key: &str, number: u64| {
        let message = Arc::new(Message::new(topic(name), "tested").with_key(key).unwrap());
        Item { key: message.key_id(), message, ..item(key, number, 0) }
    };
    let mut dispatcher = Dispatcher::new(limits());
    dispatcher.push(item("orders", "a", 0));
    dispatcher.push(item("orders", "b", 1));
    dispatcher.push(item("returns", "a", 2));
    dispatcher.pause(Paused { route: false, topics: vec![topic("orders")] });
    assert_eq!(numbers(&dispatcher.next().unwrap()), [2]);
    assert!(dispatcher.next().is_none());
    dispatcher.push(item("orders", "a", 3));
    dispatcher.push(item("orders", "c", 4));
    assert!(dispatcher.next().is_none());
    // Another one as well; then only the other one.
    dispatcher.pause(Paused { route: false, topics: vec![topic("orders"), topic("returns")] });
    assert!(dispatcher.next().is_none());
    dispatcher.pause(Paused { route: false, topics: vec![topic("returns")] });
    let jobs: Vec<Vec<u64>> = std::iter::from_fn(|| dispatcher.next()).map(|job| numbers(&job)).collect();
    assert_eq!(jobs, [[0], [1], [4]], "the follower waits for the first");
}

/// The last delivery of its key was taken away while its topic was paused, and it came again under the next ownership.
#[test]
fn a_key_of_a_paused_topic_that_is_taken_away_and_comes_again_is_handled_once() {
    let mut dispatcher = Dispatcher::new(limits());
    let orders = Paused { route: false, topics: vec!["orders".parse().unwrap()] };
    dispatcher.pause(orders.clone());
    dispatcher.push(item("a", 0, 0));
    assert!(dispatcher.next().is_none());
    dispatcher.revoke(&[unit()]);
    dispatcher.pause(Paused::default());
    dispatcher.push(item_of("a", 0, 0, 2));
    dispatcher.pause(orders);
    dispatcher.pause(Paused::default());
    assert_eq!(numbers(&dispatcher.next().unwrap()), [0]);
    assert!(dispatcher.next().is_none());
}

#[test]
fn what_was_taken_away_is_dropped_and_not_tried_again() {
    let mut dispatcher = Dispatcher::new(limits());
    (0..2).for_each(|number| dispatcher.push(item("a", number, 0)));
    dispatcher.push(item("b", 2, 0));
    let job = dispatcher.next().unwrap();
    dispatcher.revoke(&[unit()]);
    // The same messages under the next ownership.
    (0..2).for_each(|number| dispatcher.push(item_of("a", 10 + number, 0, 2)));
    finish(&mut dispatcher, job, [failed()], S);
    let next = dispatcher.next().unwrap();
    assert_eq!((numbers(&next), next.attempt), (vec![10], 1));
    assert!(dispatcher.next().is_none(), "b is gone");
    finish(&mut dispatcher, next, [handled()], S);
    assert_eq!(numbers(&dispatcher.next().unwrap()), [11]);
}

/// What a run of the machine does next.
#[derive(Clone, Debug)]
enum Act {
    Push {
        key: u8,
        handler: usize,
    },
    Next,
    /// One of the jobs that are out comes back; a message of it fails, or none does.
    Finish {
        which: usize,
        fails: Option<usize>,
    },
    Wake,
    Revoke,
}

fn act() -> impl Strategy<Value = Act> {
    prop_oneof![
        4 => (0..4u8, 0..2usize).prop_map(|(key, handler)| Act::Push { key, handler }),
        4 => Just(Act::Next),
        4 => (0..8usize, prop::option::weighted(0.4, 0..4usize)).prop_map(|(which, fails)| Act::Finish { which, fails }),
        2 => Just(Act::Wake),
        1 => Just(Act::Revoke),
    ]
}

proptest! {
    /// Whatever happens: a key is in one job at a time, its messages leave in order and none is lost, and handlers stay in their bounds.
    #[test]
    fn every_message_is_finished_in_the_order_of_its_key(
        acts in prop::collection::vec(act(), 1..200),
        batch in 1..4usize,
        bound in 1..3usize,
        suspects in 1..3usize,
    ) {
        let limits = Limits { batch, suspects, by_handler: vec![bound, usize::MAX], ..limits() };
        let mut dispatcher = Dispatcher::new(limits);
        let mut out: Vec<Job> = Vec::new();
        let mut pushed: BTreeMap<KeyId, Vec<u64>> = BTreeMap::new();
        let mut finished: BTreeMap<KeyId, Vec<u64>> = BTreeMap::new();
        let (mut number, mut incarnation, mut now) = (0, 1, S);
        let settle = |dispatcher: &mut Dispatcher,
                          finished: &mut BTreeMap<KeyId, Vec<u64>>,
                          job: Job,
                          fails: Option<usize>,
                          incarnation: u64,
                          now: Duration| {
            let mut stopped = BTreeSet::new();
            let mut verdicts = Vec::new();
            for (index, item) in job.items.iter().enumerate() {
                verdicts.push(if stopped.contains(&item.key) {
                    Verdict::NotTried
                } else if job.what == What::Handle && fails == Some(index) {
                    stopped.insert(item.key.clone());
                    failed()
                } else {
                    if item.tag.incarnation == incarnation {
                        finished.entry(item.key.clone()).or_default().push(item.tag.number);
                    }
                    handled()
                });
            }
            finish(dispatcher, job, verdicts, now);
        };
        for act in acts {
            now += S / 4;
            match act {
                Act::Push { key, handler } => {
                    let item = item_of(&key.to_string(), number, handler, incarnation);
                    pushed.entry(item.key.clone()).or_default().push(number);
                    dispatcher.push(item);
                    number += 1;
                }
                Act::Next => {
                    if let Some(job) = dispatcher.next() {
                        for other in &out {
                            prop_assert!(job.items.iter().all(|item| other.items.iter().all(|o| o.key != item.key)));
                        }
                        prop_assert!(job.what == What::Store || job.items.len() <= batch);
                        out.push(job);
                        let bounded = out.iter().filter(|job| {
                            job.what == What::Handle && job.items.iter().any(|item| item.handler == Some(0))
                        });
                        prop_assert!(bounded.count() <= bound);
                        prop_assert!(out.iter().filter(|job| job.is_suspect).count() <= suspects);
                    }
                }
                Act::Finish { which, fails } if !out.is_empty() => {
                    let job = out.remove(which % out.len());
                    settle(&mut dispatcher, &mut finished, job, fails, incarnation, now);
                }
                Act::Finish { .. } => {}
                Act::Wake => {
                    dispatcher.wake(now);
                }
                Act::Revoke => {
                    dispatcher.revoke(&[unit()]);
                    incarnation += 1;
                    // What was not finished is for others now.
                    pushed.clear();
                    finished.clear();
                }
            }
        }
        // Everything that is left gets done.
        for job in std::mem::take(&mut out) {
            settle(&mut dispatcher, &mut finished, job, None, incarnation, now);
        }
        for _ in 0..1_000 {
            now += S * 10;
            dispatcher.wake(now);
            let Some(job) = dispatcher.next() else { break };
            settle(&mut dispatcher, &mut finished, job, None, incarnation, now);
        }
        prop_assert!(dispatcher.is_idle() && dispatcher.keys.is_empty());
        prop_assert_eq!(finished, pushed);
    }
}
