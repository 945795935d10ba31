//! The core by hand: single rules, each with the events that show it.

use outbox_contract::backend::{Tag, Unit};
use outbox_contract::{Failure, Message, RetryPolicy};

use super::conflicts::MAX_CONFLICTS;
use super::*;
use crate::inbox::credit::Credit;
use crate::inbox::verdict::{Done, Verdict};

mod finishing;
mod property;

const S: Duration = Duration::from_secs(1);

fn limits() -> Limits {
    Limits {
        workers: 0,
        stores_all: false,
        told_at_once: 1,
        outage_delays: (S, S * 8),
        batch: 1,
        tries: 2,
        retry: RetryPolicy::default(),
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
    let message = Message::new("orders", "tested").unwrap().with_key(key).unwrap();
    Item {
        tag: Tag { unit: unit(), incarnation, number },
        key: message.key_id(),
        message: Arc::new(message),
        handler: Some(handler),
        _hold: Arc::new(Credit::default()).take(1),
    }
}

fn handled() -> Verdict {
    Verdict::Done(Done::Handled)
}

fn failed() -> Verdict {
    Verdict::Failed(Failure::new("tested", "tested"))
}

/// A core with as many workers as are asked for, one after the other; what it acknowledges is told.
struct Driver {
    core: Core,
    now: Duration,
    told: Vec<u64>,
}

/// A job that is out.
struct Given {
    number: u64,
    task: Task,
    attempt: u32,
    is_suspect: bool,
    items: Vec<GivenItem>,
}

struct GivenItem {
    key: KeyId,
    handler: Option<usize>,
    tag: Tag,
}

impl Driver {
    fn new(limits: Limits) -> Self {
        Self { core: Core::new(limits, Duration::ZERO, 7), now: Duration::ZERO, told: Vec::new() }
    }

    fn on(&mut self, event: Event) -> Vec<Job> {
        let mut jobs = Vec::new();
        for command in self.core.on(event, self.now) {
            match command {
                Command::Begin(job) => jobs.push(job),
                Command::Acknowledge { number, tags } => {
                    self.told.extend(tags.iter().map(|tag| tag.number));
                    jobs.extend(self.on(Event::Acknowledged { number, told: true }));
                }
                Command::Recall(_) | Command::Drained { .. } => {}
            }
        }
        jobs
    }

    fn push(&mut self, item: Item) {
        assert!(self.on(Event::Delivered(vec![item])).is_empty());
    }

    /// Has one more worker, if there is a job for it.
    fn next(&mut self) -> Option<Given> {
        self.core.limits.workers = self.core.jobs.len() + 1;
        let job = self.on(Event::Tick).pop();
        self.core.limits.workers = 0;
        let Job { number, task, attempt, is_suspect, messages } = job?;
        let items = &self.core.jobs[&number].items;
        assert!(items.iter().map(|item| &item.message).eq(&messages));
        let given = |Item { key, handler, tag, .. }: &Item| GivenItem {
            key: key.clone(),
            handler: *handler,
            tag: tag.clone(),
        };
        let items = items.iter().map(given).collect();
        Some(Given { number, task, attempt, is_suspect, items })
    }

    /// Lets keys stand in line again whose rest is over. Says when the next one's is.
    fn wake(&mut self, now: Duration) -> Option<Duration> {
        self.now = now;
        self.on(Event::Tick);
        self.core.next_tick()
    }

    fn revoke(&mut self, units: &[Unit]) {
        self.on(Event::Revoked(units.to_vec()));
    }

    fn pause(&mut self, paused: Paused) {
        self.on(Event::Paused(paused));
    }

    fn is_idle(&self) -> bool {
        self.core.jobs.is_empty() && self.core.running.is_idle()
    }
}

fn numbers(job: &Given) -> Vec<u64> {
    job.items.iter().map(|item| item.tag.number).collect()
}

fn finish(
    driver: &mut Driver,
    Given { number, .. }: Given,
    verdicts: impl IntoIterator<Item = Verdict>,
    now: Duration,
) {
    driver.now = now;
    driver.on(Event::Finished { number, verdicts: verdicts.into_iter().collect() });
}

#[test]
fn keys_run_side_by_side_and_one_key_in_order() {
    let mut driver = Driver::new(limits());
    for (number, key) in ["a", "a", "b"].into_iter().enumerate() {
        driver.push(item(key, number as u64, 0));
    }
    let (first, second) = (driver.next().unwrap(), driver.next().unwrap());
    assert_eq!((numbers(&first), numbers(&second)), (vec![0], vec![2]));
    assert!(driver.next().is_none(), "the follower waits for the first");
    finish(&mut driver, first, [handled()], S);
    assert_eq!(numbers(&driver.next().unwrap()), [1]);
}

#[test]
fn a_failed_message_is_tried_again_after_a_rest_then_stored_with_what_follows() {
    let mut driver = Driver::new(limits());
    (0..3).for_each(|number| driver.push(item("a", number, 0)));
    let job = driver.next().unwrap();
    finish(&mut driver, job, [failed()], S);
    assert!(driver.next().is_none(), "it rests, and its followers with it");
    let until = driver.wake(S).unwrap();
    assert!(until >= S * 3 / 2 && until <= S * 2, "{until:?}");
    assert_eq!(driver.wake(S * 2), None);
    let again = driver.next().unwrap();
    assert_eq!((numbers(&again), again.attempt, again.task), (vec![0], 2, Task::Handle));
    driver.push(item("a", 3, 0));
    finish(&mut driver, again, [failed()], S * 2);
    let store = driver.next().unwrap();
    assert_eq!((numbers(&store), store.task), (vec![0, 1, 2, 3], Task::Store));
    driver.push(item("a", 4, 0));
    finish(&mut driver, store, vec![Verdict::Done(Done::Stored); 4], S * 3);
    let next = driver.next().unwrap();
    assert_eq!((numbers(&next), next.task, next.attempt), (vec![4], Task::Handle, 1));
}

#[test]
fn suspects_leave_jobs_to_the_others_and_storing_is_none_of_theirs() {
    let mut driver = Driver::new(Limits { suspects: 1, ..limits() });
    for (number, key) in ["a", "b", "c"].into_iter().enumerate() {
        driver.push(item(key, number as u64, 0));
    }
    // One after the other, so that they wake in this order.
    for n in 1..=3 {
        let job = driver.next().unwrap();
        assert!(!job.is_suspect);
        finish(&mut driver, job, [failed()], S * n);
    }
    driver.wake(S * 9);
    (3..5).for_each(|number| driver.push(item(&number.to_string(), number, 0)));
    let jobs: Vec<Given> = std::iter::from_fn(|| driver.next()).collect();
    let out: Vec<_> = jobs.iter().map(|job| (job.is_suspect, numbers(job))).collect();
    assert_eq!(out, [(true, vec![0]), (false, vec![3]), (false, vec![4])]);
    let mut jobs = jobs.into_iter();
    finish(&mut driver, jobs.next().unwrap(), [failed()], S * 9);
    let out: Vec<_> = std::iter::from_fn(|| driver.next()).map(|job| (job.task, numbers(&job))).collect();
    assert_eq!(out, [(Task::Handle, vec![1]), (Task::Store, vec![0])]);
}

#[test]
fn a_rejected_message_is_stored_at_once() {
    let mut driver = Driver::new(limits());
    driver.push(item("a", 0, 0));
    let job = driver.next().unwrap();
    finish(&mut driver, job, [Verdict::Rejected(Failure::new("tested", "tested"))], S);
    assert_eq!(driver.next().unwrap().task, Task::Store);
}

#[test]
fn conflicts_are_no_attempts_and_one_that_lasts_is_stored() {
    let mut driver = Driver::new(limits());
    (0..3).for_each(|number| driver.push(item("a", number, 0)));
    let conflict = || Failure::new("conflict", "tested");
    for n in 1..=MAX_CONFLICTS {
        let job = driver.next().unwrap();
        assert_eq!((numbers(&job), job.task, job.attempt), (vec![0], Task::Handle, 1));
        let verdict = if n % 2 == 0 { Verdict::Again(conflict()) } else { Verdict::Outdated(conflict()) };
        finish(&mut driver, job, [verdict], S * n * 10);
        driver.wake(S * (n * 10 + 4));
    }
    let job = driver.next().unwrap();
    assert_eq!((numbers(&job), job.task), (vec![0, 1, 2], Task::Store), "what follows it too");
}

#[test]
fn what_was_not_tried_goes_back_in_front_of_what_came_since() {
    let mut driver = Driver::new(Limits { batch: 3, ..limits() });
    (0..3).for_each(|number| driver.push(item("a", number, 0)));
    let job = driver.next().unwrap();
    assert_eq!(numbers(&job), [0, 1, 2]);
    driver.push(item("a", 3, 0));
    finish(&mut driver, job, [handled(), failed(), Verdict::NotTried], S);
    driver.wake(S * 9);
    let alone = driver.next().unwrap();
    assert_eq!((numbers(&alone), alone.attempt), (vec![1], 2), "alone, so that it spoils no batch");
    finish(&mut driver, alone, [handled()], S * 9);
    assert_eq!(numbers(&driver.next().unwrap()), [2, 3]);
}

#[test]
fn a_handler_at_its_bound_holds_up_only_its_own() {
    let mut driver = Driver::new(Limits { by_handler: vec![1, usize::MAX], ..limits() });
    for (number, (key, handler)) in [("a", 0), ("b", 0), ("c", 1)].into_iter().enumerate() {
        driver.push(item(key, number as u64, handler));
    }
    let first = driver.next().unwrap();
    assert_eq!(numbers(&first), [0]);
    assert_eq!(numbers(&driver.next().unwrap()), [2]);
    assert!(driver.next().is_none());
    finish(&mut driver, first, [handled()], S);
    assert_eq!(numbers(&driver.next().unwrap()), [1]);
}

#[test]
fn a_pause_and_a_halt_let_nothing_begin() {
    let mut driver = Driver::new(limits());
    driver.push(item("a", 0, 0));
    driver.pause(Paused::new(true, Vec::new()));
    assert!(driver.next().is_none());
    driver.pause(Paused::default());
    let job = driver.next().unwrap();
    driver.push(item("b", 1, 0));
    driver.on(Event::Drain);
    assert!(driver.next().is_none() && !driver.is_idle());
    finish(&mut driver, job, [handled()], S);
    assert!(driver.next().is_none() && driver.is_idle());
}

#[test]
fn a_topic_that_is_paused_waits_and_holds_up_no_other() {
    let topic = |name: &str| -> outbox_contract::Topic { name.parse().unwrap() };
    let item = |name: &str, key: &str, number: u64| {
        let message = Arc::new(Message::new(topic(name), "tested").unwrap().with_key(key).unwrap());
        Item { key: message.key_id(), message, ..item(key, number, 0) }
    };
    let mut driver = Driver::new(limits());
    driver.push(item("orders", "a", 0));
    driver.push(item("orders", "b", 1));
    driver.push(item("returns", "a", 2));
    driver.pause(Paused::new(false, vec![topic("orders")]));
    assert_eq!(numbers(&driver.next().unwrap()), [2]);
    assert!(driver.next().is_none());
    driver.push(item("orders", "a", 3));
    driver.push(item("orders", "c", 4));
    assert!(driver.next().is_none());
    // Another one as well; then only the other one.
    driver.pause(Paused::new(false, vec![topic("orders"), topic("returns")]));
    assert!(driver.next().is_none());
    driver.pause(Paused::new(false, vec![topic("returns")]));
    let jobs: Vec<Vec<u64>> = std::iter::from_fn(|| driver.next()).map(|job| numbers(&job)).collect();
    assert_eq!(jobs, [[0], [1], [4]], "the follower waits for the first");
}

/// The last delivery of its key was taken away while its topic was paused, and it came again under
/// the next ownership.
#[test]
fn a_key_of_a_paused_topic_that_is_taken_away_and_comes_again_is_handled_once() {
    let mut driver = Driver::new(limits());
    let orders = Paused::new(false, vec!["orders".parse().unwrap()]);
    driver.pause(orders.clone());
    driver.push(item("a", 0, 0));
    assert!(driver.next().is_none());
    driver.revoke(&[unit()]);
    driver.pause(Paused::default());
    driver.push(item_of("a", 0, 0, 2));
    driver.pause(orders);
    driver.pause(Paused::default());
    assert_eq!(numbers(&driver.next().unwrap()), [0]);
    assert!(driver.next().is_none());
}

#[test]
fn what_was_taken_away_is_dropped_and_not_tried_again() {
    let mut driver = Driver::new(limits());
    (0..2).for_each(|number| driver.push(item("a", number, 0)));
    driver.push(item("b", 2, 0));
    let job = driver.next().unwrap();
    driver.revoke(&[unit()]);
    // The same messages under the next ownership.
    (0..2).for_each(|number| driver.push(item_of("a", 10 + number, 0, 2)));
    finish(&mut driver, job, [failed()], S);
    let next = driver.next().unwrap();
    assert_eq!((numbers(&next), next.attempt), (vec![10], 1));
    assert!(driver.next().is_none(), "b is gone");
    finish(&mut driver, next, [handled()], S);
    assert_eq!(numbers(&driver.next().unwrap()), [11]);
}
