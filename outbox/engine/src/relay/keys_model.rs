//! A model test of the keys of a lane: seeded interleavings of batches, outcomes, steps of failing keys, forgettings and lost buckets, with
//! a poller, a diverter and a settler that do what theirs do, judged by what a transport would have seen.

#[path = "keys_model/by_hand.rs"]
mod by_hand;
#[path = "keys_model/poller.rs"]
mod poller;
#[path = "keys_model/table.rs"]
mod table;
#[path = "keys_model/transport.rs"]
mod transport;

use outbox_contract::divert::Diverted;
use outbox_contract::fetch::FetchedRow;
use outbox_contract::outcome::Unavailable;
use outbox_contract::{Diversion, Exhausted, Failure, Outcome, RelayId, RetryPolicy, Route};

use self::poller::{Poller, ToPoller};
use self::table::Table;
use super::*;
use crate::relay::credit::Credit;
use crate::relay::key::{Ask, Delivered};
use crate::relay::model_cast::{
    Judged, KEYS, TOPICS, bucket, buckets, first_failure, holds, keys_in, number_of, the_key, the_topic,
    topic_of,
};

const STEPS: usize = 600;
const MS: Duration = Duration::from_millis(1);

/// What is left out of the lane, to see that the model finds it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sabotage {
    /// Nobody remembers which keys began to fail.
    FailingSince,
    /// What comes of a forgotten key before the echo is taken.
    DroppingKeys,
    /// A chunk of an earlier stay counts as one of this stay.
    Generations,
    /// Failed keys wait until nobody else does.
    Turns,
}

#[derive(Clone, Copy, Debug, Default)]
struct Case {
    /// This key is held, and nobody releases it.
    held_for_good: Option<usize>,
    sabotage: Option<Sabotage>,
}

enum ToLane {
    Batch(u64, Vec<(FetchedRow, Epoch)>),
    Due(Vec<(DueKey, Epoch)>),
    Diverted(KeyId, u64, Diverted),
    KeyForgotten(KeyId),
    ForgetTopic(usize),
    Lose(BucketSet),
}

struct Model {
    case: Case,
    random: fastrand::Rng,
    loud: bool,
    healed: bool,
    now: Duration,
    keys: Keys,
    credit: Arc<Credit>,
    /// How many publishers there are.
    desks: usize,
    table: Table,
    poller: Poller,
    to_lane: VecDeque<ToLane>,
    to_poller: VecDeque<ToPoller>,
    asks: VecDeque<Ask>,
    settler: VecDeque<Delivered>,
    chunks: Vec<ChunkPlan>,
    /// What was delivered of chunks that are out, in messages from the start of each key's.
    heard: BTreeMap<(u64, KeyId), usize>,
    /// How many chunks were taken of each line that is answered, in a row, while the other one waited and might have had a publisher.
    in_a_row: (usize, usize),
    poison: BTreeSet<Position>,
    log: BTreeSet<Position>,
}

impl Model {
    fn new(case: Case, seed: u64, loud: bool) -> Self {
        let mut random = fastrand::Rng::with_seed(seed);
        let limits = KeysLimits {
            chunk: random.usize(1..8),
            chunk_bytes: usize::MAX,
            first_delay: MS,
            most_delay: MS * 8,
            silent: random.usize(1..4),
        };
        let desks = random.usize(1..10);
        let policy =
            RetryPolicy { most_attempts: 3, first_delay: MS, most_delay: MS * 8, ..RetryPolicy::default() };
        let hold = RetryPolicy { exhausted: Exhausted::Hold, ..policy.clone() };
        let policies =
            Policies { default: policy, by_topic: [(the_topic(1).clone(), hold)].into_iter().collect() };
        let mut table = Table::default();
        table.leased.extend(0..KEYS);
        Self {
            case,
            random,
            loud,
            healed: false,
            now: Duration::ZERO,
            keys: Keys::new(limits, Arc::new(policies), seed),
            credit: Credit::new(usize::MAX, usize::MAX),
            desks,
            table,
            poller: Poller { owned: (0..KEYS).collect(), ..Poller::default() },
            to_lane: VecDeque::new(),
            to_poller: VecDeque::new(),
            asks: VecDeque::new(),
            settler: VecDeque::new(),
            chunks: Vec::new(),
            heard: BTreeMap::new(),
            in_a_row: (0, 0),
            poison: BTreeSet::new(),
            log: BTreeSet::new(),
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
            if let Some(position) = self.table.parked_nonsense {
                return Err(format!("{position} was parked, and is no message"));
            }
        }
        self.finish()
    }

    fn step(&mut self) -> Judged {
        match self.random.u32(0..100) {
            0..10 => {
                let of = self.random.usize(..KEYS).min(self.random.usize(..KEYS));
                self.table.append(of, self.random.u8(..30) == 0);
                if self.random.u8(..20) == 0 {
                    self.poison.extend(self.table.committed[of].last());
                }
            }
            10..35 => self.poll(),
            35..52 => return self.lane_takes(),
            52..62 => {
                if !self.chunks.is_empty() {
                    let chunk = self.random.usize(..self.chunks.len());
                    return if self.random.u8(..3) == 0 { self.hear(chunk) } else { self.publish(chunk) };
                }
            }
            62..68 => self.settle(),
            68..76 => self.divert(),
            76..89 => self.tell_poller(),
            89..92 => {
                self.now += MS.mul_f64(self.random.f64() * 4.0);
                return self.pump();
            }
            92..95 => self.change_topic(),
            95 if self.random.u8(..3) == 0 => self.table.hold(self.random.usize(..KEYS)),
            95 if self.random.u8(..6) == 0 => self.table.discard(self.random.usize(..KEYS)),
            95 => self.table.operate(self.random.usize(..KEYS), self.random.u8(..4) == 0, self.now),
            _ => self.change_leases(),
        }
        Ok(())
    }

    fn key_of(&self, position: Position) -> usize {
        (0..KEYS).find(|of| self.table.committed[*of].contains(&position)).unwrap()
    }

    // The lane.

    fn lane_takes(&mut self) -> Judged {
        let mut effects = Effects::default();
        match self.to_lane.pop_front() {
            None => return Ok(()),
            Some(ToLane::Batch(fetch, rows)) => {
                self.keys.begin_batch(fetch);
                if self.case.sabotage == Some(Sabotage::FailingSince) {
                    self.keys.failing_since.clear();
                }
                for (row, epoch) in rows {
                    let of = self.key_of(row.position());
                    if let FetchedRow::Malformed(waiting, reason) = row {
                        self.keys.push_malformed(the_key(of).clone(), bucket(of), epoch, waiting.at, reason);
                        continue;
                    }
                    let work = match row {
                        FetchedRow::Message(stored) => Work::Message(self.hold(stored)),
                        FetchedRow::Failing(waiting) => Work::Failing { row: waiting.at, _hold: None },
                        _ => unreachable!("the model's table shows nothing else"),
                    };
                    self.keys.push(the_key(of), bucket(of), epoch, work, &mut effects);
                }
            }
            Some(ToLane::Due(due)) => {
                for (mut due, epoch) in due {
                    let parked = std::mem::take(&mut due.parked);
                    let parked = parked.into_iter().map(|stored| self.hold(stored)).collect();
                    self.keys.retry(due, epoch, parked, self.now, &mut effects);
                }
            }
            Some(ToLane::Diverted(key, generation, answer)) => {
                self.note(|| format!("{key}: {answer:?}"));
                self.keys.diverted(&key, generation, answer, self.poller.fetches, self.now, &mut effects);
            }
            Some(ToLane::KeyForgotten(key)) => self.keys.key_forgotten(&key),
            Some(ToLane::ForgetTopic(of)) => {
                self.keys.forget_topic(the_topic(of), &mut effects);
                self.keys.topic_forgotten(the_topic(of));
                effects.topics_forgotten.push(the_topic(of).clone());
            }
            Some(ToLane::Lose(lost)) => self.keys.lose(&lost, &mut effects),
        }
        self.carry_out(effects);
        self.pump()
    }

    fn hold(&self, stored: Arc<Stored>) -> Held {
        let hold = self.credit.take(stored.message.bytes());
        Held { stored, hold }
    }

    fn carry_out(&mut self, effects: Effects) {
        if self.case.sabotage == Some(Sabotage::DroppingKeys) {
            self.keys.dropping_keys.clear();
        }
        self.settler.extend(effects.delivered);
        self.asks.extend(effects.asks);
        let number = |name: &Topic| (0..TOPICS).find(|of| the_topic(*of) == name).unwrap();
        if !effects.left.is_empty() {
            self.to_poller.push_back(ToPoller::Left(effects.left));
        }
        self.to_poller.extend(effects.broken.iter().map(|(topic, _)| ToPoller::Broken(number(topic))));
        for (key, rows) in effects.forgotten {
            self.note(|| format!("the lane forgets {rows:?} of {key}"));
            self.to_poller.push_back(ToPoller::Forgotten(key, rows));
        }
        self.to_poller
            .extend(effects.topics_forgotten.iter().map(|topic| ToPoller::TopicForgotten(number(topic))));
        self.to_poller.push_back(ToPoller::Worked(effects.worked));
        if !effects.lost.is_empty() {
            self.to_poller.push_back(ToPoller::Lost(effects.lost));
        }
    }

    fn pump(&mut self) -> Judged {
        self.keys.wake(self.now);
        let mut effects = Effects::default();
        if !self.healed && self.random.u8(..8) == 0 {
            self.note(|| "there is no room for others".to_owned());
            self.keys.relieve(&mut effects);
        }
        self.keys.next_steps(&mut effects);
        while let Some(turn) = self.keys.next_turn(self.desks()) {
            let waiting = (!self.keys.lines.ready.is_empty(), !self.keys.lines.failed.is_empty());
            let passed = self.case.sabotage == Some(Sabotage::Turns) && waiting.0 && turn == Turn::Failed;
            let turn = if passed { Turn::Ready } else { turn };
            let before = self.out_of(Turn::Failed);
            let Some(chunk) = self.keys.next_chunk(turn) else { continue };
            self.judge_turn(turn, waiting, before)?;
            self.judge_chunk(&chunk)?;
            self.chunks.push(chunk);
            if self.out_of(Turn::Failed) == self.desks && self.desks > 1 {
                return Err("failed keys have all publishers".to_owned());
            }
        }
        self.keys.next_steps(&mut effects);
        self.asks.extend(effects.asks);
        let mut asked = BTreeSet::new();
        if let Some(ask) = self.asks.iter().find(|ask| !asked.insert((&ask.key, ask.generation))) {
            return Err(format!("two steps of {} are asked for at once", ask.key));
        }
        Ok(())
    }

    fn out_of(&self, turn: Turn) -> usize {
        self.chunks.iter().filter(|chunk| chunk.turn == turn).count()
    }

    fn desks(&self) -> Desks {
        let silent = self.out_of(Turn::Silent);
        let is_free = self.chunks.len() - silent < self.desks;
        Desks { count: self.desks, is_free, is_silent_free: silent == 0 }
    }

    /// Of those who are answered, neither line starves while the other one has something, and failed keys leave a publisher to the others.
    fn judge_turn(&mut self, turn: Turn, (ready, failed): (bool, bool), of_failed: usize) -> Judged {
        let room = of_failed + 1 < self.desks.max(2);
        self.in_a_row = match turn {
            Turn::Ready => (self.in_a_row.0 + usize::from(failed && room), 0),
            Turn::Failed => (0, self.in_a_row.1 + usize::from(ready)),
            Turn::Silent => self.in_a_row,
        };
        if self.in_a_row.0.max(self.in_a_row.1) > 1 {
            return Err(format!("a line starves: {:?} chunks in a row of the other one", self.in_a_row));
        }
        Ok(())
    }

    /// What a chunk may have: of each key, what follows what was delivered or buried; and nothing of a key that is in another chunk.
    fn judge_chunk(&self, chunk: &ChunkPlan) -> Judged {
        let mut here = BTreeSet::new();
        for stored in &chunk.messages {
            let position = stored.position;
            let of = self.key_of(position);
            self.note(|| format!("chunk {}: {position} of key {of}", chunk.number));
            let is_done = |at: &Position| self.log.contains(at) || self.table.is_out(at) || here.contains(at);
            if let Some(passed) = self.table.committed[of].iter().find(|at| **at < position && !is_done(at)) {
                return Err(format!("{position} was sent before {passed} of the same key"));
            }
            here.insert(position);
        }
        if chunk.turn == Turn::Silent && self.out_of(Turn::Silent) > 0 {
            return Err("two publishers wait for what is silent".to_owned());
        }
        let generations = |number: &u64| -> BTreeSet<u64> {
            self.keys.chunks[number].iter().flatten().map(|sent| sent.generation).collect()
        };
        let these = generations(&chunk.number);
        let others = self.keys.chunks.keys().filter(|number| **number != chunk.number);
        if others.map(generations).any(|others| !others.is_disjoint(&these)) {
            return Err("a key is in two unconfirmed chunks".to_owned());
        }
        Ok(())
    }

    fn settle(&mut self) {
        let count = self.random.usize(..=self.settler.len());
        let rows: Vec<RowId> = self.settler.drain(..count).map(|delivered| delivered.row).collect();
        rows.iter().for_each(|row| self.table.settle(*row));
        self.to_poller.push_back(ToPoller::Left(rows.iter().map(|row| row.position).collect()));
    }

    fn divert(&mut self) {
        let Some(ask) = self.asks.pop_front() else { return };
        let Ask { key, generation, bucket, epoch, version, step } = ask;
        let (route, relay) = (Route::default(), RelayId::from_uuid(uuid::Uuid::nil()));
        let diversion = Diversion { route, relay, bucket, epoch, key, version, step };
        let answer = self.table.divert(&diversion, self.now);
        self.note(|| format!("{}: {:?} gives {answer:?}", diversion.key, diversion.step));
        self.to_lane.push_back(ToLane::Diverted(diversion.key, generation, answer));
    }

    // The end.

    /// Nothing breaks any more: before long everything is delivered or buried, and nothing is left in memory.
    fn finish(mut self) -> Judged {
        self.note(|| "everything heals".to_owned());
        self.healed = true;
        // Dead letters are made of what fails for good, where that is the policy; elsewhere operators have mended it.
        let held = self.case.held_for_good;
        let stays_poisoned = |of: usize| topic_of(of) == 0 || Some(of) == held;
        let mended = (0..KEYS).filter(|of| !stays_poisoned(*of)).flat_map(|of| &self.table.committed[of]);
        for position in mended {
            self.poison.remove(position);
        }
        if let Some(of) = held {
            self.table.append(of, false);
            self.poison.extend(self.table.committed[of].last());
        }
        let rounds = 200 + 20 * (0..KEYS).map(|of| self.table.committed[of].len()).sum::<usize>();
        for _ in 0..rounds {
            self.now += MS * 10;
            self.heal();
            self.poll();
            while self.poller.call.is_some() {
                self.poll();
            }
            while !self.to_lane.is_empty() {
                self.lane_takes()?;
            }
            self.pump()?;
            while !self.chunks.is_empty() {
                self.publish(0)?;
            }
            while !self.asks.is_empty() {
                self.divert();
            }
            while !self.settler.is_empty() {
                self.settle();
            }
            while !self.to_poller.is_empty() {
                self.tell_poller();
            }
            if self.is_done() {
                return Ok(());
            }
        }
        Err(format!(
            "stuck: hot {:?}, failing {:?}, in flight {:?}, working {:?}, {:?}",
            self.table.hot.keys(),
            self.table.keys,
            self.poller.known,
            self.poller.working,
            self.keys
        ))
    }

    fn heal(&mut self) {
        while self.poller.call.is_some() {
            self.poll();
        }
        self.heartbeat();
        for of in 0..KEYS {
            self.take_over(of);
            if Some(of) != self.case.held_for_good && self.table.keys.get(&of).is_some_and(|row| row.held) {
                self.table.operate(of, false, self.now);
            }
        }
        (0..TOPICS).for_each(|topic| self.open(topic));
    }

    fn is_done(&self) -> bool {
        let held = self.case.held_for_good;
        let is_done = |of: usize| {
            let is_over = |at: &Position| self.log.contains(at) || self.table.dead.contains(at);
            Some(of) == held
                || (self.table.committed[of].iter().all(is_over) && !self.table.keys.contains_key(&of))
        };
        (0..KEYS).all(is_done)
            && self.table.hot.is_empty()
            && self.poller.known.is_empty()
            && self.to_lane.is_empty()
            && self.keys.keys.is_empty()
            && self.keys.malformed.is_empty()
            && self.keys.chunks.is_empty()
            && self.keys.dropping_keys.is_empty()
            && self.keys.dropping_topics.is_empty()
            && self.poller.working.is_empty()
            && self.credit.out() == (0, 0)
    }
}

fn is_caught(sabotage: Sabotage) {
    let case = Case { sabotage: Some(sabotage), ..Case::default() };
    let failed = first_failure(2_000, |seed, loud| Model::new(case, seed, loud).run());
    let failed = failed.expect("a guard that is left out is missed");
    assert!(["before", "two", "stuck", "starves"].iter().any(|harm| failed.contains(harm)), "{failed}");
}

#[test]
fn whatever_happens_keys_keep_their_order_and_nothing_is_stuck() {
    holds(|seed, loud| Model::new(Case::default(), seed, loud).run());
}

#[test]
fn a_key_that_is_held_for_good_holds_up_no_other() {
    let case = Case { held_for_good: Some(1), ..Case::default() };
    holds(|seed, loud| Model::new(case, seed, loud).run());
}

#[test]
fn a_lane_that_forgets_which_keys_began_to_fail_reorders() {
    is_caught(Sabotage::FailingSince);
}

#[test]
fn a_lane_that_takes_what_comes_before_the_echo_reorders() {
    is_caught(Sabotage::DroppingKeys);
}

#[test]
fn a_lane_that_takes_an_old_chunk_for_a_new_one_reorders() {
    is_caught(Sabotage::Generations);
}

#[test]
fn a_lane_that_sends_suspects_only_when_nobody_else_waits_starves_them() {
    is_caught(Sabotage::Turns);
}
