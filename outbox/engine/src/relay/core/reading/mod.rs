//! Fetch rule: decides what to read next, so that every committed message is seen, and none is sent
//! before an earlier one of its key.
//!
//! # The rule
//!
//! A *window* reads ahead from a *cursor* C, the last position that it has seen. When several
//! transactions write at once, a lower position may become visible after a higher one. So a window
//! reads again from min(C, H), where H is the *visibility horizon*: a position at or below which
//! nothing can be committed any more. To find it, the relay asks for the highest assigned position
//! S and for the open transactions. When none of those is open any more, H = S. That is not
//! sufficient yet: rows below S may have been committed since the last fetch. So H counts for a
//! window only after a fetch of that window that *began* after H was established. Each fetch
//! excludes positions in flight, in its statement.
//!
//! A transaction that stays open for an hour holds H back for an hour, and each fetch would scan
//! what was delivered meanwhile. So a window with a horizon far behind has a *base* B above it. A
//! fetch that began when only the writers W could still commit at or below B has shown everything
//! else there. Later fetches read from B. After each of them the relay asks for the open
//! transactions. If all of W are still open, none of them had committed anything below B by the
//! time of the fetch, and its rows count. Otherwise the rows are dropped, unsent, and read again
//! from min(C, H).
//!
//! Stores that number rows in sequence shards do not report open transactions, but how far each
//! shard is committed: its *committed mark*. Later commits of a shard are above its mark, though
//! they may be below C, because other shards have run ahead. The relay reads the marks before each
//! fetch. A window then begins at min(C, N), where N is below everything committed since the marks
//! of its last fetch. A row above its shard's mark was committed between the two queries. It does
//! not count yet, because an earlier row of its shard may be below the start of the fetch. C stays
//! below it. A fetch that was cut short has seen nothing behind its last row, so C goes back to
//! that.
//!
//! All of this is about future commits, and assumes that positions only grow. If they went back (a
//! sequence was set, a table was restored or imported), rows are below a cursor that no window
//! would read again, or above counters that never reach them. So now and then a check *below* reads
//! the range that the main window believes to be empty. If it finds rows, every window goes back to
//! before them.
//!
//! The main window reads everything that this relay owns. A *gap* is a part of it that must be read
//! again, or later: buckets that were taken over, a topic that is unavailable or paused, a key that
//! has too much in memory or was forgotten. The main window passes over a gap without fetching its
//! content. The gap has a window of its own, and ends when that has seen everything. Each key is
//! governed by exactly one window: its own, else its topic's, else its bucket's, else the main
//! window. This keeps two windows from sending one key concurrently.
//!
//! A window of one key is only a cursor ([`KeyWindow`](super::key::KeyWindow)), so there may be as
//! many as there are failing keys. Key windows and wide windows take turns with fetches, so that no
//! number of failing keys stops the others.

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
#[cfg(any(test, feature = "_simulation"))]
mod mistakes;
mod taking;
mod window;
mod windows;

pub(crate) use below::Cause;
pub(super) use below::LookBelow;
use below::{Early, Trusted};
pub(super) use windows::{Part, Windows};

/// Read state of the store: what was read, and what is still to be read.
#[derive(Debug)]
pub(super) struct Reading {
    pub(super) owned: BucketSet,
    pub(super) windows: Windows,
    horizon: Horizon,
    fetches: u64,
    // Number of changes of the read state for many keys. A fetch that was running during one is
    // useless.
    pub(super) changes: u64,
    /// Keys whose windows may be read: those whose rows are published, and those whose rows are
    /// parked.
    to_be_read: [VecDeque<KeyRef>; 2],
    last_was_of_a_key: bool,
    turns_of_keys: usize,
    /// True if the marks are to be read, though no window has anything to read.
    look: bool,
    /// Number of rows of narrower gaps passed over, which a late commit may make a fetch scan
    /// again.
    passed: usize,
    /// Sequence number of the running fetch.
    under_way: Option<u64>,
    trusted: Trusted,
    early: Early,
}

/// Window whose turn it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Turn {
    Wide(Option<Part>),
    Key(KeyRef),
}

/// Running fetch, with what was known when it began.
#[derive(Clone, Debug)]
pub(super) struct Plan {
    pub(super) request: FetchRequest,
    pub(super) turn: Turn,
    /// Sequence number of the fetch.
    pub(super) sequence: u64,
    changes: u64,
    horizon: Position,
    claim: Option<Claim>,
    marks: Marks,
    /// Number of queries for open transactions before the fetch. `None`: no confirmation is needed.
    to_confirm: Option<u64>,
}

impl Plan {
    /// Returns true if the open transactions must be queried after this fetch, before its rows
    /// count.
    pub(super) fn wants_writers(&self) -> bool {
        self.to_confirm.is_some()
    }
}

/// Maximum number of keys whose rows a fetch is asked to mute. Rows of further keys come with their
/// content, and are passed over here.
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

    /// Returns the number of fetches started.
    pub(super) fn fetches(&self) -> u64 {
        self.fetches
    }

    /// Returns the sequence number of the running fetch.
    pub(super) fn under_way(&self) -> Option<u64> {
        self.under_way
    }

    /// Takes over buckets. They are read from the low-water mark on, through a window of their own
    /// until it has caught up.
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

    /// Forgets buckets that are no longer owned.
    pub(super) fn lose(&mut self, buckets: BucketSet) {
        self.changes += 1;
        self.owned = self.owned.without(&buckets);
        self.early.lose(&buckets);
        self.windows.lose(buckets);
    }

    /// Makes the main window read again, as there may be something new. With sequence shards, their
    /// marks decide whether it must.
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

    /// Queues a key to be read.
    pub(super) fn stand(&mut self, key: KeyRef, is_failing: bool) {
        self.to_be_read[usize::from(is_failing)].push_back(key);
    }

    /// Returns the next key that may be read. `room_to_wait`: keys whose rows are to be parked may
    /// be read, too; they have every second turn.
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

    /// Returns true if anything waits for room for rows that are to be parked or buried.
    pub(super) fn wants_room_to_wait(&self) -> bool {
        !self.to_be_read[1].is_empty() || self.windows.has_waiting()
    }

    /// Returns true if the marks must be read before anything else.
    pub(super) fn wants_marks(&self, room_to_wait: bool) -> bool {
        let has_key = !self.to_be_read[0].is_empty() || (room_to_wait && !self.to_be_read[1].is_empty());
        self.has_shards()
            && !self.owned.is_empty()
            && (self.look || has_key || self.windows.choose(room_to_wait).is_some())
    }

    /// Processes the committed marks. `has_passed`: anything is read through windows narrower than
    /// the wide ones.
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

    /// Returns the window whose turn it is. `is_fit` tells whether a key may still be read; other
    /// keys leave the queue.
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

    /// Returns a fetch through a wide window. `muted`: keys with windows of their own.
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

    /// Returns a fetch of one key, from its cursor on.
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

    /// Returns true if the answer to a fetch still covers what is to be read.
    ///
    /// The read state may have changed: the fetch may have begun too far ahead, or parts of it may
    /// be read through another window now. And everything that it excluded below its start must
    /// have been seen. That is so unless it began at a base. Then the open transactions must have
    /// been queried since, and the base must have survived the answer.
    pub(super) fn is_of_use(&self, plan: &Plan) -> bool {
        let is_confirmed = match (&plan.turn, plan.to_confirm) {
            (Turn::Wide(part), Some(asked)) => {
                asked < self.horizon.asked && self.windows.has_base(part.as_ref())
            }
            _ => true,
        };
        plan.changes == self.changes && is_confirmed
    }

    /// Returns true if the horizon is behind what was seen, so that asking for open transactions
    /// would help.
    pub(super) fn wants_writers(&self) -> bool {
        self.windows.ordering == Ordering::Writers && self.horizon.is_behind()
    }

    /// Processes the list of open transactions. The query must have begun after the last fetch
    /// returned.
    pub(super) fn wrote(&mut self, writers: &Writers) {
        let moved = self.horizon.wrote(writers);
        self.windows.hear(writers, moved);
    }

    /// Returns the low-water mark: nothing that this relay owns is at or below it any more, or can
    /// be committed there.
    pub(super) fn low_water(&self, table: &Table) -> Position {
        // An open transaction may hold a lower position of its shard than any that was seen. So
        // there is no such mark, and a relay that takes over a bucket reads it from the start.
        if self.has_shards() {
            return Position::START;
        }
        let in_flight = table.lowest_row().map_or(Position::END, Position::before);
        let keys = table.iter().filter_map(|(_, state)| state.window.map(|window| window.cursor));
        self.windows.floor().min(in_flight).min(keys.min().unwrap_or(Position::END))
    }

    /// Returns the mark without regard to messages in flight, for a sabotage of the model.
    pub(super) fn low_water_of_windows(&self) -> Position {
        self.windows.floor()
    }

    /// The committed marks that any window has seen, and the latest ones, for the model.
    #[cfg(any(test, feature = "_simulation"))]
    pub(super) fn last_seen(&self) -> impl Iterator<Item = StripeMark> {
        self.windows.all().map(|window| &window.seen).chain([&self.windows.marks]).flat_map(Marks::iter)
    }

    /// The cursor of the main window: what the model puts in place of a mark.
    pub(super) fn main_cursor(&self) -> Position {
        self.windows.main.cursor
    }

    pub(super) fn open_topic(&mut self, topic: &Topic) {
        self.windows.open_topic(topic);
    }

    /// Closes a topic: nothing of it is read until it is opened.
    pub(super) fn close_topic(&mut self, topic: &Topic, of_keys: Option<Position>) {
        self.changes += 1;
        self.windows.close_topic(topic, of_keys);
    }

    /// Lowers the window of a closed topic, which is read with all its keys. Returns false if the
    /// topic is not closed.
    pub(super) fn lower_closed_topic(&mut self, topic: &Topic, after: Position) -> bool {
        let window = self.windows.closed_topic(topic);
        window.map(|window| window.lower(after)).is_some()
    }

    /// Makes a row be read again that the windows of its key need not cover.
    pub(super) fn read_row_again(&mut self, topic: &Topic, bucket: Bucket, after: Position) {
        self.changes += 1;
        self.windows.read_row_again(topic, bucket, after);
    }

    /// Returns true if a topic is closed: nothing of it may be sent.
    pub(super) fn is_closed(&self, topic: &Topic) -> bool {
        self.windows.is_closed(topic)
    }

    /// Returns the closed topics, for the query for due failing keys.
    pub(super) fn closed(&self) -> Vec<Scope> {
        self.windows.closed()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// No number of failing keys makes the others wait.
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
