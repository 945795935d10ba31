//! A model test of the fetch rule: thousands of seeded interleavings of writers, fetches, settlements, forgettings, closed topics and
//! lost buckets, judged by brute force.
//!
//! The reader runs against a table that honours [`FetchRequest`] to the letter and a lane that does what lanes do with rows. After each
//! step the model knows what was committed, what is in flight and what was forgotten, and so what the reader may admit.
//!
//! `OUTBOX_MODEL_SEEDS` is how many seeds each test runs; `OUTBOX_MODEL_SEED` runs one seed, and tells what happens in it.

use std::collections::{BTreeSet, VecDeque};
use std::sync::{Arc, OnceLock};

use outbox_contract::fetch::Waiting;
use outbox_contract::{Message, MessageId, Stored, Timestamp};

use super::*;

const TOPICS: usize = 2;
const KEYS: usize = 8;
const STEPS: usize = 400;

/// What is run.
#[derive(Clone, Copy, Debug)]
struct Case {
    /// How the store orders.
    store: Ordering,
    /// What the reader believes of it.
    belief: Ordering,
    /// Whether word of rows, topics and buckets also comes while a fetch is under way. The poller takes none then.
    interleaved: bool,
    /// Whether topics are closed and buckets lost.
    faults: bool,
    sabotage: Option<Sabotage>,
}

/// A part of the rule, left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sabotage {
    /// A horizon counts at once.
    HorizonAtOnce,
    /// A fetch that was cut short lifts the horizon beyond its last row.
    HorizonOfCutFetch,
    /// A gap ends with its first fetch.
    MergesEarly,
    /// A key that has too much in memory loses its window of its own.
    HotKeysPass,
}

impl Case {
    fn of(ordering: Ordering) -> Self {
        Self { store: ordering, belief: ordering, interleaved: false, faults: true, sabotage: None }
    }
}

struct Names {
    topics: Vec<Topic>,
    keys: Vec<KeyId>,
    buckets: Vec<Bucket>,
}

fn bucket(key: usize) -> Bucket {
    names().buckets[key]
}

fn names() -> &'static Names {
    static NAMES: OnceLock<Names> = OnceLock::new();
    NAMES.get_or_init(|| {
        let topics: Vec<Topic> = (0..TOPICS).map(|n| Topic::new(format!("topic-{n}")).unwrap()).collect();
        let key = |n: usize| KeyId {
            topic: topics[n % TOPICS].clone(),
            key: outbox_contract::Key::new(format!("key-{n}")).unwrap(),
        };
        let keys: Vec<KeyId> = (0..KEYS).map(key).collect();
        Names { buckets: keys.iter().map(KeyId::bucket).collect(), keys, topics }
    })
}

struct Transaction {
    name: u64,
    rows: Vec<(Position, usize)>,
}

/// The hot table, with its writers.
#[derive(Default)]
struct Table {
    hot: BTreeMap<Position, (usize, Arc<Stored>)>,
    /// All that was ever committed of each key, in the order of commits.
    committed: [Vec<Position>; KEYS],
    last: i64,
    begun: u64,
    open: Vec<Transaction>,
    failing: [bool; KEYS],
    leased: BucketSet,
}

impl Table {
    /// The key's lock is held from append to commit, and the position is taken under it.
    fn append(&mut self, transaction: usize, key: usize) {
        if self
            .open
            .iter()
            .enumerate()
            .any(|(at, other)| at != transaction && other.rows.iter().any(|(_, locked)| *locked == key))
        {
            return;
        }
        self.last += 1;
        self.open[transaction].rows.push((Position(self.last), key));
    }

    fn commit(&mut self, transaction: usize) {
        for (position, key) in self.open.swap_remove(transaction).rows {
            let name = &names().keys[key];
            let id = MessageId::from_uuid(uuid::Uuid::from_u128(u128::try_from(position.0).unwrap()));
            let message =
                Message::new(name.topic.clone(), "event").with_key(name.key.as_str()).unwrap().with_id(id);
            self.hot.insert(position, (key, Arc::new(Stored::new(position, Timestamp::default(), message))));
            self.committed[key].push(position);
        }
    }

    fn fetch(&self, request: &FetchRequest) -> (Vec<FetchedRow>, bool) {
        let mut rows = Vec::new();
        for (position, (key, stored)) in &self.hot {
            let name = &names().keys[*key];
            let asked = *position > request.after
                && *position <= request.until
                && !request.except.contains(position)
                && request.buckets.contains(stored.bucket)
                && self.leased.contains(stored.bucket)
                && request.scope.covers(name);
            if !asked {
                continue;
            }
            rows.push(if request.muted.iter().any(|muted| muted.covers(name)) {
                FetchedRow::Muted(*position)
            } else if self.failing[*key] {
                FetchedRow::Failing(Waiting {
                    at: stored.row(),
                    key: name.clone(),
                    bucket: stored.bucket,
                    stripe: None,
                })
            } else {
                FetchedRow::Message(Arc::clone(stored))
            });
            if rows.len() == request.limit {
                return (rows, true);
            }
        }
        (rows, false)
    }

    /// Those that have taken a position; some stores also count those that are about to.
    fn writers(&self, all: bool) -> Writers {
        let writing = self.open.iter().filter(|open| all || !open.rows.is_empty());
        Writers(writing.map(|open| open.name.to_string()).collect())
    }

    /// The lowest position at which a row of these buckets stands or may still be committed.
    fn lowest(&self, buckets: &BucketSet) -> Position {
        let open = self.open.iter().flat_map(|open| &open.rows).map(|(position, key)| (*position, *key));
        let hot = self.hot.iter().map(|(position, (key, _))| (*position, *key));
        let of_buckets = open.chain(hot).filter(|(_, key)| buckets.contains(bucket(*key)));
        of_buckets.map(|(position, _)| position).min().unwrap_or(Position(self.last + 1))
    }
}

/// What the lane is told.
enum ToLane {
    Batch(Vec<(usize, Position)>),
    KeyForgotten(usize),
    ForgetTopic(usize),
    Lose(BucketSet),
}

/// What the poller is told.
enum ToPoller {
    Left(Vec<Position>),
    Forgotten(usize, Vec<Position>),
    Broken(usize),
    TopicForgotten(usize),
}

/// A lane, as far as rows come from the reader and go back to it.
#[derive(Default)]
struct Lane {
    queues: [VecDeque<Position>; KEYS],
    /// The chunk of a key. Taken away when the key is dropped: it goes on among the late ones.
    chunks: [Vec<Position>; KEYS],
    late: Vec<(usize, Vec<Position>)>,
    dropping: [u32; KEYS],
    dropping_topics: BTreeSet<usize>,
}

/// A call to the store that the poller waits for.
enum Call {
    Fetch(Plan, Option<(Vec<FetchedRow>, bool)>),
    Probe(Option<Writers>),
}

struct Model {
    case: Case,
    random: fastrand::Rng,
    loud: bool,
    reader: Reader,
    table: Table,
    lane: Lane,
    to_lane: VecDeque<ToLane>,
    to_poller: VecDeque<ToPoller>,
    call: Option<Call>,
    /// Saved low-water marks, by key: each key has a bucket of its own.
    marks: [Position; KEYS],
    /// How many lanes have not dropped a topic that was closed. None: it is open.
    closed: [Option<usize>; TOPICS],
    confirmed: Vec<Position>,
    removed: Vec<Position>,
    // What the judge knows.
    held: BTreeSet<Position>,
    delivered: BTreeSet<Position>,
    admitted: BTreeMap<Position, usize>,
    walked: BTreeMap<Position, usize>,
}

type Judged = Result<(), String>;

impl Model {
    fn new(case: Case, seed: u64, loud: bool) -> Self {
        let mut random = fastrand::Rng::with_seed(seed);
        let limits = ReaderLimits {
            rows: random.usize(1..6),
            bytes: usize::MAX,
            per_key: random.usize(2..6),
            key_gaps: random.usize(1..5),
        };
        let mut reader = Reader::new(case.belief, limits);
        reader.acquire(BucketSet::ALL, Position::START);
        Self {
            case,
            random,
            loud,
            reader,
            table: Table { leased: BucketSet::ALL, ..Table::default() },
            lane: Lane::default(),
            to_lane: VecDeque::new(),
            to_poller: VecDeque::new(),
            call: None,
            marks: [Position::START; KEYS],
            closed: [None; TOPICS],
            confirmed: Vec::new(),
            removed: Vec::new(),
            held: BTreeSet::new(),
            delivered: BTreeSet::new(),
            admitted: BTreeMap::new(),
            walked: BTreeMap::new(),
        }
    }

    fn note(&self, what: impl FnOnce() -> String) {
        if self.loud {
            eprintln!("{}", what());
        }
    }

    fn run(mut self) -> Judged {
        for _ in 0..STEPS {
            self.step()?;
            self.judge_low_water()?;
        }
        self.finish()
    }

    fn step(&mut self) -> Judged {
        match self.random.u32(0..100) {
            0..24 => self.write(),
            24..50 => return self.call(),
            50..62 => self.tell_lane(),
            62..70 => self.send(),
            70..78 => return self.hear(),
            78..84 => self.settle(),
            84..92 => self.tell_reader(),
            92..94 => self.drop_key(),
            94..95 => {
                let key = self.random.usize(..KEYS);
                self.table.failing[key] = !self.table.failing[key];
            }
            95..97 if self.case.faults => self.change_topic(),
            97.. if self.case.faults => self.change_buckets(),
            _ => {}
        }
        Ok(())
    }

    fn write(&mut self) {
        let most = if self.case.store == Ordering::Single { 1 } else { 4 };
        let table = &mut self.table;
        if table.open.is_empty() || (table.open.len() < most && self.random.u8(..4) == 0) {
            table.begun += 1;
            table.open.push(Transaction { name: table.begun, rows: Vec::new() });
        }
        let transaction = self.random.usize(..table.open.len());
        match self.random.u8(..12) {
            0..8 => {
                // A few keys get most of the rows.
                let key = self.random.usize(..KEYS).min(self.random.usize(..KEYS));
                table.append(transaction, key);
            }
            8 => {
                table.open.swap_remove(transaction);
            }
            _ => table.commit(transaction),
        }
    }

    /// The poller calls the store, the store looks, the poller has the answer: three steps, with others in between.
    fn call(&mut self) -> Judged {
        match self.call.take() {
            None if self.random.u8(..5) == 0 => self.reader.look(),
            None if self.random.u8(..4) == 0 && self.reader.wants_writers() => {
                self.call = Some(Call::Probe(None))
            }
            None => self.begin_fetch(),
            Some(Call::Probe(None)) => {
                self.call = Some(Call::Probe(Some(self.table.writers(self.random.bool()))))
            }
            Some(Call::Probe(Some(writers))) => {
                self.note(|| format!("writers {:?}", writers.0));
                self.reader.wrote(writers);
                if self.case.sabotage == Some(Sabotage::HorizonAtOnce) {
                    let horizon = self.reader.horizon.established;
                    self.reader.main.horizon = horizon;
                    self.reader.gaps.values_mut().for_each(|gap| gap.window.horizon = horizon);
                }
            }
            Some(Call::Fetch(plan, None)) => {
                let answer = self.table.fetch(&plan.request);
                self.call = Some(Call::Fetch(plan, Some(answer)));
            }
            Some(Call::Fetch(plan, Some((rows, full)))) => return self.fetched(&plan, rows, full),
        }
        Ok(())
    }

    fn begin_fetch(&mut self) {
        let rows = self.random.usize(1..8);
        if let Some(plan) =
            self.reader.next(&Route::default(), RelayId::from_uuid(uuid::Uuid::nil()), rows, usize::MAX)
        {
            self.note(|| format!("fetch {} through {:?}: {:?}", plan.sequence, plan.window, plan.request));
            self.call = Some(Call::Fetch(plan, None));
        }
    }

    fn fetched(&mut self, plan: &Plan, rows: Vec<FetchedRow>, full: bool) -> Judged {
        for row in &rows {
            *self.walked.entry(row.position()).or_default() += 1;
        }
        let gaps_before: Vec<Part> = self.reader.gaps.keys().cloned().collect();
        let read = self.reader.fetched(plan, rows, full);
        match self.case.sabotage {
            Some(Sabotage::HorizonOfCutFetch) => {
                let gap = plan.window.as_ref().and_then(|part| self.reader.gaps.get_mut(part));
                let window = gap.map_or(&mut self.reader.main, |gap| &mut gap.window);
                window.horizon = window.horizon.max(plan.horizon);
            }
            Some(Sabotage::MergesEarly) => {
                if let Some(part) = &plan.window {
                    self.reader.gaps.remove(part);
                }
            }
            Some(Sabotage::HotKeysPass) => {
                self.reader.gaps.retain(|part, gap| gap.state != GapState::Hot || gaps_before.contains(part));
            }
            _ => {}
        }
        let mut batch = Vec::new();
        for row in read.rows {
            let position = row.position();
            let key = self.key_of(position);
            self.note(|| format!("admitted {position} of key {key}"));
            if !self.held.insert(position) {
                return Err(format!("{position} was admitted twice"));
            }
            let passed =
                self.table.hot.range(..position).find(|(at, (of, _))| *of == key && !self.held.contains(at));
            if let Some((passed, _)) = passed {
                return Err(format!("{position} was admitted before {passed} of the same key"));
            }
            if self.closed[key % TOPICS].is_some() {
                return Err(format!("{position} was admitted while its topic is closed"));
            }
            *self.admitted.entry(position).or_default() += 1;
            batch.push((key, position));
        }
        if !batch.is_empty() {
            self.to_lane.push_back(ToLane::Batch(batch));
        }
        Ok(())
    }

    fn key_of(&self, position: Position) -> usize {
        (0..KEYS).find(|key| self.table.committed[*key].contains(&position)).unwrap()
    }

    fn tell_lane(&mut self) {
        match self.to_lane.pop_front() {
            None => {}
            Some(ToLane::Batch(rows)) => {
                for (key, position) in rows {
                    if self.lane.dropping[key] > 0 || self.lane.dropping_topics.contains(&(key % TOPICS)) {
                        self.report_forgotten(key, vec![position]);
                    } else {
                        self.lane.queues[key].push_back(position);
                    }
                }
            }
            Some(ToLane::KeyForgotten(key)) => self.lane.dropping[key] -= 1,
            Some(ToLane::ForgetTopic(topic)) => {
                self.drop_topic(topic);
                self.lane.dropping_topics.remove(&topic);
                self.to_poller.push_back(ToPoller::TopicForgotten(topic));
            }
            Some(ToLane::Lose(buckets)) => {
                for key in (0..KEYS).filter(|key| buckets.contains(bucket(*key))) {
                    self.take_key(key);
                }
            }
        }
    }

    /// All that the lane has of a key, in order.
    fn take_key(&mut self, key: usize) -> Vec<Position> {
        let chunk = std::mem::take(&mut self.lane.chunks[key]);
        let mut rows = chunk.clone();
        rows.extend(std::mem::take(&mut self.lane.queues[key]));
        self.lane.late.push((key, chunk));
        rows
    }

    fn report_forgotten(&mut self, key: usize, rows: Vec<Position>) {
        if !rows.is_empty() {
            self.note(|| format!("the lane drops {rows:?} of key {key}"));
            self.lane.dropping[key] += 1;
            self.to_poller.push_back(ToPoller::Forgotten(key, rows));
        }
    }

    fn drop_key(&mut self) {
        let key = self.random.usize(..KEYS);
        let rows = self.take_key(key);
        self.report_forgotten(key, rows);
    }

    fn drop_topic(&mut self, topic: usize) {
        for key in (topic..KEYS).step_by(TOPICS) {
            let rows = self.take_key(key);
            self.report_forgotten(key, rows);
        }
    }

    /// A key's messages go out in a chunk.
    fn send(&mut self) {
        let key = self.random.usize(..KEYS);
        if self.lane.chunks[key].is_empty() {
            let queue = &mut self.lane.queues[key];
            let count = self.random.usize(..=queue.len());
            self.lane.chunks[key] = queue.drain(..count).collect();
        }
    }

    /// A chunk comes back: some of it was delivered, the rest is sent again.
    fn hear(&mut self) -> Judged {
        if !self.lane.late.is_empty() && self.random.bool() {
            let late = self.random.usize(..self.lane.late.len());
            let (key, chunk) = self.lane.late.swap_remove(late);
            let count = self.random.usize(..=chunk.len());
            return self.deliver(key, &chunk[..count]);
        }
        let key = self.random.usize(..KEYS);
        let chunk = std::mem::take(&mut self.lane.chunks[key]);
        let count = self.random.usize(..=chunk.len());
        for position in chunk[count..].iter().rev() {
            self.lane.queues[key].push_front(*position);
        }
        self.deliver(key, &chunk[..count])
    }

    fn deliver(&mut self, key: usize, rows: &[Position]) -> Judged {
        for position in rows {
            let passed =
                self.table.committed[key].iter().find(|at| *at < position && !self.delivered.contains(at));
            if let Some(passed) = passed {
                return Err(format!("{position} was delivered before {passed} of the same key"));
            }
            self.delivered.insert(*position);
            self.confirmed.push(*position);
        }
        Ok(())
    }

    /// Rows that were delivered leave the table; at another step the poller is told.
    fn settle(&mut self) {
        if self.random.bool() {
            self.random.shuffle(&mut self.confirmed);
            let count = self.random.usize(..=self.confirmed.len());
            for position in self.confirmed.drain(..count) {
                self.table.hot.remove(&position);
                self.removed.push(position);
            }
        } else if !self.removed.is_empty() {
            self.to_poller.push_back(ToPoller::Left(std::mem::take(&mut self.removed)));
        }
    }

    fn is_reader_free(&self) -> bool {
        match &self.call {
            None => true,
            Some(Call::Fetch(..)) => self.case.interleaved,
            Some(Call::Probe(_)) => false,
        }
    }

    fn tell_reader(&mut self) {
        if !self.is_reader_free() {
            return;
        }
        match self.to_poller.pop_front() {
            None => {}
            Some(ToPoller::Left(positions)) => {
                self.note(|| format!("left {positions:?}"));
                self.reader.left(positions);
            }
            Some(ToPoller::Forgotten(key, rows)) => {
                self.note(|| format!("forgotten {rows:?} of key {key}"));
                for position in &rows {
                    self.held.remove(position);
                }
                self.reader.forget(&names().keys[key], rows);
                self.to_lane.push_back(ToLane::KeyForgotten(key));
            }
            Some(ToPoller::Broken(topic)) => self.close(topic),
            Some(ToPoller::TopicForgotten(topic)) => {
                if let Some(lanes) = &mut self.closed[topic] {
                    *lanes -= 1;
                }
            }
        }
    }

    fn close(&mut self, topic: usize) {
        self.note(|| format!("topic {topic} closed"));
        self.reader.close_topic(&names().topics[topic]);
        *self.closed[topic].get_or_insert(0) += 1;
        self.to_lane.push_back(ToLane::ForgetTopic(topic));
    }

    fn open(&mut self, topic: usize) {
        if self.closed[topic] == Some(0) {
            self.note(|| format!("topic {topic} opened"));
            self.closed[topic] = None;
            self.reader.open_topic(&names().topics[topic]);
        }
    }

    fn change_topic(&mut self) {
        let topic = self.random.usize(..TOPICS);
        if self.random.u8(..3) == 0 {
            // The lane meets the fault.
            self.to_poller.push_back(ToPoller::Broken(topic));
            self.drop_topic(topic);
            self.lane.dropping_topics.insert(topic);
        } else if self.is_reader_free() {
            if self.closed[topic].is_none() { self.close(topic) } else { self.open(topic) }
        }
    }

    fn change_buckets(&mut self) {
        let some: BucketSet = (0..KEYS).filter(|_| self.random.u8(..3) == 0).map(|key| bucket(key)).collect();
        let some = if self.random.u8(..6) == 0 { BucketSet::ALL } else { some };
        match self.random.u8(..4) {
            0 => {
                let owned = self.reader.owned().intersection(&self.table.leased);
                let mark = self.reader.low_water();
                self.save_mark(&owned, mark);
            }
            // The leases run out; the reader hears of it later.
            1 => self.table.leased = self.table.leased.without(&some),
            2 => {
                self.another_relay_works();
                self.hear_of_losses();
            }
            _ => {
                self.hear_of_losses();
                self.take_over(some);
            }
        }
    }

    fn save_mark(&mut self, buckets: &BucketSet, mark: Position) {
        for key in (0..KEYS).filter(|key| buckets.contains(bucket(*key))) {
            self.marks[key] = mark;
        }
    }

    fn hear_of_losses(&mut self) {
        let lost = self.reader.owned().without(&self.table.leased);
        if !self.is_reader_free() || lost.is_empty() {
            return;
        }
        self.note(|| format!("lost {} buckets", lost.len()));
        self.reader.lose(lost);
        self.held.retain(|position| {
            self.table.hot.get(position).is_none_or(|(_, stored)| !lost.contains(stored.bucket))
        });
        self.to_lane.push_back(ToLane::Lose(lost));
    }

    /// Whoever has a bucket meanwhile delivers some of it, in order, and saves its mark.
    fn another_relay_works(&mut self) {
        let key = self.random.usize(..KEYS);
        let bucket: BucketSet = [bucket(key)].into_iter().collect();
        if !self.table.leased.intersection(&bucket).is_empty() {
            return;
        }
        let rows: Vec<Position> =
            self.table.committed[key].iter().filter(|at| self.table.hot.contains_key(at)).copied().collect();
        let count = self.random.usize(..=rows.len());
        for position in &rows[..count] {
            self.delivered.insert(*position);
            self.table.hot.remove(position);
        }
        let lowest = self.table.lowest(&bucket).before();
        if self.random.bool() {
            self.save_mark(&bucket, lowest);
        }
    }

    fn take_over(&mut self, some: BucketSet) {
        let gained = some.without(&self.table.leased);
        if !self.is_reader_free()
            || gained.is_empty()
            || !self.reader.owned().intersection(&gained).is_empty()
        {
            return;
        }
        let of_gained = (0..KEYS).filter(|key| gained.contains(bucket(*key)));
        let low_water = of_gained.map(|key| self.marks[key]).min().unwrap_or(Position::START);
        self.note(|| format!("took over {} buckets from {low_water}", gained.len()));
        self.table.leased = self.table.leased.union(&gained);
        self.reader.acquire(gained, low_water);
    }

    fn judge_low_water(&self) -> Judged {
        let owned = self.reader.owned().intersection(&self.table.leased);
        let (mark, lowest) = (self.reader.low_water(), self.table.lowest(&owned));
        if mark >= lowest {
            Err(format!("the low-water mark is {mark}, and {lowest} is still to be settled"))
        } else {
            Ok(())
        }
    }

    /// Writers end, everything is open and heals: all that was committed must come through before long.
    fn finish(mut self) -> Judged {
        self.note(|| "everything heals".to_owned());
        while !self.table.open.is_empty() {
            self.table.commit(0);
        }
        for round in 0.. {
            if round > 200 + 4 * self.table.last {
                let left: Vec<_> = self.table.hot.keys().collect();
                return Err(format!(
                    "stranded: {left:?}, in flight {}, main {:?}, gaps {:?}",
                    self.reader.in_flight(),
                    self.reader.main,
                    self.reader.gaps.keys()
                ));
            }
            if self.call.is_none() {
                self.hear_of_losses();
                self.take_over(BucketSet::ALL);
                (0..TOPICS).for_each(|topic| self.open(topic));
                self.reader.look();
                self.begin_fetch();
                if (self.call.is_none() || round % 8 == 0) && self.reader.wants_writers() {
                    self.call = Some(Call::Probe(None));
                }
            }
            while self.call.is_some() {
                self.call()?;
            }
            while !self.to_lane.is_empty() {
                self.tell_lane();
            }
            for key in 0..KEYS {
                let chunk = std::mem::take(&mut self.lane.chunks[key]);
                self.deliver(key, &chunk)?;
                self.lane.chunks[key] = self.lane.queues[key].drain(..).collect();
            }
            for position in self.confirmed.drain(..) {
                self.table.hot.remove(&position);
                self.removed.push(position);
            }
            self.to_poller.push_back(ToPoller::Left(std::mem::take(&mut self.removed)));
            while !self.to_poller.is_empty() {
                self.tell_reader();
            }
            self.judge_low_water()?;
            let is_idle =
                self.table.hot.is_empty() && self.reader.in_flight() == 0 && self.reader.gaps.is_empty();
            if is_idle && self.reader.low_water() >= self.reader.horizon.seen {
                break;
            }
        }
        self.judge_cost()
    }

    /// With one writer, and nothing closed or lost, no fetch walks again over what it has passed.
    fn judge_cost(&self) -> Judged {
        if self.case.store != Ordering::Single || self.case.faults || self.case.interleaved {
            return Ok(());
        }
        for (position, walked) in &self.walked {
            let admitted = self.admitted.get(position).copied().unwrap_or(0);
            if *walked > admitted + 1 {
                return Err(format!(
                    "{position} was walked over {walked} times to be admitted {admitted} times"
                ));
            }
        }
        Ok(())
    }
}

/// Runs many seeds; says how the first one failed, if one did.
fn run(case: Case, seeds: u64) -> Option<String> {
    if let Some(seed) = setting("OUTBOX_MODEL_SEED") {
        return Model::new(case, seed, true).run().err();
    }
    (0..seeds).find_map(|seed| {
        let failed = Model::new(case, seed, false).run().err()?;
        Some(format!("seed {seed}: {failed}\n  {case:?}\n  replay with OUTBOX_MODEL_SEED={seed} and the name of this test"))
    })
}

fn setting(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

fn holds(case: Case) {
    if let Some(failed) = run(case, setting("OUTBOX_MODEL_SEEDS").unwrap_or(500)) {
        panic!("{failed}");
    }
}

fn is_caught(case: Case) {
    let failed = run(case, 2_000).expect("a rule that is wrong is found out");
    let harm = ["before", "twice", "stranded", "still to be settled"];
    assert!(harm.iter().any(|harm| failed.contains(harm)), "{failed}");
}

#[test]
fn with_one_writer_order_holds_and_nothing_is_lost() {
    holds(Case::of(Ordering::Single));
}

#[test]
fn with_several_writers_order_holds_and_nothing_is_lost() {
    holds(Case::of(Ordering::Writers));
}

#[test]
fn with_one_writer_nothing_is_walked_over_twice() {
    holds(Case { faults: false, ..Case::of(Ordering::Single) });
}

#[test]
fn with_several_writers_and_no_faults_order_holds_and_nothing_is_lost() {
    holds(Case { faults: false, ..Case::of(Ordering::Writers) });
}

#[test]
fn word_that_comes_while_a_fetch_is_under_way_does_no_harm() {
    for ordering in [Ordering::Single, Ordering::Writers] {
        holds(Case { interleaved: true, ..Case::of(ordering) });
    }
}

#[test]
fn a_plain_cursor_loses_rows_of_several_writers() {
    is_caught(Case { belief: Ordering::Single, faults: false, ..Case::of(Ordering::Writers) });
}

#[test]
fn a_horizon_that_counts_at_once_loses_rows() {
    let sabotage = Some(Sabotage::HorizonAtOnce);
    is_caught(Case { sabotage, faults: false, ..Case::of(Ordering::Writers) });
}

#[test]
fn a_horizon_that_counts_beyond_where_a_fetch_was_cut_short_loses_rows() {
    let sabotage = Some(Sabotage::HorizonOfCutFetch);
    is_caught(Case { sabotage, faults: false, ..Case::of(Ordering::Writers) });
}

#[test]
fn a_gap_that_ends_before_it_has_caught_up_loses_rows() {
    let sabotage = Some(Sabotage::MergesEarly);
    is_caught(Case { sabotage, ..Case::of(Ordering::Single) });
}

#[test]
fn a_hot_key_without_a_window_of_its_own_loses_rows() {
    let sabotage = Some(Sabotage::HotKeysPass);
    is_caught(Case { sabotage, faults: false, ..Case::of(Ordering::Single) });
}
