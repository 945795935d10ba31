//! The keys of a lane: which message may go next. Pure: no call, no clock, no task.
//!
//! Each key does one thing at a time: some of its messages are in one unconfirmed chunk, or one step of its state machine is on its way
//! to the store, or it stands in line. So what follows a failure can't overtake it (promise P3), and one key's failure holds up no other
//! (P5): the others stand in the same line and go on.
//!
//! Three things can make what a lane has in memory out of date, and each has its guard:
//!
//! - **A key began to fail while a fetch was under way** that did not see it yet. The lane remembers when each key began to fail, and parks
//!   whatever comes from a fetch that began before that ([`Keys::failing_since`]).
//! - **A key was forgotten** (it is to be read again) while more of it was on its way here. The lane drops all of it until the poller echoes
//!   the forgetting; behind the echo comes only what was read again.
//! - **A chunk came back** after its key was forgotten or its bucket lost. Its generation is another one: what was delivered may be
//!   settled, and nothing else is done.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::hash::{BuildHasherDefault, DefaultHasher};
use std::sync::Arc;
use std::time::Duration;

use outbox_contract::divert::{Diverted, Step, Then};
use outbox_contract::fetch::{DueKey, RowId};
use outbox_contract::outcome::Unavailable;
use outbox_contract::{
    Bucket, BucketSet, Epoch, Exhausted, Failure, KeyId, Outcome, Position, Stored, Topic,
};

use super::effects::Effects;
use super::key::{Ask, Busy, Held, KeyState, MOST_ROWS_PER_STEP, Retry, StepKind, Verdict, Work};
use super::policies::Policies;

#[cfg(test)]
#[path = "keys_model.rs"]
mod model;

/// The bounds of a lane.
#[derive(Clone, Copy, Debug)]
pub(crate) struct KeysLimits {
    /// The most messages of a chunk.
    pub(crate) chunk: usize,
    /// The most bytes of a chunk; one message may have more.
    pub(crate) chunk_bytes: usize,
    /// The first wait after an unknown outcome.
    pub(crate) first_delay: Duration,
    /// The longest.
    pub(crate) most_delay: Duration,
}

/// How often a message may break things alone before that counts as a failure of its own.
const STRIKES: u32 = 5;

// Not the standard library's random hasher: the order in which keys are dropped must be the same in a replay.
type Map<V> = HashMap<KeyId, V, BuildHasherDefault<DefaultHasher>>;

/// The keys of one lane.
#[derive(Debug)]
pub(crate) struct Keys {
    limits: KeysLimits,
    policies: Arc<Policies>,
    random: fastrand::Rng,
    keys: Map<KeyState>,
    // Keys with something to send, and keys that need a step of the store first: two lines, so that steps wait for no publisher.
    line: VecDeque<KeyId>,
    steps: VecDeque<KeyId>,
    waiting: BTreeSet<(Duration, KeyId)>,
    failing_since: BTreeMap<KeyId, u64>,
    // How many forgettings of a key the poller has not echoed yet.
    dropping_keys: BTreeMap<KeyId, u32>,
    dropping_topics: BTreeSet<Topic>,
    chunks: BTreeMap<u64, Vec<Sent>>,
    generations: u64,
    delivered: u64,
}

/// A message that is in a chunk.
#[derive(Debug)]
struct Sent {
    key: KeyId,
    generation: u64,
    held: Held,
    parked: bool,
}

/// The message that a key stopped at, and whether it is parked already.
#[derive(Clone, Copy, Debug)]
struct Failing {
    row: RowId,
    parked: bool,
}

/// A chunk to be published.
#[derive(Debug)]
pub(crate) struct ChunkPlan {
    /// Names it.
    pub(crate) number: u64,
    /// The messages, in order.
    pub(crate) messages: Vec<Arc<Stored>>,
}

impl Keys {
    pub(crate) fn new(limits: KeysLimits, policies: Arc<Policies>, seed: u64) -> Self {
        Self {
            limits,
            policies,
            random: fastrand::Rng::with_seed(seed),
            keys: Map::default(),
            line: VecDeque::new(),
            steps: VecDeque::new(),
            waiting: BTreeSet::new(),
            failing_since: BTreeMap::new(),
            dropping_keys: BTreeMap::new(),
            dropping_topics: BTreeSet::new(),
            chunks: BTreeMap::new(),
            generations: 0,
            delivered: 0,
        }
    }

    /// Begins a batch of rows that come from the fetch of this number.
    pub(crate) fn begin_batch(&mut self, fetch: u64) {
        // Rows come in the order of their fetches: from here on, every row was read by a fetch that began after these keys began to fail.
        self.failing_since.retain(|_, begun| *begun >= fetch);
    }

    /// Takes a row.
    pub(crate) fn push(
        &mut self,
        key: &KeyId,
        bucket: Bucket,
        epoch: Epoch,
        work: Work,
        effects: &mut Effects,
    ) {
        if self.is_dropping(key) {
            self.report_forgotten(key, vec![work.row().position], effects);
            return;
        }
        let work = if self.failing_since.contains_key(key) { work.of_failing_key() } else { work };
        let state = Self::entry(&mut self.keys, &mut self.generations, key, bucket, epoch);
        state.queue.push_back(work);
        stand_in_line(&mut self.line, &mut self.steps, key, state);
    }

    /// Takes a failing key that is due.
    pub(crate) fn retry(&mut self, due: DueKey, epoch: Epoch, parked: VecDeque<Held>, effects: &mut Effects) {
        if self.is_dropping(&due.key) {
            effects.worked.push((due.key, Some(Duration::ZERO)));
            return;
        }
        let state = Self::entry(&mut self.keys, &mut self.generations, &due.key, due.bucket, epoch);
        if state.retry.is_some() {
            return;
        }
        state.retry = Some(Retry {
            version: due.version,
            failing: due.failing,
            attempts: due.attempts,
            first_failure: due.first_failure,
            parked,
            delivered: Vec::new(),
            failed: None,
        });
        stand_in_line(&mut self.line, &mut self.steps, &due.key, state);
    }

    /// Puts keys whose wait is over back in line; says when the next one's is.
    pub(crate) fn wake(&mut self, now: Duration) -> Option<Duration> {
        while let Some((until, _)) = self.waiting.first() {
            if *until > now {
                return Some(*until);
            }
            if let Some((_, key)) = self.waiting.pop_first()
                && let Some(state) = self.keys.get_mut(&key)
            {
                state.resting = false;
                stand_in_line(&mut self.line, &mut self.steps, &key, state);
            }
        }
        None
    }

    /// Whether anything stands in line.
    pub(crate) fn has_work(&self) -> bool {
        !self.line.is_empty()
    }

    /// Whether nothing of these buckets is in an unconfirmed chunk.
    pub(crate) fn is_quiet(&self, buckets: &BucketSet) -> bool {
        !self.chunks.values().flatten().any(|sent| buckets.contains(sent.held.stored.bucket))
    }

    /// Asks for the steps that keys need before anything else of them is sent.
    pub(crate) fn next_steps(&mut self, effects: &mut Effects) {
        while let Some(key) = self.steps.pop_front() {
            let Some(state) = self.keys.get_mut(&key) else { continue };
            state.in_line = false;
            if state.busy == Busy::No && !state.resting {
                match next_step(&key, state) {
                    Some(ask) => effects.asks.push(ask),
                    None => stand_in_line(&mut self.line, &mut self.steps, &key, state),
                }
            }
        }
    }

    /// Builds the next chunk from the line.
    pub(crate) fn next_chunk(&mut self) -> Option<ChunkPlan> {
        let mut sent = Vec::new();
        let mut bytes = 0;
        while sent.len() < self.limits.chunk && bytes < self.limits.chunk_bytes {
            let Some(key) = self.line.pop_front() else { break };
            let Some(state) = self.keys.get_mut(&key) else { continue };
            state.in_line = false;
            if state.busy != Busy::No || state.resting {
                continue;
            }
            if state.needs_step() {
                stand_in_line(&mut self.line, &mut self.steps, &key, state);
                continue;
            }
            if state.is_empty() {
                self.keys.remove(&key);
                continue;
            }
            if state.alone && !sent.is_empty() {
                state.in_line = true;
                self.line.push_front(key);
                break;
            }
            let alone = state.alone;
            let room = self.limits.chunk - sent.len();
            let room_bytes = self.limits.chunk_bytes.saturating_sub(bytes);
            bytes += take_messages(&key, state, room, room_bytes, &mut sent);
            if alone {
                break;
            }
        }
        if sent.is_empty() {
            return None;
        }
        self.generations += 1;
        let number = self.generations;
        let messages = sent.iter().map(|sent| Arc::clone(&sent.held.stored)).collect();
        self.chunks.insert(number, sent);
        Some(ChunkPlan { number, messages })
    }

    /// Takes the outcomes of a chunk. `broke`: the publisher died over it.
    pub(crate) fn outcomes(
        &mut self,
        number: u64,
        outcomes: Vec<Option<Outcome>>,
        broke: bool,
        now: Duration,
        effects: &mut Effects,
    ) {
        let Some(sent) = self.chunks.remove(&number) else { return };
        let alone = sent.len() == 1;
        let mut outcomes = outcomes.into_iter();
        let mut run: Vec<(Sent, Option<Outcome>)> = Vec::new();
        // A key's messages stand together in a chunk.
        for sent in sent {
            let outcome = outcomes.next().flatten();
            if run.last().is_some_and(|(last, _)| last.key != sent.key) {
                self.key_outcomes(std::mem::take(&mut run), alone, broke, now, effects);
            }
            run.push((sent, outcome));
        }
        self.key_outcomes(run, alone, broke, now, effects);
        // Now that the keys of this chunk have their messages back: what is forgotten is all that they have.
        let broken: Vec<Topic> = effects.broken.iter().map(|(topic, _)| topic.clone()).collect();
        for topic in broken {
            self.forget_topic(&topic, effects);
            self.dropping_topics.insert(topic);
        }
    }

    fn key_outcomes(
        &mut self,
        run: Vec<(Sent, Option<Outcome>)>,
        alone: bool,
        broke: bool,
        now: Duration,
        effects: &mut Effects,
    ) {
        let Some((first, _)) = run.first() else { return };
        let key = first.key.clone();
        let state = self.keys.get_mut(&key).filter(|state| state.generation == first.generation);
        let Some(state) = state else {
            // An earlier stay of the key: what was delivered may be deleted, nothing else.
            for (sent, outcome) in run {
                if !sent.parked && outcome == Some(Outcome::Delivered) {
                    effects.counts.delivered += 1;
                    effects.delivered.push(sent.held.into());
                }
            }
            return;
        };
        state.busy = Busy::No;
        let mut rest = run.into_iter();
        let mut stopped = None;
        for (sent, outcome) in rest.by_ref() {
            if outcome != Some(Outcome::Delivered) {
                stopped = Some((sent, outcome));
                break;
            }
            self.delivered += 1;
            effects.counts.delivered += 1;
            state.absolve();
            match &mut state.retry {
                Some(retry) if sent.parked => {
                    retry.delivered.push(sent.held.stored.row());
                    // The attempts that were counted belong to the message that went through.
                    retry.failing = None;
                }
                _ => effects.delivered.push(sent.held.into()),
            }
        }
        let Some((first, outcome)) = stopped else {
            stand_in_line(&mut self.line, &mut self.steps, &key, state);
            return;
        };
        let row = first.held.stored.row();
        // Back to the head, in order: nothing of this key passes what was not delivered.
        let mut back = vec![first.held];
        back.extend(rest.map(|(sent, _)| sent.held));
        match &mut state.retry {
            Some(retry) if first.parked => {
                back.into_iter().rev().for_each(|held| retry.parked.push_front(held))
            }
            _ => back.into_iter().rev().for_each(|held| state.queue.push_front(Work::Message(held))),
        }
        let failing = Failing { row, parked: first.parked };
        match outcome {
            Some(Outcome::Rejected(failure)) => {
                self.failed(&key, failing, failure, Verdict::Rejected, effects)
            }
            Some(Outcome::Failed(failure)) => self.failed(&key, failing, failure, Verdict::Failed, effects),
            Some(Outcome::Unavailable(Unavailable::Topic, failure)) => {
                if !effects.broken.iter().any(|(topic, _)| *topic == key.topic) {
                    effects.broken.push((key.topic, failure));
                }
            }
            Some(Outcome::Unavailable(Unavailable::Route, failure)) => {
                effects.unavailable.get_or_insert(failure);
                stand_in_line(&mut self.line, &mut self.steps, &key, state);
            }
            Some(Outcome::Blocked) => {
                // Not tried at all: no fault of its own.
                state.resting = true;
                let rest = self.limits.first_delay.mul_f64(self.random.f64());
                self.waiting.insert((now + rest, key));
            }
            Some(Outcome::Unknown(_) | Outcome::Delivered) | None => {
                self.unknown(&key, failing, alone, broke, now, effects);
            }
        }
    }

    /// Nobody knows whether the first message of a key arrived: it is sent again, after a pause, before anything behind it.
    fn unknown(
        &mut self,
        key: &KeyId,
        failing: Failing,
        alone: bool,
        broke: bool,
        now: Duration,
        effects: &mut Effects,
    ) {
        let Some(state) = self.keys.get_mut(key) else { return };
        effects.counts.unknown += 1;
        state.unknown = state.unknown.saturating_add(1);
        // It breaks things if things work without it: a broker that is away answers nobody, and that is not this message's fault.
        if alone && (broke || self.delivered > state.delivered_at_strike) {
            state.strikes += 1;
            state.delivered_at_strike = self.delivered;
        }
        state.alone = true;
        if state.strikes >= STRIKES {
            state.strikes = 0;
            let failure = Failure::new(
                "breaks",
                format!(
                    "sent alone {STRIKES} times, and each time nothing was heard of it while others went through"
                ),
            );
            self.failed(key, failing, failure, Verdict::Failed, effects);
            return;
        }
        let doublings = state.unknown.saturating_sub(1).min(16);
        let bound = self.limits.first_delay.saturating_mul(1 << doublings).min(self.limits.most_delay);
        state.resting = true;
        self.waiting.insert((now + bound.mul_f64(self.random.f64()), key.clone()));
    }

    /// The first message of a key failed, for a reason of its own.
    fn failed(
        &mut self,
        key: &KeyId,
        failing: Failing,
        failure: Failure,
        verdict: Verdict,
        effects: &mut Effects,
    ) {
        let Some(state) = self.keys.get_mut(key) else { return };
        effects.counts.failed += 1;
        let row = failing.row;
        if let Some(retry) = &mut state.retry
            && failing.parked
        {
            if !retry.delivered.is_empty() {
                // First remove what went through: then the failing message is the first of the key.
                retry.failed = Some((row, failure, verdict));
                stand_in_line(&mut self.line, &mut self.steps, key, state);
                return;
            }
            let draw = self.random.f64();
            effects.asks.push(fail_again(key, state, (row, failure, verdict), &self.policies, draw));
            return;
        }
        let policy = self.policies.of(&key.topic);
        let exhausted = verdict == Verdict::Rejected || policy.is_exhausted(1, &failure.class);
        let first = failure.clone();
        let (step, kind) = if exhausted && policy.exhausted == Exhausted::DeadLetter {
            let step = Step::Bury { row, reason: reason(verdict), attempts: 1, first, last: failure };
            (step, StepKind::Bury(row))
        } else {
            let due_in = (!exhausted).then(|| policy.delay(1, self.random.f64()));
            let then = due_in.map_or(Then::Hold, Then::RetryAfter);
            let rows = state.parkable_run(usize::MAX);
            let behind = rows[1..].to_vec();
            let step = Step::Fail { row, attempts: 1, first, last: failure, then, behind };
            (step, StepKind::Fail { rows, due_in })
        };
        effects.asks.push(ask(key, state, None, step, kind));
    }

    /// Takes the store's answer to a step. `fetches`: how many fetches have begun by now.
    pub(crate) fn diverted(
        &mut self,
        key: &KeyId,
        generation: u64,
        answer: Diverted,
        fetches: u64,
        effects: &mut Effects,
    ) {
        let Some(state) = self.keys.get_mut(key).filter(|state| state.generation == generation) else {
            return;
        };
        let Busy::Step(kind) = std::mem::replace(&mut state.busy, Busy::No) else { return };
        let version = match answer {
            Diverted::Done(version) => version,
            Diverted::LeaseLost => {
                effects.counts.refused += 1;
                effects.lost.push(state.bucket);
                return;
            }
            Diverted::Stale => {
                effects.counts.refused += 1;
                if let Some(rows) = self.drop_key(key, effects) {
                    self.report_forgotten(key, rows, effects);
                }
                return;
            }
        };
        match kind {
            StepKind::Fail { rows, due_in } => {
                // What a fetch shows that began before now may not know yet that this key is failing.
                self.failing_since.insert(key.clone(), fetches);
                parked(state, &rows, effects);
                effects.worked.push((key.clone(), due_in));
            }
            StepKind::Park(rows) => {
                // It may have flowed in between, with messages read, and fail again by an operator's word.
                self.failing_since.insert(key.clone(), fetches);
                parked(state, &rows, effects);
            }
            StepKind::Bury(row) => {
                effects.counts.buried += 1;
                effects.left.push(row.position);
                state.queue.pop_front();
                state.absolve();
            }
            StepKind::Resume => {
                if let Some(failed) = resumed(key, state, version, effects) {
                    let draw = self.random.f64();
                    effects.asks.push(fail_again(key, state, failed, &self.policies, draw));
                    return;
                }
            }
            StepKind::FailAgain { due_in } => {
                state.retry = None;
                effects.worked.push((key.clone(), due_in));
            }
            StepKind::BuryParked => {
                effects.counts.buried += 1;
                state.absolve();
                match (&mut state.retry, version) {
                    (Some(retry), Some(version)) => {
                        retry.version = version;
                        retry.parked.pop_front();
                        retry.failing = None;
                        retry.attempts = 0;
                    }
                    _ => {
                        state.retry = None;
                        effects.worked.push((key.clone(), None));
                    }
                }
            }
        }
        if state.is_empty() {
            self.keys.remove(key);
        } else {
            stand_in_line(&mut self.line, &mut self.steps, key, state);
        }
    }

    /// Has rows read again. Until the poller echoes that, whatever comes of the key is dropped too: it may have been read before.
    fn report_forgotten(&mut self, key: &KeyId, rows: Vec<Position>, effects: &mut Effects) {
        if !rows.is_empty() {
            *self.dropping_keys.entry(key.clone()).or_default() += 1;
            effects.forgotten.push((key.clone(), rows));
        }
    }

    fn is_dropping(&self, key: &KeyId) -> bool {
        self.dropping_keys.contains_key(key) || self.dropping_topics.contains(&key.topic)
    }

    /// Drops all keys of a topic: they are read again when it is opened.
    pub(crate) fn forget_topic(&mut self, topic: &Topic, effects: &mut Effects) {
        let mut keys: Vec<KeyId> = self.keys.keys().filter(|key| key.topic == *topic).cloned().collect();
        keys.sort_unstable();
        for key in keys {
            if let Some(rows) = self.drop_key(&key, effects) {
                self.report_forgotten(&key, rows, effects);
            }
        }
    }

    /// The poller echoes that a key was forgotten: when it has echoed every time, what comes from here on was read again.
    pub(crate) fn key_forgotten(&mut self, key: &KeyId) {
        if let Some(count) = self.dropping_keys.get_mut(key) {
            *count -= 1;
            if *count == 0 {
                self.dropping_keys.remove(key);
            }
        }
    }

    /// The poller echoes that a topic was closed.
    pub(crate) fn topic_forgotten(&mut self, topic: &Topic) {
        self.dropping_topics.remove(topic);
    }

    /// Drops everything of these buckets: they belong to this relay no more. Nothing is read again, and what is in flight may
    /// only settle.
    pub(crate) fn lose(&mut self, buckets: &BucketSet, effects: &mut Effects) {
        let mut keys: Vec<KeyId> = self
            .keys
            .iter()
            .filter(|(_, state)| buckets.contains(state.bucket))
            .map(|(key, _)| key.clone())
            .collect();
        keys.sort_unstable();
        for key in keys {
            self.drop_key(&key, effects);
        }
        self.failing_since.retain(|key, _| !buckets.contains(key.bucket()));
    }

    /// The rows of the hot table that a key has in memory, in flight or not, in order.
    fn drop_key(&mut self, key: &KeyId, effects: &mut Effects) -> Option<Vec<Position>> {
        let state = self.keys.remove(key)?;
        let in_flight = self.chunks.values().flatten();
        let in_flight = in_flight.filter(|sent| sent.generation == state.generation && !sent.parked);
        let mut rows: Vec<Position> = in_flight.map(|sent| sent.held.stored.position).collect();
        rows.extend(state.queue.iter().map(|work| work.row().position));
        rows.sort_unstable();
        if state.retry.is_some() {
            effects.worked.push((key.clone(), Some(Duration::ZERO)));
        }
        Some(rows)
    }

    fn entry<'k>(
        keys: &'k mut Map<KeyState>,
        generations: &mut u64,
        key: &KeyId,
        bucket: Bucket,
        epoch: Epoch,
    ) -> &'k mut KeyState {
        match keys.entry(key.clone()) {
            Entry::Occupied(entry) => entry.into_mut(),
            Entry::Vacant(entry) => {
                *generations += 1;
                entry.insert(KeyState::new(*generations, bucket, epoch))
            }
        }
    }
}

fn stand_in_line(line: &mut VecDeque<KeyId>, steps: &mut VecDeque<KeyId>, key: &KeyId, state: &mut KeyState) {
    if !state.in_line && !state.resting && state.busy == Busy::No {
        state.in_line = true;
        if state.needs_step() { steps.push_back(key.clone()) } else { line.push_back(key.clone()) }
    }
}

/// The step that a key needs before anything else of it is sent, if any.
fn next_step(key: &KeyId, state: &mut KeyState) -> Option<Ask> {
    // What waits in the hot table of a failing key goes behind what is parked, before the key may be resumed.
    match state.queue.front() {
        Some(Work::Failing(_)) => {
            let rows = state.failing_run();
            return Some(ask(key, state, None, Step::Park { rows: rows.clone() }, StepKind::Park(rows)));
        }
        Some(Work::Malformed(row, reason)) => {
            let (row, failure) = (*row, Failure::new("malformed", reason.clone()));
            let step =
                Step::Bury { row, reason: "malformed", attempts: 0, first: failure.clone(), last: failure };
            return Some(ask(key, state, None, step, StepKind::Bury(row)));
        }
        Some(Work::Message(_)) if state.retry.is_some() => {
            let rows = state.parkable_run(MOST_ROWS_PER_STEP);
            return Some(ask(key, state, None, Step::Park { rows: rows.clone() }, StepKind::Park(rows)));
        }
        Some(Work::Message(_)) | None => {}
    }
    let retry = state.retry.as_mut()?;
    if retry.parked.is_empty() || retry.failed.is_some() {
        let version = Some(retry.version);
        let delivered = retry.delivered.clone();
        return Some(ask(key, state, version, Step::Resume { delivered }, StepKind::Resume));
    }
    None
}

/// Moves messages of a key into a chunk; says how many bytes they have.
fn take_messages(
    key: &KeyId,
    state: &mut KeyState,
    room: usize,
    room_bytes: usize,
    sent: &mut Vec<Sent>,
) -> usize {
    // A message that failed before is tried alone, and so is one that may have broken something.
    let suspect = state.alone || state.retry.as_ref().is_some_and(|retry| retry.failing.is_some());
    let most = if suspect { 1 } else { room };
    let generation = state.generation;
    let mut bytes = 0;
    for taken in 0..most {
        let (held, parked) = match &mut state.retry {
            Some(retry) => (retry.parked.pop_front(), true),
            None => match state.queue.pop_front() {
                Some(Work::Message(held)) => (Some(held), false),
                Some(other) => {
                    state.queue.push_front(other);
                    (None, false)
                }
                None => (None, false),
            },
        };
        let Some(held) = held else { break };
        let size = held.stored.message.bytes();
        if taken > 0 && bytes + size > room_bytes {
            match &mut state.retry {
                Some(retry) => retry.parked.push_front(held),
                None => state.queue.push_front(Work::Message(held)),
            }
            break;
        }
        bytes += size;
        sent.push(Sent { key: key.clone(), generation, held, parked });
    }
    state.busy = Busy::Chunk;
    bytes
}

/// The first rows of the queue were parked. What is behind them was read before now, and goes behind them there.
fn parked(state: &mut KeyState, rows: &[RowId], effects: &mut Effects) {
    effects.counts.parked += rows.len() as u64;
    effects.left.extend(rows.iter().map(|row| row.position));
    state.queue.drain(..rows.len().min(state.queue.len()));
    state.queue = std::mem::take(&mut state.queue).into_iter().map(Work::of_failing_key).collect();
}

/// A parked message failed: it is tried again later, held, or buried.
fn fail_again(
    key: &KeyId,
    state: &mut KeyState,
    (row, failure, verdict): (RowId, Failure, Verdict),
    policies: &Policies,
    draw: f64,
) -> Ask {
    let policy = policies.of(&key.topic);
    let retry = state.retry.as_ref();
    let again = retry.filter(|retry| retry.failing == Some(row.id));
    let attempts = again.map_or(0, |retry| retry.attempts).saturating_add(1);
    let first = again.and_then(|retry| retry.first_failure.clone()).unwrap_or_else(|| failure.clone());
    let version = retry.map(|retry| retry.version);
    let exhausted = verdict == Verdict::Rejected || policy.is_exhausted(attempts, &failure.class);
    let (step, kind) = if exhausted && policy.exhausted == Exhausted::DeadLetter {
        (Step::Bury { row, reason: reason(verdict), attempts, first, last: failure }, StepKind::BuryParked)
    } else {
        let due_in = (!exhausted).then(|| policy.delay(attempts, draw));
        let then = due_in.map_or(Then::Hold, Then::RetryAfter);
        let step = Step::Fail { row, attempts, first, last: failure, then, behind: Vec::new() };
        (step, StepKind::FailAgain { due_in })
    };
    ask(key, state, version, step, kind)
}

/// Delivered parked messages were removed; `version` is the key's new state, none when it flows again. Returns the failure that came behind
/// what was delivered, to be recorded now.
fn resumed(
    key: &KeyId,
    state: &mut KeyState,
    version: Option<i64>,
    effects: &mut Effects,
) -> Option<(RowId, Failure, Verdict)> {
    let retry = state.retry.as_mut()?;
    retry.delivered.clear();
    match version {
        Some(version) if !retry.parked.is_empty() => {
            retry.version = version;
            retry.attempts = 0;
            retry.failed.take()
        }
        version => {
            state.retry = None;
            effects.worked.push((key.clone(), version.map(|_| Duration::ZERO)));
            None
        }
    }
}

fn ask(key: &KeyId, state: &mut KeyState, version: Option<i64>, step: Step, kind: StepKind) -> Ask {
    state.busy = Busy::Step(kind);
    Ask {
        key: key.clone(),
        generation: state.generation,
        bucket: state.bucket,
        epoch: state.epoch,
        version,
        step,
    }
}

fn reason(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Failed => "exhausted",
        Verdict::Rejected => "rejected",
    }
}
