//! The windows of a reader: the main one, and the gaps that are read apart from it.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;

use outbox_contract::fetch::{Ordering, Scope, Writers};
use outbox_contract::{Bucket, BucketSet, KeyId, Position, StripeId, Topic};

use super::marks::Marks;
use super::part::Part;
use super::window::Window;

/// All windows. Each key is governed by exactly one: the narrowest gap that covers it, else the main window.
#[derive(Debug)]
pub(super) struct Windows {
    pub(super) ordering: Ordering,
    pub(super) main: Window,
    // Ordered, so that a run can be replayed: the round-robin follows this order.
    pub(super) gaps: BTreeMap<Part, Gap>,
    /// The keys of [`Part::Failing`]: wider windows pass their rows, which need no content and are cheap, and that one reads them when there is room.
    pub(super) aside: BTreeSet<KeyId>,
    /// How far stripes are committed, as far as is known.
    pub(super) marks: Marks,
}

/// A part that is read through a window of its own.
#[derive(Clone, Debug)]
pub(super) struct Gap {
    pub(super) window: Window,
    pub(super) buckets: BucketSet,
    pub(super) state: GapState,
    /// Whether it is of a key with rows in another bucket than its name says: a program computed that in a way of its own.
    is_foreign: bool,
}

impl Gap {
    fn new(window: Window, buckets: BucketSet, state: GapState) -> Self {
        Self { window, buckets, state, is_foreign: false }
    }

    /// Whether it is of a key that has rows in these buckets, as far as is known.
    fn is_in(&self, key: &KeyId, buckets: &BucketSet) -> bool {
        self.is_foreign || buckets.contains(key.bucket())
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum GapState {
    /// It may be read.
    Open,
    /// It waits: a broken or paused topic.
    Closed,
    /// It waits until the key has room in memory again.
    Hot,
}

impl Windows {
    pub(super) fn new(ordering: Ordering) -> Self {
        Self {
            ordering,
            main: Window::at(Position::START),
            gaps: BTreeMap::new(),
            aside: BTreeSet::new(),
            marks: Marks::default(),
        }
    }

    /// The window of a part; of the main one without.
    pub(super) fn window(&self, part: Option<&Part>) -> &Window {
        part.and_then(|part| self.gaps.get(part)).map_or(&self.main, |gap| &gap.window)
    }

    /// Where the next fetch through the window of this part begins, which reads these buckets.
    pub(super) fn start(&self, part: Option<&Part>, buckets: &BucketSet) -> Position {
        let window = self.window(part);
        if self.ordering != Ordering::Stripes {
            return window.start(self.ordering);
        }
        let only = match part {
            Some(Part::Key(key)) => Some(StripeId::of(key.topic.as_str(), key.key.as_str())),
            _ => None,
        };
        let news = self.marks.news(&window.seen, buckets, only);
        news.map_or(window.cursor, |news| news.min(window.cursor))
    }

    /// Takes what the store says of its stripes. `split`: buckets with late commits are read apart.
    pub(super) fn committed(&mut self, marks: Marks, owned: BucketSet, split: bool) {
        self.marks = marks;
        if split {
            self.split_late(owned);
        }
        self.main.more |= self.marks.news(&self.main.seen, &self.main_buckets(owned), None).is_some();
    }

    /// Gives each bucket with late commits a window of its own. So what is muted between those and the cursor is walked over again for that bucket
    /// alone, and the other ones don't wait for it: at each question some stripe may be late.
    fn split_late(&mut self, owned: BucketSet) {
        let wide =
            self.gaps.iter().filter(|(part, gap)| matches!(part, Part::Buckets(_)) && gap.buckets.len() > 1);
        let wide: Vec<Option<Part>> = wide.map(|(part, _)| Some(part.clone())).chain([None]).collect();
        for part in wide {
            let buckets = match part.as_ref().and_then(|part| self.gaps.get(part)) {
                Some(gap) => gap.buckets.intersection(&owned),
                None => self.main_buckets(owned),
            };
            let window = self.window(part.as_ref()).narrowed(Position::END);
            let late = self.marks.late(&window.seen, &buckets, window.cursor);
            for bucket in late.iter() {
                let buckets = [bucket].into_iter().collect();
                let gap = Gap::new(window.clone(), buckets, GapState::Open);
                self.gaps.insert(self.next_buckets(), gap);
            }
            if let Some(gap) = part.as_ref().and_then(|part| self.gaps.get_mut(part)) {
                gap.buckets = gap.buckets.without(&late);
            }
        }
        self.gaps.retain(|part, gap| !matches!(part, Part::Buckets(_)) || !gap.buckets.is_empty());
    }

    /// Whether anything is read through windows that are not of whole buckets: the others pass it.
    pub(super) fn has_muted(&self) -> bool {
        self.gaps.keys().any(|part| !matches!(part, Part::Buckets(_)))
    }

    fn next_buckets(&self) -> Part {
        let numbers = self.gaps.keys().filter_map(|part| match part {
            Part::Buckets(number) => Some(number + 1),
            Part::Key(_) | Part::Topic(_) | Part::Failing => None,
        });
        Part::Buckets(numbers.max().unwrap_or(0))
    }

    /// The keys of a gap that has caught up return to the next wider window. What that one has passed was seen through the gap: this fetch
    /// began after what counts there (the horizon, the marks) was established.
    pub(super) fn end_gap(&mut self, part: &Part, marks: &Marks) {
        if *part == Part::Failing {
            self.aside.clear();
        }
        if let (Part::Buckets(_), Some(gap)) = (part, self.gaps.remove(part)) {
            // The main window has never seen their stripes.
            self.main.seen = self.main.seen.with(marks, &gap.buckets);
        }
        self.main.more = true;
    }

    pub(super) fn window_mut(&mut self, part: Option<&Part>) -> &mut Window {
        part.and_then(|part| self.gaps.get_mut(part)).map_or(&mut self.main, |gap| &mut gap.window)
    }

    pub(super) fn all_mut(&mut self) -> impl Iterator<Item = &mut Window> {
        self.gaps.values_mut().map(|gap| &mut gap.window).chain([&mut self.main])
    }

    /// Nothing can come at or below this position any more, through whichever window.
    pub(super) fn floor(&self) -> Position {
        let gaps = self.gaps.values().map(|gap| gap.window.floor(self.ordering));
        gaps.min().unwrap_or(Position::END).min(self.main.floor(self.ordering))
    }

    /// Whether a fetch would begin above what it must see again if a writer is over.
    pub(super) fn has_base(&self, part: Option<&Part>) -> bool {
        self.window(part).base.is_some()
    }

    /// Tells all windows who is writing, and that the horizon moved.
    pub(super) fn hear(&mut self, writers: &Writers, moved: bool) {
        for window in self.all_mut() {
            window.hear(writers);
            window.more |= moved;
        }
    }

    /// The first buckets: everything is read from there on.
    pub(super) fn begin(&mut self, low_water: Position) {
        self.main = Window::at(low_water);
        self.gaps.values_mut().for_each(|gap| gap.window.lower(low_water));
    }

    /// Forgets buckets that are owned no more.
    pub(super) fn lose(&mut self, buckets: BucketSet) {
        self.gaps.retain(|part, gap| match part {
            // One that turns out to have nothing elsewhere is over at its next fetch.
            Part::Key(key) => gap.is_foreign || !buckets.contains(key.bucket()),
            Part::Topic(_) | Part::Failing => true,
            Part::Buckets(_) => {
                gap.buckets = gap.buckets.without(&buckets);
                !gap.buckets.is_empty()
            }
        });
    }

    pub(super) fn close_topic(&mut self, topic: &Topic) {
        let part = Part::Topic(topic.clone());
        let apart = self.gaps.remove(&part).map(|gap| gap.window);
        let was_apart = apart.is_some();
        let mut window = apart.unwrap_or_else(|| self.main.narrowed(Position::END));
        for (part, gap) in &self.gaps {
            let covered = match part {
                Part::Key(key) => key.topic == *topic,
                Part::Buckets(_) => !was_apart,
                Part::Failing => self.aside.iter().any(|key| key.topic == *topic),
                Part::Topic(_) => false,
            };
            if covered {
                window.join(&gap.window, self.ordering);
            }
        }
        self.aside.retain(|key| key.topic != *topic);
        if self.aside.is_empty() {
            self.gaps.remove(&Part::Failing);
        }
        // The topic takes over its keys: a key's own window would go on sending what is broken.
        self.gaps.retain(|part, _| !matches!(part, Part::Key(key) if key.topic == *topic));
        self.gaps.insert(part, Gap::new(window, BucketSet::ALL, GapState::Closed));
    }

    pub(super) fn open_topic(&mut self, topic: &Topic) {
        if let Some(gap) = self.gaps.get_mut(&Part::Topic(topic.clone())) {
            gap.state = GapState::Open;
            gap.window.more = true;
        }
    }

    /// The window that a key is read through: None is the main one.
    pub(super) fn governor(&self, key: &KeyId, bucket: Bucket) -> Option<Part> {
        if self.gaps.is_empty() {
            return None;
        }
        let own = Some(Part::Key(key.clone())).filter(|part| self.gaps.contains_key(part));
        let aside = || self.is_aside(key).then_some(Part::Failing);
        let topic = || Some(Part::Topic(key.topic.clone())).filter(|part| self.gaps.contains_key(part));
        own.or_else(aside).or_else(topic).or_else(|| {
            let buckets = self.gaps.iter().filter(|(part, _)| matches!(part, Part::Buckets(_)));
            buckets.filter(|(_, gap)| gap.buckets.contains(bucket)).map(|(part, _)| part.clone()).next()
        })
    }

    /// Has a row read again that no window of its key need show: by whichever windows may.
    pub(super) fn read_row_again(&mut self, key: &KeyId, bucket: Bucket, after: Position) {
        for part in [Part::Key(key.clone()), Part::Failing, Part::Topic(key.topic.clone())] {
            if let Some(gap) = self.gaps.get_mut(&part) {
                gap.window.lower(after);
            }
        }
        let of_bucket = |(part, gap): &(&Part, &mut Gap)| {
            matches!(part, Part::Buckets(_)) && gap.buckets.contains(bucket)
        };
        let wide = self.gaps.iter_mut().find(of_bucket).map(|(_, gap)| &mut gap.window);
        wide.unwrap_or(&mut self.main).lower(after);
    }

    /// Gives a key a window of its own, from this position on, where a row of it stands in this bucket.
    pub(super) fn read_key_again(&mut self, key: &KeyId, bucket: Bucket, after: Position, state: GapState) {
        let governor = self.governor(key, bucket);
        if let Some(part) = &governor {
            let Some(gap) = self.gaps.get_mut(part) else { return };
            // A key that is apart already is read from further below; a topic that waits keeps its keys and is read with them.
            let is_own = matches!(part, Part::Key(_));
            // So is one among failing keys, but when it has too much in memory: the others need not wait for that.
            let is_among = *part == Part::Failing && state == GapState::Open;
            if is_own || is_among || gap.state == GapState::Closed {
                gap.window.lower(after);
                gap.is_foreign |= is_own && bucket != key.bucket();
                return;
            }
        }
        let window = self.window(governor.as_ref()).narrowed(after);
        let gap = Gap { is_foreign: bucket != key.bucket(), ..Gap::new(window, BucketSet::ALL, state) };
        self.gaps.insert(Part::Key(key.clone()), gap);
    }

    /// Gives buckets a window of their own, from this position on.
    pub(super) fn read_buckets_again(&mut self, buckets: BucketSet, after: Position) {
        let mut window = Window::at(after);
        for (part, gap) in &mut self.gaps {
            match part {
                Part::Buckets(_) if !gap.buckets.intersection(&buckets).is_empty() => {
                    gap.buckets = gap.buckets.without(&buckets);
                    window.join(&gap.window, self.ordering);
                }
                Part::Buckets(_) => {}
                Part::Key(key) if !gap.is_in(key, &buckets) => {}
                Part::Key(_) | Part::Topic(_) | Part::Failing => gap.window.lower(after),
            }
        }
        self.gaps.retain(|part, gap| !matches!(part, Part::Buckets(_)) || !gap.buckets.is_empty());
        self.gaps.insert(self.next_buckets(), Gap::new(window, buckets, GapState::Open));
    }

    /// What of the owned buckets is read through the main window.
    pub(super) fn main_buckets(&self, owned: BucketSet) -> BucketSet {
        self.gaps.iter().fold(owned, |buckets, (part, gap)| match part {
            Part::Buckets(_) => buckets.without(&gap.buckets),
            Part::Key(_) | Part::Topic(_) | Part::Failing => buckets,
        })
    }

    /// What is read through narrower windows than that of this part. Of failing keys a few: the rows of the others come without content anyway, and are
    /// passed when they come.
    pub(super) fn muted(&self, part: Option<&Part>) -> Vec<Scope> {
        let has_aside = |topic: &Topic| self.aside.iter().any(|key| key.topic == *topic);
        let narrower = self.gaps.keys().filter(|other| match (part, other) {
            (Some(Part::Failing), Part::Topic(topic)) => !has_aside(topic),
            (None | Some(Part::Buckets(_) | Part::Failing), _) => true,
            (Some(Part::Topic(topic)), Part::Key(key)) => key.topic == *topic,
            (Some(_), _) => false,
        });
        let mut muted: Vec<Scope> = narrower.filter_map(Part::scope).collect();
        let room = MOST_MUTED.saturating_sub(muted.len());
        let passed = self.aside.iter().filter(|key| match part {
            None | Some(Part::Buckets(_)) => true,
            Some(Part::Topic(topic)) => key.topic == *topic,
            Some(Part::Key(_) | Part::Failing) => false,
        });
        muted.extend(passed.take(room).cloned().map(Scope::Key));
        muted
    }

    /// Whether a key is among the failing ones that are read together.
    pub(super) fn is_aside(&self, key: &KeyId) -> bool {
        !self.aside.is_empty() && self.aside.contains(key)
    }

    /// Whether one more key may be among them.
    pub(super) fn may_be_aside(&self, key: &KeyId) -> bool {
        self.aside.len() < MOST_ASIDE || self.is_aside(key)
    }

    /// Puts a key among the failing ones that are read together, from this position on: it needs no window of its own any more.
    pub(super) fn read_failing_again(&mut self, key: &KeyId, bucket: Bucket, after: Position) {
        let governor = self.governor(key, bucket);
        let mut window = self.window(governor.as_ref()).narrowed(after);
        if let Some(own @ Part::Key(_)) = governor {
            self.gaps.remove(&own);
        }
        if let Some(gap) = self.gaps.get(&Part::Failing) {
            window.join(&gap.window, self.ordering);
        }
        window.waits = true;
        self.gaps.insert(Part::Failing, Gap::new(window, BucketSet::ALL, GapState::Open));
        self.aside.insert(key.clone());
    }

    /// Up to where wider windows have passed rows of failing keys that are read together.
    pub(super) fn passed_to(&self) -> Position {
        let wide = self.gaps.iter().filter(|(part, _)| matches!(part, Part::Topic(_) | Part::Buckets(_)));
        wide.map(|(_, gap)| gap.window.cursor).max().unwrap_or(Position::START).max(self.main.cursor)
    }

    /// Parts that are not to be read now.
    pub(super) fn closed(&self) -> Vec<Scope> {
        let closed = self.gaps.iter().filter(|(_, gap)| gap.state == GapState::Closed);
        closed.filter_map(|(part, _)| part.scope()).collect()
    }

    /// Keys that wait for room in memory.
    pub(super) fn hot_keys(&mut self) -> impl Iterator<Item = (&KeyId, &mut Gap)> {
        self.gaps.iter_mut().filter_map(|(part, gap)| match part {
            Part::Key(key) if gap.state == GapState::Hot => Some((key, gap)),
            _ => None,
        })
    }

    /// How many keys have windows of their own.
    pub(super) fn keys_apart(&self) -> usize {
        self.gaps.keys().filter(|part| matches!(part, Part::Key(_))).count()
    }

    /// Whether a window waits for room for rows that are to be parked or buried.
    pub(super) fn has_waiting(&self) -> bool {
        let open = self.gaps.values().filter(|gap| gap.state == GapState::Open).map(|gap| &gap.window);
        open.chain([&self.main]).any(|window| window.waits && window.more)
    }

    /// Which window is read next: the main one at each second turn, so that no number of gaps holds it up, and every open gap that may have more. The
    /// windows of single keys come first while so many are apart; those that stopped at rows that are to be parked or buried wait until there is room
    /// for such. `last`: the gap that was read last; `was_main`: the main window had the last turn.
    pub(super) fn choose(
        &self,
        last: Option<&Part>,
        was_main: bool,
        key_gaps: usize,
        room_to_wait: bool,
    ) -> Option<Option<Part>> {
        let wide = self.keys_apart() < key_gaps;
        let may_be_read = |window: &Window| window.more && (room_to_wait || !window.waits);
        let main = may_be_read(&self.main) && wide;
        if main && !was_main {
            return Some(None);
        }
        let is_ready = |(part, gap): &(&Part, &Gap)| {
            let is_its_turn = wide || matches!(part, Part::Key(_) | Part::Failing);
            gap.state == GapState::Open && may_be_read(&gap.window) && is_its_turn
        };
        let behind = last.map_or(Bound::Unbounded, Bound::Excluded);
        let next = self.gaps.range((behind, Bound::Unbounded)).find(is_ready);
        let next = next.or_else(|| self.gaps.iter().find(is_ready)).map(|(part, _)| Some(part.clone()));
        next.or(main.then_some(None))
    }
}

/// The most failing keys that are read together: what is known of each is its name. Beyond that the wider windows wait for them.
const MOST_ASIDE: usize = 100_000;
/// How many parts are passed by the store at the most on behalf of failing keys.
const MOST_MUTED: usize = 64;
