//! A model test of the fetch rule: thousands of seeded interleavings of writers, fetches, settlements, forgettings, closed topics and
//! lost buckets, judged by brute force.
//!
//! The reader runs against a table that honours [`FetchRequest`] to the letter and a lane that does what lanes do with rows. After each
//! step the model knows what was committed, what is in flight and what was forgotten, and so what the reader may admit.
//!
//! How it is run with more seeds, or with one: see `model_cast.rs`.

#[path = "reader_model/below.rs"]
mod below_model;
#[path = "reader_model/cost.rs"]
mod cost;
#[path = "reader_model/foreign.rs"]
mod foreign;
#[path = "reader_model/joined.rs"]
mod joined;
#[path = "reader_model/lane.rs"]
mod lane;
#[path = "reader_model/poller.rs"]
mod poller;
#[path = "reader_model/sabotage.rs"]
mod sabotage;
#[path = "reader_model/table.rs"]
mod table;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use self::lane::{Lane, ToLane};
use self::poller::ToPoller;
use self::sabotage::Sabotage;
use self::table::Table;
use super::*;
use crate::relay::model_cast::{
    Judged, KEYS, TOPICS, bucket, keys_in, keys_of, the_key, the_topic, topic_of,
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
    /// Whether it is looked below what was read, where nothing is that should not be.
    looks_below: bool,
    sabotage: Option<Sabotage>,
}

impl Case {
    fn of(ordering: Ordering) -> Self {
        Self {
            store: ordering,
            belief: ordering,
            interleaved: false,
            faults: true,
            lasting: false,
            looks_below: false,
            sabotage: None,
        }
    }

    /// Whether it is judged by how often rows are walked over.
    fn counts_walks(&self) -> bool {
        self.store == Ordering::Single && !self.faults && !self.interleaved
    }
}

/// A call to the store that the poller waits for.
enum Call {
    Stripes(BucketSet, Option<Vec<StripeMark>>),
    Fetch(Box<Plan>, Option<Fetched>),
    Confirm(Box<Plan>, Fetched, Probe),
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
    below: Option<below_model::Look>,
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
            // What is cut off for want of room is walked over again.
            waiting: if case.counts_walks() || random.bool() { usize::MAX } else { random.usize(1..8) },
            key_gaps: random.usize(1..5),
            walk: random.i64(0..6),
        };
        let stripes = case.store == Ordering::Stripes;
        let ahead = stripes.then(|| std::array::from_fn(|_| random.i64(0..12) * random.i64(0..3)));
        let mut reader = Reader::new(case.belief, limits);
        reader.acquire(BucketSet::ALL, Position::START);
        Self {
            case,
            random,
            loud,
            reader,
            table: Table { leased: BucketSet::ALL, ahead, ..Table::default() },
            lane: Lane::default(),
            to_lane: VecDeque::new(),
            to_poller: VecDeque::new(),
            call: None,
            below: None,
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
        if self.case.looks_below && self.random.u8(..8) == 0 {
            return self.look_below();
        }
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
        let case = self.case;
        let most = if case.store == Ordering::Single { 1 } else { 4 };
        let table = &mut self.table;
        if table.open.is_empty() || (table.open.len() < most && self.random.u8(..4) == 0) {
            table.begin();
        }
        let transaction = self.random.usize(..table.open.len());
        match self.random.u8(..12) {
            0..8 => {
                // A few keys get most of the rows.
                let key = self.random.usize(..KEYS).min(self.random.usize(..KEYS));
                let rows = if case.store == Ordering::Stripes { self.random.usize(1..4) } else { 1 };
                table.append_rows(transaction, key, rows);
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
            None => self.begin(),
            Some(Call::Stripes(owned, None)) => {
                self.call = Some(Call::Stripes(owned, Some(self.table.marks(&owned))));
            }
            Some(Call::Stripes(_, Some(mut marks))) => {
                self.sabotage_marks(&mut marks);
                self.note(|| format!("{marks:?}"));
                self.reader.committed(marks);
                self.begin_fetch();
            }
            Some(Call::Probe(Probe::Answered(writers))) => self.wrote(writers),
            Some(Call::Probe(probe)) => self.call = Some(Call::Probe(self.ask(probe))),
            Some(Call::Fetch(plan, None)) => {
                let answer = self.table.fetch(&plan.request);
                self.call = Some(Call::Fetch(plan, Some(answer)));
            }
            Some(Call::Fetch(mut plan, Some(mut fetched))) => {
                self.sabotage_plan(&mut plan, &mut fetched);
                if !plan.wants_writers() {
                    return self.fetched(&plan, fetched);
                }
                self.call = Some(Call::Confirm(plan, fetched, Probe::Asked));
            }
            Some(Call::Confirm(plan, fetched, Probe::Answered(writers))) => {
                self.wrote(writers);
                return self.fetched(&plan, fetched);
            }
            Some(Call::Confirm(plan, fetched, probe)) => {
                let probe = self.ask(probe);
                self.call = Some(Call::Confirm(plan, fetched, probe));
            }
        }
        Ok(())
    }

    fn ask(&mut self, probe: Probe) -> Probe {
        match probe {
            Probe::Asked => Probe::Last(Position(self.table.last)),
            Probe::Last(last) => Probe::Answered(self.table.writers(self.random.bool(), last)),
            Probe::Answered(writers) => Probe::Answered(writers),
        }
    }

    fn wrote(&mut self, mut writers: Writers) {
        self.sabotage_answer(&mut writers);
        self.note(|| format!("{writers:?}"));
        self.reader.wrote(&writers);
        self.sabotage_horizon();
    }

    fn begin(&mut self) {
        if self.reader.wants_stripes() {
            self.call = Some(Call::Stripes(self.reader.owned(), None));
        } else {
            self.begin_fetch();
        }
    }

    fn begin_fetch(&mut self) {
        let rows = self.random.usize(1..8);
        if let Some(mut plan) =
            self.reader.next(&Route::default(), RelayId::from_uuid(uuid::Uuid::nil()), rows, usize::MAX)
        {
            self.note(|| format!("fetch {} through {:?}: {:?}", plan.sequence, plan.window, plan.request));
            self.sabotage_start(&mut plan);
            self.call = Some(Call::Fetch(Box::new(plan), None));
        }
    }

    fn fetched(&mut self, plan: &Plan, fetched: Fetched) -> Judged {
        for row in &fetched.rows {
            *self.walked.entry(row.position()).or_default() += 1;
        }
        let last = fetched.rows.last().map(FetchedRow::position);
        let gaps_before: Vec<Part> = self.reader.windows.gaps.keys().cloned().collect();
        let cursor = self.reader.windows.window(plan.window.as_ref()).cursor;
        let read = self.reader.fetched(plan, fetched);
        self.sabotage_windows(plan, last, &gaps_before, cursor);
        if self.reader.is_astray() && self.case.sabotage.is_none() && self.case.belief == self.case.store {
            return Err("rows are taken for lost that are where they should be".to_owned());
        }
        let (waiting, most) = (self.reader.in_flight.waiting(), self.reader.limits.waiting);
        if waiting > most {
            return Err(format!("{waiting} rows wait to be parked, {most} at the most"));
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
                    self.reader.in_flight.len(),
                    self.reader.windows.main,
                    self.reader.windows.gaps.keys()
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
                    self.begin();
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
            let is_idle = self.table.hot.is_empty()
                && self.reader.in_flight.len() == 0
                && self.reader.windows.gaps.is_empty();
            let marks = self.reader.has_stripes();
            if is_idle && (marks || self.reader.low_water() >= self.reader.horizon.seen) {
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
        if !self.case.counts_walks() {
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
    for ordering in [Ordering::Single, Ordering::Writers, Ordering::Stripes] {
        holds(Case { interleaved: true, ..Case::of(ordering) });
    }
}

#[test]
fn with_stripes_order_holds_and_nothing_is_lost() {
    holds(Case::of(Ordering::Stripes));
}

#[test]
fn with_stripes_and_no_faults_order_holds_and_nothing_is_lost() {
    holds(Case { faults: false, ..Case::of(Ordering::Stripes) });
}

#[test]
fn a_writer_that_never_ends_and_a_closed_topic_hold_up_nothing_else() {
    for ordering in [Ordering::Writers, Ordering::Stripes] {
        holds(Case { lasting: true, ..Case::of(ordering) });
    }
}
