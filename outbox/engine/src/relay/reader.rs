//! The fetch rule: what to read next, so that every committed message is seen and none is sent before an earlier one of its key.
//!
//! Pure: it makes no call and knows no clock. The poller asks it for a [`Plan`], carries the plan out, and tells it what came back.
//!
//! # The rule
//!
//! A *window* reads ahead from a cursor C, the last position that it has seen. Where several transactions write at once, a lower position
//! may become visible after a higher one, so a window reads again from min(C, H): H is the *horizon*, a position at or below which
//! nothing can be committed any more. It is found by asking for the highest position S that was given out and who is writing; when none of
//! those writers is left, H = S. Being established is not enough: rows below S may have been committed since the last fetch. So an
//! H counts for a window only after a fetch of that window that *began* since H was established. What is in flight is left out of each
//! fetch by position, in the statement.
//!
//! A writer that stays open for an hour holds H back for an hour, and what was delivered meanwhile would be walked over by each fetch. So
//! a window has a *base* B above its horizon when that is far behind: a fetch that began when only the writers W could still commit
//! at or below B has shown all else there. Later fetches read from B. After each one the writers are asked for: if all of W are still open,
//! none of them has committed anything below B by the time of the fetch, and its rows count. Else they are dropped, unsent, and read
//! again from min(C, H).
//!
//! Where rows are numbered in stripes, nobody says who is writing, but how far each stripe is committed: its *mark*. Whatever is committed in a
//! stripe later stands above its mark, though it may be below C, because other stripes have run ahead. The marks are asked for before each fetch. A
//! window then begins at min(C, what is new): below all that was committed since the marks of its last fetch. A row above its mark was committed
//! between the two questions; it counts for nothing yet, for an earlier one of its stripe may stand below where the fetch began. A fetch that was cut
//! short has seen nothing behind its last row, so C goes back to that.
//!
//! All of this is about what may be committed from now on, and believes that positions only grow. Where they went back (a sequence that was set, a table that
//! was restored or imported), rows stand below a cursor that no window would ever read again, or above counters that never reach them. So a look *below* is
//! made now and then, at what the main window believes to be empty; what it finds there takes every window back to before it.
//!
//! The main window reads everything that this relay owns. A *gap* is a part of it that must be read again, or later: a bucket that was
//! taken over, a topic that is broken or paused, a key that has too much in memory, a key that was forgotten. The main window passes a gap without its
//! content; the gap has a window of its own, and ends when that has seen everything. Each key is governed by exactly one window, the
//! narrowest gap that covers it, else the main window; that is what keeps two windows from sending one key side by side.

use outbox_contract::fetch::{FetchRequest, Fetched, FetchedRow, Ordering, Scope, Writers};
use outbox_contract::{BucketSet, KeyId, Position, RelayId, Route, StripeMark, Topic};

mod below;
mod horizon;
mod in_flight;
mod marks;
mod part;
mod plan;
mod window;
mod windows;

pub(crate) use below::{Below, Cause, Seen};
use below::{Early, Trusted};
use horizon::Horizon;
use in_flight::InFlight;
use marks::Marks;
use part::Part;
pub(crate) use plan::{Plan, Read, ReaderLimits};
use window::Shown;
use windows::{GapState, Windows};

#[cfg(test)]
#[path = "reader_model.rs"]
mod model;

/// Reads a store for one route of one relay.
#[derive(Debug)]
pub(crate) struct Reader {
    limits: ReaderLimits,
    owned: BucketSet,
    windows: Windows,
    in_flight: InFlight,
    horizon: Horizon,
    fetches: u64,
    // How often what is to be read was changed from outside: a fetch that was under way then is of no use.
    changes: u64,
    /// The gap that was read last, and whether the main window was read since.
    turn: Option<Part>,
    was_main: bool,
    // Whether the store is to be asked how far its stripes are, though no window has anything to read.
    look: bool,
    // How many rows of narrower gaps were passed: so many may have to be walked over again for a late commit.
    passed: usize,
    trusted: Trusted,
    early: Early,
}

impl Reader {
    pub(crate) fn new(ordering: Ordering, limits: ReaderLimits) -> Self {
        Self {
            limits,
            owned: BucketSet::EMPTY,
            windows: Windows::new(ordering),
            in_flight: InFlight::default(),
            horizon: Horizon::default(),
            fetches: 0,
            changes: 0,
            turn: None,
            was_main: false,
            look: false,
            passed: 0,
            trusted: Trusted::default(),
            early: Early::default(),
        }
    }

    /// The buckets that are read.
    pub(crate) fn owned(&self) -> BucketSet {
        self.owned
    }

    /// How many fetches have begun.
    pub(crate) fn fetches(&self) -> u64 {
        self.fetches
    }

    /// Takes buckets over: they are read from the low-water mark on, through a window of their own until it has caught up.
    pub(crate) fn acquire(&mut self, buckets: BucketSet, low_water: Position) {
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
    pub(crate) fn lose(&mut self, buckets: BucketSet) {
        self.changes += 1;
        self.owned = self.owned.without(&buckets);
        self.in_flight.remove_buckets(buckets);
        self.early.lose(&buckets);
        self.windows.lose(buckets);
    }

    /// Closes a topic: nothing of it is read until it is opened. What was in flight of it must be forgotten separately.
    pub(crate) fn close_topic(&mut self, topic: &Topic) {
        self.changes += 1;
        self.windows.close_topic(topic);
    }

    /// Opens a topic: it is read from where it was closed, through a window of its own until that has caught up.
    pub(crate) fn open_topic(&mut self, topic: &Topic) {
        self.windows.open_topic(topic);
    }

    /// Whether a topic is behind the main window, closed or catching up.
    pub(crate) fn is_apart(&self, topic: &Topic) -> bool {
        self.windows.gaps.contains_key(&Part::Topic(topic.clone()))
    }

    /// Forgets rows that were dropped from memory unsent; they are read again. What this relay owns of them goes by their own buckets: the key's name
    /// may be a stand-in, or the program that wrote them may compute buckets in a way of its own.
    pub(crate) fn forget(&mut self, key: &KeyId, rows: impl IntoIterator<Item = Position>) {
        let bucket = key.bucket();
        let mut first = None::<Position>;
        for position in rows {
            let Some(row) = self.in_flight.remove(position) else { continue };
            if !self.owned.contains(row.bucket) {
                continue;
            }
            self.changes += 1;
            if row.is_named() && row.bucket == bucket {
                first = Some(first.map_or(position, |first| first.min(position)));
            } else {
                self.windows.read_row_again(key, row.bucket, position.before());
            }
        }
        if let Some(first) = first {
            self.windows.read_key_again(key, bucket, first.before(), GapState::Open);
        }
    }

    /// Notes that rows are gone from the hot table: delivered and deleted, parked, or dead. No fetch shows them again: one that begins
    /// from now on can't see them, and one that is under way was asked to leave them out.
    pub(crate) fn left(&mut self, positions: impl IntoIterator<Item = Position>) {
        for position in positions {
            self.in_flight.leave(position);
        }
    }

    /// Whether the store is to be asked how far its stripes are committed, and the reader told, before it says what to read
    /// [`next`](Self::next).
    pub(crate) fn wants_stripes(&mut self) -> bool {
        if !self.has_stripes() || self.owned.is_empty() {
            return false;
        }
        self.open_cooled_keys();
        self.look || self.choose().is_some()
    }

    /// Takes the answer to the question how far stripes are committed.
    pub(crate) fn committed(&mut self, marks: Vec<StripeMark>) {
        self.look = false;
        if !self.windows.has_muted() {
            self.passed = 0;
        }
        let split = self.passed >= self.limits.rows;
        let marks = Marks::new(marks);
        self.early.committed(&marks);
        self.windows.committed(marks, self.owned, split);
    }

    /// What to read next, when there is room for `rows` and `bytes`. None: nothing, until something changes or a wake-up says
    /// [`look`](Self::look).
    pub(crate) fn next(&mut self, route: &Route, relay: RelayId, rows: usize, bytes: usize) -> Option<Plan> {
        if self.owned.is_empty() || rows == 0 || bytes == 0 {
            return None;
        }
        self.open_cooled_keys();
        let window = self.choose()?;
        self.was_main = window.is_none();
        if window.is_some() {
            self.turn.clone_from(&window);
        }
        let plan = self.plan(window, route, relay, rows.min(self.limits.rows), bytes.min(self.limits.bytes));
        self.fetches += 1;
        Some(plan)
    }

    /// Says that there may be something new: the main window is read again. Where there are stripes, they say by themselves whether it need be.
    pub(crate) fn look(&mut self) {
        if self.has_stripes() {
            self.look = true;
        } else {
            self.windows.main.more = true;
        }
    }

    /// Whether something for which there was no room in memory has some again.
    pub(crate) fn has_cooled_keys(&self) -> bool {
        let has_cooled = self.windows.gaps.iter().any(|(part, gap)| {
            let Part::Key(key) = part else { return false };
            gap.state == GapState::Hot && self.in_flight.has_cooled(key, self.limits.per_key)
        });
        has_cooled || (self.has_room_to_wait() && self.windows.has_waiting())
    }

    /// Takes the rows of a fetch. One fetch is under way at a time. Word of rows, topics and buckets may come meanwhile; what
    /// changes what is to be read makes its answer useless, and it is made again.
    pub(crate) fn fetched(&mut self, plan: &Plan, fetched: Fetched) -> Read {
        let Fetched { rows, mut full, mut reached } = fetched;
        // It may have been asked from too far on, or for what is read through another window now: asked again.
        if plan.changes != self.changes || !self.is_confirmed(plan) {
            return Read { seen: rows.len(), ..Read::default() };
        }
        let seen = rows.len();
        if plan.window != Some(Part::Failing) {
            self.windows.window_mut(plan.window.as_ref()).waits = false;
        }
        let mut last = None;
        let mut early = false;
        let mut taken = Vec::with_capacity(seen);
        let (mut muted, mut passed) = (Vec::new(), 0);
        for row in rows {
            let position = row.position();
            if !self.has_room(plan, &row) {
                // As if the fetch had been cut short before it.
                (full, reached) = (true, Position::START);
                last = last.or(Some(plan.request.after));
                break;
            }
            last = Some(position);
            if self.has_stripes() && self.is_early(plan, &row) {
                early = true;
                continue;
            }
            if let Some(row) = self.admit(plan, row) {
                taken.push(row);
            } else if !self.in_flight.contains(position) {
                // A narrower window has it, though the store did not know.
                passed += 1;
                muted.push(position);
            }
        }
        self.passed = self.passed.saturating_add(passed);
        if self.windows.ordering != Ordering::Writers {
            // The cursor passes them.
            muted.clear();
        }
        // What the store has looked at counts as seen, though it be another relay's: nothing of this relay's was there, and nobody need walk
        // over it again.
        self.horizon.seen = self.horizon.seen.max(last.unwrap_or_default()).max(reached);
        self.advance(plan, last, full, &muted);
        Read { rows: taken, seen, early }
    }

    /// Whether the horizon is behind what was seen, so that asking who is writing would help.
    pub(crate) fn wants_writers(&self) -> bool {
        self.windows.ordering == Ordering::Writers && self.horizon.is_behind()
    }

    /// Takes the answer to the question who is writing. It must have been asked after the last fetch returned. Says whether the horizon moved.
    pub(crate) fn wrote(&mut self, writers: &Writers) -> bool {
        let moved = self.horizon.wrote(writers);
        self.windows.hear(writers, moved);
        moved
    }

    /// Nothing that this relay owns stands at or below this position any more, or can be committed there.
    pub(crate) fn low_water(&self) -> Position {
        // A transaction that is still open may hold a lower position of its stripe than anybody has seen: so there is no such one, and whoever takes
        // a bucket over reads it from the start.
        if self.has_stripes() {
            return Position::START;
        }
        let in_flight = self.in_flight.lowest().map_or(Position::END, |position| position.before());
        self.windows.floor().min(in_flight)
    }

    /// Parts that are not to be read now, for the question which failing keys are due.
    pub(crate) fn closed(&self) -> Vec<Scope> {
        self.windows.closed()
    }

    fn plan(&self, part: Option<Part>, route: &Route, relay: RelayId, rows: usize, bytes: usize) -> Plan {
        let mut request = FetchRequest::new(route.clone(), relay, self.owned);
        request.limit = rows;
        request.bytes = bytes;
        request.muted = self.windows.muted(part.as_ref());
        match &part {
            None | Some(Part::Buckets(_)) => {}
            Some(Part::Failing) => {
                request.until = self.windows.passed_to();
                let room = self.limits.waiting.saturating_sub(self.in_flight.waiting());
                request.limit = request.limit.min(room.max(1));
            }
            Some(Part::Topic(topic)) => request.scope = Scope::Topic(topic.clone()),
            Some(Part::Key(key)) => {
                request.scope = Scope::Key(key.clone());
                let room = self.limits.per_key.saturating_sub(self.in_flight.of_key(key));
                request.limit = request.limit.min(room.max(1));
            }
        }
        request.buckets = match part.as_ref().and_then(|part| self.windows.gaps.get(part)) {
            Some(gap) => gap.buckets.intersection(&self.owned),
            None => self.windows.main_buckets(self.owned),
        };
        let window = self.windows.window(part.as_ref());
        request.after = self.windows.start(part.as_ref(), &request.buckets);
        request.except = self.in_flight.behind(request.after).collect();
        if !window.passed.is_empty() {
            let after = std::ops::Bound::Excluded(request.after);
            request.except.extend(window.passed.range((after, std::ops::Bound::Unbounded)));
            request.except.sort_unstable();
            request.except.dedup();
        }
        Plan {
            request,
            sequence: self.fetches + 1,
            changes: self.changes,
            horizon: self.horizon.established,
            claim: self.horizon.claim().cloned(),
            marks: self.windows.marks.clone(),
            to_confirm: self.windows.has_base(part.as_ref()).then_some(self.horizon.asked),
            window: part,
        }
    }

    /// Whether all that the fetch left out below its start was seen: always, unless it began at a base. Then the writers must have been asked for
    /// since, and the base must have outlived that.
    fn is_confirmed(&self, plan: &Plan) -> bool {
        plan.to_confirm
            .is_none_or(|asked| asked < self.horizon.asked && self.windows.has_base(plan.window.as_ref()))
    }

    /// Whether a row can be taken, or be left to another window. Of rows that are to be parked or buried no more are taken than there is room for: those of
    /// failing keys are left to the window that reads them together, and where that is not possible, nothing behind the row may be taken either.
    fn has_room(&mut self, plan: &Plan, row: &FetchedRow) -> bool {
        let is_left = match row {
            FetchedRow::Failing(waiting) => {
                plan.window != Some(Part::Failing) && self.windows.may_be_aside(&waiting.key)
            }
            FetchedRow::Malformed(..) => false,
            _ => return true,
        };
        if is_left || self.in_flight.waiting() < self.limits.waiting {
            return true;
        }
        self.windows.window_mut(plan.window.as_ref()).waits = true;
        false
    }

    fn admit(&mut self, plan: &Plan, row: FetchedRow) -> Option<FetchedRow> {
        let position = row.position();
        let (key, bucket, waits) = match &row {
            FetchedRow::Muted(_) => return None,
            FetchedRow::Message(stored) => (stored.message.key_id(), stored.bucket, false),
            FetchedRow::Failing(waiting) => (waiting.key.clone(), waiting.bucket, true),
            FetchedRow::Malformed(waiting, _) => {
                // Whichever window shows it: it is not sent, so nothing of its key need wait for it, nor it for anything.
                if self.in_flight.contains(position) || !self.owned.contains(waiting.bucket) {
                    return None;
                }
                self.in_flight.insert(position, None, waiting.bucket, true);
                return Some(row);
            }
            // A kind of row that this version does not know: left where it is, and seen again.
            _ => return None,
        };
        if self.in_flight.contains(position) || !self.owned.contains(bucket) {
            return None;
        }
        // The store muted what was a gap when the fetch began; this catches gaps that were made while taking this very batch.
        if self.windows.governor(&key, bucket) != plan.window {
            return None;
        }
        if waits && self.in_flight.waiting() >= self.limits.waiting {
            self.windows.read_failing_again(&key, bucket, position.before());
            return None;
        }
        // Rows that are to be parked have no content; how many there are of one key does not matter.
        let is_hot =
            !waits && self.in_flight.of_key(&key) >= self.in_flight.allowed(&key, self.limits.per_key);
        if is_hot && !matches!(plan.window, Some(Part::Key(_))) {
            self.windows.read_key_again(&key, bucket, position.before(), GapState::Hot);
            return None;
        }
        self.in_flight.insert(position, Some(&key), bucket, waits);
        Some(row)
    }

    fn advance(&mut self, plan: &Plan, last: Option<Position>, full: bool, muted: &[Position]) {
        let (horizon, claim, marks) = (plan.horizon, plan.claim.as_ref(), &plan.marks);
        let (ordering, walk) = (self.windows.ordering, self.limits.walk);
        let Some(part) = &plan.window else {
            // All there is was shown: what other windows have seen is passed too, though it be gone by now.
            let last = if full { last } else { Some(self.horizon.seen) };
            let shown = Shown { last, full, muted, horizon, claim, marks };
            return self.windows.main.advance(shown, ordering, walk);
        };
        let Some(gap) = self.windows.gaps.get_mut(part) else { return };
        gap.window.advance(Shown { last, full, muted, horizon, claim, marks }, ordering, walk);
        if !full {
            self.windows.end_gap(part, marks);
        } else if let Part::Key(key) = part
            && self.in_flight.of_key(key) >= self.limits.per_key
        {
            gap.state = GapState::Hot;
        }
    }

    fn choose(&self) -> Option<Option<Part>> {
        self.windows.choose(self.turn.as_ref(), self.was_main, self.limits.key_gaps, self.has_room_to_wait())
    }

    /// Whether a good part of the room for rows that are to be parked or buried is free: a trickle of small fetches would cost more than it brings.
    fn has_room_to_wait(&self) -> bool {
        self.in_flight.waiting() <= self.limits.waiting / 2
    }

    /// Whether the store says how far its stripes are committed.
    pub(crate) fn has_stripes(&self) -> bool {
        self.windows.ordering == Ordering::Stripes
    }

    fn open_cooled_keys(&mut self) {
        for (key, gap) in self.windows.hot_keys() {
            if self.in_flight.has_cooled(key, self.limits.per_key) {
                gap.state = GapState::Open;
                gap.window.more = true;
            }
        }
    }
}
