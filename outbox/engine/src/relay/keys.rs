//! The keys of a lane: which message may go next. Pure: no call, no clock, no task.
//!
//! Each key does one thing at a time: some of its messages are in one unconfirmed chunk, or one step of its state machine is on its way
//! to the store, or it stands in line. So what follows a failure can't overtake it (promise P3), and one key's failure holds up no other
//! (P5): the others stand in the same line and go on. Only parking is done besides, for it changes nothing about what is parked already.
//!
//! What hangs must not fill the memory, and must be waited for by nobody:
//!
//! - **What was answered and what was not stand in different lines.** Silence is waited for by a publisher that does nothing else.
//! - **While there is room in memory, what nothing was heard of is tried again from there**: mostly a broker or a network was away. When there is
//!   none left for others, it is set aside ([`Keys::relieve`]): they will show whether it is the broker.
//! - **Of failing keys few wait in the line of the silent ones**; the others are put off, and have no part of the memory meanwhile.
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

use outbox_contract::fetch::{DueKey, RowId};
use outbox_contract::{Bucket, BucketSet, Epoch, KeyId, Position, Stored, Topic};

use super::effects::Effects;
use super::key::{Busy, Held, KeyState, Retry, Work};
use super::policies::Policies;

mod lines;
mod malformed;
mod outcomes;
mod silence;
mod steps;
mod turns;

use lines::Lines;
use malformed::MalformedRows;
use silence::{Strikes, is_silent};
use steps::next_step;
use turns::Turns;
pub(crate) use turns::{Desks, Turn};

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
    /// The most failing keys in the line of those of which nothing is heard.
    pub(crate) silent: usize,
}

/// How often a message may break things alone before that counts as a failure of its own.
const STRIKES: u32 = 5;
/// Of how many keys strikes are remembered. Beyond it all are forgotten, and count from the beginning.
const MOST_STRUCK: usize = 10_000;

// Not the standard library's random hasher: the order in which keys are dropped must be the same in a replay.
type Map<V> = HashMap<KeyId, V, BuildHasherDefault<DefaultHasher>>;

/// The keys of one lane.
#[derive(Debug)]
pub(crate) struct Keys {
    limits: KeysLimits,
    policies: Arc<Policies>,
    random: fastrand::Rng,
    keys: Map<KeyState>,
    lines: Lines,
    turns: Turns,
    waiting: BTreeSet<(Duration, KeyId)>,
    malformed: MalformedRows,
    failing_since: BTreeMap<KeyId, u64>,
    // How many forgettings of a key the poller has not echoed yet.
    dropping_keys: BTreeMap<KeyId, u32>,
    dropping_topics: BTreeSet<Topic>,
    /// Topics that were forgotten and of which nothing was published since.
    doubted_topics: BTreeSet<Topic>,
    // By place in the chunk; none where a message was taken as delivered already.
    chunks: BTreeMap<u64, Vec<Option<Sent>>>,
    // Keys whose first message may break things. It outlives their stays in memory, since such a key is set aside in between. Whoever is there is tried
    // alone.
    strikes: BTreeMap<KeyId, Strikes>,
    /// When the last of the failing keys is due that were put off because the line of the silent ones is long.
    put_off: Duration,
    generations: u64,
    delivered: u64,
}

/// A message that is in a chunk.
#[derive(Debug)]
struct Sent {
    key: KeyId,
    generation: u64,
    epoch: Epoch,
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
    /// How often the first was tried before.
    pub(crate) tried: u32,
    /// Under which epochs the relay owns their buckets.
    pub(crate) epochs: BTreeMap<Bucket, Epoch>,
    /// Which line it was taken from.
    pub(crate) turn: Turn,
}

impl Keys {
    pub(crate) fn new(limits: KeysLimits, policies: Arc<Policies>, seed: u64) -> Self {
        Self {
            limits,
            policies,
            random: fastrand::Rng::with_seed(seed),
            keys: Map::default(),
            lines: Lines::default(),
            turns: Turns::default(),
            waiting: BTreeSet::new(),
            malformed: MalformedRows::default(),
            failing_since: BTreeMap::new(),
            dropping_keys: BTreeMap::new(),
            dropping_topics: BTreeSet::new(),
            doubted_topics: BTreeSet::new(),
            chunks: BTreeMap::new(),
            strikes: BTreeMap::new(),
            put_off: Duration::ZERO,
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
        mut work: Work,
        effects: &mut Effects,
    ) {
        if self.is_dropping(key) {
            self.report_forgotten(key, vec![work.row().position], effects);
            return;
        }
        if self.failing_since.contains_key(key) {
            work.set_aside();
        }
        let state = Self::entry(&mut self.keys, &mut self.generations, key, bucket, epoch);
        state.queue.push_back(work);
        self.lines.stand(key, state);
    }

    /// Takes a failing key that is due.
    pub(crate) fn retry(
        &mut self,
        due: DueKey,
        epoch: Epoch,
        mut parked: VecDeque<Held>,
        now: Duration,
        effects: &mut Effects,
    ) {
        if due.failing.is_some() {
            // It is tried alone. What is behind it would only hold credit, perhaps for long; it is read again when this one went through.
            parked.truncate(1);
        }
        if self.is_dropping(&due.key) {
            effects.worked.push((due.key, Some(Duration::ZERO)));
            return;
        }
        let state = Self::entry(&mut self.keys, &mut self.generations, &due.key, due.bucket, epoch);
        if state.retry.is_some() {
            return;
        }
        let silent = is_silent(&due) || (due.failing.is_some() && self.strikes.contains_key(&due.key));
        let first = parked.front().map(|held| held.stored.row());
        state.retry = Some(Retry {
            version: due.version,
            failing: due.failing,
            attempts: due.attempts,
            first_failure: due.first_failure,
            parked,
            delivered: Vec::new(),
            failed: None,
            silent,
            refused: false,
        });
        if let Some(row) = first
            && silent
            && state.busy == Busy::No
            && self.lines.silent.len() >= self.limits.silent
        {
            return self.put_off(&due.key, row, now, effects);
        }
        if let Some(state) = self.keys.get_mut(&due.key) {
            self.lines.stand(&due.key, state);
        }
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
                match state.catching_up {
                    Some(until) if until > now => {
                        self.waiting.insert((until, key.clone()));
                    }
                    _ => state.catching_up = None,
                }
                if state.is_over() {
                    self.keys.remove(&key);
                } else {
                    self.lines.stand(&key, state);
                }
            }
        }
        None
    }

    /// Which line the next chunk is taken from, if keys stand in one that may have a publisher now.
    pub(crate) fn next_turn(&mut self, desks: Desks) -> Option<Turn> {
        let Self { lines, turns, .. } = self;
        let waits = [Turn::Ready, Turn::Failed, Turn::Silent].map(|turn| !lines.of(turn).is_empty());
        turns.next(|turn| waits[turn as usize], desks)
    }

    /// Builds the next chunk of a line. None: those that stood there all belong elsewhere by now.
    pub(crate) fn next_chunk(&mut self, turn: Turn) -> Option<ChunkPlan> {
        let sent = match turn {
            Turn::Ready => self.next_ready(),
            Turn::Failed | Turn::Silent => self.next_suspects(turn),
        };
        let plan = self.plan(sent, turn)?;
        self.turns.took(plan.number, turn);
        Some(plan)
    }

    /// Whether nothing of these buckets is in an unconfirmed chunk.
    pub(crate) fn is_quiet(&self, buckets: &BucketSet) -> bool {
        !self.in_flight().any(|sent| buckets.contains(sent.held.stored.bucket))
    }

    /// Asks for the steps that keys need before anything else of them is sent.
    pub(crate) fn next_steps(&mut self, effects: &mut Effects) {
        self.bury_malformed(effects);
        while let Some(key) = self.lines.steps.pop_front() {
            let Some(state) = self.keys.get_mut(&key) else { continue };
            state.in_steps = false;
            let draw = self.random.f64();
            match next_step(&key, state, &self.policies, draw) {
                Some(ask) => effects.asks.push(ask),
                None => self.lines.stand(&key, state),
            }
        }
    }

    /// The next messages of keys that nothing is held against.
    fn next_ready(&mut self) -> Vec<Sent> {
        let mut sent = Vec::new();
        let mut bytes = 0;
        while sent.len() < self.limits.chunk && bytes < self.limits.chunk_bytes {
            let Some(key) = self.lines.ready.pop_front() else { break };
            let room = self.limits.chunk - sent.len();
            let room_bytes = self.limits.chunk_bytes.saturating_sub(bytes);
            let Some(state) = self.leave_line(&key, Turn::Ready) else { continue };
            bytes += take_messages(&key, state, room, room_bytes, &mut sent);
        }
        sent
    }

    /// The next messages of suspects, one of each. Those of which nothing was heard once ride together: mostly a broker or a network
    /// was away, and none of them did it. After that each goes alone, and so does what failed: some transports can only tell of a message that is alone
    /// whether it is to blame.
    fn next_suspects(&mut self, turn: Turn) -> Vec<Sent> {
        let delivered = self.delivered;
        let mut sent = Vec::new();
        let mut bytes = 0;
        while sent.len() < self.limits.chunk && bytes < self.limits.chunk_bytes {
            let Some(key) = self.lines.of(turn).pop_front() else { break };
            let room_bytes = self.limits.chunk_bytes.saturating_sub(bytes);
            let struck = self.strikes.get(&key).copied();
            let Some(state) = self.leave_line(&key, turn) else { continue };
            if state.unknown == 0 {
                // If nothing is known of it either from an earlier stay, what went through before it is tried says nothing of it.
                state.delivered_by_then = struck.map_or(delivered, |struck| struck.delivered);
            }
            let alone = turn == Turn::Failed || struck.is_some() || state.is_silent_again();
            if alone && !sent.is_empty() {
                state.in_line = true;
                self.lines.of(turn).push_front(key);
                break;
            }
            bytes += take_messages(&key, state, 1, room_bytes, &mut sent);
            if alone {
                break;
            }
        }
        sent
    }

    /// A key that has left its line, if it has something to send from there. If it belongs elsewhere by now, it goes there.
    fn leave_line(&mut self, key: &KeyId, turn: Turn) -> Option<&mut KeyState> {
        let Entry::Occupied(mut entry) = self.keys.entry(key.clone()) else { return None };
        let state = entry.get_mut();
        state.in_line = false;
        if state.is_over() {
            entry.remove();
            return None;
        }
        if state.turn() != Some(turn) {
            self.lines.stand(key, state);
            return None;
        }
        Some(entry.into_mut())
    }

    fn plan(&mut self, sent: Vec<Sent>, turn: Turn) -> Option<ChunkPlan> {
        if sent.is_empty() {
            return None;
        }
        self.generations += 1;
        let number = self.generations;
        let messages = sent.iter().map(|sent| Arc::clone(&sent.held.stored)).collect();
        let epochs = sent.iter().map(|sent| (sent.held.stored.bucket, sent.epoch)).collect();
        let tried = sent.first().map_or(0, |first| self.tried(first));
        self.chunks.insert(number, sent.into_iter().map(Some).collect());
        Some(ChunkPlan { number, messages, tried, epochs, turn })
    }

    /// How often a message was tried before, as its key's row says.
    fn tried(&self, sent: &Sent) -> u32 {
        let retry = self.keys.get(&sent.key).and_then(|state| state.retry.as_ref());
        retry
            .filter(|retry| retry.failing == Some(sent.held.stored.message.id))
            .map_or(0, |retry| retry.attempts)
    }

    fn in_flight(&self) -> impl Iterator<Item = &Sent> {
        self.chunks.values().flatten().flatten()
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
        self.doubted_topics.insert(topic.clone());
    }

    /// Drops everything of these buckets: they belong to this relay no more. Nothing is read again, and what is in flight may
    /// only settle.
    pub(crate) fn lose(&mut self, buckets: &BucketSet, effects: &mut Effects) {
        self.drop_keys(|state| buckets.contains(state.bucket), effects);
        self.malformed.lose(buckets);
        self.failing_since.retain(|key, _| !buckets.contains(key.bucket()));
        self.strikes.retain(|key, _| !buckets.contains(key.bucket()));
    }

    /// The same of what was read under these epochs alone: whoever says so may be behind the poller, which may have read the buckets anew.
    pub(crate) fn lapse(&mut self, epochs: &BTreeMap<Bucket, Epoch>, effects: &mut Effects) {
        self.drop_keys(|state| epochs.get(&state.bucket) == Some(&state.epoch), effects);
        self.malformed.lapse(epochs);
    }

    fn drop_keys(&mut self, which: impl Fn(&KeyState) -> bool, effects: &mut Effects) {
        let dropped = self.keys.iter().filter(|(_, state)| which(state));
        let mut keys: Vec<KeyId> = dropped.map(|(key, _)| key.clone()).collect();
        keys.sort_unstable();
        for key in keys {
            self.drop_key(&key, effects);
        }
    }

    /// The rows of the hot table that a key has in memory, in flight or not, in order.
    fn drop_key(&mut self, key: &KeyId, effects: &mut Effects) -> Option<Vec<Position>> {
        let state = self.keys.remove(key)?;
        let in_flight = self.in_flight().filter(|sent| sent.generation == state.generation && !sent.parked);
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

/// Moves messages of a key into a chunk; says how many bytes they have.
fn take_messages(
    key: &KeyId,
    state: &mut KeyState,
    room: usize,
    room_bytes: usize,
    sent: &mut Vec<Sent>,
) -> usize {
    let (generation, epoch) = (state.generation, state.epoch);
    let mut bytes = 0;
    for taken in 0..room {
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
        sent.push(Sent { key: key.clone(), generation, epoch, held, parked });
    }
    state.busy = if state.retry.is_some() { Busy::Retry } else { Busy::Chunk };
    bytes
}
