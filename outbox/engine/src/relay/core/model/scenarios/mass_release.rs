//! Many released keys beside a backlog: how fast both flow, with answers that take time.

use std::collections::BTreeMap;

use outbox_contract::backend::{DueRequest, Stored};

use super::due_keys::of_another_key;
use super::*;

const SECOND: Duration = Duration::from_secs(1);
/// Number of the first key that was not released.
const HOT: usize = 10_000_000;

/// A core at work: a backlog without end, and keys that an operator released at the beginning.
struct Work {
    bench: Bench,
    answers: BTreeMap<(Duration, u64), Event>,
    /// Number of answers so far.
    numbers: u64,
    /// Released keys that are left, the next due first, with the number of their messages.
    due: BTreeMap<(Duration, usize), usize>,
    last_hot: usize,
    /// Messages of the backlog that were delivered.
    hot: usize,
    /// Messages of released keys that were delivered and removed.
    released: usize,
    /// Maximum number of messages of one key in an answer.
    largest: usize,
}

impl Work {
    fn of(keys: usize, messages: impl Fn(usize) -> usize) -> Self {
        let due = (0..keys).map(|key| ((Duration::ZERO, key), messages(key))).collect();
        let bench = Bench::new(Ordering::Single, &RelayConfig::default());
        Self {
            bench,
            answers: BTreeMap::new(),
            numbers: 0,
            due,
            last_hot: HOT,
            hot: 0,
            released: 0,
            largest: 0,
        }
    }

    /// Number of released keys that are left.
    fn left(&self) -> usize {
        self.due.len()
    }

    fn run(&mut self, until: Duration) {
        while self.bench.now < until {
            for command in std::mem::take(&mut self.bench.wants) {
                self.carry_out(command);
            }
            let tick = self.bench.core.next_tick().map(|at| at.max(self.bench.now));
            let answer = self.answers.keys().next().map(|(at, _)| *at);
            let event = match answer {
                Some(at) if tick.is_none_or(|tick| at <= tick) => self.answers.pop_first(),
                _ => tick.map(|at| ((at.max(self.bench.now + MS / 10), 0), Event::Tick)),
            };
            let ((at, _), event) = event.expect("a core at work waits for something");
            self.bench.now = at;
            let commands = self.bench.core.on(event, at);
            self.bench.wants.extend(commands);
        }
    }

    fn after(&mut self, took: Duration, event: Event) {
        self.numbers += 1;
        self.answers.insert((self.bench.now + took, self.numbers), event);
    }

    fn carry_out(&mut self, command: Command) {
        match command {
            Command::Ask { number, question: Question::Due(request) } => {
                let due = self.due_keys(&request);
                self.after(MS * 5, Event::Answered { number, answer: Answer::Due(due) });
            }
            Command::Ask { number, question: Question::Fetch(request) } => {
                let mut fetched = Fetched::default();
                if request.scope == Scope::Everything {
                    let rows = (self.last_hot..).take(request.limit).map(of_another_key);
                    fetched.rows = rows.map(FetchedRow::Message).collect();
                    fetched.full = true;
                    self.last_hot += request.limit;
                }
                self.after(MS * 10, Event::Answered { number, answer: Answer::Fetched(fetched) });
            }
            Command::Publish(batch) => {
                let outcomes = vec![Some(Outcome::Delivered); batch.messages.len()];
                let hot = |stored: &&Arc<Stored>| stored.position > Position(i64::try_from(HOT).unwrap());
                self.hot += batch.messages.iter().filter(hot).count();
                let (batch, refused) = (batch.number, BTreeSet::new());
                self.after(MS * 25, Event::Published { batch, outcomes, refused, broke: false });
            }
            Command::Remove { number, .. } => self.after(MS * 5, Event::Removed { number }),
            Command::Transition { number, transition } => {
                let Step::Resume { delivered } = &transition.step else { panic!("{transition:?}") };
                let key: usize = transition.key.key.as_str().trim_start_matches("key-").parse().unwrap();
                let at = self.due.keys().copied().find(|(_, of)| *of == key).unwrap();
                let left = self.due.remove(&at).unwrap() - delivered.len();
                self.released += delivered.len();
                let version = (left > 0).then_some(1);
                if version.is_some() {
                    self.due.insert((self.bench.now, at.1), left);
                }
                let answer = Transitioned::Done(version);
                self.after(MS * 3, Event::Transitioned { number, answer });
            }
            _ => {}
        }
    }

    fn due_keys(&mut self, request: &DueRequest) -> Due {
        let mut keys = Vec::new();
        for ((_, number), left) in &self.due {
            let (number, left) = (*number, *left);
            let stored = of_another_key(number);
            let key = stored.message.key_id();
            if request.except.contains(&key) {
                continue;
            }
            if keys.len() == request.keys {
                return Due::new(keys, Some(Duration::ZERO));
            }
            let parked = vec![Arc::clone(&stored); left.min(request.messages)];
            self.largest = self.largest.max(parked.len());
            keys.push(DueKey::new(key, stored.bucket, 1, parked));
        }
        Due::new(keys, None)
    }
}

/// Each tenth of them has a long backlog, and is read in portions.
#[test]
fn many_released_keys_flow_beside_a_backlog() {
    let mut work = Work::of(5_000, |key| if key % 10 == 0 { 1_000 } else { 3 });
    work.run(SECOND);
    assert!(work.left() < 4_000, "{} of 5,000 keys are left after a second", work.left());
    assert!(work.hot > 25_000, "{} messages of the backlog", work.hot);
}

/// However much they have, they leave credit to the messages of other keys.
#[test]
fn a_backlog_flows_beside_many_released_keys() {
    let mut work = Work::of(5_000, |_| 500);
    work.run(SECOND);
    assert!(work.hot > 25_000, "{} messages of the backlog", work.hot);
    assert!(work.released > 25_000, "{} messages of released keys", work.released);
    assert!(work.largest >= 250, "at most {} messages in a portion", work.largest);
}

#[test]
fn one_key_with_a_long_backlog_is_read_in_large_portions() {
    let mut work = Work::of(1, |_| 100_000);
    work.run(SECOND);
    assert!(work.released > 2_000 && work.largest >= 250, "{}, {}", work.released, work.largest);
}
