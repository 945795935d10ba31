//! The fetch rule: what to read next, so that every committed message is seen and none is sent before an earlier one of its key.
//!
//! # The rule
//!
//! A *window* reads ahead from a cursor C, the last position that it has seen. Where several transactions write at once, a lower position
//! may become visible after a higher one, so a window reads again from min(C, H): H is the *visibility horizon*, a position at or below which
//! nothing can be committed any more. It is found by asking for the highest position S that was given out and who is writing; when none of
//! those writers is left, H = S. Being established is not enough: rows below S may have been committed since the last fetch. So an
//! H counts for a window only after a fetch of that window that *began* since H was established. Positions in flight are left out of each
//! fetch, in the statement.
//!
//! A writer that stays open for an hour holds H back for an hour, and what was delivered meanwhile would be walked over by each fetch. So
//! a window has a *base* B above its horizon when that is far behind: a fetch that began when only the writers W could still commit
//! at or below B has shown all else there. Later fetches read from B. After each one the writers are asked for: if all of W are still open,
//! none of them has committed anything below B by the time of the fetch, and its rows count. Else they are dropped, unsent, and read
//! again from min(C, H).
//!
//! Where rows are numbered in sequence shards, the store does not say who is writing, but how far each shard is committed: its *committed mark*.
//! Whatever is committed in a shard later stands above its mark, though it may be below C, because other shards have run ahead. The marks are asked for
//! before each fetch. A window then begins at min(C, what is new): below all that was committed since the marks of its last fetch. A row above its
//! mark was committed between the two questions; it counts for nothing yet, for an earlier one of its shard may stand below where the fetch
//! began. A fetch that was cut short has seen nothing behind its last row, so C goes back to that.
//!
//! All of this is about what may be committed from now on, and believes that positions only grow. Where they went back (a sequence that was set, a table that
//! was restored or imported), rows stand below a cursor that no window would ever read again, or above counters that never reach them. So a look *below* is
//! made now and then, at what the main window believes to be empty; what it finds there takes every window back to before it.
//!
//! The main window reads everything that this relay owns. A *gap* is a part of it that must be read again, or later: a bucket that was
//! taken over, a topic that is broken or paused, a key that has too much in memory or was forgotten. The main window passes a gap without its
//! content; the gap has a window of its own, and ends when that has seen everything. Each key is governed by exactly one window: its own, else its
//! topic's, else its bucket's, else the main window; that is what keeps two windows from sending one key side by side.
//!
//! A window of one key is a cursor and nothing else ([`KeyWindow`](super::key::KeyWindow)): so there may be as many as there are failing keys. They and
//! the wide windows have every second fetch each, so that no number of them stops what is healthy.

use std::collections::VecDeque;

use outbox_contract::backend::{
    Bucket, BucketSet, FetchRequest, Ordering, Position, RelayId, Scope, StripeMark, Writers,
};
use outbox_contract::{Route, Topic};

use super::table::{KeyRef, Table};
use horizon::{Claim, Horizon};
use marks::Marks;

mod below;
mod horizon;
mod marks;
mod taking;
mod window;
mod windows;

pub(crate) use below::Cause;
pub(super) use below::LookBelow;
use below::{Early, Trusted};
pub(super) use windows::{Part, Windows};

/// What is read of the store, and what is still to be.
#[derive(Debug)]
pub(super) struct Reading {
    pub(super) owned: BucketSet,
    pub(super) windows: Windows,
    horizon: Horizon,
    fetches: u64,
    // Number of times that what is to be read was changed for many keys: a fetch that was under way then is of no use.
    pub(super) changes: u64,
    /// Keys whose windows may be read: those whose rows are published, and those whose rows are parked.
    to_be_read: [VecDeque<KeyRef>; 2],
    last_was_of_a_key: bool,
    turns_of_keys: usize,
    /// Whether the store is to be asked for marks, though no window has anything to read.
    look: bool,
    /// Number of rows of narrower gaps that were passed: so many may have to be walked over again for a late commit.
    passed: usize,
    /// The fetch that is under way.
    under_way: Option<u64>,
    trusted: Trusted,
    early: Early,
}

/// A window whose turn it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Turn {
    Wide(Option<Part>),
    Key(KeyRef),
}

/// A fetch that is under way, with what was known when it began.
#[derive(Clone, Debug)]
pub(super) struct Plan {
    pub(super) request: FetchRequest,
    pub(super) turn: Turn,
    /// Which fetch this is, counted in the order in which they begin.
    pub(super) sequence: u64,
    changes: u64,
    horizon: Position,
    claim: Option<Claim>,
    marks: Marks,
    /// Number of times that the store had been asked who is writing. None: the answer needs no confirming.
    to_confirm: Option<u64>,
}

impl Plan {
    /// Whether the store is to be asked who is writing when this fetch has returned, before its rows are taken.
    pub(super) fn wants_writers(&self) -> bool {
        self.to_confirm.is_some()
    }
}

/// Maximum number of keys whose rows a fetch is asked to mute. Others come with their content, and are passed all the same.
const MAX_MUTED_KEYS: usize = 200;

impl Reading {
    pub(super) fn new(ordering: Ordering) -> Self {
        Self {
            owned: BucketSet::EMPTY,
            windows: Windows::new(ordering),
            horizon: Horizon::default(),
            fetches: 0,
            changes: 0,
            to_be_read: [VecDeque::new(), VecDeque::new()],
            last_was_of_a_key: false,
            turns_of_keys: 0,
            look: false,
            passed: 0,
            under_way: None,
            trusted: Trusted::default(),
            early: Early::default(),
        }
    }

    /// Number of fetches that have begun.
    pub(super) fn fetches(&self) -> u64 {
        self.fetches
    }

    /// The fetch that is under way.
    pub(super) fn under_way(&self) -> Option<u64> {
        self.under_way
    }

    /// Takes buckets over: they are read from the low-water mark on, through a window of their own until it has caught up.
    pub(super) fn acquire(&mut self, buckets: BucketSet, low_water: Position) {
        let buckets = buckets.without(&self.owned);
        if buckets.is_empty() {
            return;
        }
        self.changes += 1;
        if self.owned.is_empty() {
            self.windows.begin(low_water);
        } else {
            self.windows.read_buckets_again(buckets, low_water);
        }
        self.owned = self.owned.union(&buckets);
    }

    /// Forgets buckets that are owned no more.
    pub(super) fn lose(&mut self, buckets: BucketSet) {
        self.changes += 1;
        self.owned = self.owned.without(&buckets);
        self.early.lose(&buckets);
        self.windows.lose(buckets);
    }

    /// Says that there may be something new: the main window is read again. Where there are shards, they say by themselves whether it need be.
    pub(super) fn look(&mut self) {
        if self.has_shards() {
            self.look = true;
        } else {
            self.windows.main.more = true;
        }
    }

    fn has_shards(&self) -> bool {
        self.windows.ordering == Ordering::Stripes
    }

    /// Puts a key in line to be read.
    pub(super) fn stand(&mut self, key: KeyRef, is_failing: bool) {
        self.to_be_read[usize::from(is_failing)].push_back(key);
    }

    /// The next key that may be read. `room_to_wait`: also one whose rows are to be parked; those have every second turn.
    fn next_key(&mut self, room_to_wait: bool) -> Option<KeyRef> {
        self.turns_of_keys += 1;
        let [flowing, failing] = &mut self.to_be_read;
        if !room_to_wait {
            return flowing.pop_front();
        }
        let (first, second) =
            if self.turns_of_keys.is_multiple_of(2) { (failing, flowing) } else { (flowing, failing) };
        first.pop_front().or_else(|| second.pop_front())
    }

    /// Whether something waits until there is room for rows that are to be parked or buried.
    pub(super) fn wants_room_to_wait(&self) -> bool {
        !self.to_be_read[1].is_empty() || self.windows.has_waiting()
    }

    /// Whether the store is to be asked for its marks, and told of, before anything is read.
    pub(super) fn wants_marks(&self, room_to_wait: bool) -> bool {
        let has_key = !self.to_be_read[0].is_empty() || (room_to_wait && !self.to_be_read[1].is_empty());
        self.has_shards()
            && !self.owned.is_empty()
            && (self.look || has_key || self.windows.choose(room_to_wait).is_some())
    }

    /// Takes the answer to the question for marks. `has_passed`: whether anything is read through windows that wide ones pass.
    pub(super) fn committed(&mut self, marks: Vec<StripeMark>, has_passed: bool, max_rows: usize) {
        self.look = false;
        if !has_passed {
            self.passed = 0;
        }
        let split = self.passed >= max_rows;
        let marks = Marks::new(marks);
        self.early.committed(&marks);
        self.windows.committed(marks, self.owned, split);
    }

    /// Whose turn it is. `is_fit` looks whether a key may still be read; those that may not leave the line.
    pub(super) fn choose(
        &mut self,
        room_to_wait: bool,
        mut is_fit: impl FnMut(KeyRef) -> bool,
    ) -> Option<Turn> {
        if self.owned.is_empty() {
            return None;
        }
        let wide = self.windows.choose(room_to_wait);
        if wide.is_none() || !self.last_was_of_a_key {
            while let Some(key) = self.next_key(room_to_wait) {
                if is_fit(key) {
                    self.last_was_of_a_key = true;
                    return Some(Turn::Key(key));
                }
            }
        }
        self.last_was_of_a_key = false;
        let wide = wide?;
        self.windows.took(&wide);
        Some(Turn::Wide(wide))
    }

    /// A fetch of wide windows. `muted`: keys that have windows of their own.
    pub(super) fn plan_wide(
        &mut self,
        part: Option<Part>,
        (route, relay): (&Route, RelayId),
        (rows, bytes): (usize, usize),
        table: &Table,
        muted: impl Iterator<Item = Scope>,
    ) -> Plan {
        let mut request =
            FetchRequest::new(route.clone(), relay, self.windows.buckets(part.as_ref(), self.owned));
        (request.limit, request.bytes) = (rows, bytes);
        request.muted = self.windows.muted_topics(part.as_ref()).chain(muted.take(MAX_MUTED_KEYS)).collect();
        if let Some(Part::Topic(topic)) = &part {
            request.scope = Scope::Topic(topic.clone());
        }
        request.after = self.windows.start(part.as_ref(), &request.buckets);
        request.except = table.rows_behind(request.after).collect();
        let passed = &self.windows.window(part.as_ref()).passed;
        if !passed.is_empty() {
            let after = std::ops::Bound::Excluded(request.after);
            request.except.extend(passed.range((after, std::ops::Bound::Unbounded)));
            request.except.sort_unstable();
            request.except.dedup();
        }
        let to_confirm = self.windows.has_base(part.as_ref()).then_some(self.horizon.asked);
        self.begin(request, Turn::Wide(part), to_confirm)
    }

    /// A fetch of one key, from its cursor on.
    pub(super) fn plan_key(
        &mut self,
        key: KeyRef,
        (route, relay): (&Route, RelayId),
        (rows, bytes): (usize, usize),
        table: &Table,
    ) -> Option<Plan> {
        let state = table.get(key)?;
        let mut request = FetchRequest::new(route.clone(), relay, [state.bucket].into_iter().collect());
        (request.limit, request.bytes) = (rows, bytes);
        request.scope = Scope::Key(state.name.clone());
        request.after = state.window?.cursor;
        request.except = table.rows_of(key, request.after);
        Some(self.begin(request, Turn::Key(key), None))
    }

    fn begin(&mut self, request: FetchRequest, turn: Turn, to_confirm: Option<u64>) -> Plan {
        self.fetches += 1;
        self.under_way = Some(self.fetches);
        Plan {
            request,
            turn,
            sequence: self.fetches,
            changes: self.changes,
            horizon: self.horizon.established,
            claim: self.horizon.claim().cloned(),
            marks: self.windows.marks.clone(),
            to_confirm,
        }
    }

    /// Whether a fetch says anything of what is to be read now: it may have been asked from too far on, or for what is read through another window by
    /// now; and what it left out below its start must have been seen. That is always so, unless it began at a base: then the writers must have been asked
    /// for since, and the base must have outlived that.
    pub(super) fn is_of_use(&self, plan: &Plan) -> bool {
        let is_confirmed = match (&plan.turn, plan.to_confirm) {
            (Turn::Wide(part), Some(asked)) => {
                asked < self.horizon.asked && self.windows.has_base(part.as_ref())
            }
            _ => true,
        };
        plan.changes == self.changes && is_confirmed
    }

    /// Whether the horizon is behind what was seen, so that asking who is writing would help.
    pub(super) fn wants_writers(&self) -> bool {
        self.windows.ordering == Ordering::Writers && self.horizon.is_behind()
    }

    /// Takes the answer to the question who is writing. It must have been asked after the last fetch returned.
    pub(super) fn wrote(&mut self, writers: &Writers) {
        let moved = self.horizon.wrote(writers);
        self.windows.hear(writers, moved);
    }

    /// Nothing that this relay owns stands at or below this position any more, or can be committed there.
    pub(super) fn low_water(&self, table: &Table) -> Position {
        // A transaction that is still open may hold a lower position of its shard than anybody has seen: so there is no such one, and whoever takes
        // a bucket over reads it from the start.
        if self.has_shards() {
            return Position::START;
        }
        let in_flight = table.lowest_row().map_or(Position::END, Position::before);
        let keys = table.iter().filter_map(|(_, state)| state.window.map(|window| window.cursor));
        self.windows.floor().min(in_flight).min(keys.min().unwrap_or(Position::END))
    }

    /// The same, whatever is in flight: what the model puts in its place.
    pub(super) fn low_water_of_windows(&self) -> Position {
        self.windows.floor()
    }

    pub(super) fn open_topic(&mut self, topic: &Topic) {
        self.windows.open_topic(topic);
    }

    /// Closes a topic: nothing of it is read until it is opened.
    pub(super) fn close_topic(&mut self, topic: &Topic, of_keys: Option<Position>) {
        self.changes += 1;
        self.windows.close_topic(topic, of_keys);
    }

    /// A topic that waits keeps its keys, and is read with them. Says whether this one does.
    pub(super) fn lower_closed_topic(&mut self, topic: &Topic, after: Position) -> bool {
        let window = self.windows.closed_topic(topic);
        window.map(|window| window.lower(after)).is_some()
    }

    /// Has a row read again that no window of its key need show.
    pub(super) fn read_row_again(&mut self, topic: &Topic, bucket: Bucket, after: Position) {
        self.changes += 1;
        self.windows.read_row_again(topic, bucket, after);
    }

    /// Parts that are not to be read now, for the question which failing keys are due.
    pub(super) fn closed(&self) -> Vec<Scope> {
        self.windows.closed()
    }

    /// A horizon counts at once.
    #[cfg(test)]
    pub(super) fn sabotage_horizon(&mut self) {
        let horizon = self.horizon.established;
        self.windows.all_mut().for_each(|window| window.horizon = horizon);
    }

    /// What stands below the cursor was seen, whoever is still writing.
    #[cfg(test)]
    pub(super) fn sabotage_cursor(&mut self, part: Option<&Part>) {
        let window = self.windows.window_mut(part);
        window.horizon = window.horizon.max(window.cursor);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// There is no number of failing keys at which the others wait.
    #[test]
    fn wide_windows_have_every_second_fetch_whatever_number_of_keys_waits() {
        let mut reading = Reading::new(Ordering::Single);
        reading.acquire(BucketSet::ALL, Position::START);
        (0..1_000).for_each(|slot| reading.stand(KeyRef { slot, stay: 1 }, slot % 3 > 0));
        let turns: Vec<Turn> = (0..200).map(|_| reading.choose(true, |_| true).unwrap()).collect();
        let is_wide = |turn: &&Turn| matches!(turn, Turn::Wide(None));
        assert_eq!(turns.iter().filter(is_wide).count(), 100);
        let is_failing = |turn: &&Turn| matches!(turn, Turn::Key(key) if key.slot % 3 > 0);
        assert_eq!(
            turns.iter().filter(is_failing).count(),
            50,
            "what is to be parked has half of the others"
        );
    }
}
