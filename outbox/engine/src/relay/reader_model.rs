//! A model test of the fetch rule: thousands of seeded interleavings of writers, fetches, settlements, forgettings, closed topics and
//! lost buckets, judged by brute force.
//!
//! The reader runs against a table that honours [`FetchRequest`] to the letter and a lane that does what lanes do with rows. After each
//! step the model knows what was committed, what is in flight and what was forgotten, and so what the reader may admit.
//!
//! How it is run with more seeds, or with one: see `model_cast.rs`.

#[path = "reader_model/lane.rs"]
mod lane;
#[path = "reader_model/poller.rs"]
mod poller;
#[path = "reader_model/table.rs"]
mod table;

use std::collections::{BTreeSet, VecDeque};

use self::lane::{Lane, ToLane};
use self::poller::ToPoller;
use self::table::Table;
use super::*;
use crate::relay::model_cast::{
    Judged, KEYS, TOPICS, bucket, first_failure, keys_in, keys_of, the_key, the_topic, topic_of,
};

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
    /// Whether a writer never ends, and a topic is closed for good.
    lasting: bool,
    sabotage: Option<Sabotage>,
}

/// A part of the rule, left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sabotage {
    /// A horizon counts at once.
    HorizonAtOnce,
    /// The last position is read after the writers, not before.
    LastReadLast,
    /// A fetch that was cut short lifts the horizon beyond its last row.
    HorizonOfCutFetch,
    /// What narrower gaps have is shown again and again above the horizon.
    ForgetsPassed,
    /// A gap ends with its first fetch.
    MergesEarly,
    /// A key that has too much in memory loses its window of its own.
    HotKeysPass,
}

impl Case {
    fn of(ordering: Ordering) -> Self {
        Self {
            store: ordering,
            belief: ordering,
            interleaved: false,
            faults: true,
            lasting: false,
            sabotage: None,
        }
    }
}

/// A call to the store that the poller waits for.
enum Call {
    Fetch(Box<Plan>, Option<Fetched>),
    Probe(Probe),
}

/// How far the question who is writing has come: first the last position is read, then who is open.
enum Probe {
    Asked,
    Last(Position),
    Answered(Writers),
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
            table.begin();
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
                self.call = Some(Call::Probe(Probe::Asked))
            }
            None => self.begin_fetch(),
            Some(Call::Probe(Probe::Asked)) => {
                self.call = Some(Call::Probe(Probe::Last(Position(self.table.last))));
            }
            Some(Call::Probe(Probe::Last(last))) => {
                let writers = self.table.writers(self.random.bool(), last);
                self.call = Some(Call::Probe(Probe::Answered(writers)));
            }
            Some(Call::Probe(Probe::Answered(mut writers))) => {
                if self.case.sabotage == Some(Sabotage::LastReadLast) {
                    writers.last = Position(self.table.last);
                }
                self.note(|| format!("{writers:?}"));
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
            Some(Call::Fetch(plan, Some(fetched))) => return self.fetched(&plan, fetched),
        }
        Ok(())
    }

    fn begin_fetch(&mut self) {
        let rows = self.random.usize(1..8);
        if let Some(plan) =
            self.reader.next(&Route::default(), RelayId::from_uuid(uuid::Uuid::nil()), rows, usize::MAX)
        {
            self.note(|| format!("fetch {} through {:?}: {:?}", plan.sequence, plan.window, plan.request));
            self.call = Some(Call::Fetch(Box::new(plan), None));
        }
    }

    fn fetched(&mut self, plan: &Plan, fetched: Fetched) -> Judged {
        for row in &fetched.rows {
            *self.walked.entry(row.position()).or_default() += 1;
        }
        let gaps_before: Vec<Part> = self.reader.gaps.keys().cloned().collect();
        let read = self.reader.fetched(plan, fetched);
        match self.case.sabotage {
            Some(Sabotage::HorizonOfCutFetch) => {
                let gap = plan.window.as_ref().and_then(|part| self.reader.gaps.get_mut(part));
                let window = gap.map_or(&mut self.reader.main, |gap| &mut gap.window);
                window.horizon = window.horizon.max(plan.horizon);
            }
            Some(Sabotage::ForgetsPassed) => self.reader.main.passed.clear(),
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
            if self.closed[topic_of(key)].is_some() {
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
        if self.case.lasting {
            self.let_things_last()?;
        } else {
            while !self.table.open.is_empty() {
                self.table.commit(0);
            }
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
                (usize::from(self.case.lasting)..TOPICS).for_each(|topic| self.open(topic));
                self.reader.look();
                if round % 8 == 0 && self.reader.wants_writers() {
                    self.call = Some(Call::Probe(Probe::Asked));
                } else {
                    self.begin_fetch();
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
            if self.case.lasting && self.table.hot.values().all(|(key, _)| topic_of(*key) == 0) {
                return Ok(());
            }
            let is_idle =
                self.table.hot.is_empty() && self.reader.in_flight() == 0 && self.reader.gaps.is_empty();
            if is_idle && self.reader.low_water() >= self.reader.horizon.seen {
                break;
            }
        }
        self.judge_cost()
    }

    /// A writer stays that holds the horizon back, and the first topic is closed with more in it than a fetch brings.
    fn let_things_last(&mut self) -> Judged {
        while self.call.is_some() {
            self.call()?;
        }
        if self.table.open.iter().all(|open| open.rows.is_empty()) {
            self.table.begin();
            self.table.append(self.table.open.len() - 1, KEYS - 1);
        }
        if self.closed[0].is_none() {
            self.close(0);
        }
        self.table.begin();
        let last = self.table.open.len() - 1;
        for row in 0..40 {
            // Of the closed topic first, then of the other.
            self.table.append(last, if row < 30 { 2 * (row % 4) } else { 2 * (row % 4) + 1 });
        }
        self.table.commit(last);
        let holds_back = |open: &table::Transaction| !open.rows.is_empty();
        while let Some(other) = self.table.open.iter().rposition(|open| !holds_back(open)) {
            self.table.commit(other);
        }
        while self.table.open.len() > 1 {
            self.table.commit(1);
        }
        Ok(())
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

fn holds(case: Case) {
    crate::relay::model_cast::holds(|seed, loud| Model::new(case, seed, loud).run());
}

fn is_caught(case: Case) {
    let failed = first_failure(2_000, |seed, loud| Model::new(case, seed, loud).run());
    let failed = failed.expect("a rule that is wrong is found out");
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
fn a_backlog_of_any_size_is_below_the_horizon_at_once() {
    let mut table = Table { leased: BucketSet::ALL, ..Table::default() };
    table.begin();
    (0..90).for_each(|row| table.append(0, row % KEYS));
    table.commit(0);
    let limits = ReaderLimits { rows: 10, bytes: usize::MAX, per_key: usize::MAX, key_gaps: 4 };
    let mut reader = Reader::new(Ordering::Writers, limits);
    reader.acquire(BucketSet::ALL, Position::START);
    let mut fetch = || {
        let plan = reader.next(&Route::default(), RelayId::from_uuid(uuid::Uuid::nil()), 10, usize::MAX)?;
        let read = reader.fetched(&plan, table.fetch(&plan.request));
        table.hot.retain(|position, _| read.rows.iter().all(|row| row.position() != *position));
        reader.left(read.rows.iter().map(FetchedRow::position));
        if reader.wants_writers() {
            reader.wrote(table.writers(true, Position(table.last)));
        }
        Some(plan.request.after.0)
    };
    // One fetch to see something, one that began since the horizon is known, and each other one begins where the last one ended.
    let after: Vec<_> = std::iter::from_fn(&mut fetch).collect();
    assert_eq!(after, [0, 0, 20, 30, 40, 50, 60, 70, 80, 90]);
}

#[test]
fn word_that_comes_while_a_fetch_is_under_way_does_no_harm() {
    for ordering in [Ordering::Single, Ordering::Writers] {
        holds(Case { interleaved: true, ..Case::of(ordering) });
    }
}

#[test]
fn a_writer_that_never_ends_and_a_closed_topic_hold_up_nothing_else() {
    holds(Case { lasting: true, ..Case::of(Ordering::Writers) });
}

#[test]
fn rows_of_narrower_gaps_that_are_shown_again_and_again_hold_up_the_others() {
    let sabotage = Some(Sabotage::ForgetsPassed);
    is_caught(Case { lasting: true, sabotage, ..Case::of(Ordering::Writers) });
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
fn a_last_position_that_is_read_behind_the_writers_loses_rows() {
    let sabotage = Some(Sabotage::LastReadLast);
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
