//! The fetch rule: what to read next, so that every committed message is seen and none is sent before an earlier one of its key.
//!
//! Pure: it makes no call and knows no clock. The poller asks it for a [`Plan`], carries the plan out, and tells it what came back.
//!
//! # The rule
//!
//! A *window* reads ahead from a cursor C, the last position that it has seen. Where several transactions write at once, a lower position
//! may become visible after a higher one, so a window reads again from min(C, H): H is the *horizon*, a position below which
//! nothing can be committed any more. It is found by asking for the highest position S that was given out and who is writing; when none of
//! those writers is left, H = S. Being established is not enough: rows below S may have been committed since the last fetch. So an
//! H counts for a window only after a fetch of that window that *began* since H was established. What is in flight is left out of each
//! fetch by position, in the statement.
//!
//! The main window reads everything that this relay owns. A *gap* is a part of it that must be read again, or later: a bucket that was
//! taken over, a topic that is broken or paused, a key that has too much in memory, a key that was forgotten. The main window passes a gap without its
//! content; the gap has a window of its own, and ends when that has seen everything. Each key is governed by exactly one window, the
//! narrowest gap that covers it, else the main window; that is what keeps two windows from sending one key side by side.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use outbox_contract::fetch::{FetchRequest, Fetched, FetchedRow, Ordering, Scope, Writers};
use outbox_contract::{Bucket, BucketSet, KeyId, Position, RelayId, Route, Topic};

mod part;
mod window;

pub(crate) use part::Part;
use part::{fingerprint, is_behind};
use window::Window;

#[cfg(test)]
#[path = "reader_model.rs"]
mod model;

/// How much a reader may take.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReaderLimits {
    /// The most rows of one fetch.
    pub(crate) rows: usize,
    /// The most bytes of one fetch.
    pub(crate) bytes: usize,
    /// The most messages of one key in memory; what is beyond it gets a window of its own.
    pub(crate) per_key: usize,
    /// The most keys with a window of their own, before the main window waits for them.
    pub(crate) key_gaps: usize,
}

/// Reads a store for one route of one relay.
#[derive(Debug)]
pub(crate) struct Reader {
    ordering: Ordering,
    limits: ReaderLimits,
    owned: BucketSet,
    main: Window,
    // Ordered, so that a run can be replayed: the round-robin follows this order.
    gaps: BTreeMap<Part, Gap>,
    known: BTreeMap<Position, Known>,
    in_memory: HashMap<u64, usize>,
    fetches: u64,
    // How often what is to be read was changed from outside: a fetch that was under way then is of no use.
    changes: u64,
    horizon: Horizon,
    turn: Option<Part>,
}

#[derive(Clone, Copy, Debug)]
struct Known {
    bucket: Bucket,
    key: u64,
}

#[derive(Clone, Debug)]
struct Gap {
    window: Window,
    buckets: BucketSet,
    state: GapState,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum GapState {
    /// It may be read.
    Open,
    /// It waits: a broken or paused topic.
    Closed,
    /// It waits until the key has room in memory again.
    Hot,
}

#[derive(Debug, Default)]
struct Horizon {
    /// Below this nothing can be committed any more.
    established: Position,
    /// The highest position that any fetch has shown.
    seen: Position,
    /// A position, and who was writing when it had been given out.
    watching: Option<(Position, BTreeSet<String>)>,
}

/// A fetch to carry out.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    /// What to ask the store.
    pub(crate) request: FetchRequest,
    /// Which fetch this is, counted in the order in which they begin.
    pub(crate) sequence: u64,
    changes: u64,
    window: Option<Part>,
    horizon: Position,
    per_key_room: Option<usize>,
}

/// What a fetch brought.
#[derive(Debug, Default)]
pub(crate) struct Read {
    /// Rows to be worked on, in order. Their positions are in flight from now on.
    pub(crate) rows: Vec<FetchedRow>,
    /// How many rows the store sent.
    pub(crate) seen: usize,
}

impl Reader {
    pub(crate) fn new(ordering: Ordering, limits: ReaderLimits) -> Self {
        Self {
            ordering,
            limits,
            owned: BucketSet::EMPTY,
            main: Window::at(Position::START),
            gaps: BTreeMap::new(),
            known: BTreeMap::new(),
            in_memory: HashMap::new(),
            fetches: 0,
            changes: 0,
            horizon: Horizon::default(),
            turn: None,
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

    /// Messages in flight.
    #[cfg(test)]
    pub(crate) fn in_flight(&self) -> usize {
        self.known.len()
    }

    /// Takes buckets over: they are read from the low-water mark on, through a window of their own until it has caught up.
    pub(crate) fn acquire(&mut self, buckets: BucketSet, low_water: Position) {
        let buckets = buckets.without(&self.owned);
        if buckets.is_empty() {
            return;
        }
        self.changes += 1;
        if self.owned.is_empty() {
            self.main = Window::at(low_water);
            for gap in self.gaps.values_mut() {
                gap.window.lower(low_water);
            }
        } else {
            self.read_buckets_again(buckets, low_water);
        }
        self.owned = self.owned.union(&buckets);
    }

    /// Forgets buckets that are owned no more.
    pub(crate) fn lose(&mut self, buckets: BucketSet) {
        self.changes += 1;
        self.owned = self.owned.without(&buckets);
        self.forget_known(buckets);
        self.gaps.retain(|part, gap| match part {
            Part::Key(key) => !buckets.contains(key.bucket()),
            Part::Topic(_) => true,
            Part::Buckets(_) => {
                gap.buckets = gap.buckets.without(&buckets);
                !gap.buckets.is_empty()
            }
        });
    }

    /// Closes a topic: nothing of it is read until it is opened. What was in flight of it must be forgotten separately.
    pub(crate) fn close_topic(&mut self, topic: &Topic) {
        self.changes += 1;
        let part = Part::Topic(topic.clone());
        let apart = self.gaps.remove(&part).map(|gap| gap.window);
        let was_apart = apart.is_some();
        let mut window = apart.unwrap_or_else(|| Window::at(self.main.start(self.ordering)));
        for (part, gap) in &self.gaps {
            let covered = match part {
                Part::Key(key) => key.topic == *topic,
                Part::Buckets(_) => !was_apart,
                Part::Topic(_) => false,
            };
            if covered {
                window.lower(gap.window.start(self.ordering));
            }
        }
        // The topic takes over its keys: a key's own window would go on sending what is broken.
        self.gaps.retain(|part, _| !matches!(part, Part::Key(key) if key.topic == *topic));
        self.gaps.insert(part, Gap { window, buckets: BucketSet::ALL, state: GapState::Closed });
    }

    /// Opens a topic: it is read from where it was closed, through a window of its own until that has caught up.
    pub(crate) fn open_topic(&mut self, topic: &Topic) {
        if let Some(gap) = self.gaps.get_mut(&Part::Topic(topic.clone())) {
            gap.state = GapState::Open;
            gap.window.more = true;
        }
    }

    /// Whether a topic is behind the main window, closed or catching up.
    pub(crate) fn is_apart(&self, topic: &Topic) -> bool {
        self.gaps.contains_key(&Part::Topic(topic.clone()))
    }

    /// Forgets rows that were dropped from memory unsent; they are read again.
    pub(crate) fn forget(&mut self, key: &KeyId, rows: impl IntoIterator<Item = Position>) {
        let mut first = None::<Position>;
        for position in rows {
            if self.drop_known(position) {
                first = Some(first.map_or(position, |first| first.min(position)));
            }
        }
        if !self.owned.contains(key.bucket()) {
            return;
        }
        if let Some(first) = first {
            self.changes += 1;
            self.read_key_again(key, first.before(), GapState::Open);
        }
    }

    /// Notes that rows are gone from the hot table: delivered and deleted, parked, or dead. No fetch shows them again: one that begins
    /// from now on can't see them, and one that is under way was asked to leave them out.
    pub(crate) fn left(&mut self, positions: impl IntoIterator<Item = Position>) {
        for position in positions {
            self.drop_known(position);
        }
    }

    /// What to read next, when there is room for `rows` and `bytes`. None: nothing, until something changes or a wake-up says
    /// [`look`](Self::look).
    pub(crate) fn next(&mut self, route: &Route, relay: RelayId, rows: usize, bytes: usize) -> Option<Plan> {
        if self.owned.is_empty() || rows == 0 || bytes == 0 {
            return None;
        }
        self.open_cooled_keys();
        let window = self.choose()?;
        self.turn.clone_from(&window);
        let plan = self.plan(window, route, relay, rows.min(self.limits.rows), bytes.min(self.limits.bytes));
        self.fetches += 1;
        Some(plan)
    }

    /// Says that there may be something new: the main window is read again.
    pub(crate) fn look(&mut self) {
        self.main.more = true;
    }

    /// Whether a key whose memory was full has room again.
    pub(crate) fn has_cooled_keys(&self) -> bool {
        self.gaps.iter().any(|(part, gap)| {
            matches!(part, Part::Key(key) if gap.state == GapState::Hot
                && self.memory_of(fingerprint(key)) <= self.limits.per_key / 2)
        })
    }

    /// Takes the rows of a fetch. One fetch is under way at a time. Word of rows, topics and buckets may come meanwhile; what
    /// changes what is to be read makes its answer useless, and it is made again.
    pub(crate) fn fetched(&mut self, plan: &Plan, fetched: Fetched) -> Read {
        let Fetched { rows, full, reached } = fetched;
        if plan.changes != self.changes {
            // It may have been asked from too far on, or for what is read through another window now: asked again.
            return Read { rows: Vec::new(), seen: rows.len() };
        }
        let seen = rows.len();
        let mut last = None;
        let mut taken = Vec::with_capacity(seen);
        let mut muted = Vec::new();
        for row in rows {
            let position = row.position();
            last = Some(position);
            // With one writer at a time the cursor alone passes them.
            if matches!(row, FetchedRow::Muted(_)) && self.ordering != Ordering::Single {
                muted.push(position);
            }
            if let Some(row) = self.admit(plan, row) {
                taken.push(row);
            }
        }
        // What the store has looked at counts as seen, though it be another relay's: nothing of this relay's was there, and nobody need walk
        // over it again.
        self.horizon.seen = self.horizon.seen.max(last.unwrap_or_default()).max(reached);
        self.advance(plan, last, full, &muted);
        Read { rows: taken, seen }
    }

    /// Whether the horizon is behind what was seen, so that asking who is writing would help.
    pub(crate) fn wants_writers(&self) -> bool {
        self.ordering != Ordering::Single && self.horizon.established < self.horizon.seen
    }

    /// Takes the answer to the question who is writing. It must have been asked after the last fetch returned.
    pub(crate) fn wrote(&mut self, writers: Writers) {
        if let Some((position, watched)) = &self.horizon.watching
            && watched.is_disjoint(&writers.open)
        {
            self.horizon.established = *position;
            self.horizon.watching = None;
            self.main.more = true;
            for gap in self.gaps.values_mut() {
                gap.window.more = true;
            }
        }
        if self.horizon.watching.is_none() && self.horizon.established < self.horizon.seen {
            // Given out before the question who is open, as was all that was seen: a backlog of any size is below it.
            let last = writers.last.max(self.horizon.seen);
            if writers.open.is_empty() {
                self.horizon.established = last;
            } else {
                self.horizon.watching = Some((last, writers.open));
            }
        }
    }

    /// Nothing that this relay owns stands at or below this position any more.
    pub(crate) fn low_water(&self) -> Position {
        let known = self.known.keys().next().map_or(Position::END, |position| position.before());
        let gaps =
            self.gaps.values().map(|gap| gap.window.start(self.ordering)).min().unwrap_or(Position::END);
        self.main.start(self.ordering).min(known).min(gaps)
    }

    /// Parts that are not to be read now, for the question which failing keys are due.
    pub(crate) fn closed(&self) -> Vec<Scope> {
        let closed = self.gaps.iter().filter(|(_, gap)| gap.state == GapState::Closed);
        closed.filter_map(|(part, _)| part.scope()).collect()
    }

    fn plan(&self, part: Option<Part>, route: &Route, relay: RelayId, rows: usize, bytes: usize) -> Plan {
        let mut request = FetchRequest::new(route.clone(), relay, self.owned);
        request.limit = rows;
        request.bytes = bytes;
        let mut per_key_room = None;
        let gap = part.as_ref().and_then(|part| self.gaps.get(part));
        let window = gap.map_or(&self.main, |gap| &gap.window);
        request.after = window.start(self.ordering);
        match &part {
            None | Some(Part::Buckets(_)) => {
                request.muted = self.gaps.keys().filter_map(Part::scope).collect();
            }
            Some(Part::Topic(topic)) => {
                request.scope = Scope::Topic(topic.clone());
                let keys =
                    self.gaps.keys().filter(|part| matches!(part, Part::Key(key) if key.topic == *topic));
                request.muted = keys.filter_map(Part::scope).collect();
            }
            Some(Part::Key(key)) => {
                request.scope = Scope::Key(key.clone());
                let room = self.limits.per_key.saturating_sub(self.memory_of(fingerprint(key)));
                request.limit = request.limit.min(room.max(1));
                per_key_room = Some(room);
            }
        }
        request.buckets = match gap {
            Some(gap) => gap.buckets.intersection(&self.owned),
            None => self.gaps.iter().fold(self.owned, |buckets, (part, gap)| match part {
                Part::Buckets(_) => buckets.without(&gap.buckets),
                Part::Key(_) | Part::Topic(_) => buckets,
            }),
        };
        let after = std::ops::Bound::Excluded(request.after);
        request.except = self.known.range((after, std::ops::Bound::Unbounded)).map(|(at, _)| *at).collect();
        if !window.passed.is_empty() {
            request.except.extend(window.passed.range((after, std::ops::Bound::Unbounded)));
            request.except.sort_unstable();
            request.except.dedup();
        }
        Plan {
            request,
            sequence: self.fetches + 1,
            changes: self.changes,
            window: part,
            horizon: self.horizon.established,
            per_key_room,
        }
    }

    /// Which window is read next: the main one and every open gap that may have more, in turn.
    fn choose(&self) -> Option<Option<Part>> {
        let hot = self.gaps.keys().filter(|part| matches!(part, Part::Key(_))).count();
        let main = (self.main.more && hot < self.limits.key_gaps).then_some(None);
        let open = self.gaps.iter().filter(|(_, gap)| gap.state == GapState::Open && gap.window.more);
        let mut ready: Vec<Option<Part>> = open.map(|(part, _)| Some(part.clone())).collect();
        ready.extend(main);
        // Parts in their order, the main window behind them; the one after the last one that was read.
        ready.iter().find(|part| is_behind(part, &self.turn)).or(ready.first()).cloned()
    }

    fn admit(&mut self, plan: &Plan, row: FetchedRow) -> Option<FetchedRow> {
        let position = row.position();
        let (key, bucket) = match &row {
            FetchedRow::Muted(_) => return None,
            FetchedRow::Message(stored) => (stored.message.key_id(), stored.bucket),
            FetchedRow::Failing(waiting) | FetchedRow::Malformed(waiting, _) => {
                (waiting.key.clone(), waiting.bucket)
            }
            // A kind of row that this version does not know: left where it is, and seen again.
            _ => return None,
        };
        if self.known.contains_key(&position) || !self.owned.contains(bucket) {
            return None;
        }
        // The store muted what was a gap when the fetch began; this catches gaps that were made while taking this very batch.
        if self.governor(&key, bucket) != plan.window {
            return None;
        }
        let print = fingerprint(&key);
        if matches!(row, FetchedRow::Message(_))
            && plan.per_key_room.is_none()
            && self.memory_of(print) >= self.limits.per_key
        {
            self.read_key_again(&key, position.before(), GapState::Hot);
            return None;
        }
        self.known.insert(position, Known { bucket, key: print });
        *self.in_memory.entry(print).or_default() += 1;
        Some(row)
    }

    fn advance(&mut self, plan: &Plan, last: Option<Position>, full: bool, muted: &[Position]) {
        let Some(part) = &plan.window else {
            // All there is was shown: what other windows have seen is passed too, though it be gone by now.
            let last = if full { last } else { Some(self.horizon.seen) };
            self.main.advance(last, plan.horizon, full, muted);
            return;
        };
        let Some(gap) = self.gaps.get_mut(part) else { return };
        gap.window.advance(last, plan.horizon, full, muted);
        if !full {
            // Its keys return to the next wider window. What that one has passed was seen here: this fetch began after the horizon that
            // counts there was established.
            self.gaps.remove(part);
            self.main.more = true;
        } else if let Part::Key(key) = part
            && self.in_memory.get(&fingerprint(key)).copied().unwrap_or(0) >= self.limits.per_key
        {
            gap.state = GapState::Hot;
        }
    }

    /// The window that a key is read through: None is the main one.
    fn governor(&self, key: &KeyId, bucket: Bucket) -> Option<Part> {
        if self.gaps.is_empty() {
            return None;
        }
        let narrow = [Part::Key(key.clone()), Part::Topic(key.topic.clone())];
        narrow.into_iter().find(|part| self.gaps.contains_key(part)).or_else(|| {
            let buckets = self.gaps.iter().filter(|(part, _)| matches!(part, Part::Buckets(_)));
            buckets.filter(|(_, gap)| gap.buckets.contains(bucket)).map(|(part, _)| part.clone()).next()
        })
    }

    fn read_key_again(&mut self, key: &KeyId, after: Position, state: GapState) {
        let start = match self.governor(key, key.bucket()) {
            None => self.main.start(self.ordering),
            Some(part) => {
                let Some(gap) = self.gaps.get_mut(&part) else { return };
                // A key that is apart already is read from further below; a topic that waits keeps its keys and is read with them.
                if matches!(part, Part::Key(_)) || gap.state == GapState::Closed {
                    gap.window.lower(after);
                    return;
                }
                gap.window.start(self.ordering)
            }
        };
        let window = Window::at(after.min(start));
        self.gaps.insert(Part::Key(key.clone()), Gap { window, buckets: BucketSet::ALL, state });
    }

    fn read_buckets_again(&mut self, buckets: BucketSet, after: Position) {
        let mut window = Window::at(after);
        for (part, gap) in &mut self.gaps {
            match part {
                Part::Buckets(_) if !gap.buckets.intersection(&buckets).is_empty() => {
                    gap.buckets = gap.buckets.without(&buckets);
                    window.lower(gap.window.start(self.ordering));
                }
                Part::Buckets(_) => {}
                Part::Key(key) if !buckets.contains(key.bucket()) => {}
                Part::Key(_) | Part::Topic(_) => gap.window.lower(after),
            }
        }
        self.gaps.retain(|part, gap| !matches!(part, Part::Buckets(_)) || !gap.buckets.is_empty());
        let number = self
            .gaps
            .keys()
            .filter_map(|part| if let Part::Buckets(number) = part { Some(number + 1) } else { None });
        let number = number.max().unwrap_or(0);
        self.gaps.insert(Part::Buckets(number), Gap { window, buckets, state: GapState::Open });
    }

    fn open_cooled_keys(&mut self) {
        let half = self.limits.per_key / 2;
        let memory = &self.in_memory;
        for (part, gap) in &mut self.gaps {
            if let Part::Key(key) = part
                && gap.state == GapState::Hot
                && memory.get(&fingerprint(key)).copied().unwrap_or(0) <= half
            {
                gap.state = GapState::Open;
                gap.window.more = true;
            }
        }
    }

    fn forget_known(&mut self, buckets: BucketSet) {
        let gone: Vec<Position> = self
            .known
            .iter()
            .filter(|(_, known)| buckets.contains(known.bucket))
            .map(|(at, _)| *at)
            .collect();
        for position in gone {
            self.drop_known(position);
        }
    }

    /// Says whether the position was known.
    fn drop_known(&mut self, position: Position) -> bool {
        let known = self.known.remove(&position);
        if let Some(known) = known {
            self.release_memory(known.key);
        }
        known.is_some()
    }

    fn memory_of(&self, key: u64) -> usize {
        self.in_memory.get(&key).copied().unwrap_or(0)
    }

    fn release_memory(&mut self, key: u64) {
        if let Some(count) = self.in_memory.get_mut(&key) {
            *count -= 1;
            if *count == 0 {
                self.in_memory.remove(&key);
            }
        }
    }
}
